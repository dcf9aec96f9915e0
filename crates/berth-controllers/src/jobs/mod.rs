//! Job integrations: one file per kind behind one trait.
//!
//! A kind of job describes its pods ([`Job::pod_sets`]), how it is started and stopped, and its
//! progress. Everything else is written once, in [`reconcile`]: creating and matching the Workload,
//! starting the job when the Workload is admitted, stopping it on eviction, and finishing the
//! Workload.

pub mod ancestors;
pub mod batch_job;
pub mod controller;
pub mod described;
pub mod elastic;
mod equivalence;
pub mod jobset;
pub mod naming;
pub mod pods;
pub mod preview;
pub(crate) mod readiness;
pub mod reconcile;
pub mod slices;
mod start;
pub mod takeover;
#[cfg(test)]
mod tests;
pub mod topology;
pub mod train_job;
mod unqueued;

use berth_api::json::Json;
use std::collections::BTreeMap;
use std::fmt::Debug;

use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod};
use berth_api::kueue::{annotations, labels};
use berth_runtime::{Cache, ControllerBuilder};
use kube::{Resource, ResourceExt};
use serde_json::Value;

use crate::gates::{Gate, Gates};
use crate::podset::{PodSetError, PodSetInfo};
use crate::stores::Stores;

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// True if the job succeeded.
    pub success: bool,
    /// The message that the job's own status gives.
    pub message: String,
}

/// A kind of job that is started by unsuspending it and stopped by suspending it.
pub trait Job:
    Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + Clone
    + Debug
    + Json
    + PartialEq
    + Send
    + Sync
    + 'static
{
    /// Name of the integration in the configuration, for example `batch/job`.
    const FRAMEWORK: &'static str;

    /// True for kinds whose jobs may change their size while they run.
    const CAN_BE_ELASTIC: bool = false;

    /// The field that suspends the job: steps from the object's root.
    const SUSPEND: &'static [&'static str] = &["spec", "suspend"];

    /// The field that names the controller that reconciles the job, if the kind has one.
    const MANAGED_BY: Option<&'static [&'static str]> = Some(&["spec", "managedBy"]);

    /// True for kinds whose running pods are not affected by changes to the objects that the job
    /// refers to. A changed reference then does not stop a running job.
    const PODS_ARE_SET_WHILE_RUNNING: bool = false;

    /// True for kinds whose pod templates must be updated in a separate write before the job is
    /// unsuspended.
    const STARTS_IN_TWO_STEPS: bool = false;

    /// True for kinds whose pod templates can only be restored after the write that suspends the
    /// job.
    const STOPS_IN_TWO_STEPS: bool = false;

    /// Reads the objects that the job refers to and that determine its pods.
    fn resolve(&mut self, stores: &Stores) {
        let _ = stores;
    }

    /// Adds watches for the objects that the job refers to.
    fn watch<'a>(builder: ControllerBuilder<'a>, stores: &Stores, jobs: &Cache<Self>) -> ControllerBuilder<'a> {
        let _ = (stores, jobs);
        builder
    }

    /// JSON pointers to the pod templates, from the object's root; only kinds that can be elastic
    /// return any.
    fn templates(&self) -> Vec<String> {
        Vec::new()
    }

    /// False for jobs that are never queued, even when they name a queue.
    fn is_queued(&self) -> bool {
        true
    }

    /// True while the job is suspended.
    fn is_suspended(&self) -> bool;

    /// Suspends the job.
    fn suspend(&mut self);

    /// The pod sets to record in the job's Workload.
    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String>;

    /// Replaces the counts of the pod sets by those of the object that the job made from its spec,
    /// if another program changes them there while the job runs.
    fn resize(&self, pod_sets: &mut [PodSet], stores: &Stores) {
        let _ = (pod_sets, stores);
    }

    /// Generation of the object whose counts [`Job::resize`] reads; `None` without one.
    fn resized_generation(&self, stores: &Stores) -> Option<i64> {
        let _ = stores;
        None
    }

    /// Unsuspends the job and adds what admission assigned (node selectors, tolerations, counts) to
    /// its pods.
    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError>;

    /// Restores the pod templates from `infos`, which the Workload recorded. Returns true if that
    /// changed anything.
    fn restore(&mut self, infos: &[PodSetInfo]) -> bool;

    /// Sets the defaults of the kind itself in a new job, beyond those of all kinds.
    fn set_defaults(object: &mut Value, gates: &Gates) {
        let _ = (object, gates);
    }

    /// True if the kind's operator rejected the job's spec, so that the job cannot run until its
    /// spec changes. `None` for kinds without such a state.
    fn is_on_hold(&self) -> Option<bool> {
        None
    }

    /// True if the API accepts changes to a suspended job's templates now.
    fn can_be_restored(&self) -> bool {
        true
    }

    /// True if a job that is being deleted keeps its quota until it is gone.
    fn is_needed_until_gone(&self, gates: &Gates) -> bool {
        let _ = gates;
        false
    }

    /// How the job ended; `None` if it has not ended.
    fn finished(&self) -> Option<Finished>;

    /// True once all pods are ready or have succeeded.
    fn pods_ready(&self) -> bool;

    /// True while any pod of the job runs.
    fn is_active(&self) -> bool;

    /// Pods that have ended and will not be replaced, per pod set; `None` for kinds whose status
    /// does not show such pods.
    fn reclaimable_pods(&self) -> Option<Vec<ReclaimablePod>> {
        None
    }

    /// The job's own priority class, if the kind has such a field.
    fn priority_class(&self) -> Option<String> {
        None
    }

    /// Removes the results of the last run from the status, before the next run. Returns true if
    /// anything changed.
    fn reset_status(&mut self) -> bool {
        false
    }

    /// False if the job no longer matches the Workload's pod sets in a way that a comparison with
    /// the job's own pod sets does not show.
    fn is_in_step(&self, _recorded: &[PodSet]) -> bool {
        true
    }

    /// The external controller that reconciles the job (`spec.managedBy`), if one is named.
    fn managed_by(&self) -> Option<&str>;

    /// Sets the controller that reconciles the job.
    fn set_managed_by(&mut self, controller: &str);

    /// Removes the labels that the kind's own controller adds to pod templates: the Workload does
    /// not record them.
    fn clean_labels(labels: &mut BTreeMap<String, String>) {
        let _ = labels;
    }
}

