//! An installation on a bare API server: `berth install` creates the kinds, the webhooks of `berth
//! controller` are called over TLS, and while the controllers are down the policies hold queued
//! jobs.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use berth_testing::has_kubectl;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pause};
use crate::history::History;
use crate::install::install;
use crate::killed_leaders::never_beyond_quota;
use crate::process::Process;
use crate::processes::apply;

const HELD: &str = "berth.dev/held";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// A bare API server with an installation.
pub struct Installed {
    pub cluster: Cluster,
    hooks: String,
    configuration: Option<String>,
}

/// Patch that removes the selector of a Service, so that the test can write its endpoints.
const NO_SELECTOR: &str = r#"{"spec": {"selector": null}}"#;

impl Installed {
    /// Installs the controllers with this configuration.
    fn new(configuration: Option<&str>) -> Self {
        Self::with(configuration, &[], &[])
    }

    /// Installs the controllers with this configuration, further options of the API server, and
    /// further options of the installation.
    pub fn with(configuration: Option<&str>, of_server: &[&str], of_install: &[&str]) -> Self {
        let cluster = Cluster::apiserver(&[&["--bare"][..], of_server].concat());
        Self::on(cluster, "127.0.0.1", configuration, of_install)
    }

    /// Installs the controllers in a cluster, whose API server reaches the webhooks at this address
    /// of the machine.
    pub fn on(cluster: Cluster, address: &str, configuration: Option<&str>, of_install: &[&str]) -> Self {
        let file = configuration.map(|text| {
            let path = cluster.kubeconfig.with_file_name("configuration.yaml");
            std::fs::write(&path, text).expect("written");
            format!("--config={}", path.display())
        });
        let kubeconfig = cluster.kubeconfig.display().to_string();
        let mut arguments = vec!["--apply", "--kubeconfig", &kubeconfig];
        arguments.extend(file.as_deref());
        arguments.extend(of_install);
        install(&arguments);
        // The webhook port of the controllers at every start. No other process uses it in between.
        let port = TcpListener::bind((address, 0)).expect("a port").local_addr().expect("an address").port();
        // The Service's only endpoint is the controllers' process that the test starts. Without a
        // selector, the simulated pods of the Deployment are not endpoints.
        cluster.run(&["patch", "service", "berth-webhook", "-n", "berth-system", "--type", "merge", "-p", NO_SELECTOR]);
        apply(
            &cluster,
            &json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "berth-webhook-here", "namespace": "berth-system",
                    "labels": {"kubernetes.io/service-name": "berth-webhook"}},
                "endpoints": [{"addresses": [address]}], "ports": [{"name": "webhook", "port": port}],
            }),
        );
        Self { cluster, hooks: format!("--webhook-bind-address={address}:{port}"), configuration: file }
    }

    /// Starts the controllers, and waits until they lead and their webhooks can be called.
    pub fn controller(&self, arguments: &[&str]) -> Process {
        let mut all = vec!["--leader-elect=false", self.hooks.as_str()];
        all.extend(self.configuration.as_deref());
        all.extend(arguments);
        let controller = Process::controller(&self.cluster, &all);
        self.cluster.wait_until("the controllers to be ready", 60, |_| {
            controller.logged("/readyz").is_some() && controller.get("/readyz").0 == 200
        });
        controller
    }

    pub fn create(&self, object: &Value) {
        apply(&self.cluster, object);
    }

    /// A namespace, a flavor, and a queue of this name with a quota of CPUs.
    pub fn queue(&self, namespace: &str, name: &str, cpus: &str) {
        let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        self.create(&kueue("ResourceFlavor", "default", json!({})));
        let groups = json!([{"coveredResources": ["cpu"], "flavors": [
            {"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpus}]}]}]);
        let spec = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceGroups": groups});
        self.create(&kueue("ClusterQueue", namespace, spec));
        let mut queue = kueue("LocalQueue", name, json!({"clusterQueue": namespace}));
        queue["metadata"]["namespace"] = json!(namespace);
        self.create(&queue);
    }

    pub fn get(&self, resource: &str, name: &str, namespace: &str) -> Value {
        self.cluster.get(&[resource, name, "-n", namespace])
    }

    /// Number of running pods with this label.
    fn running(&self, namespace: &str, label: &str) -> usize {
        let list = self.cluster.get(&["pods", "-n", namespace, "-l", label]);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().filter(|pod| pod["status"]["phase"] == "Running").count()
    }
}

fn template(cpu: &str, label: &str) -> Value {
    json!({"metadata": {"labels": {"app": label}}, "spec": {"restartPolicy": "Never", "containers": [{
        "name": "main", "image": "busybox", "command": ["sleep", "86400"], "resources": {"requests": {"cpu": cpu}}}]}})
}

fn object(api_version: &str, kind: &str, name: &str, namespace: &str, queue: Option<&str>, spec: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    if let Some(queue) = queue {
        object["metadata"]["labels"] = json!({QUEUE: queue});
    }
    object
}

pub fn job(name: &str, namespace: &str, queue: Option<&str>, cpu: &str) -> Value {
    object("batch/v1", "Job", name, namespace, queue, json!({"template": template(cpu, name)}))
}

fn pods_of(kind: &str, name: &str, namespace: &str, queue: Option<&str>) -> Value {
    let mut template = template("100m", name);
    template["spec"]["restartPolicy"] = json!("Always");
    let mut spec = json!({"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": template});
    if kind == "StatefulSet" {
        spec["serviceName"] = json!(name);
    }
    object("apps/v1", kind, name, namespace, queue, spec)
}

fn pod(name: &str, namespace: &str, queue: Option<&str>) -> Value {
    let spec = template("100m", name)["spec"].clone();
    let mut pod = object("v1", "Pod", name, namespace, queue, spec);
    pod["metadata"]["labels"]["app"] = json!(name);
    pod
}

fn is_gated(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty())
}

#[test]
fn an_installation_that_is_down_holds_queued_jobs_and_no_others() {
    if !has_kubectl() {
        return;
    }
    let here = Installed::new(None);
    let cluster = &here.cluster;
    let _machines = Process::cluster(cluster, &[]);
    let controller = here.controller(&[]);
    here.queue("team", "main", "2");
    here.queue("easy", "default", "1");
    here.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "free"}}));

    // While the controllers are up, their webhooks are called over the network and decide.
    let refused = {
        let path = cluster.kubeconfig.with_file_name("refused.json");
        std::fs::write(&path, job("refused", "team", Some("Not-A-Name"), "100m").to_string()).expect("written");
        cluster.refused(&["create", "-f", &path.display().to_string()])
    };
    assert!(refused.contains("queued-jobs.validate.berth.dev"), "{refused}");
    here.create(&job("early", "team", Some("main"), "100m"));
    cluster.wait_until("the first job to run", 30, |_| here.running("team", "app=early") == 1);
    assert!(here.get("job", "early", "team")["metadata"]["annotations"][HELD].is_null());
    let mut history = History::of(cluster, "workloads");
    controller.kill();

    // While the controllers are down, jobs without a queue are stored as written, and run.
    here.create(&job("plain", "team", None, "100m"));
    here.create(&job("unmanaged", "free", None, "100m"));
    here.create(&pod("plain-pod", "team", None));
    here.create(&pods_of("Deployment", "plain-deployment", "team", None));
    // Jobs with a queue are created and held.
    let mut torch = template("100m", "torch");
    torch["spec"]["containers"][0]["name"] = json!("pytorch");
    let held: &[(&str, Value, &str)] = &[
        ("job", job("queued", "team", Some("main"), "100m"), "/spec/suspend"),
        ("job", job("too-big", "team", Some("main"), "3"), "/spec/suspend"),
        ("job", job("defaulted", "easy", None, "100m"), "/spec/suspend"),
        (
            "jobset",
            object(
                "jobset.x-k8s.io/v1alpha2",
                "JobSet",
                "set",
                "team",
                Some("main"),
                json!({"replicatedJobs": [
                {"name": "w", "replicas": 2, "template": {"spec": {"template": template("100m", "set")}}}]}),
            ),
            "/spec/suspend",
        ),
        (
            "pytorchjob",
            object(
                "kubeflow.org/v1",
                "PyTorchJob",
                "torch",
                "team",
                Some("main"),
                json!({"pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "template": torch}}}),
            ),
            "/spec/runPolicy/suspend",
        ),
        (
            "raycluster",
            object(
                "ray.io/v1",
                "RayCluster",
                "ray",
                "team",
                Some("main"),
                json!({
                "headGroupSpec": {"rayStartParams": {}, "template": template("100m", "ray")}}),
            ),
            "/spec/suspend",
        ),
        (
            "rayservice",
            object(
                "ray.io/v1",
                "RayService",
                "serve",
                "team",
                Some("main"),
                json!({"rayClusterConfig": {
                "headGroupSpec": {"rayStartParams": {}, "template": template("100m", "serve")}}}),
            ),
            "/spec/rayClusterConfig/suspend",
        ),
    ];
    for (resource, object, field) in held {
        here.create(object);
        let (name, namespace) = (&object["metadata"]["name"], &object["metadata"]["namespace"]);
        let (name, namespace) = (name.as_str().expect("a name"), namespace.as_str().expect("a namespace"));
        let made = here.get(resource, name, namespace);
        assert_eq!(made.pointer(field), Some(&json!(true)), "{resource} {name} is not held: {made}");
        assert_eq!(made["metadata"]["annotations"][HELD], "false", "{resource} {name}");
    }
    here.create(&pod("queued-pod", "team", Some("main")));
    here.create(&pods_of("Deployment", "queued-deployment", "team", Some("main")));
    here.create(&pods_of("StatefulSet", "queued-set", "team", Some("main")));
    // Pods, and objects that create pods, are held too if they would get their namespace's default
    // queue.
    here.create(&pod("defaulted-pod", "easy", None));
    here.create(&pods_of("Deployment", "defaulted-deployment", "easy", None));
    here.create(&pods_of("StatefulSet", "defaulted-set", "easy", None));
    // A pod with a node cannot be held, and is created (`kubectl debug node/...`).
    let mut placed = pod("placed", "easy", None);
    let nodes = cluster.get(&["nodes"]);
    placed["spec"]["nodeName"] = nodes["items"][0]["metadata"]["name"].clone();
    here.create(&placed);
    assert!(!is_gated(&here.get("pod", "placed", "easy")));
    cluster.wait_until("jobs without a queue to run", 30, |_| {
        here.running("team", "app=plain") == 1
            && here.running("free", "app=unmanaged") == 1
            && here.running("team", "app=plain-pod") == 1
            && here.running("team", "app=plain-deployment") == 2
    });
    for name in ["plain", "plain-pod", "plain-deployment"] {
        let resource = if name == "plain" { "job" } else { name.trim_start_matches("plain-") };
        let made = here.get(resource, name, "team");
        assert!(made["metadata"]["annotations"][HELD].is_null(), "{made}");
    }
    let pods = |label: &str| {
        let list = cluster.get(&["pods", "-A", "-l", label]);
        list["items"].as_array().cloned().unwrap_or_default()
    };
    cluster.wait_until("pods of objects that copy their queue", 30, |_| {
        ["queued", "defaulted"]
            .iter()
            .all(|by| pods(&format!("app={by}-deployment")).len() == 2 && !pods(&format!("app={by}-set")).is_empty())
    });
    // The jobs stay held although there was time to start.
    pause(Duration::from_secs(2));
    for by in ["queued", "defaulted"] {
        for what in ["pod", "deployment", "set"] {
            let held = pods(&format!("app={by}-{what}"));
            assert!(!held.is_empty() && held.iter().all(is_gated), "{by}-{what}: {held:?}");
        }
    }
    for name in ["queued", "too-big", "set", "torch", "ray", "serve"] {
        assert!(pods(&format!("app={name}")).is_empty(), "{name}");
    }
    assert_eq!(here.running("team", "app=early"), 1, "the pod of the first job no longer runs");
    let workloads = cluster.run(&["get", "workloads", "-A", "-o", "name"]);
    assert_eq!(
        workloads.lines().count(),
        1,
        "the only workload must be that of the first job, because no controller runs: {workloads}"
    );

    // The controllers start again and process all held objects. What runs stays within the quota.
    let _controller = here.controller(&[]);
    cluster.wait_until("the held jobs and pods to run", 60, |_| {
        here.running("team", "app=queued") == 1
            && here.running("easy", "app=defaulted") == 1
            && here.running("team", "app=set") == 2
            && here.running("team", "app=queued-pod") == 1
            && here.running("team", "app=queued-deployment") == 2
            && here.running("team", "app=queued-set") == 2
            && here.running("easy", "app=defaulted-pod") == 1
            && here.running("easy", "app=defaulted-deployment") == 2
            && here.running("easy", "app=defaulted-set") == 2
    });
    for (resource, object, field) in held {
        let (name, namespace) = (&object["metadata"]["name"], &object["metadata"]["namespace"]);
        let (name, namespace) = (name.as_str().expect("a name"), namespace.as_str().expect("a namespace"));
        let expected = json!(name == "too-big");
        cluster.wait_until(&format!("the controllers to process {resource} {name}"), 30, |_| {
            here.get(resource, name, namespace).pointer(field) == Some(&expected)
        });
        let made = here.get(resource, name, namespace);
        assert!(made["metadata"]["annotations"][HELD].is_null(), "{made}");
    }
    for (resource, name) in [
        ("job", "defaulted"),
        ("pod", "defaulted-pod"),
        ("deployment", "defaulted-deployment"),
        ("statefulset", "defaulted-set"),
    ] {
        assert_eq!(here.get(resource, name, "easy")["metadata"]["labels"][QUEUE], "default", "{resource} {name}");
    }
    let unsettled = cluster.get(&["pods", "-A"]);
    let unsettled =
        unsettled["items"].as_array().into_iter().flatten().find(|pod| !pod["metadata"]["annotations"][HELD].is_null());
    assert_eq!(unsettled, None);
    for label in ["app=plain", "app=plain-pod"] {
        assert_eq!(here.running("team", label), 1, "the pod with label {label} no longer runs");
    }
    never_beyond_quota(&history.states(), &cluster.get(&["clusterqueues"]));
}

#[test]
fn with_all_jobs_managed_those_without_a_queue_are_held_too() {
    if !has_kubectl() {
        return;
    }
    let here = Installed::new(Some(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nmanageJobsWithoutQueueName: true\n\
         managedJobsNamespaceSelector:\n  matchLabels: {team: 'yes'}\nintegrations:\n  frameworks: [batch/job, pod, deployment]\n",
    ));
    let _machines = Process::cluster(&here.cluster, &[]);
    for (namespace, labels) in [("managed", json!({"team": "yes"})), ("free", json!({}))] {
        let metadata = json!({"name": namespace, "labels": labels});
        here.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
        here.create(&job("without", namespace, None, "100m"));
        here.create(&pod("bare", namespace, None));
        here.create(&pods_of("Deployment", "web", namespace, None));
        // The integration of StatefulSets is off.
        here.create(&pods_of("StatefulSet", "db", namespace, None));
    }
    assert_eq!(here.get("job", "without", "managed")["spec"]["suspend"], true);
    here.cluster.wait_until("the objects in the unmanaged namespace to run", 30, |_| {
        here.running("free", "app=without") == 1
            && here.running("free", "app=bare") == 1
            && here.running("free", "app=web") == 2
            && here.cluster.get(&["pods", "-n", "managed", "-l", "app=web"])["items"].as_array().map(Vec::len)
                == Some(2)
    });
    let held = || {
        let list = here.cluster.get(&["pods", "-n", "managed", "-l", "app in (bare, web)"]);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        assert!(items.len() == 3 && items.iter().all(is_gated), "{items:?}");
        items
    };
    assert!(held().iter().all(|pod| !pod["metadata"]["annotations"][HELD].is_null()));
    // A kind whose integration is off is not held.
    let spec = json!({"replicatedJobs": [
        {"name": "w", "replicas": 1, "template": {"spec": {"template": template("100m", "set")}}}]});
    here.create(&object("jobset.x-k8s.io/v1alpha2", "JobSet", "set", "managed", Some("main"), spec));
    assert_ne!(here.get("jobset", "set", "managed")["spec"]["suspend"], true);

    let _controller = here.controller(&[]);
    here.cluster.wait_until("the controllers to process the held job and pods", 30, |_| {
        let settled = |object: &Value| object["metadata"]["annotations"][HELD].is_null();
        settled(&here.get("job", "without", "managed")) && held().iter().all(settled)
    });
    assert_eq!(here.get("job", "without", "managed")["spec"]["suspend"], true, "the job runs although it has no queue");
    assert_eq!(here.running("free", "app=without"), 1);
}

#[test]
fn the_api_server_calls_the_webhooks_while_their_certificate_changes() {
    if !has_kubectl() {
        return;
    }
    let here = Installed::new(None);
    let cluster = &here.cluster;
    let _controller = here.controller(&["--webhook-certificate-lifetime=60s"]);
    here.queue("team", "default", "1");
    const SECRET: [&str; 4] = ["secret", "berth-webhook-certificate", "-n", "berth-system"];
    let end = |cluster: &Cluster| cluster.get(&SECRET)["metadata"]["annotations"]["berth.dev/not-after"].clone();
    let mut made = 0;
    // The controllers' process serves conversion in both directions, sets defaults of jobs and
    // validates them.
    let mut call = || {
        let old = cluster.get(&["localqueues.v1beta1.kueue.x-k8s.io", "default", "-n", "team"]);
        assert_eq!(old["apiVersion"], "kueue.x-k8s.io/v1beta1");
        let new = cluster.get(&["localqueues.v1beta2.kueue.x-k8s.io", "default", "-n", "team"]);
        assert_eq!(new["apiVersion"], "kueue.x-k8s.io/v1beta2");
        made += 1;
        let name = format!("job-{made}");
        let path = cluster.kubeconfig.with_file_name("job.json");
        std::fs::write(&path, job(&name, "team", None, "100m").to_string()).expect("written");
        let answer = cluster.run(&["create", "-o", "json", "-f", &path.display().to_string()]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        // The response to the request itself has the webhook's queue, and the policy's mark is
        // removed.
        assert_eq!(answer["metadata"]["labels"][QUEUE], "default", "{answer}");
        assert!(answer["metadata"]["annotations"][HELD].is_null() && answer["spec"]["suspend"] == true, "{answer}");
        std::fs::write(&path, job("wrong", "team", Some("Not-A-Name"), "100m").to_string()).expect("written");
        let refused = cluster.refused(&["create", "-f", &path.display().to_string()]);
        assert!(refused.contains("queued-jobs.validate.berth.dev"), "{refused}");
    };
    // An object that was created as v1beta1 can be read as v1beta2, although its managed fields
    // name v1beta1.
    apply(
        cluster,
        &json!({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "old"},
            "spec": {"cohort": "all", "namespaceSelector": {}}}),
    );
    assert_eq!(cluster.get(&["clusterqueues.v1beta2.kueue.x-k8s.io", "old"])["spec"]["cohortName"], "all");
    call();
    only_the_controllers_write_statuses_unchecked(&here);
    for _ in 0..2 {
        let before = end(cluster);
        let ended = "berth.dev/not-after=2020-01-01T00:00:00Z";
        cluster.run(&[&["annotate", "--overwrite"][..], &SECRET, &[ended]].concat());
        // The certificate is renewed within a sixth of its lifetime, and the webhook stays
        // reachable.
        for _ in 0..600 {
            call();
            let now = end(cluster);
            if now != before && now != "2020-01-01T00:00:00Z" {
                break;
            }
        }
        assert!(end(cluster) != "2020-01-01T00:00:00Z", "the certificate was never renewed");
        for _ in 0..5 {
            call();
        }
    }
}

/// An account with the controllers' name in another namespace must follow the validation of
/// statuses.
fn only_the_controllers_write_statuses_unchecked(here: &Installed) {
    let cluster = &here.cluster;
    cluster.run(&["create", "serviceaccount", "berth-controller", "-n", "team"]);
    // kubectl reads before it writes, and the controllers' role does not allow that.
    let accounts = ["--serviceaccount=team:berth-controller", "--serviceaccount=berth-system:berth-controller"];
    cluster.run(&[&["create", "clusterrolebinding", "both", "--clusterrole=cluster-admin"][..], &accounts].concat());
    let list = cluster.get(&["workloads", "-n", "team"]);
    let name = list["items"][0]["metadata"]["name"].as_str().expect("a workload").to_owned();
    let wrong = json!({"status": {"admissionChecks": [{"name": "none", "state": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "podSetUpdates": [{"name": "nobody"}]}]}});
    let wrong = wrong.to_string();
    let patch = ["patch", "workload", &name, "-n", "team", "--subresource=status", "--type=merge", "-p", &wrong];
    for user in ["system:serviceaccount:team:berth-controller", "admin"] {
        let groups = if user == "admin" { vec!["--as-group=system:masters"] } else { Vec::new() };
        let refused = cluster.refused(&[&patch[..], &["--as", user], &groups].concat());
        assert!(refused.contains("workload-status.validate.berth.dev"), "{user}: {refused}");
    }
    let own = "system:serviceaccount:berth-system:berth-controller";
    let answer = cluster.kubectl(&[&patch[..], &["--as", own, "--dry-run=server"]].concat());
    let said = String::from_utf8_lossy(&answer.stderr);
    assert!(answer.status.success(), "{said}");
}

#[test]
fn the_groups_of_a_leader_worker_set_have_its_uid_and_quota_for_workers_to_come() {
    const NAME: &str = "leaderworkerset.sigs.k8s.io/name=web";
    if !has_kubectl() {
        return;
    }
    let here = Installed::new(None);
    let cluster = &here.cluster;
    let _machines = Process::cluster(cluster, &[]);
    let _controller = here.controller(&[]);
    here.queue("team", "main", "2");
    let mut templates = ["500m", "250m"].map(|cpu| template(cpu, "web"));
    for template in &mut templates {
        template["spec"]["restartPolicy"] = json!("Always");
    }
    let [leader, worker] = templates;
    let spec = json!({"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": {
        "size": 3, "leaderTemplate": leader, "workerTemplate": worker}});
    let set = object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "web", "team", Some("main"), spec);
    // The names of the groups and the roles of the pods.
    let seen = || {
        let pods = cluster.get(&["pods", "-n", "team", "-l", NAME]);
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let text =
            |pod: &Value, field: &str, key: &str| pod["metadata"][field][key].as_str().unwrap_or_default().to_owned();
        let groups: BTreeSet<String> =
            pods.iter().map(|pod| text(pod, "labels", "kueue.x-k8s.io/pod-group-name")).collect();
        let mut roles: Vec<String> =
            pods.iter().map(|pod| text(pod, "annotations", "kueue.x-k8s.io/role-hash")).collect();
        roles.sort();
        (groups.into_iter().collect::<Vec<_>>().join(" "), roles.join(" "))
    };
    here.create(&set);
    cluster.wait_until("the group to run", 60, |_| here.running("team", NAME) == 3);
    let (first, roles) = seen();
    assert_eq!(roles, "leader worker worker");
    let workload = here.get("workload", &first, "team");
    let counts = workload["spec"]["podSets"].as_array().expect("pod sets").iter();
    let counts: Vec<String> = counts.map(|set| format!("{} {}", set["name"], set["count"]).replace('"', "")).collect();
    assert_eq!(counts, ["leader 1", "worker 2"], "{workload}");
    let uid = here.get("leaderworkerset", "web", "team")["metadata"]["uid"].clone();
    assert_eq!(workload["metadata"]["labels"]["kueue.x-k8s.io/job-uid"], uid);

    // Another set of the same name has groups of its own.
    cluster.run(&["delete", "leaderworkerset", "web", "-n", "team"]);
    cluster.wait_until("the pods to be gone", 60, |_| seen().1.is_empty());
    here.create(&set);
    cluster.wait_until("the new group to run", 60, |_| here.running("team", NAME) == 3);
    let (second, _) = seen();
    assert!(!second.contains(' ') && second != first, "{first}, then {second}");
}
