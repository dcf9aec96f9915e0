//! The tables of the store file, and the checksums that show damage.
//!
//! A row of table `log` is one write, with a checksum of the row. The last row of each transaction
//! also has the [`Totals`] of all rows up to it. The totals show missing rows, and a commit writes
//! no additional page for them. Table `base` has the totals of a file to which no row was added
//! since it was created, opened or closed.

use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// SQL that creates the tables of the file.
const TABLES: &str = "
    CREATE TABLE log (
        revision INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        value BLOB,
        sum INTEGER NOT NULL,
        totals BLOB
    ) STRICT;
    CREATE TABLE base (
        id INTEGER PRIMARY KEY CHECK (id = 0),
        totals BLOB NOT NULL
    ) STRICT;
    -- Versions of Berth without checksums expect other columns in this table and reject the file. It is
    -- not a view: with a view in the schema, SQLite's quick_check may skip the list of free pages.
    CREATE TABLE meta (written_by_a_later_version INTEGER) STRICT;
";

/// Number and digest of the rows that a file must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// The last revision.
    pub(crate) revision: u64,
    /// The last compacted revision. Each later revision must have its row.
    pub(crate) compacted: u64,
    /// Number of rows.
    pub(crate) rows: u64,
    /// Sum over the mixed revisions of the rows. Two sets of rows are unlikely to have the same
    /// sum.
    pub(crate) digest: u64,
    /// True while a process has the file open for writing.
    pub(crate) is_open: bool,
}

impl Totals {
    const LENGTH: usize = 37;

    pub(crate) fn add(&mut self, revision: u64) {
        self.rows += 1;
        self.digest = self.digest.wrapping_add(mix(revision));
    }

    pub(crate) fn remove(&mut self, revision: u64) {
        self.rows = self.rows.saturating_sub(1);
        self.digest = self.digest.wrapping_sub(mix(revision));
    }

    pub(crate) fn encode(&self) -> [u8; Totals::LENGTH] {
        let mut bytes = [0; Totals::LENGTH];
        let numbers = [self.revision, self.compacted, self.rows, self.digest];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[32] = u8::from(self.is_open);
        let sum = crc32fast::hash(&bytes[..33]);
        bytes[33..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses totals; `None` unless the bytes are a result of [`encode`](Totals::encode).
    pub(crate) fn decode(bytes: &[u8]) -> Option<Totals> {
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let totals = Totals {
            revision: number(0)?,
            compacted: number(8)?,
            rows: number(16)?,
            digest: number(24)?,
            is_open: bytes.get(32) == Some(&1),
        };
        (totals.encode() == bytes).then_some(totals)
    }
}

/// Mixes the bits of a number (the last steps of SplitMix64).
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Returns the checksum of a row.
pub(crate) fn sum_of(revision: u64, key: &str, value: Option<&[u8]>) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.to_le_bytes());
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key.as_bytes());
    hasher.update(&[u8::from(value.is_some())]);
    hasher.update(value.unwrap_or_default());
    hasher.finalize()
}

/// The part of an object that the store checks.
#[derive(Deserialize)]
struct Head {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    name: Option<String>,
    namespace: Option<String>,
}

/// Checks that a string is a stored object of `key` at `revision`, as far as possible without a
/// checksum. Returns a description of the mismatch otherwise. The object's name is the last segment
/// of its key, and its namespace the one before.
pub(crate) fn check_object(key: &str, revision: u64, text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text).map_err(|error| format!("is not UTF-8: {error}"))?;
    let not_json = |error: serde_json::Error| format!("is not JSON: {error}");
    if !text.starts_with('{') {
        return serde_json::from_str::<IgnoredAny>(text).map(|_| ()).map_err(not_json);
    }
    let head: Head = serde_json::from_str(text).map_err(|error| match error.is_data() {
        true => format!("is not an object with metadata: {error}"),
        false => not_json(error),
    })?;
    let Metadata { resource_version, name, namespace } = head.metadata;
    if resource_version != revision.to_string() {
        return Err(format!("has metadata.resourceVersion \"{resource_version}\""));
    }
    let mut segments = key.rsplit('/');
    for (field, stated) in [("metadata.name", name), ("metadata.namespace", namespace)] {
        let segment = segments.next();
        if let Some(stated) = stated.filter(|stated| !stated.is_empty() && Some(stated.as_str()) != segment) {
            return Err(format!("has {field} {stated:?}, which does not match its key"));
        }
    }
    Ok(())
}

/// Checks the object of a row without a checksum. It also parses the whole text, because without a
/// checksum damage can only be found as a syntax error.
pub(crate) fn check_unsummed(key: &str, revision: u64, text: &[u8]) -> Result<(), String> {
    check_object(key, revision, text)?;
    berth_apimachinery::packed::parse(text).map(|_| ()).map_err(|error| format!("is not JSON: {error}"))
}

