//! Both scenarios of Dynamic Workload Scheduler with their own manifests, and a job that asks two
//! pools at once, with the real kubectl on a cluster whose clock runs 60 times as fast.
//!
//! The cloud has no machine of the queued pool until the test grants one by kubectl, so that every
//! state between can be read, however slow the machine is.

use std::path::Path;

use berth_testing::{has_kubectl, shared};
use serde_json::{Value, json};

use crate::cluster::{Cluster, file};

const WAITING: &str =
    "Waiting for resources. Currently there are not enough resources available to fulfill the request.";

/// Starts the cluster of an example with these replacements in its configuration.
fn start(example: &str, replace: &[(&str, &str)], work: &Path) -> Cluster {
    let mut configuration = std::fs::read_to_string(file(example)).expect("the example can be read");
    for (from, to) in replace {
        assert!(configuration.contains(from), "{example} has no {from:?}");
        configuration = configuration.replace(from, to);
    }
    let path = work.join("cluster.yaml");
    std::fs::write(&path, configuration).expect("the configuration can be written");
    let controllers = work.join("controllers.yaml");
    let text = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nintegrations:\n  frameworks: [batch/job, \
                ray.io/rayjob, ray.io/raycluster, pod]\n";
    std::fs::write(&controllers, text).expect("the configuration can be written");
    let (path, controllers) = (path.display().to_string(), controllers.display().to_string());
    Cluster::ephemeral(&["--time-scale", "60", "--config", &path, "--controller-config", &controllers])
}

