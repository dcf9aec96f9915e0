//! Selection of a pod's container for a request.

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use serde_json::Value;

/// Lists of containers in a pod's spec, in the order of messages.
const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// The container named `wanted`; without a name, the pod's only one.
///
/// # Errors
/// 400 for a name that the pod does not have, and without a name unless the pod has exactly one
/// main container.
pub(crate) fn selected(pod: &Value, wanted: &str) -> Result<String, Status> {
    let names: Vec<&str> = LISTS
        .iter()
        .flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    let main = pod["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = meta::name(pod);
    match (wanted, main) {
        ("", [only]) => Ok(only["name"].as_str().unwrap_or_default().to_owned()),
        ("", []) => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        ("", _) => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
        (wanted, _) if names.contains(&wanted) => Ok(wanted.to_owned()),
        (wanted, _) => Err(Status::bad_request(format!("container {wanted} is not valid for pod {name}"))),
    }
}

/// True if a container runs on a terminal, by its spec.
pub(super) fn has_terminal(pod: &Value, name: &str) -> bool {
    let mut all = LISTS.iter().flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten());
    all.any(|container| container["name"] == name && container["tty"] == true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(containers: &[&str]) -> Value {
        let list: Vec<Value> = containers.iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": "p"}, "spec": {
            "initContainers": [{"name": "setup"}], "containers": list, "ephemeralContainers": [{"name": "debug"}],
        }})
    }

    #[test]
    fn a_pod_with_several_containers_needs_a_name() {
        assert_eq!(selected(&pod(&["main"]), "").as_deref(), Ok("main"));
        assert_eq!(selected(&pod(&["main"]), "debug").as_deref(), Ok("debug"));
        let message = |pod: &Value, name: &str| selected(pod, name).map_err(|error| (error.code, error.message));
        assert_eq!(message(&pod(&["main"]), "x"), Err((400, "container x is not valid for pod p".to_owned())));
        let several = "a container name must be specified for pod p, choose one of: [setup a b debug]";
        assert_eq!(message(&pod(&["a", "b"]), ""), Err((400, several.to_owned())));
        let none = "a container name must be specified for pod p";
        assert_eq!(message(&pod(&[]), ""), Err((400, none.to_owned())));
    }
}
