//! Defaulting and validation of jobs: the rules of all kinds, and those of batch Jobs and JobSets.

use std::collections::BTreeMap;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::constants::MULTIKUEUE_CONTROLLER;
use berth_api::kueue::v1beta2::{AdmissionCheck, ClusterQueue, LocalQueue};
use berth_api::kueue::{self, annotations};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Lookup, held, labels, topology, typed};
use crate::configuration::Config;
use crate::configuration::frameworks;
use crate::gates::{Gate, Gates};
use crate::jobs::ancestors::{self, managed_ancestor};
use crate::jobs::described::{Described, Injection, set_at, validate_pod_sets};
use crate::jobs::elastic;
use crate::jobs::train_job::TrainJob;
use crate::jobs::{Job, batch_job, is_elastic, queue_name};
use crate::plan::PlanError;
use crate::selector;
use crate::stores::group_of;

/// Local queue of jobs without a queue name, if it exists in their namespace.
pub(super) const DEFAULT_QUEUE: &str = "default";
/// Priority class of jobs that do not name one, if it exists.
const DEFAULT_PRIORITY_CLASS: &str = "default";

// -- defaults -------------------------------------------------------------------------------------

/// Defaults a new job in place: the default queue and priority class if the cluster has them,
/// `managedBy` if its queue sends jobs to other clusters, and suspension.
pub fn default_job<J: Job>(
    object: &mut Value,
    namespace: &str,
    config: &Config,
    gates: &Gates,
    lookup: Lookup<'_>,
) -> Result<(), Vec<Error>> {
    held::undo_job(object, J::SUSPEND);
    J::set_defaults(object, gates);
    let job: J = typed(object).map_err(|message| vec![Error::invalid(&Path::root(), Value::Null, message)])?;
    let selected = selector::matches(&config.managed_jobs_namespace_selector, &labels_of(namespace, lookup));
    let ancestor = ancestor_of(&job, config, namespace, lookup);
    let mut queue = queue_name(&job).to_owned();
    // A part of a managed job gets neither a queue nor a priority class.
    let part = matches!(ancestor, Ok(Some(_)));
    if queue.is_empty()
        && selected
        && !part
        && lookup("kueue.x-k8s.io", "localqueues", namespace, DEFAULT_QUEUE).is_some()
    {
        object["metadata"]["labels"][kueue::labels::QUEUE_NAME] = json!(DEFAULT_QUEUE);
        queue = DEFAULT_QUEUE.to_owned();
    }
    let managed = !queue.is_empty() || config.manage_jobs_without_queue_name;
    let always = gates.on(Gate::ManagedJobsNamespaceSelectorAlwaysRespected);
    if !managed || ((always || queue.is_empty()) && !selected) {
        return Ok(());
    }
    if gates.on(Gate::WorkloadPriorityClassDefaulting)
        && !part
        && !job.labels().contains_key(kueue::labels::PRIORITY_CLASS)
        && lookup("kueue.x-k8s.io", "workloadpriorityclasses", "", DEFAULT_PRIORITY_CLASS).is_some()
    {
        object["metadata"]["labels"][kueue::labels::PRIORITY_CLASS] = json!(DEFAULT_PRIORITY_CLASS);
    }
    if let Some(steps) = J::MANAGED_BY
        && gates.on(Gate::MultiKueue)
        && job.managed_by().is_none()
        && dispatches_to_other_clusters(namespace, &queue, lookup)
    {
        set_at(object, steps, json!(MULTIKUEUE_CONTROLLER));
    }
    if !part && job.is_queued() {
        set_at(object, J::SUSPEND, json!(true));
        elastic::add_gates(object, &job, gates);
    }
    Ok(())
}

/// True if the job itself is queued, and so stays suspended until it is admitted. False for parts
/// of managed jobs and, unless all jobs are managed, for jobs without a queue name.
/// `tolerate_deleting`: do not look up owners of a job that is being deleted, because they may
/// already be deleted.
pub fn should_be_suspended<J: Job>(
    job: &J,
    tolerate_deleting: bool,
    config: &Config,
    gates: &Gates,
    lookup: Lookup<'_>,
) -> Result<bool, PlanError> {
    let deleting = job.meta().deletion_timestamp.is_some();
    if deleting && tolerate_deleting && gates.on(Gate::SkipAncestorCheckForDeletedWorkloads) {
        return Ok(false);
    }
    let namespace = job.namespace().unwrap_or_default();
    if ancestor_of(job, config, &namespace, lookup)?.is_some() {
        return Ok(false);
    }
    let named = !queue_name(job).is_empty();
    Ok((named || config.manage_jobs_without_queue_name) && is_selected(named, &namespace, config, gates, lookup))
}

