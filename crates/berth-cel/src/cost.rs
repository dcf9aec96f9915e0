//! Actual costs: the constants of the cost model, and the cost of a call for given values.
//!
//! Source: CEL's published cost model and the costs of Kubernetes' library functions. Factors are
//! floating-point and results are rounded as upstream rounds them, because the rounding is visible
//! in large costs.

use crate::types::Type;
use crate::value::{Outcome, Value};

/// Reading a string: ten characters cost one.
pub(crate) const TEXT: f64 = 0.1;
/// Four characters of a regular expression cost one.
pub(crate) const REGEX: f64 = 0.25;
/// Creating a list, a map or a struct.
pub(crate) const LIST_COST: u64 = 10;
pub(crate) const MAP_COST: u64 = 30;
pub(crate) const STRUCT_COST: u64 = 40;
/// An authorization check.
pub(crate) const CHECK_COST: u64 = 350_000;
/// Requirements per character of a selector: the shortest requirement has two characters.
pub(crate) const SELECTOR_REQUIREMENTS: f64 = 0.5;
/// A parsed requirement is a struct with a list of values.
pub(crate) const REQUIREMENT_COST: f64 = (LIST_COST + STRUCT_COST) as f64;
/// Length of the longest regular expression of a named format.
pub(crate) const FORMAT_LENGTH_MAX: f64 = 128.0;
/// Maximum length of a format's name.
pub(crate) const FORMAT_NAME_MAX: u64 = 64;

/// A size times a factor, rounded up.
pub(crate) fn scaled(size: u64, factor: f64) -> u64 {
    (size as f64 * factor).ceil() as u64
}

/// The cost of reading a string of this size.
pub(crate) fn reading(size: u64) -> u64 {
    scaled(size, TEXT)
}

/// The cost rule of a call, chosen by the compiled overload. A call that may resolve to several
/// overloads costs one, unless the rule belongs to the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostRule {
    /// A constant cost.
    Fixed(u64),
    /// Reading the first argument.
    Read,
    /// Reading the first argument and writing the same amount.
    Copy,
    /// Reading everything in the first argument, nested values included.
    Traverse,
    /// Creating a string of the result's length.
    Join,
    /// Reading two strings up to the length of the shorter one.
    Compare,
    /// `==` and `!=`; `==` of types that Kubernetes adds costs one.
    Equal {
        is_negated: bool,
    },
    /// Copying two strings.
    Concatenate,
    /// Comparing with every item of the second argument.
    Search,
    Contains,
    Matches,
    Selector,
    ContainsIp {
        is_text: bool,
    },
    ContainsCidr {
        is_text: bool,
    },
    /// Comparing every item of one list with every item of another, this many times.
    Sets(u64),
    Validate,
    /// Creating a list with the items of the result.
    NewList,
    /// Creating a list by iterating over the first argument. The second argument is the number of
    /// iterations, by default one.
    Flatten,
    /// Creating a list by comparing every item of this argument with every other.
    SelfCompare(usize),
}

impl CostRule {
    pub(crate) const ONE: CostRule = CostRule::Fixed(1);

    /// The rule of a function; `overloads` are the parameters of the possible overloads, with a
    /// method's target first.
    pub(crate) fn of_call(function: &str, is_member: bool, overloads: &[Vec<Type>]) -> CostRule {
        // A function of Kubernetes' libraries has one rule for all its overloads.
        match function {
            "check" => return CostRule::Fixed(CHECK_COST),
            "fieldSelector" | "labelSelector" => return CostRule::Selector,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => return CostRule::Traverse,
            "url"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => return CostRule::Read,
            "replace" | "split" | "ip.isCanonical" => return CostRule::Copy,
            "join" => return CostRule::Join,
            "find" | "findAll" => return CostRule::Matches,
            "validate" => return CostRule::Validate,
            "_==_" => return CostRule::Equal { is_negated: false },
            "_!=_" => return CostRule::Equal { is_negated: true },
            _ => {}
        }
        let params = match overloads {
            [params] => Some(params.as_slice()),
            _ => None,
        };
        let is = |index: usize, type_: &Type| params.and_then(|params| params.get(index)) == Some(type_);
        let is_text = |index: usize| is(index, &Type::String) || is(index, &Type::Bytes);
        let is_list = |index: usize| matches!(params.and_then(|params| params.get(index)), Some(Type::List(_)));
        match function {
            "ip" if is(0, &Type::Opaque("net.CIDR")) => CostRule::ONE,
            "ip" => CostRule::Read,
            "containsIP" => CostRule::ContainsIp { is_text: is(1, &Type::String) },
            "containsCIDR" => CostRule::ContainsCidr { is_text: is(1, &Type::String) },
            _ if params.is_none() => CostRule::ONE,
            "_<_" | "_<=_" | "_>_" | "_>=_" if is_text(0) && is_text(1) => CostRule::Compare,
            "_+_" if is_text(0) => CostRule::Concatenate,
            "@in" if is_list(1) => CostRule::Search,
            "startsWith" | "endsWith" | "strings.quote" => CostRule::Read,
            "format" if is_member => CostRule::Read,
            "bytes" if is(0, &Type::String) => CostRule::Read,
            "string" if is(0, &Type::Bytes) => CostRule::Read,
            // As a plain function, `matches` has no cost rule upstream either.
            "matches" if is_member => CostRule::Matches,
            "contains" => CostRule::Contains,
            "sets.contains" | "sets.intersects" => CostRule::Sets(1),
            "sets.equivalent" => CostRule::Sets(2),
            "slice" | "reverse" | "lists.range" => CostRule::NewList,
            "flatten" => CostRule::Flatten,
            "distinct" | "sort" => CostRule::SelfCompare(0),
            "@sortByAssociatedKeys" => CostRule::SelfCompare(1),
            _ => CostRule::ONE,
        }
    }

