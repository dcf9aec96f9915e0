//! Ends pods that cannot terminate, because their node is unreachable (gate
//! `FailureRecoveryPolicy`).
//!
//! A pod opts in with an annotation. It is marked Failed and deleted at once, so that its owner can
//! replace it. Kubernetes waits for the node's kubelet instead, which may be gone forever.

pub mod controller;

use std::time::Duration;

use berth_api::kueue::{annotations, events};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use crate::duration;

/// Time from the end of a pod's own grace period until the pod is ended, unless configured.
pub const GRACE: Duration = Duration::from_secs(60);

/// Taint of nodes whose kubelet does not respond.
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Condition type of ended pods.
const CONDITION: &str = "KueueFailureRecovery";

/// What follows for a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing until the pod or its node changes.
    Leave,
    /// The time is not yet over.
    After(Duration),
    /// The pod is ended.
    End {
        /// The pod with its new status.
        after: Box<Pod>,
        /// Message of the condition and of the event.
        message: String,
    },
}

/// True if the pod is being deleted and may be ended.
pub fn may_be_ended(pod: &Pod) -> bool {
    let agreed = pod.annotations().get(annotations::SAFE_TO_FORCEFULLY_DELETE).is_some_and(|value| value == "true");
    agreed && pod.metadata.deletion_timestamp.is_some()
}

/// True if the node's kubelet does not respond.
pub fn is_unreachable(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == UNREACHABLE)
}

/// What follows for a pod on this node.
pub fn next(pod: &Pod, node: Option<&Node>, grace: Duration, now: Timestamp) -> Next {
    let Some(deletion) = pod.metadata.deletion_timestamp.as_ref().filter(|_| may_be_ended(pod)) else {
        return Next::Leave;
    };
    // Kubernetes deletes pods of missing nodes itself.
    let Some(node) = node.filter(|node| is_unreachable(node)) else { return Next::Leave };
    // The timestamp is the end of the pod's own grace period.
    let due = deletion.0.checked_add(grace).unwrap_or(Timestamp::MAX);
    if now < due {
        return Next::After(due.duration_since(now).unsigned_abs());
    }
    let own = pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let message = format!(
        "Pod forcefully terminated after {} grace period due to unreachable node `{}` (triggered by `{}` annotation)",
        duration::format(grace + Duration::from_secs(own.unwrap_or_default())),
        node.name_any(),
        annotations::SAFE_TO_FORCEFULLY_DELETE,
    );
    Next::End { after: Box::new(ended(pod, &message, now)), message }
}

/// The pod with phase Failed, unless it has ended already, and with the condition.
fn ended(pod: &Pod, message: &str, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let status = pod.status.get_or_insert_default();
    if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        status.phase = Some("Failed".to_owned());
    }
    let conditions = status.conditions.get_or_insert_with(Vec::new);
    // A pod that still has the condition was marked before the controllers were restarted.
    if !conditions.iter().any(|condition| condition.type_ == CONDITION) {
        conditions.push(PodCondition {
            type_: CONDITION.to_owned(),
            status: "True".to_owned(),
            reason: Some(events::KUEUE_FORCEFULLY_DELETED.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(now)),
            ..PodCondition::default()
        });
    }
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, phase: &str) -> Pod {
        let mut base = json!({"name": "p", "namespace": "ns", "deletionTimestamp": "2026-01-01T00:01:00Z",
            "deletionGracePeriodSeconds": 30,
            "annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": "true"}});
        berth_apimachinery::patch::apply_merge(&mut base, &metadata);
        let object = json!({"metadata": base, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": phase}});
        serde_json::from_value(object).unwrap()
    }

    fn node(taint: &str) -> Node {
        let taints = json!([{"key": taint, "effect": "NoSchedule"}]);
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})).unwrap()
    }

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn a_pod_on_an_unreachable_node_is_ended_one_minute_after_its_own_grace_period() {
        let (running, lost) = (pod(json!({}), "Running"), node(UNREACHABLE));
        let next = |now: &str| next(&running, Some(&lost), GRACE, at(now));
        assert_eq!(next("2026-01-01T00:00:30Z"), Next::After(Duration::from_secs(90)));
        assert_eq!(next("2026-01-01T00:01:00Z"), Next::After(Duration::from_secs(60)));
        assert_eq!(next("2026-01-01T00:01:59.5Z"), Next::After(Duration::from_millis(500)));
        let Next::End { after, message } = next("2026-01-01T00:02:00Z") else { panic!("the pod is ended") };
        assert!(message.starts_with("Pod forcefully terminated after 1m30s grace period"), "{message}");
        let status = after.status.clone().unwrap();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        let condition = status.conditions.unwrap().remove(0);
        assert_eq!((&*condition.type_, condition.message), (CONDITION, Some(message)));
    }

    #[test]
    fn a_pod_that_ended_keeps_its_phase_and_gets_one_condition() {
        let next = |pod: &Pod| match next(pod, Some(&node(UNREACHABLE)), GRACE, at("2026-01-01T01:00:00Z")) {
            Next::End { after, .. } => *after,
            other => panic!("the pod is ended, not {other:?}"),
        };
        let once = next(&pod(json!({}), "Succeeded"));
        assert_eq!(once.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded"));
        assert_eq!(next(&once), once);
    }

    #[test]
    fn other_pods_and_pods_on_other_nodes_are_left_alone() {
        let now = at("2026-01-01T01:00:00Z");
        let lost = node(UNREACHABLE);
        let annotated = |value: Value| json!({"annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": value}});
        for (metadata, node) in [
            (annotated(json!("false")), Some(&lost)),
            (annotated(Value::Null), Some(&lost)),
            (json!({"deletionTimestamp": null}), Some(&lost)),
            (json!({}), Some(&node("node.kubernetes.io/not-ready"))),
            (json!({}), None),
        ] {
            assert_eq!(next(&pod(metadata.clone(), "Running"), node, GRACE, now), Next::Leave, "{metadata}");
        }
    }
}
