//! Determines a workload's priority (semantics §3.1, §3.5).

use berth_api::kueue::v1beta2::{PodSet, PriorityClassRef, Workload};
use berth_api::kueue::{annotations, constants};
use berth_runtime::ObjectKey;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use crate::gates::{Gate, Gates};
use crate::stores::Stores;

/// A priority, and the class that defines it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priority {
    /// The class; `None` if there is none.
    pub class: Option<PriorityClassRef>,
    /// The value.
    pub value: i32,
}

/// Why the priority cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// The label names a class that does not exist.
    #[error("WorkloadPriorityClass {0:?} not found")]
    WorkloadPriorityClassNotFound(String),
    /// The pods name a class that does not exist.
    #[error("priorityclasses.scheduling.k8s.io {0:?} not found")]
    PriorityClassNotFound(String),
}

/// The priority of a WorkloadPriorityClass.
pub fn of_workload_class(stores: &Stores, name: &str) -> Result<Priority, PriorityError> {
    let class = stores
        .workload_priority_classes
        .get(&ObjectKey::cluster(name))
        .ok_or_else(|| PriorityError::WorkloadPriorityClassNotFound(name.to_owned()))?;
    Ok(Priority { class: Some(workload_class_ref(name)), value: class.value })
}

/// A reference to a WorkloadPriorityClass.
pub fn workload_class_ref(name: &str) -> PriorityClassRef {
    PriorityClassRef {
        group: "kueue.x-k8s.io".to_owned(),
        kind: constants::WORKLOAD_PRIORITY_CLASS_KIND.to_owned(),
        name: name.to_owned(),
    }
}

/// The priority of a PriorityClass; for an empty name, the global default or 0.
pub fn of_pod_class(stores: &Stores, name: &str) -> Result<Priority, PriorityError> {
    let class = if name.is_empty() {
        match global_default(stores) {
            Some(class) => class,
            None => return Ok(Priority::default()),
        }
    } else {
        let class = stores.priority_classes.get(&ObjectKey::cluster(name));
        (*class.ok_or_else(|| PriorityError::PriorityClassNotFound(name.to_owned()))?).clone()
    };
    Ok(Priority {
        class: Some(PriorityClassRef {
            group: constants::POD_PRIORITY_CLASS_GROUP.to_owned(),
            kind: constants::POD_PRIORITY_CLASS_KIND.to_owned(),
            name: class.metadata.name.unwrap_or_default(),
        }),
        value: class.value,
    })
}

/// The default class. If several classes are marked as the default, Kubernetes uses the one with
/// the lowest value.
fn global_default(stores: &Stores) -> Option<PriorityClass> {
    let classes = stores.priority_classes.list();
    let default = classes.iter().filter(|class| class.global_default == Some(true)).min_by_key(|class| class.value)?;
    Some((**default).clone())
}

/// The priority of a job: from its label, its own class, its pods' class, or the cluster's default,
/// in this order.
pub fn extract(
    stores: &Stores,
    label: Option<&str>,
    own_class: Option<String>,
    pod_sets: &[PodSet],
) -> Result<Priority, PriorityError> {
    if let Some(name) = label.filter(|name| !name.is_empty()) {
        return of_workload_class(stores, name);
    }
    let of_pods = || {
        pod_sets.iter().find_map(|pod_set| {
            let name = pod_set.template.spec.as_ref()?.priority_class_name.as_ref()?;
            (!name.is_empty()).then(|| name.clone())
        })
    };
    of_pod_class(stores, &own_class.filter(|name| !name.is_empty()).or_else(of_pods).unwrap_or_default())
}

/// `spec.priority`, by default 0.
pub fn base(workload: &Workload) -> i32 {
    workload.spec.priority.unwrap_or(0)
}

/// The boost in a workload's annotation; 0 while the gate PriorityBoost is off.
pub fn boost(workload: &Workload, gates: &Gates) -> Result<i32, String> {
    if !gates.on(Gate::PriorityBoost) {
        return Ok(0);
    }
    let annotations = workload.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(annotations::PRIORITY_BOOST)) {
        None => Ok(0),
        Some(text) if text.is_empty() => Ok(0),
        Some(text) => text.parse().map_err(|_| {
            format!("invalid {} annotation value {text:?}: must be a valid integer", annotations::PRIORITY_BOOST)
        }),
    }
}

/// Priority including boost. A malformed boost, or one whose gate is off, counts as 0.
pub fn effective(workload: &Workload, gates: &Gates) -> i64 {
    i64::from(base(workload)) + i64::from(boost(workload, gates).unwrap_or(0))
}
