//! Extended resources that a device class backs (`spec.extendedResourceName`): pods request them
//! like `example.com/gpu`, and the scheduler allocates devices of the class.

use std::collections::BTreeMap;

use berth_apimachinery::field::Error;
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::json;

use super::problem::invalid;
use super::{Charges, Devices};
use crate::translate::amounts::{Quantities, exact};

/// True if the name is that of an extended resource.
pub fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/") && !resource.starts_with("requests.")
}

/// Positive requests of a container for extended resources, and the path of the container.
struct Requests {
    field: String,
    amounts: Quantities,
}

fn requests<'a>(containers: impl Iterator<Item = &'a Container>, field: &str) -> Vec<Requests> {
    let of = |(index, container): (usize, &Container)| {
        let mut amounts = exact(container.resources.as_ref().and_then(|resources| resources.requests.as_ref()));
        amounts.retain(|name, amount| *amount > Quantity::ZERO && is_extended(name));
        Requests { field: format!("{field}[{index}]"), amounts }
    };
    containers.enumerate().map(of).filter(|it| !it.amounts.is_empty()).collect()
}

impl Devices {
    /// Adds the extended resources of a pod set that device classes back, and marks them as
    /// replaced. `spec` has the requests that limits and LimitRanges imply.
    pub(super) fn count_extended(&self, pod_set: usize, spec: &PodSpec, charges: &mut Charges) -> Vec<Error> {
        let at = format!("spec.podSets[{pod_set}].template.spec");
        let init = requests(spec.init_containers.iter().flatten(), &format!("{at}.initContainers"));
        let regular = requests(spec.containers.iter(), &format!("{at}.containers"));
        let mut errors = Vec::new();
        for (resource, total) in totals(&init, &regular) {
            let all = || init.iter().chain(&regular).filter(|it| it.amounts.contains_key(&resource));
            let Some(first) = all().next() else { continue };
            let key = match self.quota_key(&resource, &first.field) {
                Ok(None) => continue,
                Ok(Some(key)) => key,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            let field = |it: &Requests| format!("{}.resources.requests.{resource}", it.field);
            let fractions: Vec<Error> = all()
                .filter(|it| it.amounts[&resource].as_i64().is_none())
                .map(|it| {
                    let value = json!(it.amounts[&resource].to_string());
                    invalid(field(it), value, "extended resource quantity must be an integer")
                })
                .collect();
            if !fractions.is_empty() {
                errors.extend(fractions);
                continue;
            }
            let Some(total) = total.as_i64() else {
                let detail = "total extended resource quantity overflows int64";
                errors.push(invalid(field(first), json!(total.to_string()), detail));
                continue;
            };
            charges.replace(pod_set, &resource);
            charges.add(pod_set, &key, total);
        }
        errors
    }

    /// The resource that an extended resource is counted as: that of the mapping of its device
    /// class, or itself. `None` if no device class backs it. `field` is the path of the container.
    fn quota_key(&self, resource: &str, field: &str) -> Result<Option<String>, Error> {
        let Some(class) = self.class_of_resource(resource) else { return Ok(None) };
        let class = class.metadata.name.as_deref().unwrap_or_default();
        let Some(counted) = self.settings.mappings.get(class) else { return Ok(Some(resource.to_owned())) };
        let (figure, hint) = if self.settings.partitions && !counted.counters.is_empty() {
            ("counters", "CEL selectors for counter-based quota")
        } else if self.settings.shares && !counted.capacities.is_empty() {
            ("capacity sources", "capacity.requests for capacity-based quota")
        } else {
            return Ok(Some(counted.resource.clone()));
        };
        let detail = format!(
            "extended resource {resource} resolves to DeviceClass {class} with {figure} configured; use ResourceClaimTemplates with {hint}"
        );
        Err(invalid(field.to_owned(), json!(resource), detail))
    }
}

/// Requests of a pod by resource: the sum of the containers, or the largest init container if that
/// is more.
fn totals(init: &[Requests], regular: &[Requests]) -> BTreeMap<String, Quantity> {
    let mut totals: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, amount) in regular.iter().flat_map(|it| &it.amounts) {
        totals.entry(name.clone()).or_insert(Quantity::ZERO).add(*amount);
    }
    for (name, amount) in init.iter().flat_map(|it| &it.amounts) {
        let total = totals.entry(name.clone()).or_insert(Quantity::ZERO);
        *total = (*total).max(*amount);
    }
    totals
}
