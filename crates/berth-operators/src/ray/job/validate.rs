//! The rules that a RayJob must follow. The messages are KubeRay's, because users and tools search
//! for them.
//!
//! Source: the documentation and tests of KubeRay 1.7.

use std::collections::BTreeMap;

use berth_api::frameworks::RayJob;
use berth_apimachinery::names::is_dns1035_label;
use kube::ResourceExt;

use super::command::runtime_env;
use super::types::{
    DeletionPolicy, DeletionRule, DeletionStrategy, RayJobSpec, RayJobStatus, SubmissionMode, deployment,
};
use crate::ray::cluster::validate as cluster_rules;
use crate::ray::constants::{CLUSTER, CLUSTER_NAME_MAX};
use crate::ray::types::RayClusterSpec;

/// Maximum length of a RayJob's name. The name of its cluster has six characters more.
pub const NAME_MAX: usize = CLUSTER_NAME_MAX - 6;
/// Reason of the event about a spec that is not valid.
pub const INVALID_SPEC: &str = "InvalidRayJobSpec";

/// Why a job is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event and of the status.
    pub message: String,
}

/// Checks name, spec and state of a RayJob.
///
/// # Errors
/// Returns the first rule that is broken.
pub fn job(job: &RayJob, spec: &RayJobSpec, status: &RayJobStatus) -> Result<(), Invalid> {
    let because = |reason: &'static str| move |message: String| Invalid { reason, message };
    name(&job.name_any()).map_err(because("InvalidRayJobMetadata"))?;
    self::spec(spec, job.annotations()).map_err(because(INVALID_SPEC))?;
    if status.job_deployment_status == deployment::WAITING && spec.submission_mode != SubmissionMode::InteractiveMode {
        let message = "The RayJob status is invalid: JobDeploymentStatus cannot be `Waiting` when SubmissionMode is \
                       not InteractiveMode";
        return Err(because("InvalidRayJobStatus")(message.to_owned()));
    }
    Ok(())
}

fn name(name: &str) -> Result<(), String> {
    if name.len() > NAME_MAX {
        return Err(format!(
            "The RayJob metadata is invalid: RayJob name should be no more than {NAME_MAX} characters"
        ));
    }
    let problems = is_dns1035_label(name);
    if problems.is_empty() {
        return Ok(());
    }
    let problems = problems.join(" ");
    Err(format!("The RayJob metadata is invalid: RayJob name should be a valid DNS1035 label: [{problems}]"))
}

/// Checks the spec of a RayJob, or the template of a RayCronJob.
///
/// # Errors
/// Returns the first rule that is broken.
pub fn spec(spec: &RayJobSpec, annotations: &BTreeMap<String, String>) -> Result<(), String> {
    let invalid = |problem: &str| Err(format!("The RayJob spec is invalid: {problem}"));
    if spec.suspend && !spec.shutdown_after_job_finishes {
        return invalid("a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended");
    }
    if spec.ttl_seconds_after_finished < 0 {
        return invalid("TTLSecondsAfterFinished must be a non-negative integer");
    }
    deletion(spec)?;
    mode(spec)?;
    if let Some(written) = &spec.ray_cluster_spec {
        let read = RayClusterSpec::read(written)
            .map_err(|error| format!("The RayJob spec is invalid: rayClusterSpec: {error}"))?;
        if read.auth_options.as_ref().is_some_and(|options| options.enable_k8s_token_auth == Some(true)) {
            return invalid("K8s token auth mode is currently not supported for RayJob");
        }
        cluster_rules::spec(&read, annotations).map_err(|problem| format!("The RayJob spec is invalid: {problem}"))?;
    }
    match runtime_env(spec) {
        Ok(Some(environment)) if !environment.is_object() && !environment.is_null() => {
            return Err("failed to unmarshal RuntimeEnvYAML: a mapping is expected".to_owned());
        }
        Err(error) => return Err(format!("failed to unmarshal RuntimeEnvYAML: {error}")),
        Ok(_) => {}
    }
    if spec.active_deadline_seconds.is_some_and(|seconds| seconds <= 0) {
        return invalid("activeDeadlineSeconds must be a positive integer");
    }
    if spec.pre_running_deadline_seconds.is_some_and(|seconds| seconds <= 0) {
        return invalid("preRunningDeadlineSeconds must be a positive integer");
    }
    if spec.backoff_limit.is_some_and(|limit| limit < 0) {
        return invalid("backoffLimit must be a positive integer");
    }
    Ok(())
}

