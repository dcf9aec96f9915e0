//! ResourceQuota usage: the amounts that an object counts for, and the scopes of a quota.
//!
//! Source: Kubernetes documentation, "Resource Quotas".

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::{Format, Quantity};

/// Amounts by resource name of quotas (`pods`, `requests.cpu`, `count/jobs.batch`).
pub type Amounts = BTreeMap<String, Quantity>;

/// Resources that a pod's containers must specify if a quota limits them.
const COMPUTE: [&str; 6] = ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];

/// The usage of one object, by resource name of quotas. `resource` is the plural name in `group`.
pub fn usage(group: &str, resource: &str, object: &Value) -> Amounts {
    let one = Quantity::new(1, Format::DecimalSi);
    let mut used = Amounts::new();
    let count = if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") };
    used.insert(count, one);
    if !group.is_empty() {
        return used;
    }
    match resource {
        "pods" if has_ended(object) => used.retain(|name, _| name == "count/pods"),
        "pods" => {
            used.insert("pods".to_owned(), one);
            for (name, amount) in pod(object) {
                used.insert(name, amount);
            }
        }
        "services" => {
            used.insert("services".to_owned(), one);
            let ports = object["spec"]["ports"].as_array().map_or(0, Vec::len) as i64;
            let kind = object["spec"]["type"].as_str().unwrap_or("ClusterIP");
            let balanced = kind == "LoadBalancer";
            let has_node_ports =
                kind == "NodePort" || balanced && object["spec"]["allocateLoadBalancerNodePorts"] != false;
            let number = |count: i64| Quantity::new(count, Format::DecimalSi);
            used.insert("services.loadbalancers".to_owned(), number(i64::from(balanced)));
            used.insert("services.nodeports".to_owned(), number(if has_node_ports { ports } else { 0 }));
        }
        "persistentvolumeclaims" => {
            used.insert("persistentvolumeclaims".to_owned(), one);
            let storage = Quantity::from_json(&object["spec"]["resources"]["requests"]["storage"]).ok();
            let class = object["spec"]["storageClassName"].as_str();
            if let Some(class) = class {
                used.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
            }
            if let Some(storage) = storage {
                used.insert("requests.storage".to_owned(), storage);
                if let Some(class) = class {
                    used.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage);
                }
            }
        }
        "configmaps" | "replicationcontrollers" | "resourcequotas" | "secrets" => {
            used.insert(resource.to_owned(), one);
        }
        _ => {}
    }
    used
}

/// True if all containers of a pod have ended: it then counts only for `count/pods`.
pub fn has_ended(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Requests and limits of a pod, under every resource name of quotas.
fn pod(pod: &Value) -> Amounts {
    let mut used = Amounts::new();
    let requests = pod_total(pod, "requests");
    for (name, amount) in &requests {
        used.insert(format!("requests.{name}"), *amount);
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(name.clone(), *amount);
        }
    }
    for (name, amount) in pod_total(pod, "limits") {
        used.insert(format!("limits.{name}"), amount);
    }
    used
}

fn amounts(container: &Value, what: &str) -> Amounts {
    let list = |what: &str| container["resources"][what].as_object().cloned().unwrap_or_default();
    let mut all = Amounts::new();
    // A resource with a limit and no request is requested at its limit.
    if what == "requests" {
        all.extend(list("limits").iter().filter_map(|(name, it)| Some((name.clone(), Quantity::from_json(it).ok()?))));
    }
    all.extend(list(what).iter().filter_map(|(name, it)| Some((name.clone(), Quantity::from_json(it).ok()?))));
    all
}

fn add(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match to.get_mut(name) {
            Some(own) => own.add(*amount),
            None => {
                to.insert(name.clone(), *amount);
            }
        }
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match to.get_mut(name) {
            Some(own) if *own >= *amount => {}
            _ => {
                to.insert(name.clone(), *amount);
            }
        }
    }
}

/// The maximum that a pod needs at any time: the sum of its containers and sidecars, or an init
/// container with the sidecars started before it; plus the pod's overhead.
fn pod_total(pod: &Value, what: &str) -> Amounts {
    let containers = |field: &str| pod["spec"][field].as_array().map(Vec::as_slice).unwrap_or_default();
    let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
    for container in containers("initContainers") {
        let own = amounts(container, what);
        if container["restartPolicy"] == "Always" {
            add(&mut sidecars, &own);
            raise(&mut most, &sidecars);
        } else {
            let mut beside = sidecars.clone();
            add(&mut beside, &own);
            raise(&mut most, &beside);
        }
    }
    let mut total = sidecars;
    for container in containers("containers") {
        add(&mut total, &amounts(container, what));
    }
    raise(&mut total, &most);
    let overhead = pod["spec"]["overhead"].as_object().into_iter().flatten();
    let overhead: Amounts =
        overhead.filter_map(|(name, it)| Some((name.clone(), Quantity::from_json(it).ok()?))).collect();
    if !total.is_empty() {
        add(&mut total, &overhead);
    }
    total
}

