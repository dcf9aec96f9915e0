//! The time from a fault until all pods of the job run again, and the time that its configuration
//! allows.
//!
//! AppWrappers have grace periods for everything: the toleration of an unreachable node, the
//! failure grace or warm-up grace by which the fault is detected, then the pause, or the
//! forceful-deletion grace if pods are on a node that does not stop them. A pod of another job on a
//! node without progress has no such limit: Kubernetes does not replace it before the node reports
//! its end. This time does not count.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::load::{Kind, Submission};
use super::nodes::{Fault, Nodes, covered};
use crate::objects::condition;

/// Grace periods of AppWrapper's defaults, in seconds.
const FAILURE_GRACE: i64 = 60;
const WARMUP_GRACE: i64 = 300;
const PAUSE: i64 = 90;
const FORCEFUL_DELETION: i64 = 600;
/// Seconds that a Job waits after its first failed pod; twice as long after each further one, until
/// a pod succeeds.
const BACK_OFF: i64 = 10;
/// Maximum of this time.
const BACK_OFF_MAX: i64 = 360;
/// `tolerationSeconds` of the taints of NotReady nodes.
const TOLERATION: i64 = 300;

/// A finished recovery.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub job: String,
    pub cause: String,
    /// Seconds from the fault until all pods ran.
    pub took: i64,
    /// Seconds that the configuration allows.
    pub allowed: i64,
    pub at: Timestamp,
}

/// What the pods of a job do.
#[derive(Clone, Debug)]
pub struct PodFacts {
    pub node: String,
    pub phase: String,
    pub owner: String,
    pub index: String,
    pub is_terminating: bool,
    /// When the pod was first seen.
    pub since: Timestamp,
}

impl PodFacts {
    pub fn of(pod: &Value, since: Timestamp) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            node: text(&pod["spec"]["nodeName"]),
            phase: text(&pod["status"]["phase"]),
            owner: text(&pod["metadata"]["ownerReferences"][0]["uid"]),
            index: text(&pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]),
            is_terminating: pod["metadata"]["deletionTimestamp"].is_string(),
            since,
        }
    }
}

/// A job that lacks pods because of a fault.
#[derive(Clone, Debug)]
struct Episode {
    start: Timestamp,
    fault: Option<Fault>,
    /// Reason for which the AppWrapper was reset.
    reset: Option<String>,
    /// Nodes of the job's pods during the episode.
    nodes: BTreeMap<String, Timestamp>,
    /// UIDs of the pods that a reset deletes.
    old: BTreeSet<String>,
}

/// A job's pods and recoveries.
#[derive(Debug, Default)]
pub struct Course {
    pub pods: BTreeMap<String, PodFacts>,
    is_whole: bool,
    episode: Option<Episode>,
    /// Number of pods that failed since a pod succeeded. A Job counts those that a fault ended,
    /// too.
    failures: u32,
}

impl Course {
    /// Notes that a pod has ended.
    pub fn pod_ended(&mut self, phase: &str) {
        self.failures = if phase == "Succeeded" { 0 } else { self.failures + 1 };
    }

    /// Notes that the pods have changed: `lost` is the pod that changed, as it was before. Returns
    /// a recovery that this change ends.
    pub fn pods_changed(
        &mut self,
        job: &Submission,
        lost: Option<&PodFacts>,
        nodes: &Nodes,
        now: Timestamp,
    ) -> Option<Recovery> {
        let old = self.episode.as_ref().map(|episode| &episode.old);
        let runs = |pod: &PodFacts| pod.phase == "Running" && !pod.is_terminating || pod.phase == "Succeeded";
        let counts = |(uid, pod): &(&String, &PodFacts)| runs(pod) && old.is_none_or(|old| !old.contains(*uid));
        let is_whole = self.pods.iter().filter(counts).count() >= job.pods;
        if let Some(episode) = &mut self.episode {
            for pod in self.pods.values().filter(|pod| !pod.node.is_empty()) {
                episode.nodes.entry(pod.node.clone()).or_insert(now);
            }
        }
        if self.is_whole && !is_whole {
            self.episode = Some(self.begin(lost, nodes, now));
        }
        self.is_whole = is_whole;
        if !is_whole {
            return None;
        }
        let episode = self.episode.take()?;
        let mut recovery = episode.end(job, nodes, now);
        if job.kind == Kind::Job && self.failures > 0 {
            recovery.allowed += (BACK_OFF << (self.failures - 1).min(6)).min(BACK_OFF_MAX);
        }
        Some(recovery)
    }

