//! The time of decisions about many gangs on many nodes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::World;

/// Places groups of eight pods on nodes with eight GPUs each, in racks of twenty, and prints how
/// long the decisions take. `BERTH_GANG_NODES` sets the number of nodes: docs/gangs.md has the
/// result for a thousand.
#[test]
#[expect(clippy::disallowed_methods, reason = "the time of decisions is measured, not used")]
fn many_groups_fill_a_large_cluster() {
    let nodes: usize = std::env::var("BERTH_GANG_NODES").map_or(60, |number| number.parse().unwrap());
    for scheduler in ["sakkara-scheduler", "scheduler-plugins-scheduler"] {
        let mut world = World::new(json!({}));
        let mut racks: BTreeMap<String, BTreeMap<String, Value>> = BTreeMap::new();
        for number in 0..nodes {
            let name = format!("n{number:04}");
            world.node(&name, 8);
            racks.entry(format!("r{:03}", number / 20)).or_default().insert(name, json!({}));
        }
        world.config_map(
            "sakkara-scheduler",
            "topology",
            "sakkara.topology",
            json!({
                "level-names": json!(["rack", "node"]).to_string(), "tree": json!(racks).to_string(),
            }),
        );
        // Four pods of two CPUs fill a node; the last group does not fit.
        let groups = nodes / 2 + 1;
        for number in 0..groups {
            let name = format!("g{number:04}");
            if scheduler == "sakkara-scheduler" {
                world.sakkara(
                    &name,
                    8,
                    0,
                    json!({ "rack": { "partitions": 1, "hard": true }, "node": { "type": "spread", "max": 2 } }),
                );
                world.sakkara_members(&name, 8, 2);
            } else {
                world.group(&name, json!({ "minMember": 8 }));
                world.members(&name, 8, 2);
            }
        }
        let started = std::time::Instant::now();
        let decisions = world.state.decide(world.now);
        let took = started.elapsed();
        world.apply(decisions);
        println!("{scheduler}: {groups} groups of 8 pods on {nodes} nodes in {took:?}");
        assert_eq!(world.bound.len(), (groups - 1) * 8, "all but one group are placed");
    }
}
