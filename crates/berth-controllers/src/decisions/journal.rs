//! The decision journal: records of decisions as lines of JSON in a folder, switched on by
//! `--decision-journal`.
//!
//! Files are named `decisions-NNNNNNNNNN.jsonl` and numbered from 1. Lines are only appended. When
//! a file reaches its share of the size limit, the next file is started, and the oldest files are
//! deleted. One thread takes the records that have arrived, writes them in one batch, and syncs the
//! file. A crash can therefore lose the last batch and leave an incomplete last line, which the
//! next start removes. Decisions never wait for the journal: if the disk is too slow, records are
//! dropped and counted.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use berth_api::berth::decision::DecisionRecord;

use super::{Decisions, OTHERS_MAX, WAITS_MAX};

/// Number of files that the size limit is divided into.
const FILES: u64 = 8;
/// Smallest size of a file, in bytes: a limit below eight times this is raised to it.
const FILE_MIN: u64 = 1 << 20;
/// Maximum number of records in one write.
const BATCH_MAX: usize = 1_024;
/// Number of bytes that are read at once when a file's last newline is searched from its end.
const TAIL: u64 = 64 * 1_024;

const PREFIX: &str = "decisions-";
const SUFFIX: &str = ".jsonl";

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process writes to the folder.
    #[error("decision journal {}: another berth process writes to this folder; choose another folder", .0.display())]
    InUse(PathBuf),
    /// The folder or a file of it cannot be read or written.
    #[error("decision journal {}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    decisions: Decisions,
    writer: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens the journal in a folder, which is created if it does not exist. Restores the newest
    /// records, and writes the records that are added from now on. `size_max`, in bytes, limits all
    /// files together.
    ///
    /// # Errors
    /// The folder is in use by another process, or cannot be read or written.
    pub fn open(folder: &Path, size_max: u64, decisions: &Decisions) -> Result<Journal, JournalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Io { path, source }
        };
        create_private(folder).map_err(failed(folder))?;
        let lock = lock(folder)?;
        let numbers = numbers(folder).map_err(failed(folder))?;
        let newest = numbers.last().copied().unwrap_or(1);
        let path = path_of(folder, newest);
        let (file, length) = open_end(&path).map_err(failed(&path))?;
        decisions.restore(read_back(folder, &numbers));
        let file_max = (size_max / FILES).max(FILE_MIN);
        let mut files = Files { folder: folder.to_owned(), number: newest, file, length, file_max, _lock: lock };
        let writer = match decisions.journal() {
            Some(records) => {
                let counts = decisions.clone();
                let thread = std::thread::Builder::new().name("decision-journal".to_owned());
                Some(thread.spawn(move || write(&mut files, &records, &counts)).map_err(failed(folder))?)
            }
            None => None,
        };
        Ok(Journal { decisions: decisions.clone(), writer })
    }

    /// Writes the records that have arrived, and closes the journal.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.decisions.end_journal();
        if let Some(writer) = self.writer.take() {
            // The writer does not panic. If it did, the message of the panic would be on standard
            // error.
            drop(writer.join());
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.end();
    }
}

fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn lock(folder: &Path) -> Result<File, JournalError> {
    let path = folder.join("lock");
    let failed = |source| JournalError::Io { path: path.clone(), source };
    let file = private(OpenOptions::new().create(true).truncate(false).write(true)).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{PREFIX}{number:010}{SUFFIX}"))
}

/// Numbers of the existing files, in order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number: Option<u64> =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens a file to append to it, without an incomplete last line. Also returns its length.
fn open_end(path: &Path) -> io::Result<(File, u64)> {
    let mut file = private(OpenOptions::new().create(true).truncate(false).read(true).write(true)).open(path)?;
    let length = file.metadata()?.len();
    let whole = end_of_last_line(&mut file, length)?;
    if whole < length {
        tracing::warn!(file = %path.display(), bytes = length - whole, "removed an incomplete last line from the decision journal");
        file.set_len(whole)?;
    }
    file.seek(SeekFrom::Start(whole))?;
    Ok((file, whole))
}

/// Length of a file up to its last newline.
fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(TAIL);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file).take(end - start).read_to_end(&mut bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The newest records of whole files, oldest first, until there are as many as memory keeps. Lines
/// that are not records are skipped and counted in the log.
fn read_back(folder: &Path, numbers: &[u64]) -> Vec<DecisionRecord> {
    let mut newest_first = Vec::new();
    for number in numbers.iter().rev() {
        if newest_first.len() >= WAITS_MAX + OTHERS_MAX {
            break;
        }
        let path = path_of(folder, *number);
        match read_file(&path) {
            Ok(records) => newest_first.extend(records.into_iter().rev()),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "a file of the decision journal cannot be read");
            }
        }
    }
    newest_first.reverse();
    newest_first
}

fn read_file(path: &Path) -> io::Result<Vec<DecisionRecord>> {
    let (mut records, mut unreadable) = (Vec::new(), 0_usize);
    for line in BufReader::new(File::open(path)?).split(b'\n') {
        match serde_json::from_slice(&line?) {
            Ok(record) => records.push(record),
            Err(_) => unreadable += 1,
        }
    }
    if unreadable > 0 {
        let file = path.display();
        tracing::warn!(%file, lines = unreadable, "skipped lines of the decision journal that are not records");
    }
    Ok(records)
}

/// The files of a journal, the newest of which is open for appending.
struct Files {
    folder: PathBuf,
    number: u64,
    file: File,
    length: u64,
    file_max: u64,
    /// Lock on the folder, held while the journal is open.
    _lock: File,
}

