//! The node's log of starts. It makes the starts of many pods durable with one sync.
//!
//! No program may run a second time after a crash of the machine, so the start of a run is on disk
//! before the program runs. The journals of pods ([`crate::journal`]) are not synced: that would
//! take one sync per start, and the disk performs them one after another. Instead, a thread appends
//! a line per start to one file, syncs all lines that wait, and only then are the runs requested
//! from the supervisors.
//!
//! As long as the machine runs, the journals are complete, and the log is not used. After a crash
//! of the machine, the next [`open`] adds the lines of former boots to journals that lack them. The
//! state of such a run is unknown. It may not have started at all, if the machine crashed between
//! the line and the start.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use berth_pod_runtime::{ContainerConfig, ContainerId, PodUid, Result, RuntimeError, SandboxConfig};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::folder::{NodeFolder, PodFolder};
use crate::journal::{self, Journal, Record};
use crate::processes::{ProcessId, boot_id};
use crate::protocol::Launch;
use crate::time::now;

/// Space for new lines in bytes, filled with zeros when the file is written anew. A sync of a line
/// in this space writes one block: the file does not grow, so the sync does not wait for the file
/// system's journal, which would first write the data of other files.
const SPACE_BYTES: usize = 1 << 20;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "line")]
enum Line {
    /// A run that is requested from the pod's supervisor next.
    Start(Box<Start>),
    /// The run of a container was not started.
    NotStarted { id: ContainerId },
    /// The pod was removed.
    Removed { pod: PodUid },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Start {
    /// Boot ID of the machine.
    boot: String,
    id: ContainerId,
    image_id: String,
    at: Timestamp,
    /// The supervisor's launch configuration, without the pod's volumes.
    launch: Launch,
}

/// The last start of each container of the pods that exist, as lines of the file.
type Lines = BTreeMap<PodUid, BTreeMap<String, Vec<u8>>>;

/// A change to the file.
enum Change {
    Start { id: ContainerId, line: Vec<u8>, written: oneshot::Sender<std::result::Result<(), String>> },
    NotStarted(ContainerId),
    Removed(PodUid),
}

/// The log of starts, served by a thread that ends when this value is dropped.
pub(super) struct Starts(mpsc::Sender<Change>);

/// Opens the log, and completes the journals of pods whose starts a crash of the machine lost.
///
/// # Errors
/// The log or a journal cannot be read or written.
pub(super) fn open(folder: &NodeFolder) -> Result<Starts> {
    let path = folder.starts();
    let failed = |error: io::Error| RuntimeError::Internal(format!("{}: {error}", path.display()));
    let boot = boot_id();
    let mut lines = Lines::new();
    let mut is_restored = false;
    for (start, line) in read(&path).map_err(failed)? {
        if start.boot == boot {
            lines.entry(start.id.pod.clone()).or_default().insert(start.id.name.clone(), line);
        } else {
            restore(&folder.pod(&start.id.pod)?, &start).map_err(failed)?;
            is_restored = true;
        }
    }
    if is_restored {
        File::open(folder.pods()).and_then(|pods| pods.sync_all()).map_err(failed)?;
    }
    lines.retain(|pod, _| folder.pod(pod).is_ok_and(|folder| folder.path().exists()));
    let mut file = LogFile { path: path.clone(), file: None, space: 0, lines };
    file.rewrite().map_err(failed)?;
    let (sender, changes) = mpsc::channel();
    let thread = std::thread::Builder::new().name("log-of-starts".to_owned());
    thread.spawn(move || serve(&mut file, &changes)).map_err(failed)?;
    Ok(Starts(sender))
}

impl Starts {
    /// Records that a run will be requested from the pod's supervisor. Returns once the record is
    /// on disk.
    pub async fn record(&self, launch: &Launch, config: &ContainerConfig) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| RuntimeError::Internal(format!("recording a start: {error}"));
        let launch = Launch {
            // The contents of volumes are large and may be secret.
            config: SandboxConfig { volumes: BTreeMap::new(), ..launch.config.clone() },
            ..launch.clone()
        };
        let (id, image_id) = (config.id.clone(), config.image.id.clone());
        let start = Start { boot: boot_id(), id: id.clone(), image_id, at: now(), launch };
        let line = bytes(&Line::Start(Box::new(start))).map_err(|error| failed(&error))?;
        let (written, is_written) = oneshot::channel();
        self.send(Change::Start { id, line, written });
        is_written.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }

