//! Decisions that would differ after Berth took over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use berth_controllers::configuration::Config;
use berth_controllers::jobs::takeover::{Change, consequences};
use jiff::Timestamp;
use serde_json::Value;

use super::{Orders, Verdict};
use crate::forward::{Forward, ForwardJob};
use crate::live::future::{self, Future, Places, Until};
use crate::live::run_times::NEVER;
use crate::live::{LiveJob, State};
use crate::objects::{Namespaced, ObjectRef, Objects};

/// Decisions of the first second count as made at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What would happen to a job or a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// What runs would be stopped.
    Stopped,
    /// A workload with quota would not be recognized, and deleted.
    NotRecognized,
    /// A workload would be evicted or lose its quota.
    Evicted,
    /// A workload would be preempted by another one.
    Preempted,
    /// A workload would be finished.
    Finished,
    /// A job cannot be reconciled.
    Failed,
    /// A waiting workload would be admitted, or a suspended job started.
    Started,
    /// A waiting workload would be created again, and lose its place.
    Requeued,
    /// A waiting workload would have another place in its queue.
    Moved,
}

impl Effect {
    /// The verdict of such a decision.
    pub fn verdict(self) -> Verdict {
        match self {
            Effect::Started | Effect::Requeued | Effect::Moved => Verdict::Different,
            _ => Verdict::Unsupported,
        }
    }

    /// The effect in reports, after "would".
    pub fn as_str(self) -> &'static str {
        match self {
            Effect::Stopped => "be stopped",
            Effect::NotRecognized => "not be recognized",
            Effect::Evicted => "be evicted",
            Effect::Preempted => "be preempted",
            Effect::Finished => "be finished",
            Effect::Failed => "not be reconciled",
            Effect::Started => "start",
            Effect::Requeued => "be queued anew",
            Effect::Moved => "get another place",
        }
    }
}

/// A decision that would differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decision {
    /// What would happen.
    pub effect: Effect,
    /// The job, pod or Workload.
    pub object: ObjectRef,
    /// Why.
    pub message: String,
}

/// What the controllers would change at once.
pub fn of_controllers(objects: &[&Value], config: &Config, now: Timestamp) -> Vec<Decision> {
    let effect = |change: Change| match change {
        Change::Stop => Effect::Stopped,
        Change::DeleteWorkload => Effect::NotRecognized,
        Change::Evict => Effect::Evicted,
        Change::Finish => Effect::Finished,
        Change::Start => Effect::Started,
        Change::Requeue => Effect::Requeued,
        Change::Fail => Effect::Failed,
    };
    let found = consequences(objects.iter().copied(), config, now).into_iter();
    found
        .map(|it| Decision {
            effect: effect(it.change),
            object: ObjectRef::namespaced(&it.kind, &it.key.namespace, &it.key.name),
            message: it.message,
        })
        .collect()
}

/// Number of workloads that hold quota, and of those that wait.
pub fn counts(objects: &Objects, now: Timestamp) -> (usize, usize) {
    let state = State::of(objects, now);
    let known = state.jobs.iter().filter(|job| !job.is_new);
    let (holding, waiting): (Vec<_>, Vec<_>) = known.partition(|job| job.holds());
    (holding.len(), waiting.len())
}

/// What the engine would decide at once, without the end of a job, and the pending workloads whose
/// place in their ClusterQueue would change.
pub fn of_engine(objects: &Objects, orders: &Orders, now: Timestamp) -> Vec<Decision> {
    let mut state = State::of(objects, now);
    state.jobs.retain(|job| !job.is_new);
    let job = |live: &LiveJob| ForwardJob { workload: live.workload.clone(), created: Duration::ZERO, run_time: NEVER };
    let load = Forward {
        start: state.at,
        objects: objects.events(),
        jobs: state.jobs.iter().map(job).collect(),
        restored: Vec::new(),
    };
    let config = future::config(objects);
    let mut decisions = at_once(&state, &future::run(&load, &config, None, Until::TheEnd));
    decisions.extend(moved(&state, &Places::of(&load, &config), orders));
    decisions
}

/// Decisions of a future that come first.
fn at_once(state: &State, future: &Future) -> Vec<Decision> {
    let until = state.at.after(AT_ONCE);
    let mut decisions = Vec::new();
    for (live, next) in state.jobs.iter().zip(&future.jobs) {
        let object = ObjectRef::namespaced("Workload", &live.key.namespace, &live.key.name);
        if live.holds() && next.evicted.is_some_and(|at| at <= until) {
            let message = "the engine would preempt it for a waiting workload at once".to_owned();
            decisions.push(Decision { effect: Effect::Preempted, object, message });
        } else if !live.holds() && next.admitted.is_some_and(|at| at <= until) {
            let flavors: Vec<&str> = next.flavors.iter().map(|flavor| &**flavor).collect();
            let message = format!("waits now, and would be admitted at once, on {}", flavors.join(", "));
            decisions.push(Decision { effect: Effect::Started, object, message });
        }
    }
    decisions
}

/// Pending workloads with another place. Only workloads that both lists have are compared.
fn moved(state: &State, places: &Places, orders: &Orders) -> Vec<Decision> {
    let mut ours: BTreeMap<&str, Vec<(usize, Namespaced)>> = BTreeMap::new();
    for job in state.jobs.iter().filter(|job| !job.holds()) {
        if let Some(queue) = &job.cluster_queue {
            let key = (job.key.namespace.to_string(), job.key.name.to_string());
            ours.entry(queue).or_default().push((places.of_job(job), key));
        }
    }
    let mut decisions = Vec::new();
    for (queue, theirs) in orders {
        let Some(mut here) = ours.remove(queue.as_str()) else { continue };
        here.sort();
        let known: HashSet<&Namespaced> = here.iter().map(|(_, key)| key).collect();
        let before: HashMap<&Namespaced, usize> = theirs.iter().filter(|key| known.contains(key)).zip(1..).collect();
        let both = here.iter().filter_map(|(_, key)| Some((key, *before.get(key)?))).zip(1..);
        for ((key, before), now) in both.filter(|((_, before), now)| before != now) {
            let message = format!(
                "place {before} among the pending workloads of ClusterQueue {queue} with Kueue, and {now} with Berth"
            );
            let object = ObjectRef::namespaced("Workload", &key.0, &key.1);
            decisions.push(Decision { effect: Effect::Moved, object, message });
        }
    }
    decisions
}
