//! The controller of WorkloadPriorityClasses: copies a changed value to the workloads of the class.

use berth_api::kueue::constants;
use berth_api::kueue::v1beta2::{Workload, WorkloadPriorityClass};
use berth_runtime::{Action, Error, Manager, ObjectKey, Reconciler};
use kube::{Api, Client, ResourceExt};

use crate::execute::{Part, patch};
use crate::stores::Stores;
use crate::workload::status;

/// The workload with the class's value; `None` if it already has that value, or does not use the
/// class.
pub fn updated(workload: &Workload, class: &WorkloadPriorityClass) -> Option<Workload> {
    let reference = workload.spec.priority_class_ref.as_ref()?;
    // Objects of older versions carry only the group.
    let kind = reference.kind.is_empty() || reference.kind == constants::WORKLOAD_PRIORITY_CLASS_KIND;
    let uses = reference.group == "kueue.x-k8s.io" && kind && reference.name == class.name_any();
    if !uses || workload.spec.priority == Some(class.value) || status::is_finished(workload) {
        return None;
    }
    let mut workload = workload.clone();
    workload.spec.priority = Some(class.value);
    Some(workload)
}

/// True if this change to a class can affect workloads. Workloads of a deleted class keep their
/// priority.
pub fn concerns(old: Option<&WorkloadPriorityClass>, new: Option<&WorkloadPriorityClass>) -> bool {
    new.is_some_and(|new| old.is_none_or(|old| old.value != new.value))
}

/// True if a workload's class changed, or the value of its class: other workloads may then be able
/// to preempt it (§4.7). Priorities that were set directly, or by a pod's priority class, do not
/// change that way.
pub fn changed(old: &Workload, new: &Workload) -> bool {
    let class = |workload: &Workload| {
        let reference = workload.spec.priority_class_ref.as_ref();
        reference
            .filter(|it| it.group == "kueue.x-k8s.io" && it.kind == constants::WORKLOAD_PRIORITY_CLASS_KIND)
            .map(|it| it.name.clone())
    };
    let after = class(new);
    after.is_some() && (class(old) != after || old.spec.priority != new.spec.priority)
}

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager, stores: &Stores) {
    let client = manager.client();
    manager
        .controller("workload-priority-class")
        .watch(&stores.workload_priority_classes, |delta| {
            concerns(delta.old.as_deref(), delta.new.as_deref()).then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .run(Controller { client, stores: stores.clone() });
}

struct Controller {
    client: Client,
    stores: Stores,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(class) = self.stores.workload_priority_classes.get(&key) else { return Ok(Action::Wait) };
        for workload in self.stores.workloads.iter() {
            let Some(wanted) = updated(&workload, &class) else { continue };
            let api: Api<Workload> =
                Api::namespaced(self.client.clone(), workload.metadata.namespace.as_deref().unwrap_or_default());
            let version = workload.resource_version();
            if let Some(answer) = patch(&api, workload.as_ref(), &wanted, Part::Main, version.as_deref()).await? {
                self.stores.workloads.observe(answer);
            }
        }
        Ok(Action::Wait)
    }
}
