//! Collects jobs: shares equal values between them, rejects repeated names, and orders them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};

use super::{Format, Job, Owner, Problem, Trace};

/// A trace under construction.
#[derive(Debug, Default)]
pub(super) struct Builder {
    jobs: Vec<Job>,
    lines: HashMap<Name, u64>,
    names: HashSet<Name>,
    requests: HashMap<ResourceList, Arc<ResourceList>>,
    owners: HashMap<Owner, Arc<Owner>>,
    left_out: BTreeMap<&'static str, usize>,
}

impl Builder {
    /// The shared copy of a name.
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(known) = self.names.get(text) {
            return known.clone();
        }
        let name = Name::from(text);
        self.names.insert(name.clone());
        name
    }

    /// The shared copy of requests.
    pub fn requests(&mut self, list: ResourceList) -> Arc<ResourceList> {
        share(&mut self.requests, list)
    }

    /// The shared copy of an owner.
    pub fn owner(&mut self, owner: Owner) -> Arc<Owner> {
        share(&mut self.owners, owner)
    }

    /// Counts a job that cannot be replayed.
    pub fn leave_out(&mut self, reason: &'static str) {
        *self.left_out.entry(reason).or_default() += 1;
    }

    /// Adds the job of a line.
    pub fn add(&mut self, line: u64, job: Job) -> Result<(), Problem> {
        if let Some(first) = self.lines.insert(job.name.clone(), line) {
            return Err(Problem::at(line, format!("job {} is already in line {first}", job.name)));
        }
        self.jobs.push(job);
        Ok(())
    }

    /// The trace. Submissions are counted from the first one; `start` is the instant from which the
    /// jobs count them.
    pub fn finish(self, format: Format, start: Option<Time>, machine: Option<ResourceList>) -> Result<Trace, Problem> {
        let Builder { mut jobs, left_out, .. } = self;
        jobs.sort_by_key(|job| job.submitted);
        let Some(first) = jobs.first().map(|job| job.submitted) else {
            return Err(Problem::of_file("has no job that can be replayed"));
        };
        for job in &mut jobs {
            job.submitted -= first;
        }
        let start = start.map(|start| start.after(first));
        Ok(Trace { name: String::new(), format, start, machine, jobs, left_out })
    }
}

fn share<T: Clone + Eq + Hash>(known: &mut HashMap<T, Arc<T>>, value: T) -> Arc<T> {
    if let Some(shared) = known.get(&value) {
        return shared.clone();
    }
    let shared = Arc::new(value.clone());
    known.insert(value, shared.clone());
    shared
}

/// A non-negative number of seconds.
pub(super) fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}
