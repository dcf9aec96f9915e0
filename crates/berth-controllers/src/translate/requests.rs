//! Computes the request of one pod (semantics §2.1, §2.2): fills in defaults of RuntimeClasses and
//! LimitRanges, then combines the containers.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, LimitRange, LimitRangeItem, PodSpec, ResourceRequirements};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::amounts::{Quantities, exact, parse};

type ApiList = BTreeMap<String, ApiQuantity>;

/// Fills in the requests that RuntimeClass, LimitRanges and limits imply.
pub fn adjust(spec: &PodSpec, runtime_class: Option<&RuntimeClass>, limit_ranges: &[LimitRange]) -> PodSpec {
    let mut spec = spec.clone();
    if spec.overhead.is_none() {
        spec.overhead = runtime_class.and_then(|class| class.overhead.as_ref()).and_then(|it| it.pod_fixed.clone());
    }
    if let Some(summary) = summarize(limit_ranges, "Container") {
        let init = spec.init_containers.iter_mut().flatten();
        for container in spec.containers.iter_mut().chain(init) {
            fill_container(container, &summary);
        }
    }
    if let (Some(resources), Some(summary)) = (&mut spec.resources, summarize(limit_ranges, "Pod")) {
        fill(resources, &summary);
    }
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        if let Some(resources) = &mut container.resources {
            limits_to_requests(resources);
        }
    }
    if let Some(resources) = &mut spec.resources {
        limits_to_requests(resources);
    }
    spec
}

/// Combines the items of one type of all LimitRanges: the first default, the smallest maximum and
/// ratio, and the largest minimum apply.
pub fn summarize(limit_ranges: &[LimitRange], type_: &str) -> Option<LimitRangeItem> {
    let mut summary: Option<LimitRangeItem> = None;
    let items = limit_ranges.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.limits);
    for item in items.filter(|item| item.type_ == type_) {
        let Some(known) = &mut summary else {
            summary = Some(item.clone());
            continue;
        };
        merge(&mut known.default, item.default.as_ref(), |_, _| false);
        merge(&mut known.default_request, item.default_request.as_ref(), |_, _| false);
        merge(&mut known.max, item.max.as_ref(), |new, old| new < old);
        merge(&mut known.min, item.min.as_ref(), |new, old| new > old);
        merge(&mut known.max_limit_request_ratio, item.max_limit_request_ratio.as_ref(), |new, old| new < old);
    }
    summary
}

fn merge(into: &mut Option<ApiList>, from: Option<&ApiList>, replaces: impl Fn(Quantity, Quantity) -> bool) {
    for (name, quantity) in from.into_iter().flatten() {
        let list = into.get_or_insert_default();
        let better = list.get(name).is_none_or(|known| match (parse(quantity), parse(known)) {
            (Some(new), Some(old)) => replaces(new, old),
            _ => false,
        });
        if better {
            list.insert(name.clone(), quantity.clone());
        }
    }
}

fn fill_container(container: &mut Container, summary: &LimitRangeItem) {
    if summary.default.is_some() || summary.default_request.is_some() {
        fill(container.resources.get_or_insert_default(), summary);
    }
}

fn fill(resources: &mut ResourceRequirements, summary: &LimitRangeItem) {
    merge(&mut resources.limits, summary.default.as_ref(), |_, _| false);
    merge(&mut resources.requests, summary.default_request.as_ref(), |_, _| false);
}

fn limits_to_requests(resources: &mut ResourceRequirements) {
    let limits = resources.limits.clone();
    merge(&mut resources.requests, limits.as_ref(), |_, _| false);
}

/// The request of a pod: the sum of containers and sidecars, or the largest ordinary init container
/// if that is more. Pod-level resources replace the resources that they cover, and overhead is
/// added. These are Kubernetes' rules (KEP-753, KEP-2837).
pub fn of_pod(spec: &PodSpec) -> Quantities {
    let mut total = Quantities::new();
    for container in &spec.containers {
        add(&mut total, &of_container(container));
    }
    let mut sidecars = Quantities::new();
    let mut largest_init = Quantities::new();
    for container in spec.init_containers.iter().flatten() {
        let mut request = of_container(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &request);
            add(&mut sidecars, &request);
            request = sidecars.clone();
        } else {
            add(&mut request, &sidecars);
        }
        keep_max(&mut largest_init, &request);
    }
    keep_max(&mut total, &largest_init);
    if let Some(resources) = &spec.resources {
        total.extend(exact(resources.requests.as_ref()));
    }
    add(&mut total, &exact(spec.overhead.as_ref()));
    total
}

fn of_container(container: &Container) -> Quantities {
    exact(container.resources.as_ref().and_then(|resources| resources.requests.as_ref()))
}

fn add(total: &mut Quantities, more: &Quantities) {
    for (name, quantity) in more {
        match total.get_mut(name) {
            Some(known) => known.add(*quantity),
            None => {
                total.insert(name.clone(), *quantity);
            }
        }
    }
}

fn keep_max(total: &mut Quantities, other: &Quantities) {
    for (name, quantity) in other {
        match total.get_mut(name) {
            Some(known) if *known >= *quantity => {}
            _ => {
                total.insert(name.clone(), *quantity);
            }
        }
    }
}
