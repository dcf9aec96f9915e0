//! Tests of plans of pools with a limited supply of machines, and of TPU slices.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{ENDS_AT_ANNOTATION, NodePool, NodePoolStatus};
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::*;
use crate::Site;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A pool with a status, as after its first plan.
fn pool(spec: Value) -> NodePool {
    let mut fields = json!({ "machineType": "g2-standard-24", "maxNodes": 10 });
    fields.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let mut pool = NodePool::new("p", serde_json::from_value(fields).unwrap());
    assert_eq!(pool.spec.problems("spec"), []);
    pool.status = Some(NodePoolStatus::default());
    pool
}

fn slice(spec: Value) -> NodePool {
    let mut fields = json!({ "machineType": "ct6e-standard-4t", "tpuTopology": "4x4", "maxNodes": 4 });
    fields.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pool(fields)
}

fn planned(pool: &NodePool, nodes: &[Arc<Node>], now: Timestamp) -> PoolPlan {
    plan(pool, nodes, &BTreeMap::new(), &Site::default(), &Draws::default(), now)
}

/// Ready nodes that were created at the given times.
fn nodes(pool: &NodePool, created: &[i64], request: Option<&str>) -> Vec<Arc<Node>> {
    let node = |(i, seconds): (usize, &i64)| {
        let mut node = template(pool, &Site::default(), "-a", &format!("n{i}"));
        node.metadata.creation_timestamp = Some(stamp(at(*seconds)));
        if let Some(request) = request {
            label_for_request(&mut node, request);
        }
        Arc::new(node)
    };
    created.iter().enumerate().map(node).collect()
}

/// The nodes after the announcements of a plan.
fn announced(nodes: &[Arc<Node>], plan: &PoolPlan) -> Vec<Arc<Node>> {
    let with = |node: &Arc<Node>| {
        let mut node = node.as_ref().clone();
        if let Some((_, end, _)) = plan.announce.iter().find(|(name, ..)| *name == node.name_any()) {
            node.annotations_mut().insert(ENDS_AT_ANNOTATION.into(), end.to_string());
        }
        Arc::new(node)
    };
    nodes.iter().map(with).collect()
}

fn names(plan: &PoolPlan) -> Vec<&str> {
    plan.announce.iter().map(|(name, ..)| name.as_str()).collect()
}

#[test]
fn an_order_beyond_the_stock_is_fulfilled_in_part_and_reported_once() {
    let mut pool = pool(json!({ "nodes": 5, "supply": { "machines": 3 } }));
    let first = planned(&pool, &[], at(0));
    assert_eq!((first.status.creating.len(), first.out_of_stock, first.status.stock), (3, Some(2), Some(3)));
    pool.status = Some(first.status);
    let again = planned(&pool, &[], at(1));
    assert_eq!((again.status.creating.len(), again.out_of_stock), (3, None));
    let shortage = again.status.shortage.clone().unwrap();
    assert_eq!((shortage.missing, shortage.since.0, shortage.failures), (2, at(0), 1));
    // The autoscaler withdraws the order and tries again later.
    pool.status = Some(again.status);
    pool.spec.nodes = Some(3);
    let withdrawn = planned(&pool, &[], at(10));
    assert_eq!(withdrawn.status.shortage.as_ref().unwrap().missing, 0);
    pool.status = Some(withdrawn.status);
    pool.spec.nodes = Some(4);
    let second = planned(&pool, &[], at(310));
    let shortage = second.status.shortage.clone().unwrap();
    assert_eq!((second.out_of_stock, shortage.since.0, shortage.failures), (Some(1), at(310), 2));
    pool.status = Some(second.status);
    pool.spec.supply = None;
    let stocked = planned(&pool, &[], at(320));
    assert_eq!((stocked.status.creating.len(), stocked.status.shortage, stocked.status.stock), (4, None, None));
}

#[test]
fn a_resize_request_gets_all_its_machines_or_none() {
    let request = json!([{ "name": "r", "nodes": 3, "zone": "-a" }]);
    let mut pool = pool(json!({ "provisioning": "queued", "resizeRequests": request, "supply": { "machines": 2 } }));
    let none = planned(&pool, &[], at(0));
    assert_eq!((none.status.creating.len(), none.status.shortage), (0, None));
    pool.spec.supply.as_mut().unwrap().machines = Some(3);
    assert_eq!(planned(&pool, &[], at(0)).status.creating.len(), 3);
}

