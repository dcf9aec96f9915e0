//! API server, cluster and controllers as separate processes, over TLS and kubeconfigs.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_testing::has_kubectl;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{Cluster, file, pause};
use crate::process::Process;

/// Applies an object.
pub fn apply(cluster: &Cluster, object: &Value) {
    let path = cluster.kubeconfig.with_file_name("object.json");
    std::fs::write(&path, object.to_string()).expect("the object can be written");
    cluster.run(&["apply", "-f", &path.display().to_string()]);
}

/// A job in a queue of the quickstart that runs until it is deleted.
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

/// Number of admissions of each workload, by its events.
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
fn another_replica_admits_soon_after_the_leader_was_killed_and_none_is_admitted_twice() {
    if !has_kubectl() {
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
    assert_eq!(second.get("/readyz"), (200, "ok".to_owned()), "a standby replica is not ready");
    assert_eq!(second.get("/healthz").0, 200);

    let killed = Instant::now();
    first.kill();
    apply(&cluster, &job("after", "team-blue"));
    while !is_running(&cluster, "after", "team-blue") {
        assert!(killed.elapsed() < Duration::from_secs(10), "no replica took over within 10 s");
        pause(Duration::from_millis(100));
    }
    assert!(second.leads());
    let counts = admissions(&cluster);
    assert_eq!(counts.len(), 6, "{counts:?}");
    assert!(counts.values().all(|count| *count == 1), "admitted twice: {counts:?}");

    // A stopped replica releases the Lease, so the next one need not wait until it expires.
    let third = Process::controller(&cluster, &[]);
    cluster.wait_until("the third replica to stand by", 30, |_| {
        third.logged("serving").is_some() && third.get("/readyz").0 == 200
    });
    second.terminate();
    let holder = cluster.get(&["lease", "berth-controller", "-n", "berth-system"])["spec"]["holderIdentity"].clone();
    third.wait_logged("this replica leads");
    let later = cluster.get(&["lease", "berth-controller", "-n", "berth-system"]);
    assert_ne!(
        later["spec"]["holderIdentity"], "",
        "the lease has no holder; the holder after the release was {holder}"
    );
    assert_eq!(later["spec"]["leaseTransitions"], 2);
}

#[test]
fn a_leader_that_loses_its_lease_continues_to_serve_and_can_lead_again() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let _machines = Process::cluster(&cluster, &[]);
    let mut replica = Process::controller(&cluster, &[]);
    replica.wait_logged("this replica leads");
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    apply(&cluster, &job("before", "team-blue"));
    cluster.wait_until("the first job to run", 30, |c| is_running(c, "before", "team-blue"));

    // Another holder has taken the Lease, and never renews it.
    let taken = json!({"spec": {"holderIdentity": "other", "leaseDurationSeconds": 8}}).to_string();
    cluster.run(&["patch", "lease", "berth-controller", "-n", "berth-system", "--type=merge", "-p", &taken]);
    replica.wait_logged("this replica no longer leads");
    let line = replica.line("this replica no longer leads").unwrap_or_default();
    assert!(
        line.starts_with("20") && line.contains("is held by other"),
        "the line lacks the time or the reason: {line}"
    );
    assert_eq!(replica.get("/healthz").0, 200);
    assert_eq!(replica.get("/readyz"), (200, "ok".to_owned()), "the standby replica is not ready");
    assert!(!replica.leads() && !replica.ended());
    apply(&cluster, &job("after", "team-blue"));
    pause(Duration::from_secs(2));
    assert!(!is_running(&cluster, "after", "team-blue"), "a replica that does not lead admitted the job");

    cluster.wait_until("the replica to lead again", 20, |c| replica.leads() && is_running(c, "after", "team-blue"));
    let counts = admissions(&cluster);
    assert_eq!(counts.values().copied().collect::<Vec<_>>(), [1, 1], "{counts:?}");
    replica.terminate();
    let lease = cluster.get(&["lease", "berth-controller", "-n", "berth-system"]);
    assert_eq!(lease["spec"]["holderIdentity"], json!(""), "the Lease is not released");
}

