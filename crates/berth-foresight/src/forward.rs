//! Jobs and a configuration as a load: the future of a cluster, if its jobs run as long as stated.

use std::time::Duration;

use berth_engine::Event;
use berth_engine::model::{Time, Workload};
use berth_load::Load;

/// A job of a [`Forward`].
#[derive(Debug, Clone, PartialEq)]
pub struct ForwardJob {
    /// Its workload; it runs at the start if it holds an admission.
    pub workload: Workload,
    /// Time from the start to its creation.
    pub created: Duration,
    /// Time from the start of its pods to its end.
    pub run_time: Duration,
}

/// Jobs and a configuration at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// The instant.
    pub start: Time,
    /// The configuration, ordered so that every referenced object exists.
    pub objects: Vec<Event>,
    /// The jobs, in order of creation.
    pub jobs: Vec<ForwardJob>,
    /// What the engine knew at the instant beside the objects.
    pub restored: Vec<Event>,
}

impl Load for Forward {
    fn start(&self) -> Time {
        self.start
    }

    fn objects(&self) -> Vec<Event> {
        self.objects.clone()
    }

    fn restored(&self) -> Vec<Event> {
        self.restored.clone()
    }

    fn jobs(&self) -> usize {
        self.jobs.len()
    }

    fn created(&self, number: usize) -> Duration {
        self.jobs[number].created
    }

    fn workload(&self, number: usize) -> Workload {
        self.jobs[number].workload.clone()
    }

    fn run_time(&self, number: usize) -> Duration {
        self.jobs[number].run_time
    }
}
