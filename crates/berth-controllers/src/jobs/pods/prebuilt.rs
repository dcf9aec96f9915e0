//! Single pods that name a Workload which exists already, or is yet to be created (KEP-3094).
//!
//! The Workload of a pod group has the group's name, so a prebuilt one is found like any other.

use std::sync::Arc;

use berth_api::kueue::reasons::finished;
use berth_api::kueue::v1beta2::Workload;
use berth_api::kueue::{annotations, events, labels};
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::Unit;
use super::reconcile::Reconcile;
use crate::gates::Gates;
use crate::jobs::equivalence::same_pod_sets;
use crate::jobs::reconcile::remove_finalizer;
use crate::jobs::{naming, sanitize};
use crate::plan::{PlanError, PlannedEvent, Step};
use crate::stores::{Stores, controller_of};
use crate::workload::status;

/// The Workload that a single pod names; `None` for pods of groups.
pub(super) fn name<'a>(pod: &'a Pod, gates: &Gates) -> Option<&'a str> {
    let is_alone = matches!(Unit::of(pod, gates), Some(Unit::Pod { .. }));
    naming::identifier(pod, annotations::PREBUILT_WORKLOAD, labels::PREBUILT_WORKLOAD, gates).filter(|_| is_alone)
}

/// The Workload of this name, if it exists.
pub(super) fn find(stores: &Stores, namespace: &str, name: &str) -> Option<Arc<Workload>> {
    stores.workloads.get(&ObjectKey::namespaced(namespace, name))
}

impl Reconcile<'_> {
    /// Adopts the prebuilt Workload that the pod names. It is never created here, and never updated
    /// to match the pod.
    pub(super) fn with_prebuilt(&mut self, name: &str) -> Result<(), PlanError> {
        let Some(workload) = find(self.context.stores, self.namespace, name) else {
            return self.without_prebuilt(name);
        };
        let mut workload = (*workload).clone();
        let pod = self.group.first();
        match controller_of(&workload.metadata) {
            Some(owner) if pod.uid().as_ref() != Some(&owner.uid) => {
                let message = format!("workload {name} is already owned by {} {}", owner.kind, owner.name);
                return Err(PlanError::Other(message));
            }
            Some(_) => {}
            None => {
                self.own(&mut workload);
                workload.labels_mut().insert(labels::JOB_UID.to_owned(), pod.uid().unwrap_or_default());
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
            }
        }
        if status::is_finished(&workload) {
            if remove_finalizer(&mut workload) {
                self.plan.steps.push(Step::PatchWorkload(Box::new(workload.clone())));
            }
        } else if self.group.finished().is_none() && !self.is_in_sync(&workload)? {
            self.stop("NoMatchingWorkload", "No matching Workload", false);
            const MESSAGE: &str = "The prebuilt workload is out of sync with its user job";
            status::finish(&mut workload, finished::OUT_OF_SYNC, MESSAGE, self.context.now);
            self.write_status(&workload);
            // The next reconcile reports why the pod will not start.
            return Ok(());
        }
        self.with_workload(workload)
    }

    fn without_prebuilt(&mut self, name: &str) -> Result<(), PlanError> {
        if self.group.finished().is_some() {
            return self.without_workload();
        }
        self.stop("NoMatchingWorkload", "missing workload", false);
        let message = format!(
            "Workload {name}, named in {}, does not exist; the pod stays gated until it is created",
            labels::PREBUILT_WORKLOAD
        );
        self.report_waiting(PlannedEvent::warning(events::PREBUILT_WORKLOAD_NOT_FOUND, message));
        Err(PlanError::PrebuiltWorkloadNotFound)
    }

    /// True if the Workload describes the pod. Admission adds to the node selector and the
    /// tolerations of a pod that has started.
    fn is_in_sync(&self, workload: &Workload) -> Result<bool, PlanError> {
        let mut pod_sets = self.group.pod_sets(self.context.gates).map_err(PlanError::Unclear)?;
        sanitize(&mut pod_sets);
        let has_additions = status::is_admitted(workload) || self.group.started().next().is_some();
        Ok(same_pod_sets(&pod_sets, &workload.spec.pod_sets, has_additions))
    }
}

#[cfg(test)]
mod tests {
    use berth_api::kueue::constants;
    use serde_json::{Value, json};

    use super::*;
    use crate::configuration::Config;
    use crate::jobs::pods::reconcile::reconcile;
    use crate::jobs::reconcile::Context;
    use crate::plan::Plan;

    const NOW: &str = "2026-01-01T01:00:00Z";

