//! Restarts of the durable store, and write errors.

use berth_store::{CommitError, ListQuery, OpenError, ReadError, SqliteOptions, SqliteStore, Store, Write};
use serde_json::json;

fn create(key: &str) -> Write {
    Write::Create { key: key.to_owned(), value: json!({"text": "x".repeat(1000)}) }
}

#[tokio::test]
async fn objects_history_and_revision_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let open = || SqliteStore::open(&path, SqliteOptions { history: 4, ..SqliteOptions::default() }).unwrap();
    let store = open();
    for key in ["/a/1", "/a/2", "/a/3", "/a/4", "/a/5"] {
        store.commit(create(key)).await.unwrap();
    }
    store.commit(Write::Delete { key: "/a/5".into(), expected: 5, last: None }).await.unwrap();
    store.commit(Write::Update { key: "/a/1".into(), expected: 1, value: json!({"n": 2}) }).await.unwrap();
    drop(store);

    let store = open();
    assert_eq!((store.revision(), store.compacted()), (7, 3));
    let listing = store.list(&ListQuery::all("/a/")).unwrap();
    let revisions: Vec<u64> = listing.records.iter().map(|record| record.revision).collect();
    assert_eq!(revisions, [7, 2, 3, 4]);
    assert_eq!(store.get("/a/1").unwrap().value()["n"], 2);
    let mut watcher = store.watch("/a/", 5).unwrap();
    assert_eq!(watcher.next().await.unwrap().revision(), 6);
    assert_eq!(watcher.next().await.unwrap().revision(), 7);
    assert!(matches!(store.watch("/a/", 2), Err(ReadError::Compacted { .. })));
    // The last write is a delete whose row is collected. Revisions still continue after it.
    store.commit(Write::Delete { key: "/a/2".into(), expected: 2, last: None }).await.unwrap();
    for number in 0..8 {
        let key = format!("/b/{number}");
        let made = store.commit(create(&key)).await.unwrap();
        store.commit(Write::Delete { key, expected: made.record.revision, last: None }).await.unwrap();
    }
    let revision = store.revision();
    drop(store);
    assert_eq!(open().revision(), revision);
}

#[tokio::test]
async fn a_deleted_object_stays_deleted_while_its_rows_are_collected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let mut store = open();
    for round in 0..8 {
        let made = store.commit(create("/a/gone")).await.unwrap();
        let update = |number: u64| json!({"n": number});
        let expected = made.record.revision;
        let changed = store.commit(Write::Update { key: "/a/gone".into(), expected, value: update(1) }).await.unwrap();
        let mut other = store.commit(create(&format!("/b/{round}"))).await.unwrap().record.revision;
        // Many changes between its rows, so that the rows are collected in different batches.
        for number in 0..200 {
            let write = Write::Update { key: format!("/b/{round}"), expected: other, value: update(number) };
            other = store.commit(write).await.unwrap().record.revision;
            if number == 100 {
                let expected = changed.record.revision;
                store.commit(Write::Delete { key: "/a/gone".into(), expected, last: None }).await.unwrap();
            }
        }
        store.compact(store.revision());
        for number in 0..round {
            store.commit(create(&format!("/c/{round}/{number}"))).await.unwrap();
        }
        drop(store);
        store = open();
        assert!(store.get("/a/gone").is_none(), "after {round} batches");
    }
}

#[tokio::test]
async fn the_log_is_restarted_under_continuous_writes() {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 512;
    const BYTES: u64 = 32 * 1024;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = std::sync::Arc::new(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for number in 0..WRITES {
                let value = json!({"text": "x".repeat(BYTES as usize)});
                store.commit(Write::Create { key: format!("/{writer}/{number}"), value }).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    // Checkpoints move the log into the file at the same time, so the log stays shorter than the
    // data.
    let log = std::fs::metadata(folder.path().join("store.db-wal")).unwrap().len();
    assert!(log < WRITERS * WRITES * BYTES / 2, "the log has {log} bytes");
    drop(store);
    let objects = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    assert_eq!(objects.list(&ListQuery::all("/")).unwrap().records.len() as u64, WRITERS * WRITES);
}

#[tokio::test]
async fn a_store_cannot_be_opened_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let _store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    assert!(matches!(SqliteStore::open(&path, SqliteOptions::default()), Err(OpenError::InUse { .. })));
}

#[cfg(unix)]
#[test]
fn a_store_cannot_be_opened_twice_through_symbolic_links() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [path, link, new] = folders.each_ref().map(|folder| folder.path().join("store.db"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    // Opening through a dangling link creates the file.
    let open = SqliteStore::open(&link, SqliteOptions::default()).unwrap();
    std::os::unix::fs::symlink(&path, &new).unwrap();
    for name in [&path, &new] {
        assert!(matches!(SqliteStore::open(name, SqliteOptions::default()), Err(OpenError::InUse { .. })));
    }
    drop(open);
    SqliteStore::open(&new, SqliteOptions::default()).unwrap();
}

#[tokio::test]
async fn a_file_with_another_page_size_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let older = rusqlite::Connection::open(&path).unwrap();
    older.pragma_update(None, "page_size", 4096).unwrap();
    older.execute_batch("CREATE TABLE before (v)").unwrap();
    drop(older);
    for written in 1..=3 {
        let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
        store.commit(create(&format!("/a/{written}"))).await.unwrap();
        assert_eq!(store.list(&ListQuery::all("/a/")).unwrap().records.len(), written);
    }
    let size: u32 =
        rusqlite::Connection::open(&path).unwrap().pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
    assert_eq!(size, 4096);
}

#[tokio::test]
async fn a_full_disk_rejects_writes_and_serves_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let options = SqliteOptions { bytes_max: Some(100_000), ..SqliteOptions::default() };
    let store = SqliteStore::open(&path, options).unwrap();
    let mut written = 0;
    let error = loop {
        match store.commit(create(&format!("/a/{written:04}"))).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CommitError::Unavailable { .. }), "{error}");
    assert!(written > 5);
    assert_eq!(store.revision(), written);
    assert_eq!(store.list(&ListQuery::all("/a/")).unwrap().records.len() as u64, written);
    let mut watcher = store.watch("/a/", 0).unwrap();
    let mut seen = 0;
    while watcher.try_next().unwrap().is_some() {
        seen += 1;
    }
    assert_eq!(seen, written);
    drop(store);
    // Acknowledged writes are kept. Without the limit, writes succeed again.
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    assert_eq!(store.revision(), written);
    store.commit(create("/b")).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let files = || -> Vec<std::path::PathBuf> {
        let mut files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    };
    let check = || {
        let files = files();
        assert_eq!(files.len(), 6, "{files:?}");
        for file in files {
            let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}: {mode:o}", file.display());
        }
    };
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    store.commit(create("/a/1")).await.unwrap();
    check();
    // Copies with permissions for others, as of a killed process.
    let copy = tempfile::tempdir().unwrap();
    for file in files() {
        let copied = copy.path().join(file.file_name().unwrap());
        std::fs::copy(&file, &copied).unwrap();
    }
    drop(store);
    for copied in std::fs::read_dir(copy.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let file = folder.path().join(copied.file_name().unwrap());
        std::fs::copy(&copied, &file).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    assert!(store.get("/a/1").is_some());
    check();
}
