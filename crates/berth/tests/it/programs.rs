//! Tests of programs of other projects: torchrun, JAX and Ray run over several pods on this
//! machine, with the manifests of `examples`. `tests/programs/install` installs JAX and Ray.
//! PyTorch must be installed system-wide.

use std::path::{Path, PathBuf};

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, file};

/// Environment variable: folder with a virtual environment per program, instead of
/// `target/programs`.
const FOLDER: &str = "BERTH_TEST_PROGRAMS";

/// Time limit of a program on a busy machine, in seconds.
const PATIENCE: u64 = 300;

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
fn with_environment(image: &str, environment: &Path) -> (Cluster, tempfile::NamedTempFile) {
    let configuration = serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "ClusterConfiguration",
        "metadata": {"name": "programs"},
        "spec": {"images": {"mappings": [{
            "image": image,
            "files": "host",
            "env": [format!("PATH={}/bin:/usr/local/bin:/usr/bin:/bin", environment.display())],
        }]}},
    });
    let path = tempfile::Builder::new().suffix(".json").tempfile().expect("a temporary file");
    std::fs::write(path.path(), configuration.to_string()).expect("written");
    let name = path.path().display().to_string();
    (Cluster::ephemeral(&["--runtime", "process", "--isolation", "full", "--config", &name]), path)
}

/// Applies an example, with the queue that it names.
fn apply(cluster: &Cluster, example: &str) {
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

#[test]
fn ray_runs_tasks_on_two_pods() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "ray") else { return };
    let (cluster, _configuration) = with_environment("rayproject/*", &environment);
    apply(&cluster, "examples/ray/cluster.yaml");
    let is_ready = |pod: &str| {
        let pod = cluster.get(&["pod", pod]);
        let conditions = pod["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    cluster.wait_until("the cluster's pods to be ready", PATIENCE, |_| is_ready("ray-head") && is_ready("ray-worker"));
    let submit = "ray job submit --address http://ray-head:8265 -- python3 /program/squares.py";
    let submit: Vec<&str> = ["exec", "ray-head", "--"].into_iter().chain(submit.split(' ')).collect();
    let output = cluster.run(&submit);
    assert!(output.contains("tasks ran on ['ray-head', 'ray-worker']") && output.contains("succeeded"), "{output}");
    // The group of pods ends when its pods are deleted.
    cluster.run(&["delete", "pods", "-l", "app=ray", "--timeout", "120s"]);
    cluster.interrupt();
}

#[test]
fn a_ray_job_trains_on_a_cluster_of_its_own() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "ray") else { return };
    let (cluster, _configuration) = with_environment("rayproject/*", &environment);
    apply(&cluster, "examples/ray/rayjob.yaml");
    let status = |cluster: &Cluster| cluster.get(&["rayjob", "train"])["status"].clone();
    cluster.wait_until("the RayJob to end", PATIENCE, |cluster| {
        let state = status(cluster)["jobDeploymentStatus"].clone();
        state == "Complete" || state == "Failed"
    });
    let ended = status(&cluster);
    let log = cluster.run(&["logs", "-l", "job-name=train", "--tail", "-1"]);
    assert_eq!(
        (&ended["jobStatus"], &ended["jobDeploymentStatus"]),
        (&"SUCCEEDED".into(), &"Complete".into()),
        "{log}"
    );
    // The submitter's log has the output of the program, followed by Ray's message about the
    // result.
    assert!(log.contains("Training Complete!") && log.contains("2 workers"), "{log}");
    let id = ended["jobId"].as_str().unwrap_or_default();
    assert!(id.starts_with("train-") && log.contains(&format!("Job '{id}' succeeded")), "{log}");
    cluster.wait_until("the RayCluster to be deleted", PATIENCE, |cluster| {
        cluster.get(&["rayclusters"])["items"].as_array().is_some_and(Vec::is_empty)
    });

    // The operator itself submits the program to the dashboard: there is no submitter.
    let text = std::fs::read_to_string(file("examples/ray/rayjob.yaml")).expect("the example can be read");
    let text = text.split("  submitterPodTemplate:").next().expect("the part before the submitter");
    let text = text.replace("\n  name: train\n", "\n  name: direct\n");
    let text = text.replace("  shutdownAfterJobFinishes: true", "  submissionMode: HTTPMode");
    let http = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(http.path(), text).expect("written");
    cluster.run(&["apply", "-f", &http.path().display().to_string()]);
    let status = |cluster: &Cluster| cluster.get(&["rayjob", "direct"])["status"].clone();
    cluster.wait_until("the RayJob in HTTPMode to end", PATIENCE, |cluster| {
        let state = status(cluster)["jobDeploymentStatus"].clone();
        state == "Complete" || state == "Failed"
    });
    let ended = status(&cluster);
    assert_eq!(
        (&ended["jobStatus"], &ended["jobDeploymentStatus"]),
        (&"SUCCEEDED".into(), &"Complete".into()),
        "{ended:#}"
    );
    let jobs = cluster.get(&["jobs"])["items"].as_array().cloned().unwrap_or_default();
    assert!(jobs.iter().all(|job| job["metadata"]["name"] != "direct"), "{jobs:#?}");
    let dashboard = "/api/v1/namespaces/default/services/direct-head-svc:dashboard/proxy/api/jobs/";
    let program = format!("{dashboard}{}/logs", ended["jobId"].as_str().unwrap_or_default());
    assert!(cluster.run(&["get", "--raw", &program]).contains("Training Complete!"));
    cluster.interrupt();
}

#[test]
fn a_ray_service_answers_requests_of_its_application() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "uvicorn") else { return };
    let (cluster, _configuration) = with_environment("rayproject/*", &environment);
    cluster.run(&["apply", "-f", &file("examples/ray/rayservice.yaml")]);
    let status = |cluster: &Cluster| cluster.get(&["rayservice", "hello"])["status"].clone();
    cluster.wait_until("the RayService to run", PATIENCE, |cluster| status(cluster)["serviceStatus"] == "Running");
    let running = status(&cluster);
    let application = &running["activeServiceStatus"]["applicationStatuses"]["hello"];
    assert_eq!(application["status"], "RUNNING", "{running:#}");
    let url = "/api/v1/namespaces/default/services/hello-serve-svc:serve/proxy/hello";
    cluster.wait_until("the Service to have endpoints", PATIENCE, |cluster| {
        cluster.kubectl(&["get", "--raw", url]).status.success()
    });
    let answer = cluster.run(&["get", "--raw", url]);
    assert!(answer.starts_with("hello "), "{answer}");
    cluster.run(&["delete", "rayservice", "hello", "--timeout", "120s"]);
    cluster.wait_until("the pods to go with the service", PATIENCE, |cluster| {
        cluster.get(&["pods"])["items"].as_array().is_some_and(Vec::is_empty)
    });
    cluster.interrupt();
}
