//! Finds the managed owner of a job: a job owned by a managed object is part of it and is not
//! queued itself.

use berth_api::kueue::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::configuration::Config;
use crate::plan::PlanError;
use crate::stores::{controller_of, group_of};

/// Maximum number of owner references to follow.
pub const DEPTH_MAX: usize = 10;

/// Kinds that some integration manages, as (group, kind). The search ends at an owner of any other
/// kind.
const KNOWN: &[(&str, &str)] = &[
    ("batch", "Job"),
    ("jobset.x-k8s.io", "JobSet"),
    ("workload.codeflare.dev", "AppWrapper"),
    ("ray.io", "RayJob"),
    ("ray.io", "RayCluster"),
    ("ray.io", "RayService"),
    ("kubeflow.org", "MPIJob"),
    ("kubeflow.org", "MXJob"),
    ("kubeflow.org", "PyTorchJob"),
    ("kubeflow.org", "TFJob"),
    ("kubeflow.org", "XGBoostJob"),
    ("kubeflow.org", "PaddleJob"),
    ("kubeflow.org", "JAXJob"),
    ("trainer.kubeflow.org", "TrainJob"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
    ("sparkoperator.k8s.io", "SparkApplication"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
];

/// Kinds whose children are not queued themselves, as (group, kind).
pub fn managing_kinds() -> &'static [(&'static str, &'static str)] {
    KNOWN
}

/// Kinds of children that each kind's controller creates, as (owner, children), by group and kind.
/// AppWrappers and kinds named in the configuration may create children of any kind.
const MADE: &[((&str, &str), &[(&str, &str)])] = &[
    (("batch", "Job"), &[POD]),
    (("jobset.x-k8s.io", "JobSet"), &[JOB]),
    (("ray.io", "RayJob"), &[("ray.io", "RayCluster"), JOB]),
    // The Job cleans up after a RayCluster with fault tolerance.
    (("ray.io", "RayCluster"), &[POD, JOB]),
    (("ray.io", "RayService"), &[("ray.io", "RayCluster")]),
    (("kubeflow.org", "MPIJob"), &[JOB, POD]),
    (("kubeflow.org", "MXJob"), &[POD]),
    (("kubeflow.org", "PyTorchJob"), &[POD]),
    (("kubeflow.org", "TFJob"), &[POD]),
    (("kubeflow.org", "XGBoostJob"), &[POD]),
    (("kubeflow.org", "PaddleJob"), &[POD]),
    (("kubeflow.org", "JAXJob"), &[POD]),
    (("trainer.kubeflow.org", "TrainJob"), &[("jobset.x-k8s.io", "JobSet")]),
    (("leaderworkerset.x-k8s.io", "LeaderWorkerSet"), &[("apps", "StatefulSet"), POD]),
    (("sparkoperator.k8s.io", "SparkApplication"), &[POD]),
    (("apps", "Deployment"), &[("apps", "ReplicaSet")]),
    (("apps", "ReplicaSet"), &[POD]),
    (("apps", "StatefulSet"), &[POD]),
];

/// Group and kind of pods.
pub const POD: (&str, &str) = ("", "Pod");
const JOB: (&str, &str) = ("batch", "Job");

/// True if objects of the owner's kind create objects of this kind. Owner kinds that are not listed
/// may create anything.
fn makes(owner: (&str, &str), child: (&str, &str)) -> bool {
    MADE.iter().find(|(known, _)| *known == owner).is_none_or(|(_, made)| made.contains(&child))
}

/// An owner kind that copies its pods' labels, queue name included, and is not queued itself.
const BETWEEN: (&str, &str) = ("apps", "ReplicaSet");

/// Result of looking up an owner.
pub enum Lookup {
    /// The owner's metadata.
    Found(Box<ObjectMeta>),
    /// No object of that name exists.
    Missing,
    /// An object of that name exists with another UID, so the reference is forged or stale.
    Forged,
    /// The owner's kind is not watched.
    Unwatched,
}

/// A managed owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Ancestor {
    /// The reference that leads to it.
    pub reference: OwnerReference,
    /// Its metadata.
    pub metadata: ObjectMeta,
}

/// The topmost managed owner of an object, if any. `kind`: the object's own, by group and kind. If
/// the configuration restricts which accounts may set owner references, an owner whose kind does
/// not create such objects is ignored.
pub fn managed_ancestor(
    kind: (&str, &str),
    metadata: &ObjectMeta,
    config: &Config,
    lookup: impl Fn(&OwnerReference) -> Lookup,
) -> Result<Option<Ancestor>, PlanError> {
    let is_guarded = config.integrations.owner_reference_writers.is_some();
    let mut kind = (kind.0.to_owned(), kind.1.to_owned());
    let mut top: Option<Ancestor> = None;
    let mut seen = vec![metadata.uid.clone().unwrap_or_default()];
    let mut current = metadata.clone();
    for _ in 0..DEPTH_MAX {
        let Some(reference) = controller_of(&current).cloned() else { return Ok(top) };
        if seen.contains(&reference.uid) {
            return Err(PlanError::CyclicOwnership);
        }
        seen.push(reference.uid.clone());
        let group = group_of(&reference.api_version);
        if is_guarded && !makes((group, &reference.kind), (&kind.0, &kind.1)) {
            return Ok(top);
        }
        let parent = match lookup(&reference) {
            Lookup::Found(parent) => *parent,
            Lookup::Missing => return Err(PlanError::OwnerNotFound),
            Lookup::Forged | Lookup::Unwatched => return Ok(top),
        };
        if !is_managed_kind(config, &reference) {
            return Ok(top);
        }
        let queue = parent.labels.as_ref().is_some_and(|labels| labels.contains_key(labels::QUEUE_NAME));
        let between = BETWEEN == (group, reference.kind.as_str());
        if !between && (queue || config.manage_jobs_without_queue_name) {
            top = Some(Ancestor { reference: reference.clone(), metadata: parent.clone() });
        }
        kind = (group.to_owned(), reference.kind.clone());
        current = parent;
    }
    // The remaining owners are unknown. Guessing could queue a part of a job in addition to the job
    // itself.
    if controller_of(&current).is_some() { Err(PlanError::NestingTooDeep) } else { Ok(top) }
}

/// True if an owner is of a kind that some integration manages, Berth's or one that the
/// configuration names.
pub fn is_managed_kind(config: &Config, reference: &OwnerReference) -> bool {
    KNOWN.contains(&(group_of(&reference.api_version), reference.kind.as_str())) || is_external(config, reference)
}

/// True if the configuration names this kind as `Kind.version.group`.
fn is_external(config: &Config, reference: &OwnerReference) -> bool {
    let (group, version) = reference.api_version.split_once('/').unwrap_or(("", &reference.api_version));
    let name = format!("{}.{version}.{group}", reference.kind);
    config.integrations.external_frameworks.contains(&name)
}
