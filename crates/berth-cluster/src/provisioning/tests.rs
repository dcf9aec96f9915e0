//! Tests of the steps of ProvisioningRequests, for each class.

use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::berth::{ClusterConfiguration, NodePool, NodePoolStatus};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PodTemplate};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::*;
use crate::Site;
use crate::autoscaler::View;
use crate::placement::PodInfo;
use crate::pools::template;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn request(class: &str, count: i32, parameters: Value) -> ProvisioningRequest {
    serde_json::from_value(json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": { "name": "job-x-check-1", "namespace": "ns", "uid": "u", "creationTimestamp": at(0).to_string() },
        "spec": { "provisioningClassName": class, "parameters": parameters, "podSets": [{ "count": count, "podTemplateRef": { "name": "t" } }] },
    }))
    .unwrap()
}

/// The pods of a request, with 4 GPUs each.
fn pods(request: &ProvisioningRequest) -> Vec<Arc<PodInfo>> {
    let template: PodTemplate = serde_json::from_value(json!({ "template": { "spec": {
        "tolerations": [{ "key": "cloud.google.com/gke-queued", "operator": "Exists" }],
        "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "4" } } }] } } }))
    .unwrap();
    requested_pods(request, false, |_| Some(Arc::new(template.clone()))).unwrap()
}

/// A pool of machines with 4 L4 GPUs each, of which `nodes` exist.
fn view(nodes: i32, max: i32, provisioning: &str) -> View {
    view_with(nodes, json!({ "nodes": nodes, "maxNodes": max, "provisioning": provisioning }))
}

/// A pool with these fields, of whose machines `nodes` exist.
fn view_with(nodes: i32, mut spec: Value) -> View {
    spec["machineType"] = "g2-standard-48".into();
    let mut pool = NodePool::new("pool", serde_json::from_value(spec).unwrap());
    pool.status = Some(NodePoolStatus { nodes, ..Default::default() });
    let site = Site { cluster: "c".into(), region: "r".into(), version: "v1".into(), seed: 1, ..Site::default() };
    let nodes: Vec<Arc<Node>> = (0..nodes).map(|i| Arc::new(template(&pool, &site, "r-a", &format!("n{i}")))).collect();
    View::new(vec![Arc::new(pool)], nodes, Vec::new(), Vec::new(), site)
}

/// Executes steps at this time, as the controller would, until the first order or until no step is
/// due. Returns the written conditions and the order.
fn live(
    request: &mut ProvisioningRequest,
    view: &View,
    configuration: &ClusterConfiguration,
    now: Timestamp,
) -> (Vec<String>, Option<Order>) {
    let mut ordered = None;
    loop {
        let world = World {
            view,
            class: configuration.provisioning_class(&request.spec.provisioning_class_name),
            pods: Ok(pods(request)),
            is_consumed: false,
            now,
        };
        match step(request, &world) {
            Step::Write { status, order, .. } => {
                request.status = Some(status);
                ordered = order;
                if ordered.is_some() {
                    // The order changes the pool, which the view does not show.
                    break;
                }
            }
            Step::Until(_) | Step::Unserved => break,
        }
    }
    let status = request.status.clone().unwrap_or_default();
    let said = status.conditions.iter().map(|c| format!("{}={}/{}", c.type_, c.status, c.reason));
    (said.collect(), ordered)
}

#[test]
fn check_capacity_counts_capacity_reserved_for_others() {
    let configuration = ClusterConfiguration::default();
    let view = view(1, 1, "onDemand");
    let mut first = request(CHECK_CAPACITY, 1, json!({}));
    let (said, _) = live(&mut first, &view, &configuration, at(60));
    assert_eq!(said, ["Accepted=True/Accepted"], "the check takes its time");
    let (said, _) = live(&mut first, &view, &configuration, at(120));
    assert_eq!(said, ["Accepted=True/Accepted", "Provisioned=True/CapacityIsFound"]);
    let view = view.and_promised(pods(&first));
    let mut second = request(CHECK_CAPACITY, 1, json!({}));
    live(&mut second, &view, &configuration, at(60));
    let (said, _) = live(&mut second, &view, &configuration, at(120));
    assert_eq!(said, ["Accepted=True/Accepted", "Provisioned=False/CapacityIsNotFound"]);
    let (said, _) = live(&mut first, &view, &configuration, at(800));
    assert_eq!(said.last().unwrap(), "BookingExpired=True/CapacityReservationTimeExpired");
    let mut once = request(CHECK_CAPACITY, 2, json!({ "noRetry": "true" }));
    live(&mut once, &view, &configuration, at(60));
    assert_eq!(live(&mut once, &view, &configuration, at(120)).0.last().unwrap(), "Failed=True/CapacityIsNotFound");
}

#[test]
fn an_atomic_scale_up_orders_all_or_nothing() {
    let configuration = ClusterConfiguration::default();
    let mut fits = request(ATOMIC_SCALE_UP, 3, json!({}));
    live(&mut fits, &view(0, 3, "onDemand"), &configuration, at(60));
    let (_, order) = live(&mut fits, &view(0, 3, "onDemand"), &configuration, at(120));
    assert_eq!(order.map(|order| (order.nodes, order.resize_request)), Some((3, None)));
    let (said, _) = live(&mut fits, &view(3, 3, "onDemand"), &configuration, at(300));
    assert_eq!(said.last().unwrap(), "Provisioned=True/CapacityIsProvisioned");
    let mut too_much = request(ATOMIC_SCALE_UP, 4, json!({}));
    live(&mut too_much, &view(0, 3, "onDemand"), &configuration, at(60));
    let (said, order) = live(&mut too_much, &view(0, 3, "onDemand"), &configuration, at(120));
    assert_eq!((said.last().unwrap().as_str(), order), ("Provisioned=False/CapacityIsNotFound", None));
}

#[test]
fn an_atomic_scale_up_whose_order_was_withdrawn_waits_for_capacity_again() {
    let configuration = ClusterConfiguration::default();
    let mut request = request(ATOMIC_SCALE_UP, 3, json!({}));
    live(&mut request, &view(0, 3, "onDemand"), &configuration, at(60));
    live(&mut request, &view(0, 3, "onDemand"), &configuration, at(120));
    // The cloud had two machines only, so the autoscaler has reduced the order to two.
    let short = view_with(2, json!({ "nodes": 2, "maxNodes": 3, "supply": { "machines": 2 } }));
    let (said, order) = live(&mut request, &short, &configuration, at(180));
    assert_eq!(said, ["Accepted=True/Accepted", "Provisioned=False/CapacityIsNotFound"]);
    assert_eq!((order, request.status.as_ref().unwrap().provisioning_class_details.len()), (None, 0));
    // The third machine is ordered when the cloud has it.
    let (_, order) = live(&mut request, &view(2, 5, "onDemand"), &configuration, at(240));
    assert_eq!(order.map(|order| order.nodes), Some(3), "the two machines may be in use by then");
}

#[test]
fn a_waiting_request_has_an_estimate_if_the_supply_follows_a_schedule() {
    let configuration = ClusterConfiguration::default();
    let message = |supply: Value| {
        let mut request = request(QUEUED, 2, json!({}));
        let view = view_with(1, json!({ "nodes": 1, "maxNodes": 4, "provisioning": "queued", "supply": supply }));
        live(&mut request, &view, &configuration, at(10));
        let (_, order) = live(&mut request, &view, &configuration, at(900));
        assert_eq!(order, None);
        request.status.unwrap().conditions[1].message.clone()
    };
    let waits = "Waiting for resources. Currently there are not enough resources available to fulfill the request.";
    let none_until = |end: i64| json!({ "machines": 0, "end": at(end).to_string() });
    // The machines are usable 130 s after their order.
    let estimate = format!("{waits} ETA: {}.", at(3600 + 130));
    assert_eq!(message(json!({ "periods": [none_until(3600)] })), estimate);
    // One machine is in use, so two are not enough.
    let two = json!({ "machines": 2, "end": at(7200).to_string() });
    assert_eq!(message(json!({ "periods": [none_until(3600), two] })), format!("{waits} ETA: {}.", at(7200 + 130)));
    assert_eq!(message(json!({ "machines": 1 })), waits);
    let random = json!({ "min": 0, "max": 0, "every": "1h" });
    assert_eq!(message(json!({ "periods": [none_until(3600)], "random": random })), waits);
    let late = at(8 * 24 * 3600).as_second() - at(0).as_second();
    assert_eq!(message(json!({ "periods": [none_until(late)] })), waits);
}

#[test]
fn a_request_with_a_parameter_that_is_no_number_fails_at_once() {
    let configuration = ClusterConfiguration::default();
    let mut request = request(QUEUED, 1, json!({ "maxRunDurationSeconds": "1h" }));
    let (said, _) = live(&mut request, &view(0, 3, "queued"), &configuration, at(10));
    assert_eq!(said, ["Failed=True/InvalidParameters"]);
    let message = &request.status.unwrap().conditions[0].message;
    assert!(message.starts_with("spec.parameters[maxRunDurationSeconds]: \"1h\" is not"), "{message}");
}

#[test]
fn a_queued_request_waits_while_no_pool_has_capacity_for_all_of_it() {
    let configuration = ClusterConfiguration::default();
    let mut request = request(QUEUED, 4, json!({}));
    live(&mut request, &view(1, 4, "queued"), &configuration, at(10));
    let (said, order) = live(&mut request, &view(1, 4, "queued"), &configuration, at(900));
    assert_eq!(said, ["Accepted=True/SuccessfullyQueued", "Provisioned=False/ResourcePoolExhausted"]);
    assert_eq!(order, None);
    let (_, order) = live(&mut request, &view(0, 4, "queued"), &configuration, at(960));
    let order = order.unwrap();
    assert_eq!((order.nodes, order.zone.as_deref()), (4, Some("r-a")));
    let (name, until) = booked(&request, configuration.provisioning_class(QUEUED).unwrap(), at(960)).unwrap();
    assert_eq!((Some(name), until), (order.resize_request, Timestamp::MAX));
}

#[test]
fn requests_fail_on_purpose_up_to_the_configured_attempt() {
    let spec =
        json!({ "provisioningClasses": [{ "name": QUEUED, "failure": { "message": "no stock", "attempts": 1 } }] });
    let configuration = ClusterConfiguration::from_value(spec).unwrap();
    let mut first = request(QUEUED, 1, json!({}));
    live(&mut first, &view(0, 3, "queued"), &configuration, at(10));
    assert_eq!(
        live(&mut first, &view(0, 3, "queued"), &configuration, at(60)).0.last().unwrap(),
        "Failed=True/OutOfResources"
    );
    let mut second = request(QUEUED, 1, json!({}));
    second.metadata.name = Some(second.name_any().replace("-1", "-2"));
    live(&mut second, &view(0, 3, "queued"), &configuration, at(10));
    assert!(live(&mut second, &view(0, 3, "queued"), &configuration, at(60)).1.is_some());
}

#[test]
fn a_request_of_a_class_without_provider_is_reported_after_a_while() {
    let view = view(0, 3, "queued");
    let mut request = request("mine.example.com", 1, json!({}));
    let world = |now| World { view: &view, class: None, pods: Ok(Vec::new()), is_consumed: false, now };
    assert_eq!(step(&request, &world(at(10))), Step::Until(Some(at(30))));
    assert_eq!(step(&request, &world(at(30))), Step::Unserved);
    // Another provider serves the class.
    let accepted = json!([{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    request.status = Some(serde_json::from_value(json!({"conditions": accepted})).unwrap());
    assert_eq!(step(&request, &world(at(30))), Step::Until(None));
}

#[test]
fn a_queued_request_names_the_taint_that_its_pods_do_not_tolerate() {
    let configuration = ClusterConfiguration::default();
    let empty = view(0, 3, "queued");
    let world = |pods| World {
        view: &empty,
        class: configuration.provisioning_class(QUEUED),
        pods: Ok(pods),
        is_consumed: false,
        now: at(900),
    };
    let template: PodTemplate = serde_json::from_value(json!({ "template": { "spec": {
        "containers": [{ "name": "c", "resources": { "limits": { "nvidia.com/gpu": "4" } } }] } } }))
    .unwrap();
    let intolerant = |request: &ProvisioningRequest, adds| {
        requested_pods(request, adds, |_| Some(Arc::new(template.clone()))).unwrap()
    };
    let mut waits = request(QUEUED, 1, json!({}));
    live(&mut waits, &view(0, 3, "queued"), &configuration, at(10));
    let Step::Write { status, order: None, .. } = step(&waits, &world(intolerant(&waits, false))) else {
        panic!("the obstacle is written")
    };
    let condition = status.conditions.last().unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "UntoleratedTaint"));
    assert_eq!(
        condition.message,
        "No node pool with queued provisioning can run the pods: pool pool has taint \
         cloud.google.com/gke-queued=true:NoSchedule, which the pods do not tolerate. Add the toleration to the pods."
    );
    // The class adds the toleration, so the machines are ordered.
    let Step::Write { order: Some(order), .. } = step(&waits, &world(intolerant(&waits, true))) else {
        panic!("the machines are ordered")
    };
    assert_eq!(order.nodes, 1);
}

#[test]
fn only_a_request_larger_than_every_pool_reports_no_matching_node_pool() {
    let configuration = ClusterConfiguration::default();
    let mut too_large = request(QUEUED, 4, json!({}));
    live(&mut too_large, &view(0, 3, "queued"), &configuration, at(10));
    let (said, _) = live(&mut too_large, &view(0, 3, "queued"), &configuration, at(900));
    assert_eq!(said, ["Accepted=True/SuccessfullyQueued", "Provisioned=False/NoMatchingNodePool"]);
    let message = &too_large.status.as_ref().unwrap().conditions[1].message;
    assert!(message.contains("pool pool has at most 3 machines, and the pods need 4"), "{message}");
    let mut waits = request(QUEUED, 2, json!({}));
    let used = view(2, 3, "queued");
    live(&mut waits, &used, &configuration, at(10));
    let (said, _) = live(&mut waits, &used, &configuration, at(900));
    assert_eq!(said, ["Accepted=True/SuccessfullyQueued", "Provisioned=False/ResourcePoolExhausted"]);
}

#[test]
fn machines_that_the_cloud_takes_back_revoke_a_provisioned_request_and_return_another_to_the_queue() {
    let configuration = ClusterConfiguration::default();
    let empty = view(0, 4, "queued");
    let mut held = request(QUEUED, 1, json!({}));
    live(&mut held, &empty, &configuration, at(10));
    let (_, order) = live(&mut held, &empty, &configuration, at(60));
    let resize = order.unwrap().resize_request.unwrap();
    let pool = empty.pools["pool"].clone();
    let with_node = |end: Option<i64>| {
        let mut node = template(&pool, &empty.site, "r-a", "n0");
        crate::pools::label_for_request(&mut node, &resize);
        if let Some(end) = end {
            let annotations = node.annotations_mut();
            annotations.insert(berth_api::berth::ENDS_AT_ANNOTATION.into(), at(end).to_string());
            annotations.insert(berth_api::berth::ENDS_BECAUSE_ANNOTATION.into(), "Reclaimed".into());
        }
        View::new(vec![pool.clone()], vec![Arc::new(node)], Vec::new(), Vec::new(), empty.site.clone())
    };
    let next = |request: &ProvisioningRequest, view: &View, now: i64| {
        let pods = Ok(pods(request));
        let class = configuration.provisioning_class(QUEUED);
        step(request, &World { view, class, pods, is_consumed: true, now: at(now) })
    };
    let withdrawn = Some(("pool".to_owned(), resize.clone()));
    // If the cloud takes machines before all are ready, the request waits again.
    let Step::Write { status, withdraw, .. } = next(&held, &with_node(Some(100)), 100) else {
        panic!("it waits again")
    };
    assert_eq!((withdraw, status.provisioning_class_details.len()), (withdrawn.clone(), 0));
    // The machines of the first order must be deleted before a second order.
    let mut waits = held.clone();
    waits.status = Some(status);
    assert_eq!(next(&waits, &with_node(Some(100)), 100), Step::Until(Some(at(101))));
    assert!(matches!(next(&waits, &empty, 101), Step::Write { order: Some(_), .. }));
    // If it takes them after all were ready, the request's capacity is revoked.
    live(&mut held, &with_node(None), &configuration, at(100));
    assert_eq!(next(&held, &with_node(Some(500)), 400), Step::Until(Some(at(500))));
    let Step::Write { status, withdraw, .. } = next(&held, &with_node(Some(500)), 500) else { panic!("it is revoked") };
    let revoked = status.conditions.last().unwrap();
    assert_eq!(
        (revoked.type_.as_str(), revoked.reason.as_str(), withdraw),
        ("CapacityRevoked", "Reclaimed", withdrawn)
    );
}

#[test]
fn a_request_fails_after_its_longest_wait_and_withdraws_its_order() {
    let spec = json!({ "provisioningClasses": [{ "name": QUEUED, "maxWait": "1h" }] });
    let configuration = ClusterConfiguration::from_value(spec).unwrap();
    let empty = view(0, 4, "queued");
    let mut ordered = request(QUEUED, 1, json!({}));
    live(&mut ordered, &empty, &configuration, at(10));
    live(&mut ordered, &empty, &configuration, at(60));
    let pods = Ok(pods(&ordered));
    let world = World {
        view: &empty,
        class: configuration.provisioning_class(QUEUED),
        pods,
        is_consumed: false,
        now: at(3600),
    };
    let Step::Write { status, withdraw, .. } = step(&ordered, &world) else { panic!("it fails") };
    let failed = status.conditions.last().unwrap();
    assert_eq!((failed.type_.as_str(), failed.reason.as_str(), withdraw.is_some()), ("Failed", "Expired", true));
    let long = json!({ "provisioningClasses": [{ "name": QUEUED, "maxWait": "169h" }] });
    assert!(ClusterConfiguration::from_value(long).unwrap_err().to_string().contains("more than 7 days"));
}
