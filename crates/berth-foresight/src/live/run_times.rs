//! What is known of the run times of live jobs.
//!
//! In this order: the run time that the pods declare (annotation `berth.dev/run-duration`), the run
//! times of similar jobs ([`Estimator`]), the declared maximum, and a default that
//! the user states. Similar jobs are those of the same cluster queue whose names differ in numbers
//! only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::RUN_DURATION_ANNOTATION;
use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_engine::Name;
use berth_engine::model::Time;

use super::{LiveJob, State};
use crate::forecast::estimate::{Estimate, Estimator, Known};
use crate::objects::Objects;
use crate::trace::{Job, Owner};

/// Longer than any job runs: the run time of a job about which nothing is known.
pub const NEVER: Duration = Duration::from_secs(50 * 365 * 86_400);

/// What is known of the run time of one job.
#[derive(Debug, Clone, PartialEq)]
pub enum RunTime {
    /// It is stated.
    Stated(Duration),
    /// Similar jobs have run.
    Learned(Estimate),
    /// Nothing is known.
    Unknown,
}

impl RunTime {
    /// The run time in one draw.
    pub fn drawn(&self, seed: u64, place: usize) -> Duration {
        match self {
            RunTime::Stated(time) => *time,
            RunTime::Learned(estimate) => estimate.drawn(seed, place),
            RunTime::Unknown => NEVER,
        }
    }

    /// The median.
    pub fn median(&self) -> Duration {
        match self {
            RunTime::Stated(time) => *time,
            RunTime::Learned(estimate) => estimate.quantile(0.5),
            RunTime::Unknown => NEVER,
        }
    }
}

/// Run times of the jobs that have ended, and times from their reservation of quota to running
/// pods.
#[derive(Debug, Default)]
pub struct RunTimes {
    estimator: Estimator,
    /// Times from the reservation of quota to running pods, sorted, by flavor.
    start_delays: BTreeMap<Name, Vec<Duration>>,
    default: Option<Duration>,
}

impl RunTimes {
    /// Learns from the workloads of the set. `default` is the run time of jobs about which nothing
    /// else is known.
    pub fn of(objects: &Objects, default: Option<Duration>) -> RunTimes {
        let mut learned = RunTimes { default, ..RunTimes::default() };
        let mut events: Vec<(Time, bool, usize, Job)> = Vec::new();
        for (number, workload) in objects.workloads.values().enumerate() {
            let workload = &workload.object;
            let Some(admitted) = transition(workload, "Admitted") else { continue };
            let ready = transition(workload, "PodsReady").filter(|ready| *ready >= admitted);
            if let Some(ready) = ready {
                // Admission checks, such as provisioning, are part of the delay.
                let reserved = transition(workload, "QuotaReserved").unwrap_or(admitted);
                for flavor in flavors(workload) {
                    learned.start_delays.entry(flavor).or_default().push(reserved.until(ready));
                }
            }
            let finished = transition(workload, "Finished");
            // Without the time at which its pods were ready, the run time so far is not known.
            let Some(from) = ready.or(finished.map(|_| admitted)) else { continue };
            let job = similar(objects, workload, finished.map_or(Duration::ZERO, |finished| from.until(finished)));
            if let Some(finished) = finished {
                events.push((finished, true, number, job.clone()));
            }
            events.push((from, false, number, job));
        }
        events.sort_by_key(|(at, ends, number, _)| (*at, *ends, *number));
        for (at, ends, number, job) in &events {
            match ends {
                true => learned.estimator.end(*number, job),
                false => learned.estimator.start(*number, job, *at),
            }
        }
        learned.start_delays.values_mut().for_each(|delays| delays.sort_unstable());
        learned
    }

    /// What is known of the run times of the jobs of a state, in their order.
    pub fn of_jobs(&self, state: &State) -> Vec<RunTime> {
        let mut known = self.estimator.at(state.at);
        state.jobs.iter().map(|job| self.of_job(job, state.at, &mut known)).collect()
    }

