//! LimitRanger: the defaults and limits that LimitRange objects of a namespace set for containers,
//! pods and volume claims.
//!
//! Source: Kubernetes documentation, "Limit Ranges".

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::status::Status;
use serde_json::{Map, Value, json};

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden, is_pod_create};

/// Annotation on a pod that lists the amounts set by default.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub(crate) struct LimitRanger;

impl AdmissionPlugin for LimitRanger {
    fn name(&self) -> &str {
        "LimitRanger"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        if !is_pod_create(request) {
            return Ok(());
        }
        let ranges = ranges(request);
        let Some(pod) = request.object.as_mut().filter(|_| !ranges.is_empty()) else { return Ok(()) };
        let mut filled = Vec::new();
        for item in items(&ranges, "Container") {
            fill_pod(pod, item, &mut filled);
        }
        if !filled.is_empty() {
            meta::set_annotation(pod, ANNOTATION, &format!("LimitRanger plugin set: {}", filled.join("; ")));
        }
        Ok(())
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let is_core = request.group.is_empty() && request.subresource.is_empty();
        let is_claim = is_core
            && request.resource == "persistentvolumeclaims"
            && matches!(request.operation, Operation::Create | Operation::Update);
        let is_resize = request.group.is_empty() && request.resource == "pods" && request.subresource == "resize";
        let is_pod = is_pod_create(request) || is_resize;
        if !is_claim && !is_pod {
            return Ok(());
        }
        let ranges = ranges(request);
        let Some(object) = request.object.as_ref().filter(|_| !ranges.is_empty()) else { return Ok(()) };
        let problems = if is_pod { pod_problems(object, &ranges) } else { claim_problems(object, &ranges) };
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(forbidden(request, one)),
            many => Err(forbidden(request, &format!("[{}]", many.join(", ")))),
        }
    }
}

fn ranges(request: &AdmissionRequest<'_>) -> Vec<Arc<Value>> {
    request.objects.list("", "limitranges", Some(request.namespace))
}

fn items<'a>(ranges: &'a [Arc<Value>], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = ranges.iter().flat_map(|range| range["spec"]["limits"].as_array().into_iter().flatten());
    all.filter(move |item| item["type"] == kind)
}

