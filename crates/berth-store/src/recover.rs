//! Making a sound file of what a damaged one still holds, and of one that was written without checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::OpenError;
use crate::file::{self, Lock, PAGE, beside, private, remove_if_there, sync_folder};
use crate::format::{self, Format, Totals, Unreadable};
use crate::mark::{self, Said};
use crate::pages::{Remains, remains};
use crate::sqlite::examine;

/// How far revisions go on from the last one that is known: so that none is given twice, however many were given and lost.
const AHEAD: u64 = 1_000_000;

/// What [`recover`] did.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Objects that were kept.
    pub kept: usize,
    /// What was not, a line each; empty if nothing is missing.
    pub lost: Vec<String>,
    /// Where the damaged file is now; its log is beside it.
    pub damaged: PathBuf,
    /// Where the same list is.
    pub report: PathBuf,
}

/// Makes the store at `path` sound again: what can be read is kept, what can not is listed, and the files are kept as they
/// were under another name. `None` if there is nothing to do, as there is no store or it is sound.
///
/// # Errors
/// When the store is in use, its files can not be read or written, or nothing sound is in it.
pub fn recover(path: &Path) -> Result<Option<Recovery>, OpenError> {
    if !path.exists() {
        return Ok(None);
    }
    let (_lock, file) = Lock::take(path)?;
    finish(&file)?;
    let why = match examine(&file, |_, _, _| {}) {
        Ok(_) => return Ok(None),
        Err(OpenError::Damaged { what, .. } | OpenError::EndLost { what, .. }) => what,
        Err(error) => return Err(error),
    };
    let failed = |source| OpenError::Lock { path: file.display().to_string(), source };
    let log = match std::fs::read(beside(&file, "-wal")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(failed)?,
    };
    let remains = remains(&std::fs::read(&file).map_err(failed)?, &log, PAGE as usize);
    let acknowledged = match mark::read(&file).map_err(failed)? {
        Said::Revision(revision) => Some(revision),
        Said::Missing | Said::Damaged => None,
    };
    let is_store = remains.totals.is_some() || !remains.sound.is_empty();
    let plan = Plan::of(remains, acknowledged);
    if !is_store {
        let what = format!("{why}; nothing in it can be read. To begin with an empty store, move it away");
        return Err(OpenError::Damaged { path: file.display().to_string(), what });
    }
    // Before there is a new file, which takes the place of the other one whatever happens then.
    let (damaged, report) = set_aside(&file, &why, &plan).map_err(failed)?;
    plan.write(&file)?;
    finish(&file)?;
    Ok(Some(Recovery { kept: plan.live.len(), lost: plan.lost, damaged, report }))
}

/// What the new file will hold.
#[derive(Default)]
struct Plan {
    /// Objects by key, with the revision of each.
    live: BTreeMap<String, (u64, Vec<u8>)>,
    lost: Vec<String>,
    totals: Totals,
}

impl Plan {
    fn of(remains: Remains, acknowledged: Option<u64>) -> Plan {
        let Remains { sound, broken, totals, torn_pages } = remains;
        let mut plan = Plan::default();
        let mut rows = Totals::default();
        for (revision, found) in sound.iter() {
            rows.add(*revision);
            rows.revision = *revision;
            match &found.value {
                Some(value) => plan.live.insert(found.key.clone(), (*revision, value.clone())),
                None => plan.live.remove(&found.key),
            };
        }
        for (revision, row) in &broken {
            let kept = match row.key.as_ref() {
                None => "the object is not known, and stays as it was before".to_owned(),
                Some(key) => match plan.live.get(key) {
                    Some((earlier, _)) if earlier < revision => format!("it is as of revision {earlier} again"),
                    Some((later, _)) => format!("it is as of revision {later}, which is later"),
                    None => "nothing of it is left".to_owned(),
                },
            };
            let key = row.key.as_deref().unwrap_or("?");
            plan.lost.push(format!("revision {revision} of {key}: {}; {kept}", row.what));
        }
        let compacted = totals.map_or(0, |totals| totals.compacted);
        let last = rows.revision.max(totals.map_or(0, |totals| totals.revision)).max(acknowledged.unwrap_or(0));
        // Those whose row is known to be broken have been named.
        let known =
            sound.keys().chain(broken.keys()).copied().filter(|revision| (compacted + 1..=last).contains(revision));
        let mut known: Vec<u64> = known.collect();
        known.sort_unstable();
        let mut next = compacted + 1;
        for revision in known.into_iter().chain([last + 1]) {
            if totals.is_some() && revision > next {
                let what = match revision - next {
                    1 => format!("revision {next}: it is missing"),
                    _ => format!("revisions {next} to {}: they are missing", revision - 1),
                };
                plan.lost.push(format!("{what}; what they changed is not known, and is as it was before"));
            }
            next = revision + 1;
        }
        let is_complete = totals.is_some_and(|totals| (totals.rows, totals.digest) == (rows.rows, rows.digest));
        if !is_complete && plan.lost.is_empty() {
            plan.lost.push(match totals {
                Some(totals) if totals.rows > rows.rows => {
                    let number = totals.rows - rows.rows;
                    format!("{number} objects that had not changed lately: their rows are missing, and their names not known")
                }
                _ => format!("it is not known whether all rows were found ({torn_pages} pages are torn)"),
            });
        }
        plan.totals = Totals { revision: last + AHEAD, compacted: last + AHEAD, ..Totals::default() };
        plan.live.values().for_each(|(revision, _)| plan.totals.add(*revision));
        plan
    }

