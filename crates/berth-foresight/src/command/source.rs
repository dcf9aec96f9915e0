//! Where forecasts and comparisons take the state of a cluster from.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use jiff::Timestamp;

use crate::live::State;
use crate::live::forecast::Prospect;
use crate::live::run_times::RunTimes;
use crate::objects::{Objects, Template};
use crate::snapshot::Snapshot;

/// The state, and what to assume about it.
#[derive(Debug, Default, Args)]
pub struct SourceOptions {
    /// A snapshot of `berth snapshot`, instead of the cluster of the kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// The configuration file of the controllers, unless it is the default.
    #[arg(long, value_name = "FILE")]
    configuration: Option<PathBuf>,
    /// Run time of jobs without any estimate, such as 30m or 8h. Without this option, such jobs
    /// never end, and the start of jobs that wait for their end is unknown.
    #[arg(long, value_name = "TIME", value_parser = super::duration)]
    run_time: Option<Duration>,
}

/// A state, ready to run forward.
#[derive(Debug)]
pub struct Known {
    /// The jobs.
    pub state: State,
    /// What runs need.
    pub prospect: Prospect,
}

impl SourceOptions {
    /// Reads the snapshot, if the options name one.
    pub fn read(&self) -> anyhow::Result<Option<Snapshot>> {
        let Some(path) = &self.snapshot else { return Ok(None) };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Some(Snapshot::parse(&text).with_context(|| path.display().to_string())?))
    }

    /// The state of a snapshot.
    pub fn prepare(&self, snapshot: &Snapshot, template: Template<'_>) -> anyhow::Result<Known> {
        Ok(Known::of(&self.objects(snapshot)?, snapshot.at, self.run_time, template))
    }

    fn objects(&self, snapshot: &Snapshot) -> anyhow::Result<Objects> {
        let mut snapshot = snapshot.clone();
        if let Some(path) = &self.configuration {
            let (documents, _) = super::check::documents(std::slice::from_ref(path))?;
            snapshot.objects.extend(documents.into_iter().map(|document| document.value));
        }
        valid(&snapshot)
    }
}

/// The objects of a snapshot.
///
/// # Errors
/// An object cannot be used; the text names it and the problems.
pub fn valid(snapshot: &Snapshot) -> anyhow::Result<Objects> {
    let objects = snapshot.read();
    if let Some(invalid) = objects.invalid.first() {
        bail!("{}: {}", invalid.object, invalid.problems.join("; "));
    }
    Ok(objects)
}

impl Known {
    /// The state of a set of objects at `at`; `run_time` is that of jobs about which nothing is
    /// known.
    pub fn of(objects: &Objects, at: Timestamp, run_time: Option<Duration>, template: Template<'_>) -> Known {
        let state = State::of(objects, at);
        let prospect = Prospect::new(objects, &state, &RunTimes::of(objects, run_time), template);
        Known { state, prospect }
    }

    /// The number of a job in the state.
    pub fn find(&self, job: &str) -> anyhow::Result<usize> {
        let (namespace, name) = job.split_once('/').unwrap_or(("default", job));
        let is_it = |job: &crate::live::LiveJob| {
            let is_owned = job.owner.as_ref().is_some_and(|owner| owner.name == name);
            &*job.key.namespace == namespace && (&*job.key.name == name || is_owned)
        };
        let found = self.state.jobs.iter().position(is_it);
        found.with_context(|| format!("no unfinished job or Workload {namespace}/{name}"))
    }
}