    fn of_job(&self, job: &LiveJob, at: Time, known: &mut Known<'_>) -> RunTime {
        let elapsed = job.running_since.map_or(Duration::ZERO, |since| since.until(at));
        let limit = job.limit.unwrap_or(Duration::MAX);
        if let Some(declared) = job.declared {
            return RunTime::Stated(declared.min(limit));
        }
        if let Some(estimate) = known.estimate(&like(job), elapsed) {
            return RunTime::Learned(estimate);
        }
        match job.limit.or(self.default) {
            Some(time) => RunTime::Stated(time.min(limit)),
            None => RunTime::Unknown,
        }
    }

    /// The median time from the reservation of quota to running pods for a flavor, if any was seen.
    pub fn start_delay(&self, flavor: &Name) -> Option<Duration> {
        self.start_delays.get(flavor).and_then(|delays| delays.get(delays.len() / 2).copied())
    }
}

/// The run time that the pods of a workload declare: the longest of the pod sets.
pub fn declared(workload: &api::Workload) -> Option<Duration> {
    let times: Option<Vec<Duration>> = workload.spec.pod_sets.iter().map(declared_by).collect();
    times.and_then(|times| times.into_iter().max())
}

fn declared_by(set: &api::PodSet) -> Option<Duration> {
    let annotations = set.template.metadata.as_ref()?.annotations.as_ref()?;
    let text = annotations.get(RUN_DURATION_ANNOTATION)?;
    text.parse::<berth_api::berth::Duration>().ok().map(|duration| duration.0)
}

/// When a condition became True, if it is.
pub(super) fn transition(workload: &api::Workload, type_: &str) -> Option<Time> {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition.type_ == type_ && condition.status == "True")?;
    Some(translate::time(found.last_transition_time.0))
}

fn flavors(workload: &api::Workload) -> Vec<Name> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let sets = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    let mut names: Vec<Name> =
        sets.iter().flat_map(|set| set.flavors.values()).map(|it| Name::from(it.as_str())).collect();
    names.sort();
    names.dedup();
    names
}

/// A job that has ended, for the estimator.
fn similar(objects: &Objects, workload: &api::Workload, run_time: Duration) -> Job {
    let namespace = workload.metadata.namespace.clone().unwrap_or_default();
    let queue = objects.local_queues.get(&(namespace, workload.spec.queue_name.clone()));
    let queue = queue.map_or("", |queue| queue.object.spec.cluster_queue.as_str());
    let owners = workload.metadata.owner_references.iter().flatten();
    let owner = owners.clone().find(|owner| owner.controller == Some(true)).map(|owner| owner.name.as_str());
    let name = owner.or(workload.metadata.name.as_deref()).unwrap_or_default();
    let pods = workload.spec.pod_sets.iter().map(|set| set.count).sum();
    job(queue, name, pods, None, run_time)
}

fn like(live: &LiveJob) -> Job {
    let name = live.owner.as_ref().map_or(&*live.key.name, |owner| owner.name.as_str());
    let pods = live.workload.pod_sets.iter().map(|set| set.count).sum();
    job(live.cluster_queue.as_deref().unwrap_or_default(), name, pods, live.limit, Duration::ZERO)
}

fn job(queue: &str, name: &str, pods: i32, limit: Option<Duration>, run_time: Duration) -> Job {
    let owner =
        Owner { tenant: Name::from(queue), user: Some(template(name)), group: None, queue: None, partition: None };
    Job {
        name: Name::from(name),
        submitted: Duration::ZERO,
        run_time,
        waited: None,
        limit,
        pods,
        requests: Arc::default(),
        priority: 0,
        priority_class: None,
        owner: Arc::new(owner),
    }
}

/// The name without its numbers: what the jobs of one template have in common.
fn template(name: &str) -> Name {
    let mut text = String::with_capacity(name.len());
    for letter in name.chars() {
        let letter = if letter.is_ascii_digit() { '#' } else { letter };
        if !(letter == '#' && text.ends_with('#')) {
            text.push(letter);
        }
    }
    Name::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_template_differ_in_numbers_only() {
        assert_eq!(template("train-2811-7"), template("train-5-12"));
        assert_ne!(template("train-1"), template("test-1"));
    }
}