    /// Writes the new file, to take the place of the other one with [`finish`].
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

/// Keeps the damaged files under another name, with a list of what was lost.
fn set_aside(file: &Path, why: &str, plan: &Plan) -> std::io::Result<(PathBuf, PathBuf)> {
    let free = (1..).map(|number| beside(file, &format!("-damaged-{number}"))).find(|name| !name.exists());
    let damaged = free.unwrap_or_else(|| beside(file, "-damaged"));
    for suffix in ["-wal", ""] {
        let (from, to) = (beside(file, suffix), beside(&damaged, suffix));
        if from.exists() && std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to)?;
        }
    }
    // That one is written to again.
    let mark = mark::path_of(file);
    if mark.exists() {
        std::fs::copy(&mark, mark::path_of(&damaged))?;
    }
    let report = beside(&damaged, "-report.txt");
    let mut text = private(File::options().create(true).truncate(true).write(true)).open(&report)?;
    writeln!(text, "{why}\n{} objects were kept. Not sound:", plan.live.len())?;
    for line in &plan.lost {
        writeln!(text, "{line}")?;
    }
    text.sync_all()?;
    sync_folder(file)?;
    Ok((damaged, report))
}

/// A file that is to take the place of a store's.
struct NewFile {
    connection: Connection,
    store: PathBuf,
    part: PathBuf,
}

fn next_of(store: &Path) -> PathBuf {
    beside(store, "-next")
}

impl NewFile {
    fn begin(store: &Path) -> Result<NewFile, OpenError> {
        let part = beside(store, "-next-part");
        let failed = |source| OpenError::Lock { path: part.display().to_string(), source };
        for suffix in ["", "-wal", "-shm"] {
            remove_if_there(&beside(&part, suffix)).map_err(failed)?;
        }
        private(File::options().create_new(true).write(true)).open(&part).map_err(failed)?;
        let make = || {
            let mut connection = file::open(&part)?;
            connection.pragma_update(None, "page_size", PAGE)?;
            // It is made anew if it is not finished: nothing has to be undone.
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

    /// Completes it; from now on it takes the other one's place whatever happens.
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

/// Puts a file that was completed in the place of the store's, if there is one.
pub(crate) fn finish(store: &Path) -> Result<(), OpenError> {
    let next = next_of(store);
    if !next.exists() {
        return Ok(());
    }
    let swap = || {
        // They belong to the other one.
        for suffix in ["-wal", "-shm"] {
            remove_if_there(&beside(store, suffix))?;
        }
        sync_folder(store)?;
        std::fs::rename(&next, store)?;
        sync_folder(store)
    };
    swap().map_err(|source| OpenError::Lock { path: next.display().to_string(), source })
}

/// Writes a file that an earlier version wrote anew, with checksums. It was read as well as it can be checked.
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
        (Err(Unreadable::Damaged(what)), _) => return Err(OpenError::Damaged { path: path(), what }),
        (Ok(_), None) => {}
    }
    // Nothing of it is needed any more once the new one is complete.
    drop(connection);
    new.end(totals)?;
    finish(store)
}
