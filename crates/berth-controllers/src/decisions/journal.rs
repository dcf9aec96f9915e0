//! The decision journal: records of decisions and stays of workloads as lines of JSON in a folder,
//! switched on by `--decision-journal`.
//!
//! Decisions are in the files `decisions-NNNNNNNNNN.jsonl`, stays in `usage-NNNNNNNNNN.jsonl`
//! ([`super::files`]). Each series has a size limit of its own: the few bytes of a stay are kept
//! for longer than the searches of a decision. One thread takes the records that have arrived,
//! writes them in one batch, and syncs the files. A crash can therefore lose the last batch.
//! Decisions never wait for the journal: if the disk is too slow, records are dropped and counted.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use berth_api::berth::decision::DecisionRecord;
use berth_api::berth::usage::Stay;
use serde::de::DeserializeOwned;

use super::files::{Files, Series, private};
use super::{Decisions, Line, OTHERS_MAX, WAITS_MAX};

/// Maximum number of records in one write.
const BATCH_MAX: usize = 1_024;
const DECISIONS: &str = "decisions-";
const USAGE: &str = "usage-";

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

/// Size limits of a journal, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of all files with decisions together.
    pub decisions: u64,
    /// Of all files with stays together.
    pub usage: u64,
}

impl Journal {
    /// Opens the journal in a folder, which is created if it does not exist. Restores the newest
    /// records, and writes the records that are added from now on.
    ///
    /// # Errors
    /// The folder is in use by another process, or cannot be read or written.
    pub fn open(folder: &Path, sizes: Sizes, decisions: &Decisions) -> Result<Journal, JournalError> {
        let failed = |source| JournalError::Io { path: folder.to_owned(), source };
        create_private(folder).map_err(failed)?;
        let lock = lock(folder)?;
        let mut files = Open {
            decisions: Files::open(folder, DECISIONS, sizes.decisions).map_err(failed)?,
            usage: Files::open(folder, USAGE, sizes.usage).map_err(failed)?,
            _lock: lock,
        };
        decisions.restore(read_back(folder).map_err(failed)?);
        decisions.keep_entries();
        each_stay(folder, &mut |stay| decisions.restore_stay(stay)).map_err(failed)?;
        let writer = match decisions.journal(folder) {
            Some(lines) => {
                let (counts, folder) = (decisions.clone(), folder.to_owned());
                let thread = std::thread::Builder::new().name("decision-journal".to_owned());
                Some(thread.spawn(move || write(&folder, &mut files, &lines, &counts)).map_err(failed)?)
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

/// The newest records of whole files, oldest first, until there are as many as memory keeps.
fn read_back(folder: &Path) -> io::Result<Vec<DecisionRecord>> {
    let series = Series { folder, prefix: DECISIONS, text: "" };
    let mut newest_first = Vec::new();
    for number in series.numbers()?.into_iter().rev() {
        if newest_first.len() >= WAITS_MAX + OTHERS_MAX {
            break;
        }
        let mut records = Vec::new();
        series.read_if_possible(number, &mut |record| records.push(record));
        newest_first.extend(records.into_iter().rev());
    }
    newest_first.reverse();
    Ok(newest_first)
}

/// Passes the stays of a journal to `each`, oldest first. The journal may be in use.
///
/// # Errors
/// The folder cannot be read.
pub fn each_stay(folder: &Path, each: &mut dyn FnMut(Stay)) -> io::Result<()> {
    each_record(Series { folder, prefix: USAGE, text: "" }, each)
}

/// Like [`each_stay`], but only stays of which the Workload or its job, or another object, has this
/// name; all if it is empty. The lines of the others are not parsed: 256 MiB take 0.05 s of CPU
/// time.
///
/// # Errors
/// The folder cannot be read.
pub fn each_stay_named(folder: &Path, name: &str, each: &mut dyn FnMut(Stay)) -> io::Result<()> {
    let text = if name.is_empty() { String::new() } else { format!("\"name\":{}", serde_json::json!(name)) };
    each_record(Series { folder, prefix: USAGE, text: &text }, each)
}

/// Passes the decisions of a journal about the Workload with this UID to `each`, oldest first. The
/// journal may be in use. The lines of other decisions are not parsed.
///
/// # Errors
/// The folder cannot be read.
pub fn each_decision_of(folder: &Path, uid: &str, each: &mut dyn FnMut(DecisionRecord)) -> io::Result<()> {
    // Decisions about other workloads may mention it.
    let own = &mut |record: DecisionRecord| {
        if record.uid == uid {
            each(record);
        }
    };
    each_record(Series { folder, prefix: DECISIONS, text: uid }, own)
}

fn each_record<T: DeserializeOwned>(series: Series<'_>, each: &mut dyn FnMut(T)) -> io::Result<()> {
    series.numbers()?.into_iter().for_each(|number| series.read_if_possible(number, each));
    Ok(())
}

/// The files of a journal that is written.
struct Open {
    decisions: Files,
    usage: Files,
    /// Lock on the folder, held while the journal is open.
    _lock: File,
}

/// Writes lines until all senders are dropped.
fn write(folder: &Path, files: &mut Open, lines: &Receiver<Line>, counts: &Decisions) {
    let mut failing = false;
    while let Ok(first) = lines.recv() {
        let (mut decisions, mut usage) = (Batch::default(), Batch::default());
        for line in std::iter::once(first).chain(lines.try_iter()).take(BATCH_MAX) {
            match line {
                Line::Decision(record) => decisions.add(&*record),
                Line::Stay(stay) => usage.add(&*stay),
            }
        }
        let results = [
            (files.decisions.append(&decisions.text), decisions.lines),
            (files.usage.append(&usage.text), usage.lines),
        ];
        let mut error = None;
        for (result, lines) in results {
            if let Err(cause) = result {
                counts.count_dropped(lines);
                error = Some(cause);
            }
        }
        match error {
            None if failing => {
                failing = false;
                tracing::info!(dropped = counts.dropped(), "the decision journal can be written again");
            }
            None => {}
            Some(error) => {
                if !failing {
                    let folder = folder.display();
                    tracing::warn!(%folder, %error, "the decision journal cannot be written; records are dropped until it can");
                }
                failing = true;
            }
        }
    }
}

/// Lines of one write.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
}

impl Batch {
    fn add(&mut self, record: &impl serde::Serialize) {
        // A record is plain data: it can always be serialized.
        if serde_json::to_writer(&mut self.text, record).is_ok() {
            self.text.push(b'\n');
            self.lines += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::decision::DecisionOutcome;
    use berth_api::berth::explanation::{Job, ObjectName};
    use berth_runtime::ObjectKey;
    use jiff::Timestamp;

    use super::*;

    const SIZES: Sizes = Sizes { decisions: 0, usage: 0 };

    fn first(folder: &Path) -> PathBuf {
        Series { folder, prefix: DECISIONS, text: "" }.path(1)
    }

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
        let journal = Journal::open(folder, SIZES, &decisions).expect("a journal");
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
        let text = fs::read_to_string(first(folder.path())).expect("the file");
        assert_eq!(text.lines().count(), 3, "restored records are not written again");
    }

    #[test]
    fn an_incomplete_last_line_is_removed_and_the_records_before_it_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        session(folder.path(), &["one", "two"]);
        let path = first(folder.path());
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
        let path = first(folder.path());
        let text = fs::read_to_string(&path).expect("the file").replace("\"reason\":\"two\"", "\"reason\":}");
        fs::write(&path, text).expect("a damaged file");
        assert_eq!(reasons(&session(folder.path(), &[]), "w"), ["three", "one"]);
    }

    #[test]
    fn two_processes_cannot_write_one_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        let decisions = Decisions::default();
        let _first = Journal::open(folder.path(), SIZES, &decisions).expect("a journal");
        let second = Journal::open(folder.path(), SIZES, &Decisions::default()).expect_err("it is in use");
        assert!(matches!(second, JournalError::InUse(_)), "{second}");
    }

    #[test]
    fn a_report_needs_no_file_of_a_journal_that_was_read_at_the_start() {
        const STAYS: usize = 3 * super::super::STAYS_MAX;
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(folder.path(), USAGE, 0).expect("a file");
        let mut batch = Batch::default();
        for number in 0..STAYS {
            batch.add(&Stay { uid: number.to_string(), user: "amy".to_owned(), ..Stay::default() });
        }
        files.append(&batch.text).expect("written");
        drop(files);
        let decisions = Decisions::default();
        assert!(decisions.entries(Timestamp::UNIX_EPOCH).is_none(), "without a journal, memory has some stays only");
        let journal = Journal::open(folder.path(), SIZES, &decisions).expect("a journal");
        fs::remove_file(Series { folder: folder.path(), prefix: USAGE, text: "" }.path(1)).expect("removed");
        decisions.add_stay(Stay { uid: "new".to_owned(), ..Stay::default() });
        let parts = decisions.entries(Timestamp::UNIX_EPOCH).expect("all entries");
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), STAYS + 1);
        journal.close();
    }

