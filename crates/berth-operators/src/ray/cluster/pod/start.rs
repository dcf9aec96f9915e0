//! The options of a node's `ray start`, and the complete command.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde_json::{Map, Number, Value};

use super::NodeType;
use crate::ray::cluster::facts::Facts;
use crate::ray::cluster::resources::{TPU, is_gpu};
use crate::ray::constants::{AGENT_PORT, METRICS_PORT};

/// Options of `ray start`, by name without dashes.
pub type Params = BTreeMap<String, String>;

/// Resources of containers that Ray counts under another name.
const ACCELERATORS: &[(&str, &str)] = &[("aws.amazon.com/neuroncore", "neuron_cores"), (TPU, "TPU")];
/// Options that are passed also with the value `false`. Any other option with this value is left
/// out.
const BOOLEANS: &[&str] = &["log-color", "include-dashboard", "include-log-monitor"];

/// The options of a node: those of its group (`given`, `resources` and `labels`), and those that
/// the cluster requires.
pub fn params(
    facts: &Facts<'_>,
    node_type: NodeType,
    given: &Params,
    resources: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> Params {
    let mut params = given.clone();
    set_resources(&mut params, resources);
    if !labels.is_empty() {
        let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        params.insert("labels".to_owned(), labels.join(","));
    }
    let mut default = |key: &str, value: String| {
        params.entry(key.to_owned()).or_insert(value);
    };
    match node_type {
        NodeType::Worker => default("address", format!("{}:{}", facts.head_address(), facts.head_port())),
        NodeType::Head => default("dashboard-host", "0.0.0.0".to_owned()),
    }
    default("metrics-export-port", METRICS_PORT.to_string());
    default("dashboard-agent-listen-port", AGENT_PORT.to_string());
    params.insert("block".to_owned(), "true".to_owned());
    if node_type == NodeType::Head {
        set_head_only(facts, &mut params);
    }
    params
}

fn set_head_only(facts: &Facts<'_>, params: &mut Params) {
    if facts.spec.is_autoscaled() {
        // The autoscaler runs in a container of its own, in place of the head's monitor.
        params.insert("no-monitor".to_owned(), "true".to_owned());
    }
    let Some(options) = &facts.spec.gcs_fault_tolerance_options else { return };
    if options.is_embedded() {
        return;
    }
    if options.redis_username.is_some() {
        params.insert("redis-username".to_owned(), "$REDIS_USERNAME".to_owned());
    }
    if options.redis_password.is_some() {
        params.insert("redis-password".to_owned(), "$REDIS_PASSWORD".to_owned());
    }
}

/// Writes the group's resources into the options that they replace.
fn set_resources(params: &mut Params, resources: &BTreeMap<String, String>) {
    let mut custom = Map::new();
    for (name, amount) in resources {
        let Ok(amount) = Quantity::parse(amount) else { continue };
        let option = match name.to_lowercase().as_str() {
            "cpu" => "num-cpus",
            "memory" => "memory",
            other if is_gpu(other) => "num-gpus",
            _ => {
                custom.insert(name.clone(), number(amount.as_approximate_f64()));
                continue;
            }
        };
        params.insert(option.to_owned(), amount.value().to_string());
    }
    if !custom.is_empty() {
        params.insert("resources".to_owned(), format!("'{}'", Value::Object(custom)));
    }
}

/// A JSON number. A whole number has no decimal point.
fn number(value: f64) -> Value {
    const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= WHOLE_MAX {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The command of a node. Amounts that the options leave out come from the Ray container.
pub fn command(node_type: NodeType, mut params: Params, resources: Option<&ResourceRequirements>) -> String {
    add_amounts(&mut params, resources);
    let mut command = match node_type {
        NodeType::Head => "ray start --head ".to_owned(),
        NodeType::Worker => "ray start ".to_owned(),
    };
    for (option, value) in &params {
        let is_switch = matches!(value.to_lowercase().as_str(), "true" | "false");
        if !is_switch || BOOLEANS.contains(&option.as_str()) {
            command.push_str(&format!(" --{option}={value} "));
        } else if value.eq_ignore_ascii_case("true") {
            command.push_str(&format!(" --{option} "));
        }
    }
    command
}

fn add_amounts(params: &mut Params, resources: Option<&ResourceRequirements>) {
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let amount = |list: Option<&BTreeMap<String, _>>, name: &str| -> Option<Quantity> {
        let given: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = list?.get(name)?;
        Quantity::parse(&given.0).ok().filter(|amount| !amount.is_zero())
    };
    if !params.contains_key("num-cpus")
        && let Some(cpus) = amount(limits, "cpu").or_else(|| amount(requests, "cpu"))
    {
        params.insert("num-cpus".to_owned(), cpus.value().to_string());
    }
    if !params.contains_key("memory")
        && let Some(memory) = amount(limits, "memory")
    {
        params.insert("memory".to_owned(), memory.value().to_string());
    }
    // An option `resources` that cannot be parsed stays unchanged, so that Ray reports the error.
    let Some(mut custom) = custom_resources(params) else { return };
    let mut has_accelerator = ACCELERATORS.iter().any(|(_, name)| custom.contains_key(*name));
    for name in limits.into_iter().flat_map(BTreeMap::keys) {
        let Some(amount) = amount(limits, name) else { continue };
        if is_gpu(name) && !params.contains_key("num-gpus") {
            params.insert("num-gpus".to_owned(), amount.value().to_string());
        }
        let accelerator = ACCELERATORS.iter().find(|(resource, _)| resource == name);
        if let Some((_, ray_name)) = accelerator.filter(|_| !has_accelerator) {
            custom.insert((*ray_name).to_owned(), number(amount.as_approximate_f64()));
            params.insert("resources".to_owned(), format!("'{}'", Value::Object(custom.clone())));
            has_accelerator = true;
        }
    }
}

/// The JSON object of the option `resources`, empty without the option; `None` if the option is not
/// a JSON object. The shell's quotation marks are ignored.
fn custom_resources(params: &Params) -> Option<Map<String, Value>> {
    let Some(text) = params.get("resources") else { return Some(Map::new()) };
    serde_json::from_str(text.trim_matches(['\'', '"', '`', ' '])).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(params: Value, resources: Value, expected: &str) {
        let params: Params = serde_json::from_value(params).unwrap();
        let resources: ResourceRequirements = serde_json::from_value(resources).unwrap();
        assert_eq!(command(NodeType::Worker, params, Some(&resources)), expected);
    }

    #[test]
    fn amounts_come_from_the_limits_of_the_container() {
        check(
            json!({}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2"}}),
            "ray start  --memory=1073741824  --num-cpus=2  --num-gpus=2 ",
        );
        check(json!({}), json!({"requests": {"cpu": "1", "memory": "1Gi"}}), "ray start  --num-cpus=1 ");
        check(json!({"num-cpus": "0"}), json!({"limits": {"cpu": "4"}}), "ray start  --num-cpus=0 ");
    }

    #[test]
    fn tpu_chips_are_a_custom_resource_unless_the_options_name_an_accelerator() {
        check(json!({}), json!({"limits": {"google.com/tpu": "4"}}), "ray start  --resources='{\"TPU\":4}' ");
        check(
            json!({"resources": "'{\"TPU\": 8, \"x\": 0.5}'"}),
            json!({"limits": {"google.com/tpu": "4"}}),
            "ray start  --resources='{\"TPU\": 8, \"x\": 0.5}' ",
        );
        check(
            json!({"resources": "'{\"x\": 0.5}'"}),
            json!({"limits": {"google.com/tpu": "4"}}),
            "ray start  --resources='{\"TPU\":4,\"x\":0.5}' ",
        );
    }

    #[test]
    fn switches_have_no_value_and_false_ones_are_left_out() {
        check(
            json!({"block": "true", "head": "false", "include-dashboard": "false"}),
            json!({}),
            "ray start  --block  --include-dashboard=false ",
        );
    }

    #[test]
    fn resources_of_the_group_replace_the_options() {
        let mut params = Params::new();
        let resources = [("CPU", "2"), ("memory", "1Gi"), ("nvidia.com/gpu", "1"), ("Custom", "1500m")];
        let resources = resources.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        set_resources(&mut params, &resources);
        let expected =
            json!({"num-cpus": "2", "memory": "1073741824", "num-gpus": "1", "resources": "'{\"Custom\":1.5}'"});
        assert_eq!(json!(params), expected);
    }
}
