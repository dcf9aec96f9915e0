//! Renders parts of decisions that depend on API spellings: reasons with and without the
//! observability gate, and the list of considered flavors.

use berth_api::kueue::reasons::admission;
use berth_engine::{AssignmentMode, Considered, FlavorAttempt, PendingReason, PreemptionMode, Priority, Victim};

use crate::gates::{Gate, Gates};

/// The reason of QuotaReserved=False and of its event (semantics §5.10).
pub fn pending_reason(reason: PendingReason, gates: &Gates) -> &'static str {
    if gates.on(Gate::UnadmittedWorkloadsObservability) {
        return reason.as_str();
    }
    match reason {
        PendingReason::WaitingForPodsReady => admission::LEGACY_WAITING,
        _ => admission::LEGACY_PENDING,
    }
}

/// Both priorities of a preemption, as the end of its events (semantics §11.2).
fn priorities(victim: &Victim) -> String {
    let (preemptor, preemptee) = (priority(victim.preemption.priority), priority(victim.priority));
    format!("; preemptor effective priority: {preemptor}; preemptee effective priority: {preemptee}")
}

fn priority(priority: Priority) -> String {
    format!("{} (base: {}, boost: {})", priority.effective(), priority.base, priority.boost)
}

/// Message of the event `Preempted` on a victim.
pub fn preempted_event(victim: &Victim) -> String {
    format!("{}{}", victim.message(), priorities(victim))
}

/// Message of the event `PreemptedWorkload` on the preemptor.
pub fn preempted_workload_event(victim: &Victim) -> String {
    let (name, uid, queue) = (&victim.workload, &victim.uid, &victim.cluster_queue);
    format!("Preempted workload {name} (UID: {uid}) in ClusterQueue {queue}{}", priorities(victim))
}

/// The same message without the victim's name and priority, for readers who may not have access to
/// the victim.
pub fn preempted_unnamed_event(victim: &Victim) -> String {
    let (uid, queue, preemptor) = (&victim.uid, &victim.cluster_queue, priority(victim.preemption.priority));
    format!(
        "Preempted workload of another namespace (UID: {uid}) in ClusterQueue {queue}; preemptor effective priority: {preemptor}"
    )
}

/// The part of the QuotaReserved event about flavors that were rejected or need borrowing; empty if
/// there are none (semantics §8.15).
pub fn flavors_considered(considered: &Considered) -> String {
    let mut parts = Vec::new();
    for set in &considered.pod_sets {
        let mut attempts: Vec<&FlavorAttempt> = set
            .attempts
            .iter()
            .filter(|attempt| attempt.mode != AssignmentMode::Fit || attempt.borrowing_level > 0)
            .collect();
        attempts.sort_by(|a, b| a.flavor.cmp(&b.flavor));
        if attempts.is_empty() {
            continue;
        }
        let texts: Vec<String> = attempts.into_iter().map(attempt_text).collect();
        parts.push(format!("{}: {}", set.pod_set, texts.join(", ")));
    }
    if parts.is_empty() { String::new() } else { format!("; Flavors considered: {}", parts.join(" | ")) }
}

fn attempt_text(attempt: &FlavorAttempt) -> String {
    let mode = match attempt.preemption {
        PreemptionMode::NoFit => "NoFit".to_owned(),
        PreemptionMode::Fit => "Fit".to_owned(),
        PreemptionMode::NoPreemptionCandidates => "preemptionMode=NoCandidates".to_owned(),
        PreemptionMode::Preempt => "preemptionMode=Preempt".to_owned(),
        PreemptionMode::Reclaim => "preemptionMode=Reclaim".to_owned(),
    };
    let mut text = mode;
    if attempt.borrowing_level > 0 {
        text.push_str(&format!(";borrow={}", attempt.borrowing_level));
    }
    for finding in &attempt.findings {
        text.push_str(&format!(";{finding}"));
    }
    format!("{}({text})", attempt.flavor)
}