    /// A gated pod that names the prebuilt Workload `w`.
    fn pod(cpu: &str, phase: &str) -> Value {
        json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {labels::MANAGED: "true",
                labels::QUEUE_NAME: "q", labels::PREBUILT_WORKLOAD: "w"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
                "schedulingGates": [{"name": constants::ADMISSION_GATE}]}, "status": {"phase": phase}})
    }

    /// The Workload `w` with these owners and conditions, for one pod of 1 CPU.
    fn workload(owners: Value, conditions: &[&str]) -> Value {
        let is_true = |type_: &&str| json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": NOW});
        let conditions: Vec<Value> = conditions.iter().map(is_true).collect();
        let template = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
        let assignment = json!({"name": "main", "count": 1, "flavors": {}});
        json!({"metadata": {"name": "w", "namespace": "ns", "ownerReferences": owners,
                "finalizers": [constants::RESOURCE_IN_USE_FINALIZER]},
            "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": template}]},
            "status": {"conditions": conditions,
                "admission": {"clusterQueue": "cq", "podSetAssignments": [assignment]}}})
    }

    fn owner(name: &str) -> Value {
        json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": name, "controller": true}])
    }

    fn plan(pod: Value, workload: Option<Value>) -> Plan<Pod> {
        let stores = Stores::by_hand();
        if let Some(workload) = workload {
            stores.workloads.observe(serde_json::from_value::<Workload>(workload).expect("a Workload"));
        }
        let config = Config { wait_for_pods_ready: None, ..Config::default() };
        let context = Context { stores: &stores, config: &config, gates: &Gates::default(), now: NOW.parse().unwrap() };
        let pods = [Arc::new(serde_json::from_value(pod).expect("a pod"))];
        reconcile(context, "ns", &Unit::Pod { name: "p".to_owned() }, &pods)
    }

    fn events(plan: &Plan<Pod>) -> Vec<String> {
        let of = |step: &Step<Pod>| match step {
            Step::EventAbout(_, event) => Some(event.reason.clone()),
            _ => None,
        };
        plan.steps.iter().filter_map(of).collect()
    }

    #[test]
    fn a_pod_waits_for_the_workload_that_it_names() {
        let plan = plan(pod("1", "Pending"), None);
        assert_eq!(events(&plan), [events::PREBUILT_WORKLOAD_NOT_FOUND], "{:?}", plan.steps);
        assert_eq!(plan.error, Some(PlanError::PrebuiltWorkloadNotFound));
        assert!(!plan.steps.iter().any(|step| matches!(step, Step::CreateWorkload(_))), "{:?}", plan.steps);
    }

    #[test]
    fn a_pod_adopts_the_workload_that_it_names_and_starts_once_that_is_admitted() {
        let plan = plan(pod("1", "Pending"), Some(workload(json!([]), &["QuotaReserved", "Admitted"])));
        let [Step::PatchWorkload(adopted), Step::Patch(started), Step::EventAbout(..)] = &plan.steps[..] else {
            panic!("{:?}", plan.steps)
        };
        let owner = controller_of(&adopted.metadata).expect("a controller");
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Pod", "u"));
        assert_eq!(adopted.labels().get(labels::JOB_UID).map(String::as_str), Some("u"));
        assert!(!super::super::group::is_gated(started));
    }

    #[test]
    fn a_workload_of_another_pod_is_not_adopted() {
        let plan = plan(pod("1", "Pending"), Some(workload(owner("other"), &["QuotaReserved", "Admitted"])));
        assert_eq!(plan.error, Some(PlanError::Other("workload w is already owned by Pod other".to_owned())));
    }

    #[test]
    fn a_workload_that_does_not_describe_the_pod_is_finished() {
        let plan = plan(pod("2", "Pending"), Some(workload(owner("u"), &[])));
        let [Step::PatchWorkloadStatus(after)] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
        let finished = status::condition(after, crate::conditions::FINISHED).expect("a condition");
        assert_eq!(finished.reason, finished::OUT_OF_SYNC);
    }

    #[test]
    fn a_prebuilt_workload_ends_with_its_pod_and_then_loses_its_finalizer() {
        let running = workload(owner("u"), &["QuotaReserved", "Admitted"]);
        let plan_at_end = plan(pod("1", "Succeeded"), Some(running));
        let Some(Step::PatchWorkloadStatus(after)) = plan_at_end.steps.first() else {
            panic!("{:?}", plan_at_end.steps)
        };
        assert!(status::is_finished(after));
        let after = plan(pod("1", "Succeeded"), Some(workload(owner("u"), &["Finished"])));
        let Some(Step::PatchWorkload(workload)) = after.steps.first() else { panic!("{:?}", after.steps) };
        assert!(workload.finalizers().is_empty());
    }
}