fn fill_pod(pod: &mut Value, item: &Value, filled: &mut Vec<String>) {
    for (field, what) in [("initContainers", "init container"), ("containers", "container")] {
        for container in pod["spec"].get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (defaults, list, word) in [("defaultRequest", "requests", "request"), ("default", "limits", "limit")] {
                let set = fill(container, list, &item[defaults]);
                if !set.is_empty() {
                    filled.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
}

/// Sets the amounts that are missing, and returns their names.
fn fill(container: &mut Value, list: &str, defaults: &Value) -> Vec<String> {
    let mut set = Vec::new();
    for (name, amount) in defaults.as_object().into_iter().flatten() {
        let resources = meta::map_mut(meta::map_mut(container).entry("resources").or_insert_with(|| json!({})));
        let amounts = meta::map_mut(resources.entry(list).or_insert_with(|| json!({})));
        if !amounts.contains_key(name) {
            amounts.insert(name.clone(), amount.clone());
            set.push(name.clone());
        }
    }
    set
}

/// Requests and limits of a container, or of a whole pod.
struct Resources {
    requests: Map<String, Value>,
    limits: Map<String, Value>,
}

impl Resources {
    fn of(container: &Value) -> Resources {
        let list = |what: &str| container["resources"][what].as_object().cloned().unwrap_or_default();
        Resources { requests: list("requests"), limits: list("limits") }
    }

    /// Sum of the containers' amounts, or the amount of the largest init container if that is more.
    /// A resource is included only if every container has an amount of it.
    fn total(pod: &Value) -> Resources {
        let containers = |field: &str| -> Vec<Resources> {
            pod["spec"][field].as_array().into_iter().flatten().map(Resources::of).collect()
        };
        let (all, init) = (containers("containers"), containers("initContainers"));
        let sum = |list: fn(&Resources) -> &Map<String, Value>| {
            let mut total: Map<String, Value> = Map::new();
            for (name, _) in all.first().map(list).into_iter().flatten() {
                let amounts: Option<Vec<Quantity>> = all.iter().map(|it| quantity(list(it).get(name)?)).collect();
                let Some((first, rest)) = amounts.as_deref().and_then(<[_]>::split_first) else { continue };
                let mut sum = *first;
                rest.iter().for_each(|amount| sum.add(*amount));
                let most = init.iter().filter_map(|it| quantity(list(it).get(name)?)).fold(sum, Quantity::max);
                total.insert(name.clone(), most.to_string().into());
            }
            total
        };
        Resources { requests: sum(|it| &it.requests), limits: sum(|it| &it.limits) }
    }
}

fn quantity(value: &Value) -> Option<Quantity> {
    Quantity::from_json(value).ok()
}

fn pod_problems(pod: &Value, ranges: &[Arc<Value>]) -> Vec<String> {
    let mut problems = Vec::new();
    for item in items(ranges, "Container") {
        for field in ["containers", "initContainers"] {
            for container in pod["spec"][field].as_array().into_iter().flatten() {
                check(item, "Container", &Resources::of(container), &mut problems);
            }
        }
    }
    let total = Resources::total(pod);
    for item in items(ranges, "Pod") {
        check(item, "Pod", &total, &mut problems);
    }
    problems
}

fn claim_problems(claim: &Value, ranges: &[Arc<Value>]) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(asked) = quantity(&claim["spec"]["resources"]["requests"]["storage"]) else { return problems };
    for item in items(ranges, "PersistentVolumeClaim") {
        let bound = |which: &str| quantity(&item[which]["storage"]);
        let say = |which: &str, bound: Quantity| {
            format!("{which} storage usage per PersistentVolumeClaim is {bound}, but request is {asked}")
        };
        if let Some(least) = bound("min").filter(|least| asked < *least) {
            problems.push(say("minimum", least));
        }
        if let Some(most) = bound("max").filter(|most| asked > *most) {
            problems.push(say("maximum", most));
        }
    }
    problems
}

fn check(item: &Value, kind: &str, asked: &Resources, problems: &mut Vec<String>) {
    let bounds = |which: &str| -> Vec<(String, Quantity)> {
        let bounds = item[which].as_object().into_iter().flatten();
        bounds.filter_map(|(name, bound)| Some((name.clone(), quantity(bound)?))).collect()
    };
    let amount = |list: &Map<String, Value>, name: &str| list.get(name).and_then(quantity);
    for (name, least) in bounds("min") {
        let what = format!("minimum {name} usage per {kind} is {least}");
        match (amount(&asked.requests, &name), amount(&asked.limits, &name)) {
            (None, _) => problems.push(format!("{what}.  No request is specified")),
            (Some(request), _) if request < least => problems.push(format!("{what}, but request is {request}")),
            (_, Some(limit)) if limit < least => problems.push(format!("{what}, but limit is {limit}")),
            _ => {}
        }
    }
    for (name, most) in bounds("max") {
        let what = format!("maximum {name} usage per {kind} is {most}");
        match (amount(&asked.requests, &name), amount(&asked.limits, &name)) {
            (_, None) => problems.push(format!("{what}.  No limit is specified")),
            (_, Some(limit)) if limit > most => problems.push(format!("{what}, but limit is {limit}")),
            (Some(request), _) if request > most => problems.push(format!("{what}, but request is {request}")),
            _ => {}
        }
    }
    for (name, ratio) in bounds("maxLimitRequestRatio") {
        let what = format!("{name} max limit to request ratio per {kind} is {ratio}");
        let positive = |amount: Option<Quantity>| amount.filter(|amount| amount.sign() > 0);
        match (positive(amount(&asked.requests, &name)), positive(amount(&asked.limits, &name))) {
            (None, _) => problems.push(format!("{what}, but no request is specified or request is 0")),
            (_, None) => problems.push(format!("{what}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let given = limit.as_f64() / request.as_f64();
                if given > ratio.as_f64() {
                    problems.push(format!("{what}, but provided ratio is {given:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_without_a_limit_range_are_not_limited() {
        let mut problems = Vec::new();
        let asked = Resources::of(&json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}}));
        check(&json!({"max": {"cpu": "3"}, "min": {"memory": "1Gi"}}), "Container", &asked, &mut problems);
        assert_eq!(
            problems,
            [
                "minimum memory usage per Container is 1Gi.  No request is specified",
                "maximum cpu usage per Container is 3, but limit is 4",
            ]
        );
    }
}
