//! Counts the devices of ResourceClaimTemplates.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_apimachinery::field::{Error, ErrorKind};
use k8s_openapi::api::resource::v1::{ResourceClaimSpec, ResourceClaimTemplate};
use serde_json::{Value, json};

use super::matching::is_for_administration;
use super::problem::{internal, invalid, not_found};
use super::{Charges, Devices};

/// A ResourceClaimTemplate that a pod set uses.
pub(super) struct Used {
    /// Index of the pod set.
    pub pod_set: usize,
    /// Name of the template.
    pub name: String,
    /// Path of the claim in the workload.
    pub field: String,
    pub template: Arc<ResourceClaimTemplate>,
}

impl Used {
    pub fn claim(&self) -> &ResourceClaimSpec {
        &self.template.spec.spec
    }
}

/// Names of the templates of a pod set, with the index of the claim.
pub(super) fn template_names(set: &PodSet) -> impl Iterator<Item = (usize, &str)> {
    let claims = set.template.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    claims.enumerate().filter_map(|(index, claim)| Some((index, claim.resource_claim_template_name.as_deref()?)))
}

/// True if a pod set uses a ResourceClaim by name.
pub(super) fn uses_claims_by_name(workload: &Workload) -> bool {
    let specs = workload.spec.pod_sets.iter().filter_map(|set| set.template.spec.as_ref());
    specs.flat_map(|spec| spec.resource_claims.iter().flatten()).any(|claim| claim.resource_claim_name.is_some())
}

/// True if a pod set uses a ResourceClaimTemplate.
pub(super) fn uses_templates(workload: &Workload) -> bool {
    workload.spec.pod_sets.iter().any(|set| template_names(set).next().is_some())
}

impl Devices {
    /// The templates that the workload uses, in order.
    pub(super) fn templates(&self, workload: &Workload) -> Result<Vec<Used>, Vec<Error>> {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let mut used = Vec::new();
        for (pod_set, set) in workload.spec.pod_sets.iter().enumerate() {
            for (index, name) in template_names(set) {
                let field = format!("spec.podSets[{pod_set}].template.spec.resourceClaims[{index}]");
                let Some(template) = self.template(namespace, name) else {
                    let missing = not_found("resourceclaimtemplates", name);
                    let detail = format!(
                        "failed to get claim spec for ResourceClaimTemplate {name} in podset {}: {missing}",
                        set.name
                    );
                    return Err(vec![internal(field, detail)]);
                };
                used.push(Used { pod_set, name: name.to_owned(), field, template });
            }
        }
        Ok(used)
    }

    /// Adds the number of devices of a template, by the resource of their class. Classes that are
    /// counted by counters or capacities add nothing here.
    pub(super) fn count_devices(&self, used: &Used, pod_set: &str, charges: &mut Charges) -> Result<(), Vec<Error>> {
        let of_template = |mut error: Error| {
            error.detail = format!("ResourceClaimTemplate {}: {}", used.name, error.detail);
            error
        };
        let counts = self.devices_by_class(used.claim()).map_err(|error| {
            let field = format!("{}.{}", used.field, error.field);
            vec![Error { field, ..of_template(error) }]
        })?;
        let errors = self.verify_selectors(used.claim(), &used.field);
        if !errors.is_empty() {
            return Err(errors.into_iter().map(of_template).collect());
        }
        for (class, count) in counts {
            let Some(counted) = self.settings.mappings.get(&class) else {
                let value = format!("DeviceClass {class} is not mapped in DRA configuration for podset {pod_set}");
                let field = format!("{}.resourceClaimTemplateName", used.field);
                return Err(vec![Error {
                    kind: ErrorKind::NotFound,
                    field,
                    bad_value: Some(json!(value)),
                    detail: String::new(),
                }]);
            };
            let by_counters = self.settings.partitions && !counted.counters.is_empty();
            let by_capacities = self.settings.shares && !counted.capacities.is_empty();
            if !by_counters && !by_capacities {
                charges.add(used.pod_set, &counted.resource, count);
            }
        }
        Ok(())
    }

    /// The number of devices that a claim requests, by device class. Fields of errors are relative
    /// to the claim.
    fn devices_by_class(&self, claim: &ResourceClaimSpec) -> Result<BTreeMap<String, i64>, Error> {
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        let requests = claim.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        for (index, request) in requests.enumerate() {
            let at = format!("devices.requests[{index}]");
            if request.first_available.is_some() {
                return Err(invalid(at, Value::Null, "FirstAvailable device selection is not supported"));
            }
            let Some(exactly) = &request.exactly else {
                return Err(invalid(at, Value::Null, "Exactly must be set if FirstAvailable is nil"));
            };
            let field = format!("{at}.exactly.selectors");
            let selectors = exactly.selectors.as_deref().unwrap_or_default();
            if let Err(errors) = self.programs.compile_all(selectors, &field, "CEL compilation failed") {
                return Err(invalid(field, Value::Null, berth_apimachinery::field::aggregate(&errors)));
            }
            if is_for_administration(exactly) {
                continue;
            }
            let mode = exactly.allocation_mode.as_deref().unwrap_or("ExactCount");
            if mode != "ExactCount" {
                let detail = match mode {
                    "All" => "AllocationMode 'All' is not supported".to_owned(),
                    other => format!("unsupported allocation mode: {other}"),
                };
                return Err(invalid(format!("{at}.exactly.allocationMode"), json!(mode), detail));
            }
            let count = counts.entry(exactly.device_class_name.clone()).or_default();
            *count = count.saturating_add(exactly.count.unwrap_or(1));
        }
        counts.remove("");
        Ok(counts)
    }
}
