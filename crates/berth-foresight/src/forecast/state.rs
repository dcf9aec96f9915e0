//! The state of a cluster at one instant, and the load that runs forward from it.

use std::time::Duration;

use berth_engine::model::{Admission, PodSetAssignment, Time, Workload};
use berth_engine::{Event, Name};
use berth_load::{Holding, Load, Probe, drive};

use crate::replay::Replay;

/// The jobs of a replayed trace at one instant.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// The instant.
    pub at: Option<Time>,
    /// Jobs that run: number, start, and index of the held quota.
    pub running: Vec<(usize, Time, u32)>,
    /// Jobs that wait: number and creation, in order of creation.
    pub waiting: Vec<(usize, Time)>,
    /// Jobs like those that will arrive: time from now, and number of the job to copy.
    pub arrivals: Vec<(Duration, usize)>,
}

impl State {
    fn jobs(&self) -> usize {
        self.running.len() + self.waiting.len() + self.arrivals.len()
    }

    /// Number of jobs that run or wait.
    pub fn present(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Time for which the job at a place has run.
    pub fn elapsed(&self, place: usize) -> Duration {
        let run = self.running.get(place).zip(self.at);
        run.map_or(Duration::ZERO, |((_, since, _), at)| since.until(at))
    }

    /// Number in the trace of a job of the state, by its place: running, waiting, arriving.
    pub fn number(&self, place: usize) -> usize {
        let waiting = place.wrapping_sub(self.running.len());
        let arriving = waiting.wrapping_sub(self.waiting.len());
        if place < self.running.len() {
            self.running[place].0
        } else if waiting < self.waiting.len() {
            self.waiting[waiting].0
        } else {
            self.arrivals[arriving].1
        }
    }

    /// Time from now to the start of the waiting job with this number in the trace, if jobs run as
    /// long as `run_time` says (by place, number, and time for which the job has run). `None` if it
    /// does not start.
    pub fn start_of(
        &self,
        job: usize,
        replay: &Replay<'_>,
        holdings: &[Holding],
        run_time: &dyn Fn(usize, usize, Duration) -> Duration,
    ) -> Option<Duration> {
        let at = self.at?;
        let place = self.running.len() + self.waiting.iter().position(|(number, _)| *number == job)?;
        let times = (0..self.jobs()).map(|place| run_time(place, self.number(place), self.elapsed(place))).collect();
        let load = Forward { state: self, at, replay, holdings, times };
        let mut target = Target { place, started: None };
        drive::run(&load, replay.policy().config.clone(), &mut target);
        target.started.map(|started| at.until(started))
    }
}

/// Watches for the start of one job.
struct Target {
    place: usize,
    started: Option<Time>,
}

impl Probe for Target {
    fn started(&mut self, number: usize, at: Time) {
        if number == self.place {
            self.started.get_or_insert(at);
        }
    }

    fn is_enough(&self) -> bool {
        self.started.is_some()
    }
}

/// A state as a load.
struct Forward<'a> {
    state: &'a State,
    at: Time,
    replay: &'a Replay<'a>,
    holdings: &'a [Holding],
    times: Vec<Duration>,
}

impl Load for Forward<'_> {
    fn start(&self) -> Time {
        self.at
    }

    fn objects(&self) -> Vec<Event> {
        self.replay.objects()
    }

    fn jobs(&self) -> usize {
        self.state.jobs()
    }

    fn created(&self, place: usize) -> Duration {
        let arriving = place.checked_sub(self.state.running.len() + self.state.waiting.len());
        arriving.map_or(Duration::ZERO, |arriving| self.state.arrivals[arriving].0)
    }

    fn workload(&self, place: usize) -> Workload {
        let number = self.state.number(place);
        let mut workload = self.replay.workload(number);
        let (running, waiting) = (&self.state.running, &self.state.waiting);
        if let Some((_, since, holding)) = running.get(place) {
            workload.created = *since;
            workload.admission = Some(admission(&workload, &self.holdings[*holding as usize]));
            workload.admitted = true;
            workload.reserved_at = Some(*since);
        } else if let Some((_, created)) = waiting.get(place - running.len()) {
            workload.created = *created;
        } else {
            let name = format!("next-{place}");
            workload.uid = Name::from(format!("next-{place:010}"));
            workload.key.name = Name::from(name);
        }
        workload
    }

    fn run_time(&self, place: usize) -> Duration {
        self.times[place]
    }
}

/// The admission with which a workload of one pod set holds quota.
fn admission(workload: &Workload, holding: &Holding) -> Admission {
    let sets = workload.pod_sets.iter().map(|set| PodSetAssignment {
        name: set.name.clone(),
        flavors: holding.amounts.iter().map(|(flavor, resource, _)| (resource.clone(), flavor.clone())).collect(),
        usage: holding.amounts.iter().map(|(_, resource, amount)| (resource.clone(), *amount)).collect(),
        count: Some(set.count),
        topology: None,
        delayed_topology_pending: None,
    });
    Admission { cluster_queue: holding.cluster_queue.clone(), pod_sets: sets.collect() }
}
