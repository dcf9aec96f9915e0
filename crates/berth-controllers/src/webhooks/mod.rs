//! The rules of Kueue's admission webhooks as functions on JSON: default an object before it is
//! stored, and reject an invalid one. The caller (the embedded API server's admission, or a webhook
//! server) passes the request and a function that looks up other objects.
//!
//! Objects of `kueue.x-k8s.io/v1beta1` are converted first, so there is one set of rules.

pub mod held;
mod jobs;
pub(crate) mod labels;
mod owners;
mod pod_owners;
mod pod_spec;
mod pods;
mod queues;
pub mod review;
pub mod submitter;
mod topology;
mod workload;

use berth_api::json::Json;
use pod_owners::PodOwner;

pub use jobs::{
    default_job, should_be_suspended, validate_batch_job, validate_batch_job_update, validate_described,
    validate_described_update, validate_job_on_create, validate_job_on_update, validate_job_set,
    validate_job_set_update, validate_train_job,
};
pub use owners::Account;
pub use pod_spec::validate_immutable_pod_spec;
pub use pods::set_of_new_pod;
pub use queues::{validate_cluster_queue, validate_cluster_queue_update, validate_cohort, validate_resource_flavor};
pub use topology::{annotations as validate_topology_annotations, slice_size as validate_slice_size};
pub use workload::{validate_workload, validate_workload_update};

use std::sync::Arc;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::constants;
use berth_api::kueue::conversion;
use berth_api::kueue::v1beta2::{ClusterQueue, ResourceFlavor, Workload};
use berth_apimachinery::field::{Error, Path};
use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use serde_json::{Value, json};

use crate::configuration::Config;
use crate::gates::Gates;
use crate::jobs::Job as _;
use crate::jobs::described::{for_each_described, for_each_foreign};
use crate::jobs::train_job::{self, TrainJob};
use crate::rights;

/// A create or update request in admission; [`is_validated`] lists the subresources that matter.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: &'a str,
    /// The stored object, for updates.
    pub old_object: Option<&'a Value>,
}

/// Looks up a stored object by group, resource, namespace and name. Kueue's kinds may come in
/// either version.
pub type Lookup<'a> = &'a dyn Fn(&str, &str, &str, &str) -> Option<Arc<Value>>;

/// The webhooks under one configuration.
#[derive(Clone, Debug)]
pub struct Webhooks {
    config: Config,
    gates: Gates,
}

impl Webhooks {
    /// Webhooks for this configuration.
    pub fn new(config: Config) -> Self {
        let gates = config.gates();
        Webhooks { config, gates }
    }

    /// True if any rule applies to this resource.
    pub fn concerns(&self, group: &str, resource: &str) -> bool {
        match (group, resource) {
            ("kueue.x-k8s.io", "clusterqueues" | "cohorts" | "resourceflavors" | "workloads") => true,
            ("batch", "jobs") => self.config.integrations.enabled("batch/job"),
            ("jobset.x-k8s.io", "jobsets") => self.config.integrations.enabled("jobset.x-k8s.io/jobset"),
            ("", "pods") => self.config.integrations.enabled("pod"),
            _ => match PodOwner::of(group, resource) {
                Some(owner) => self.config.integrations.enabled(owner.framework()),
                None => described(group, resource).is_some_and(|name| self.config.integrations.enabled(name)),
            },
        }
    }

    /// Defaults an object in place. An error rejects the request.
    pub fn mutate(&self, request: Request<'_>, object: &mut Value, lookup: Lookup<'_>) -> Result<(), Vec<Error>> {
        if !self.concerns(request.group, request.resource) {
            return Ok(());
        }
        if let Some(owner) = PodOwner::of(request.group, request.resource) {
            let namespace = request.namespace;
            let is_new = request.old_object.is_none();
            pod_owners::default_pod_owner(owner, object, is_new, namespace, &self.config, &self.gates, lookup);
            return Ok(());
        }
        // Other kinds get defaults at creation only; afterwards the controllers suspend jobs and
        // place them.
        if request.old_object.is_some() {
            return Ok(());
        }
        match request.resource {
            // An object in use must not be deleted; the controllers would add the finalizer only
            // later.
            "clusterqueues" | "resourceflavors" => add_finalizer(object),
            "pods" => pods::default_new_pod(object, request.namespace, &self.config, &self.gates, lookup),
            "jobs" => default_job::<Job>(object, request.namespace, &self.config, &self.gates, lookup)?,
            "jobsets" => default_job::<JobSet>(object, request.namespace, &self.config, &self.gates, lookup)?,
            _ => {
                for_each_foreign!(Kind => {
                    if is::<Kind>(&request) {
                        default_job::<Kind>(object, request.namespace, &self.config, &self.gates, lookup)?;
                    }
                });
                if is::<TrainJob>(&request) && object["spec"]["suspend"] == true {
                    train_job::reserve_patch(object);
                }
            }
        }
        Ok(())
    }

    /// Validates fields that only some accounts may set; `account` writes the object.
    pub fn validate_account(&self, request: Request<'_>, account: Account<'_>, object: &Value) -> Vec<Error> {
        if request.group == "kueue.x-k8s.io" || !self.concerns(request.group, request.resource) {
            return Vec::new();
        }
        owners::validate(account, object, request.old_object, &self.config).into_iter().collect()
    }

