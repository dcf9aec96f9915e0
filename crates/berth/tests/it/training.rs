//! The example of distributed training: two pods that run as processes of this machine, queued by
//! Berth, find each other and train a model.

use std::process::Command;
use std::time::Duration;

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, file, pause};

#[test]
fn two_pods_in_namespaces_of_their_own_train_a_model() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if has_programs() {
        let cluster = start("full");
        trains_a_model(&cluster);
        cluster.interrupt();
    }
}

#[test]
fn two_pods_without_namespaces_train_a_model() {
    if has_programs() {
        let cluster = start("plain");
        trains_a_model(&cluster);
        cluster.interrupt();
    }
}

#[test]
fn two_pods_of_a_user_without_privileges_train_a_model() {
    let data = tempfile::tempdir().expect("a temporary folder");
    if !has_programs() {
        return;
    }
    let arguments = ["--runtime", "process", "--isolation", "rootless", "--stop-pods"];
    let Some(cluster) = Cluster::unprivileged(data.path(), &arguments) else { return };
    assert!(cluster.printed_network().starts_with("rootless "), "{}", cluster.printed_network());
    trains_a_model(&cluster);
    // The pods found each other by name, as at the full level.
    let log = cluster.run(&["get", "pods", "-l", "job-name=train", "-o", "jsonpath={.items[*].status.podIP}"]);
    assert!(log.split_whitespace().all(|address| address.starts_with("10.") || address.starts_with("172.")), "{log}");
    cluster.interrupt();
}

fn start(isolation: &str) -> Cluster {
    Cluster::ephemeral(&["--runtime", "process", "--isolation", isolation])
}

/// False, with a notice, if a program that the example needs is not installed.
fn has_programs() -> bool {
    if !has_kubectl() {
        return false;
    }
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has_python {
        skip("python3 is not installed");
    }
    has_python
}

/// Runs the example and checks the result of each pod.
fn trains_a_model(cluster: &Cluster) {
    cluster.run(&["apply", "-f", &file("examples/training/queues.yaml")]);
    cluster.run(&["apply", "-f", &file("examples/training/job.yaml")]);
    // The limit is less than the time for which the programs wait for each other, so that a failure
    // is reported while they run.
    let is_complete = |cluster: &Cluster| cluster.get(&["job", "train"])["status"]["succeeded"] == 2;
    if !(0..60).any(|_| {
        is_complete(cluster) || {
            pause(Duration::from_secs(1));
            false
        }
    }) {
        report(cluster);
        panic!("the training did not complete in 60 s");
    }
    for index in ["0", "1"] {
        let selector = format!("batch.kubernetes.io/job-completion-index={index}");
        let log = cluster.run(&["logs", "-l", &selector, "--tail", "-1"]);
        assert!(log.contains(&format!("rank {index} of 2: rendezvous complete")), "{log}");
        assert!(log.contains("weights [2.0, -3.0, 0.5]") && log.ends_with("converged\n"), "{log}");
    }
    // The Workload was created, admitted and finished with the job.
    let workloads = cluster.get(&["workloads"]);
    let conditions = workloads["items"][0]["status"]["conditions"].as_array().expect("conditions");
    for condition in ["QuotaReserved", "Finished"] {
        assert!(conditions.iter().any(|it| it["type"] == condition), "{conditions:?}");
    }
}

/// Prints the state of the pods, services, addresses and sockets of a training that does not
/// complete.
fn report(cluster: &Cluster) {
    let print = |arguments: &[&str]| {
        let output = cluster.kubectl(&[&["--request-timeout=10s"], arguments].concat());
        eprintln!("kubectl {}", arguments.join(" "));
        eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    };
    print(&["get", "pods,services,events", "-o", "wide"]);
    print(&["get", "pods,endpointslices", "-o", "yaml"]);
    print(&["logs", "-l", "job-name=train", "--prefix", "--tail", "-1"]);
    let state = "cat /etc/resolv.conf /proc/net/tcp /proc/net/arp /proc/net/route; env | grep -e TRAIN_ -e POD_IP; \
                 timeout 5 getent hosts train-0.train";
    for pod in cluster.run(&["get", "pods", "-l", "job-name=train", "-o", "name"]).lines() {
        print(&["exec", pod, "--", "timeout", "10", "sh", "-c", state]);
    }
}
