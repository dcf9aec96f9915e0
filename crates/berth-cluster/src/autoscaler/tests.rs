//! Tests of scale-up, node auto-provisioning and scale-down.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{ClusterConfiguration, NodePool, NodePoolStatus, SCALED_UP_AT_ANNOTATION};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::*;
use crate::Site;
use crate::placement::{PodInfo, Storage};
use crate::pools::{REMOVAL_TAINT, template};

fn configuration(more: Value) -> ClusterConfiguration {
    let mut spec = json!({ "autoscaling": { "unneededTime": "60s", "delayAfterAdd": "0s" } });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ClusterConfiguration::from_value(spec).unwrap()
}

fn site() -> Site {
    Site { cluster: "c".into(), region: "us-central1".into(), version: "v1".into(), seed: 1, ..Site::default() }
}

fn pool(name: &str, machine: &str, nodes: i32, max: i32, more: Value) -> Arc<NodePool> {
    let mut spec = json!({ "machineType": machine, "nodes": nodes, "maxNodes": max });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut pool = NodePool::new(name, serde_json::from_value(spec).unwrap());
    pool.status = Some(NodePoolStatus { nodes, ..Default::default() });
    Arc::new(pool)
}

/// All nodes of a pool, ready.
fn nodes(pool: &NodePool) -> Vec<Arc<Node>> {
    let count = pool.spec.nodes.unwrap_or(0);
    (0..count)
        .map(|i| Arc::new(template(pool, &site(), "us-central1-a", &format!("{}-{i}", pool.name_any()))))
        .collect()
}

fn gpu_pod(name: &str, count: i64, more: Value) -> Arc<PodInfo> {
    let mut spec = json!({
        "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2" }, "limits": { "nvidia.com/gpu": count } } }],
        "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }],
    });
    if count == 0 {
        spec["containers"][0]["resources"] = json!({ "requests": { "cpu": "2" } });
    }
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec })).unwrap();
    Arc::new(PodInfo::new(Arc::new(pod)))
}

/// The devices of a driver whose class backs an extended resource, as a cluster without nodes knows
/// them.
fn storage() -> Storage {
    let mut storage = Storage::default();
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
    storage.devices.set_class("gpu", Some(Arc::new(serde_json::from_value(class).unwrap())));
    storage
}

/// A pod that claims devices.
fn claiming_pod(storage: &mut Storage, name: &str, count: i64) -> Arc<PodInfo> {
    let request =
        json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}});
    let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": [request]}}});
    let claim = Arc::new(serde_json::from_value(claim).unwrap());
    storage.devices.set_claim(&ObjectKey::namespaced("ns", name), Some(claim));
    gpu_pod(name, 0, json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }] }))
}

fn resolved(pods: &[Arc<PodInfo>], storage: &Storage) -> Vec<Arc<PodInfo>> {
    pods.iter().map(|pod| Arc::new(pod.with_volumes(storage))).collect()
}

fn device_pool(name: &str, nodes: i32, count: i64) -> Arc<NodePool> {
    let devices = json!([{ "driver": "gpu.example.com", "name": "gpu", "count": count }]);
    pool(name, "e2-standard-16", nodes, 10, json!({ "devices": devices }))
}

#[test]
fn a_pool_grows_by_the_machines_whose_devices_pending_pods_claim() {
    let pools = [device_pool("four", 0, 4), pool("none", "e2-standard-8", 0, 10, json!({}))];
    let mut storage = storage();
    let pods: Vec<_> = (0..5).map(|i| claiming_pod(&mut storage, &format!("p{i}"), 2)).collect();
    let plan = scale_up(&view(&pools, Vec::new(), resolved(&pods, &storage)), &configuration(json!({})));
    assert_eq!(growths(&plan), [("four".into(), 0, 3, 5)], "two pods on each machine");
    let large = [claiming_pod(&mut storage, "large", 5)];
    let plan = scale_up(&view(&pools, Vec::new(), resolved(&large, &storage)), &configuration(json!({})));
    assert_eq!(growths(&plan), []);
    let reasons: Vec<_> = plan.unhelped.into_values().collect();
    assert_eq!(reasons, ["pod didn't trigger scale-up: 2 cannot allocate all claims"]);
}

