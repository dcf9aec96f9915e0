//! Damaged store files. A damaged file is either rejected or reads exactly like the intact one, and
//! recovery restores only objects that were written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use berth_store::{ListQuery, OpenError, SqliteOptions, SqliteStore, Store, Write, recover};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Number of flipped bits per file, from `BERTH_DAMAGE_CASES`.
fn cases() -> u64 {
    std::env::var("BERTH_DAMAGE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(12)
}

/// A pseudo-random sequence that is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn open(path: &Path) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(path, SqliteOptions { history: 150, ..SqliteOptions::default() })
}

/// The text of each object by key, and the revision.
type Content = (BTreeMap<String, Vec<u8>>, u64);

fn content(store: &SqliteStore) -> Content {
    let listing = store.list(&ListQuery::all("")).unwrap();
    let objects = listing.records.iter().map(|record| (record.key.to_string(), record.bytes().to_vec()));
    (objects.collect(), store.revision())
}

fn object(name: u64, random: &mut Random) -> Value {
    let length = if random.below(20) == 0 { 40_000 } else { random.below(1500) };
    let text: String = (0..length).map(|index| if index % 50 == 0 { 'é' } else { 'x' }).collect();
    json!({"kind": "ConfigMap", "metadata": {"name": format!("m{name}"), "namespace": "default"}, "data": {"k": text}})
}

/// All acknowledged writes by revision: key and text, with `None` for a delete.
type Written = BTreeMap<u64, (String, Option<Vec<u8>>)>;

async fn write(store: &SqliteStore, random: &mut Random, writes: usize, written: &mut Written, what: &str) {
    for _ in 0..writes {
        let name = random.below(60);
        let key = format!("/core/configmaps/default/m{name}");
        let write = match store.get(&key) {
            None => Write::Create { key: key.clone(), value: object(name, random) },
            Some(record) if random.below(5) == 0 => {
                Write::Delete { key: key.clone(), expected: record.revision, last: None }
            }
            Some(record) => Write::Update { key: key.clone(), expected: record.revision, value: object(name, random) },
        };
        let is_delete = matches!(write, Write::Delete { .. });
        let committed = store.commit(write).await;
        let record = committed.unwrap_or_else(|error| panic!("{what}: {error}")).record;
        written.insert(record.revision, (key, (!is_delete).then(|| record.bytes().to_vec())));
    }
}

/// The files of a store that was killed or closed.
struct Victim {
    folder: TempDir,
    content: Content,
    written: Written,
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

async fn victim(is_killed: bool) -> Victim {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let (mut random, mut written) = (Random(7), Written::new());
    let store = open(&path).unwrap();
    // Objects that do not change again, so that some pages are not in the log.
    for name in 1000..1200 {
        let key = format!("/core/configmaps/default/m{name}");
        let record =
            store.commit(Write::Create { key: key.clone(), value: object(name, &mut random) }).await.unwrap().record;
        written.insert(record.revision, (key, Some(record.bytes().to_vec())));
    }
    write(&store, &mut random, 300, &mut written, "intact").await;
    store.compact(400);
    drop(store);
    let store = open(&path).unwrap();
    write(&store, &mut random, 300, &mut written, "intact").await;
    let content = content(&store);
    if !is_killed {
        drop(store);
        return Victim { folder, content, written };
    }
    let killed = tempfile::tempdir().unwrap();
    copy(folder.path(), killed.path());
    Victim { folder: killed, content, written }
}

impl Victim {
    fn copy(&self) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        copy(self.folder.path(), folder.path());
        let path = folder.path().join("store.db");
        (folder, path)
    }

