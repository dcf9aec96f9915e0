//! What the pods of a LeaderWorkerSet get when they are created: labels that say their place, the
//! environment, and affinities for exclusive placement.

use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::tpu;
use crate::leader_worker_set::constants::{
    ENV_GROUP_SIZE, ENV_LEADER_ADDRESS, ENV_WORKER_INDEX, EXCLUSIVE_TOPOLOGY, GROUP_INDEX, GROUP_KEY, LEADER_NAME,
    NAME, SIZE, SUBDOMAIN_POLICY, SUBGROUP_EXCLUSIVE_TOPOLOGY, SUBGROUP_INDEX, SUBGROUP_KEY, SUBGROUP_POLICY_TYPE,
    SUBGROUP_SIZE, WORKER_INDEX,
};
use crate::leader_worker_set::facts::parent_and_ordinal;

/// Completes a new pod; leaves pods that belong to no LeaderWorkerSet alone.
///
/// # Errors
/// The pod has the label of a LeaderWorkerSet, but not the annotation with the size of its group,
/// or a name without an ordinal.
pub fn default_pod(pod: &mut Value, namespace: &str) -> Result<(), String> {
    if !pod["metadata"]["labels"][NAME].is_string() {
        return Ok(());
    }
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let size = text(&pod["metadata"]["annotations"][SIZE])
        .ok_or_else(|| format!("size annotation is unexpectedly missing for pod {name}"))?;
    let size: usize =
        size.parse().map_err(|_| format!("annotation {SIZE} of pod {name} must be a number, not {size:?}"))?;
    if pod["metadata"]["labels"][WORKER_INDEX] == "0" {
        default_leader(pod, namespace, &name)?;
    } else {
        default_worker(pod, &name, size)?;
    }
    if tpu::requests_tpus(&pod["spec"]) {
        tpu::add_variables(pod, size)?;
    }
    add_environment(pod, namespace, size);
    Ok(())
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn annotation(pod: &Value, key: &str) -> Option<String> {
    text(&pod["metadata"]["annotations"][key])
}

fn set_label(pod: &mut Value, key: &str, value: String) {
    pod["metadata"]["labels"][key] = json!(value);
}

fn ordinal(name: &str) -> Result<i32, String> {
    Ok(parent_and_ordinal(name).ok_or_else(|| format!("parsing pod ordinal for pod {name}"))?.1)
}

fn key(first: &str, second: &str) -> String {
    hex::encode(Sha1::digest(format!("{first}/{second}")))
}

fn default_leader(pod: &mut Value, namespace: &str, name: &str) -> Result<(), String> {
    if pod["metadata"]["labels"][GROUP_INDEX].is_null() {
        let index = ordinal(name)?;
        set_label(pod, GROUP_INDEX, index.to_string());
    }
    if annotation(pod, SUBDOMAIN_POLICY).as_deref() == Some("UniquePerReplica") {
        pod["spec"]["subdomain"] = json!(name);
    }
    let group = match text(&pod["metadata"]["labels"][GROUP_KEY]) {
        Some(group) => group,
        None => {
            let group = key(namespace, name);
            set_label(pod, GROUP_KEY, group.clone());
            group
        }
    };
    if let Some(topology) = annotation(pod, EXCLUSIVE_TOPOLOGY) {
        place_exclusively(pod, GROUP_KEY, &group, &topology);
    }
    let is_in_subgroup = annotation(pod, SUBGROUP_SIZE).is_some()
        && annotation(pod, SUBGROUP_POLICY_TYPE).as_deref() != Some("LeaderExcluded");
    if is_in_subgroup && text(&pod["metadata"]["labels"][SUBGROUP_INDEX]).is_none_or(|index| index.is_empty()) {
        join_subgroup(pod, name, "0");
    }
    Ok(())
}

fn default_worker(pod: &mut Value, name: &str, size: usize) -> Result<(), String> {
    let index = ordinal(name)?;
    set_label(pod, WORKER_INDEX, index.to_string());
    let is_placed = text(&pod["metadata"]["labels"][SUBGROUP_INDEX]).is_some_and(|index| !index.is_empty());
    let Some(subgroup) = annotation(pod, SUBGROUP_SIZE).filter(|_| !is_placed) else { return Ok(()) };
    let subgroup_size: usize = subgroup
        .parse()
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| format!("annotation {SUBGROUP_SIZE} of pod {name} must be a number, not {subgroup:?}"))?;
    let index = usize::try_from(index).unwrap_or(0);
    // A leader that is left over belongs to the first subgroup or to none.
    let leader_is_extra = size.saturating_sub(1).is_multiple_of(subgroup_size) && !size.is_multiple_of(subgroup_size);
    let subgroup = if leader_is_extra { index.saturating_sub(1) } else { index } / subgroup_size;
    let leader = annotation(pod, LEADER_NAME).unwrap_or_default();
    join_subgroup(pod, &leader, &subgroup.to_string());
    Ok(())
}