#[test]
fn machines_that_start_or_are_ordered_have_the_devices_that_they_will_publish() {
    let ordered = device_pool("four", 2, 4);
    let mut starting = nodes(&ordered);
    starting.truncate(1);
    let mut storage = storage();
    let pods: Vec<_> = (0..5).map(|i| claiming_pod(&mut storage, &format!("p{i}"), 2)).collect();
    let view = |pods: &[Arc<PodInfo>], storage: &Storage| {
        View::new(vec![ordered.clone()], starting.clone(), Vec::new(), resolved(pods, storage), site())
    };
    let plan = scale_up(&view(&pods[..4], &storage), &configuration(json!({})));
    assert_eq!(growths(&plan), [], "the node and the ordered machine have eight devices");
    assert_eq!(growths(&scale_up(&view(&pods, &storage), &configuration(json!({})))), [("four".into(), 2, 3, 1)]);
    // The node has published one device only: the others are broken.
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "four-0",
        "pool": {"name": "four-0", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}});
    storage.devices.set_slice("s", Some(Arc::new(serde_json::from_value(slice).unwrap())));
    let plan = scale_up(&view(&pods[..4], &storage), &configuration(json!({})));
    assert_eq!(growths(&plan), [("four".into(), 2, 3, 2)]);
}

#[test]
fn a_pool_grows_for_extended_resources_that_its_devices_back() {
    let pools = [device_pool("four", 0, 4)];
    let storage = storage();
    let gpus = json!([{ "name": "c", "resources": { "requests": { "example.com/gpu": "3" } } }]);
    let pods: Vec<_> = ["a", "b"].map(|name| gpu_pod(name, 0, json!({ "containers": gpus }))).into();
    let backed: Vec<_> = pods.iter().map(|pod| Arc::new(pod.with_backed(true))).collect();
    let plan = scale_up(&view(&pools, Vec::new(), resolved(&backed, &storage)), &configuration(json!({})));
    assert_eq!(growths(&plan), [("four".into(), 0, 2, 2)]);
}

fn view(pools: &[Arc<NodePool>], bound: Vec<Arc<PodInfo>>, pending: Vec<Arc<PodInfo>>) -> View {
    let all = pools.iter().flat_map(|pool| nodes(pool)).collect();
    View::new(pools.to_vec(), all, objects(bound), pending, site())
}

fn objects(pods: Vec<Arc<PodInfo>>) -> Vec<Arc<Pod>> {
    pods.into_iter().map(|pod| pod.pod.clone()).collect()
}

/// The scale-up at the time 0.
fn scale_up(view: &View, configuration: &ClusterConfiguration) -> ScaleUp {
    plan_scale_up(view, configuration, at(0))
}

fn growths(plan: &ScaleUp) -> Vec<(String, i32, i32, usize)> {
    plan.growths.iter().map(|g| (g.pool.clone(), g.from, g.to, g.pods.len())).collect()
}

#[test]
fn the_cheapest_pool_grows_by_the_nodes_that_the_pods_need() {
    let pools = [
        pool("big", "g2-standard-96", 0, 10, json!({})),
        pool("cpu", "n2-standard-16", 0, 10, json!({})),
        pool("small", "g2-standard-24", 1, 10, json!({})),
        pool("static", "g2-standard-4", 0, 10, json!({ "static": true })),
        pool("dws", "g2-standard-4", 0, 10, json!({ "provisioning": "queued" })),
    ];
    let pending = (0..6).map(|i| gpu_pod(&format!("p{i}"), 2, json!({}))).collect();
    let plan = scale_up(&view(&pools, Vec::new(), pending), &configuration(json!({})));
    assert_eq!(growths(&plan), [("small".into(), 1, 6, 5)], "one pod fits on the existing node");
    assert!(plan.unhelped.is_empty());
}

#[test]
fn another_pool_grows_when_the_first_is_full_and_other_pods_get_a_reason() {
    let pools = [pool("large", "g2-standard-48", 0, 1, json!({})), pool("small", "g2-standard-24", 0, 2, json!({}))];
    let pending = (0..6).map(|i| gpu_pod(&format!("p{i}"), 2, json!({}))).collect();
    let plan = scale_up(&view(&pools, Vec::new(), pending), &configuration(json!({})));
    assert_eq!(growths(&plan), [("large".into(), 0, 1, 2), ("small".into(), 0, 2, 2)]);
    let reasons: Vec<_> = plan.unhelped.values().cloned().collect();
    assert_eq!(reasons, ["pod didn't trigger scale-up: 2 max node group size reached"; 2]);
}