fn labels_of(namespace: &str, lookup: Lookup<'_>) -> BTreeMap<String, String> {
    match lookup("", "namespaces", "", namespace) {
        Some(namespace) => read_map(&namespace["metadata"]["labels"]),
        // The API server rejects objects in missing namespaces, so the namespace is only missing in
        // the cache.
        None => BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())]),
    }
}

pub(super) fn ancestor_of<J: Job>(
    job: &J,
    config: &Config,
    namespace: &str,
    lookup: Lookup<'_>,
) -> Result<Option<ancestors::Ancestor>, PlanError> {
    ancestor_of_metadata((&J::group(&()), &J::kind(&())), job.meta(), config, namespace, lookup)
}

/// The topmost managed owner of the object with this group, kind and metadata, if any.
pub(super) fn ancestor_of_metadata(
    kind: (&str, &str),
    metadata: &kube::core::ObjectMeta,
    config: &Config,
    namespace: &str,
    lookup: Lookup<'_>,
) -> Result<Option<ancestors::Ancestor>, PlanError> {
    managed_ancestor(kind, metadata, config, |reference| {
        let group = group_of(&reference.api_version);
        // Owners of other kinds (pods, or kinds whose integration is off) manage nothing and end
        // the search.
        let known = frameworks::find_kind(group, &reference.kind).filter(|known| {
            let kind = (known.group, known.kind);
            config.integrations.enabled(known.name) && ancestors::managing_kinds().contains(&kind)
        });
        let resource = match known {
            Some(framework) => framework.resource(),
            // A ReplicaSet is the level between a Deployment and its pods.
            None if group == "apps" && reference.kind == "ReplicaSet" => "replicasets".to_owned(),
            None => return ancestors::Lookup::Unwatched,
        };
        let Some(owner) = lookup(group, &resource, namespace, &reference.name) else {
            // Not every caller caches ReplicaSets, so a missing one may still exist.
            let between = known.is_none();
            return if between { ancestors::Lookup::Unwatched } else { ancestors::Lookup::Missing };
        };
        match serde_json::from_value::<kube::core::ObjectMeta>(owner["metadata"].clone()) {
            Ok(metadata) if metadata.uid.as_deref().unwrap_or_default() == reference.uid => {
                ancestors::Lookup::Found(Box::new(metadata))
            }
            _ => ancestors::Lookup::Forged,
        }
    })
}

/// True if jobs of the namespace are queued. `named`: the job names a queue.
pub(super) fn is_selected(named: bool, namespace: &str, config: &Config, gates: &Gates, lookup: Lookup<'_>) -> bool {
    let always = gates.on(Gate::ManagedJobsNamespaceSelectorAlwaysRespected);
    let selected = || selector::matches(&config.managed_jobs_namespace_selector, &labels_of(namespace, lookup));
    (named && !always) || selected()
}

/// The default queue of an object without a queue name. `None` if the namespace has no such queue
/// or is not selected.
pub(super) fn default_queue(
    namespace: &str,
    config: &Config,
    gates: &Gates,
    lookup: Lookup<'_>,
) -> Option<&'static str> {
    let there = lookup("kueue.x-k8s.io", "localqueues", namespace, DEFAULT_QUEUE).is_some();
    (there && is_selected(false, namespace, config, gates, lookup)).then_some(DEFAULT_QUEUE)
}

