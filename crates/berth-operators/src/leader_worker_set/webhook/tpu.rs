//! The environment of programs on TPUs: the hosts of a slice, and the number of each host.
//!
//! A slice is a group, or a subgroup if the group has any. The leader belongs to it only if the
//! leader requests TPUs.

use berth_apimachinery::quantity::Quantity;
use serde_json::{Value, json};

use crate::leader_worker_set::constants::{LEADER_REQUESTS_TPUS, SUBGROUP_INDEX, SUBGROUP_SIZE, WORKER_INDEX};
use crate::leader_worker_set::facts::parent_and_ordinal;

/// Resource name of a TPU chip.
const TPU: &str = "google.com/tpu";
/// Variable: host names of the slice, separated by commas.
const WORKER_HOSTNAMES: &str = "TPU_WORKER_HOSTNAMES";
/// Variable: host names of the slice with ports.
const PROCESS_ADDRESSES: &str = "TPU_PROCESS_ADDRESSES";
/// Variable: port of the program.
const PROCESS_PORT: &str = "TPU_PROCESS_PORT";
/// Variable: number of the host, or of the container if a host has several.
const WORKER_ID: &str = "TPU_WORKER_ID";
/// Variable: name of the slice.
const NAME: &str = "TPU_NAME";
/// Port of the first container that requests TPUs; the next one has the next port.
const PORT: usize = 8476;

/// True if a container of the pod spec requests TPUs.
pub fn requests_tpus(spec: &Value) -> bool {
    let lists = [&spec["containers"], &spec["initContainers"]];
    lists.into_iter().filter_map(Value::as_array).flatten().any(asks)
}

fn asks(container: &Value) -> bool {
    let amount = |kind: &str| {
        let chips = &container["resources"][kind][TPU];
        !chips.is_null() && Quantity::from_json(chips).is_ok_and(|chips| chips.value() != 0)
    };
    amount("limits") || amount("requests")
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    container["env"].as_array().into_iter().flatten().find(|variable| variable["name"] == name)
}

fn set_variable(container: &mut Value, name: &str, value: &str) {
    let entry = json!({"name": name, "value": value});
    match container["env"].as_array_mut() {
        Some(env) => env.push(entry),
        None => container["env"] = json!([entry]),
    }
}

/// The containers that request TPUs, those of the pod before its init containers.
fn containers(pod: &mut Value) -> Vec<&mut Value> {
    let Some(spec) = pod["spec"].as_object_mut() else { return Vec::new() };
    let (mut mains, mut inits) = (Vec::new(), Vec::new());
    for (key, list) in spec.iter_mut() {
        let of = match key.as_str() {
            "containers" => &mut mains,
            "initContainers" => &mut inits,
            _ => continue,
        };
        of.extend(list.as_array_mut().into_iter().flatten().filter(|container| asks(container)));
    }
    mains.append(&mut inits);
    mains
}

/// The slice that a pod belongs to.
struct Slice {
    name: String,
    /// Names of the pods.
    pods: Vec<String>,
    /// Number of the pod in the slice.
    number: usize,
}

/// Adds the variables to the containers that request TPUs. Variables that the user set stay.
pub fn add_variables(pod: &mut Value, size: usize) -> Result<(), String> {
    let slice = slice(pod, size)?;
    let has_subgroups = pod["metadata"]["annotations"][SUBGROUP_SIZE].is_string();
    let subdomain = pod["spec"]["subdomain"].as_str().unwrap_or_default().to_owned();
    let mut containers = containers(pod);
    // In a subgroup one container uses the TPUs of its host.
    let used = if has_subgroups { containers.len().min(1) } else { containers.len() };
    let containers = &mut containers[..used];
    let is_set =
        |container: &&mut Value| [WORKER_HOSTNAMES, WORKER_ID].iter().any(|name| variable(container, name).is_some());
    if containers.first().is_some_and(is_set) {
        return Ok(());
    }
    let port = |(index, container): (usize, &&mut Value)| match variable(container, PROCESS_PORT) {
        Some(variable) => variable["value"].as_str().unwrap_or_default().to_owned(),
        None => (PORT + index).to_string(),
    };
    let ports: Vec<String> = containers.iter().enumerate().map(port).collect();
    let (mut hosts, mut addresses) = (Vec::new(), Vec::new());
    for pod in &slice.pods {
        for port in &ports {
            hosts.push(format!("{pod}.{subdomain}"));
            addresses.push(format!("{pod}.{subdomain}:{port}"));
        }
    }
    for (index, container) in containers.iter_mut().enumerate() {
        set_variable(container, WORKER_HOSTNAMES, &hosts.join(","));
        set_variable(container, WORKER_ID, &(slice.number * ports.len() + index).to_string());
        set_variable(container, NAME, &slice.name);
        set_variable(container, PROCESS_ADDRESSES, &addresses.join(","));
        if variable(container, PROCESS_PORT).is_none() {
            set_variable(container, PROCESS_PORT, &ports[index]);
        }
    }
    Ok(())
}

