//! Validation of a new set beyond its CRD's schema: names that would be too long, invalid
//! references, features that are off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use berth_api::jobset::v1alpha2::{
    FailurePolicyAction, JobSet, ReplicatedJob, RestartStrategy, RetentionPolicyType, VolumeClaimTemplate,
};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names::{is_dns1035_label, is_dns1123_subdomain, is_domain_prefixed_path, is_label_value};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSpec};
use regex::Regex;
use serde_json::Value;

use crate::jobset::gates::Gates;
use crate::jobset::in_place::is_in_place;
use crate::jobset::names::{claim_name, coordinator_address, job_name, namespace, replicas};

/// Finds an existing claim by namespace and name.
pub type ClaimLookup<'a> = &'a dyn Fn(&str, &str) -> Option<PersistentVolumeClaim>;

/// Maximum length of names of jobs, pods and claims, and of label values, in bytes.
const NAME_MAX: usize = 63;
/// Maximum length of the name of a failure policy rule.
const RULE_NAME_MAX: usize = 128;
/// Maximum number of jobs of a replicated job whose jobs can be restarted one by one: the status
/// has a counter for each.
const RESTARTABLE_JOBS_MAX: i32 = 1024;
/// Reasons of failed jobs that rules can name.
const JOB_FAILURE_REASONS: [&str; 5] =
    ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"];
/// Random characters that the API server appends to `generateName`, and the longest prefix that it
/// keeps.
const GENERATED_SUFFIX: &str = "xxxxx";
const GENERATE_NAME_MAX: usize = 58;

static RULE_NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$").expect("a constant pattern"));

/// All errors of a new set.
pub fn validate_create(set: &JobSet, gates: Gates, claims: ClaimLookup<'_>) -> Vec<Error> {
    let mut set = set.clone();
    if set.metadata.name.as_deref().unwrap_or_default().is_empty() {
        set.metadata.name = Some(placeholder_name(set.metadata.generate_name.as_deref().unwrap_or_default()));
    }
    let set = &set;
    let spec = Path::new("spec");
    let mut errors = Vec::new();
    managed_by(set, &spec, &mut errors);
    network(set, &spec, &mut errors);
    for (position, entry) in set.spec.replicated_jobs.iter().enumerate() {
        entry_names(set, entry, &spec.child("replicatedJobs").index(position), &mut errors);
    }
    success_policy(set, &spec, &mut errors);
    failure_policy(set, &spec, gates, &mut errors);
    coordinator(set, &spec, &mut errors);
    depends_on(set, &spec, &mut errors);
    if is_in_place(set) {
        in_place_restart(set, &spec, gates, &mut errors);
    }
    volume_claims(set, &spec, claims, &mut errors);
    errors
}

/// A name as long as the name that the API server will generate.
fn placeholder_name(prefix: &str) -> String {
    let kept = prefix.get(..prefix.len().min(GENERATE_NAME_MAX)).unwrap_or(prefix);
    format!("{kept}{GENERATED_SUFFIX}")
}

fn managed_by(set: &JobSet, spec: &Path<'_>, errors: &mut Vec<Error>) {
    let Some(manager) = &set.spec.managed_by else { return };
    let path = spec.child("managedBy");
    errors.extend(is_domain_prefixed_path(manager).into_iter().map(|why| Error::invalid(&path, manager.as_str(), why)));
    if manager.len() > NAME_MAX {
        errors.push(Error::too_long(&path, NAME_MAX as i64));
    }
}

fn network(set: &JobSet, spec: &Path<'_>, errors: &mut Vec<Error>) {
    let Some(network) = set.spec.network.as_ref().filter(|network| !network.subdomain.is_empty()) else { return };
    let network_path = spec.child("network");
    let path = network_path.child("subdomain");
    // The service has this name too, so both rules apply.
    let problems = is_dns1123_subdomain(&network.subdomain).into_iter().chain(is_dns1035_label(&network.subdomain));
    for why in problems {
        let why = if is_about_length(&why) {
            ".spec.network.subdomain is too long, must be less than 63 characters".to_owned()
        } else {
            why
        };
        errors.push(Error::invalid(&path, network.subdomain.as_str(), why));
    }
}

