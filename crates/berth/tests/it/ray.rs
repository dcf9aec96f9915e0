//! Tests of Ray from PyPI in the pods of Berth's operator, with the manifests of `examples`.
//! `tests/programs/install ray` installs it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use berth_testing::shared;

use crate::cluster::{Cluster, file};
use crate::programs::{PATIENCE, START_TIME, apply, has_isolation, installed, with_environment};

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

    // The operator itself submits the program to the dashboard: there is no submitter. The cluster
    // is kept, which a queue does not allow.
    let text = std::fs::read_to_string(file("examples/ray/rayjob.yaml")).expect("the example can be read");
    let text = text.split("  submitterPodTemplate:").next().expect("the part before the submitter");
    let text = text.replace("\n  name: train\n  labels: {kueue.x-k8s.io/queue-name: main}\n", "\n  name: direct\n");
    assert!(text.contains("\n  name: direct\n"), "{text}");
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

/// Runs on the cluster, from the folder that `ray job submit` uploads.
const SUBMITTED: &str = r#"import socket
import time
import helper
import ray

ray.init()
print("nodes", len(ray.nodes()), helper.GREETING)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def host():
    time.sleep(0.2)
    return socket.gethostname()


hosts = set()
while len(hosts) < 2:
    hosts.update(ray.get([host.remote() for _ in range(8)]))
print("tasks ran on", sorted(hosts))
"#;

#[test]
fn a_program_is_submitted_to_a_ray_cluster_through_a_forwarded_port() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "ray") else { return };
    let (cluster, _configuration) = with_environment("rayproject/*", &environment);
    cluster.run(&["apply", "-f", &file("examples/ray/raycluster.yaml")]);
    let provisioned = "--for=condition=RayClusterProvisioned";
    cluster.run(&["wait", provisioned, "raycluster/demo", &format!("--timeout={PATIENCE}s")]);
    let dashboard = cluster.forward("service/demo-head-svc", 8265);

    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("main.py"), SUBMITTED).expect("written");
    std::fs::write(folder.path().join("helper.py"), "GREETING = 'hello from a module'\n").expect("written");
    let log = submit(&environment, &dashboard.address, folder.path());
    // The log is followed until the program ends.
    for expected in ["nodes 3 hello from a module", "tasks ran on ['demo-", "succeeded"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    cluster.run(&["delete", "raycluster", "demo", "--timeout", "120s"]);
    cluster.wait_until("the pods to go with the cluster", PATIENCE, |cluster| {
        cluster.get(&["pods"])["items"].as_array().is_some_and(Vec::is_empty)
    });
    cluster.interrupt();
}

/// Submits a program from a folder to a cluster with `ray job submit`, and follows its log until it
/// ends.
fn submit(environment: &Path, address: &str, folder: &Path) -> String {
    let submitted = Command::new(environment.join("bin/ray"))
        .args(["job", "submit", "--address", &format!("http://{address}"), "--working-dir"])
        .arg(folder)
        .args(["--", "python3", "main.py"])
        .output()
        .expect("ray runs");
    let log = [submitted.stdout, submitted.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(submitted.status.success(), "{log}");
    log
}

/// Needs two workers at once.
const TWO_TASKS: &str = r#"import socket
import time
import ray

ray.init()


@ray.remote(num_cpus=1)
def host():
    time.sleep(15)
    return socket.gethostname()


print("tasks ran on", len(set(ray.get([host.remote() for _ in range(2)]))), "workers")
"#;

#[test]
fn rays_autoscaler_grows_and_shrinks_an_elastic_cluster_within_its_quota() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "ray") else { return };
    let (cluster, _configuration) = with_environment("rayproject/*", &environment);
    cluster.run(&["apply", "-f", &file("examples/ray/elastic.yaml")]);
    let provisioned = "--for=condition=RayClusterProvisioned";
    cluster.run(&["wait", provisioned, "raycluster/elastic", &format!("--timeout={PATIENCE}s")]);
    let cpus = |cluster: &Cluster| {
        let usage = cluster.get(&["clusterqueue", "ray"])["status"]["flavorsUsage"].clone();
        usage[0]["resources"][0]["total"].as_str().unwrap_or_default().to_owned()
    };
    let head = |cluster: &Cluster| {
        let pod = cluster.get(&["pods", "-l", "ray.io/node-type=head"])["items"][0].clone();
        (pod["metadata"]["uid"].clone(), pod["status"]["containerStatuses"][0]["restartCount"].clone())
    };
    assert_eq!(cpus(&cluster), "300m", "the head and its autoscaler");
    let before = head(&cluster);
    let dashboard = cluster.forward("service/elastic-head-svc", 8265);
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("main.py"), TWO_TASKS).expect("written");
    let log = submit(&environment, &dashboard.address, folder.path());
    assert!(log.contains("tasks ran on 2 workers"), "{log}");
    assert_eq!(head(&cluster), before, "growth restarts nothing");

    cluster.wait_until("the idle workers to go", PATIENCE, |cluster| {
        cluster.get(&["pods", "-l", "ray.io/node-type=worker"])["items"].as_array().is_some_and(Vec::is_empty)
    });
    cluster.wait_until("the quota of the workers to be returned", 30, |cluster| cpus(cluster) == "300m");
    assert_eq!(head(&cluster), before, "shrinking restarts nothing");
    cluster.interrupt();
}

