//! Traces: the jobs of a real cluster, when they were submitted, and how long they ran.
//!
//! Each format has an importer that makes the same [`Trace`]: [`swf`], [`philly`], [`openb`], and
//! [`own`], a documented CSV file. [`read`] chooses the importer by the contents. Errors name the
//! file and the line. Jobs that cannot be replayed (unknown run time, no processor) are left out
//! and counted.

mod builder;
pub mod openb;
pub mod own;
pub mod philly;
mod select;
pub mod swf;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};
use thiserror::Error;

pub use select::Selection;

/// Tenant of jobs whose trace has no users, groups and queues.
pub const ONLY_TENANT: &str = "all";

/// The jobs of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: Format,
    /// The instant from which submissions are counted, if the trace has dates.
    pub start: Option<Time>,
    /// Size of the cluster per resource, in the engine's base units, if it is known.
    pub machine: Option<ResourceList>,
    /// Jobs in order of submission.
    pub jobs: Vec<Job>,
    /// Number of jobs that were left out, by reason.
    pub left_out: BTreeMap<&'static str, usize>,
}

/// One job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Name, unique in the trace.
    pub name: Name,
    /// Time from the start of the trace to its submission.
    pub submitted: Duration,
    /// Run time.
    pub run_time: Duration,
    /// Recorded time from its submission to its start.
    pub waited: Option<Duration>,
    /// Run time that its user declared as the maximum.
    pub limit: Option<Duration>,
    /// Number of equal pods, which start together.
    pub pods: i32,
    /// Requests of one pod in the engine's base units, shared between equal jobs.
    pub requests: Arc<ResourceList>,
    /// Priority; zero if the trace has none.
    pub priority: i32,
    /// Name of its WorkloadPriorityClass.
    pub priority_class: Option<Name>,
    /// Attributes that decide its queue, shared between equal jobs.
    pub owner: Arc<Owner>,
}

impl Job {
    /// The amount of a resource that all its pods request.
    pub fn demand(&self, resource: &str) -> i64 {
        let per_pod = self.requests.get(resource).copied().unwrap_or(0);
        per_pod.saturating_mul(i64::from(self.pods))
    }
}

/// Attributes of a job that decide its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The tenant: of the groups, queues or users, those between which the cluster is shared.
    pub tenant: Name,
    /// The user.
    pub user: Option<Name>,
    /// The group.
    pub group: Option<Name>,
    /// The queue.
    pub queue: Option<Name>,
    /// The partition.
    pub partition: Option<Name>,
}

impl Owner {
    /// The attribute of this name: `tenant`, `user`, `group`, `queue` or `partition`. `None` if the
    /// job has no such attribute; the outer `None` if there is no attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<Option<&Name>> {
        match name {
            "tenant" => Some(Some(&self.tenant)),
            "user" => Some(self.user.as_ref()),
            "group" => Some(self.group.as_ref()),
            "queue" => Some(self.queue.as_ref()),
            "partition" => Some(self.partition.as_ref()),
            _ => None,
        }
    }
}

/// Names of the attributes of an [`Owner`].
pub const ATTRIBUTES: [&str; 5] = ["tenant", "user", "group", "queue", "partition"];

/// Format of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Standard Workload Format of the Parallel Workloads Archive.
    Swf,
    /// Per-job extract of Microsoft's Philly trace.
    Philly,
    /// Pod list of Alibaba's openb trace.
    Openb,
    /// Berth's own CSV file.
    Csv,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Swf => "Standard Workload Format",
            Format::Philly => "Philly",
            Format::Openb => "openb",
            Format::Csv => "CSV",
        })
    }
}

/// Why a file is not a trace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}{}: {problem}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct TraceError {
    /// The file.
    pub file: String,
    /// The line, counted from one.
    pub line: Option<u64>,
    /// What is wrong there, and what was expected.
    pub problem: String,
}

/// A problem in a line, before the name of the file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, counted from one.
    pub line: Option<u64>,
    /// What is wrong there, and what was expected.
    pub text: String,
}

impl Problem {
    pub(crate) fn at(line: u64, text: impl Into<String>) -> Problem {
        Problem { line: Some(line), text: text.into() }
    }

    pub(crate) fn of_file(text: impl Into<String>) -> Problem {
        Problem { line: None, text: text.into() }
    }

    /// The error in a file of this name.
    pub fn in_file(self, file: &str) -> TraceError {
        TraceError { file: file.to_owned(), line: self.line, problem: self.text }
    }
}

/// Reads a trace from the bytes of a file, plain or compressed with gzip. Without a format, it is
/// recognized by the contents.
pub fn read(name: &str, bytes: &[u8], format: Option<Format>) -> Result<Trace, TraceError> {
    let parse = || {
        let text = text(bytes)?;
        let format = match format {
            Some(format) => format,
            None => recognize(&text)?,
        };
        let trace = match format {
            Format::Swf => swf::parse(&text),
            Format::Philly => philly::parse(&text),
            Format::Openb => openb::parse_pods(&text),
            Format::Csv => own::parse(&text),
        }?;
        Ok(Trace { name: name.to_owned(), ..trace })
    };
    parse().map_err(|problem: Problem| problem.in_file(name))
}

/// The text of a file, decompressed if it is compressed with gzip.
pub fn text(bytes: &[u8]) -> Result<String, Problem> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let mut plain = Vec::new();
    let bytes = if bytes.starts_with(&GZIP) {
        std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(bytes), &mut plain)
            .map_err(|error| Problem::of_file(format!("is not a valid gzip file: {error}")))?;
        &plain
    } else {
        bytes
    };
    // Comments of old traces hold names in older encodings; the numbers are ASCII.
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn recognize(text: &str) -> Result<Format, Problem> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let columns: Vec<&str> = first.split(',').map(str::trim).collect();
    let has = |names: &[&str]| names.iter().all(|name| columns.contains(name));
    if first.starts_with(';') || first.split_whitespace().count() == swf::COLUMNS {
        Ok(Format::Swf)
    } else if has(&["timestamp", "duration", "num_gpus"]) {
        Ok(Format::Philly)
    } else if has(&["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"]) {
        Ok(Format::Openb)
    } else if has(&["submit", "run"]) {
        Ok(Format::Csv)
    } else {
        Err(Problem::at(
            1,
            "the format of the file is unknown: expected Standard Workload Format (lines of 18 numbers), or a CSV file \
             with the columns of Philly (timestamp,duration,num_gpus), of openb's pods \
             (name,cpu_milli,memory_mib,num_gpu,gpu_milli), or Berth's own (submit,run)",
        ))
    }
}