    /// Returns true if the store is rejected. Otherwise checks that its content is unchanged, also
    /// after more writes.
    async fn is_rejected(&self, path: &Path, what: &str) -> bool {
        let store = match open(path) {
            Ok(store) => store,
            Err(OpenError::Damaged { .. } | OpenError::EndLost { .. }) => return true,
            Err(error) => panic!("{what}: {error}"),
        };
        assert!(content(&store) == self.content, "{what}: damaged content is served");
        let (mut random, mut written) = (Random(11), Written::new());
        write(&store, &mut random, 40, &mut written, what).await;
        let after = content(&store);
        drop(store);
        assert!(content(&open(path).unwrap()) == after, "{what}: content differs after a restart");
        false
    }

    /// Recovers a rejected store. Returns the number of objects that differ from the intact store.
    fn recovered(&self, path: &Path, what: &str) -> usize {
        let recovery = recover(path).unwrap_or_else(|error| panic!("{what}: {error}")).expect("the store was rejected");
        let (objects, revision) = content(&open(path).unwrap());
        assert!(revision > self.content.1, "{what}: a revision would be used twice");
        assert_eq!(objects.len(), recovery.kept, "{what}");
        for (key, text) in &objects {
            let object: Value = serde_json::from_slice(text).unwrap();
            let revision = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert!(
                self.written.get(&revision) == Some(&(key.clone(), Some(text.clone()))),
                "{what}: {key} was never written like this"
            );
        }
        let before = &self.content.0;
        let other = before.iter().filter(|(key, text)| objects.get(*key) != Some(text)).count();
        let more = objects.keys().filter(|key| !before.contains_key(*key)).count();
        assert!(!recovery.lost.is_empty() || other + more == 0, "{what}: a loss is not reported");
        let report = std::fs::read_to_string(&recovery.report).unwrap();
        assert!(recovery.lost.iter().all(|line| report.contains(line)), "{what}: {report}");
        assert!(recovery.damaged.exists());
        other + more
    }
}