    /// Validates an object; empty if it is valid.
    pub fn validate(&self, request: Request<'_>, object: &Value, lookup: Lookup<'_>) -> Vec<Error> {
        if !self.concerns(request.group, request.resource) {
            return Vec::new();
        }
        if request.resource == "pods" {
            return pods::validate_pod(object, request.old_object, &self.gates);
        }
        if let Some(owner) = PodOwner::of(request.group, request.resource) {
            let validate = |old| pod_owners::validate_pod_owner_update(owner, object, old, &self.gates);
            let changed = request.old_object.map(validate);
            return changed.unwrap_or_default();
        }
        let gates = &self.gates;
        let default_queue = request.old_object.is_some()
            && lookup("kueue.x-k8s.io", "localqueues", request.namespace, jobs::DEFAULT_QUEUE).is_some();
        let result = match request.resource {
            "clusterqueues" => check(request, object, |new: &ClusterQueue, old: Option<&ClusterQueue>| match old {
                Some(old) => validate_cluster_queue_update(new, old, gates),
                None => validate_cluster_queue(new, gates),
            }),
            "cohorts" => check(request, object, validate_cohort),
            "resourceflavors" => {
                check(request, object, |new: &ResourceFlavor, _: Option<&ResourceFlavor>| validate_resource_flavor(new))
            }
            "workloads" => check(request, object, |new: &Workload, old: Option<&Workload>| match old {
                Some(old) => validate_workload_update(new, old, gates),
                None => validate_workload(new, gates),
            }),
            "jobs" => check(request, object, |new: &Job, old: Option<&Job>| match old {
                Some(old) => validate_batch_job_update(new, old, default_queue, gates),
                None => validate_batch_job(new, gates),
            }),
            "jobsets" => check(request, object, |new: &JobSet, old: Option<&JobSet>| match old {
                Some(old) => validate_job_set_update(new, old, default_queue, gates),
                None => validate_job_set(new, gates),
            }),
            _ => {
                let mut found = Ok(Vec::new());
                for_each_described!(Kind => {
                    if is::<Kind>(&request) {
                        found = check(request, object, |new: &Kind, old: Option<&Kind>| match old {
                            Some(old) => validate_described_update(new, old, default_queue, &self.config, gates),
                            None => validate_described(new, &self.config, gates),
                        });
                    }
                });
                if is::<TrainJob>(&request) {
                    found = check(request, object, |new: &TrainJob, old: Option<&TrainJob>| {
                        let mut errors = validate_train_job(new, &self.config, gates, lookup);
                        if let Some(old) = old {
                            errors.extend(validate_job_on_update(new, old, default_queue, gates));
                        }
                        errors
                    });
                }
                found
            }
        };
        result.unwrap_or_else(|message| vec![Error::invalid(&Path::root(), Value::Null, message)])
    }
}

/// True if a write of this subresource is validated. Only the status of Workloads is, because other
/// controllers report admission checks there. The controllers' own writes are valid by
/// construction.
pub fn is_validated(request: Request<'_>, subresource: &str, user: &str) -> bool {
    (request.group, request.resource, subresource) == ("kueue.x-k8s.io", "workloads", "status")
        && request.old_object.is_some()
        && user != rights::USER
}

/// True if the request is about objects of this kind.
fn is<K: Resource<DynamicType = ()>>(request: &Request<'_>) -> bool {
    request.group == K::group(&()) && request.resource == K::plural(&())
}

/// Name of the integration for a resource of another project.
fn described(group: &str, resource: &str) -> Option<&'static str> {
    let mut found = None;
    for_each_foreign!(Kind => {
        if Kind::group(&()) == group && Kind::plural(&()) == resource {
            found = Some(Kind::FRAMEWORK);
        }
    });
    found
}

fn check<K: Json>(
    request: Request<'_>,
    object: &Value,
    rules: impl Fn(&K, Option<&K>) -> Vec<Error>,
) -> Result<Vec<Error>, String> {
    let new = typed(object)?;
    let old = request.old_object.map(typed).transpose()?;
    Ok(rules(&new, old.as_ref()))
}

/// The object as its type; Kueue's kinds are converted to v1beta2 first.
pub fn typed<K: Json>(object: &Value) -> Result<K, String> {
    const NEWEST: &str = "kueue.x-k8s.io/v1beta2";
    let version = object["apiVersion"].as_str().unwrap_or_default();
    if version.starts_with("kueue.x-k8s.io/") && version != NEWEST {
        let converted = conversion::convert(object.clone(), NEWEST).map_err(|error| error.to_string())?;
        return K::from_json_value(&converted).map_err(|error| error.to_string());
    }
    K::from_json_value(object).map_err(|error| error.to_string())
}

fn add_finalizer(object: &mut Value) {
    let metadata = &mut object["metadata"];
    let finalizers = match metadata["finalizers"].as_array_mut() {
        Some(finalizers) => finalizers,
        None => {
            metadata["finalizers"] = json!([]);
            metadata["finalizers"].as_array_mut().expect("just set to a list")
        }
    };
    if !finalizers.iter().any(|finalizer| finalizer == constants::RESOURCE_IN_USE_FINALIZER) {
        finalizers.push(json!(constants::RESOURCE_IN_USE_FINALIZER));
    }
}
