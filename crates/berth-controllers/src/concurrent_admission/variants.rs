//! Creates variants, and copies the parent's changes to them.

use berth_api::kueue::constants::CONCURRENT_ADMISSION_PREEMPTION_GATE;
use berth_api::kueue::v1beta2::{PreemptionGate, Workload, WorkloadSpec};
use berth_api::kueue::{annotations, labels};
use berth_runtime::owned_by;
use kube::ResourceExt;

use crate::gates::Gates;
use crate::jobs::naming::{OwnerKind, variant_name};

/// The variant of a workload for one flavor, with a closed preemption gate.
pub fn make(parent: &Workload, flavor: &str, gates: &Gates) -> Workload {
    // Kueue hashes an empty group and kind here, because objects that it has read do not carry
    // theirs.
    let kind = OwnerKind { group: String::new(), kind: String::new() };
    let uid = parent.metadata.uid.as_deref().unwrap_or_default();
    let mut variant = Workload::named(&variant_name(&parent.name_any(), uid, &kind, flavor, gates));
    variant.metadata.namespace = parent.metadata.namespace.clone();
    let mut own = parent.labels().clone();
    own.remove(labels::CONCURRENT_ADMISSION_PARENT);
    variant.metadata.labels = (!own.is_empty()).then_some(own);
    follow_annotations(&mut variant, parent);
    let key = annotations::WORKLOAD_ALLOWED_RESOURCE_FLAVORS.to_owned();
    variant.annotations_mut().insert(key, flavor.to_owned());
    variant.metadata.owner_references = Some(vec![owned_by(parent)]);
    variant.spec = spec(parent, parent.spec.active);
    variant
}

/// The spec of a parent's variant.
fn spec(parent: &Workload, active: Option<bool>) -> WorkloadSpec {
    let mut spec = parent.spec.clone();
    spec.active = active;
    let gate = CONCURRENT_ADMISSION_PREEMPTION_GATE;
    if !spec.preemption_gates.iter().any(|known| known.name == gate) {
        spec.preemption_gates.push(PreemptionGate { name: gate.to_owned() });
    }
    spec
}

/// Copies the parent's spec and annotations to a variant. Returns true if anything changed.
pub fn follow(variant: &mut Workload, parent: &Workload) -> bool {
    let before = (variant.spec.clone(), variant.metadata.annotations.clone());
    variant.spec = spec(parent, variant.spec.active);
    follow_annotations(variant, parent);
    before != (variant.spec.clone(), variant.metadata.annotations.clone())
}

/// True if the pod sets of variant and parent differ.
pub fn has_other_pod_sets(variant: &Workload, parent: &Workload) -> bool {
    variant.spec.pod_sets != parent.spec.pod_sets
}

/// Copies the annotations that affect decisions: admission gates, priority boost, provisioning
/// parameters.
fn follow_annotations(variant: &mut Workload, parent: &Workload) {
    let is_followed = |key: &String| {
        key == annotations::ADMISSION_GATED_BY
            || key == annotations::PRIORITY_BOOST
            || key.starts_with(annotations::PROVISIONING_REQUEST_PREFIX)
    };
    let wanted = parent.annotations().iter().filter(|(key, _)| is_followed(key));
    let wanted: Vec<(String, String)> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
    if wanted.is_empty() && variant.metadata.annotations.is_none() {
        return;
    }
    let annotations = variant.annotations_mut();
    annotations.retain(|key, _| !is_followed(key));
    annotations.extend(wanted);
}