/// True if the queue sends its workloads to other clusters (an admission check of MultiKueue).
fn dispatches_to_other_clusters(namespace: &str, queue: &str, lookup: Lookup<'_>) -> bool {
    const GROUP: &str = "kueue.x-k8s.io";
    let checks = || -> Option<Vec<String>> {
        let local: LocalQueue = typed(&*lookup(GROUP, "localqueues", namespace, queue)?).ok()?;
        let cluster: ClusterQueue = typed(&*lookup(GROUP, "clusterqueues", "", &local.spec.cluster_queue)?).ok()?;
        let strategy = cluster.spec.admission_checks_strategy?;
        Some(strategy.admission_checks.into_iter().map(|rule| rule.name).collect())
    };
    checks().unwrap_or_default().iter().any(|name| {
        lookup(GROUP, "admissionchecks", "", name)
            .and_then(|check| typed::<AdmissionCheck>(&check).ok())
            .is_some_and(|check| check.spec.controller_name == MULTIKUEUE_CONTROLLER)
    })
}

fn read_map(value: &Value) -> BTreeMap<String, String> {
    let map = value.as_object().into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

// -- validation of all kinds ----------------------------------------------------------------------

/// Validates a new job of any kind.
pub fn validate_job_on_create<J: Job>(job: &J, gates: &Gates) -> Vec<Error> {
    let metadata = Path::new("metadata");
    let (at_labels, at_annotations) = (metadata.child("labels"), metadata.child("annotations"));
    let mut errors = Vec::new();
    for key in [kueue::labels::QUEUE_NAME, kueue::labels::PREBUILT_WORKLOAD] {
        if let Some(value) = job.labels().get(key) {
            let wrong = names::is_dns1123_subdomain(value).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&at_labels.key(key), value.as_str(), m)));
        }
    }
    if gates.on(Gate::WorkloadIdentifierAnnotations)
        && let Some(value) = job.annotations().get(annotations::PREBUILT_WORKLOAD)
    {
        let at = at_annotations.key(annotations::PREBUILT_WORKLOAD);
        let wrong = names::is_dns1123_subdomain(value).into_iter();
        errors.extend(wrong.map(|m| Error::invalid(&at, value.as_str(), m)));
    }
    if let Some(text) = job.labels().get(kueue::labels::MAX_EXEC_TIME_SECONDS) {
        let at = at_labels.key(kueue::labels::MAX_EXEC_TIME_SECONDS);
        match text.parse::<i32>() {
            Ok(seconds) if seconds > 0 => {}
            Ok(seconds) => errors.push(Error::invalid(&at, seconds, "should be greater than 0")),
            Err(error) => errors.push(Error::invalid(&at, text.as_str(), error.to_string())),
        }
    }
    if is_elastic(job, gates) && !J::CAN_BE_ELASTIC {
        let detail = format!("elastic jobs are not supported for {}", J::FRAMEWORK);
        errors.push(Error::forbidden(&at_annotations.key(annotations::ELASTIC_JOB), detail));
    }
    if gates.on(Gate::AdmissionGatedBy) {
        errors.extend(labels::gated_by(job.meta().annotations.as_ref(), &at_annotations));
    }
    errors
}

