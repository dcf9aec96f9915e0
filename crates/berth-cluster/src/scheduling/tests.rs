//! Places single pods in small clusters.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;

fn node(name: &str, more: Value) -> Node {
    let mut node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "zone": "a" } },
        "spec": {},
        "status": { "allocatable": { "cpu": "4", "memory": "16Gi", "pods": "110" } },
    });
    merge(&mut node, more);
    serde_json::from_value(node).unwrap()
}

fn pod(name: &str, more: Value) -> Arc<PodInfo> {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "ns", "labels": { "app": "x" } },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
    });
    merge(&mut pod, more);
    let pod: Pod = serde_json::from_value(pod).unwrap();
    Arc::new(PodInfo::new(Arc::new(pod)))
}

fn merge(target: &mut Value, more: Value) {
    match (target, more) {
        (Value::Object(target), Value::Object(more)) => {
            for (key, value) in more {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, more) => *target = more,
    }
}

fn cluster(nodes: &[Node], pods: &[(&str, Arc<PodInfo>)]) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.set_node(Arc::new(node.clone()));
    }
    for (node, pod) in pods {
        cluster.place(pod.clone(), node);
    }
    cluster
}

/// The node of the pod, or why it fits nowhere.
fn check(pod: &PodInfo, cluster: &Cluster) -> String {
    match place(pod, cluster, Packing::Spread) {
        Placement::Node(node) => node,
        Placement::Nowhere { reasons, .. } => unschedulable_message(cluster.node_count(), &reasons, ""),
    }
}

#[test]
fn requests_are_the_sum_of_containers_or_the_largest_init_container() {
    let pod = pod(
        "p",
        json!({ "spec": {
        "overhead": { "cpu": "100m" },
        "initContainers": [
            { "name": "side", "restartPolicy": "Always", "resources": { "requests": { "cpu": "500m" } } },
            { "name": "init", "resources": { "requests": { "cpu": "2", "memory": "1Gi" } } },
        ],
        "containers": [
            { "name": "a", "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "2", "nvidia.com/gpu": "2" } } },
            { "name": "b", "resources": { "requests": { "cpu": "250m" } } },
        ],
    } }),
    );
    assert_eq!(pod.requests.get("cpu"), 2_600, "the init phase with the sidecar is the peak");
    assert_eq!(pod.requests.get("memory"), 1 << 30);
    assert_eq!(pod.requests.get("nvidia.com/gpu"), 2, "a limit without request counts");
    assert_eq!(pod.requests.get("pods"), 1);
}

#[test]
fn each_node_reports_its_first_reason_against_a_pod() {
    let cluster = cluster(
        &[
            node("cordoned", json!({ "spec": { "unschedulable": true } })),
            node(
                "tainted",
                json!({ "spec": { "taints": [{ "key": "spot", "value": "true", "effect": "NoSchedule" }] } }),
            ),
            node("wrong", json!({ "metadata": { "labels": { "zone": "b" } } })),
            node("full", json!({})),
            node("full-of-pods", json!({ "status": { "allocatable": { "pods": "0" } } })),
        ],
        &[(
            "full",
            pod(
                "other",
                json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "3500m" } } }] } }),
            ),
        )],
    );
    let pod = pod("p", json!({ "spec": { "nodeSelector": { "zone": "a" } } }));
    assert_eq!(
        check(&pod, &cluster),
        "0/5 nodes are available: 1 Insufficient cpu, 1 Too many pods, 1 node(s) didn't match Pod's node affinity/selector, \
         1 node(s) had untolerated taint {spot: true}, 1 node(s) were unschedulable."
    );
}

#[test]
fn tolerations_cover_taints_by_key_value_and_effect() {
    let spot = json!({ "spec": { "taints": [{ "key": "spot", "value": "true", "effect": "NoSchedule" }] } });
    let cluster = cluster(&[node("n", spot)], &[]);
    for (toleration, fits) in [
        (json!({ "key": "spot", "operator": "Exists" }), true),
        (json!({ "key": "spot", "value": "true", "effect": "NoSchedule" }), true),
        (json!({ "operator": "Exists" }), true),
        (json!({ "key": "spot", "value": "false" }), false),
        (json!({ "key": "spot", "operator": "Exists", "effect": "NoExecute" }), false),
        (json!({ "key": "other", "operator": "Exists" }), false),
    ] {
        let pod = pod("p", json!({ "spec": { "tolerations": [toleration] } }));
        assert_eq!(check(&pod, &cluster) == "n", fits, "{toleration}");
    }
}

#[test]
fn accelerator_pods_fill_started_nodes_and_cpu_pods_stay_off_them() {
    let gpu = json!({ "status": { "allocatable": { "nvidia.com/gpu": "4" } } });
    let wants = |count: &str| json!({ "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": count } } }] } });
    let cluster = cluster(
        &[node("gpu-a", gpu.clone()), node("gpu-b", gpu), node("plain", json!({}))],
        &[("gpu-b", pod("first", wants("1")))],
    );
    assert_eq!(check(&pod("second", wants("1")), &cluster), "gpu-b");
    assert_eq!(check(&pod("cpu", json!({})), &cluster), "plain");
}