    #[test]
    fn stays_survive_a_restart_and_are_known_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let stay = |uid: &str| Stay { uid: uid.to_owned(), ..Stay::default() };
        for uid in ["a", "b"] {
            let decisions = Decisions::default();
            let journal = Journal::open(folder.path(), SIZES, &decisions).expect("a journal");
            for uid in ["a", uid] {
                decisions.add_stay(stay(uid));
            }
            journal.close();
        }
        let mut uids = Vec::new();
        each_stay(folder.path(), &mut |stay| uids.push(stay.uid)).expect("the files");
        assert_eq!(uids, ["a", "b"]);
        uids.clear();
        each_stay_named(folder.path(), "", &mut |stay| uids.push(stay.uid)).expect("the files");
        assert_eq!(uids, ["a", "b"], "an empty name stands for all");
        let mut decided = 0;
        each_decision_of(folder.path(), "a", &mut |_| decided += 1).expect("the files");
        assert_eq!(decided, 0);
    }

    #[test]
    fn records_are_found_by_name_and_uid() {
        let folder = tempfile::tempdir().expect("a folder");
        let decisions = Decisions::default();
        let journal = Journal::open(folder.path(), SIZES, &decisions).expect("a journal");
        for (number, (name, job)) in
            [("job-a", "a"), ("job-aa", "aa"), ("a", "x"), ("job-a", "\"q\"")].into_iter().enumerate()
        {
            let workload = ObjectName { namespace: "team".to_owned(), name: name.to_owned() };
            let job = Some(Job { kind: "Job".to_owned(), name: job.to_owned() });
            decisions.add_stay(Stay { workload, job, uid: format!("{name} of {number}"), ..Stay::default() });
            decisions.add(DecisionRecord { uid: name.to_owned(), ..record(name, "one") });
        }
        decisions.add(DecisionRecord { uid: "other".to_owned(), ..record("a", "mentions job-aa") });
        journal.close();
        let found = |name: &str| {
            let mut found = Vec::new();
            each_stay_named(folder.path(), name, &mut |stay| found.push(stay.workload.name)).expect("the files");
            found
        };
        assert_eq!(found("a"), ["job-a", "a"], "the name of the job, and that of the Workload");
        assert_eq!(found("\"q\""), ["job-a"]);
        assert!(found("job").is_empty());
        let mut reasons = Vec::new();
        each_decision_of(folder.path(), "job-aa", &mut |it| reasons.push(it.reason)).expect("the files");
        assert_eq!(reasons, ["one"]);
    }
}