/// Validates a change to a job of any kind. The caller also applies [`validate_job_on_create`] to
/// the new object. `default_queue`: the namespace has a default local queue.
pub fn validate_job_on_update<J: Job>(new: &J, old: &J, default_queue: bool, gates: &Gates) -> Vec<Error> {
    const IMMUTABLE: &str = "field is immutable";
    let metadata = Path::new("metadata");
    let (at_labels, at_annotations) = (metadata.child("labels"), metadata.child("annotations"));
    let label = |job: &J, key: &str| job.labels().get(key).cloned().unwrap_or_default();
    let mut errors = Vec::new();
    let both_suspended = old.is_suspended() && new.is_suspended();
    let (new_queue, old_queue) = (queue_name(new), queue_name(old));
    if !new.is_suspended() && new_queue != old_queue {
        errors.push(Error::invalid(&at_labels.key(kueue::labels::QUEUE_NAME), new_queue, IMMUTABLE));
    } else if default_queue && !old_queue.is_empty() && !new.labels().contains_key(kueue::labels::QUEUE_NAME) {
        let detail = "the queue name cannot be removed from a job in a namespace that has a default queue";
        errors.push(Error::invalid(&at_labels.key(kueue::labels::QUEUE_NAME), new_queue, detail));
    }
    let prebuilt = |job: &J| {
        let of_annotations = job.annotations().get(annotations::PREBUILT_WORKLOAD);
        let named = of_annotations.filter(|_| gates.on(Gate::WorkloadIdentifierAnnotations));
        named.cloned().unwrap_or_else(|| label(job, kueue::labels::PREBUILT_WORKLOAD))
    };
    let (after, before) = (prebuilt(new), prebuilt(old));
    if after != before && !new.is_suspended() && !is_elastic(old, gates) {
        let annotated = new.annotations().contains_key(annotations::PREBUILT_WORKLOAD);
        let at = if annotated { &at_annotations } else { &at_labels };
        errors.push(Error::invalid(&at.key(kueue::labels::PREBUILT_WORKLOAD), after, IMMUTABLE));
    }
    if !both_suspended {
        let (after, before) =
            (label(new, kueue::labels::MAX_EXEC_TIME_SECONDS), label(old, kueue::labels::MAX_EXEC_TIME_SECONDS));
        if after != before {
            errors.push(Error::invalid(&at_labels.key(kueue::labels::MAX_EXEC_TIME_SECONDS), after, IMMUTABLE));
        }
    }
    let at = at_labels.key(kueue::labels::PRIORITY_CLASS);
    let (after, before) = (label(new, kueue::labels::PRIORITY_CLASS), label(old, kueue::labels::PRIORITY_CLASS));
    if before.is_empty() && !after.is_empty() && !new.is_suspended() {
        let detail = "WorkloadPriorityClass cannot be added to a non-suspended workload";
        errors.push(Error::invalid(&at, after, detail));
    } else if !before.is_empty() && after.is_empty() {
        errors.push(Error::invalid(&at, "", "WorkloadPriorityClass cannot be removed from a workload"));
    }
    if gates.on(Gate::ElasticJobsViaWorkloadSlices) {
        let elastic = |job: &J| job.annotations().get(annotations::ELASTIC_JOB).cloned().unwrap_or_default();
        if elastic(new) != elastic(old) {
            errors.push(Error::invalid(&at_annotations.key(annotations::ELASTIC_JOB), elastic(new), IMMUTABLE));
        }
    }
    if gates.on(Gate::AdmissionGatedBy) {
        let (after, before) = (new.meta().annotations.as_ref(), old.meta().annotations.as_ref());
        errors.extend(labels::gated_by_update(after, before, &at_annotations));
    }
    errors
}

// -- batch Jobs -----------------------------------------------------------------------------------

/// Validates a new batch Job.
pub fn validate_batch_job(job: &BatchJob, gates: &Gates) -> Vec<Error> {
    let mut errors = validate_job_on_create(job, gates);
    errors.extend(partial_admission(job, gates));
    errors.extend(synced_completions(job));
    errors.extend(batch_topology(job, gates));
    errors
}

/// Validates a change to a batch Job.
pub fn validate_batch_job_update(new: &BatchJob, old: &BatchJob, default_queue: bool, gates: &Gates) -> Vec<Error> {
    let mut errors = validate_job_on_create(new, gates);
    // A partially admitted job may run at its minimum.
    let minimum = |job: &BatchJob| job.annotations().get(annotations::JOB_MIN_PARALLELISM).cloned();
    if minimum(new) != minimum(old) {
        errors.extend(partial_admission(new, gates));
    }
    errors.extend(synced_completions(new));
    errors.extend(batch_topology(new, gates));
    errors.extend(validate_job_on_update(new, old, default_queue, gates));
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let (new_spec, old_spec) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
    if !new.is_suspended() && !old.is_suspended() {
        if batch_job::min_parallelism(new).is_some() && new_spec.parallelism != old_spec.parallelism {
            let spec = Path::new("spec");
            let detail = "cannot change when partial admission is enabled and the job is not suspended";
            errors.push(Error::forbidden(&spec.child("parallelism"), detail));
        }
        if batch_job::completions_follow(new) != batch_job::completions_follow(old) {
            let detail = "field is immutable while the job is not suspended";
            let at = annotations.key(annotations::JOB_COMPLETIONS_EQUAL_PARALLELISM);
            errors.push(Error::forbidden(&at, detail));
        }
    }
    errors
}