#[test]
fn anti_affinity_is_respected_in_both_directions() {
    let apart = json!({ "spec": { "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "x" } } }] } } } });
    let world = cluster(&[node("n1", json!({})), node("n2", json!({}))], &[("n1", pod("one", apart.clone()))]);
    assert_eq!(check(&pod("two", apart.clone()), &world), "n2");
    let mut both = world.clone();
    both.place(pod("two", apart.clone()), "n2");
    assert_eq!(
        check(&pod("three", apart), &both),
        "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
    );
    assert_eq!(
        check(&pod("four", json!({})), &both),
        "0/2 nodes are available: 2 node(s) didn't satisfy existing pods anti-affinity rules."
    );
}

#[test]
fn the_first_pod_with_affinity_to_itself_may_run_anywhere() {
    let together = json!({ "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "x" } } }] } } } });
    let nodes = [
        node("a1", json!({})),
        node("b1", json!({ "metadata": { "labels": { "zone": "b" } } })),
        node("b2", json!({ "metadata": { "labels": { "zone": "b" } } })),
    ];
    let empty = cluster(&nodes, &[]);
    assert_eq!(check(&pod("first", together.clone()), &empty), "a1");
    let founded = cluster(&nodes, &[("b1", pod("first", together.clone()))]);
    assert_eq!(check(&pod("second", together), &founded), "b2");
}

#[test]
fn spread_keeps_domains_within_the_skew() {
    let spread = json!({ "spec": { "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": { "matchLabels": { "app": "x" } } }] } });
    let nodes = [node("a1", json!({})), node("b1", json!({ "metadata": { "labels": { "zone": "b" } } }))];
    let one = cluster(&nodes, &[("b1", pod("first", spread.clone()))]);
    assert_eq!(check(&pod("second", spread.clone()), &one), "a1");
    let cordoned = [node("a1", json!({ "spec": { "unschedulable": true } })), nodes[1].clone()];
    let uneven = cluster(&cordoned, &[("b1", pod("first", spread.clone()))]);
    assert!(check(&pod("second", spread), &uneven).contains("1 node(s) didn't match pod topology spread constraints"));
}

fn of_priority(name: &str, priority: i32, cpu: &str, more: Value) -> Arc<PodInfo> {
    let mut all = json!({ "spec": { "priority": priority, "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] } });
    merge(&mut all, more);
    pod(name, all)
}

fn victims(pod: &PodInfo, cluster: &Cluster) -> Result<(String, Vec<String>), String> {
    let Placement::Nowhere { preemptible, .. } = place(pod, cluster, Packing::Spread) else { panic!("it fits") };
    match preempt(pod, cluster, &preemptible) {
        Preemption::Possible { node, victims } => Ok((node, victims.iter().map(|v| v.key.name.clone()).collect())),
        Preemption::Impossible(why) => Err(why),
    }
}

#[test]
fn preemption_takes_the_least_important_and_fewest_pods() {
    let cluster = cluster(
        &[node("n1", json!({})), node("n2", json!({}))],
        &[
            ("n1", of_priority("a", 5, "2", json!({}))),
            ("n1", of_priority("b", 1, "2", json!({}))),
            ("n2", of_priority("c", 5, "4", json!({}))),
        ],
    );
    let high = of_priority("high", 10, "2", json!({}));
    assert_eq!(victims(&high, &cluster), Ok(("n1".into(), vec!["b".into()])));
    let polite = of_priority("polite", 10, "2", json!({ "spec": { "preemptionPolicy": "Never" } }));
    assert_eq!(victims(&polite, &cluster), Err("preemption: not eligible due to preemptionPolicy=Never.".into()));
    let equal = of_priority("equal", 1, "2", json!({}));
    assert_eq!(
        victims(&equal, &cluster),
        Err("preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.".into())
    );
}

#[test]
fn preemption_prefers_pods_that_are_being_deleted() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let cluster = cluster(
        &[node("n1", json!({})), node("n2", json!({}))],
        &[("n1", of_priority("stays", 1, "4", json!({}))), ("n2", of_priority("goes", 5, "4", going))],
    );
    let high = of_priority("high", 10, "2", json!({}));
    assert_eq!(victims(&high, &cluster), Ok(("n2".into(), vec!["goes".into()])));
}

#[test]
fn room_made_for_a_pod_is_reserved_against_less_important_pods() {
    let mut world = cluster(&[node("n1", json!({}))], &[]);
    world.nominate(of_priority("high", 10, "4", json!({})), "n1");
    assert!(check(&of_priority("low", 1, "1", json!({})), &world).contains("Insufficient cpu"));
    assert_eq!(check(&of_priority("higher", 20, "1", json!({})), &world), "n1");
}