/// Rules of submission modes and selected clusters.
fn mode(spec: &RayJobSpec) -> Result<(), String> {
    let invalid = |problem: &str| Err(format!("The RayJob spec is invalid: {problem}"));
    let retries = spec.backoff_limit.is_some_and(|limit| limit > 0);
    if spec.selects_cluster() {
        if spec.suspend {
            return invalid("the ClusterSelector mode doesn't support the suspend operation");
        }
        if spec.cluster_selector.get(CLUSTER).is_none_or(String::is_empty) {
            return Err("cluster name in ClusterSelector should not be empty".to_owned());
        }
        if spec.submission_mode == SubmissionMode::SidecarMode {
            return Err("ClusterSelector is not supported in SidecarMode".to_owned());
        }
        if retries {
            return invalid("BackoffLimit is incompatible with ClusterSelector mode");
        }
    } else if spec.ray_cluster_spec.is_none() {
        return invalid("one of RayClusterSpec or ClusterSelector must be set");
    }
    if spec.submission_mode == SubmissionMode::InteractiveMode && retries {
        return invalid("BackoffLimit is incompatible with InteractiveMode");
    }
    if spec.submission_mode != SubmissionMode::SidecarMode {
        return Ok(());
    }
    if spec.submitter_pod_template.is_some() {
        return Err("Currently, SidecarMode doesn't support SubmitterPodTemplate".to_owned());
    }
    if spec.submitter_config.is_some() {
        return Err("Currently, SidecarMode doesn't support SubmitterConfig".to_owned());
    }
    let head = spec.ray_cluster_spec.as_ref().map(|cluster| &cluster["headGroupSpec"]["template"]["spec"]);
    let policy = head.and_then(|head| head["restartPolicy"].as_str()).unwrap_or_default();
    if !matches!(policy, "" | "Never") {
        return Err("restartPolicy for head Pod should be Never or unset when using SidecarMode".to_owned());
    }
    Ok(())
}

/// Rules about what is deleted after the end.
fn deletion(spec: &RayJobSpec) -> Result<(), String> {
    let invalid = |problem: &str| Err(format!("The RayJob spec is invalid: {problem}"));
    if !spec.shutdown_after_job_finishes && spec.ttl_seconds_after_finished > 0 {
        return invalid("a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished");
    }
    let Some(strategy) = &spec.deletion_strategy else { return Ok(()) };
    let has_rules = !strategy.deletion_rules.is_empty();
    let has_policies = strategy.on_success.is_some() || strategy.on_failure.is_some();
    match (has_rules, has_policies) {
        (true, _) if spec.shutdown_after_job_finishes => {
            invalid("spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules are mutually exclusive")
        }
        (true, true) => invalid("Cannot use both legacy onSuccess/onFailure fields and deletionRules simultaneously"),
        (true, false) => rules(spec, &strategy.deletion_rules),
        (false, true) => policies(spec, strategy),
        (false, false) => invalid(
            "DeletionStrategy requires either BOTH onSuccess and onFailure, OR the deletionRules field (cannot be empty)",
        ),
    }
}

fn is_autoscaled(spec: &RayJobSpec) -> bool {
    spec.ray_cluster_spec.as_ref().is_some_and(|cluster| cluster["enableInTreeAutoscaling"] == true)
}

/// Checks the policies after success and after failure.
fn policies(spec: &RayJobSpec, strategy: &DeletionStrategy) -> Result<(), String> {
    let (Some(success), Some(failure)) = (&strategy.on_success, &strategy.on_failure) else {
        return Err(
            "both DeletionStrategy.OnSuccess and DeletionStrategy.OnFailure must be set when using the legacy \
                    deletion policy fields of DeletionStrategy"
                .to_owned(),
        );
    };
    let unset = |field: &str| {
        format!(
            "the DeletionPolicyType field of DeletionStrategy.{field} cannot be unset when DeletionStrategy is enabled"
        )
    };
    let success = success.policy.ok_or_else(|| unset("OnSuccess"))?;
    let failure = failure.policy.ok_or_else(|| unset("OnFailure"))?;
    let needs_own = [DeletionPolicy::DeleteCluster, DeletionPolicy::DeleteWorkers];
    for (policy, when) in [(success, "success"), (failure, "failure")] {
        if spec.selects_cluster() && needs_own.contains(&policy) {
            let policy = policy.as_str();
            return Err(format!("the ClusterSelector mode doesn't support DeletionStrategy={policy} on {when}"));
        }
    }
    if [success, failure].contains(&DeletionPolicy::DeleteWorkers) && is_autoscaled(spec) {
        return Err(
            "DeletionStrategy=DeleteWorkers currently does not support RayCluster with autoscaling enabled".to_owned()
        );
    }
    if spec.shutdown_after_job_finishes && [success, failure].contains(&DeletionPolicy::DeleteNone) {
        return Err("The RayJob spec is invalid: shutdownAfterJobFinshes is set to 'true' while deletion policy is \
                    'DeleteNone'"
            .to_owned());
    }
    Ok(())
}

