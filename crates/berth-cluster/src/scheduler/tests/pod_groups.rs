//! PodGroups, pod by pod.

use std::collections::BTreeSet;

use berth_runtime::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{START, World};

#[test]
fn a_pod_group_waits_until_enough_of_its_pods_exist() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.members("train", 2, 2);
    world.settle();
    assert!(world.message("train-0").contains("PodGroup not found"), "{}", world.message("train-0"));
    world.group("train", json!({ "minMember": 3 }));
    world.settle();
    let expected = "0/2 nodes are available: pre-filter pod train-0 cannot find enough sibling pods, current pods \
                    number: 2, minMember of group: 3. preemption: 0/2 nodes are available: 2 Preemption is not helpful \
                    for scheduling.";
    assert_eq!(world.message("train-0"), expected);
    let gated = json!({ "schedulingGates": [{ "name": "wait" }] });
    let label = Some(("scheduling.x-k8s.io/pod-group", "train"));
    world.pod("train-2", "scheduler-plugins-scheduler", label, 2, gated);
    world.change("train-0", |pod| pod["metadata"]["labels"]["again"] = json!("1"));
    world.settle();
    assert!(world.message("train-0").contains("cannot proceed due to gated pods in the same PodGroup"));
    world.change("train-2", |pod| pod["spec"]["schedulingGates"] = json!(null));
    world.settle();
    assert_eq!(world.bound.len(), 3);
    assert!(world.events.is_empty(), "no pod had to wait for others: {:?}", world.events);
}

#[test]
fn a_gang_that_does_not_fit_holds_nothing_and_smaller_pods_get_the_room() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.group("train", json!({ "minMember": 3 }));
    world.members("train", 3, 4);
    world.now += SignedDuration::from_secs(1);
    world.pod("small", "scheduler-plugins-scheduler", None, 4, json!({}));
    world.pod("other", "default-scheduler", None, 4, json!({}));
    world.settle();
    assert_eq!(world.nodes_of("train", 3), "- - -");
    assert_eq!(world.bound, ["small", "other"]);
    assert_eq!(world.message("train-0"), "0/1 nodes are available: 1 optimistic rejection in PostFilter.");
    assert_eq!(
        world.message("train-2"),
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 No preemption victims found \
         for incoming pod. PodGroup ns/train gets rejected due to Pod train-2 is unschedulable even after PostFilter"
    );
    world.delete("small");
    world.delete("other");
    world.node("c", 4);
    world.settle();
    assert_eq!(world.bound.len(), 5, "{}", world.nodes_of("train", 3));
}

#[test]
fn the_pods_of_two_gangs_do_not_block_each_other() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4), ("c", 4), ("d", 4)]);
    for group in ["blue", "green"] {
        world.group(group, json!({ "minMember": 3 }));
    }
    // The pods arrive in turns, and are tried in the order of their groups.
    for number in 0..3 {
        for group in ["green", "blue"] {
            let label = Some(("scheduling.x-k8s.io/pod-group", group));
            world.pod(&format!("{group}-{number}"), "scheduler-plugins-scheduler", label, 4, json!({}));
        }
    }
    world.settle();
    assert_eq!((world.nodes_of("blue", 3), world.nodes_of("green", 3)), ("a b c".into(), "- - -".into()));
    for number in 0..3 {
        world.delete(&format!("blue-{number}"));
    }
    world.settle();
    assert_eq!(world.bound.len(), 6, "{}", world.nodes_of("green", 3));
}

/// The coscheduling profile with these arguments.
fn coscheduling(args: Value) -> Value {
    json!({ "profiles": [{ "schedulerName": "scheduler-plugins-scheduler",
        "pluginConfig": [{ "name": "Coscheduling", "args": args }] }] })
}

#[test]
fn a_small_gap_keeps_the_nodes_reserved_until_the_timeout() {
    let scheduler = coscheduling(json!({ "permitWaitingTimeSeconds": 300, "podGroupRejectPercentage": 34 }));
    let mut world = World::with_nodes(scheduler, &[("a", 4), ("b", 4)]);
    world.group("train", json!({ "minMember": 3 }));
    world.members("train", 3, 4);
    world.settle();
    assert_eq!(world.nodes_of("train", 3), "- - -");
    assert_eq!(
        world.events["train-0"],
        "Node a is reserved for the pod until 3 pods of PodGroup ns/train have a node; 2 have one"
    );
    world.pod("late", "default-scheduler", None, 4, json!({}));
    world.pass(299);
    assert_eq!(world.node_of("late"), None, "the nodes are reserved");
    assert_eq!(world.state.due(), Some(START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(300)));
    world.pass(1);
    assert_eq!(world.node_of("late"), Some("a"));
    assert_eq!(
        world.message("train-0"),
        "0/1 nodes are available: 1 rejected due to timeout after waiting 5m0s at plugin Coscheduling."
    );
    world.delete("late");
    world.node("c", 4);
    world.pass(1);
    assert_eq!(world.bound.len(), 4, "tried again after the back-off: {}", world.nodes_of("train", 3));
}