#[test]
fn ordered_machines_are_not_ordered_again() {
    let ordered = pool("small", "g2-standard-24", 3, 10, json!({}));
    let mut starting = nodes(&ordered);
    starting.truncate(1);
    let pending = (0..3).map(|i| gpu_pod(&format!("p{i}"), 2, json!({}))).collect();
    let view = View::new(vec![ordered], starting, Vec::new(), pending, site());
    assert_eq!(growths(&scale_up(&view, &configuration(json!({})))), []);
}

fn compact(name: &str, group: &str) -> Arc<PodInfo> {
    let equal =
        |key: &str, value: &str| json!({ "key": key, "operator": "Equal", "value": value, "effect": "NoSchedule" });
    gpu_pod(
        name,
        1,
        json!({
            "nodeSelector": { "cloud.google.com/gke-accelerator": "nvidia-tesla-a100", "cloud.google.com/gke-spot": "true",
                "cloud.google.com/gke-placement-group": group, "placement-group": group, "resource-type": "compact" },
            "tolerations": [{ "key": "nvidia.com/gpu", "operator": "Exists" }, equal("placement-group", group),
                equal("resource-type", "compact"), equal("cloud.google.com/gke-placement-group", group),
                equal("cloud.google.com/gke-spot", "true")],
        }),
    )
}

fn provisioning(limit: &str) -> ClusterConfiguration {
    configuration(json!({ "nodeAutoProvisioning": { "enabled": true, "limits": {
        "cpu": { "max": "1000" }, "memory": { "max": "4000Gi" }, "nvidia-tesla-a100": { "max": limit } } } }))
}

#[test]
fn each_placement_group_gets_a_pool_within_the_limits() {
    let pending = ["a", "b"].iter().flat_map(|g| [0, 1].map(|i| compact(&format!("{g}{i}"), g))).collect();
    let plan = scale_up(&view(&[], Vec::new(), pending), &provisioning("3"));
    assert_eq!(growths(&plan), [("a".into(), 0, 2, 2), ("b".into(), 0, 1, 1)]);
    assert_eq!(plan.unhelped.len(), 1);
    let new_pool = plan.growths[0].new_pool.as_ref().unwrap();
    assert_eq!(new_pool.spec.machine_type.as_deref(), Some("a2-highgpu-1g"));
    assert_eq!(new_pool.spec.placement_group.as_deref(), Some("a"));
}

#[test]
fn no_pool_is_created_without_toleration_accelerator_limit_or_machine_type() {
    let why = |pod: Arc<PodInfo>| derive_pool(&pod, &provisioning("8")).unwrap_err();
    let unknown = gpu_pod("p", 1, json!({ "nodeSelector": { "team": "x" } }));
    assert_eq!(
        why(unknown),
        "no.scale.up.nap.pod: the pod selects team=x but does not tolerate the taint that nodes with this label have"
    );
    let other_gpu = gpu_pod("p", 1, json!({ "nodeSelector": { "cloud.google.com/gke-accelerator": "nvidia-l4" } }));
    assert_eq!(why(other_gpu), "no.scale.up.nap.pod.gpu.no.limit.defined: nvidia-l4");
    let invented = gpu_pod("p", 1, json!({ "nodeSelector": { "cloud.google.com/compute-class": "x" } }));
    assert!(why(invented).contains("a new pool cannot have the label"));
    let huge = gpu_pod("p", 17, json!({}));
    assert!(why(huge).contains("no allowed machine type"));
}

