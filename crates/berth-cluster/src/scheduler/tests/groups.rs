//! Gangs that are placed as a whole.

use serde_json::json;

use super::World;

#[test]
fn a_sakkara_group_is_placed_as_a_whole_and_described_in_its_config_map() {
    let nodes = [("node-0", 8), ("node-1", 8), ("node-2", 8), ("node-3", 8), ("node-4", 8), ("node-5", 8)];
    let mut world = World::with_nodes(json!({}), &nodes);
    world.two_racks();
    world.sakkara_members("group-a", 7, 1);
    world.settle();
    let message = world.message("group-a-0");
    let expected =
        "0/6 nodes are available: no ConfigMap in namespace ns has label sakkara.group and data.name \"group-a\".";
    assert_eq!(message, expected);
    world.sakkara("group-a", 8, 0, json!({ "rack": { "type": "pack" }, "node": { "type": "spread" } }));
    world.settle();
    assert_eq!(world.message("group-a-0"), "0/6 nodes are available: group ns/group-a has 7 of its 8 pods.");
    assert_eq!(world.data("group-a", "status"), Some("Pending"));
    assert_eq!(world.data("group-a", "message"), Some("group ns/group-a has 7 of its 8 pods"));
    world.pod("a-master", "sakkara-scheduler", Some(("sakkara.group.name", "group-a")), 1, json!({}));
    world.settle();
    assert_eq!(world.node_of("a-master"), Some("node-0"));
    assert_eq!(world.nodes_of("group-a", 7), "node-0 node-0 node-1 node-1 node-1 node-2 node-2");
    let placement = json!({ "root": { "rack-0": {
        "node-0": ["a-master", "group-a-0", "group-a-1"],
        "node-1": ["group-a-2", "group-a-3", "group-a-4"],
        "node-2": ["group-a-5", "group-a-6"],
    } } });
    assert_eq!(world.data("group-a", "placement"), Some(placement.to_string().as_str()));
    assert!(world.data("group-a", "rank").unwrap().starts_with("[(\"a-master\",0) (\"group-a-0\",1) "));
    assert_eq!((world.data("group-a", "status"), world.data("group-a", "message")), (Some("Bound"), None));
    let labels = world.pods["group-a-6"].metadata.labels.as_ref().unwrap();
    assert_eq!(labels["sakkara.member.rank"], "7");
    // A pod that replaces one of a formed group gets its rank.
    world.delete("group-a-2");
    world.sakkara_members("group-a", 0, 1);
    world.pod("group-a-9", "sakkara-scheduler", Some(("sakkara.group.name", "group-a")), 1, json!({}));
    world.settle();
    assert_eq!(world.pods["group-a-9"].metadata.labels.as_ref().unwrap()["sakkara.member.rank"], "3");
    world.pod("group-a-10", "sakkara-scheduler", Some(("sakkara.group.name", "group-a")), 1, json!({}));
    world.settle();
    assert_eq!(world.message("group-a-10"), "0/6 nodes are available: group ns/group-a already has its 8 pods.");
}

#[test]
fn a_sakkara_group_that_does_not_fit_says_how_many_pods_would() {
    let mut world = World::with_nodes(json!({}), &[("node-0", 2), ("node-1", 1), ("node-2", 0)]);
    world.sakkara("g", 4, 0, json!({}));
    world.sakkara_members("g", 4, 1);
    world.settle();
    let expected =
        "0/3 nodes are available: 3 of the 4 pods of group ns/g fit; nodes without room: 1 Insufficient cpu.";
    assert_eq!(world.message("g-3"), expected);
    assert_eq!(world.bound, [""; 0]);
    world.node("node-2", 1);
    world.settle();
    assert_eq!(world.bound.len(), 4);
    assert_eq!(world.pods["g-3"].metadata.labels.as_ref().unwrap()["sakkara.member.retries"], "1");
}

#[test]
fn soft_constraints_that_are_not_met_are_listed_and_hard_ones_hold_the_group() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.sakkara("soft", 2, 0, json!({ "node": { "partitions": 3 }, "row": { "type": "pack" } }));
    world.sakkara_members("soft", 2, 1);
    world.sakkara("hard", 2, 0, json!({ "node": { "partitions": 3, "hard": true } }));
    world.sakkara_members("hard", 2, 1);
    world.settle();
    assert_eq!(world.data("soft", "unmetConstraints"), Some("node.partitions, row"));
    let expected = "0/2 nodes are available: the hard constraints of group ns/hard cannot be met: node.partitions.";
    assert_eq!(world.message("hard-0"), expected);
    assert_eq!(world.bound.len(), 2);
}

