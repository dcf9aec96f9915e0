//! The two policies of a Job: which pod failures count (`podFailurePolicy`, KEP-3329), and when
//! enough indexes have succeeded (`successPolicy`, KEP-3998).

use k8s_openapi::api::batch::v1::{Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::facts::{container_statuses, job_spec};
use super::indexes::IndexSet;

/// Result of the pod failure policy for one failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodFailure {
    /// The failure counts towards `backoffLimit`: a Count rule matched, or no rule.
    Count,
    /// The failure does not count.
    Ignore,
    /// The failure counts, and the pod's index has failed permanently.
    FailIndex,
    /// The failure counts, and the Job has failed, with this message.
    FailJob(String),
}

/// Applies the pod failure policy to a failed pod: the first rule that matches decides.
pub fn match_pod_failure_policy(job: &Job, pod: &Pod) -> PodFailure {
    let rules = job_spec(job).pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    for (position, rule) in rules.enumerate() {
        let Some(matched) = matched_by(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => PodFailure::Ignore,
            "FailIndex" => PodFailure::FailIndex,
            "FailJob" => PodFailure::FailJob(format!("{matched} matching FailJob rule at index {position}")),
            _ => PodFailure::Count,
        };
    }
    PodFailure::Count
}

/// The beginning of the message for a matched rule; `None` if the rule does not match the pod.
fn matched_by(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Some(requirement) = &rule.on_exit_codes {
        let (container, code) = container_statuses(pod).find_map(|status| exit_code_matched(requirement, status))?;
        return Some(format!("Container {container} for pod {namespace}/{name} failed with exit code {code}"));
    }
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let conditions: Vec<_> = conditions.into_iter().flatten().collect();
    let pattern = rule.on_pod_conditions.iter().flatten().find(|pattern| {
        let status = pattern.status.as_deref().unwrap_or("True");
        conditions.iter().any(|condition| condition.type_ == pattern.type_ && condition.status == status)
    })?;
    Some(format!("Pod {namespace}/{name} has condition {}", pattern.type_))
}

fn exit_code_matched<'a>(
    requirement: &PodFailurePolicyOnExitCodesRequirement,
    status: &'a ContainerStatus,
) -> Option<(&'a str, i32)> {
    let code = status.state.as_ref()?.terminated.as_ref()?.exit_code;
    if requirement.container_name.as_ref().is_some_and(|name| *name != status.name) {
        return None;
    }
    let listed = requirement.values.contains(&code);
    // Exit code 0 never matches: that container did not make the pod fail.
    let matches = code != 0 && if requirement.operator == "NotIn" { !listed } else { listed };
    matches.then_some((status.name.as_str(), code))
}

/// The message that names the first rule of the success policy that is met; `None` if none is.
pub fn match_success_policy(policy: &SuccessPolicy, completions: u32, succeeded: &IndexSet) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    policy.rules.iter().enumerate().find_map(|(position, rule)| {
        let count = rule.succeeded_count.and_then(|count| usize::try_from(count).ok());
        let met = match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = IndexSet::parse(text, completions);
                wanted.overlap(succeeded) >= count.unwrap_or(wanted.len())
            }
            None => count.is_some_and(|count| succeeded.len() >= count),
        };
        met.then(|| format!("Matched rules at index {position}"))
    })
}