#[test]
fn workload_separation_adds_a_label_and_a_taint() {
    let pod = gpu_pod(
        "p",
        0,
        json!({
        "nodeSelector": { "team": "x" }, "tolerations": [{ "key": "team", "operator": "Equal", "value": "x" }] }),
    );
    let pool = derive_pool(&pod, &provisioning("8")).unwrap();
    assert_eq!(pool.spec.labels["team"], "x");
    assert_eq!((pool.spec.taints[0].key.as_str(), pool.spec.taints[0].value.as_str()), ("team", "x"));
    assert!(pool.name_any().starts_with("nap-e2-standard-4-"), "{}", pool.name_any());
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn tainted(node: &Node, key: &str, since: Timestamp) -> Arc<Node> {
    let mut node = node.clone();
    node.spec.as_mut().unwrap().taints.get_or_insert_default().push(Taint {
        key: key.into(),
        value: Some(since.as_second().to_string()),
        effect: "PreferNoSchedule".into(),
        time_added: None,
    });
    Arc::new(node)
}

fn bound(name: &str, node: &str, phase: &str) -> Arc<PodInfo> {
    let pod = gpu_pod(name, 2, json!({ "nodeName": node }));
    let mut object = pod.pod.as_ref().clone();
    object.status = Some(serde_json::from_value(json!({ "phase": phase })).unwrap());
    Arc::new(PodInfo::new(Arc::new(object)))
}

fn down(pool: &Arc<NodePool>, nodes: Vec<Arc<Node>>, pods: Vec<Arc<PodInfo>>, now: Timestamp) -> ScaleDown {
    let view = View::new(vec![pool.clone()], nodes, objects(pods), Vec::new(), site());
    plan_scale_down(&view, &configuration(json!({})).autoscaling, &BTreeMap::new(), now)
}

#[test]
fn an_unneeded_node_is_marked_after_its_delay_and_then_its_pool_shrinks() {
    let pool = pool("p", "g2-standard-24", 2, 10, json!({}));
    let ready = nodes(&pool);
    let busy = vec![bound("work", "p-0", "Running")];
    let found = down(&pool, ready.clone(), busy.clone(), at(0));
    assert_eq!((found.candidates, found.due), (vec!["p-1".to_owned()], Some(at(60))));
    let idle = vec![ready[0].clone(), tainted(&ready[1], CANDIDATE_TAINT, at(0))];
    assert_eq!(down(&pool, idle.clone(), busy.clone(), at(59)).mark, Vec::<String>::new());
    assert_eq!(down(&pool, idle.clone(), busy.clone(), at(60)).mark, ["p-1"]);
    let needed = vec![bound("work", "p-0", "Running"), bound("more", "p-1", "Running")];
    assert_eq!(down(&pool, idle, needed, at(60)).needed, ["p-1"]);
    let marked = vec![ready[0].clone(), tainted(&ready[1], REMOVAL_TAINT, at(60))];
    assert_eq!(down(&pool, marked.clone(), busy.clone(), at(65)).shrink, []);
    let gone = down(&pool, marked, busy, at(70)).shrink;
    assert_eq!(gone.iter().map(|(name, spec)| (name.as_str(), spec.nodes)).collect::<Vec<_>>(), [("p", Some(1))]);
}

#[test]
fn an_empty_node_stays_for_the_pods_of_a_node_that_is_drained() {
    let pool = pool("p", "n2-standard-16", 2, 10, json!({}));
    let ready = nodes(&pool);
    let works = |phase: &str| {
        let pod = gpu_pod("work", 0, json!({ "nodeName": "p-0" }));
        let mut object = pod.pod.as_ref().clone();
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
        object.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
        object.status = Some(serde_json::from_value(json!({ "phase": phase })).unwrap());
        Arc::new(PodInfo::new(Arc::new(object)))
    };
    let idle: Vec<_> = ready.iter().map(|node| tainted(node, CANDIDATE_TAINT, at(0))).collect();
    let plan = down(&pool, idle, vec![works("Running")], at(60));
    assert_eq!((plan.mark, plan.needed), (vec!["p-0".to_owned()], vec!["p-1".to_owned()]), "in the same scan");
    let marked = vec![tainted(&ready[0], REMOVAL_TAINT, at(60)), tainted(&ready[1], CANDIDATE_TAINT, at(0))];
    let plan = down(&pool, marked, vec![works("Running")], at(70));
    assert_eq!((plan.evict.len(), plan.mark, plan.needed), (1, vec![], vec!["p-1".to_owned()]), "in a later scan");
}

#[test]
fn a_node_that_got_pods_before_its_taint_was_seen_is_kept() {
    let pool = pool("p", "g2-standard-24", 2, 10, json!({}));
    let ready = nodes(&pool);
    let marked = vec![ready[0].clone(), tainted(&ready[1], REMOVAL_TAINT, at(60))];
    let late = vec![bound("work", "p-0", "Running"), bound("late", "p-1", "Pending")];
    let plan = down(&pool, marked, late, at(61));
    assert_eq!((plan.needed, plan.evict, plan.shrink), (vec!["p-1".to_owned()], vec![], vec![]));

    let slice = tpu_pool("slice", 4, json!({}));
    let marked: Vec<_> = nodes(&slice).iter().map(|node| tainted(node, REMOVAL_TAINT, at(60))).collect();
    let mut late = tpu_pod("late", json!({ "nodeName": "slice-0" })).pod.as_ref().clone();
    late.status = Some(serde_json::from_value(json!({ "phase": "Running" })).unwrap());
    let plan = down(&slice, marked, vec![Arc::new(PodInfo::new(Arc::new(late)))], at(70));
    assert_eq!((plan.needed.len(), plan.evict), (4, vec![]), "a slice is kept as a whole");
}

#[test]
fn a_pool_keeps_its_minimum_and_a_static_pool_all_nodes() {
    let least = pool("p", "g2-standard-24", 2, 10, json!({ "minNodes": 2 }));
    assert_eq!(down(&least, nodes(&least), Vec::new(), at(0)), ScaleDown::default());
    let fixed = pool("p", "g2-standard-24", 2, 10, json!({ "static": true }));
    assert_eq!(down(&fixed, nodes(&fixed), Vec::new(), at(0)), ScaleDown::default());
}

#[test]
fn nodes_that_are_reserved_for_pods_of_a_request_are_kept_and_serve_no_other_pod() {
    let pool = pool("p", "g2-standard-24", 1, 2, json!({}));
    let scaling = configuration(json!({}));
    let idle = vec![tainted(&nodes(&pool)[0], CANDIDATE_TAINT, at(0))];
    let waits = vec![gpu_pod("waits", 2, json!({}))];
    let view = View::new(vec![pool.clone()], idle, Vec::new(), waits, site());
    assert!(plan_scale_up(&view, &scaling, at(100)).growths.is_empty(), "the pod fits on the idle node");
    assert_eq!(plan_scale_down(&view, &scaling.autoscaling, &BTreeMap::new(), at(100)).mark, ["p-0"]);
    let view = view.and_promised(vec![gpu_pod("promised", 2, json!({}))]);
    let down = plan_scale_down(&view, &scaling.autoscaling, &BTreeMap::new(), at(100));
    assert_eq!((down.mark, down.needed), (Vec::<String>::new(), vec!["p-0".to_owned()]));
    assert_eq!(plan_scale_up(&view, &scaling, at(100)).growths[0].to, 2);
}

#[test]
fn booked_nodes_are_kept_and_recent_growth_delays_removal() {
    let queued = pool(
        "p",
        "g2-standard-24",
        0,
        10,
        json!({ "provisioning": "queued", "resizeRequests": [{ "name": "r", "nodes": 1 }] }),
    );
    let mut node = template(&queued, &site(), "us-central1-a", "p-0");
    crate::pools::label_for_request(&mut node, "r");
    let idle = tainted(&node, CANDIDATE_TAINT, at(0));
    let view = View::new(vec![queued.clone()], vec![idle.clone()], Vec::new(), Vec::new(), site());
    let scaling =
        configuration(json!({ "autoscaling": { "unneededTime": "60s", "delayAfterAdd": "300s" } })).autoscaling;
    let booked = BTreeMap::from([("r".to_owned(), at(600))]);
    let plan = plan_scale_down(&view, &scaling, &booked, at(100));
    assert_eq!((plan.mark.len(), plan.due), (0, Some(at(600))));
    let mut grown = NodePool::clone(&queued);
    grown.annotations_mut().insert(SCALED_UP_AT_ANNOTATION.to_owned(), at(0).to_string());
    let view = View::new(vec![Arc::new(grown)], vec![idle], Vec::new(), Vec::new(), site());
    let plan = plan_scale_down(&view, &scaling, &BTreeMap::new(), at(100));
    assert_eq!((plan.mark.len(), plan.due), (0, Some(at(300))));
    let plan = plan_scale_down(&view, &scaling, &BTreeMap::new(), at(300));
    assert_eq!(plan.mark, ["p-0"]);
}

#[test]
fn an_empty_autoprovisioned_pool_is_deleted() {
    let new_pool = pool("nap", "g2-standard-24", 0, 10, json!({ "autoprovisioned": true }));
    assert_eq!(down(&new_pool, Vec::new(), Vec::new(), at(0)).delete_pools, ["nap"]);
}

#[test]
fn new_nodes_keep_capacity_for_their_daemon_pods() {
    let pools = [pool("cpu", "n2-standard-16", 0, 10, json!({}))];
    let pod = |name: &str, more: Value| gpu_pod(name, 0, more);
    let six = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "6"}}}]});
    let pending: Vec<_> = (0..4).map(|i| pod(&format!("p{i}"), six.clone())).collect();
    let daemon = |selector: Value| -> Arc<DaemonSet> {
        let container = json!({"name": "agent", "resources": {"requests": {"cpu": "8"}}});
        let template = json!({"spec": {"containers": [container], "nodeSelector": selector}});
        let metadata = json!({"name": "agent", "namespace": "ns", "uid": "u"});
        let spec = json!({"selector": {}, "template": template});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    };
    let nodes_for = |sets: Vec<Arc<DaemonSet>>| {
        let view = view(&pools, Vec::new(), pending.clone()).and_daemons(sets);
        growths(&scale_up(&view, &configuration(json!({}))))
    };
    assert_eq!(nodes_for(vec![]), [("cpu".into(), 0, 2, 4)]);
    assert_eq!(nodes_for(vec![daemon(json!({}))]), [("cpu".into(), 0, 4, 4)]);
    assert_eq!(nodes_for(vec![daemon(json!({"disk": "ssd"}))]), [("cpu".into(), 0, 2, 4)]);
}

