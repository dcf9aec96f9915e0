//! Kills a writing process a hundred times on one file: no acknowledged write is lost, and
//! revisions only rise.
//!
//! The test starts its own executable again as the victim. The victim writes as fast as it can,
//! prints each acknowledged write on its standard output, and is killed at a random moment.

use std::io::{BufRead, BufReader, Read, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use berth_store::{ListQuery, SqliteOptions, SqliteStore, Store, Write};
use serde_json::json;

const VICTIM_FILE: &str = "BERTH_STORE_CRASH_VICTIM";
const VICTIM_BYTES: &str = "BERTH_STORE_CRASH_BYTES";
const KILLS: usize = 100;
/// Before each kill whose number is a multiple of this, the victim writes large objects, so that
/// its log is checkpointed and restarted.
const LARGE_EVERY: usize = 25;

fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, SqliteOptions { history: 200, ..SqliteOptions::default() }).unwrap()
}

/// Not a test: the process that is killed. It does nothing in a normal test run.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(VICTIM_FILE) else { return };
    let bytes = std::env::var(VICTIM_BYTES).unwrap().parse().unwrap();
    let store = open(Path::new(&path));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut out = std::io::stdout().lock();
        for round in 0u64.. {
            // Concurrent writes share a transaction; each is acknowledged separately.
            let writes: Vec<_> = (0..8)
                .map(|slot| {
                    let key = format!("/slot/{slot}");
                    let value = json!({"round": round, "filler": "x".repeat(bytes)});
                    let write = match store.get(&key) {
                        Some(record) if round % 7 == slot => {
                            Write::Delete { key, expected: record.revision, last: None }
                        }
                        Some(record) => Write::Update { key, expected: record.revision, value },
                        None => Write::Create { key, value },
                    };
                    store.commit(write)
                })
                .collect();
            for write in writes {
                let committed = write.await.unwrap();
                writeln!(out, "ack {} {}", committed.record.revision, committed.record.key).unwrap();
            }
            out.flush().unwrap();
        }
    });
}

#[test]
fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let mut last_revision = 0;
    for kill in 0..KILLS {
        let (bytes, least) = if kill % LARGE_EVERY == LARGE_EVERY - 1 { ("200000", 60) } else { ("500", 1) };
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["crash::victim", "--exact", "--nocapture", "--test-threads=1"])
            .env(VICTIM_FILE, &path)
            .env(VICTIM_BYTES, bytes)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap());
        // The number of acknowledgements varies, so that the kills hit different moments.
        let mut acknowledged: Vec<(u64, String)> = Vec::new();
        let mut line = String::new();
        while acknowledged.len() < least + kill * 13 % 61 {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the victim ended before it was killed");
            acknowledged.extend(acknowledgement(&line));
        }
        // SIGKILL: no destructor runs.
        victim.kill().unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        victim.wait().unwrap();
        // The last line may be incomplete; it does not count.
        acknowledged.extend(rest.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(acknowledgement));

        let store = open(&path);
        let (last_acknowledged, _) = acknowledged.last().unwrap();
        assert!(acknowledged.first().unwrap().0 > last_revision, "a revision was used twice");
        assert!(
            store.revision() >= *last_acknowledged,
            "kill {kill}: at {} although {last_acknowledged} was acknowledged",
            store.revision()
        );
        let mut latest = std::collections::BTreeMap::new();
        for (revision, key) in &acknowledged {
            latest.insert(key.clone(), *revision);
        }
        for (key, revision) in latest {
            // Either this was the last write of the key, or a later write followed it whose
            // acknowledgement was not read.
            match store.get(&key) {
                Some(record) => assert!(record.revision >= revision, "kill {kill}: {key} has an older revision"),
                None => assert!(deleted_since(&store, &key, revision), "kill {kill}: {key} is lost"),
            }
        }
        let listing = store.list(&ListQuery::all("")).unwrap();
        assert!(listing.records.iter().all(|record| record.revision <= store.revision()));
        last_revision = store.revision();
    }
}

fn acknowledgement(line: &str) -> Option<(u64, String)> {
    // The test harness of the victim prints to the same stream.
    let (_, rest) = line.trim_end().split_once("ack ")?;
    let (revision, key) = rest.split_once(' ')?;
    Some((revision.parse().ok()?, key.to_owned()))
}

/// True if the history has a delete of `key` at or after `revision`.
fn deleted_since(store: &SqliteStore, key: &str, revision: u64) -> bool {
    let Ok(mut watcher) = store.watch(key, revision - 1) else { return false };
    let mut deleted = false;
    while let Ok(Some(event)) = watcher.try_next() {
        deleted = matches!(event.change, berth_store::Change::Deleted(_));
    }
    deleted
}