    /// Withdraws the record of a run whose start failed.
    pub fn not_started(&self, id: &ContainerId) {
        self.send(Change::NotStarted(id.clone()));
    }

    /// Drops the records of a pod that was removed.
    pub fn removed(&self, pod: &PodUid) {
        self.send(Change::Removed(pod.clone()));
    }

    /// The thread ends only after this value is dropped. If it panicked, the next record fails.
    fn send(&self, change: Change) {
        let _ = self.0.send(change);
    }
}

/// Writes changes. Those that arrive during a sync are written together.
fn serve(file: &mut LogFile, changes: &mpsc::Receiver<Change>) {
    while let Ok(first) = changes.recv() {
        let mut waiting = Vec::new();
        let mut text = Vec::new();
        for change in std::iter::once(first).chain(changes.try_iter()) {
            waiting.extend(file.apply(change, &mut text));
        }
        let outcome =
            file.write(&text, !waiting.is_empty()).map_err(|error| format!("{}: {error}", file.path.display()));
        for written in waiting {
            let _ = written.send(outcome.clone());
        }
    }
}

/// The file, and the lines in it that are still needed.
struct LogFile {
    path: PathBuf,
    /// The open file. `None` after an error: then it is written anew, because its last line may be
    /// incomplete, and a failed sync is not repeated.
    file: Option<File>,
    /// Number of bytes that can be written before the file is full.
    space: usize,
    lines: Lines,
}

impl LogFile {
    /// Adds the line of a change to the text to write. Returns the sender that waits for it.
    fn apply(
        &mut self,
        change: Change,
        text: &mut Vec<u8>,
    ) -> Option<oneshot::Sender<std::result::Result<(), String>>> {
        let line = match change {
            Change::Start { id, line, written } => {
                text.extend_from_slice(&line);
                self.lines.entry(id.pod).or_default().insert(id.name, line);
                return Some(written);
            }
            Change::NotStarted(id) => {
                self.lines.get_mut(&id.pod)?.remove(&id.name)?;
                Line::NotStarted { id }
            }
            Change::Removed(pod) => {
                self.lines.remove(&pod)?;
                Line::Removed { pod }
            }
        };
        text.extend(bytes(&line).ok()?);
        None
    }

    /// Adds text after the last line, and syncs it if a start waits for it.
    fn write(&mut self, text: &[u8], is_synced: bool) -> io::Result<()> {
        let Some(space) = self.space.checked_sub(text.len()) else { return self.rewrite() };
        let Some(file) = &mut self.file else { return self.rewrite() };
        let outcome = file.write_all(text).and_then(|()| if is_synced { file.sync_data() } else { Ok(()) });
        self.space = space;
        if outcome.is_err() {
            self.file = None;
        }
        outcome
    }

    /// Replaces the file by one with the needed lines and space for new ones, durably.
    fn rewrite(&mut self) -> io::Result<()> {
        self.file = None;
        let text: Vec<u8> = self.lines.values().flat_map(BTreeMap::values).flatten().copied().collect();
        let temporary = self.path.with_extension("new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        file.write_all(&vec![0; SPACE_BYTES])?;
        file.seek(io::SeekFrom::Start(text.len() as u64))?;
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)?;
        if let Some(parent) = self.path.parent() {
            File::open(parent)?.sync_all()?;
        }
        (self.file, self.space) = (Some(file), SPACE_BYTES);
        Ok(())
    }
}

