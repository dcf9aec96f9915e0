//! Rewrites a damaged file from its intact rows, and a file of an earlier version with checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::OpenError;
use crate::file::{self, Lock, PAGE_SIZE, owner_only, remove_if_there, sync_folder, with_suffix};
use crate::format::{self, Format, Totals, Unreadable};
use crate::mark;
use crate::pages::{Salvaged, salvage};
use crate::sqlite::examine;

/// Number of revisions to skip after the last known one, so that no lost revision is used again.
const REVISIONS_SKIPPED: u64 = 1_000_000;

/// Result of [`recover`].
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Number of objects that were kept.
    pub kept: usize,
    /// One line for each lost write; empty if nothing is missing.
    pub lost: Vec<String>,
    /// Path of the damaged file; its log is next to it.
    pub damaged: PathBuf,
    /// Path of a report with the same lines.
    pub report: PathBuf,
}

/// Repairs the store at `path`: keeps all intact objects, lists the lost writes, and keeps the
/// damaged files under another name. Returns `None` if the store does not exist or is intact.
///
/// # Errors
/// When the store is in use, its files cannot be read or written, or it has no intact row.
pub fn recover(path: &Path) -> Result<Option<Recovery>, OpenError> {
    if !path.exists() {
        return Ok(None);
    }
    let (_lock, file) = Lock::take(path)?;
    finish(&file)?;
    let why = match examine(&file, |_, _, _| {}) {
        Ok(_) => return Ok(None),
        Err(OpenError::Damaged { problem, .. } | OpenError::EndLost { problem, .. }) => problem,
        Err(error) => return Err(error),
    };
    let failed = |source| OpenError::Lock { path: file.display().to_string(), source };
    let log = match std::fs::read(with_suffix(&file, "-wal")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(failed)?,
    };
    let salvaged = salvage(&std::fs::read(&file).map_err(failed)?, &log, PAGE_SIZE as usize);
    let acknowledged = match mark::read(&file).map_err(failed)? {
        mark::Content::Revision(revision) => Some(revision),
        mark::Content::Missing | mark::Content::Damaged => None,
    };
    let is_store = salvaged.totals.is_some() || !salvaged.intact.is_empty();
    let plan = Plan::of(salvaged, acknowledged);
    if !is_store {
        let problem = format!("{why}; no row in it can be read. To begin with an empty store, move it away");
        return Err(OpenError::Damaged { path: file.display().to_string(), problem });
    }
    // The damaged files are copied first, because the completed new file will replace the store
    // even after a crash.
    let (damaged, report) = keep_damaged_files(&file, &why, &plan).map_err(failed)?;
    plan.write(&file)?;
    finish(&file)?;
    Ok(Some(Recovery { kept: plan.live.len(), lost: plan.lost, damaged, report }))
}

/// The content of the new file.
#[derive(Default)]
struct Plan {
    /// Live objects by key: revision and text.
    live: BTreeMap<String, (u64, Vec<u8>)>,
    lost: Vec<String>,
    totals: Totals,
}

impl Plan {
    /// Chooses the last intact write of each key, and lists the writes that are lost.
    fn of(salvaged: Salvaged, acknowledged: Option<u64>) -> Plan {
        let Salvaged { intact, damaged_rows, totals, torn_pages } = salvaged;
        let mut plan = Plan::default();
        let mut rows = Totals::default();
        for (revision, found) in intact.iter() {
            rows.add(*revision);
            rows.revision = *revision;
            match &found.value {
                Some(value) => plan.live.insert(found.key.clone(), (*revision, value.clone())),
                None => plan.live.remove(&found.key),
            };
        }
        // Name each damaged row, and the state of its object.
        for (revision, row) in &damaged_rows {
            let kept = match row.key.as_ref() {
                None => "its key cannot be read, and the object keeps its earlier state".to_owned(),
                Some(key) => match plan.live.get(key) {
                    Some((earlier, _)) if earlier < revision => format!("the object returns to revision {earlier}"),
                    Some((later, _)) => format!("the object keeps the later revision {later}"),
                    None => "no intact revision is left".to_owned(),
                },
            };
            let key = row.key.as_deref().unwrap_or("?");
            plan.lost.push(format!("revision {revision} of {key}: {}; {kept}", row.problem));
        }
        let compacted = totals.map_or(0, |totals| totals.compacted);
        let last = rows.revision.max(totals.map_or(0, |totals| totals.revision)).max(acknowledged.unwrap_or(0));
        // Revisions without any row. The damaged rows were named above.
        let known = intact
            .keys()
            .chain(damaged_rows.keys())
            .copied()
            .filter(|revision| (compacted + 1..=last).contains(revision));
        let mut known: Vec<u64> = known.collect();
        known.sort_unstable();
        let mut next = compacted + 1;
        for revision in known.into_iter().chain([last + 1]) {
            if totals.is_some() && revision > next {
                let missing = match revision - next {
                    1 => format!("revision {next}: missing"),
                    _ => format!("revisions {next} to {}: missing", revision - 1),
                };
                plan.lost.push(format!("{missing}; the changed objects are not known and keep their earlier state"));
            }
            next = revision + 1;
        }
        let is_complete = totals.is_some_and(|totals| (totals.rows, totals.digest) == (rows.rows, rows.digest));
        // Rows that are older than the compacted history show only as a wrong total.
        if !is_complete && plan.lost.is_empty() {
            plan.lost.push(match totals {
                Some(totals) if totals.rows > rows.rows => {
                    let number = totals.rows - rows.rows;
                    format!(
                        "{number} objects without recent changes: their rows are missing, and their names are not known"
                    )
                }
                _ => format!("rows may be missing ({torn_pages} pages are incomplete)"),
            });
        }
        plan.totals =
            Totals { revision: last + REVISIONS_SKIPPED, compacted: last + REVISIONS_SKIPPED, ..Totals::default() };
        plan.live.values().for_each(|(revision, _)| plan.totals.add(*revision));
        plan
    }