fn tpu_pool(name: &str, nodes: i32, more: Value) -> Arc<NodePool> {
    let mut with = json!({ "tpuTopology": "4x4" });
    with.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pool(name, "ct6e-standard-4t", nodes, 4, with)
}

fn tpu_pod(name: &str, more: Value) -> Arc<PodInfo> {
    let resources = json!({ "requests": { "cpu": "8" }, "limits": { "google.com/tpu": 4 } });
    let mut spec = json!({
        "containers": [{ "name": "c", "resources": resources }],
        "tolerations": [{ "key": "google.com/tpu", "operator": "Exists" }],
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4" },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let pod: Pod =
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec })).unwrap();
    Arc::new(PodInfo::new(Arc::new(pod)))
}

#[test]
fn a_tpu_slice_grows_as_a_whole_or_not_at_all() {
    let pools = [tpu_pool("slice", 0, json!({}))];
    let pods = |count: usize| (0..count).map(|i| tpu_pod(&format!("p{i}"), json!({}))).collect::<Vec<_>>();
    for count in [1, 4] {
        let plan = scale_up(&view(&pools, Vec::new(), pods(count)), &configuration(json!({})));
        assert_eq!(growths(&plan), [("slice".into(), 0, 4, count)], "{count} pods");
    }
    let plan = scale_up(&view(&pools, Vec::new(), pods(6)), &configuration(json!({})));
    assert_eq!((growths(&plan), plan.unhelped.len()), (vec![("slice".into(), 0, 4, 4)], 2));
    // Three machines are less than a slice.
    let limited = configuration(json!({ "autoscaling": { "maxNodesTotal": 3 } }));
    assert_eq!(growths(&scale_up(&view(&pools, Vec::new(), pods(4)), &limited)), []);
    let chips = json!({ "nodeAutoProvisioning": { "enabled": true, "limits": {
        "cpu": { "max": "10000" }, "memory": { "max": "100Ti" }, "tpu-v6e-slice": { "max": "12" } } } });
    assert_eq!(growths(&scale_up(&view(&pools, Vec::new(), pods(4)), &configuration(chips))), []);
}