/// Format of a store file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The file has no tables yet.
    Empty,
    /// Rows without checksums, as earlier versions of Berth wrote them.
    Unsummed,
    /// The format that this version writes.
    Current,
}

/// The reason why a file cannot be read.
pub(crate) enum Unreadable {
    /// SQLite or the operating system reported an error.
    Engine(rusqlite::Error),
    /// The content differs from the content that was written.
    Damaged(String),
}

impl From<rusqlite::Error> for Unreadable {
    fn from(error: rusqlite::Error) -> Unreadable {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, TooBig, TypeMismatch, Unknown};
        match error.sqlite_error_code() {
            // These codes also mean missing tables and columns, and values of another type.
            None | Some(DatabaseCorrupt | NotADatabase | TooBig | TypeMismatch | Unknown) => {
                Unreadable::Damaged(error.to_string())
            }
            Some(_) => Unreadable::Engine(error),
        }
    }
}

fn damaged<T>(problem: impl Into<String>) -> Result<T, Unreadable> {
    Err(Unreadable::Damaged(problem.into()))
}

/// Creates the tables in an empty file.
pub(crate) fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    set_base(&transaction, &Totals::default())?;
    transaction.commit()
}

/// Writes the totals to table `base`.
pub(crate) fn set_base(connection: &Connection, totals: &Totals) -> rusqlite::Result<()> {
    let mut set = connection.prepare_cached("INSERT OR REPLACE INTO base (id, totals) VALUES (0, ?1)")?;
    set.execute([totals.encode()]).map(|_| ())
}

/// Inserts the row of a write; with `totals` for the last row of its transaction.
pub(crate) fn insert(
    connection: &Connection,
    revision: u64,
    key: &str,
    value: Option<&[u8]>,
    totals: Option<&Totals>,
) -> rusqlite::Result<()> {
    let mut insert =
        connection.prepare_cached("INSERT INTO log (revision, key, value, sum, totals) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let totals = totals.map(Totals::encode);
    insert.execute(params![revision as i64, key, value, sum_of(revision, key, value), totals])?;
    Ok(())
}

/// Deletes the row of a write. Returns true if it existed.
pub(crate) fn remove(connection: &Connection, revision: u64) -> rusqlite::Result<bool> {
    let mut delete = connection.prepare_cached("DELETE FROM log WHERE revision = ?1")?;
    delete.execute([revision as i64]).map(|rows| rows > 0)
}

/// Checks the integrity of the pages, and returns the format according to the tables.
pub(crate) fn check(connection: &Connection) -> Result<Format, Unreadable> {
    connection.pragma_update(None, "cell_size_check", true)?;
    let mut statement = connection.prepare("PRAGMA quick_check(1)")?;
    let report: String = statement.query_row((), |row| row.get(0))?;
    if report != "ok" {
        // The first line names the database.
        let report: Vec<&str> = report.lines().filter(|line| !line.starts_with("***")).collect();
        return damaged(report.join("; "));
    }
    let tables = "SELECT name FROM sqlite_schema WHERE name IN ('log', 'base', 'meta')";
    let mut statement = connection.prepare(tables)?;
    let mut tables = statement.query_map((), |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
    tables.sort();
    match tables.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(Format::Empty),
        ["log", "meta"] => Ok(Format::Unsummed),
        ["base", "log", "meta"] => Ok(Format::Current),
        _ => damaged(format!("its tables are {tables:?} instead of base, log and meta")),
    }
}

/// Reads all rows in order of revision, and passes revision, key and value of each to `each`.
/// Checks each row, and the totals at the end. Returns the totals, which state whether the file was
/// closed after the last row.
pub(crate) fn read(
    connection: &Connection,
    format: Format,
    mut each: impl FnMut(u64, &str, Option<&[u8]>),
) -> Result<Totals, Unreadable> {
    let columns = match format {
        Format::Empty => return Ok(Totals::default()),
        Format::Unsummed => "revision, key, value",
        Format::Current => "revision, key, value, sum, totals",
    };
    let mut statement = connection.prepare(&format!("SELECT {columns} FROM log ORDER BY revision"))?;
    let mut rows = statement.query(())?;
    let (mut found, mut stated, mut missing) = (Totals::default(), None, 0);
    while let Some(row) = rows.next()? {
        let (revision, key, value) = cells(row)?;
        let bad = |problem: String| Unreadable::Damaged(format!("revision {revision} of {key:?} {problem}"));
        if format == Format::Current {
            if row.get_ref(3)?.as_i64().ok() != Some(sum_of(revision, key, value).into()) {
                return Err(bad("has a wrong checksum".to_owned()));
            }
            stated = match row.get_ref(4)? {
                ValueRef::Null => None,
                totals => match totals.as_blob().ok().and_then(Totals::decode) {
                    Some(totals) if totals.revision == revision => Some(totals),
                    _ => return Err(bad("has invalid totals".to_owned())),
                },
            };
        }
        if let Some(value) = value {
            let check = if format == Format::Unsummed { check_unsummed } else { check_object };
            check(key, revision, value).map_err(bad)?;
        }
        // Revisions may be missing only up to the last compacted one, which is known at the end.
        if revision != found.revision + 1 {
            missing = revision - 1;
        }
        found.revision = revision;
        found.add(revision);
        each(revision, key, value);
    }
    let stated = match format {
        Format::Current => read_base(connection)?.filter(|base| base.revision >= found.revision).or(stated),
        _ => read_meta(connection)?.map(|(revision, compacted)| {
            let revision = revision.max(found.revision);
            Totals { revision, compacted: compacted.min(revision), ..found }
        }),
    };
    let Some(stated) = stated else { return damaged("the last row has no totals") };
    if stated.revision > found.revision {
        missing = stated.revision;
    }
    if missing > stated.compacted {
        return damaged(format!("revision {missing} is missing"));
    }
    if (stated.rows, stated.digest) != (found.rows, found.digest) {
        return damaged(format!("its {} rows are not the {} rows that were written", found.rows, stated.rows));
    }
    Ok(stated)
}

/// Returns revision, key and value of a row.
fn cells<'a>(row: &'a Row<'_>) -> Result<(u64, &'a str, Option<&'a [u8]>), Unreadable> {
    let cell = |index: usize| row.get_ref(index).map_err(Unreadable::from);
    let Some(revision) = cell(0)?.as_i64().ok().and_then(|revision| u64::try_from(revision).ok()) else {
        return damaged("a row has an invalid revision");
    };
    let Ok(key) = cell(1)?.as_str() else { return damaged(format!("the key of revision {revision} is not a string")) };
    let value = cell(2)?;
    match value.data_type() {
        Type::Null => Ok((revision, key, None)),
        _ => match value.as_blob() {
            Ok(bytes) => Ok((revision, key, Some(bytes))),
            Err(_) => damaged(format!("revision {revision} of {key:?} is not an object")),
        },
    }
}