#[test]
fn a_rejected_group_rests_for_its_back_off() {
    let scheduler = coscheduling(json!({ "podGroupBackoffSeconds": 20 }));
    let mut world = World::with_nodes(scheduler, &[("a", 4)]);
    world.group("train", json!({ "minMember": 2 }));
    world.members("train", 2, 4);
    world.settle();
    world.node("b", 4);
    world.pass(19);
    assert_eq!(world.nodes_of("train", 2), "- -");
    world.change("train-0", |pod| pod["metadata"]["labels"]["again"] = json!("1"));
    world.settle();
    assert!(world.message("train-0").contains("podGroup ns/train failed recently"), "{}", world.message("train-0"));
    world.pass(1);
    assert_eq!(world.nodes_of("train", 2), "a b");
}

#[test]
fn min_resources_are_checked_before_any_node_is_reserved() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.group("train", json!({ "minMember": 2, "minResources": { "cpu": "9" } }));
    world.members("train", 2, 4);
    world.settle();
    let message = world.message("train-0");
    assert!(message.contains("minResources exceed the free capacity of all nodes by 1 of cpu"), "{message}");
    world.node("c", 4);
    world.settle();
    assert_eq!(world.bound.len(), 2);
}

#[test]
fn deleting_a_pod_group_releases_its_reserved_nodes() {
    let scheduler = coscheduling(json!({ "podGroupRejectPercentage": 100 }));
    let mut world = World::with_nodes(scheduler, &[("a", 4)]);
    world.group("train", json!({ "minMember": 2 }));
    world.members("train", 2, 4);
    world.now += SignedDuration::from_secs(1);
    world.pod("late", "default-scheduler", None, 4, json!({}));
    world.settle();
    assert_eq!(world.bound, [""; 0]);
    world.state.pod_group_changed(&ObjectKey::namespaced("ns", "train"), None);
    world.settle();
    assert_eq!(world.bound, ["late"]);
    assert!(world.message("train-0").contains("PodGroup not found"));
}

#[test]
fn a_reservation_ends_when_the_node_becomes_too_small() {
    let scheduler = coscheduling(json!({ "podGroupRejectPercentage": 100 }));
    let mut world = World::with_nodes(scheduler, &[("a", 4)]);
    world.group("train", json!({ "minMember": 2 }));
    world.members("train", 2, 4);
    world.settle();
    world.node("a", 2);
    world.node("b", 4);
    world.settle();
    assert_eq!(world.bound, [""; 0], "only one node is large enough");
    world.node("c", 4);
    world.settle();
    assert_eq!(world.nodes_of("train", 2).split(' ').collect::<BTreeSet<_>>(), BTreeSet::from(["b", "c"]));
}

#[test]
fn a_lost_node_is_no_longer_reserved() {
    let scheduler = coscheduling(json!({ "podGroupRejectPercentage": 100 }));
    let mut world = World::with_nodes(scheduler, &[("a", 4)]);
    world.group("train", json!({ "minMember": 2 }));
    world.members("train", 2, 4);
    world.settle();
    world.drop_node("a");
    world.node("b", 4);
    world.node("c", 4);
    world.settle();
    assert_eq!(world.bound.len(), 2, "{}", world.nodes_of("train", 2));
}

#[test]
fn a_pod_whose_scheduler_does_not_exist_is_reported_once() {
    let mut world = World::with_nodes(json!({}), &[("a", 4)]);
    world.pod("lost", "volcano", None, 1, json!({}));
    world.settle();
    let expected = "no scheduler is named \"volcano\" in this cluster: expected default-scheduler, sakkara, \
                    sakkara-scheduler, scheduler-plugins-scheduler";
    assert_eq!(world.events["lost"], expected);
    world.events.clear();
    world.change("lost", |pod| pod["metadata"]["labels"] = json!({ "a": "b" }));
    world.settle();
    assert!(world.events.is_empty() && world.bound.is_empty());
}

#[test]
fn default_preemption_makes_room_for_the_pods_of_a_gang() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.pod("low", "default-scheduler", None, 4, json!({ "priority": 1 }));
    world.settle();
    world.group("train", json!({ "minMember": 2 }));
    for name in ["train-0", "train-1"] {
        let label = Some(("scheduling.x-k8s.io/pod-group", "train"));
        world.pod(name, "scheduler-plugins-scheduler", label, 4, json!({ "priority": 10 }));
    }
    world.settle();
    world.settle();
    assert_eq!(world.nodes_of("train", 2).split(' ').collect::<BTreeSet<_>>(), BTreeSet::from(["a", "b"]));
    assert!(!world.pods.contains_key("low"));
}