#[test]
fn auto_provisioning_creates_one_pool_per_tpu_slice_within_its_limits() {
    let limits = |chips: &str| {
        configuration(json!({ "nodeAutoProvisioning": { "enabled": true, "limits": {
            "cpu": { "max": "10000" }, "memory": { "max": "100Ti" }, "tpu-v6e-slice": { "max": chips } } } }))
    };
    let pods: Vec<_> = (0..8).map(|i| tpu_pod(&format!("p{i}"), json!({}))).collect();
    let plan = scale_up(&view(&[], Vec::new(), pods.clone()), &limits("64"));
    let made: Vec<(i32, i32, usize)> = plan.growths.iter().map(|g| (g.from, g.to, g.pods.len())).collect();
    assert_eq!(made, [(0, 4, 4), (0, 4, 4)]);
    let (first, second) = (&plan.growths[0], &plan.growths[1]);
    assert_eq!(second.pool, format!("{}-2", first.pool));
    let spec = &first.new_pool.as_ref().unwrap().spec;
    assert_eq!((spec.machine_type.as_deref(), spec.slice_hosts()), (Some("ct6e-standard-4t"), 4));
    assert_eq!(spec.problems("spec"), []);
    let node = template(first.new_pool.as_ref().unwrap(), &site(), "us-central1-a", "n");
    assert_eq!(node.labels()["cloud.google.com/gke-tpu-topology"], "4x4");
    let one = scale_up(&view(&[], Vec::new(), pods.clone()), &limits("31"));
    assert_eq!((one.growths.len(), one.unhelped.len()), (1, 4));
    let none = scale_up(&view(&[], Vec::new(), pods), &limits("15"));
    assert_eq!(none.growths, []);
    let why = none.unhelped.values().next().unwrap();
    let limit = "4 more machines need 16 of tpu-v6e-slice; the limit is 15, and the cluster has 0";
    assert!(why.ends_with(&format!("the limits of node auto-provisioning are reached: {limit}")), "{why}");
}