fn is_about_length(why: &str) -> bool {
    why.starts_with("must be no more than")
}

fn entry_names(set: &JobSet, entry: &ReplicatedJob, path: &Path<'_>, errors: &mut Vec<Error>) {
    let job = entry.template.spec.clone().unwrap_or_default();
    let (replicas, parallelism) = (replicas(entry), job.parallelism.unwrap_or(1));
    if i64::from(replicas) * i64::from(parallelism) > i64::from(i32::MAX) {
        let why = format!(
            "the product of replicas and parallelism must not exceed {} for replicatedJob '{}'",
            i32::MAX,
            entry.name
        );
        errors.push(Error::invalid(path, entry.name.as_str(), why));
    }
    if !entry.group_name.is_empty() {
        let group_path = path.child("groupName");
        let group = entry.group_name.as_str();
        errors.extend(is_dns1035_label(group).into_iter().map(|why| Error::invalid(&group_path, group, why)));
    }
    let name_path = path.child("name");
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    let mut check = |name: String, what: &str| {
        for why in is_dns1035_label(&name) {
            let why = if is_about_length(&why) {
                format!("JobSet name is too long, {what} names generated for this JobSet will exceed 63 characters")
            } else {
                why
            };
            errors.push(Error::invalid(&name_path, entry.name.as_str(), why));
        }
    };
    // The highest index has the longest name.
    let job_index = replicas.saturating_sub(1);
    check(job_name(set_name, &entry.name, job_index), "job");
    let completions = job.completions.filter(|_| job.completion_mode.as_deref() == Some("Indexed"));
    if let Some(completions) = completions {
        let longest = job_name(set_name, &entry.name, job_index);
        check(format!("{longest}-{}-{GENERATED_SUFFIX}", completions.saturating_sub(1)), "pod");
    }
}

fn is_entry(set: &JobSet, name: &str) -> bool {
    set.spec.replicated_jobs.iter().any(|entry| entry.name == name)
}

fn unknown_entry(name: &str, place: &str) -> String {
    format!("invalid replicatedJob name '{name}'{place} does not appear in .spec.ReplicatedJobs")
}

fn success_policy(set: &JobSet, spec: &Path<'_>, errors: &mut Vec<Error>) {
    let policy_path = spec.child("successPolicy");
    let path = policy_path.child("targetReplicatedJobs");
    let targets = set.spec.success_policy.iter().flat_map(|policy| &policy.target_replicated_jobs);
    for target in targets.filter(|target| !is_entry(set, target)) {
        errors.push(Error::invalid(&path, target.as_str(), unknown_entry(target, "")));
    }
}

fn failure_policy(set: &JobSet, spec: &Path<'_>, gates: Gates, errors: &mut Vec<Error>) {
    let Some(policy) = &set.spec.failure_policy else { return };
    let policy_path = spec.child("failurePolicy");
    let rules_path = policy_path.child("rules");
    let mut positions: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut restarts_jobs = false;
    for (position, rule) in policy.rules.iter().enumerate() {
        positions.entry(&rule.name).or_default().push(position);
        let path = rules_path.index(position);
        let length = rule.name.chars().count();
        if !(1..=RULE_NAME_MAX).contains(&length) {
            let why = format!(
                "invalid failure policy rule name of length {length}, the rule name must be at least 1 characters long and at most {RULE_NAME_MAX} characters long"
            );
            errors.push(Error::invalid(&path.child("name"), rule.name.as_str(), why));
        }
        if !RULE_NAME.is_match(&rule.name) {
            let why = format!(
                "invalid failure policy rule name '{}', a failure policy rule name must start with an alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
                rule.name
            );
            errors.push(Error::invalid(&path.child("name"), rule.name.as_str(), why));
        }
        for target in rule.target_replicated_jobs.iter().filter(|target| !is_entry(set, target)) {
            let why = unknown_entry(target, " in failure policy");
            errors.push(Error::invalid(&path.child("targetReplicatedJobs"), target.as_str(), why));
        }
        let reasons = rule.on_job_failure_reasons.iter();
        for reason in reasons.filter(|reason| !JOB_FAILURE_REASONS.contains(&reason.as_str())) {
            let why = format!(
                "invalid job failure reason '{reason}' in failure policy is not a recognized job failure reason"
            );
            errors.push(Error::invalid(&path.child("onJobFailureReasons"), reason.as_str(), why));
        }
        if matches!(rule.action, FailurePolicyAction::RestartJob | FailurePolicyAction::RestartJobAndIgnoreMaxRestarts)
        {
            restarts_jobs = true;
        }
    }
    for (name, positions) in positions.iter().filter(|(_, positions)| positions.len() > 1) {
        let listed: Vec<String> = positions.iter().map(usize::to_string).collect();
        let why = format!(
            "rule names are not unique, rules with indices [{}] all have the same name '{name}'",
            listed.join(" ")
        );
        errors.push(Error::invalid(&rules_path, *name, why));
    }
    if restarts_jobs && !gates.restart_job {
        let why = "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob feature gate is disabled";
        errors.push(Error::invalid(&rules_path, Value::Null, why));
    } else if restarts_jobs && set.spec.replicated_jobs.iter().any(|entry| replicas(entry) > RESTARTABLE_JOBS_MAX) {
        let why = format!(
            "JobSet cannot have a failure policy rule with RestartJob or RestartJobAndIgnoreMaxRestarts action and a replicated job with replicas > {RESTARTABLE_JOBS_MAX}"
        );
        errors.push(Error::invalid(&rules_path, Value::Null, why));
    }
}

