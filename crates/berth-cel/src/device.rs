//! Selectors of devices (resource.k8s.io): expressions over the variable `device`.
//!
//! A device has a driver, attributes and capacities. The names of attributes and capacities have
//! two parts, a domain and an identifier: `device.attributes["gpu.example.com"].memory`. A domain
//! that a device does not have is an empty map, and an identifier that it does not have is an
//! error.
//!
//! Source: Kubernetes documentation of `CELDeviceSelector` in resource.k8s.io/v1.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use berth_apimachinery::quantity::Quantity;

use crate::env::Env;
use crate::error::EvalError;
use crate::program::{Program, Run};
use crate::types::{ObjectType, Type};
use crate::value::{Map, OwnedMap, Semver, Struct, Value};

/// Maximum cost of one evaluation.
const COST_MAX: u64 = 1_000_000;
/// Maximum length of an expression in bytes.
const LENGTH_MAX: usize = 10 * 1024;
/// Name of the type of `device`.
const DEVICE: &str = "kubernetes.DRADevice";

static ENV: LazyLock<Env> = LazyLock::new(|| {
    let by_domain = |value: Type| Type::map(Type::String, Type::map(Type::String, value));
    let fields = [
        ("driver", Type::String),
        ("attributes", by_domain(Type::Dyn)),
        ("capacity", by_domain(Type::Opaque("kubernetes.Quantity"))),
        ("allowMultipleAllocations", Type::Bool),
    ];
    Env::default().bindings().variable("device", Type::Object(ObjectType::new(DEVICE, fields)))
});

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attribute<'a> {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    String(&'a str),
    /// A semantic version.
    Version(&'a str),
}

/// A device as expressions see it.
#[derive(Clone, Debug)]
pub struct Device<'a>(Value<'a>);

impl<'a> Device<'a> {
    /// A device of this driver. The driver is the domain of names without one. Attributes with an
    /// invalid version are left out.
    pub fn new(
        driver: &'a str,
        attributes: impl IntoIterator<Item = (&'a str, Attribute<'a>)>,
        capacity: impl IntoIterator<Item = (&'a str, Quantity)>,
        allow_multiple_allocations: bool,
    ) -> Self {
        let attributes = attributes.into_iter().filter_map(|(name, value)| {
            let value = match value {
                Attribute::Bool(value) => Value::Bool(value),
                Attribute::Int(value) => Value::Int(value),
                Attribute::String(text) => Value::from(text),
                Attribute::Version(text) => Value::Semver(Arc::new(Semver::parse(text, false).ok()?)),
            };
            Some((name, value))
        });
        let capacity = capacity.into_iter().map(|(name, quantity)| (name, Value::Quantity(quantity)));
        let fields = [
            ("driver", Value::from(driver)),
            ("attributes", by_domain(driver, attributes)),
            ("capacity", by_domain(driver, capacity)),
            ("allowMultipleAllocations", Value::Bool(allow_multiple_allocations)),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Device(Value::Struct(Arc::new(Struct { name: DEVICE.to_owned(), fields })))
    }
}

/// Domain and identifier of a name. The driver is the domain of a name without one.
pub fn qualified<'a>(driver: &'a str, name: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((driver, name))
}

/// Values by domain and identifier. Other domains are empty.
fn by_domain<'a>(driver: &'a str, values: impl Iterator<Item = (&'a str, Value<'a>)>) -> Value<'a> {
    let mut domains: BTreeMap<&str, OwnedMap<'a>> = BTreeMap::new();
    for (name, value) in values {
        let (domain, identifier) = qualified(driver, name);
        // A name occurs once with its domain and once without it only if the driver is at fault;
        // the first value counts.
        let _ = domains.entry(domain).or_default().insert(Value::from(identifier), value);
    }
    let owned = |map: OwnedMap<'a>| Value::Map(Map::Owned(Arc::new(map)));
    let mut all = OwnedMap::with_default(owned(OwnedMap::default()));
    for (domain, map) in domains {
        // The keys of a map are distinct.
        let _ = all.insert(Value::from(domain), owned(map));
    }
    owned(all)
}

/// A compiled selector.
#[derive(Clone, Debug)]
pub struct Selector(Program);

impl Selector {
    /// Compiles an expression; the error is a message for its author.
    pub fn compile(expression: &str) -> Result<Self, String> {
        if expression.len() > LENGTH_MAX {
            return Err(format!("expression must be no longer than {LENGTH_MAX} bytes"));
        }
        let program = ENV.compile(expression).map_err(|issues| format!("compilation failed: {issues}"))?;
        match program.result_type() {
            Type::Bool | Type::Dyn => Ok(Selector(program)),
            other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
        }
    }

    /// True if the expression selects the device.
    pub fn matches(&self, device: &Device<'_>) -> Result<bool, EvalError> {
        let run = Run { limit: Some(COST_MAX), ..Run::default() };
        match self.0.run(std::slice::from_ref(&device.0), run).result? {
            Value::Bool(matches) => Ok(matches),
            other => Err(EvalError::message(format!("the result must be a bool, and is a {}", other.type_name()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expression: &str) -> Result<bool, String> {
        let attributes = [
            ("type", Attribute::String("gpu")),
            ("driverVersion", Attribute::Version("1.2.3")),
            ("other.example.com/numa", Attribute::Int(3)),
            ("nvlink", Attribute::Bool(true)),
        ];
        let memory = Quantity::parse("80Gi").expect("a quantity");
        let device = Device::new("gpu.example.com", attributes, [("memory", memory)], false);
        Selector::compile(expression)?.matches(&device).map_err(|error| error.to_string())
    }

    #[test]
    fn a_selector_reads_driver_attributes_and_capacity() {
        for expression in [
            "device.driver == 'gpu.example.com'",
            "device.attributes['gpu.example.com'].type == 'gpu' && device.attributes['gpu.example.com'].nvlink",
            "device.attributes['other.example.com'].numa >= 3",
            "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.2.0'))",
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) > 0",
            "!device.allowMultipleAllocations",
            "cel.bind(own, device.attributes['gpu.example.com'], own.type == 'gpu' && own.nvlink)",
        ] {
            assert_eq!(check(expression), Ok(true), "{expression}");
        }
        assert_eq!(check("device.driver == 'x'"), Ok(false));
    }

    #[test]
    fn a_domain_that_the_device_lacks_is_empty_and_an_attribute_that_it_lacks_is_an_error() {
        assert_eq!(check("'x.example.com' in device.attributes"), Ok(false));
        assert_eq!(check("'gpu.example.com' in device.attributes"), Ok(true));
        assert_eq!(check("'type' in device.attributes['x.example.com']"), Ok(false));
        assert_eq!(check("device.attributes['x.example.com'].?type.orValue('none') == 'none'"), Ok(true));
        assert_eq!(check("device.attributes['x.example.com'].type == 'gpu'"), Err("no such key: type".to_owned()));
    }

    #[test]
    fn an_expression_that_yields_no_bool_does_not_compile() {
        let error = check("device.driver").unwrap_err();
        assert_eq!(error, "must evaluate to bool or the unknown type, not string");
        let error = check("device.nothing == 1").unwrap_err();
        assert!(error.starts_with("compilation failed: ERROR: <input>:1:7: undefined field 'nothing'"), "{error}");
        assert!(check(&format!("'{}' == ''", "x".repeat(LENGTH_MAX))).unwrap_err().contains("no longer than"));
    }
}