fn flip(path: &Path, bit: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[bit as usize / 8] ^= 1 << (bit % 8);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_flipped_bit_is_rejected_or_harmless_and_damages_at_most_one_object() {
    for (is_killed, suffix) in [(false, ""), (true, ""), (true, "-wal")] {
        let victim = victim(is_killed).await;
        let bits = std::fs::metadata(victim.folder.path().join(format!("store.db{suffix}"))).unwrap().len() * 8;
        assert!(bits > 0, "there is no store.db{suffix}");
        let (mut random, mut rejected, mut worst) = (Random(0x9e37_79b9 + bits), 0, 0);
        for _ in 0..cases() {
            let (folder, path) = victim.copy();
            let bit = random.below(bits);
            let what = format!("bit {bit} of store.db{suffix} (killed: {is_killed})");
            flip(&folder.path().join(format!("store.db{suffix}")), bit);
            if victim.is_rejected(&path, &what).await {
                rejected += 1;
                let lost = victim.recovered(&path, &what);
                worst = worst.max(lost);
                println!("{what}: {lost}");
                assert!(lost <= 1, "{what}: {lost} objects have changed");
            }
        }
        println!("store.db{suffix}, killed {is_killed}: {rejected} of {} rejected, worst {worst}", cases());
        assert!(rejected > 0, "no case was rejected");
    }
}

#[tokio::test]
async fn a_page_of_noise_is_rejected_or_harmless_and_damages_only_its_objects() {
    let victim = victim(false).await;
    let mut random = Random(3);
    let pages = std::fs::metadata(victim.folder.path().join("store.db")).unwrap().len() / 16_384;
    for page in 0..pages {
        let (_folder, path) = victim.copy();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[page as usize * 16_384..][..16_384].fill_with(|| random.below(256) as u8);
        std::fs::write(&path, bytes).unwrap();
        if victim.is_rejected(&path, &format!("page {page}")).await {
            let lost = victim.recovered(&path, &format!("page {page}"));
            assert!(lost < 30, "page {page}: {lost} objects have changed");
        }
    }
}

#[tokio::test]
async fn a_missing_or_truncated_log_is_rejected() {
    let victim = victim(true).await;
    let length = std::fs::metadata(victim.folder.path().join("store.db-wal")).unwrap().len();
    for left in [0, length / 3, length - 20_000] {
        let (folder, path) = victim.copy();
        let log = folder.path().join("store.db-wal");
        if left == 0 {
            std::fs::remove_file(&log).unwrap();
        } else {
            std::fs::File::options().write(true).open(&log).unwrap().set_len(left).unwrap();
        }
        let error = open(&path).err().expect("rejected").to_string();
        // Without the log the file may be between two checkpointed states.
        assert!(error.contains("800 was acknowledged") || error.contains("is damaged"), "{error}");
        assert!(left > 0 || error.contains("store.db-wal"), "{error}");
        assert!(error.contains("--recover"), "{error}");
        assert_eq!(std::fs::metadata(&log).map_or(0, |log| log.len()), left, "the log has changed");
        victim.recovered(&path, &format!("{left} bytes of the log"));
        // A second recovery has nothing to do.
        assert!(recover(&path).unwrap().is_none());
    }
}

#[tokio::test]
async fn a_missing_mark_file_is_rejected_unless_the_store_was_closed() {
    for is_killed in [false, true] {
        let victim = victim(is_killed).await;
        for damage in ["missing", "damaged"] {
            let (folder, path) = victim.copy();
            let mark = folder.path().join("store.db-mark");
            if damage == "missing" {
                std::fs::remove_file(&mark).unwrap()
            } else {
                flip(&mark, 77)
            };
            match open(&path) {
                Ok(store) => assert!(!is_killed && content(&store) == victim.content),
                Err(error) => {
                    let error = error.to_string();
                    assert!(is_killed && error.contains(damage), "{error}");
                    assert_eq!(victim.recovered(&path, damage), 0);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_missing_store_file_is_not_created_again() {
    let victim = victim(true).await;
    let (folder, path) = victim.copy();
    std::fs::remove_file(&path).unwrap();
    let error = open(&path).err().expect("rejected").to_string();
    assert!(error.contains("missing or empty") && error.contains("store.db-mark"), "{error}");
    assert!(std::fs::metadata(folder.path().join("store.db-wal")).unwrap().len() > 0, "the log is kept");
    for file in ["store.db", "store.db-wal", "store.db-mark"] {
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_eq!(open(&path).unwrap().revision(), 0);
}

#[tokio::test]
async fn an_interrupted_recovery_is_completed() {
    let [new, old] = [victim(false).await, victim(true).await];
    let (folder, path) = old.copy();
    std::fs::copy(new.folder.path().join("store.db"), folder.path().join("store.db-next")).unwrap();
    assert!(content(&open(&path).unwrap()) == new.content);
    assert!(!folder.path().join("store.db-next").exists());
}

/// Writes a file as versions of Berth without checksums did.
fn older(path: &Path, rows: &[(u64, &str, Option<&[u8]>)], revision: u64, compacted: u64) {
    let file = rusqlite::Connection::open(path).unwrap();
    file.pragma_update(None, "journal_mode", "WAL").unwrap();
    let tables = "
        CREATE TABLE log (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB) STRICT;
        CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;";
    file.execute_batch(tables).unwrap();
    for (revision, key, value) in rows {
        let row = rusqlite::params![*revision as i64, key, value];
        file.execute("INSERT INTO log VALUES (?1, ?2, ?3)", row).unwrap();
    }
    for (name, value) in [("revision", revision), ("compacted", compacted)] {
        file.execute("INSERT INTO meta VALUES (?1, ?2)", rusqlite::params![name, value as i64]).unwrap();
    }
}

#[tokio::test]
async fn a_file_without_checksums_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let text = |name: &str, revision: u64| {
        format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{revision}"}}}}"#).into_bytes()
    };
    let (a, b) = (text("a", 2), text("b", 5));
    // Revisions 1 and 3 were compacted, and so was the last one, a delete.
    older(&path, &[(2, "/x/a", Some(&a)), (4, "/x/c", None), (5, "/x/b", Some(&b)), (6, "/x/b", None)], 7, 3);
    // Not all revisions after 3 have a row.
    let error = open(&path).err().expect("rejected").to_string();
    assert!(error.contains("revision 7 is missing"), "{error}");
    std::fs::remove_file(&path).unwrap();
    older(&path, &[(2, "/x/a", Some(&a)), (4, "/x/c", None), (5, "/x/b", Some(&b)), (6, "/x/b", None)], 6, 3);
    for _ in 0..2 {
        let store = open(&path).unwrap();
        assert_eq!((store.revision(), store.compacted()), (6, 3));
        assert_eq!(content(&store).0, BTreeMap::from([("/x/a".to_owned(), a.clone())]));
        let mut watcher = store.watch("/", 3).unwrap();
        let seen = std::iter::from_fn(|| watcher.try_next().unwrap());
        assert_eq!(seen.map(|event| event.revision()).collect::<Vec<_>>(), [5, 6]);
    }
    let file = rusqlite::Connection::open(&path).unwrap();
    let unsummed: i64 = file.query_row("SELECT count(*) FROM log WHERE sum IS NULL", (), |row| row.get(0)).unwrap();
    assert_eq!(unsummed, 0);
    // Those versions cannot read the new file, so they cannot add rows without checksums.
    assert!(file.prepare("SELECT value FROM meta WHERE name = ?1").is_err());
}

#[tokio::test]
async fn visible_damage_without_checksums_is_rejected() {
    let good = br#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"1"}}"#;
    for (key, text, problem) in [
        ("/x/n/b", &br#"{"metadata":{"name":"c","namespace":"n","resourceVersion":"2"}}"#[..], "metadata.name \"c\""),
        ("/x/n/b", br#"{"metadata":{"name":"b","namespace":"m","resourceVersion":"2"}}"#, "metadata.namespace \"m\""),
        ("/x/n/b", br#"{"metadata":{"name":"b","namespace":"n","resourceVersion":"3"}}"#, "resourceVersion \"3\""),
        ("/x/n/b", b"{\"metadata\":{\"resourceVersion\":\"2\"},\"x\":\"\xff\"}", "UTF-8"),
        ("/x/n/b", br#"{"metadata":{"resourceVersion":"2"},"x":1e999}"#, "JSON"),
        ("/x/n/b", br#"{"metadata":{"resourceVersion":"2"},"x":"#, "JSON"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        older(&path, &[(1, "/x/n/a", Some(good)), (2, key, Some(text))], 2, 0);
        let error = open(&path).err().expect("rejected").to_string();
        assert!(error.contains(problem) && error.contains("revision 2 of \"/x/n/b\""), "{error}");
        assert!(!error.contains("another berth"), "{error}");
        let recovery = recover(&path).unwrap().unwrap();
        assert_eq!((recovery.kept, recovery.lost.len()), (1, 1), "{:?}", recovery.lost);
        assert!(recovery.lost[0].contains(problem), "{:?}", recovery.lost);
        assert_eq!(open(&path).unwrap().get("/x/n/a").unwrap().bytes(), &good[..]);
    }
}

#[test]
fn a_foreign_file_is_rejected_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    std::fs::write(&path, "not a database, but plain text\n".repeat(1000)).unwrap();
    for error in [open(&path).err(), recover(&path).err()] {
        let error = error.expect("rejected").to_string();
        assert!(error.contains("damaged") && !error.contains("another berth"), "{error}");
    }
    assert!(std::fs::read_to_string(&path).unwrap().starts_with("not a database"));
}

#[test]
fn a_lock_of_another_program_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    drop(open(&path).unwrap());
    let other = rusqlite::Connection::open(&path).unwrap();
    other.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
    other.execute_batch("BEGIN EXCLUSIVE; DELETE FROM log; COMMIT; BEGIN EXCLUSIVE").unwrap();
    assert!(matches!(open(&path), Err(OpenError::Locked { .. })));
}