/// A page of a forwarded port.
fn page(address: &str, path: &str) -> String {
    let mut connection = TcpStream::connect(address).expect("connected");
    write!(connection, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("sent");
    let mut page = String::new();
    connection.read_to_string(&mut page).expect("a response");
    page
}

/// A cluster with hosted TPU slices, on which pods of Ray's images use this virtual environment.
fn with_slices(environment: &Path) -> (Cluster, tempfile::NamedTempFile) {
    let text = std::fs::read_to_string(file("examples/tpu-dws-rayjob/hosted.yaml")).expect("the example can be read");
    let own = text.replace("/opt/venvs/ray", &environment.display().to_string());
    assert_ne!(own, text);
    let own = own.replace("env: [", &format!("env: [{START_TIME:?}, "));
    let path = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(path.path(), own).expect("written");
    let name = path.path().display().to_string();
    (Cluster::ephemeral(&["--runtime", "process", "--isolation", "full", "--config", &name]), path)
}

#[test]
fn the_ray_job_of_the_tpu_scenario_trains_on_a_slice_from_the_queue_of_the_cloud() {
    let Some(root) = shared("scenarios/tpu-dws-rayjob") else { return };
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("ray", "ray") else { return };
    let (cluster, _configuration) = with_slices(&environment);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let apply = |name: &str, replace: &[(&str, &str)]| {
        let mut text = std::fs::read_to_string(root.join(name)).expect("the manifest can be read");
        for (from, to) in replace {
            assert!(text.contains(from), "{name} has no {from:?}");
            text = text.replace(from, to);
        }
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the manifest can be written");
        cluster.run(&["apply", "-f", &path.display().to_string()]);
    };
    // The flavor on-demand has no quota of TPUs, so the job takes the flavor dws.
    let pools = [("${ONDEMAND_NODEPOOL}", "on-demand-pool"), ("${DWS_NODEPOOL}", "dws-pool")];
    apply("dws-tpu-queue.yaml", &[&pools[..], &[("nominalQuota: 16\n", "nominalQuota: 0\n")]].concat());
    let script = format!("--from-file={}", file("examples/tpu-dws-rayjob/train.py"));
    cluster.run(&["create", "configmap", "jax-train-script", &script]);
    // The hosts have no TPU, so the script computes with numpy on CPUs.
    let packages = "  pip:\n      - jax[tpu]==0.8.2\n      - pandas==2.3.3\n";
    apply("rayjob-tpu-v6e-dws.yaml", &[("${JOB_ID}", "1"), (packages, "  env_vars: {OMP_NUM_THREADS: \"1\"}\n")]);

    cluster.wait_until("the request for the slice", PATIENCE, |cluster| {
        cluster.get(&["provisioningrequests"])["items"][0]["spec"]["podSets"][0]["count"] == 4
    });
    cluster.wait_until("the head's Service", PATIENCE, |cluster| {
        cluster.kubectl(&["get", "service", "rayjob-tpu-v6e-dws-1-head-svc"]).status.success()
    });
    let dashboard = cluster.forward("service/rayjob-tpu-v6e-dws-1-head-svc", 8265);
    assert!(page(&dashboard.address, "/").contains("Ray Dashboard"), "{}", page(&dashboard.address, "/"));
    assert!(page(&dashboard.address, "/api/version").contains("ray_version"));

    cluster.wait_until("the submitter", PATIENCE, |cluster| {
        cluster.kubectl(&["get", "job", "rayjob-tpu-v6e-dws-1"]).status.success()
    });
    let workers = cluster.get(&["pods", "-l", "ray.io/group=tpu-group"]);
    let of_slice = workers["items"].as_array().into_iter().flatten().filter(|pod| {
        pod["spec"]["nodeName"].as_str().is_some_and(|node| node.contains("dws-pool"))
            && pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"].is_string()
    });
    assert_eq!(of_slice.count(), 4, "{workers:#}");
    let patience = format!("--pod-running-timeout={PATIENCE}s");
    let log = cluster.run(&["logs", "-f", "job/rayjob-tpu-v6e-dws-1", &patience]);
    for expected in ["Starting training...", "Epoch 40: Loss 0.0000", "Training Complete! 4 hosts", "' succeeded"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    let status = |cluster: &Cluster| cluster.get(&["rayjob", "rayjob-tpu-v6e-dws-1"])["status"].clone();
    cluster.wait_until("the RayJob to be complete", PATIENCE, |cluster| {
        status(cluster)["jobDeploymentStatus"] == "Complete"
    });
    assert_eq!(status(&cluster)["jobStatus"], "SUCCEEDED");
    cluster.wait_until("the RayCluster to be deleted", PATIENCE, |cluster| {
        cluster.get(&["rayclusters"])["items"].as_array().is_some_and(Vec::is_empty)
    });
    cluster.wait_until("the quota to be returned", PATIENCE, |cluster| {
        cluster.get(&["clusterqueue", "cluster-queue"])["status"]["reservingWorkloads"].as_u64().unwrap_or(0) == 0
    });
    cluster.interrupt();
}