#[test]
fn if_the_stock_shrinks_the_newest_machines_are_taken_back_after_their_notice_if_the_pool_allows_it() {
    let mut pool = pool(json!({ "nodes": 3, "supply": { "machines": 1, "reclaim": { "notice": "20s" } } }));
    let running = nodes(&pool, &[0, 20, 10], None);
    let notice = planned(&pool, &running, at(100));
    assert_eq!((names(&notice), notice.remove.len(), notice.due), (vec!["n1", "n2"], 0, Some(at(120))));
    let warned = announced(&running, &notice);
    let waits = planned(&pool, &warned, at(110));
    assert_eq!((names(&waits).len(), waits.remove.len(), waits.due), (0, 0, Some(at(120))));
    let gone = planned(&pool, &warned, at(120));
    assert_eq!(gone.remove, ["n1", "n2"]);
    assert_eq!((gone.out_of_stock, gone.status.creating.len()), (Some(2), 0), "no replacement is in stock");
    pool.spec.supply.as_mut().unwrap().reclaim = None;
    assert_eq!(planned(&pool, &running, at(100)).announce, []);
}

#[test]
fn a_machine_is_replaced_when_its_maximum_run_time_is_over() {
    let pool = pool(json!({ "nodes": 1, "maxRunDuration": "1h" }));
    let running = nodes(&pool, &[0], None);
    let early = planned(&pool, &running, at(0));
    assert_eq!((early.announce.len(), early.due), (0, Some(at(3570))));
    let notice = planned(&pool, &running, at(3570));
    assert_eq!(notice.announce, [("n0".to_owned(), at(3600), MAX_RUN_DURATION.to_owned())]);
    let gone = planned(&pool, &announced(&running, &notice), at(3600));
    assert_eq!((gone.remove, gone.status.creating.len()), (vec!["n0".to_owned()], 1));
}

#[test]
fn the_machines_of_a_request_end_together_and_wait_for_its_withdrawal() {
    let request = json!([{ "name": "r", "nodes": 2, "zone": "-a" }]);
    let spec = json!({ "provisioning": "queued", "resizeRequests": request, "maxRunDuration": "1h" });
    let mut pool = pool(spec);
    let running = nodes(&pool, &[0, 5], Some("r"));
    let notice = planned(&pool, &running, at(3590));
    assert_eq!(names(&notice), ["n0", "n1"]);
    let warned = announced(&running, &notice);
    assert_eq!(planned(&pool, &warned, at(3700)).remove, Vec::<String>::new());
    pool.spec.resize_requests.clear();
    assert_eq!(planned(&pool, &warned, at(3700)).remove.len(), 2);
}

#[test]
fn a_slice_is_ordered_as_a_whole_and_created_anew_when_a_machine_is_lost() {
    let mut pool = slice(json!({ "nodes": 1, "supply": { "machines": 3 } }));
    let short = planned(&pool, &[], at(0));
    assert_eq!((short.status.creating.len(), short.out_of_stock), (0, Some(4)));
    pool.spec.supply = None;
    assert_eq!(planned(&pool, &[], at(0)).status.creating.len(), 4);
    let broken = nodes(&pool, &[0, 0, 0], None);
    let anew = planned(&pool, &broken, at(100));
    assert_eq!((anew.remove.len(), anew.status.creating.len()), (3, 0));
    pool.spec.nodes = Some(0);
    assert_eq!(planned(&pool, &nodes(&pool, &[0; 4], None), at(100)).remove.len(), 4);
}

#[test]
fn a_number_of_machines_that_is_no_whole_slice_is_rejected() {
    let problems = |spec: Value| -> Vec<String> {
        let mut fields = json!({ "machineType": "ct6e-standard-4t" });
        fields.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let pool = NodePool::new("p", serde_json::from_value(fields).unwrap());
        pool.spec.problems("spec").iter().map(ToString::to_string).collect()
    };
    assert_eq!(problems(json!({ "tpuTopology": "2x2", "maxNodes": 7 })), [""; 0], "one machine is the whole slice");
    assert_eq!(problems(json!({ "tpuTopology": "4x4" })), [""; 0]);
    let found = problems(json!({ "tpuTopology": "4x4", "maxNodes": 6 }));
    let of_one = "the pool is one TPU slice of topology 4x4, which has 4 machines and exists as a whole or not at all";
    assert_eq!(found, [format!("spec.maxNodes: 6 is not 0 or 4: {of_one}")]);
    for (topology, part) in [("4by4", "is not a topology"), ("3x3", "9 chips, which is not a multiple of the 4 chips")]
    {
        let found = problems(json!({ "tpuTopology": topology }));
        assert!(found.len() == 1 && found[0].contains(part), "{found:?}");
    }
    let gpu = problems(json!({ "machineType": "g2-standard-24", "tpuTopology": "4x4" }));
    assert!(gpu[0].contains("nvidia-l4 has no topology"), "{gpu:?}");
}
