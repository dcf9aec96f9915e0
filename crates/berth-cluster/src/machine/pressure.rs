//! Derives a Node's conditions from shortages of memory, disk space and process IDs.

use std::time::Duration;

use berth_pod_runtime::Pressure;
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

/// Time for which a shortage counts after it was last seen, so that pods are not evicted and
/// started repeatedly. Source: the kubelet's `evictionPressureTransitionPeriod`.
const HOLD: Duration = Duration::from_secs(5 * 60);

/// Types of conditions that this module writes.
pub(super) const TYPES: [&str; 4] = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];

/// Observed shortages and the time of the last observation: memory, disk, process IDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shortages([Option<(String, Timestamp)>; 3]);

impl Shortages {
    /// Adds the observations at `now`.
    pub(super) fn observe(&mut self, pressure: Pressure, now: Timestamp) {
        for (held, seen) in self.0.iter_mut().zip([pressure.memory, pressure.disk, pressure.pids]) {
            match seen {
                Some(message) => *held = Some((message, now)),
                None if held.as_ref().is_some_and(|(_, last)| is_over(*last, now)) => *held = None,
                None => {}
            }
        }
    }

    /// The conditions of a node with these shortages. `before` has the times of earlier
    /// transitions.
    pub(super) fn conditions(&self, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
        let enough = [
            ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ];
        let short = ["KubeletHasInsufficientMemory", "KubeletHasDiskPressure", "KubeletHasInsufficientPID"];
        let mut conditions: Vec<NodeCondition> = Vec::new();
        for (i, held) in self.0.iter().enumerate() {
            let (status, reason, message) = match held {
                Some((message, _)) => ("True", short[i], message.as_str()),
                None => ("False", enough[i].0, enough[i].1),
            };
            conditions.push(condition(TYPES[i], status, reason, message, now));
        }
        conditions.push(condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", now));
        keep_transitions(&mut conditions, before);
        conditions
    }
}

fn is_over(last: Timestamp, now: Timestamp) -> bool {
    now.duration_since(last) >= jiff::SignedDuration::try_from(HOLD).unwrap_or_default()
}

/// A condition that changed at `now`.
pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> NodeCondition {
    NodeCondition {
        type_: type_.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(stamp(now)),
        last_transition_time: Some(stamp(now)),
    }
}

/// Keeps the time of the last transition of conditions whose status did not change.
pub(super) fn keep_transitions(conditions: &mut [NodeCondition], before: &[NodeCondition]) {
    for condition in conditions {
        let known = before.iter().find(|known| known.type_ == condition.type_);
        if let Some(known) = known.filter(|known| known.status == condition.status) {
            condition.last_transition_time = known.last_transition_time.clone();
        }
    }
}

/// Equality without the times of heartbeats.
pub(super) fn is_same(one: &NodeCondition, other: &NodeCondition) -> bool {
    (&one.type_, &one.status, &one.reason, &one.message) == (&other.type_, &other.status, &other.reason, &other.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).expect("a time")
    }

    #[test]
    fn a_shortage_counts_for_five_minutes_after_it_was_seen() {
        let short = Pressure { memory: Some("too little".into()), ..Pressure::default() };
        let mut shortages = Shortages::default();
        let status = |shortages: &Shortages| shortages.conditions(&[], at(0))[0].status.clone();
        shortages.observe(short.clone(), at(0));
        assert_eq!(status(&shortages), "True");
        shortages.observe(Pressure::default(), at(299));
        assert_eq!(status(&shortages), "True");
        shortages.observe(short, at(299));
        shortages.observe(Pressure::default(), at(598));
        assert_eq!(status(&shortages), "True");
        shortages.observe(Pressure::default(), at(599));
        assert_eq!(shortages, Shortages::default());
    }

    #[test]
    fn a_condition_that_stays_keeps_the_time_of_its_transition() {
        let first = Shortages::default().conditions(&[], at(0));
        let mut shortages = Shortages::default();
        shortages.observe(Pressure { disk: Some("full".into()), ..Pressure::default() }, at(10));
        let second = shortages.conditions(&first, at(10));
        let since = |i: usize| second[i].last_transition_time.clone();
        assert_eq!((since(0), since(1), since(3)), (Some(stamp(at(0))), Some(stamp(at(10))), Some(stamp(at(0)))));
        assert_eq!(second[1].message.as_deref(), Some("full"));
        assert!(second.iter().all(|condition| condition.last_heartbeat_time == Some(stamp(at(10)))));
        assert_eq!(second.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), TYPES);
    }
}
