//! What GPUs report in a cluster that is not embedded: from the pods of dcgm-exporter, through the
//! API server.

use std::path::Path;

use berth_controllers::gpu_exporters::{GpuExporters, rules};
use berth_testing::{has_kubectl, skip};
use kube::Client;
use kube::config::AuthInfo;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::process::Process;
use crate::processes::apply;

const NAMESPACE: &str = "gpu-operator";
/// A page of dcgm-exporter, shortened.
const METRICS: &str = "DCGM_FI_DEV_GPU_UTIL{gpu=\\\"0\\\",UUID=\\\"GPU-a\\\"} 35\\n\
                       DCGM_FI_DEV_FB_USED{gpu=\\\"0\\\",UUID=\\\"GPU-a\\\"} 900\\n";
/// The role and binding of the account that reads exporters.
const READER: &str = "gpu-reader";

/// A pod in place of dcgm-exporter's.
fn exporter() -> Value {
    let serve = format!(
        "mkdir -p /tmp/page && printf \"{METRICS}\" > /tmp/page/metrics && cd /tmp/page && exec python3 -m http.server 9400"
    );
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "exporter", "namespace": NAMESPACE, "labels": {"app": "nvidia-dcgm-exporter"}},
        // As the pods of a DaemonSet, it also runs on a node whose disk is nearly full.
        "spec": {"tolerations": [{"operator": "Exists", "effect": "NoSchedule", "key": "node.kubernetes.io/disk-pressure"}],
        "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "exporter", "image": "python", "command": ["sh", "-c", serve],
            "ports": [{"name": "metrics", "containerPort": 9400}],
            "readinessProbe": {"tcpSocket": {"port": 9400}, "periodSeconds": 1}}]}})
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

/// A client with the rights that the option adds to those of the controllers, and no others.
async fn reader(cluster: &Cluster) -> Client {
    let rbac = "rbac.authorization.k8s.io";
    let mut rules = rules();
    let lists = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]});
    rules.as_array_mut().expect("a list").push(lists);
    cluster.run(&["create", "serviceaccount", READER]);
    let metadata = json!({"name": READER, "namespace": NAMESPACE});
    apply(cluster, &json!({"apiVersion": format!("{rbac}/v1"), "kind": "Role", "metadata": metadata, "rules": rules}));
    apply(
        cluster,
        &json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": READER},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": "default"}]}),
    );
    let token = cluster.run(&["create", "token", READER]).trim().to_owned();
    let mut config = crate::clients::config(cluster).await;
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    Client::try_from(config).expect("a client")
}

#[tokio::test]
async fn an_exporter_is_read_through_the_api_server_with_the_right_of_the_option() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip("python3 is not installed");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    apply(&cluster, &namespace());
    let client = reader(&cluster).await;
    let read = GpuExporters::new(client.clone(), NAMESPACE).gpus().await;
    assert!(read.notes[0].contains("No running pod of dcgm-exporter is in namespace gpu-operator"), "{read:?}");
    apply(&cluster, &exporter());
    cluster.run(&["wait", "--for=condition=Ready", "pod/exporter", "-n", NAMESPACE, "--timeout=60s"]);
    let read = GpuExporters::new(client, NAMESPACE).gpus().await;
    assert_eq!(read.notes, Vec::<String>::new());
    let node = cluster.get(&["pod", "exporter", "-n", NAMESPACE])["spec"]["nodeName"].clone();
    let [of_node] = read.items.as_slice() else { panic!("{read:?}") };
    assert_eq!(node, of_node.node.as_str());
    assert_eq!((of_node.gpus[0].utilization, of_node.gpus[0].memory_used), (35.0, Some(900.0)));
    cluster.interrupt();
}

#[test]
fn the_controllers_serve_what_gpus_report_and_why_figures_are_missing() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    apply(&cluster, &namespace());
    let option = format!("--gpu-exporters={NAMESPACE}");
    let controller = Process::controller(&cluster, &[&option]);
    controller.wait_logged("this replica leads");
    const PATH: &str = "/apis/explain.berth.dev/v1alpha1/gpus";
    let list = |cluster: &Cluster| -> Option<Value> {
        let output = cluster.kubectl(&["get", "--raw", PATH]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    };
    cluster.wait_until("the list of GPUs", 30, |cluster| list(cluster).is_some());
    let read = list(&cluster).expect("it was read");
    let note = read["notes"][0].as_str().unwrap_or_default();
    assert!(note.starts_with("No running pod of dcgm-exporter is in namespace gpu-operator."), "{read}");
    assert_eq!(read["kind"], "GpuUseList");
    // What GPUs report is not for every user.
    let refused = cluster.refused(&["get", "--raw", PATH, "--as", "eve"]);
    assert!(refused.contains("forbidden"), "{refused}");
    let role = "--clusterrole=berth-explanation-viewer-role";
    cluster.run(&["create", "clusterrolebinding", "ann", role, "--user=ann"]);
    assert!(cluster.run(&["get", "--raw", PATH, "--as", "ann"]).contains("GpuUseList"));
}