#[test]
fn pods_of_a_sakkara_group_must_be_equal() {
    let mut world = World::with_nodes(json!({}), &[("a", 4)]);
    world.sakkara("g", 2, 0, json!({}));
    world.sakkara_members("g", 1, 1);
    world.pod("g-1", "sakkara-scheduler", Some(("sakkara.group.name", "g")), 2, json!({}));
    world.settle();
    let message = world.message("g-0");
    assert!(message.contains("the requests or node rules of g-0 and g-1 differ"), "{message}");
}

#[test]
fn a_group_of_higher_priority_evicts_whole_groups_of_lower_priority() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4), ("c", 4)]);
    for (name, priority) in [("low", 1), ("middle", 2), ("other", 1)] {
        world.sakkara(name, 2, priority, json!({}));
        world.sakkara_members(name, 2, 2);
        world.settle();
    }
    world.sakkara("high", 4, 3, json!({}));
    world.sakkara_members("high", 4, 2);
    world.settle();
    world.settle();
    // Both groups of priority 1 go, and the one of priority 2 stays.
    assert_eq!(world.pods.keys().filter(|name| !name.starts_with("high")).count(), 2);
    assert!(world.pods.contains_key("middle-0") && world.pods.contains_key("middle-1"));
    assert!((0..4).all(|number| world.node_of(&format!("high-{number}")).is_some()), "{}", world.nodes_of("high", 4));
    // Equal priority evicts nothing.
    world.sakkara("equal", 2, 2, json!({}));
    world.sakkara_members("equal", 2, 2);
    world.settle();
    assert_eq!(world.nodes_of("equal", 2), "- -");
}

#[test]
fn a_pod_group_of_a_sakkara_profile_is_placed_as_a_whole() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.group("job", json!({ "minMember": 3 }));
    let label = Some(("scheduling.x-k8s.io/pod-group", "job"));
    for (name, cpu) in [("job-master-0", 3), ("job-worker-0", 2), ("job-worker-1", 2)] {
        world.pod(name, "sakkara-scheduler", label, cpu, json!({}));
    }
    world.settle();
    assert_eq!(world.bound.len(), 3, "the pods have different requests");
    world.pod("job-worker-2", "sakkara-scheduler", label, 1, json!({}));
    world.settle();
    assert_eq!(world.bound.len(), 4, "further pods of a formed group are placed alone");
    world.pod("job-worker-3", "sakkara-scheduler", label, 3, json!({}));
    world.settle();
    assert!(world.message("job-worker-3").contains("2 Insufficient cpu"), "{}", world.message("job-worker-3"));
}

#[test]
fn a_group_waits_for_the_groups_that_it_has_evicted() {
    let mut world = World::with_nodes(json!({}), &[("a", 4), ("b", 4)]);
    world.stops_slowly = true;
    for name in ["low", "other"] {
        world.sakkara(name, 2, 1, json!({}));
        world.sakkara_members(name, 2, 2);
    }
    world.settle();
    world.sakkara("high", 2, 2, json!({}));
    world.sakkara_members("high", 2, 2);
    world.settle();
    let going = |world: &World| {
        let going = world.pods.iter().filter(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
        going.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(going(&world), ["low-0", "low-1"], "one group makes room, the first by name of equal ones");
    let message = world.message("high-0");
    assert!(message.ends_with("preemption: evicting group ns/low (priority 1)."), "{message}");
    // A pod that could take the room must not get it, and nothing else is evicted meanwhile.
    world.pod("small", "default-scheduler", None, 1, json!({}));
    world.change("high-0", |pod| pod["metadata"]["labels"]["again"] = json!("1"));
    world.settle();
    assert_eq!(going(&world).len(), 2);
    world.delete("low-0");
    world.settle();
    assert_eq!((world.node_of("small"), world.nodes_of("high", 2)), (None, "- -".into()));
    world.delete("low-1");
    world.settle();
    assert!(!world.nodes_of("high", 2).contains('-'), "{}", world.nodes_of("high", 2));
    assert_eq!(world.node_of("small"), None, "both nodes are full");
}
