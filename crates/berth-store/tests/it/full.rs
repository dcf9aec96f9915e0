//! A full disk: a small tmpfs, mounted in a user namespace where that is permitted.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_store::{CommitError, SqliteOptions, SqliteStore, Store, Write};
use serde_json::json;

const VICTIM_FOLDER: &str = "BERTH_STORE_FULL_VICTIM";

fn create(number: u64) -> Write {
    Write::Create { key: format!("/a/{number}"), value: json!({"text": "x".repeat(60_000)}) }
}

/// Polls a condition in real time.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..200 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("timed out waiting for {what}");
}

/// Not a test: the process that runs in the namespace. It does nothing in a normal test run.
#[tokio::test]
async fn victim() {
    let Some(folder) = std::env::var_os(VICTIM_FOLDER) else { return };
    let folder = Path::new(&folder);
    let path = folder.join("store.db");
    let open = || SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let store = open();
    let mut written = 0;
    let error = loop {
        match store.commit(create(written)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "the disk never gets full");
    };
    assert!(matches!(error, CommitError::Unavailable { .. }), "{error}");
    assert!(written > 20);
    // The disk stays full, and deletions are still accepted.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut deleted = 0;
    for _ in 0..20 {
        let trouble = store.trouble().expect("trouble is reported");
        assert!(trouble.reason.contains("deletions") && !trouble.restart_helps, "{trouble:?}");
        assert!(store.commit(create(written)).await.is_err());
        let write = Write::Delete { key: format!("/a/{deleted}"), expected: deleted + 1, last: None };
        store.commit(write).await.expect("deletes");
        deleted += 1;
    }
    let larger = ["-o", "remount,size=64m"];
    assert!(Command::new("mount").args(larger).arg(folder).status().unwrap().success());
    until("the free space to be noticed", || store.trouble().is_none()).await;
    store.commit(create(written)).await.unwrap();
    drop(store);
    assert_eq!(open().revision(), written + deleted + 1);
    println!("done");
}

#[test]
fn a_full_disk_accepts_only_deletions_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=14m tmpfs \"$1\" && exec \"$0\" full::victim --exact --nocapture";
    let unshare = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount"]).args(command).env(VICTIM_FOLDER, folder.path());
        unshare.output()
    };
    let at = folder.path().to_str().unwrap();
    if !unshare(&["mount", "-t", "tmpfs", "tmpfs", at]).is_ok_and(|output| output.status.success()) {
        berth_testing::skip("cannot mount a file system in a user namespace");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = unshare(&["sh", "-c", mount, program.to_str().unwrap(), at]).unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("done"), "{out}{err}");
}
