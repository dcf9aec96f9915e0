//! The journal of a pod: the starts and ends of its containers, recorded by its supervisor.
//!
//! One line of JSON per record. The records survive the end of any process, but a crash of the
//! machine may lose the last of them. The node's log of starts (`runtime/starts.rs`) is synced
//! before a program runs, and replaces lost records of starts, so that no program runs a second
//! time. The end of a run is unknown if it was lost, as it is for a run that the crash itself
//! ended. A partial last line is ignored.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use berth_pod_runtime::{ContainerId, ContainerState, ContainerStatus, Exit};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::processes::ProcessId;
use crate::protocol::{Launch, WireError};

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "record")]
pub(crate) enum Record {
    /// A supervisor started to serve the pod.
    Supervisor { process: ProcessId, at: Timestamp },
    /// The supervisor's launch configuration, without the pod's volumes.
    Launch { launch: Box<Launch> },
    /// A container's program will be executed next.
    Started { id: ContainerId, image_id: String, process: ProcessId, at: Timestamp },
    /// The container's program could not be executed.
    Failed { id: ContainerId, error: WireError, exit: Exit },
    /// The container's program ended.
    Exited { id: ContainerId, exit: Exit },
}

/// The journal, open for appending.
pub(crate) struct Journal(File);

impl Journal {
    /// Opens or creates a journal. Completes a partial last line, so that the next record starts on
    /// a new line.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().create(true).append(true).read(true).open(path)?;
        let bytes = std::fs::read(path)?;
        if bytes.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n")?;
        }
        Ok(Self(file))
    }

    /// Appends a record and syncs it to disk.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        self.append_unsynced(record)?;
        self.0.sync_data()
    }

    /// Appends a record without waiting for the disk.
    pub fn append_unsynced(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.0.write_all(&line)
    }
}

/// Reads the records of a journal. A journal that does not exist has none.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Record>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// One run of a container in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub status: ContainerStatus,
    pub process: ProcessId,
    /// Error of a start that failed.
    pub error: Option<WireError>,
}

/// The runs of a journal in order of their starts. A run without an end is
/// [`ContainerState::Unknown`]: its supervisor may have ended without recording the end.
pub(crate) fn runs(records: &[Record]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for record in records {
        match record {
            Record::Started { id, image_id, process, at } => runs.push(Run {
                status: ContainerStatus {
                    id: id.clone(),
                    image_id: image_id.clone(),
                    state: ContainerState::Unknown { started_at: Some(*at) },
                },
                process: process.clone(),
                error: None,
            }),
            Record::Failed { id, error, exit } => {
                if let Some(run) = runs.iter_mut().find(|run| run.status.id == *id) {
                    run.status.state = ContainerState::Exited(exit.clone());
                    run.error = Some(error.clone());
                }
            }
            Record::Exited { id, exit } => {
                if let Some(run) = runs.iter_mut().find(|run| run.status.id == *id) {
                    run.status.state = ContainerState::Exited(exit.clone());
                }
            }
            Record::Supervisor { .. } | Record::Launch { .. } => {}
        }
    }
    runs
}

/// The supervisor that wrote to the journal last.
pub(crate) fn supervisor(records: &[Record]) -> Option<&ProcessId> {
    records.iter().rev().find_map(|record| match record {
        Record::Supervisor { process, .. } => Some(process),
        _ => None,
    })
}

/// The launch configuration of the last supervisor, without the pod's volumes.
pub(crate) fn launch(records: &[Record]) -> Option<&Launch> {
    records.iter().rev().find_map(|record| match record {
        Record::Launch { launch } => Some(launch.as_ref()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_pod_runtime::PodUid;

    fn id(attempt: u32) -> ContainerId {
        ContainerId { pod: PodUid("p".to_owned()), name: "main".to_owned(), attempt }
    }

    fn started(attempt: u32) -> Record {
        let process = ProcessId { boot: "b".to_owned(), pid: 5, started: 9 };
        Record::Started { id: id(attempt), image_id: "host".to_owned(), process, at: Timestamp::UNIX_EPOCH }
    }

    fn exit() -> Exit {
        Exit {
            started_at: Timestamp::UNIX_EPOCH,
            finished_at: Timestamp::UNIX_EPOCH,
            exit_code: 3,
            signal: None,
            oom_killed: false,
            message: String::new(),
        }
    }

    #[test]
    fn a_start_without_an_end_is_unknown() {
        let records = [started(0), Record::Exited { id: id(0), exit: exit() }, started(1)];
        let states: Vec<ContainerState> = runs(&records).into_iter().map(|run| run.status.state).collect();
        let unknown = ContainerState::Unknown { started_at: Some(Timestamp::UNIX_EPOCH) };
        assert_eq!(states, [ContainerState::Exited(exit()), unknown]);
    }

    #[test]
    fn a_partial_line_is_ignored_and_the_next_record_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        Journal::open(&path).unwrap().append(&started(0)).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(b"{\"record\":\"Exi");
        std::fs::write(&path, bytes).unwrap();
        Journal::open(&path).unwrap().append(&started(1)).unwrap();
        assert_eq!(read(&path).unwrap(), [started(0), started(1)]);
    }
}