fn partial_admission(job: &BatchJob, gates: &Gates) -> Vec<Error> {
    let Some(text) = job.annotations().get(annotations::JOB_MIN_PARALLELISM) else { return Vec::new() };
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let at = annotations.key(annotations::JOB_MIN_PARALLELISM);
    if is_elastic(job, gates) {
        let detail = "partial admission and elastic job cannot be used together";
        return vec![Error::invalid(&at, text.as_str(), detail)];
    }
    let parallelism = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
    match text.parse::<i32>() {
        Ok(min) if min <= 0 || min >= parallelism => {
            vec![Error::invalid(&at, min, format!("should be between 0 and {}", parallelism - 1))]
        }
        Ok(_) => Vec::new(),
        Err(_) => vec![Error::invalid(&at, text.as_str(), format!("strconv.Atoi: parsing {text:?}: invalid syntax"))],
    }
}

fn synced_completions(job: &BatchJob) -> Vec<Error> {
    let Some(text) = job.annotations().get(annotations::JOB_COMPLETIONS_EQUAL_PARALLELISM) else { return Vec::new() };
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let at = annotations.key(annotations::JOB_COMPLETIONS_EQUAL_PARALLELISM);
    let mut errors = Vec::new();
    match text.parse::<bool>() {
        Err(_) => {
            errors.push(Error::invalid(
                &at,
                text.as_str(),
                format!("strconv.ParseBool: parsing {text:?}: invalid syntax"),
            ));
        }
        Ok(false) => {}
        Ok(true) => {
            let spec = job.spec.clone().unwrap_or_default();
            if spec.completion_mode.as_deref() != Some("Indexed") {
                errors.push(Error::invalid(&at, text.as_str(), "should not be enabled for NonIndexed jobs"));
            }
            if spec.completions.unwrap_or(1) != spec.parallelism.unwrap_or(1) {
                let path = Path::new("spec");
                let detail = format!(
                    "should be equal to parallelism when {} annotation is true",
                    annotations::JOB_COMPLETIONS_EQUAL_PARALLELISM
                );
                let value = spec.completions.map_or(Value::Null, Value::from);
                errors.push(Error::invalid(&path.child("completions"), value, detail));
            }
        }
    }
    errors
}

fn batch_topology(job: &BatchJob, gates: &Gates) -> Vec<Error> {
    if !gates.on(Gate::TopologyAwareScheduling) {
        return Vec::new();
    }
    let spec = Path::new("spec");
    let template = spec.child("template");
    let metadata = template.child("metadata");
    let path = metadata.child("annotations");
    let annotations = job.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref());
    let mut errors = topology::annotations(annotations, &path, gates);
    if errors.is_empty()
        && let Ok(pod_sets) = job.pod_sets(gates)
    {
        errors.extend(pod_sets.iter().filter_map(|set| topology::slice_size(set, &path)));
    }
    if is_elastic(job, gates) {
        for (key, word) in
            [(annotations::PODSET_REQUIRED_TOPOLOGY, "required"), (annotations::PODSET_PREFERRED_TOPOLOGY, "preferred")]
        {
            if annotations.is_some_and(|map| map.contains_key(key)) {
                let detail = format!("{word} topology is not supported with elastic jobs");
                errors.push(Error::forbidden(&path.child(key), detail));
            }
        }
    }
    errors
}

// -- kinds of other projects ----------------------------------------------------------------------

/// Validates a new job of another project's kind.
pub fn validate_described<K: Described>(job: &K, config: &Config, gates: &Gates) -> Vec<Error> {
    let mut errors = validate_job_on_create(job, gates);
    // A job that is not queued need not satisfy the rules of queueing.
    if queue_name(job).is_empty() && !config.manage_jobs_without_queue_name {
        return errors;
    }
    let own = (K::DESCRIPTION.validate)(job.spec(), is_elastic(job, gates), &Path::new("spec"));
    if own.is_empty() && job.is_queued() {
        errors.extend(validate_pod_sets(job, gates));
        errors.extend(described_topology(job, gates));
    }
    errors.extend(own);
    errors
}