#[test]
fn with_the_controllers_down_queued_jobs_are_held_and_others_run() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let _machines = Process::cluster(&cluster, &[]);
    let alone = ["--leader-elect=false"];
    let controller = Process::controller(&cluster, &alone);
    controller.wait_logged("serving http");
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    apply(&cluster, &job("early", "team-blue"));
    cluster.wait_until("the first job to run", 30, |c| is_running(c, "early", "team-blue"));
    controller.kill();

    // While the controllers are down, running jobs continue, jobs without a queue start, and jobs
    // with a queue are created and wait.
    let mut plain = job("plain", "team-blue");
    plain["metadata"]["labels"] = json!({});
    apply(&cluster, &plain);
    apply(&cluster, &job("queued", "team-blue"));
    cluster.run(&["delete", "job", "early", "-n", "team-blue"]);
    let pods = |c: &Cluster, job: &str| {
        let list = c.get(&["pods", "-n", "team-blue", "-l", &format!("job-name={job}")]);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter(|pod| pod["status"]["phase"] == "Running").count()
    };
    cluster.wait_until("the plain job's pod to run", 30, |c| pods(c, "plain") == 1);
    assert!(!is_running(&cluster, "queued", "team-blue"), "the queued job runs without a controller");
    assert!(
        cluster.run(&["get", "workloads", "-n", "team-blue", "-o", "name"]).contains("early"),
        "the workload of the deleted job was deleted without a controller"
    );

    // When the controllers have started again, they process the held jobs.
    let _controller = Process::controller(&cluster, &alone);
    cluster.wait_until("the queued job to run", 30, |c| is_running(c, "queued", "team-blue") && pods(c, "queued") == 1);
    cluster.wait_until("the deleted job's workload to be deleted", 30, |c| {
        !c.run(&["get", "workloads", "-n", "team-blue", "-o", "name"]).contains("early")
    });
    assert_eq!(pods(&cluster, "plain"), 1, "the plain job was changed");
}

#[test]
fn the_controllers_groups_are_served_behind_the_api_server() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let pending = |cluster: &Cluster, version: &str| {
        let path = format!("/apis/visibility.kueue.x-k8s.io/{version}/clusterqueues/full/pendingworkloads");
        cluster.kubectl(&["get", "--raw", &path])
    };
    // No controller is available yet.
    let refused = String::from_utf8_lossy(&pending(&cluster, "v1beta2").stderr).into_owned();
    assert!(refused.contains("ServiceUnavailable"), "{refused}");
    let services = cluster.run(&["get", "apiservices"]);
    assert!(services.contains("berth-system/berth-visibility"), "{services}");

    let first = Process::controller(&cluster, &[]);
    first.wait_logged("this replica leads");
    let _second = Process::controller(&cluster, &[]);
    let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    apply(&cluster, &kueue("ResourceFlavor", "default", json!({})));
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 0}]}]}]);
    apply(&cluster, &kueue("ClusterQueue", "full", json!({"namespaceSelector": {}, "resourceGroups": quota})));
    let mut queue = kueue("LocalQueue", "main", json!({"clusterQueue": "full"}));
    queue["metadata"]["namespace"] = json!("default");
    apply(&cluster, &queue);
    apply(&cluster, &job("waiting", "default"));
    let waiting = |cluster: &Cluster, version: &str| -> Option<Value> {
        let output = pending(cluster, version);
        let summary: Value = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())??;
        Some(summary["items"][0]["metadata"]["ownerReferences"][0]["name"].clone())
    };
    for version in ["v1beta1", "v1beta2"] {
        cluster.wait_until("the waiting job to be listed", 30, |c| waiting(c, version) == Some(json!("waiting")));
    }
    for name in ["v1beta1.visibility.kueue.x-k8s.io", "v1beta2.visibility.kueue.x-k8s.io", "v1alpha1.explain.berth.dev"]
    {
        cluster.wait_until("the service to be available", 30, |c| {
            c.get(&["apiservice", name])["status"]["conditions"][0]["status"] == "True"
        });
    }
    assert!(cluster.run(&["api-versions"]).contains("visibility.kueue.x-k8s.io/v1beta2"));
    let explained = "/apis/explain.berth.dev/v1alpha1/namespaces/default/workloads/waiting/explanation";
    let explained: Value = serde_json::from_str(&cluster.run(&["get", "--raw", explained])).expect("JSON");
    assert_eq!(explained["clusterQueue"], "full");

    // The request carries the user: a tenant sees only names of its own workloads.
    apply(
        &cluster,
        &kueue(
            "ClusterQueue",
            "both",
            json!({"namespaceSelector": {}, "resourceGroups": [
        {"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [{"name": "cpu", "nominalQuota": "150m"}]}]}]}),
        ),
    );
    let rbac = "rbac.authorization.k8s.io";
    for namespace in ["team-green", "team-blue"] {
        apply(&cluster, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        let mut queue = kueue("LocalQueue", "main", json!({"clusterQueue": "both"}));
        queue["metadata"]["namespace"] = json!(namespace);
        apply(&cluster, &queue);
        for role in ["berth-explanation-viewer-role", "kueue-workload-viewer-role"] {
            apply(
                &cluster,
                &json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": namespace},
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": rbac, "kind": "Group", "name": namespace}]}),
            );
        }
        apply(&cluster, &job(&format!("of-{namespace}"), namespace));
        cluster.wait_until("the job's workload", 30, |c| {
            c.run(&["get", "workloads", "-n", namespace, "-o", "name"]).contains("of-team")
        });
    }
    let path = "/apis/explain.berth.dev/v1alpha1/namespaces/team-blue/workloads/of-team-blue/explanation";
    let seen_by = |groups: &[&str]| {
        let mut arguments = vec!["get", "--raw", path, "--as", "ann"];
        groups.iter().for_each(|group| arguments.extend(["--as-group", group]));
        cluster.run(&arguments)
    };
    cluster.wait_until("the other tenant to hold the quota", 30, |c| {
        c.run(&["get", "--raw", path]).contains("team-green")
    });
    let of_blue = seen_by(&["team-blue"]);
    let object: Value = serde_json::from_str(&of_blue).expect("JSON");
    assert!(!of_blue.contains("green"), "{of_blue}");
    assert_eq!(object["outlook"]["shortages"][0]["holdersWithheld"][0]["amount"], "100m", "{of_blue}");
    assert_eq!(object["withheld"]["reason"], "NotAllowed", "{of_blue}");
    let of_both = seen_by(&["team-blue", "team-green"]);
    assert!(of_both.contains("of-team-green") && !of_both.contains("ithheld"), "{of_both}");

    // A user without the permission is rejected.
    let raw = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/full/pendingworkloads";
    let refused = cluster.refused(&["get", "--raw", raw, "--as", "eve"]);
    assert!(refused.contains("forbidden"), "{refused}");

    // The replica that takes over serves the next request.
    first.kill();
    cluster.wait_until("the other replica to respond", 30, |c| waiting(c, "v1beta2") == Some(json!("waiting")));
}

#[test]
fn a_controller_uses_the_process_settings_of_its_configuration_file() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let path = cluster.kubeconfig.with_file_name("configuration.yaml");
    let configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": "localhost:0", "readinessEndpointName": "/is/ready",
                   "livenessEndpointName": "/alive"},
        "metrics": {"bindAddress": "127.0.0.1:0"},
        "webhook": {"host": "127.0.0.1", "port": free},
        "internalCertManagement": {"webhookServiceName": "hooks", "webhookSecretName": "certificate-of-hooks"},
        "leaderElection": {"leaderElect": true, "resourceName": "c1f6bfd2.kueue.x-k8s.io", "leaseDuration": "15s",
                           "renewDeadline": "10s", "retryPeriod": "2s"},
        "controller": {"groupKindConcurrency": {"Job.batch": 1}, "cacheSyncTimeout": "2m"},
    });
    std::fs::write(&path, configuration.to_string()).expect("written");
    let controller = Process::controller_configured(&cluster, &path);
    controller.wait_logged(&format!("serving https://127.0.0.1:{free}"));
    controller.wait_logged("this replica leads");
    assert_eq!(controller.get("/alive"), (200, "ok".to_owned()));
    cluster.wait_until("the controller to be ready", 30, |_| controller.get("/is/ready").0 == 200);
    assert_eq!(controller.get("/metrics").0, 200);
    let lease = cluster.get(&["lease", "c1f6bfd2.kueue.x-k8s.io", "-n", "kueue-system"]);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    let secret = cluster.get(&["secret", "certificate-of-hooks", "-n", "kueue-system"]);
    let names = secret["metadata"]["annotations"]["berth.dev/names"].as_str().expect("names");
    assert!(names.split(' ').any(|name| name == "hooks.kueue-system.svc"), "{names}");

    // A setting that Berth does not support prevents the start, and the error names it.
    std::fs::write(&path, json!({"pprofBindAddress": ":8083", "featureGates": {"MultiKueue": true}}).to_string())
        .expect("written");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["controller", "--kubeconfig=/nonexistent", "--config"])
        .arg(&path)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("pprofBindAddress") && text.contains("[MultiKueue]"), "{text}");
}

