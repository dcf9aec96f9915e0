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
fn a_pod_whose_claims_of_devices_were_not_looked_up_fits_nowhere() {
    let cluster = cluster(&[node("n1", json!({})), node("n2", json!({}))], &[]);
    let claims = json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}});
    assert_eq!(check(&pod("p", claims), &cluster), "0/2 nodes are available: 2 cannot allocate all claims.");
    assert_eq!(check(&pod("p", json!({"spec": {"resourceClaims": []}})), &cluster), "n1");
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
fn priorities_choose_the_victims_even_if_more_important_pods_are_being_deleted() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let cluster = cluster(
        &[node("n1", json!({})), node("n2", json!({}))],
        &[("n1", of_priority("stays", 1, "4", json!({}))), ("n2", of_priority("goes", 5, "4", going))],
    );
    let high = of_priority("high", 10, "2", json!({}));
    assert_eq!(victims(&high, &cluster), Ok(("n1".into(), vec!["stays".into()])));
}

#[test]
fn the_longer_running_of_equal_pods_stays_even_if_it_is_being_deleted() {
    let started = |at: &str| json!({ "status": { "startTime": at } });
    let mut going = started("2026-01-01T00:00:00Z");
    merge(&mut going, json!({ "metadata": { "deletionTimestamp": "2026-01-02T00:00:00Z" } }));
    let cluster = cluster(
        &[node("n1", json!({}))],
        &[
            ("n1", of_priority("old", 1, "2", going)),
            ("n1", of_priority("young", 1, "2", started("2026-01-01T01:00:00Z"))),
        ],
    );
    let high = of_priority("high", 10, "2", json!({}));
    assert_eq!(victims(&high, &cluster), Ok(("n1".into(), vec!["young".into()])));
}

#[test]
fn a_pod_waits_only_for_pods_that_were_preempted_on_its_nominated_node() {
    let nominated = json!({ "status": { "nominatedNodeName": "n1" } });
    let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let mut preempted = deleted.clone();
    merge(
        &mut preempted,
        json!({ "status": { "conditions": [
            { "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler" }] } }),
    );
    let with = |more: Value| cluster(&[node("n1", json!({}))], &[("n1", of_priority("low", 1, "4", more))]);
    let high = of_priority("high", 10, "2", nominated);
    let waits = "preemption: not eligible due to a terminating pod on the nominated node.";
    assert_eq!(victims(&high, &with(preempted.clone())), Err(waits.into()));
    assert_eq!(victims(&high, &with(deleted)), Ok(("n1".into(), vec!["low".into()])));
    // The nominated node cannot take the pod any more, so it looks for another one.
    let mut moved = with(preempted);
    moved.set_node(Arc::new(node("n1", json!({ "spec": { "unschedulable": true } }))));
    moved.set_node(Arc::new(node("n2", json!({}))));
    moved.place(of_priority("other", 1, "4", json!({})), "n2");
    assert_eq!(victims(&high, &moved), Ok(("n2".into(), vec!["other".into()])));
}

#[test]
fn preemption_spares_disruption_budgets_before_it_spares_priorities() {
    let labelled = |name: &str, priority: i32, cpu: &str, app: &str| {
        of_priority(name, priority, cpu, json!({ "metadata": { "labels": { "app": app } } }))
    };
    let mut cluster = cluster(
        &[node("n1", json!({})), node("n2", json!({}))],
        &[
            ("n1", labelled("guarded", 1, "2", "db")),
            ("n1", labelled("free", 2, "2", "web")),
            ("n2", labelled("important", 5, "4", "web")),
        ],
    );
    let high = |cpu: &str| of_priority("high", 10, cpu, json!({}));
    assert_eq!(victims(&high("2"), &cluster), Ok(("n1".into(), vec!["guarded".into()])));
    let budget = |allowed: i32| {
        let budget = json!({ "metadata": { "name": "db", "namespace": "ns" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "db" } } },
            "status": { "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 } });
        Arc::new(serde_json::from_value(budget).unwrap())
    };
    let key = berth_runtime::ObjectKey::namespaced("ns", "db");
    cluster.set_budget(&key, Some(budget(0)));
    assert_eq!(
        victims(&high("2"), &cluster),
        Ok(("n1".into(), vec!["free".into()])),
        "the guarded pod is put back first"
    );
    assert_eq!(
        victims(&high("4"), &cluster),
        Ok(("n2".into(), vec!["important".into()])),
        "no budget is violated there"
    );
    cluster.set_budget(&key, Some(budget(1)));
    assert_eq!(victims(&high("4"), &cluster), Ok(("n1".into(), vec!["free".into(), "guarded".into()])));
}

#[test]
fn room_made_for_a_pod_is_reserved_against_less_important_pods() {
    let mut world = cluster(&[node("n1", json!({}))], &[]);
    world.nominate(of_priority("high", 10, "4", json!({})), "n1");
    assert!(check(&of_priority("low", 1, "1", json!({})), &world).contains("Insufficient cpu"));
    assert_eq!(check(&of_priority("higher", 20, "1", json!({})), &world), "n1");
}

#[test]
fn a_host_port_is_given_once_per_address_and_protocol() {
    let with_port = |name: &str, port: Value| {
        let ports = json!([port]);
        pod(name, json!({ "spec": { "containers": [{ "name": "c", "ports": ports }] } }))
    };
    let on_loopback = with_port("a", json!({ "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1" }));
    let cluster = cluster(&[node("n", json!({}))], &[("n", on_loopback)]);
    let free = [
        json!({ "containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.1" }),
        json!({ "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1", "protocol": "UDP" }),
        json!({ "containerPort": 8080, "hostPort": 80 }),
    ];
    for port in free {
        assert_eq!(check(&with_port("p", port.clone()), &cluster), "n", "{port}");
    }
    let taken = [
        json!({ "containerPort": 81, "hostPort": 8080, "hostIP": "127.0.0.1" }),
        json!({ "containerPort": 81, "hostPort": 8080 }),
        json!({ "containerPort": 81, "hostPort": 8080, "hostIP": "0.0.0.0" }),
    ];
    for port in taken {
        let answer = check(&with_port("p", port.clone()), &cluster);
        assert!(answer.contains("didn't have free ports"), "{port}: {answer}");
    }
    let port = json!([{ "containerPort": 81, "hostPort": 8080 }]);
    let containers = json!({ "containers": [{ "name": "c" }], "initContainers": [
        { "name": "side", "restartPolicy": "Always", "ports": port },
    ] });
    assert!(check(&pod("p", json!({ "spec": containers })), &cluster).contains("free ports"), "a sidecar's port");
}

fn by_score(pod: &PodInfo, cluster: &Cluster, strategy: Value) -> String {
    let strategy: berth_api::berth::ScoringStrategy = serde_json::from_value(strategy).unwrap();
    match place_by(pod, cluster, &Ranking::Scoring(Scoring::from(&strategy))) {
        Placement::Node(node) => node,
        Placement::Nowhere { .. } => panic!("it fits nowhere"),
    }
}

fn score(pod: &PodInfo, cluster: &Cluster, node: &str, strategy: Value) -> i64 {
    let strategy: berth_api::berth::ScoringStrategy = serde_json::from_value(strategy).unwrap();
    Scoring::from(&strategy).score(pod, cluster.node(node).unwrap())
}

fn of_gpus(name: &str, count: &str) -> Arc<PodInfo> {
    pod(
        name,
        json!({ "spec": { "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": count } } }] } }),
    )
}