/// Returns the totals in table `base`.
fn read_base(connection: &Connection) -> Result<Option<Totals>, Unreadable> {
    let base = connection.query_row("SELECT totals FROM base WHERE id = 0", (), |row| row.get::<_, Vec<u8>>(0));
    match base.optional()?.as_deref().map(Totals::decode) {
        Some(Some(totals)) => Ok(Some(totals)),
        _ => damaged("table base has no valid totals"),
    }
}

/// Returns the last revision and the last compacted one, as earlier versions of Berth wrote them.
fn read_meta(connection: &Connection) -> Result<Option<(u64, u64)>, Unreadable> {
    let number = |name: &str| {
        let found = connection.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get::<_, i64>(0));
        found.optional().map(|value| value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0))
    };
    Ok(Some((number("revision")?, number("compacted")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_decoded_and_flipped_bits_are_rejected() {
        let mut totals = Totals { revision: 7, compacted: 3, is_open: true, ..Totals::default() };
        [1, 5, 7].into_iter().for_each(|revision| totals.add(revision));
        let bytes = totals.encode();
        assert_eq!(Totals::decode(&bytes), Some(totals));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Totals::decode(&flipped), None, "bit {bit}");
        }
        totals.remove(5);
        let mut without = Totals { revision: 7, compacted: 3, is_open: true, ..Totals::default() };
        [1, 7].into_iter().for_each(|revision| without.add(revision));
        assert_eq!(totals, without);
    }

    #[test]
    fn an_object_must_match_its_key_and_revision() {
        let check = |text: &str| check_object("/core/configmaps/default/a", 7, text.as_bytes());
        let text = r#"{"metadata":{"name":"a","namespace":"default","resourceVersion":"7"}}"#;
        check(text).unwrap();
        check(r#"{"metadata":{"resourceVersion":"7"}}"#).unwrap();
        for (from, to, problem) in [
            (r#""a""#, r#""b""#, "metadata.name \"b\""),
            (r#""default""#, r#""defaulu""#, "metadata.namespace"),
            (r#""7""#, r#""8""#, "resourceVersion \"8\""),
            (r#""metadata""#, r#""letadata""#, "metadata"),
            (r#":{"name"#, r#";{"name"#, "not JSON"),
            (r#"}}"#, r#"}"#, "not JSON"),
        ] {
            let error = check(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(problem), "{to}: {error}");
        }
        let error = check_object("/a", 1, b"{\"metadata\":{\"resourceVersion\":\"1\"},\"x\":\"\xff\"}").unwrap_err();
        assert!(error.contains("UTF-8"), "{error}");
        // A scan of the text that does not decode its strings would miss this error.
        assert!(check_unsummed("/a", 1, br#"{"metadata":{"resourceVersion":"1"},"x":"\ud800"}"#).is_err());
    }
}