#[test]
fn options_that_contradict_each_other_are_rejected() {
    let berth = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth")).args(arguments).output().expect("runs");
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = berth(&["controller", "--leader-elect-renew-deadline=9s", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("lease duration (8s) must be longer than the renew deadline (9s)"), "{text}");
    let text = berth(&["controller", "--leader-elect=false", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("/nonexistent"), "{text}");
    let text = berth(&["controller", "--controllers=*,-schedulers", "--kubeconfig=/nonexistent"]);
    assert!(
        text.contains("no controller is named schedulers") && text.contains("scheduler, terminating-pod"),
        "{text}"
    );
    let text = berth(&["controller", "--controllers=*,-", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("is none of *, NAME and -NAME"), "{text}");
    let text = berth(&["cluster", "--time-scale=60", "--kubeconfig=/nonexistent"]);
    assert!(text.contains("--time-origin"), "{text}");
    let text = berth(&["controller", "--metrics-bind-address=8080"]);
    assert!(text.contains(":PORT for every address"), "{text}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let text = berth(&["apiserver", "--ephemeral", "--listen", &address]);
    let message = format!(
        "choose another address with --listen, or stop the process that uses this one: listening on {address}: "
    );
    assert!(text.contains(&message), "{text}");
    assert_eq!(text.matches("in use").count(), 1, "{text}");
}