    /// Writes the new file; [`finish`] then moves it into place.
    fn write(&self, file: &Path) -> Result<(), OpenError> {
        let mut new = NewFile::begin(file)?;
        let mut rows: Vec<_> = self.live.iter().collect();
        rows.sort_unstable_by_key(|(_, (revision, _))| *revision);
        for (key, (revision, value)) in rows {
            new.add(*revision, key, Some(value))?;
        }
        new.end(&self.totals)
    }
}

/// Keeps the damaged files under another name, with a report of the lost writes.
fn keep_damaged_files(file: &Path, why: &str, plan: &Plan) -> std::io::Result<(PathBuf, PathBuf)> {
    let free = (1..).map(|number| with_suffix(file, &format!("-damaged-{number}"))).find(|name| !name.exists());
    let damaged = free.unwrap_or_else(|| with_suffix(file, "-damaged"));
    for suffix in ["-wal", ""] {
        let (from, to) = (with_suffix(file, suffix), with_suffix(&damaged, suffix));
        if from.exists() && std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to)?;
        }
    }
    // The mark file is copied, because the store continues to write to it.
    let mark = mark::path_of(file);
    if mark.exists() {
        std::fs::copy(&mark, mark::path_of(&damaged))?;
    }
    let report = with_suffix(&damaged, "-report.txt");
    let mut text = owner_only(File::options().create(true).truncate(true).write(true)).open(&report)?;
    writeln!(text, "{why}\n{} objects were kept. Lost writes:", plan.live.len())?;
    for line in &plan.lost {
        writeln!(text, "{line}")?;
    }
    text.sync_all()?;
    sync_folder(file)?;
    Ok((damaged, report))
}

/// A new file that will replace the store.
struct NewFile {
    connection: Connection,
    store: PathBuf,
    part: PathBuf,
}

fn next_of(store: &Path) -> PathBuf {
    with_suffix(store, "-next")
}

impl NewFile {
    fn begin(store: &Path) -> Result<NewFile, OpenError> {
        let part = with_suffix(store, "-next-part");
        let failed = |source| OpenError::Lock { path: part.display().to_string(), source };
        for suffix in ["", "-wal", "-shm"] {
            remove_if_there(&with_suffix(&part, suffix)).map_err(failed)?;
        }
        owner_only(File::options().create_new(true).write(true)).open(&part).map_err(failed)?;
        let make = || {
            let mut connection = file::open(&part)?;
            connection.pragma_update(None, "page_size", PAGE_SIZE)?;
            // An incomplete file is discarded, so no rollback is needed.
            connection.pragma_update(None, "journal_mode", "OFF")?;
            format::create(&mut connection)?;
            connection.execute_batch("BEGIN")?;
            Ok(connection)
        };
        let connection = make().map_err(|source| OpenError::Engine { path: part.display().to_string(), source })?;
        Ok(NewFile { connection, store: store.to_owned(), part })
    }

    fn failed(&self, source: rusqlite::Error) -> OpenError {
        OpenError::Engine { path: self.part.display().to_string(), source }
    }

    fn add(&mut self, revision: u64, key: &str, value: Option<&[u8]>) -> Result<(), OpenError> {
        format::insert(&self.connection, revision, key, value, None).map_err(|error| self.failed(error))
    }

    /// Completes and renames the file. From then on [`finish`] moves it into place, even after a
    /// crash.
    fn end(self, totals: &Totals) -> Result<(), OpenError> {
        let done = format::set_base(&self.connection, totals).and_then(|()| self.connection.execute_batch("COMMIT"));
        done.map_err(|error| self.failed(error))?;
        let NewFile { connection, store, part } = self;
        let engine = |(_, source)| OpenError::Engine { path: part.display().to_string(), source };
        connection.close().map_err(engine)?;
        let ended = || {
            File::open(&part)?.sync_all()?;
            std::fs::rename(&part, next_of(&store))?;
            sync_folder(&store)
        };
        ended().map_err(|source| OpenError::Lock { path: part.display().to_string(), source })
    }
}

/// Replaces the store with a completed new file, if one exists.
pub(crate) fn finish(store: &Path) -> Result<(), OpenError> {
    let next = next_of(store);
    if !next.exists() {
        return Ok(());
    }
    let swap = || {
        // These files belong to the replaced store.
        for suffix in ["-wal", "-shm"] {
            remove_if_there(&with_suffix(store, suffix))?;
        }
        sync_folder(store)?;
        std::fs::rename(&next, store)?;
        sync_folder(store)
    };
    swap().map_err(|source| OpenError::Lock { path: next.display().to_string(), source })
}

/// Rewrites the file of an earlier version with checksums. The caller has checked its rows.
pub(crate) fn migrate(store: &Path, connection: Connection, totals: &Totals) -> Result<(), OpenError> {
    let path = || store.display().to_string();
    let mut new = NewFile::begin(store)?;
    let mut failure = None;
    let read = format::read(&connection, Format::Unsummed, |revision, key, value| {
        if failure.is_none() {
            failure = new.add(revision, key, value).err();
        }
    });
    match (read, failure) {
        (_, Some(error)) => return Err(error),
        (Err(Unreadable::Engine(source)), _) => return Err(OpenError::Engine { path: path(), source }),
        (Err(Unreadable::Damaged(problem)), _) => return Err(OpenError::Damaged { path: path(), problem }),
        (Ok(_), None) => {}
    }
    // The new file has all rows of the old one.
    drop(connection);
    new.end(totals)?;
    finish(store)
}
