//! Converts quantities to the engine's integers and back (semantics §1).

use std::collections::BTreeMap;

use berth_apimachinery::quantity::{Format, Quantity};
use berth_engine::{Amount, Name};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// Exact amounts by resource name.
pub type Quantities = BTreeMap<String, Quantity>;

/// Parses an API quantity; `None` if it is too large or malformed. An empty string is zero, as in
/// Go.
pub fn parse(quantity: &ApiQuantity) -> Option<Quantity> {
    if quantity.0.is_empty() { Quantity::parse("0").ok() } else { Quantity::parse(&quantity.0).ok() }
}

/// A request in the engine's integers: thousandths of `cpu`, whole units of everything else,
/// rounded up and clamped.
pub fn request(resource: &str, quantity: &Quantity) -> i64 {
    if resource == "cpu" { quantity.milli_value() } else { quantity.value() }
}

/// A quota; unlimited if it exceeds the engine's integers (§1.2).
pub fn quota(resource: &str, quantity: &ApiQuantity) -> Amount {
    let Some(parsed) = parse(quantity) else { return Amount::Unlimited };
    let amount = request(resource, &parsed);
    if amount == i64::MAX { Amount::Unlimited } else { Amount::Bounded(amount) }
}

/// An amount of the engine as an API quantity in canonical form.
pub fn to_quantity(resource: &str, amount: i64) -> ApiQuantity {
    let (scale, format) = match resource {
        "cpu" => (-3, Format::DecimalSi),
        "memory" | "ephemeral-storage" => (0, Format::BinarySi),
        name if name.starts_with("hugepages-") => (0, Format::BinarySi),
        _ => (0, Format::DecimalSi),
    };
    let text = Quantity::from_scaled(i128::from(amount), scale, format).map(|quantity| quantity.to_string());
    ApiQuantity(text.unwrap_or_else(|| amount.to_string()))
}

/// A fractional amount of the engine as an API quantity, to the nano-unit.
pub fn to_exact_quantity(resource: &str, amount: f64) -> ApiQuantity {
    let nanos = amount * if resource == "cpu" { 1e6 } else { 1e9 };
    // The conversion saturates; real amounts are far smaller.
    let text = Quantity::from_scaled(nanos as i128, -9, Format::DecimalSi).map(|quantity| quantity.to_string());
    ApiQuantity(text.unwrap_or_else(|| "0".to_owned()))
}

/// Amounts of the engine as an API resource list.
pub fn to_resource_list(amounts: &berth_engine::model::ResourceList) -> BTreeMap<String, ApiQuantity> {
    amounts.iter().map(|(name, amount)| (name.to_string(), to_quantity(name, *amount))).collect()
}

/// An API resource list in the engine's integers.
pub fn from_resource_list(list: &BTreeMap<String, ApiQuantity>) -> berth_engine::model::ResourceList {
    list.iter()
        .filter_map(|(name, quantity)| Some((Name::from(name.as_str()), request(name, &parse(quantity)?))))
        .collect()
}

/// An API resource list, exact.
pub fn exact(list: Option<&BTreeMap<String, ApiQuantity>>) -> Quantities {
    list.into_iter().flatten().filter_map(|(name, quantity)| Some((name.clone(), parse(quantity)?))).collect()
}

/// A weight in thousandths; 1000 if absent. Negative weights, which LocalQueues may have as in
/// Kueue, count as zero: shares are divided by the weight, and a negative share would come before
/// all others.
pub fn weight_milli(weight: Option<&ApiQuantity>) -> i64 {
    weight.and_then(parse).map_or(1000, |quantity| quantity.milli_value().max(0))
}

/// Number of the engine's base units in the unit in which a resource is reported and priced: a CPU
/// core, a GiB, or one piece.
pub fn reported_unit(resource: &str) -> i64 {
    match resource {
        "cpu" => 1000,
        "memory" | "ephemeral-storage" => 1 << 30,
        _ => 1,
    }
}