    fn begin(&self, lost: Option<&PodFacts>, nodes: &Nodes, now: Timestamp) -> Episode {
        let node = lost.map(|pod| pod.node.as_str()).unwrap_or_default();
        let of = |fault: Fault| nodes.since(node, fault, now, 1).map(|since| (since, Some(fault)));
        let (start, fault) = of(Fault::Evict)
            .or_else(|| of(Fault::Gone).map(|(_, fault)| (now, fault)))
            .or_else(|| of(Fault::Silent))
            .or_else(|| of(Fault::Stuck).map(|(_, fault)| (now, fault)))
            .unwrap_or((now, None));
        // A pod may have started on the node after its fault.
        let start = lost.map_or(start, |pod| start.max(pod.since));
        let nodes = self.pods.values().chain(lost).map(|pod| (pod.node.clone(), start)).collect();
        Episode { start, fault, reset: None, nodes, old: BTreeSet::new() }
    }

    /// Notes that the AppWrapper is being reset, deployed since `deployed`.
    pub fn was_reset(&mut self, reason: &str, deployed: Option<Timestamp>, nodes: &Nodes, now: Timestamp) {
        let is_bad = |pod: &&PodFacts| nodes.since(&pod.node, Fault::Evict, now, 0).is_some();
        let (mut episode, reason) = match self.episode.take() {
            Some(episode) if episode.reset.is_none() => (episode, reason.to_owned()),
            // The first step of the reset: all pods still run.
            None if self.is_whole => (self.begin(self.pods.values().find(is_bad), nodes, now), reason.to_owned()),
            // The new pods met another fault, such as a node on which they do not start.
            _ => {
                let episode = self.begin(self.pods.values().find(is_bad), nodes, now);
                (Episode { start: deployed.unwrap_or(now), ..episode }, format!("{reason} again"))
            }
        };
        episode.reset = Some(reason);
        episode.old = self.pods.keys().cloned().collect();
        self.episode = Some(episode);
        self.is_whole = false;
    }

    /// Notes that the job no longer runs: it has ended, or lost its quota.
    pub fn stops(&mut self) {
        self.episode = None;
        self.is_whole = false;
    }
}

impl Episode {
    fn end(&self, job: &Submission, nodes: &Nodes, now: Timestamp) -> Recovery {
        let stalled = self.nodes.iter().flat_map(|(node, from)| nodes.without_progress(node, *from, now)).collect();
        let stalled = covered(stalled);
        let fault = self.fault.map_or("program".to_owned(), |fault| format!("{fault:?}").to_lowercase());
        let toleration = if self.fault == Some(Fault::Silent) { TOLERATION } else { 0 };
        let (cause, allowed) = match &self.reset {
            Some(reason) => {
                let detection = match reason.as_str() {
                    "FoundFailedPods" => FAILURE_GRACE + toleration,
                    "FoundFailedPods again" => FAILURE_GRACE + WARMUP_GRACE,
                    "InsufficientPodsReady again" => WARMUP_GRACE,
                    _ => toleration,
                };
                let stop = if stalled > 0 { FORCEFUL_DELETION } else { PAUSE };
                (format!("{fault}, {reason}"), detection + stop)
            }
            None => (format!("{fault}, pods replaced"), stalled),
        };
        let cause = format!("{:?}: {cause}{}", job.kind, if stalled > 0 { ", node without progress" } else { "" });
        let took = now.duration_since(self.start).as_secs();
        Recovery { job: job.name.clone(), cause, took, allowed, at: now }
    }
}

/// When the components of an AppWrapper were created last.
pub fn deployed_at(wrapper: &Value) -> Option<Timestamp> {
    condition(wrapper, "ResourcesDeployed")?["lastTransitionTime"].as_str()?.parse().ok()
}

/// Prints recoveries by cause, and returns the 99th percentile of the seconds beyond the allowed
/// time.
pub fn report(seed: u64, recoveries: &[Recovery]) -> i64 {
    let percentile = |sorted: &[i64], percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
    let mut by_cause: BTreeMap<&str, Vec<&Recovery>> = BTreeMap::new();
    for recovery in recoveries {
        by_cause.entry(&recovery.cause).or_default().push(recovery);
    }
    println!("seed {seed}: from fault to pods running again, in seconds");
    println!("{:<90} {:>5} {:>9} {:>6} {:>6}", "cause", "count", "took p99", "over", "p99");
    let over = |all: &[&Recovery]| {
        let mut over: Vec<i64> = all.iter().map(|it| it.took - it.allowed).collect();
        over.sort_unstable();
        over
    };
    for (cause, all) in &by_cause {
        let mut took: Vec<i64> = all.iter().map(|it| it.took).collect();
        took.sort_unstable();
        let over = over(all);
        let (max, p99) = (over[over.len() - 1], percentile(&over, 99));
        println!("{cause:<90} {:>5} {:>9} {max:>6} {p99:>6}", all.len(), percentile(&took, 99));
    }
    let all: Vec<&Recovery> = recoveries.iter().collect();
    let over = over(&all);
    let p99 = if over.is_empty() { 0 } else { percentile(&over, 99) };
    println!("{} recoveries, beyond the configured grace: p99 {p99} s", all.len());
    p99
}
