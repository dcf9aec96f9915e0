//! Random histories: no part of a gang is placed, and no node is overcommitted.

use std::collections::BTreeMap;

use serde_json::json;

use super::World;
use crate::gangs::tests::Draw;

/// Random gangs on a small cluster whose nodes and pods come and go.
fn random_history(seed: u64) {
    let mut draw = Draw(seed);
    let scheduler = json!({ "profiles": [
        { "schedulerName": "scheduler-plugins-scheduler", "pluginConfig": [{ "name": "Coscheduling", "args": {
            "permitWaitingTimeSeconds": 30, "podGroupBackoffSeconds": draw.below(3) * 5,
            "podGroupRejectPercentage": draw.below(60) } }] },
        { "schedulerName": "sakkara-scheduler", "pluginConfig": [{ "name": "ClusterTopologyPlacementGroup", "args": {} }] },
    ] });
    let mut world = World::new(scheduler);
    for number in 0..2 + draw.below(4) {
        world.node(&format!("n{number}"), 1 + draw.below(6) as i64);
    }
    // Sizes of gangs by name, and those that were formed at some time.
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for step in 0..60 {
        match draw.below(10) {
            0..=2 => {
                let name = format!("c{step}");
                let size = 1 + draw.below(5);
                world.group(&name, json!({ "minMember": size }));
                world.members(&name, size + draw.below(2), 1 + draw.below(3) as i64);
                sizes.insert(name, size);
            }
            3..=5 => {
                let name = format!("s{step}");
                let size = 1 + draw.below(5);
                let node = match draw.below(4) {
                    0 => json!({ "type": "spread" }),
                    1 => json!({ "max": 1, "hard": draw.below(2) == 0 }),
                    2 => json!({ "min": 2 }),
                    _ => json!({ "partitions": 2 }),
                };
                world.sakkara(&name, size, draw.below(3) as i32, json!({ "node": node }));
                world.sakkara_members(&name, size, 1 + draw.below(3) as i64);
                sizes.insert(name, size);
            }
            6 => world.pod(&format!("p{step}"), "default-scheduler", None, 1, json!({})),
            7 => {
                let names: Vec<String> =
                    sizes.keys().filter(|name| world.node_of(&format!("{name}-0")).is_some()).cloned().collect();
                if let Some(name) = (!names.is_empty()).then(|| names[draw.below(names.len())].clone()) {
                    for pod in world
                        .pods
                        .keys()
                        .filter(|pod| pod.starts_with(&format!("{name}-")))
                        .cloned()
                        .collect::<Vec<_>>()
                    {
                        world.delete(&pod);
                    }
                    sizes.remove(&name);
                }
            }
            8 => world.node(&format!("n{}", draw.below(6)), 1 + draw.below(8) as i64),
            _ => world.pass(draw.below(40) as i64),
        }
        let before = world.bound.len();
        world.settle();
        for (name, size) in &sizes {
            let of_gang = |pod: &&String| pod.rsplit_once('-').is_some_and(|(gang, _)| gang == name);
            let bound =
                world.pods.iter().filter(|(pod, it)| of_gang(pod) && it.spec.as_ref().unwrap().node_name.is_some());
            let (bound, new) = (bound.count(), world.bound[before..].iter().any(|pod| of_gang(&pod)));
            assert!(!new || bound >= *size, "seed {seed}, step {step}: {bound} of {size} pods of {name} are bound");
            assert!(bound == 0 || bound >= *size, "seed {seed}, step {step}: part of {name} is bound");
        }
        for (name, node) in &world.nodes {
            let here = world.pods.values().filter(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(name));
            let used: i64 = here
                .map(|pod| pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0.parse::<i64>().unwrap())
                .sum();
            let all: i64 = node.status.as_ref().unwrap().allocatable.as_ref().unwrap()["cpu"].0.parse().unwrap();
            let state = world.state.cluster.node(name).unwrap();
            assert!(state.used.get("cpu") >= used * 1000, "seed {seed}, step {step}: {name} forgot a pod");
            // A node may have shrunk below what runs on it; nothing new is placed there then.
            let new_here = world.bound[before..].iter().any(|pod| world.node_of(pod) == Some(name));
            assert!(!new_here || used <= all, "seed {seed}, step {step}: {name} has {used} of {all} CPUs in use");
        }
    }
}

#[test]
fn no_history_places_a_part_of_a_gang_or_overcommits_a_node() {
    let cases = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    for seed in 0..cases {
        random_history(seed);
    }
}
