//! A damaged store under the program: refused in words, and recovered when asked to.

use std::path::Path;
use std::process::Command;

use crate::cluster::{Cluster, kubectl_present};

/// What a start on a folder says that is refused.
fn refused(data: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .env("RUST_BACKTRACE", "1")
        .output()
        .expect("berth runs");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_store_that_lost_its_end_is_refused_and_recovered_when_asked_to() {
    if !kubectl_present("a_store_that_lost_its_end_is_refused_and_recovered_when_asked_to") {
        return;
    }
    const MAPS: usize = 12;
    let data = tempfile::tempdir().expect("a temporary folder");
    let cluster = Cluster::durable_apiserver(data.path());
    for number in 0..MAPS {
        cluster.run(&["create", "configmap", &format!("map-{number}"), "--from-literal=a=b"]);
    }
    cluster.kill();
    // A bit of one of the last commits but a few.
    let log = data.path().join("store.sqlite-wal");
    let mut bytes = std::fs::read(&log).expect("SQLite's log");
    let at = bytes.len() - bytes.len() / 10;
    bytes[at] ^= 1;
    std::fs::write(&log, &bytes).expect("written");

    let said = refused(data.path());
    assert!(said.contains("lost its end") && said.contains("--recover"), "{said}");
    assert!(!said.contains("another berth") && !said.contains("backtrace"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(std::fs::read(&log).expect("SQLite's log"), bytes, "a start that is refused changes nothing");

    let cluster = Cluster::durable(data.path(), &["--recover"]);
    let names = cluster.run(&["get", "configmaps", "-o", "name"]);
    let kept = names.lines().filter(|name| name.contains("/map-")).count();
    assert!(kept + 1 >= MAPS, "{names}");
    cluster.run(&["create", "configmap", "after", "--from-literal=a=b"]);
    assert!(data.path().join("store.sqlite-damaged-1").exists());
    assert_eq!(std::fs::read(data.path().join("store.sqlite-damaged-1-wal")).expect("kept"), bytes);
    cluster.interrupt();
    // Nothing more to do, and nothing is done.
    let cluster = Cluster::durable(data.path(), &["--recover"]);
    cluster.run(&["get", "configmap", "after"]);
    assert!(!data.path().join("store.sqlite-damaged-2").exists());
}