fn coordinator(set: &JobSet, spec: &Path<'_>, errors: &mut Vec<Error>) {
    let (Some(coordinator), Some(address)) = (&set.spec.coordinator, coordinator_address(set)) else { return };
    let path = spec.child("coordinator");
    for why in is_label_value(&address) {
        let why = format!("spec will lead to invalid label value {address:?} for label coordinator: {why}");
        errors.push(Error::invalid(&path, address.as_str(), why));
    }
    let name = coordinator.replicated_job.as_str();
    let Some(entry) = set.spec.replicated_jobs.iter().find(|entry| entry.name == name) else {
        let why = format!("coordinator replicatedJob {name} does not exist");
        errors.push(Error::invalid(&path.child("replicatedJob"), name, why));
        return;
    };
    let (job_index, pod_index) = (coordinator.job_index, coordinator.pod_index);
    if !(0..i64::from(replicas(entry))).contains(&job_index) {
        let why = format!("coordinator job index {job_index} is invalid for replicatedJob {name}");
        errors.push(Error::invalid(&path.child("jobIndex"), job_index, why));
        return;
    }
    let job = entry.template.spec.clone().unwrap_or_default();
    let completions = job.completions.filter(|_| job.completion_mode.as_deref() == Some("Indexed"));
    match completions {
        None => {
            let why = "job for coordinator pod must be indexed completion mode, and completions number must be set";
            errors.push(Error::invalid(&path.child("replicatedJob"), name, why));
        }
        Some(completions) if !(0..i64::from(completions)).contains(&pod_index) => {
            let why =
                format!("coordinator pod index {pod_index} is invalid for replicatedJob {name} job index {job_index}");
            errors.push(Error::invalid(&path.child("podIndex"), pod_index, why));
        }
        Some(_) => {}
    }
}

fn depends_on(set: &JobSet, spec: &Path<'_>, errors: &mut Vec<Error>) {
    let mut earlier: BTreeSet<&str> = BTreeSet::new();
    for (position, entry) in set.spec.replicated_jobs.iter().enumerate() {
        let entries_path = spec.child("replicatedJobs");
        let entry_path = entries_path.index(position);
        let path = entry_path.child("dependsOn");
        if position == 0 && !entry.depends_on.is_empty() {
            let why = "DependsOn can't be set for the first ReplicatedJob";
            errors.push(Error::invalid(&path, entry.name.as_str(), why));
        } else {
            for dependency in entry.depends_on.iter().filter(|dependency| !earlier.contains(dependency.name.as_str())) {
                let why = format!("replicatedJob: {} cannot depend on replicatedJob: {}", entry.name, dependency.name);
                errors.push(Error::invalid(&path, dependency.name.as_str(), why));
            }
        }
        earlier.insert(&entry.name);
    }
}

