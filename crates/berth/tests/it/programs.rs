//! Tests of programs of other projects: torchrun and JAX run over several pods on this machine,
//! with the manifests of `examples`. `tests/programs/install` installs JAX. PyTorch must be
//! installed system-wide.

use std::path::{Path, PathBuf};

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, file};

/// Environment variable: folder with a virtual environment per program, instead of
/// `target/programs`.
const FOLDER: &str = "BERTH_TEST_PROGRAMS";

/// Time limit of a program on a busy machine, in seconds.
pub const PATIENCE: u64 = 300;

/// Environment variable of Ray: seconds that a node has to start, instead of 30.
pub const START_TIME: &str = "RAY_raylet_start_wait_time_s=300";

/// True if pods have their own addresses. Skips the running test otherwise.
pub fn has_isolation() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("full isolation needs root");
    }
    is_root && has_kubectl()
}

/// The virtual environment of a program. Skips the running test if the environment does not have
/// this executable.
pub fn installed(program: &str, executable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).map_or_else(|| file("target/programs").into(), PathBuf::from);
    let environment = folder.join(program);
    if environment.join("bin").join(executable).exists() {
        return Some(std::fs::canonicalize(environment).expect("it exists"));
    }
    skip(&format!("{} is missing; `tests/programs/install {program}` creates it", environment.display()));
    None
}

/// A cluster in which images with these names run on the files of this machine, with a virtual
/// environment first in the search path. Also returns the configuration file, which must outlive
/// the cluster.
pub fn with_environment(image: &str, environment: &Path) -> (Cluster, tempfile::NamedTempFile) {
    let configuration = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "ClusterConfiguration",
        "metadata": {"name": "programs"},
        "spec": {"images": {"mappings": [{
            "image": image,
            "files": "host",
            "env": [START_TIME, &format!("PATH={}/bin:/usr/local/bin:/usr/bin:/bin", environment.display())],
        }]}},
    });
    let path = tempfile::Builder::new().suffix(".json").tempfile().expect("a temporary file");
    std::fs::write(path.path(), configuration.to_string()).expect("written");
    let name = path.path().display().to_string();
    (Cluster::ephemeral(&["--runtime", "process", "--isolation", "full", "--config", &name]), path)
}

/// Applies an example, with the queue that it names.
pub fn apply(cluster: &Cluster, example: &str) {
    cluster.run(&["apply", "-f", &file("examples/training/queues.yaml"), "-f", &file(example)]);
}

/// Waits until both pods of an Indexed Job have succeeded. Returns the log of each.
fn logs_of_completed_job(cluster: &Cluster, name: &str) -> [String; 2] {
    let status = |cluster: &Cluster, field: &str| cluster.get(&["job", name])["status"][field].as_u64();
    cluster.wait_until(&format!("job {name} to end"), PATIENCE, |cluster| {
        status(cluster, "succeeded") == Some(2) || status(cluster, "failed").is_some()
    });
    let logs = ["0", "1"].map(|index| {
        let selector = format!("job-name={name},batch.kubernetes.io/job-completion-index={index}");
        cluster.run(&["logs", "-l", &selector, "--tail", "-1"])
    });
    assert_eq!(status(cluster, "succeeded"), Some(2), "{logs:?}");
    let workloads = cluster.get(&["workloads"]);
    let conditions = workloads["items"][0]["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().any(|it| it["type"] == "Admitted"), "{conditions:?}");
    logs
}

#[test]
fn torchrun_trains_over_two_pods() {
    if !has_isolation() {
        return;
    }
    if !["/usr/bin/torchrun", "/usr/local/bin/torchrun"].iter().any(|path| Path::new(path).exists()) {
        return skip("torchrun is not installed (Debian: python3-torch)");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    apply(&cluster, "examples/torchrun/job.yaml");
    for (rank, log) in logs_of_completed_job(&cluster, "torchrun").iter().enumerate() {
        // The rank of a pod is not checked, because torchrun numbers the ranks in the order in
        // which the pods connect.
        assert!(log.contains(&format!("on torchrun-{rank}, with ['torchrun-0', 'torchrun-1']")), "{log}");
        assert!(log.contains("converged in torchrun-example"), "{log}");
    }
    cluster.interrupt();
}

#[test]
fn a_train_job_trains_with_torchrun_over_two_pods() {
    if !has_isolation() {
        return;
    }
    if !["/usr/bin/torchrun", "/usr/local/bin/torchrun"].iter().any(|path| Path::new(path).exists()) {
        return skip("torchrun is not installed (Debian: python3-torch)");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    cluster.run(&["apply", "-f", &file("examples/trainer/runtimes.yaml")]);
    apply(&cluster, "examples/trainer/trainjob.yaml");
    let ended = |cluster: &Cluster| {
        let conditions = cluster.get(&["trainjob", "linear"])["status"]["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|it| (it["type"] == "Complete" || it["type"] == "Failed") && it["status"] == "True")
    };
    cluster.wait_until("the TrainJob to end", PATIENCE, |cluster| ended(cluster).is_some());
    let log = cluster.run(&["logs", "-l", "jobset.sigs.k8s.io/jobset-name=linear", "--tail", "-1"]);
    assert_eq!(ended(&cluster).map(|it| it["type"].clone()), Some("Complete".into()), "{log}");
    assert!(log.contains("rank 0 of 2 converged") && log.contains("rank 1 of 2 converged"), "{log}");
    let workloads = cluster.get(&["workloads"]);
    assert_eq!(workloads["items"].as_array().map(Vec::len), Some(1), "its JobSet is not queued itself");
    cluster.interrupt();
}

#[test]
fn jax_trains_over_two_pods() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("jax", "python3") else { return };
    let (cluster, _configuration) = with_environment("jax/*", &environment);
    apply(&cluster, "examples/jax/job.yaml");
    for (rank, log) in logs_of_completed_job(&cluster, "jax").iter().enumerate() {
        assert!(log.contains(&format!("process {rank} of 2: 2 devices")), "{log}");
        assert!(log.contains("weights [2.0, -3.0, 0.5]") && log.contains("converged"), "{log}");
    }
    cluster.interrupt();
}
