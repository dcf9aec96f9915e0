//! What a watch of the Workloads shows, as the history of a replay.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_controllers::translate::admission::from_api;
use berth_engine::Name;
use berth_engine::model::Time;
use berth_foresight::replay::Replay;
use berth_load::{History, Holding, Holdings, JobRecord, JobRun, Load};

use super::names::Names;
use super::objects;

/// The history of consecutive jobs so far. Numbers of jobs in it count from the first of them.
pub struct Observed {
    /// Number in the trace of the first job.
    first: usize,
    history: History,
    holdings: Holdings,
    /// The admission of each job that holds quota, and the index of what it holds.
    held: Vec<Option<(Time, u32)>>,
    /// Submissions, from the trace.
    submitted: Vec<Time>,
    /// Names of the cluster queues in the policy, by those in the cluster.
    originals: BTreeMap<String, String>,
    ended: usize,
    changes: u64,
}

impl Observed {
    /// Nothing has happened.
    pub fn new(replay: &Replay<'_>, jobs: Range<usize>, names: &Names) -> Observed {
        let (start, first) = (replay.start(), jobs.start);
        let jobs = &replay.trace().jobs[jobs];
        Observed {
            first,
            history: History { start: Some(start), ..History::default() },
            holdings: Holdings::default(),
            held: vec![None; jobs.len()],
            submitted: jobs.iter().map(|job| start.after(job.submitted)).collect(),
            originals: names.originals(),
            ended: 0,
            changes: 0,
        }
    }

    /// The next job is submitted.
    pub fn created(&mut self) {
        let submitted = self.submitted[self.history.jobs.len()];
        self.history.jobs.push(JobRecord::new(submitted));
        self.changes += 1;
    }

    /// Number of jobs that have ended.
    pub fn ended(&self) -> usize {
        self.ended
    }

    /// Number of jobs that have not ended.
    pub fn open(&self) -> usize {
        self.held.len() - self.ended
    }

    /// Number of jobs that hold quota.
    pub fn holding(&self) -> usize {
        self.held.iter().flatten().count()
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A Workload was created or changed.
    pub fn workload(&mut self, workload: &Workload, now: Time) {
        let owners = workload.metadata.owner_references.iter().flatten();
        let number = owners.into_iter().find_map(|owner| objects::number(&owner.name));
        let Some(number) = number.and_then(|number| number.checked_sub(self.first)) else { return };
        let Some(record) = self.history.jobs.get(number) else { return };
        if record.ended.is_some() {
            return;
        }
        let status = workload.status.as_ref();
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is_true = |type_: &str| conditions.iter().any(|it| it.type_ == type_ && it.status == "True");
        let admission = status.and_then(|status| status.admission.as_ref()).filter(|_| is_true("QuotaReserved"));
        match (self.held[number], admission) {
            (Some(run), _) if is_true("Finished") => self.end(number, run, now),
            (None, Some(admission)) if !is_true("Finished") => {
                let mut holding = Holding::of(&from_api(admission));
                if let Some(original) = self.originals.get(&*holding.cluster_queue) {
                    holding.cluster_queue = Name::from(original.as_str());
                }
                self.start(number, holding, now);
            }
            (Some(run), None) => self.evict(number, run, now),
            _ => {}
        }
    }

    /// The history.
    pub fn take(&mut self) -> History {
        for (number, held) in self.held.iter_mut().enumerate() {
            if let Some((from, holding)) = held.take() {
                let job = u32::try_from(number).unwrap_or(u32::MAX);
                self.history.runs.push(JobRun { job, holding, from, to: None, evicted: false });
            }
        }
        std::mem::take(&mut self.history)
    }

    fn start(&mut self, number: usize, holding: Holding, now: Time) {
        self.changes += 1;
        self.held[number] = Some((now, self.holdings.index(holding, &mut self.history)));
        self.history.admissions += 1;
        let record = &mut self.history.jobs[number];
        record.started = Some(now);
        record.first_started.get_or_insert(now);
    }

    fn end(&mut self, number: usize, run: (Time, u32), now: Time) {
        self.release(number, run, now, false);
        self.ended += 1;
        self.history.jobs[number].ended = Some(now);
        self.history.wall = self.history.start.map_or(Duration::ZERO, |start| start.until(now));
    }

    fn evict(&mut self, number: usize, run: (Time, u32), now: Time) {
        self.release(number, run, now, true);
        let record = &mut self.history.jobs[number];
        record.started = None;
        record.evictions += 1;
        record.lost += run.0.until(now);
    }

    fn release(&mut self, number: usize, (from, holding): (Time, u32), now: Time, evicted: bool) {
        self.changes += 1;
        self.held[number] = None;
        let job = u32::try_from(number).unwrap_or(u32::MAX);
        self.history.runs.push(JobRun { job, holding, from, to: Some(now), evicted });
    }
}