fn in_place_restart(set: &JobSet, spec: &Path<'_>, gates: Gates, errors: &mut Vec<Error>) {
    if !gates.in_place_restart {
        let policy_path = spec.child("failurePolicy");
        let why = "InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is disabled";
        let value = RestartStrategy::InPlaceRestart.as_str();
        errors.push(Error::invalid(&policy_path.child("restartStrategy"), value, why));
        return;
    }
    for (position, entry) in set.spec.replicated_jobs.iter().enumerate() {
        let entries_path = spec.child("replicatedJobs");
        let entry_path = entries_path.index(position);
        let template_path = entry_path.child("template");
        let path = template_path.child("spec");
        let job = entry.template.spec.clone().unwrap_or_default();
        let mut refuse = |field: &str, value: Value, why: &str| {
            let why = format!("replicatedJob {}: {why} when in-place restart is enabled", entry.name);
            errors.push(Error::invalid(&path.child(field), value, why));
        };
        if job.backoff_limit != Some(i32::MAX) {
            refuse("backoffLimit", job.backoff_limit.into(), "must be set to 2147483647 (MaxInt32)");
        }
        if job.pod_replacement_policy.as_deref() != Some("Failed") {
            refuse("podReplacementPolicy", job.pod_replacement_policy.clone().into(), "must be set to Failed");
        }
        if job.completions.is_none() || job.completions != job.parallelism {
            let why = "completions and parallelism must be set and equal to each other";
            refuse("completions", job.completions.into(), why);
        }
    }
}

fn volume_claims(set: &JobSet, spec: &Path<'_>, claims: ClaimLookup<'_>, errors: &mut Vec<Error>) {
    let policies_path = spec.child("volumeClaimPolicies");
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (position, policy) in set.spec.volume_claim_policies.iter().enumerate() {
        let policy_path = policies_path.index(position);
        let templates_path = policy_path.child("templates");
        let retention = policy.retention_policy.as_ref().and_then(|policy| policy.when_deleted);
        for (position, template) in policy.templates.iter().enumerate() {
            let path = templates_path.index(position);
            let name = template.metadata.name.as_str();
            let mut refuse = |why: &str| errors.push(Error::invalid(&path, name, why));
            if !names.insert(name) {
                refuse("names must be unique for VolumeClaimPolicies template");
            }
            let claim = claim_name(name, set_name);
            if claim.len() > NAME_MAX {
                refuse("VolumeClaimPolicies template name is too long");
            }
            is_dns1123_subdomain(&claim).iter().filter(|why| !is_about_length(why)).for_each(|why| refuse(why));
            if !pods(set).any(|pod| mounts(pod, name)) {
                refuse("replicatedJob containers don't have a matching volumeMount");
            }
            if pods(set).any(|pod| pod.volumes.iter().flatten().any(|volume| volume.name == name)) {
                refuse("volume name conflicts with VolumeClaimPolicy template name");
            }
            if let Some(existing) = claims(namespace(set), &claim) {
                if retention != Some(RetentionPolicyType::Retain) {
                    refuse("retentionPolicy must be retain when PVC exist");
                }
                if !is_made_from(existing.spec.as_ref(), template) {
                    refuse("spec does not match existing PVC");
                }
            }
        }
    }
}

fn pods(set: &JobSet) -> impl Iterator<Item = &PodSpec> {
    set.spec.replicated_jobs.iter().filter_map(|entry| entry.template.spec.as_ref()?.template.spec.as_ref())
}

fn mounts(pod: &PodSpec, volume: &str) -> bool {
    let mut containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    containers.any(|container| container.volume_mounts.iter().flatten().any(|mount| mount.name == volume))
}

/// True if an existing claim has all values of the template; defaults and bindings of the cluster
/// may add values.
fn is_made_from(existing: Option<&PersistentVolumeClaimSpec>, template: &VolumeClaimTemplate) -> bool {
    let json = |spec: &PersistentVolumeClaimSpec| serde_json::to_value(spec).unwrap_or_default();
    let existing = existing.map(json).unwrap_or_default();
    match json(&template.spec) {
        Value::Object(wanted) => wanted.iter().all(|(key, value)| existing.get(key) == Some(value)),
        _ => false,
    }
}
