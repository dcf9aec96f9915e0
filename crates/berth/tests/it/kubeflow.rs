//! Kubeflow's jobs with real programs: torchrun and mpirun, in pods that run as processes of this
//! machine. The pods find each other by what the operators set.

use std::path::Path;
use std::process::Command;

use berth_testing::skip;
use serde_json::Value;

use crate::cluster::{Cluster, file};
use crate::programs::has_isolation;

/// Time limit of a program on a busy machine, in seconds.
const PATIENCE: u64 = 300;

/// A cluster with the queue of the examples, and this example.
fn with_example(example: &str) -> Cluster {
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    cluster.run(&["apply", "-f", &file("examples/training/queues.yaml"), "-f", &file(example)]);
    cluster
}

fn is_true(job: &Value, type_: &str) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == type_ && it["status"] == "True")
}

/// Waits until a job has ended. Panics unless it has succeeded and was admitted by its queue.
fn until_succeeded(cluster: &Cluster, kind: &str, name: &str) {
    let job = |cluster: &Cluster| cluster.get(&[kind, name]);
    cluster.wait_until(&format!("{kind} {name} to end"), PATIENCE, |cluster| {
        let job = job(cluster);
        is_true(&job, "Succeeded") || is_true(&job, "Failed")
    });
    let ended = job(cluster);
    if !is_true(&ended, "Succeeded") {
        report(cluster, name);
        panic!("{}", ended["status"]);
    }
    let workloads = cluster.get(&["workloads"]);
    assert!(is_true(&workloads["items"][0], "Admitted"), "{workloads}");
}

/// Prints the logs and events of a job that has failed.
fn report(cluster: &Cluster, name: &str) {
    let selector = format!("training.kubeflow.org/job-name={name}");
    let logs = ["logs", "-l", &selector, "--prefix", "--all-containers", "--tail", "-1"];
    for arguments in [&["get", "pods,events", "-o", "wide"][..], &logs] {
        let output = cluster.kubectl(arguments);
        eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_pytorch_job_trains_with_torchrun() {
    if !has_isolation() {
        return;
    }
    if !["/usr/bin/torchrun", "/usr/local/bin/torchrun"].iter().any(|path| Path::new(path).exists()) {
        return skip("torchrun is not installed (Debian: python3-torch)");
    }
    let cluster = with_example("examples/kubeflow/pytorchjob.yaml");
    until_succeeded(&cluster, "pytorchjob", "pytorch");
    for (rank, pod) in ["pytorch-master-0", "pytorch-worker-0"].into_iter().enumerate() {
        let log = cluster.run(&["logs", pod, "-c", "pytorch"]);
        let expected = format!("rank {rank} of 2 on {pod}, with ['pytorch-master-0', 'pytorch-worker-0']");
        assert!(log.contains(&expected), "{log}");
        assert!(log.contains("converged, master pytorch-master-0"), "{log}");
    }
    cluster.interrupt();
}

#[test]
fn an_mpi_job_runs_processes_over_ssh() {
    if !has_isolation() {
        return;
    }
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !runs("mpirun") || !runs("python3") || !Path::new("/usr/sbin/sshd").exists() {
        return skip("mpirun, sshd or python3 is not installed (Debian: openmpi-bin, openssh-server, python3)");
    }
    let cluster = with_example("examples/kubeflow/mpijob.yaml");
    until_succeeded(&cluster, "mpijob", "pi");
    let log = cluster.run(&["logs", "-l", "training.kubeflow.org/job-role=launcher", "--tail", "-1"]);
    for rank in 0..2 {
        assert!(log.contains(&format!("rank {rank} of 2 on pi-worker-{rank}: pi 3.14159265")), "{log}");
    }
    cluster.wait_until("the workers to be deleted", PATIENCE, |cluster| {
        let pods = cluster.get(&["pods", "-l", "training.kubeflow.org/job-role=worker"]);
        pods["items"].as_array().is_some_and(Vec::is_empty)
    });
    cluster.interrupt();
}
