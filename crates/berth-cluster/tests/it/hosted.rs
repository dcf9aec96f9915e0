//! Nodes of a simulated cloud whose pods run in the runtime of the machine.

use std::collections::BTreeSet;

use berth_api::berth::{HOSTED_LABEL, SimulatedPods};
use berth_cluster::kubelet::{process, simulated};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::kubelet::{Machine, NODE};

/// Adds a hosted node with a GPU, and binds pod `p` to it.
async fn bind_to_hosted_node(machine: &Machine) {
    let amounts = json!({"cpu": "24", "memory": "96Gi", "pods": "110", "nvidia.com/gpu": "2"});
    let node = json!({"metadata": {"name": "cloud-1", "labels": {HOSTED_LABEL: "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": amounts, "allocatable": amounts}});
    let nodes: Api<Node> = Api::all(machine.client());
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let cpus = json!({"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}});
    let container = json!({"name": "c", "image": "busybox", "command": ["run", "5", "0"], "env": [cpus],
        "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"nodeName": "cloud-1", "restartPolicy": "Never", "containers": [container]}});
    machine.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

/// Runs both kubelets of a cluster with this machine.
async fn run<T>(machine: &Machine, until: impl Future<Output = T>) -> T {
    let install = |manager: &mut _| {
        simulated::install(manager, SimulatedPods::default(), 1, BTreeSet::from([NODE.to_owned()]));
        process::install(manager, vec![machine.process_node()]);
    };
    machine.run_kubelet(install, until).await
}

#[tokio::test(start_paused = true)]
async fn the_pod_of_a_hosted_node_runs_on_the_machine_with_simulated_devices() {
    let machine = Machine::new().await;
    bind_to_hosted_node(&machine).await;
    run(&machine, machine.until_phase("Succeeded")).await;
    assert_eq!(machine.runtime.calls(), ["sandbox p", "image busybox", "start p/c#0", "stop sandbox p"]);
    let env = machine.runtime.with(|state| state.configs["p/c#0"].env.clone());
    let value = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!((value("CPUS"), value("CUDA_VISIBLE_DEVICES")), (Some("24"), Some("0")));
    assert!(machine.devices.0.lock().is_empty(), "no device of the machine is assigned");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_ends_the_pod_of_a_hosted_node_that_is_gone() {
    let machine = Machine::new().await;
    bind_to_hosted_node(&machine).await;
    run(&machine, machine.until_phase("Running")).await;
    let nodes: Api<Node> = Api::all(machine.client());
    nodes.delete("cloud-1", &DeleteParams::default()).await.unwrap();
    let pods = machine.api::<Pod>();
    pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    let ended = async {
        while !machine.runtime.calls().contains(&"stop sandbox p".to_owned()) {
            machine.sleep(1).await;
        }
    };
    run(&machine, ended).await;
}
