//! `berth controller --appwrapper --slack-queue` on a bare API server, with the rights and webhooks
//! that `berth install` gives it. AppWrappers are admitted by its webhooks, deployed and reset by
//! its controller; pods of other queued jobs avoid an unhealthy node and leave it. The audit log
//! shows that the rights suffice.

use berth_controllers::rights;
use berth_testing::has_kubectl;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::outage::Installed;
use crate::process::Process;
use crate::processes::apply;

const CONFIGURATION: &str = r#"{"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
    "integrations": {"frameworks": ["batch/job", "workload.codeflare.dev/appwrapper"]}}"#;
const HEALTH: &str = "autopilot.ibm.com/gpuhealth";

/// The rest of the cluster: three nodes with eight GPUs, and no operator of its own that would act
/// in place of the controller.
fn nodes() -> Value {
    let machine = json!({"cpu": "64", "memory": "256Gi", "accelerator": {"type": "nvidia-h100-80gb", "count": 8}});
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration", "metadata": {"name": "bare"}, "spec": {
        "nodePools": [{"name": "gpu", "machine": machine, "initialNodes": 3, "static": true}],
        "operators": {"appWrappers": false, "autopilot": {"enabled": false},
            "appWrapperConfiguration": {"autopilot": {"injectAntiAffinities": false, "monitorNodes": false}}}}})
}

/// Roles, queues and a user's rights: alice may create AppWrappers and Jobs, bob only AppWrappers.
fn platform() -> Vec<Value> {
    let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let queue = |name: &str| {
        let resources = json!([{"name": "cpu", "nominalQuota": "64"}, {"name": "nvidia.com/gpu", "nominalQuota": "8"}]);
        let groups = json!([{"coveredResources": ["cpu", "nvidia.com/gpu"],
            "flavors": [{"name": "any", "resources": resources}]}]);
        kueue("ClusterQueue", name, json!({"cohortName": "all", "namespaceSelector": {}, "resourceGroups": groups}))
    };
    let mut local = kueue("LocalQueue", "default-queue", json!({"clusterQueue": "blue"}));
    local["metadata"]["namespace"] = json!("blue");
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "blue"}}),
        kueue("ResourceFlavor", "any", json!({})),
        queue("slack"),
        queue("blue"),
        local,
    ];
    let rbac = "rbac.authorization.k8s.io/v1";
    for (user, groups) in
        [("alice", json!(["workload.codeflare.dev", "batch"])), ("bob", json!(["workload.codeflare.dev"]))]
    {
        let metadata = json!({"name": user, "namespace": "blue"});
        objects.push(json!({"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": [
            {"apiGroups": groups, "resources": ["appwrappers", "jobs"], "verbs": ["create", "get", "update", "patch"]}]}));
        objects.push(json!({"apiVersion": rbac, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}));
    }
    objects
}

/// A Job of one pod with eight GPUs that runs until it is deleted.
fn job(name: &str) -> Value {
    let container = json!({"name": "main", "image": "program", "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": 8}}});
    let ignore = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "blue"}, "spec": {
        "podFailurePolicy": {"rules": ignore},
        "template": {"metadata": {"labels": {"app": name}},
            "spec": {"restartPolicy": "Never", "tolerations": [{"operator": "Exists", "key": "nvidia.com/gpu"}],
                "containers": [container]}}}})
}

fn wrapper() -> Value {
    json!({"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
        "metadata": {"name": "wrapped", "namespace": "blue",
            "annotations": {"workload.codeflare.dev.appwrapper/retryPausePeriodDuration": "1s"}},
        "spec": {"components": [{"template": job("wrapped")}]}})
}

/// The running pod of a Job: UID, node, and the pod.
fn running(cluster: &Cluster, app: &str) -> Option<(String, String, Value)> {
    let pods = cluster.get(&["pods", "-n", "blue", "-l", &format!("app={app}")]);
    let runs = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let pod = pods["items"].as_array()?.iter().find(runs)?.clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((text(&pod["metadata"]["uid"]), text(&pod["spec"]["nodeName"]), pod))
}

fn until_running(cluster: &Cluster, app: &str, other_than: &str) -> (String, String, Value) {
    let pod = || running(cluster, app).filter(|(_, node, _)| node != other_than);
    cluster.wait_until(&format!("a pod of {app} to run"), 120, |_| pod().is_some());
    pod().expect("it runs")
}

fn avoids_unhealthy_nodes(pod: &Value) -> bool {
    pod["spec"]["affinity"]["nodeAffinity"].to_string().contains(HEALTH)
}