    /// True if the cost depends on the result.
    pub(crate) fn needs_result(self) -> bool {
        matches!(self, CostRule::Join | CostRule::NewList)
    }

    /// The cost of a call; a failed argument counts with size one.
    pub(crate) fn of(self, args: &[Value<'_>], result: Option<&Outcome<'_>>) -> u64 {
        let size = |index: usize| args.get(index).map_or(1, Value::size);
        let result_size = || match result {
            Some(Ok(result)) => result.size(),
            _ => 1,
        };
        match self {
            CostRule::Fixed(cost) => cost,
            CostRule::Read => reading(size(0)),
            CostRule::Copy => copying(size(0)),
            CostRule::Traverse => args.first().map_or(0, traversal),
            CostRule::Join => copying(result_size()),
            CostRule::Compare => reading(size(0).min(size(1))),
            CostRule::Equal { is_negated } => match args {
                [Value::Ip(_) | Value::Cidr(_), _] if !is_negated => 1,
                [a, b] => reading(inner_size(a).min(inner_size(b))),
                _ => 1,
            },
            CostRule::Concatenate => reading(size(0).saturating_add(size(1))),
            CostRule::Search => size(1),
            CostRule::Contains => reading(size(0)).saturating_mul(reading(size(1))),
            CostRule::Matches => reading(1 + size(0)).saturating_mul(scaled(size(1), REGEX)),
            CostRule::Selector => {
                let requirements = scaled(scaled(size(1), SELECTOR_REQUIREMENTS), REQUIREMENT_COST);
                LIST_COST.saturating_add(reading(size(1))).saturating_add(requirements)
            }
            // The octets of the network are compared with as many octets of the other address.
            CostRule::ContainsIp { is_text } => reading(2 * size(0)) + if is_text { reading(size(1)) } else { 0 },
            // One more pass for masking, and one for comparing prefix lengths.
            CostRule::ContainsCidr { is_text } => {
                reading(2 * size(0)) + reading(size(0)) + 1 + if is_text { reading(size(1)) } else { 0 }
            }
            CostRule::Sets(times) => 1 + size(0).saturating_mul(size(1)).saturating_mul(times),
            CostRule::Validate => match args.first() {
                Some(Value::Format(format)) => {
                    reading(1 + size(1)).saturating_mul(scaled(format.regex_length(), REGEX))
                }
                _ => 1,
            },
            CostRule::NewList => new_list(result_size(), 1.0),
            CostRule::Flatten => match args {
                [_, Value::Int(depth)] => new_list(size(0), *depth as f64),
                _ => new_list(size(0), 1.0),
            },
            CostRule::SelfCompare(index) => {
                let first = match args.get(index) {
                    Some(Value::List(list)) => list.iter().next(),
                    _ => None,
                };
                let text = if matches!(first, Some(Ok(Value::String(_) | Value::Bytes(_)))) { TEXT } else { 0.0 };
                new_list(size(index).saturating_mul(size(index)), 2.0 + text)
            }
        }
    }
}

fn copying(size: u64) -> u64 {
    (size as f64 * 2.0 * TEXT).ceil() as u64
}

fn new_list(size: u64, factor: f64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST_COST)
}

/// The size of a value for `==`: for an optional, that of its content.
fn inner_size(value: &Value<'_>) -> u64 {
    match value {
        Value::Optional(Some(value)) => inner_size(value),
        other => other.size(),
    }
}

/// The cost of traversing a map entry that has no declaration: one for its key and one for its
/// value.
const UNDECLARED: u64 = 2;

/// The cost of traversing a value down to its scalars. The cost of each string is rounded down.
fn traversal(value: &Value<'_>) -> u64 {
    let text = |length: usize| (length as f64 * TEXT) as u64;
    let item = |item: &Outcome<'_>| item.as_ref().map_or(1, traversal);
    match value {
        Value::String(value) => text(value.len()),
        Value::Bytes(value) => text(value.len()),
        Value::List(list) => list.iter().fold(0, |sum: u64, value| sum.saturating_add(item(&value))),
        Value::Map(map) => {
            let keys = map.keys();
            let hidden = UNDECLARED * map.len().saturating_sub(keys.len()) as u64;
            keys.iter().fold(hidden, |sum: u64, key| {
                let value = map.get(key).as_ref().map_or(1, item);
                sum.saturating_add(traversal(key)).saturating_add(value)
            })
        }
        Value::Unknown(serde_json::Value::Object(map)) => UNDECLARED * map.len() as u64,
        _ => 1,
    }
}