fn bytes(line: &Line) -> io::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The starts in the file that were not withdrawn, with their lines. A partial last line and the
/// zeros after it are ignored.
fn read(path: &Path) -> io::Result<Vec<(Box<Start>, Vec<u8>)>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut starts: Vec<(Box<Start>, Vec<u8>)> = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Start(start)) => starts.push((start, line.to_vec())),
            Ok(Line::NotStarted { id }) => starts.retain(|(start, _)| start.id != id),
            Ok(Line::Removed { pod }) => starts.retain(|(start, _)| start.id.pod != pod),
            Err(_) => {}
        }
    }
    Ok(starts)
}

/// Adds a start to the journal of its pod, unless the journal has it.
fn restore(folder: &PodFolder, start: &Start) -> io::Result<()> {
    std::fs::create_dir_all(folder.path())?;
    let records = journal::read(&folder.journal())?;
    let mut missing = Vec::new();
    if journal::launch(&records).is_none() {
        missing.push(Record::Launch { launch: Box::new(start.launch.clone()) });
    }
    if !journal::runs(&records).iter().any(|run| run.status.id == start.id) {
        // The process of the run is unknown. It ended when the machine did.
        let process = ProcessId { boot: start.boot.clone(), pid: 0, started: 0 };
        let (id, image_id) = (start.id.clone(), start.image_id.clone());
        missing.push(Record::Started { id, image_id, process, at: start.at });
    }
    let mut journal = Journal::open(&folder.journal())?;
    for record in &missing {
        journal.append(record)?;
    }
    File::open(folder.path())?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pod: &str, attempt: u32) -> ContainerId {
        ContainerId { pod: PodUid(pod.to_owned()), name: "main".to_owned(), attempt }
    }

    /// A line of a start, as long as those of pods with a long configuration.
    fn started(id: &ContainerId) -> (Change, oneshot::Receiver<std::result::Result<(), String>>) {
        let (written, is_written) = oneshot::channel();
        let line = format!("{{\"start\":\"{id}\",\"text\":\"{}\"}}\n", "x".repeat(2000));
        (Change::Start { id: id.clone(), line: line.into_bytes(), written }, is_written)
    }

    fn apply(file: &mut LogFile, changes: Vec<Change>) {
        let mut text = Vec::new();
        let waiting: Vec<_> = changes.into_iter().filter_map(|change| file.apply(change, &mut text)).collect();
        file.write(&text, !waiting.is_empty()).unwrap();
    }

    #[test]
    fn a_file_with_many_lines_of_removed_pods_is_rewritten_without_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("starts");
        let mut file = LogFile { path: path.clone(), file: None, space: 0, lines: Lines::new() };
        file.rewrite().unwrap();
        apply(&mut file, vec![started(&id("kept", 0)).0]);
        let mut size_max = 0;
        for number in 0..2000 {
            let name = format!("gone-{number}");
            apply(&mut file, vec![started(&id(&name, 0)).0, Change::Removed(PodUid(name))]);
            size_max = size_max.max(std::fs::metadata(&path).unwrap().len());
        }
        assert!(size_max < 2 * SPACE_BYTES as u64, "{size_max}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("kept_main"), "{}", &text[..200]);
        assert!(!text.contains("gone-0_"));
    }

    #[test]
    fn after_an_error_the_file_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("starts");
        let mut file = LogFile { path: path.clone(), file: None, space: 0, lines: Lines::new() };
        file.rewrite().unwrap();
        apply(&mut file, vec![started(&id("a", 0)).0]);
        // A file that cannot be written: its sync and its writes fail.
        file.file = Some(File::open(&path).unwrap());
        let mut text = Vec::new();
        let _waiting = file.apply(started(&id("b", 0)).0, &mut text);
        file.write(&text, true).unwrap_err();
        apply(&mut file, vec![started(&id("c", 0)).0]);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| line.starts_with('{'));
        assert_eq!(lines.count(), 3, "the line of the failed write is needed as well");
    }
}
