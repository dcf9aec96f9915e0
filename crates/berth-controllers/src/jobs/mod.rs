//! Job integrations: one file per kind behind one trait.
//!
//! A kind of job says what it asks for ([`Job::pod_sets`]), how it is started and stopped, and how it is doing. Everything
//! else (making and matching its Workload, starting it when admitted, stopping it when evicted, finishing the Workload)
//! is written once, in [`reconcile`].

pub mod ancestors;
pub mod batch_job;
pub mod controller;
pub mod described;
pub mod elastic;
mod equivalence;
pub mod jobset;
pub mod naming;
mod outside;
pub mod pods;
pub(crate) mod readiness;
pub mod reconcile;
pub mod slices;
mod start;
pub mod topology;
pub mod train_job;

use std::collections::BTreeMap;
use std::fmt::Debug;

use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod};
use berth_api::kueue::{annotations, labels};
use berth_runtime::{Cache, ControllerBuilder};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gates::{Gate, Gates};
use crate::podset::{PodSetError, PodSetInfo};
use crate::stores::Stores;

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Did it succeed?
    pub success: bool,
    /// What it says about it.
    pub message: String,
}

/// A kind of job that is started by letting go of it and stopped by suspending it.
pub trait Job:
    Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + PartialEq
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// Name of the integration in the configuration, for example `batch/job`.
    const FRAMEWORK: &'static str;

    /// May it change its size while it runs?
    const CAN_BE_ELASTIC: bool = false;

    /// The field that holds it back: steps from the object's root.
    const SUSPEND: &'static [&'static str] = &["spec", "suspend"];

    /// The field that names who reconciles it, if the kind has one.
    const MANAGED_BY: Option<&'static [&'static str]> = Some(&["spec", "managedBy"]);

    /// Do its pods stay what they were when it started, whatever becomes of the objects it names beside itself?
    const PODS_ARE_SET_WHILE_RUNNING: bool = false;

    /// Is what admission adds written before it is let go, in a write of its own?
    const STARTS_IN_TWO_STEPS: bool = false;

    /// Looks up what it names beside itself and its pods depend on.
    fn resolve(&mut self, stores: &Stores) {
        let _ = stores;
    }

    /// Lets its controller hear of changes of such objects.
    fn watch<'a>(builder: ControllerBuilder<'a>, stores: &Stores, jobs: &Cache<Self>) -> ControllerBuilder<'a> {
        let _ = (stores, jobs);
        builder
    }

    /// Where its pod templates are, as JSON pointers from the object's root, for kinds that can be elastic.
    fn templates(&self) -> Vec<String> {
        Vec::new()
    }

    /// Is this one queued at all, when it names a queue?
    fn is_queued(&self) -> bool {
        true
    }

    /// Is it suspended?
    fn is_suspended(&self) -> bool;

    /// Suspends it.
    fn suspend(&mut self);

    /// The pods it asks for.
    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String>;

    /// Lets go of it, with what admission adds to its pods.
    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError>;

    /// Sets its pod templates back to what was recorded. Returns whether that changed anything.
    fn restore(&mut self, infos: &[PodSetInfo]) -> bool;

    /// Would the API let the templates of one that is suspended be set back now?
    fn can_be_restored(&self) -> bool {
        true
    }

    /// How it ended, if it did.
    fn finished(&self) -> Option<Finished>;

    /// Are all its pods ready or done?
    fn pods_ready(&self) -> bool;

    /// Has it pods that still run?
    fn is_active(&self) -> bool;

    /// Pods that are done and will not come back; `None` when the kind cannot tell.
    fn reclaimable_pods(&self) -> Option<Vec<ReclaimablePod>> {
        None
    }

    /// Its own priority class, if the kind has such a field.
    fn priority_class(&self) -> Option<String> {
        None
    }

    /// Clears what a run left in its status, so that the next one starts afresh. Returns whether there was anything.
    fn reset_status(&mut self) -> bool {
        false
    }

    /// Do pod sets recorded in a Workload still fit beyond what the pod sets themselves say?
    fn is_in_step(&self, _recorded: &[PodSet]) -> bool {
        true
    }

    /// Who reconciles it, when that is somebody else (`spec.managedBy`).
    fn managed_by(&self) -> Option<&str>;

    /// Hands it to somebody else.
    fn set_managed_by(&mut self, controller: &str);

    /// Names of the scheduling gates, labels and selectors are the kind's own business; this removes those that the
    /// kind's controller adds itself and that must not be recorded.
    fn clean_labels(labels: &mut BTreeMap<String, String>) {
        let _ = labels;
    }
}

/// The local queue a job names, by label or by the annotation older jobs use.
pub fn queue_name(job: &impl ResourceExt) -> &str {
    job.labels()
        .get(labels::QUEUE_NAME)
        .or_else(|| job.annotations().get(annotations::QUEUE_NAME))
        .map_or("", String::as_str)
}

/// The Workload somebody else made for this job, named by label or annotation.
pub fn prebuilt_workload(job: &impl ResourceExt) -> Option<&str> {
    job.labels()
        .get(labels::PREBUILT_WORKLOAD)
        .or_else(|| job.annotations().get(annotations::PREBUILT_WORKLOAD))
        .map(String::as_str)
        .filter(|name| !name.is_empty())
}

/// May it change size while it runs?
pub fn is_elastic(job: &impl ResourceExt, gates: &Gates) -> bool {
    gates.on(Gate::ElasticJobsViaWorkloadSlices)
        && job.annotations().get(annotations::ELASTIC_JOB).is_some_and(|value| value == "true")
}

/// Integrations that exist, by their names in the configuration.
pub fn integrated() -> Vec<&'static str> {
    let mut names = vec!["batch/job", "jobset.x-k8s.io/jobset"];
    names.extend(described::names());
    names.push(train_job::TrainJob::FRAMEWORK);
    names.extend(pods::FRAMEWORKS);
    names
}

/// Is there an integration of this name?
pub fn is_integrated(framework: &str) -> bool {
    integrated().contains(&framework)
}

/// Group, version and kind of a job's type.
pub fn kind_of<J: Job>() -> naming::OwnerKind {
    naming::OwnerKind { group: J::group(&()).into_owned(), kind: J::kind(&()).into_owned() }
}

/// A kind of job that a field holds back.
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

/// Every kind of job that is integrated, but for those made of pods.
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

/// Drops repeated environment variables (the last one counts): lists in stored objects are keyed by name.
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