/// True if a pod has neither requests nor limits of CPU and memory.
fn is_best_effort(pod: &Value) -> bool {
    let containers = ["containers", "initContainers"].iter();
    let mut containers = containers.flat_map(|field| pod["spec"][*field].as_array().into_iter().flatten());
    !containers.any(|container| {
        ["requests", "limits"]
            .iter()
            .any(|what| ["cpu", "memory"].iter().any(|name| !container["resources"][*what][*name].is_null()))
    })
}

/// True if the scopes of a quota include an object. Scopes apply to pods; a quota with scopes
/// counts nothing else.
pub fn in_scope(quota: &Value, group: &str, resource: &str, object: &Value) -> bool {
    let spec = &quota["spec"];
    let plain = spec["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let selectors = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let is_pod = group.is_empty() && resource == "pods";
    let mut requirements = plain.map(|scope| (scope, "Exists", &Value::Null)).chain(selectors.map(|expression| {
        let scope = expression["scopeName"].as_str().unwrap_or_default();
        (scope, expression["operator"].as_str().unwrap_or_default(), &expression["values"])
    }));
    requirements.all(|(scope, operator, values)| is_pod && matches_scope(scope, operator, values, object))
}

fn matches_scope(scope: &str, operator: &str, values: &Value, pod: &Value) -> bool {
    let terminating = pod["spec"]["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
    match scope {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => {
            let class = pod["spec"]["priorityClassName"].as_str().unwrap_or_default();
            let listed = values.as_array().into_iter().flatten().any(|value| value == class);
            match operator {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                _ => false,
            }
        }
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        _ => false,
    }
}

fn crosses_namespaces(pod: &Value) -> bool {
    let terms = ["podAffinity", "podAntiAffinity"].into_iter().flat_map(|kind| {
        let affinity = &pod["spec"]["affinity"][kind];
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array().into_iter().flatten();
        required.chain(preferred.map(|weighted| &weighted["podAffinityTerm"]))
    });
    let names = |term: &Value| term["namespaces"].as_array().is_some_and(|list| !list.is_empty());
    terms.into_iter().any(|term| names(term) || term["namespaceSelector"].is_object())
}

/// The hard limits of a quota.
pub fn limited(quota: &Value) -> Amounts {
    let hard = quota["spec"]["hard"].as_object().into_iter().flatten();
    hard.filter_map(|(name, amount)| Some((name.clone(), Quantity::from_json(amount).ok()?))).collect()
}

/// Compute resources in `limited` that some containers of a pod do not specify, with the names of
/// these containers. A quota on them rejects such a pod, because its usage is unknown.
pub fn unspecified<'a>(pod: &Value, limited: impl Iterator<Item = &'a String>) -> BTreeMap<String, Vec<String>> {
    let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let wanted: Vec<&String> = limited.filter(|name| COMPUTE.contains(&name.as_str())).collect();
    let containers = ["initContainers", "containers"].into_iter();
    for container in containers.flat_map(|field| pod["spec"][field].as_array().into_iter().flatten()) {
        for name in &wanted {
            let (what, resource) = match name.split_once('.') {
                Some((what, resource)) => (what, resource),
                None => ("requests", name.as_str()),
            };
            if !amounts(container, what).contains_key(resource) {
                let own = container["name"].as_str().unwrap_or_default().to_owned();
                missing.entry((*name).clone()).or_default().push(own);
            }
        }
    }
    missing
}

/// Amounts in the form of a quota's status.
pub fn to_value(amounts: &Amounts) -> Value {
    Value::Object(amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string().into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_counts_with_its_maximum_requests() {
        let container = |cpu: &str| json!({"name": cpu, "resources": {"requests": {"cpu": cpu}}});
        let pod = json!({"spec": {"containers": [container("1"), container("500m")],
            "initContainers": [container("3")]}});
        let used = usage("", "pods", &pod);
        assert_eq!(used["requests.cpu"].to_string(), "3");
        assert_eq!(used["cpu"].to_string(), "3");
        assert_eq!(used["pods"].to_string(), "1");
        let ended = json!({"spec": pod["spec"], "status": {"phase": "Succeeded"}});
        assert_eq!(usage("", "pods", &ended).into_keys().collect::<Vec<_>>(), ["count/pods"]);
    }

    #[test]
    fn limits_count_as_requests_and_unspecified_resources_are_reported() {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"memory": "1Gi"}}}]}});
        assert_eq!(usage("", "pods", &pod)["requests.memory"].to_string(), "1Gi");
        let limited = ["requests.memory".to_owned(), "requests.cpu".to_owned(), "pods".to_owned()];
        let missing = unspecified(&pod, limited.iter());
        assert_eq!(missing, BTreeMap::from([("requests.cpu".to_owned(), vec!["c".to_owned()])]));
    }

    #[test]
    fn scopes_choose_pods() {
        let quota = |scopes: Value| json!({"spec": {"scopes": scopes}});
        let batch = json!({"spec": {"activeDeadlineSeconds": 60, "containers": [{"name": "c"}]}});
        assert!(in_scope(&quota(json!(["Terminating", "BestEffort"])), "", "pods", &batch));
        assert!(!in_scope(&quota(json!(["NotTerminating"])), "", "pods", &batch));
        assert!(!in_scope(&quota(json!(["Terminating"])), "", "services", &json!({})));
        assert!(in_scope(&quota(json!([])), "", "services", &json!({})));
    }
}
