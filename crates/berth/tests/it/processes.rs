//! API server, cluster and controllers as processes of their own, over TLS and kubeconfigs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{Cluster, file, kubectl_present, pause};
use crate::process::Process;

/// Applies an object.
fn apply(cluster: &Cluster, object: &Value) {
    let path = cluster.kubeconfig.with_file_name("object.json");
    std::fs::write(&path, object.to_string()).expect("the object can be written");
    cluster.run(&["apply", "-f", &path.display().to_string()]);
}

/// A job for one of the quickstart's queues that runs until it is deleted.
fn job(name: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{
            "name": "main", "image": "busybox", "command": ["sleep", "86400"],
            "resources": {"requests": {"cpu": "100m"}},
        }]}}},
    })
}

fn is_running(cluster: &Cluster, name: &str, namespace: &str) -> bool {
    cluster.get(&["job", name, "-n", namespace])["spec"]["suspend"] == json!(false)
}

/// How often each workload was admitted, by its events.
fn admissions(cluster: &Cluster) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for event in cluster.get(&["events", "-A"])["items"].as_array().into_iter().flatten() {
        if event["reason"] == "Admitted" {
            let name = event["involvedObject"]["name"].as_str().unwrap_or_default().to_owned();
            *counts.entry(name).or_default() += event["count"].as_i64().unwrap_or(1);
        }
    }
    counts
}

#[test]
fn another_replica_admits_soon_after_the_leader_was_killed_and_nothing_twice() {
    if !kubectl_present("another_replica_admits_soon_after_the_leader_was_killed") {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let _machines = Process::cluster(&cluster, &[]);
    let first = Process::controller(&cluster, &[]);
    first.wait_logged("this replica leads");
    let second = Process::controller(&cluster, &[]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    for index in 0..5 {
        apply(&cluster, &job(&format!("before-{index}"), "team-blue"));
    }
    cluster.wait_until("the first jobs to run", 30, |c| {
        (0..5).all(|i| is_running(c, &format!("before-{i}"), "team-blue"))
    });
    assert!(first.leads() && !second.leads());
    assert_eq!(second.get("/readyz"), (200, "ok".to_owned()), "who stands by is ready");
    assert_eq!(second.get("/healthz").0, 200);

    let killed = Instant::now();
    first.kill();
    apply(&cluster, &job("after", "team-blue"));
    while !is_running(&cluster, "after", "team-blue") {
        assert!(killed.elapsed() < Duration::from_secs(10), "nobody took over within 10 s");
        pause(Duration::from_millis(100));
    }
    assert!(second.leads());
    let counts = admissions(&cluster);
    assert_eq!(counts.len(), 6, "{counts:?}");
    assert!(counts.values().all(|count| *count == 1), "admitted twice: {counts:?}");

    // A replica that is told to stop lets go of the lease, and the next one need not wait for it to run out.
    let third = Process::controller(&cluster, &[]);
    cluster.wait_until("the third replica to stand by", 30, |_| {
        third.logged("serving").is_some() && third.get("/readyz").0 == 200
    });
    second.terminate();
    let holder = cluster.get(&["lease", "berth-controller", "-n", "berth-system"])["spec"]["holderIdentity"].clone();
    third.wait_logged("this replica leads");
    let later = cluster.get(&["lease", "berth-controller", "-n", "berth-system"]);
    assert_ne!(later["spec"]["holderIdentity"], "", "held again; it was {holder}");
    assert_eq!(later["spec"]["leaseTransitions"], 2);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let berth = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth")).args(arguments).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = berth(&["controller", "--leader-elect-renew-deadline=9s", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("lease duration (6s) must be longer than the renew deadline (9s)"), "{text}");
    let text = berth(&["controller", "--leader-elect=false", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("/nonexistent"), "{text}");
    let text = berth(&["cluster", "--time-scale=60", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("--time-origin"), "{text}");
    let text = berth(&["controller", "--metrics-bind-address=8080"]);
    assert!(text.contains(":PORT for every address"), "{text}");
}