/// Sets the number of machines that the cloud has for a pool; `null` for as many as it may have.
fn supply(cluster: &Cluster, pool: &str, machines: &str) {
    let patch = format!(r#"{{"spec": {{"supply": {{"machines": {machines}}}}}}}"#);
    // The pools of the configuration are created after the API server has started.
    cluster.wait_until("the pool exists", 60, |it| it.kubectl(&["get", "nodepool", pool]).status.success());
    cluster.run(&["patch", "nodepool", pool, "--type", "merge", "-p", &patch]);
}

/// Sets whether pods that consume a queued request get the toleration of queued pools.
fn adds_toleration(cluster: &Cluster, adds: bool) {
    let patch = format!(r#"{{"spec": {{"addsToleration": {adds}}}}}"#);
    let class = ["provisioningclass", "queued-provisioning.gke.io"];
    cluster.wait_until("the class exists", 60, |it| it.kubectl(&["get", class[0], class[1]]).status.success());
    cluster.run(&["patch", class[0], class[1], "--type", "merge", "-p", &patch]);
}

/// PENDING, reserving and ADMITTED workloads of a ClusterQueue.
fn counts(cluster: &Cluster, queue: &str) -> [u64; 3] {
    let queue = cluster.get(&["clusterqueue", queue]);
    ["pendingWorkloads", "reservingWorkloads", "admittedWorkloads"]
        .map(|count| queue["status"][count].as_u64().unwrap_or(0))
}

fn nodes(cluster: &Cluster, pool: &str) -> usize {
    let selector = format!("cloud.google.com/gke-nodepool={pool}");
    cluster.run(&["get", "nodes", "-o", "name", "-l", &selector]).lines().count()
}

/// The conditions of the only ProvisioningRequest, as `Type=Status (Reason) Message`.
fn conditions_of_request(cluster: &Cluster) -> Vec<String> {
    let template = r#"{range .items[*].status.conditions[*]}{.type}={.status} ({.reason}) {.message}{"\n"}{end}"#;
    let printed = cluster.run(&["get", "provisioningrequests", "-o", &format!("jsonpath={template}")]);
    printed.lines().map(str::to_owned).collect()
}

/// The lines of `kubectl describe workload` without indentation, for the workload of a job.
fn described(cluster: &Cluster, prefix: &str) -> String {
    let names = cluster.run(&["get", "workloads", "-o", "name"]);
    let name = names.lines().find(|name| name.contains(prefix)).unwrap_or_else(|| panic!("{prefix}: {names}"));
    let text = cluster.run(&["describe", name]);
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n")
}

fn explained(cluster: &Cluster, job: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["explain", job, "--kubeconfig"])
        .arg(&cluster.kubeconfig)
        .output()
        .expect("berth explain runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn flavors(workload: &Value) -> Vec<(String, String)> {
    let assignments = workload["status"]["admission"]["podSetAssignments"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    assignments.iter().map(|set| (text(&set["name"]), text(&set["flavors"]["cpu"]))).collect()
}

/// Applies a manifest of the scenario with its placeholders replaced.
fn apply(cluster: &Cluster, root: &Path, name: &str, work: &Path, values: &[(&str, &str)]) {
    let mut text = std::fs::read_to_string(root.join(name)).expect("the manifest can be read");
    for (key, value) in values {
        text = text.replace(&format!("${{{key}}}"), value);
    }
    let path = work.join(name);
    std::fs::write(&path, text).expect("the manifest can be written");
    cluster.run(&["apply", "-f", &path.display().to_string()]);
}

#[test]
fn the_second_rayjob_gets_its_slice_from_the_queue_of_the_cloud() {
    let Some(root) = shared("scenarios/tpu-dws-rayjob") else { return };
    if !has_kubectl() {
        return;
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    let work = work.path();
    // The training ends when the test says so.
    let cluster =
        start("examples/tpu-dws-rayjob/cluster.yaml", &[("defaultDuration: 30m", "defaultDuration: 100h")], work);
    supply(&cluster, "dws-pool", "0");
    let pools = [("ONDEMAND_NODEPOOL", "on-demand-pool"), ("DWS_NODEPOOL", "dws-pool")];
    apply(&cluster, &root, "dws-tpu-queue.yaml", work, &pools);
    cluster.wait_until("the check and the queue to be active", 30, |c| {
        let active = r#"jsonpath={.items[*].status.conditions[?(@.type=="Active")].status}"#;
        c.run(&["get", "admissionchecks,clusterqueues", "-o", active]) == "True True"
    });
    assert_eq!(counts(&cluster, "cluster-queue"), [0, 0, 0]);

    cluster.run(&["create", "configmap", "jax-train-script", "--from-literal=train.py=print()"]);
    apply(&cluster, &root, "rayjob-tpu-v6e-dws.yaml", work, &[("JOB_ID", "1")]);
    cluster.wait_until("job 1 to be admitted", 30, |c| counts(c, "cluster-queue") == [0, 1, 1]);
    assert_eq!(cluster.run(&["get", "provisioningrequests"]), "");
    apply(&cluster, &root, "rayjob-tpu-v6e-dws.yaml", work, &[("JOB_ID", "2")]);
    cluster.wait_until("job 2 to reserve quota", 30, |c| counts(c, "cluster-queue") == [0, 2, 1]);
    let workloads = cluster.get(&["workloads"]);
    let mut taken: Vec<_> = workloads["items"].as_array().into_iter().flatten().map(flavors).collect();
    taken.sort();
    let sets = |group: &str| {
        [("head", "default-cpu"), ("tpu-group", group), ("submitter", "default-cpu")]
            .map(|(set, flavor)| (set.to_owned(), flavor.to_owned()))
            .to_vec()
    };
    assert_eq!(taken, [sets("dws"), sets("on-demand")]);

    cluster.wait_until("the request to wait", 60, |c| {
        let [accepted, waiting] = &conditions_of_request(c)[..] else { return false };
        accepted == "Accepted=True (SuccessfullyQueued) Provisioning Request was successfully queued."
            && *waiting == format!("Provisioned=False (ResourcePoolExhausted) {WAITING}")
    });
    let request = cluster.get(&["provisioningrequests"])["items"][0].clone();
    assert_eq!(request["spec"]["podSets"].as_array().map(Vec::len), Some(1));
    assert_eq!(request["spec"]["podSets"][0]["count"], 4);
    let text = described(&cluster, "rayjob-tpu-v6e-dws-2");
    for line in ["Name: dws-prov", "State: Pending", &format!("Message: {WAITING}")] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let text = explained(&cluster, "rayjob-tpu-v6e-dws-2");
    assert!(text.contains("Admission check dws-prov has been Pending since") && text.contains(WAITING), "{text}");
    let second = cluster.get(&["rayjob", "rayjob-tpu-v6e-dws-2"]);
    assert_eq!(second["spec"]["suspend"], true);
    let of_second = |c: &Cluster, what: &str| {
        c.run(&["get", what, "-o", "name"]).lines().filter(|name| name.contains("tpu-v6e-dws-2")).count()
    };
    assert_eq!((of_second(&cluster, "rayclusters"), of_second(&cluster, "pods")), (0, 0));
    cluster.wait_until("the on-demand slice", 120, |c| nodes(c, "on-demand-pool") == 4 && nodes(c, "dws-pool") == 0);
    cluster.wait_until("job 1 to run", 60, |c| {
        let job = c.get(&["rayjob", "rayjob-tpu-v6e-dws-1"]);
        job["status"]["jobStatus"] == "RUNNING" && job["status"]["jobDeploymentStatus"] == "Running"
    });
    cluster.run(&["get", "service", "rayjob-tpu-v6e-dws-1-head-svc"]);

    supply(&cluster, "dws-pool", "null");
    cluster.wait_until("both jobs to be admitted", 120, |c| counts(c, "cluster-queue") == [0, 2, 2]);
    let conditions = conditions_of_request(&cluster);
    let provisioned = "Provisioned=True (Provisioned) Provisioning Request was successfully provisioned.";
    assert!(conditions.iter().any(|condition| condition == provisioned), "{conditions:?}");
    cluster.wait_until("both slices", 120, |c| nodes(c, "on-demand-pool") == 4 && nodes(c, "dws-pool") == 4);
    cluster.wait_until("job 2 to run", 60, |c| {
        c.get(&["rayjob", "rayjob-tpu-v6e-dws-2"])["status"]["jobStatus"] == "RUNNING"
    });
    let pods = cluster.get(&["pods", "-l", "ray.io/group=tpu-group"]);
    let consuming = pods["items"].as_array().into_iter().flatten().filter(|pod| {
        let annotations = &pod["metadata"]["annotations"];
        annotations["autoscaling.x-k8s.io/consume-provisioning-request"].is_string()
            && annotations["autoscaling.x-k8s.io/provisioning-class-name"] == "queued-provisioning.gke.io"
            && pod["spec"]["nodeSelector"]["cloud.google.com/gke-nodepool"] == "dws-pool"
    });
    assert_eq!(consuming.count(), 4);

    for job in ["1", "2"] {
        let selector = format!("job-name=rayjob-tpu-v6e-dws-{job}");
        cluster.run(&["annotate", "pods", "-l", &selector, "berth.dev/run-duration=1s", "--overwrite"]);
    }
    cluster.wait_until("both jobs to succeed", 120, |c| {
        let state = r#"jsonpath={range .items[*]}{.status.jobStatus} {.status.jobDeploymentStatus},{end}"#;
        c.run(&["get", "rayjobs", "-o", state]) == "SUCCEEDED Complete,SUCCEEDED Complete,"
    });
    cluster.wait_until("no quota to be held", 30, |c| counts(c, "cluster-queue") == [0, 0, 0]);
    cluster.wait_until("both pools to be empty", 180, |c| nodes(c, "on-demand-pool") + nodes(c, "dws-pool") == 0);
}

#[test]
fn the_pod_of_skypilot_waits_for_the_queue_of_the_cloud_and_runs_until_it_is_deleted() {
    let Some(root) = shared("scenarios/skypilot-dws") else { return };
    if !has_kubectl() {
        return;
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    let cluster = start("examples/skypilot-dws/cluster.yaml", &[], work.path());
    supply(&cluster, "gpu-pool", "0");
    let of_root = |name: &str| root.join(name).display().to_string();
    cluster.run(&["apply", "-f", &of_root("kueue_resources.yaml")]);
    cluster.run(&["create", "serviceaccount", "skypilot-service-account"]);
    cluster.wait_until("the check and the queue to be active", 30, |c| {
        let active = r#"jsonpath={.items[*].status.conditions[?(@.type=="Active")].status}"#;
        c.run(&["get", "admissionchecks,clusterqueues", "-o", active]) == "True True"
    });
    let queue = "dws-cluster-queue";
    assert_eq!(counts(&cluster, queue), [0, 0, 0]);

    adds_toleration(&cluster, false);
    cluster.run(&["apply", "-f", &of_root("launched-pod.yaml")]);
    let pod = |c: &Cluster| c.run(&["get", "pods"]);
    assert!(pod(&cluster).contains("SchedulingGated"), "{}", pod(&cluster));
    cluster.wait_until("the pod to reserve quota", 30, |c| counts(c, queue) == [0, 1, 0]);
    let gated = cluster.get(&["pod", "skypilot-dws-00b5-head"]);
    assert_eq!(gated["spec"]["schedulingGates"][0]["name"], "kueue.x-k8s.io/admission");
    assert_eq!(gated["metadata"]["labels"]["kueue.x-k8s.io/managed"], "true");
    assert_eq!(gated["metadata"]["finalizers"][0], "kueue.x-k8s.io/managed");
    let taint = "pool gpu-pool has taint cloud.google.com/gke-queued=true:NoSchedule, which the pods do not tolerate";
    cluster.wait_until("the request to name the taint", 60, |c| {
        let condition = |it: &String| it.starts_with("Provisioned=False (UntoleratedTaint)") && it.contains(taint);
        conditions_of_request(c).iter().any(condition)
    });
    cluster.wait_until("the check and the explanation to name it", 30, |c| {
        let name = "skypilot-dws-00b5-head";
        described(c, name).contains(taint) && explained(c, name).contains(taint)
    });
    let events = cluster.run(&["get", "events", "--field-selector", "reason=UntoleratedTaint"]);
    assert!(events.contains(taint), "{events}");
    adds_toleration(&cluster, true);
    cluster.wait_until("the request to wait", 60, |c| {
        let [accepted, waiting] = &conditions_of_request(c)[..] else { return false };
        accepted == "Accepted=True (SuccessfullyQueued) Provisioning Request was successfully queued."
            && *waiting == format!("Provisioned=False (ResourcePoolExhausted) {WAITING}")
    });
    let table = cluster.run(&["get", "provisioningrequests"]);
    let cells: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[0], ["NAME", "ACCEPTED", "PROVISIONED", "FAILED", "AGE"]);
    assert_eq!(cells[1][1..3], ["True", "False"], "{table}");
    let request = cluster.get(&["provisioningrequests"])["items"][0].clone();
    assert_eq!(request["spec"]["parameters"]["maxRunDurationSeconds"], "3600");
    assert_eq!(request["spec"]["podSets"][0]["count"], 1);
    let text = described(&cluster, "skypilot-dws-00b5-head");
    for line in ["Name: dws-prov", "State: Pending", &format!("Message: {WAITING}")] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let text = explained(&cluster, "skypilot-dws-00b5-head");
    assert!(text.contains("Admission check dws-prov has been Pending since") && text.contains(WAITING), "{text}");

    supply(&cluster, "gpu-pool", "null");
    cluster.wait_until("the pod to run", 120, |c| pod(c).contains("1/1") && pod(c).contains("Running"));
    assert_eq!(counts(&cluster, queue), [0, 1, 1]);
    let conditions = conditions_of_request(&cluster);
    let provisioned = "Provisioned=True (Provisioned) Provisioning Request was successfully provisioned.";
    assert!(conditions.iter().any(|condition| condition == provisioned), "{conditions:?}");
    let running = cluster.get(&["pod", "skypilot-dws-00b5-head"]);
    let annotations = &running["metadata"]["annotations"];
    assert!(annotations["autoscaling.x-k8s.io/consume-provisioning-request"].is_string());
    assert_eq!(annotations["autoscaling.x-k8s.io/provisioning-class-name"], "queued-provisioning.gke.io");
    assert_eq!(running["spec"]["schedulingGates"], Value::Null);

    // Without `sky down` the pod runs, and holds its quota, until its machine is taken away.
    cluster.run(&["delete", "-f", &of_root("launched-pod.yaml")]);
    cluster.wait_until("the queue to be empty", 60, |c| counts(c, queue) == [0, 0, 0]);
    assert_eq!(cluster.run(&["get", "provisioningrequests"]), "");
    cluster.wait_until("the machine to go", 180, |c| nodes(c, "gpu-pool") == 0);
}

/// Starts the cluster that a scenario of `examples` describes, with its controllers.
fn start_scenario(example: &str, work: &Path) -> Cluster {
    let text = std::fs::read_to_string(file(example)).expect("the example can be read");
    let scenario: Value = serde_saphyr::from_str(&text).expect("YAML");
    let cluster = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration", "metadata": {"name": "scenario"},
        "spec": scenario["spec"]["cluster"],
    });
    let mut controllers = scenario["spec"]["configuration"].clone();
    controllers["apiVersion"] = "config.kueue.x-k8s.io/v1beta2".into();
    controllers["kind"] = "Configuration".into();
    let paths = [("cluster.json", cluster), ("controllers.json", controllers)].map(|(name, document)| {
        let path = work.join(name);
        std::fs::write(&path, document.to_string()).expect("the configuration can be written");
        path.display().to_string()
    });
    Cluster::ephemeral(&["--time-scale", "60", "--config", &paths[0], "--controller-config", &paths[1]])
}

#[test]
fn a_job_requests_two_pools_at_once_and_takes_the_first_that_is_provisioned() {
    if !has_kubectl() {
        return;
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    let cluster = start_scenario("examples/first-capacity/scenario.yaml", work.path());
    let stock = |pool: &str, supply: &str| {
        cluster.wait_until("the pool exists", 60, |it| it.kubectl(&["get", "nodepool", pool]).status.success());
        let patch = format!(r#"{{"spec": {{"supply": {supply}}}}}"#);
        cluster.run(&["patch", "nodepool", pool, "--type", "merge", "-p", &patch]);
    };
    stock("far", r#"{"machines": 0, "periods": null}"#);
    stock("near", r#"{"machines": 0}"#);
    cluster.run(&["apply", "-f", &file("examples/first-capacity/platform.yaml")]);
    cluster.run(&["apply", "-f", &file("examples/first-capacity/job.yaml")]);
    cluster.wait_until("two requests to wait", 60, |cluster| {
        let waiting = conditions_of_request(cluster);
        waiting.iter().filter(|it| **it == format!("Provisioned=False (ResourcePoolExhausted) {WAITING}")).count() == 2
    });
    assert_eq!(cluster.get(&["job", "train"])["spec"]["suspend"], true);
    let reserved = |cluster: &Cluster| {
        let flavors = cluster.get(&["clusterqueue", "training"])["status"]["flavorsReservation"].clone();
        let total = |at: usize| flavors[at]["resources"][0]["total"].as_str().unwrap_or_default().to_owned();
        [total(0), total(1)]
    };
    assert_eq!(reserved(&cluster), ["4", "4"], "both flavors are charged while both requests wait");
    let text = explained(&cluster, "train");
    assert!(text.contains("near") && text.contains("far") && text.contains(WAITING), "{text}");

    stock("far", "null");
    cluster.wait_until("the job to run", 120, |cluster| {
        cluster.run(&["get", "pods"]).lines().filter(|line| line.contains("Running")).count() == 2
    });
    let pods = cluster.get(&["pods"]);
    let pools: Vec<_> =
        pods["items"].as_array().into_iter().flatten().map(|pod| pod["spec"]["nodeSelector"].clone()).collect();
    assert!(pools.iter().all(|pool| pool["cloud.google.com/gke-nodepool"] == "far"), "{pools:?}");
    cluster.wait_until("the other request to be deleted", 30, |cluster| {
        cluster.run(&["get", "provisioningrequests", "-o", "name"]).lines().count() == 1
    });
    cluster.wait_until("the other quota to be returned", 30, |cluster| reserved(cluster) == ["0", "4"]);
    // Capacity of the preferred pool that comes too late changes nothing.
    stock("near", "null");

    cluster.run(&["annotate", "pods", "-l", "job-name=train", "berth.dev/run-duration=1s", "--overwrite"]);
    cluster.run(&["wait", "--for=condition=Complete", "job/train", "--timeout=60s"]);
    cluster.wait_until("the request to be deleted", 30, |cluster| {
        cluster.run(&["get", "provisioningrequests", "-o", "name"]).is_empty()
    });
    assert_eq!(nodes(&cluster, "near"), 0);
    cluster.wait_until("the machines to go", 180, |cluster| nodes(cluster, "far") == 0);
}