impl Files {
    /// Appends whole lines and syncs them. After an error, the file has its previous length.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.length > 0 && self.length + lines.len() as u64 > self.file_max {
            self.rotate()?;
        }
        let written = self.file.write_all(lines).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.length += lines.len() as u64,
            Err(_) => {
                self.file.set_len(self.length)?;
                self.file.seek(SeekFrom::Start(self.length))?;
            }
        }
        written
    }

    fn rotate(&mut self) -> io::Result<()> {
        let next = self.number + 1;
        (self.file, self.length) = open_end(&path_of(&self.folder, next))?;
        self.number = next;
        for number in numbers(&self.folder)?.into_iter().filter(|number| number + FILES <= next) {
            fs::remove_file(path_of(&self.folder, number))?;
        }
        Ok(())
    }
}

/// Writes records until all senders are dropped.
fn write(files: &mut Files, records: &Receiver<Arc<DecisionRecord>>, counts: &Decisions) {
    let mut failing = false;
    while let Ok(first) = records.recv() {
        let mut lines = Vec::new();
        let mut count = 0_u64;
        for record in std::iter::once(first).chain(records.try_iter()).take(BATCH_MAX) {
            // A record is plain data: it can always be serialized.
            if serde_json::to_writer(&mut lines, &*record).is_ok() {
                lines.push(b'\n');
                count += 1;
            }
        }
        match files.append(&lines) {
            Ok(()) if failing => {
                failing = false;
                tracing::info!(dropped = counts.dropped(), "the decision journal can be written again");
            }
            Ok(()) => {}
            Err(error) => {
                counts.count_dropped(count);
                if !failing {
                    let folder = files.folder.display();
                    tracing::warn!(%folder, %error, "the decision journal cannot be written; records are dropped until it can");
                }
                failing = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::decision::DecisionOutcome;
    use berth_api::berth::explanation::ObjectName;
    use berth_runtime::ObjectKey;

    use super::*;

    fn record(name: &str, reason: &str) -> DecisionRecord {
        let workload = ObjectName { namespace: "team".to_owned(), name: name.to_owned() };
        DecisionRecord {
            workload,
            outcome: DecisionOutcome::Evicted,
            reason: reason.to_owned(),
            ..DecisionRecord::default()
        }
    }

    fn reasons(decisions: &Decisions, name: &str) -> Vec<String> {
        let of = decisions.of(&ObjectKey::namespaced("team", name), "");
        of.into_iter().map(|record| record.reason).collect()
    }

    /// Opens the journal, adds records and closes it.
    fn session(folder: &Path, add: &[&str]) -> Decisions {
        let decisions = Decisions::default();
        let journal = Journal::open(folder, 0, &decisions).expect("a journal");
        for reason in add {
            decisions.add(record("w", reason));
        }
        journal.close();
        decisions
    }

    #[test]
    fn records_survive_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        session(folder.path(), &["one", "two"]);
        let after = session(folder.path(), &["three"]);
        assert_eq!(reasons(&after, "w"), ["three", "two", "one"]);
        let text = fs::read_to_string(path_of(folder.path(), 1)).expect("the file");
        assert_eq!(text.lines().count(), 3, "restored records are not written again");
    }

    #[test]
    fn an_incomplete_last_line_is_removed_and_the_records_before_it_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        session(folder.path(), &["one", "two"]);
        let path = path_of(folder.path(), 1);
        let whole = fs::read(&path).expect("the file");
        for cut in [1, 2, 20] {
            fs::write(&path, &whole[..whole.len() - cut]).expect("a torn file");
            let after = session(folder.path(), &["three"]);
            assert_eq!(reasons(&after, "w"), ["three", "one"], "{cut} bytes are missing");
        }
    }

    #[test]
    fn a_damaged_line_in_the_middle_loses_only_that_record() {
        let folder = tempfile::tempdir().expect("a folder");
        session(folder.path(), &["one", "two", "three"]);
        let path = path_of(folder.path(), 1);
        let text = fs::read_to_string(&path).expect("the file").replace("\"reason\":\"two\"", "\"reason\":}");
        fs::write(&path, text).expect("a damaged file");
        assert_eq!(reasons(&session(folder.path(), &[]), "w"), ["three", "one"]);
    }

    #[test]
    fn files_are_rotated_and_the_oldest_are_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let decisions = Decisions::default();
        let (file, length) = open_end(&path_of(folder.path(), 1)).expect("a file");
        let lock = lock(folder.path()).expect("free");
        let mut files = Files { folder: folder.path().to_owned(), number: 1, file, length, file_max: 100, _lock: lock };
        for number in 0..2 * FILES {
            let mut line = serde_json::to_vec(&record("w", &number.to_string())).expect("JSON");
            line.push(b'\n');
            files.append(&line).expect("written");
        }
        let left = numbers(folder.path()).expect("files");
        assert_eq!(left, (FILES + 1..=2 * FILES).collect::<Vec<_>>());
        decisions.restore(read_back(folder.path(), &left));
        assert_eq!(reasons(&decisions, "w")[0], (2 * FILES - 1).to_string());
    }

    #[test]
    fn two_processes_cannot_write_one_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        let decisions = Decisions::default();
        let _first = Journal::open(folder.path(), 0, &decisions).expect("a journal");
        let second = Journal::open(folder.path(), 0, &Decisions::default()).expect_err("it is in use");
        assert!(matches!(second, JournalError::InUse(_)), "{second}");
    }
}