/// The write is rejected with this text.
fn is_refused(cluster: &Cluster, user: &str, object: &Value, text: &str) {
    let path = cluster.kubeconfig.with_file_name("refused.json");
    std::fs::write(&path, object.to_string()).expect("written");
    let error = cluster.refused(&["create", "--as", user, "-f", &path.display().to_string()]);
    assert!(error.contains(text), "{error}");
}

#[test]
fn app_wrappers_and_node_health_work_with_the_rights_and_webhooks_of_an_installation() {
    if !has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("audit.log");
    let (log_option, configuration) = (log.display().to_string(), folder.path().join("cluster.json"));
    std::fs::write(&configuration, nodes().to_string()).expect("written");
    let configuration = configuration.display().to_string();
    let of_server = ["--audit-log-path", &log_option, "--cluster-config", &configuration];
    let here = Installed::with(Some(CONFIGURATION), &of_server, &["--appwrapper", "--slack-queue", "slack"]);
    let settings = folder.path().join("appwrapper.json");
    std::fs::write(&settings, r#"{"appwrapper": {"defaultQueueName": "default-queue"}}"#).expect("written");
    let settings = format!("--appwrapper={}", settings.display());
    let controller = here.controller(&[settings.as_str(), "--slack-queue", "slack"]);
    let machines = Process::cluster(&here.cluster, &["--config", &configuration]);
    let cluster = &here.cluster;
    platform().iter().for_each(|object| apply(cluster, object));

    // Admission: the default queue, the creator, and the creator's rights.
    is_refused(cluster, "bob", &wrapper(), "User bob is not authorized to create jobs in blue");
    let mut nested = wrapper();
    nested["spec"]["components"][0]["template"] = wrapper();
    is_refused(cluster, "alice", &nested, "AppWrapper");
    let path = folder.path().join("wrapper.json");
    std::fs::write(&path, wrapper().to_string()).expect("written");
    cluster.run(&["create", "--as", "alice", "-f", &path.display().to_string()]);
    let labels = cluster.get(&["appwrapper", "wrapped", "-n", "blue"])["metadata"]["labels"].clone();
    assert_eq!(labels["kueue.x-k8s.io/queue-name"], "default-queue");
    assert_eq!(labels["workload.codeflare.dev/user"], "alice");
    let immutable = r#"{"spec": {"components": []}}"#;
    let error = cluster.refused(&["patch", "appwrapper", "wrapped", "-n", "blue", "--type", "merge", "-p", immutable]);
    assert!(error.contains("spec.components"), "{error}");

    let mut queued = job("queued");
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "default-queue"});
    apply(cluster, &queued);
    let wrapped = until_running(cluster, "wrapped", "");
    let queued = until_running(cluster, "queued", "");
    assert!(avoids_unhealthy_nodes(&wrapped.2) && avoids_unhealthy_nodes(&queued.2), "{:#}", queued.2["spec"]);

    // A node of each job becomes unhealthy in turn; one healthy node is free.
    for (app, (uid, node, _)) in [("wrapped", wrapped), ("queued", queued)] {
        cluster.run(&["label", "node", &node, &format!("{HEALTH}=EVICT")]);
        let (fresh, ..) = until_running(cluster, app, &node);
        assert_ne!(fresh, uid);
        let limit = |cluster: &Cluster| {
            let queue = cluster.get(&["clusterqueue", "slack"]);
            queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["lendingLimit"].clone()
        };
        cluster.wait_until("the slack queue to lend no GPU", 30, |cluster| limit(cluster) == "0");
        cluster.run(&["label", "node", &node, &format!("{HEALTH}-")]);
        cluster.wait_until("the slack queue to lend all", 30, |cluster| limit(cluster).is_null());
    }
    let (_, metrics) = controller.get("/metrics");
    assert!(metrics.contains("appwrapper_phase_total{namespace=\"blue\",phase=\"Resetting\"} 1"), "{metrics}");
    cluster.run(&["delete", "appwrapper", "wrapped", "-n", "blue", "--timeout", "60s"]);
    cluster.wait_until("its pods to be deleted", 60, |cluster| running(cluster, "wrapped").is_none());
    machines.terminate();
    controller.terminate();

    for line in std::fs::read_to_string(&log).expect("a log").lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let is_own = event["user"]["username"] == rights::USER;
        assert!(!is_own || event["responseStatus"]["code"] != 403, "the rights lack: {line}");
    }
}