#[test]
fn a_tpu_slice_shrinks_as_a_whole_when_all_its_machines_are_idle() {
    let slice = tpu_pool("slice", 4, json!({}));
    let ready = nodes(&slice);
    let work = vec![Arc::new(PodInfo::new(Arc::new({
        let mut object = tpu_pod("work", json!({ "nodeName": "slice-0" })).pod.as_ref().clone();
        object.status = Some(serde_json::from_value(json!({ "phase": "Running" })).unwrap());
        object
    })))];
    assert_eq!(down(&slice, ready.clone(), work, at(0)).candidates, Vec::<String>::new());
    let found = down(&slice, ready.clone(), Vec::new(), at(0));
    assert_eq!(found.candidates, ["slice-0", "slice-1", "slice-2", "slice-3"]);
    let idle: Vec<_> = ready.iter().map(|node| tainted(node, CANDIDATE_TAINT, at(0))).collect();
    assert_eq!(down(&slice, idle, Vec::new(), at(60)).mark.len(), 4);
    let mut marked: Vec<_> = ready.iter().map(|node| tainted(node, REMOVAL_TAINT, at(60))).collect();
    let gone = down(&slice, marked.clone(), Vec::new(), at(70)).shrink;
    assert_eq!(gone.iter().map(|(name, spec)| (name.as_str(), spec.nodes)).collect::<Vec<_>>(), [("slice", Some(0))]);
    marked[3] = ready[3].clone();
    assert_eq!(down(&slice, marked, Vec::new(), at(70)).shrink, []);
}

#[test]
fn a_pool_out_of_stock_gives_up_its_order_and_another_pool_grows_meanwhile() {
    let short = |failures: i32, missing: i32| {
        let mut pool = pool("cheap", "g2-standard-24", 2, 10, json!({})).as_ref().clone();
        let shortage = json!({ "missing": missing, "since": at(0).to_string(), "failures": failures });
        pool.status.as_mut().unwrap().shortage = Some(serde_json::from_value(shortage).unwrap());
        Arc::new(pool)
    };
    let dear = pool("dear", "g2-standard-48", 0, 10, json!({}));
    let plan = scale_up(&view(&[short(1, 2), dear.clone()], Vec::new(), Vec::new()), &configuration(json!({})));
    assert_eq!(plan.withdraw, BTreeMap::from([("cheap".to_owned(), 0)]));
    let pending = || (0..3).map(|i| gpu_pod(&format!("p{i}"), 2, json!({}))).collect::<Vec<_>>();
    let grown = |failures: i32, seconds: i64| {
        let mut empty = short(failures, 0).as_ref().clone();
        empty.spec.nodes = Some(0);
        let view = view(&[Arc::new(empty), dear.clone()], Vec::new(), pending());
        plan_scale_up(&view, &configuration(json!({})), at(seconds)).growths[0].pool.clone()
    };
    assert_eq!((grown(1, 299).as_str(), grown(1, 300).as_str()), ("dear", "cheap"));
    assert_eq!((grown(3, 1199).as_str(), grown(3, 1200).as_str()), ("dear", "cheap"));
    assert_eq!((grown(30, 1799).as_str(), grown(30, 1800).as_str()), ("dear", "cheap"));
    let only = view(
        &[{
            let mut empty = short(1, 0).as_ref().clone();
            empty.spec.nodes = Some(0);
            Arc::new(empty)
        }],
        Vec::new(),
        pending(),
    );
    let plan = plan_scale_up(&only, &configuration(json!({})), at(10));
    assert_eq!(plan.due, Some(at(300)));
    let why = plan.unhelped.values().next().unwrap();
    assert_eq!(why, "pod didn't trigger scale-up: 1 in backoff after failed scale-up");
}
