//! The example of distributed training: two pods that run as processes of this machine, queued by
//! Berth, find each other and train a model.

use std::process::Command;

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, file};

#[test]
fn two_pods_in_namespaces_of_their_own_train_a_model() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("python3 is not installed");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    cluster.run(&["apply", "-f", &file("examples/training/queues.yaml")]);
    cluster.run(&["apply", "-f", &file("examples/training/job.yaml")]);
    cluster.wait_until("the training to complete", 120, |cluster| {
        cluster.get(&["job", "train"])["status"]["succeeded"] == 2
    });
    for index in ["0", "1"] {
        let selector = format!("batch.kubernetes.io/job-completion-index={index}");
        let log = cluster.run(&["logs", "-l", &selector, "--tail", "-1"]);
        assert!(log.contains(&format!("rank {index} of 2: rendezvous complete")), "{log}");
        assert!(log.contains("weights [2.0, -3.0, 0.5]") && log.ends_with("converged\n"), "{log}");
    }
    // The Workload saw the whole life of the job.
    let workloads = cluster.get(&["workloads"]);
    let conditions = workloads["items"][0]["status"]["conditions"].as_array().expect("conditions");
    for condition in ["QuotaReserved", "Finished"] {
        assert!(conditions.iter().any(|it| it["type"] == condition), "{conditions:?}");
    }
    cluster.interrupt();
}