fn join_subgroup(pod: &mut Value, leader: &str, index: &str) {
    let subgroup = key(leader, index);
    set_label(pod, SUBGROUP_INDEX, index.to_owned());
    set_label(pod, SUBGROUP_KEY, subgroup.clone());
    if let Some(topology) = annotation(pod, SUBGROUP_EXCLUSIVE_TOPOLOGY) {
        place_exclusively(pod, SUBGROUP_KEY, &subgroup, &topology);
    }
}

/// Keeps the pods with this value of the label in one domain of the topology, and other pods with
/// the label out of it.
fn place_exclusively(pod: &mut Value, label: &str, value: &str, topology: &str) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = &mut pod["spec"]["affinity"];
    let terms = |affinity: &Value, kind: &str| affinity[kind][REQUIRED].as_array().cloned().unwrap_or_default();
    let has_term = |kind: &str| terms(affinity, kind).iter().any(|term| term["topologyKey"] == topology);
    if has_term("podAffinity") && has_term("podAntiAffinity") {
        return;
    }
    let own = json!([{"key": label, "operator": "In", "values": [value]}]);
    let others = json!([{"key": label, "operator": "Exists"}, {"key": label, "operator": "NotIn", "values": [value]}]);
    for (kind, expressions) in [("podAffinity", own), ("podAntiAffinity", others)] {
        let mut all = terms(affinity, kind);
        all.push(json!({"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology}));
        affinity[kind][REQUIRED] = json!(all);
    }
}

/// Adds the variables of the group to all containers, before their own, which may refer to them.
fn add_environment(pod: &mut Value, namespace: &str, size: usize) {
    let labels = &pod["metadata"]["labels"];
    let of = |key: &str| labels[key].as_str().unwrap_or_default();
    let subdomain = pod["spec"]["subdomain"].as_str().unwrap_or_default();
    let address = format!("{}-{}.{subdomain}.{namespace}", of(NAME), of(GROUP_INDEX));
    let added = [
        (ENV_LEADER_ADDRESS, address),
        (ENV_GROUP_SIZE, size.to_string()),
        (ENV_WORKER_INDEX, of(WORKER_INDEX).to_owned()),
    ];
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let mut env: Vec<Value> = added.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let own = container["env"].as_array().cloned().unwrap_or_default();
            env.extend(own.into_iter().filter(|variable| added.iter().all(|(name, _)| variable["name"] != *name)));
            container["env"] = json!(env);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(annotations: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "web-1", "labels": {NAME: "web", WORKER_INDEX: "0"}},
            "spec": {"subdomain": "web", "containers": [{"name": "c", "env": [{"name": "A", "value": "1"}]}]}});
        pod["metadata"]["annotations"] = annotations;
        default_pod(&mut pod, "ns").expect("a leader");
        pod
    }

    fn worker(index: usize, annotations: Value) -> Value {
        let mut pod = json!({"metadata": {"name": format!("web-1-{index}"), "labels": {NAME: "web", GROUP_INDEX: "1"}},
            "spec": {"subdomain": "web", "containers": [{"name": "c"}]}});
        pod["metadata"]["annotations"] = annotations;
        default_pod(&mut pod, "ns").expect("a worker");
        pod
    }

    #[test]
    fn a_leader_gets_its_place_and_the_environment() {
        let pod = leader(json!({SIZE: "3"}));
        assert_eq!(pod["metadata"]["labels"][GROUP_INDEX], "1");
        assert_eq!(pod["metadata"]["labels"][GROUP_KEY], key("ns", "web-1"));
        let env = &pod["spec"]["containers"][0]["env"];
        assert_eq!(
            *env,
            json!([{"name": ENV_LEADER_ADDRESS, "value": "web-1.web.ns"}, {"name": ENV_GROUP_SIZE, "value": "3"},
                {"name": ENV_WORKER_INDEX, "value": "0"}, {"name": "A", "value": "1"}])
        );
        let own = leader(json!({SIZE: "3", SUBDOMAIN_POLICY: "UniquePerReplica"}));
        assert_eq!(own["spec"]["subdomain"], "web-1");
        assert_eq!(own["spec"]["containers"][0]["env"][0]["value"], "web-1.web-1.ns");
    }

    #[test]
    fn a_worker_gets_its_index() {
        let pod = worker(2, json!({SIZE: "3"}));
        assert_eq!(pod["metadata"]["labels"][WORKER_INDEX], "2");
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["value"], "web-1.web.ns");
        assert_eq!(pod["spec"]["containers"][0]["env"][2]["value"], "2");
    }

    #[test]
    fn an_exclusive_group_attracts_its_pods_and_repels_others() {
        let pod = leader(json!({SIZE: "3", EXCLUSIVE_TOPOLOGY: "rack"}));
        let affinity = &pod["spec"]["affinity"];
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let term = &affinity["podAffinity"][required][0];
        assert_eq!(term["topologyKey"], "rack");
        assert_eq!(term["labelSelector"]["matchExpressions"][0]["values"][0], key("ns", "web-1"));
        assert_eq!(
            affinity["podAntiAffinity"][required][0]["labelSelector"]["matchExpressions"][1]["operator"],
            "NotIn"
        );
        let mut again = pod.clone();
        default_pod(&mut again, "ns").expect("a leader");
        assert_eq!(again, pod);
    }

    #[test]
    fn subgroups_are_numbered_with_or_without_the_leader() {
        let index = |pod: &Value| pod["metadata"]["labels"][SUBGROUP_INDEX].as_str().map(str::to_owned);
        let annotations = |size: &str| {
            json!({SIZE: size, SUBGROUP_SIZE: "2", LEADER_NAME: "web-1",
            SUBGROUP_EXCLUSIVE_TOPOLOGY: "host"})
        };
        assert_eq!(index(&leader(annotations("4"))).as_deref(), Some("0"));
        let even: Vec<_> = (1..4).map(|at| index(&worker(at, annotations("4"))).expect("an index")).collect();
        assert_eq!(even, ["0", "1", "1"]);
        let odd: Vec<_> = (1..5).map(|at| index(&worker(at, annotations("5"))).expect("an index")).collect();
        assert_eq!(odd, ["0", "0", "1", "1"]);
        let first = worker(1, annotations("4"));
        assert_eq!(first["metadata"]["labels"][SUBGROUP_KEY], key("web-1", "0"));
        assert!(first["spec"]["affinity"]["podAffinity"].is_object());
        let mut excluded = annotations("5");
        excluded[SUBGROUP_POLICY_TYPE] = json!("LeaderExcluded");
        assert_eq!(index(&leader(excluded)), None);
    }

    #[test]
    fn a_pod_without_its_facts_is_rejected_and_other_pods_are_left_alone() {
        let mut lost = json!({"metadata": {"name": "web-0", "labels": {NAME: "web", WORKER_INDEX: "0"}}, "spec": {}});
        let error = default_pod(&mut lost, "ns").expect_err("no size");
        assert_eq!(error, "size annotation is unexpectedly missing for pod web-0");
        lost["metadata"]["annotations"] = json!({SIZE: "2"});
        lost["metadata"]["name"] = json!("web");
        assert_eq!(default_pod(&mut lost, "ns").expect_err("no ordinal"), "parsing pod ordinal for pod web");
        let mut other = json!({"metadata": {"name": "a"}, "spec": {}});
        let before = other.clone();
        default_pod(&mut other, "ns").expect("not concerned");
        assert_eq!(other, before);
    }
}