#[test]
fn requested_to_capacity_ratio_fills_partially_used_gpu_nodes_first() {
    let gpus = json!({ "status": { "allocatable": { "nvidia.com/gpu": "8" } } });
    let packed = json!({ "type": "RequestedToCapacityRatio", "resources": [{ "name": "nvidia.com/gpu" }],
        "requestedToCapacityRatio": { "shape": [{ "utilization": 0, "score": 0 }, { "utilization": 100, "score": 10 }] } });
    let cluster = cluster(
        &[node("a", gpus.clone()), node("b", gpus.clone()), node("c", gpus)],
        &[("b", of_gpus("two", "2")), ("c", of_gpus("five", "5"))],
    );
    assert_eq!(by_score(&of_gpus("p", "1"), &cluster, packed.clone()), "c");
    assert_eq!(by_score(&of_gpus("p", "4"), &cluster, packed.clone()), "b", "c has only three free");
    assert_eq!(by_score(&of_gpus("p", "8"), &cluster, packed.clone()), "a", "the whole node stayed free");
    let scores = ["a", "b", "c"].map(|node| score(&of_gpus("p", "1"), &cluster, node, packed.clone()));
    assert_eq!(scores, [12, 37, 75]);
    assert_eq!(score(&pod("cpu", json!({})), &cluster, "c", packed.clone()), 0, "it requests no GPU");
    let spread = json!({ "type": "LeastAllocated", "resources": [{ "name": "nvidia.com/gpu" }] });
    assert_eq!(by_score(&of_gpus("p", "1"), &cluster, spread), "a");
    let fullest = json!({ "type": "MostAllocated", "resources": [{ "name": "nvidia.com/gpu" }] });
    assert_eq!(by_score(&of_gpus("p", "1"), &cluster, fullest), "c");
}

#[test]
fn scores_are_weighted_averages_and_linear_between_points() {
    let cluster = cluster(&[node("n", json!({}))], &[("n", of_priority("used", 0, "1", json!({})))]);
    let pod = pod(
        "p",
        json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1", "memory": "4Gi" } } }] } }),
    );
    // Two of four CPUs, and 4 GiB and the default of 200 MB of 16 GiB.
    let weights = json!([{ "name": "cpu", "weight": 3 }, { "name": "memory", "weight": 1 }]);
    let of = |kind: &str| json!({ "type": kind, "resources": weights });
    assert_eq!(score(&pod, &cluster, "n", of("LeastAllocated")), (3 * 50 + 73) / 4);
    assert_eq!(score(&pod, &cluster, "n", of("MostAllocated")), (3 * 50 + 26) / 4);
    let peak = json!({ "type": "RequestedToCapacityRatio", "resources": [{ "name": "cpu" }],
        "requestedToCapacityRatio": { "shape": [
            { "utilization": 20, "score": 0 }, { "utilization": 60, "score": 10 }, { "utilization": 80, "score": 4 }] } });
    assert_eq!(score(&pod, &cluster, "n", peak), 75, "50 % is three quarters of the way from 20 to 60");
    let none = json!({ "type": "LeastAllocated", "resources": [{ "name": "example.com/absent" }] });
    assert_eq!(score(&pod, &cluster, "n", none), 0);
}
