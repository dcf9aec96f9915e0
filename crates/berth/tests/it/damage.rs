//! A damaged store under the program: the start fails with a message, and --recover recovers it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_testing::has_kubectl;

use crate::cluster::{Cluster, pause};

/// Time limit of a start that fails.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);

/// The error output of a start that fails on a folder.
fn refused(data: &Path) -> String {
    let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .env("RUST_BACKTRACE", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("berth runs");
    let tick = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    while process.try_wait().expect("the process can be polled").is_none() {
        if waited > REFUSED_WITHIN {
            process.kill().expect("the process can be killed");
            panic!("the store was served");
        }
        pause(tick);
        waited += tick;
    }
    let output = process.wait_with_output().expect("the process ended");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Bytes of SQLite's log that are in use. The bytes after them belong to an earlier log with other
/// salts (<https://sqlite.org/fileformat2.html#walformat>).
fn in_use(log: &[u8]) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24;
    let size = u32::from_be_bytes(log[8..12].try_into().expect("four bytes"));
    let frame = FRAME + usize::try_from(size).expect("a page's size");
    let salts = &log[16..24];
    HEADER + frame * log[HEADER..].chunks_exact(frame).take_while(|it| &it[8..16] == salts).count()
}

#[test]
fn a_store_without_its_end_is_rejected_and_can_be_recovered() {
    if !has_kubectl() {
        return;
    }
    const MAPS: usize = 12;
    let data = tempfile::tempdir().expect("a temporary folder");
    let cluster = Cluster::durable_apiserver(data.path());
    for number in 0..MAPS {
        cluster.run(&["create", "configmap", &format!("map-{number}"), "--from-literal=a=b"]);
    }
    cluster.kill();
    // Flips a bit of a recent commit.
    let log = data.path().join("store.sqlite-wal");
    let mut bytes = std::fs::read(&log).expect("SQLite's log");
    let end = in_use(&bytes);
    let at = end - end / 10;
    bytes[at] ^= 1;
    std::fs::write(&log, &bytes).expect("written");

    let said = refused(data.path());
    assert!(said.contains("lost its last writes") && said.contains("--recover"), "{said}");
    assert!(!said.contains("another berth") && !said.contains("backtrace"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(std::fs::read(&log).expect("SQLite's log"), bytes, "a start that failed changed the log");

    let cluster = Cluster::durable(data.path(), &["--recover"]);
    let names = cluster.run(&["get", "configmaps", "-o", "name"]);
    let kept = names.lines().filter(|name| name.contains("/map-")).count();
    assert!(kept + 1 >= MAPS, "{names}");
    cluster.run(&["create", "configmap", "after", "--from-literal=a=b"]);
    assert!(data.path().join("store.sqlite-damaged-1").exists());
    assert_eq!(std::fs::read(data.path().join("store.sqlite-damaged-1-wal")).expect("kept"), bytes);
    cluster.interrupt();
    // A second recovery finds no damage and changes nothing.
    let cluster = Cluster::durable(data.path(), &["--recover"]);
    cluster.run(&["get", "configmap", "after"]);
    assert!(!data.path().join("store.sqlite-damaged-2").exists());
}