/// Validates the topology requests of the kind's pod templates.
fn described_topology<K: Described>(job: &K, gates: &Gates) -> Vec<Error> {
    if !gates.on(Gate::TopologyAwareScheduling) || K::FRAMEWORK == "workload.codeflare.dev/appwrapper" {
        return Vec::new();
    }
    let Ok(groups) = (K::DESCRIPTION.groups)(job.spec()) else { return Vec::new() };
    let annotated: Vec<(String, Option<BTreeMap<String, String>>)> = groups
        .iter()
        .map(|group| {
            if K::DESCRIPTION.injection == Injection::Roles {
                let metadata = group.default.as_ref().and_then(|template| template.metadata.as_ref());
                let path = format!("spec{}.annotations", group.template.replace('/', "."));
                return (path, metadata.and_then(|metadata| metadata.annotations.clone()));
            }
            let pointer = format!("{}/metadata/annotations", group.template);
            let map = job.spec().pointer(&pointer).filter(|value| value.is_object()).map(read_map);
            (format!("spec{}", pointer.replace('/', ".")), map)
        })
        .collect();
    let pod_sets = job.pod_sets(gates).unwrap_or_default();
    let placed = annotated.iter().map(|(path, map)| (path.as_str(), map.as_ref())).collect::<Vec<_>>();
    let groups_pods = K::FRAMEWORK == "kubeflow.org/mpijob" || K::FRAMEWORK.starts_with("ray.io/");
    topology::templates(&placed, &pod_sets, groups_pods, gates)
}

/// Validates a change to a job of another project's kind.
pub fn validate_described_update<K: Described>(
    new: &K,
    old: &K,
    default_queue: bool,
    config: &Config,
    gates: &Gates,
) -> Vec<Error> {
    let leaves = queue_name(new).is_empty() && !config.manage_jobs_without_queue_name;
    let optional = K::FRAMEWORK.starts_with("ray.io/") || K::FRAMEWORK == frameworks::SPARK;
    if leaves && optional && !gates.on(Gate::ValidateRayAndSparkJobUpdates) {
        return Vec::new();
    }
    let mut errors = validate_described(new, config, gates);
    errors.extend(validate_job_on_update(new, old, default_queue, gates));
    errors
}

/// Validates a TrainJob. Pod sets are validated only if the runtime is known.
pub fn validate_train_job(job: &TrainJob, config: &Config, gates: &Gates, lookup: Lookup<'_>) -> Vec<Error> {
    let mut errors = validate_job_on_create(job, gates);
    if queue_name(job).is_empty() && !config.manage_jobs_without_queue_name {
        return errors;
    }
    let (kind, name) = job.runtime();
    let namespace = job.namespace().unwrap_or_default();
    let runtime = match kind {
        "TrainingRuntime" => lookup("trainer.kubeflow.org", "trainingruntimes", &namespace, name),
        _ => lookup("trainer.kubeflow.org", "clustertrainingruntimes", "", name),
    };
    if let Some(runtime) = runtime {
        let job = job.clone().with_runtime(Some(runtime["spec"].clone()));
        errors.extend(validate_pod_sets(&job, gates));
    }
    errors
}

// -- JobSets --------------------------------------------------------------------------------------

/// Validates a new JobSet.
pub fn validate_job_set(set: &JobSet, gates: &Gates) -> Vec<Error> {
    let mut errors = validate_job_on_create(set, gates);
    errors.extend(set_topology(set, gates));
    errors
}

/// Validates a change to a JobSet.
pub fn validate_job_set_update(new: &JobSet, old: &JobSet, default_queue: bool, gates: &Gates) -> Vec<Error> {
    let mut errors = validate_job_on_create(new, gates);
    errors.extend(validate_job_on_update(new, old, default_queue, gates));
    errors.extend(set_topology(new, gates));
    errors
}

fn set_topology(set: &JobSet, gates: &Gates) -> Vec<Error> {
    if !gates.on(Gate::TopologyAwareScheduling) {
        return Vec::new();
    }
    let annotations = set.spec.replicated_jobs.iter().enumerate().map(|(index, job)| {
        let path = format!("spec.replicatedJobs[{index}].template.spec.template.metadata.annotations");
        let spec = job.template.spec.as_ref();
        (path, spec.and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref()))
    });
    let annotations: Vec<_> = annotations.collect();
    let placed: Vec<_> = annotations.iter().map(|(path, map)| (path.as_str(), *map)).collect();
    topology::templates(&placed, &set.pod_sets(gates).unwrap_or_default(), true, gates)
}