/// Checks the deletion rules, and reports all problems.
fn rules(spec: &RayJobSpec, rules: &[DeletionRule]) -> Result<(), String> {
    let mut problems = Vec::new();
    let mut seconds: BTreeMap<(&str, &str), BTreeMap<DeletionPolicy, i32>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let mut problem = |text: String| problems.push(format!("deletionRules[{index}]: {text}"));
        let condition = &rule.condition;
        let key = match (condition.job_status.as_deref(), condition.job_deployment_status.as_deref()) {
            (Some(_), Some(_)) => {
                problem("cannot set both JobStatus and JobDeploymentStatus at the same time".to_owned());
                continue;
            }
            (None, None) => {
                problem("exactly one of JobStatus and JobDeploymentStatus must be set".to_owned());
                continue;
            }
            (Some(status), None) => ("JobStatus", status),
            (None, Some(status)) => ("JobDeploymentStatus", status),
        };
        let policy = rule.policy.as_str();
        if condition.ttl_seconds < 0 {
            problem("TTLSeconds must be non-negative".to_owned());
        } else if spec.selects_cluster()
            && matches!(rule.policy, DeletionPolicy::DeleteCluster | DeletionPolicy::DeleteWorkers)
        {
            problem(format!("DeletionPolicyType '{policy}' not supported when ClusterSelector is set"));
        } else if rule.policy == DeletionPolicy::DeleteWorkers && is_autoscaled(spec) {
            problem("DeletionPolicyType 'DeleteWorkers' not supported with autoscaling enabled".to_owned());
        } else if seconds.get(&key).is_some_and(|known| known.contains_key(&rule.policy)) {
            let (kind, status) = key;
            problem(format!("duplicate rule for DeletionPolicyType '{policy}' and {kind} '{status}'"));
        } else {
            seconds.entry(key).or_default().insert(rule.policy, condition.ttl_seconds);
        }
    }
    for ((kind, status), policies) in &seconds {
        let staged = policies.iter().filter(|(policy, _)| **policy != DeletionPolicy::DeleteNone);
        let staged: Vec<_> = staged.collect();
        for pair in staged.windows(2) {
            let [(earlier, first), (later, second)] = [pair[0], pair[1]];
            if second < first {
                let (earlier, later) = (earlier.as_str(), later.as_str());
                problems
                    .push(format!("for {kind} '{status}': {later} TTL ({second}) must be >= {earlier} TTL ({first})"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster() -> Value {
        let template = json!({"spec": {"containers": [{"name": "ray-head", "image": "ray"}]}});
        json!({"headGroupSpec": {"template": template}})
    }

    /// Checks a RayJob with these fields in addition to a cluster.
    fn check(fields: Value, expected: &str) {
        let mut object = json!({"rayClusterSpec": cluster(), "entrypoint": "true"});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec = RayJobSpec::read(&object).unwrap();
        let found = super::spec(&spec, &BTreeMap::new()).err().unwrap_or_default();
        assert_eq!(found, expected, "{fields}");
    }

    #[test]
    fn a_suspended_job_must_delete_its_cluster() {
        check(json!({"suspend": true, "shutdownAfterJobFinishes": true}), "");
        check(
            json!({"suspend": true}),
            "The RayJob spec is invalid: a RayJob with shutdownAfterJobFinishes set to false is not allowed to be \
             suspended",
        );
    }

    #[test]
    fn a_job_needs_a_cluster_of_its_own_or_a_selected_one() {
        let none = "The RayJob spec is invalid: one of RayClusterSpec or ClusterSelector must be set";
        check(json!({"rayClusterSpec": null}), none);
        check(json!({"rayClusterSpec": null, "clusterSelector": {"ray.io/cluster": "shared"}}), "");
        let unnamed = "cluster name in ClusterSelector should not be empty";
        check(json!({"clusterSelector": {"team": "blue"}}), unnamed);
        let retries = json!({"clusterSelector": {"ray.io/cluster": "shared"}, "backoffLimit": 1});
        check(retries, "The RayJob spec is invalid: BackoffLimit is incompatible with ClusterSelector mode");
    }

    #[test]
    fn numbers_have_bounds() {
        let positive = |field: &str| format!("The RayJob spec is invalid: {field} must be a positive integer");
        check(json!({"activeDeadlineSeconds": 0}), &positive("activeDeadlineSeconds"));
        check(json!({"preRunningDeadlineSeconds": -1}), &positive("preRunningDeadlineSeconds"));
        check(json!({"backoffLimit": -1}), &positive("backoffLimit"));
        let ttl = "The RayJob spec is invalid: a RayJob with shutdownAfterJobFinishes set to false cannot have \
                   TTLSecondsAfterFinished";
        check(json!({"ttlSecondsAfterFinished": 5}), ttl);
    }

    #[test]
    fn the_environment_of_the_program_is_a_mapping() {
        check(json!({"runtimeEnvYAML": "pip: [a]\n"}), "");
        check(json!({"runtimeEnvYAML": "just text"}), "failed to unmarshal RuntimeEnvYAML: a mapping is expected");
    }

    #[test]
    fn a_sidecar_shares_the_head_pod() {
        let sidecar = |fields: Value| {
            let mut object = json!({"submissionMode": "SidecarMode"});
            object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            object
        };
        check(sidecar(json!({})), "");
        let template = json!({"submitterPodTemplate": {"spec": {"containers": []}}});
        check(sidecar(template), "Currently, SidecarMode doesn't support SubmitterPodTemplate");
        let config = json!({"submitterConfig": {"backoffLimit": 1}});
        check(sidecar(config), "Currently, SidecarMode doesn't support SubmitterConfig");
        let mut restarting = cluster();
        restarting["headGroupSpec"]["template"]["spec"]["restartPolicy"] = "Always".into();
        check(
            sidecar(json!({"rayClusterSpec": restarting})),
            "restartPolicy for head Pod should be Never or unset when using SidecarMode",
        );
    }

    #[test]
    fn a_rule_that_deletes_more_must_not_apply_earlier() {
        let rule = |seconds: i32, policy: &str| json!({"condition": {"jobStatus": "FAILED", "ttlSeconds": seconds}, "policy": policy});
        let with = |rules: Vec<Value>| json!({"deletionStrategy": {"deletionRules": rules}});
        check(with(vec![rule(30, "DeleteWorkers"), rule(30, "DeleteCluster"), rule(90, "DeleteSelf")]), "");
        check(
            with(vec![rule(30, "DeleteSelf"), rule(60, "DeleteCluster")]),
            "for JobStatus 'FAILED': DeleteSelf TTL (30) must be >= DeleteCluster TTL (60)",
        );
        check(
            with(vec![rule(30, "DeleteSelf"), rule(60, "DeleteSelf")]),
            "deletionRules[1]: duplicate rule for DeletionPolicyType 'DeleteSelf' and JobStatus 'FAILED'",
        );
        let mut both = with(vec![rule(30, "DeleteSelf")]);
        both["shutdownAfterJobFinishes"] = true.into();
        check(
            both,
            "The RayJob spec is invalid: spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules are \
             mutually exclusive",
        );
    }

    #[test]
    fn a_name_leaves_room_for_that_of_the_cluster() {
        let check = |name: &str, reason: Option<&str>| {
            let spec = RayJobSpec::read(&json!({"rayClusterSpec": cluster()})).unwrap();
            let found = job(&RayJob::named(name), &spec, &RayJobStatus::default()).err();
            assert_eq!(found.map(|invalid| invalid.reason), reason, "{name}");
        };
        check(&"a".repeat(47), None);
        check(&"a".repeat(48), Some("InvalidRayJobMetadata"));
        check("7days", Some("InvalidRayJobMetadata"));
    }
}