fn slice(pod: &Value, size: usize) -> Result<Slice, String> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
    let is_leader = labels[WORKER_INDEX] == "0";
    let with_leader = is_leader || annotations[LEADER_REQUESTS_TPUS] == "true";
    let leader = match is_leader {
        true => name,
        false => parent_and_ordinal(name).ok_or_else(|| format!("parsing parent name from pod {name}"))?.0,
    };
    let number = |value: &Value, what: &str| -> Result<usize, String> {
        let text = value.as_str().unwrap_or_default();
        text.parse().map_err(|_| format!("pod {name}: {what} must be a number, not {text:?}"))
    };
    let index = number(&labels[WORKER_INDEX], WORKER_INDEX)?;
    let of_group = |index: usize| if index == 0 { leader.to_owned() } else { format!("{leader}-{index}") };
    // Without the leader, worker 1 has number 0.
    let position = if with_leader { index } else { index.saturating_sub(1) };
    let first = usize::from(!with_leader);
    if !annotations[SUBGROUP_SIZE].is_string() {
        let pods = (first..size).map(of_group).collect();
        return Ok(Slice { name: leader.to_owned(), pods, number: position });
    }
    let subgroup_size = number(&annotations[SUBGROUP_SIZE], SUBGROUP_SIZE)?.max(1);
    let subgroup = match with_leader {
        true => number(&labels[SUBGROUP_INDEX], SUBGROUP_INDEX)?,
        false => position / subgroup_size,
    };
    let start = subgroup * subgroup_size + first;
    let pods = (start..start + subgroup_size).map(of_group).collect();
    Ok(Slice { name: leader.to_owned(), pods, number: position % subgroup_size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, index: usize, annotations: Value, containers: usize) -> Value {
        let container = |at: usize| json!({"name": format!("c{at}"), "resources": {"limits": {TPU: "4"}}});
        json!({"metadata": {"name": name, "annotations": annotations,
                "labels": {WORKER_INDEX: index.to_string(), SUBGROUP_INDEX: "0"}},
            "spec": {"subdomain": "web", "containers": (0..containers).map(container).collect::<Vec<_>>()}})
    }

    fn variables(mut pod: Value, size: usize, at: usize) -> Vec<String> {
        add_variables(&mut pod, size).expect("a slice");
        let container = &pod["spec"]["containers"][at];
        let names = [WORKER_HOSTNAMES, WORKER_ID, NAME, PROCESS_ADDRESSES, PROCESS_PORT];
        let value = |name: &str| variable(container, name).and_then(|it| it["value"].as_str()).unwrap_or("").to_owned();
        names.into_iter().map(value).collect()
    }

    #[test]
    fn a_group_is_a_slice_with_its_leader_if_the_leader_requests_tpus() {
        let leader = variables(pod("web-0", 0, json!({}), 1), 2, 0);
        assert_eq!(leader, ["web-0.web,web-0-1.web", "0", "web-0", "web-0.web:8476,web-0-1.web:8476", "8476"]);
        let with = variables(pod("web-0-1", 1, json!({LEADER_REQUESTS_TPUS: "true"}), 1), 2, 0);
        assert_eq!((with[0].as_str(), with[1].as_str()), ("web-0.web,web-0-1.web", "1"));
        let without = variables(pod("web-0-1", 1, json!({}), 1), 3, 0);
        assert_eq!((without[0].as_str(), without[1].as_str()), ("web-0-1.web,web-0-2.web", "0"));
    }

    #[test]
    fn containers_of_a_host_have_ports_and_numbers_of_their_own() {
        let second = variables(pod("web-0-1", 1, json!({LEADER_REQUESTS_TPUS: "true"}), 2), 2, 1);
        assert_eq!(second[0], "web-0.web,web-0.web,web-0-1.web,web-0-1.web");
        assert_eq!((second[1].as_str(), second[4].as_str()), ("3", "8477"));
    }

    #[test]
    fn a_subgroup_is_a_slice() {
        let annotations = |leader: bool| json!({SUBGROUP_SIZE: "2", LEADER_REQUESTS_TPUS: leader.to_string()});
        let with = |index: usize, subgroup: &str, leader: bool| {
            let mut pod = pod(&format!("web-0-{index}"), index, annotations(leader), 1);
            pod["metadata"]["labels"][SUBGROUP_INDEX] = json!(subgroup);
            let all = variables(pod, 5, 0);
            (all[0].clone(), all[1].clone())
        };
        assert_eq!(with(1, "0", true), ("web-0.web,web-0-1.web".to_owned(), "1".to_owned()));
        assert_eq!(with(2, "1", true), ("web-0-2.web,web-0-3.web".to_owned(), "0".to_owned()));
        assert_eq!(with(3, "1", false), ("web-0-3.web,web-0-4.web".to_owned(), "0".to_owned()));
    }

    #[test]
    fn variables_of_the_user_stay_and_pods_without_tpus_get_none() {
        let mut own = pod("web-0", 0, json!({}), 1);
        own["spec"]["containers"][0]["env"] = json!([{"name": WORKER_ID, "value": "7"}]);
        let before = own.clone();
        add_variables(&mut own, 2).expect("a slice");
        assert_eq!(own, before);
        assert!(requests_tpus(&before["spec"]));
        assert!(!requests_tpus(&json!({"containers": [{"resources": {"limits": {TPU: "0"}}}]})));
    }
}
