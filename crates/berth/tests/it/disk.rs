//! A disk that accepts no more writes under a running server, like a full or read-only disk. A
//! limit on the size of files simulates it, because it can be set on a running process and removed
//! again.

use std::path::Path;
use std::time::Duration;

use berth_testing::has_kubectl;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::time::Instant;

use crate::cluster::Cluster;

/// Time in which a store that cannot write tries several times to open its file again.
const ATTEMPTS: Duration = Duration::from_secs(5);

/// Limits the size of the server's files to this many bytes.
fn limit(cluster: &Cluster, bytes: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(cluster.id()).expect("a process")).expect("a process");
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None }).expect("the limit can be set");
}

fn largest_file(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("a folder").filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|metadata| metadata.len()).max().unwrap_or_default()
}

#[test]
fn a_full_disk_rejects_writes_allows_reads_and_recovers() {
    if !has_kubectl() {
        return;
    }
    let data = tempfile::tempdir().expect("a temporary folder");
    let content = data.path().join("content.txt");
    std::fs::write(&content, "x".repeat(200_000)).expect("written");
    let from = format!("--from-file={}", content.display());
    let cluster = Cluster::durable_apiserver(data.path());
    let create = |number: usize| cluster.kubectl(&["create", "configmap", &format!("map-{number}"), &from]);
    let stored = |cluster: &Cluster| {
        let names = cluster.run(&["get", "configmaps", "-o", "name"]);
        names.lines().filter(|name| name.contains("/map-")).count()
    };
    assert!(create(0).status.success());

    limit(&cluster, Some(largest_file(data.path())));
    // The log has space left in its file, and after a failed commit its content is moved to the
    // store's file, so some writes still succeed. The disk is full once writes are rejected for
    // longer than several attempts to open the file again.
    let (mut written, mut refused, mut since) = (1, Vec::new(), Instant::now());
    while refused.len() < 3 || since.elapsed() < ATTEMPTS {
        assert!(written < 200, "no write was rejected");
        let output = create(written);
        if output.status.success() {
            written += 1;
            refused.clear();
            since = Instant::now();
        } else {
            refused.push(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    assert!(refused.iter().all(|why| why.contains("the store cannot write")), "{refused:?}");
    assert!(
        !cluster.kubectl(&["label", "configmap", "map-0", "a=b"]).status.success(),
        "a write succeeded on the full disk"
    );
    assert_eq!(stored(&cluster), written);
    assert_eq!(cluster.get(&["configmap", "map-0"])["metadata"]["labels"], serde_json::Value::Null);
    assert_eq!(cluster.run(&["get", "--raw", "/livez"]), "ok");
    cluster.wait_until("the server to report the store", 20, |cluster| {
        let output = cluster.kubectl(&["get", "--raw", "/readyz"]);
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("the store cannot write")
    });

    // The server recovers by itself, without a further write.
    limit(&cluster, None);
    cluster.wait_until("the server to be ready again", 20, |cluster| {
        cluster.kubectl(&["get", "--raw", "/readyz"]).status.success()
    });
    let again = create(written);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    // The next process has every acknowledged object, from before and after the failure.
    cluster.kill();
    let cluster = Cluster::durable_apiserver(data.path());
    assert_eq!(stored(&cluster), written + 1);
}