/// The local queue that the job names, in its label or in the older annotation.
pub fn queue_name(job: &impl ResourceExt) -> &str {
    job.labels()
        .get(labels::QUEUE_NAME)
        .or_else(|| job.annotations().get(annotations::QUEUE_NAME))
        .map_or("", String::as_str)
}

/// The prebuilt Workload that the job names.
pub fn prebuilt_workload<'a>(job: &'a impl ResourceExt, gates: &Gates) -> Option<&'a str> {
    naming::identifier(job, annotations::PREBUILT_WORKLOAD, labels::PREBUILT_WORKLOAD, gates)
}

/// True if the job may change its size while it runs.
pub fn is_elastic(job: &impl ResourceExt, gates: &Gates) -> bool {
    gates.on(Gate::ElasticJobsViaWorkloadSlices)
        && job.annotations().get(annotations::ELASTIC_JOB).is_some_and(|value| value == "true")
}

/// Names of all integrations, as the configuration spells them.
pub fn integrated() -> Vec<&'static str> {
    let mut names = vec!["batch/job", "jobset.x-k8s.io/jobset"];
    names.extend(described::names());
    names.push(train_job::TrainJob::FRAMEWORK);
    names.extend(pods::FRAMEWORKS);
    names
}

/// True if there is an integration of this name.
pub fn is_integrated(framework: &str) -> bool {
    integrated().contains(&framework)
}

/// Group, version and kind of a job's type.
pub fn kind_of<J: Job>() -> naming::OwnerKind {
    naming::OwnerKind { group: J::group(&()).into_owned(), kind: J::kind(&()).into_owned() }
}

/// A kind of job that has a field for suspending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspendable {
    /// Name of its integration.
    pub framework: &'static str,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name of its resource.
    pub resource: String,
    /// Kind.
    pub kind: String,
    /// The field: steps from the object's root.
    pub suspend: &'static [&'static str],
}

/// Every integrated kind except pods.
pub fn suspendable() -> Vec<Suspendable> {
    fn of<J: Job>() -> Suspendable {
        Suspendable {
            framework: J::FRAMEWORK,
            group: J::group(&()).into_owned(),
            version: J::version(&()).into_owned(),
            resource: J::plural(&()).into_owned(),
            kind: J::kind(&()).into_owned(),
            suspend: J::SUSPEND,
        }
    }
    let mut kinds = vec![of::<k8s_openapi::api::batch::v1::Job>(), of::<berth_api::jobset::v1alpha2::JobSet>()];
    described::for_each_described!(Kind => {
        kinds.push(of::<Kind>());
    });
    kinds.push(of::<train_job::TrainJob>());
    kinds
}

/// Drops repeated environment variables and keeps the last of each: lists in stored objects are
/// keyed by name.
pub fn sanitize(pod_sets: &mut [PodSet]) {
    for pod_set in pod_sets {
        let Some(spec) = pod_set.template.spec.as_mut() else { continue };
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(spec.containers.iter_mut()) {
            let Some(env) = container.env.as_mut() else { continue };
            let mut kept: Vec<k8s_openapi::api::core::v1::EnvVar> = Vec::with_capacity(env.len());
            for variable in env.drain(..) {
                match kept.iter_mut().find(|known| known.name == variable.name) {
                    Some(known) => *known = variable,
                    None => kept.push(variable),
                }
            }
            *env = kept;
        }
    }
}
