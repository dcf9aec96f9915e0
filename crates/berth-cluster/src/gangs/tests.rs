//! Placements of groups in small clusters, the examples of Sakkara's KEP among them, and a
//! comparison with all possible distributions.

use std::collections::BTreeMap;

use serde_json::json;

use super::constraints::{self, Constraint, Constraints, Shape};
use super::counts::Counts;
use super::distribution::distribute;
use super::group::{self, Group};
use super::member::assign;
use super::pod_group::{Rules, Siblings, check_resources, check_siblings, is_rejected};
use super::solver::{Refusal, Solution, solve};
use super::topology::{Topology, Tree};
use crate::placement::Resources;

fn data(entries: &[(&str, String)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// Two racks of three nodes each.
fn two_racks() -> Topology {
    let tree = json!({
        "rack-0": { "node-0": {}, "node-1": {}, "node-2": {} },
        "rack-1": { "node-3": {}, "node-4": {}, "node-5": {} },
    });
    let levels = json!(["rack", "node"]).to_string();
    Topology::read(&data(&[("name", "t".into()), ("level-names", levels), ("tree", tree.to_string())])).unwrap()
}

/// Nodes with pods, as `node-0:3 node-1:3`, for the capacity of nodes 0 to 5.
fn placed(capacity: [usize; 6], constraints: serde_json::Value, size: usize) -> Result<String, Refusal> {
    let names: Vec<String> = (0..6).map(|number| format!("node-{number}")).collect();
    let capacity: BTreeMap<&str, usize> = names.iter().map(String::as_str).zip(capacity).collect();
    let tree = two_racks().tree(capacity.keys().copied());
    let constraints = constraints::read(&constraints.to_string()).unwrap();
    let solution = solve(&tree, &capacity, &constraints, size)?;
    let mut text: Vec<String> =
        solution.counts.iter().map(|(node, count)| format!("{}:{count}", tree.unit(*node).name)).collect();
    text.extend(solution.given_up.iter().map(|name| format!("without {name}")));
    Ok(text.join(" "))
}

#[test]
fn a_group_is_packed_in_a_rack_and_spread_over_its_nodes() {
    let constraints = json!({ "rack": { "type": "pack" }, "node": { "type": "spread" } });
    let of = |capacity| placed(capacity, constraints.clone(), 8).unwrap();
    assert_eq!(of([8, 8, 8, 8, 8, 8]), "node-0:3 node-1:3 node-2:2", "the ideal placement");
    assert_eq!(of([9, 3, 0, 0, 0, 0]), "node-0:5 node-1:3", "node-2 has no room, and rack-1 is full");
    assert_eq!(of([3, 0, 3, 1, 0, 2]), "node-0:3 node-2:3 node-3:1 node-5:1", "rack-0 takes six");
}

#[test]
fn pack_takes_the_fullest_rack_that_fits_and_otherwise_as_few_racks_as_possible() {
    assert_eq!(placed([4, 4, 4, 2, 2, 2], json!({}), 5).unwrap(), "node-3:2 node-4:2 node-5:1");
    assert_eq!(placed([2, 2, 2, 2, 2, 2], json!({}), 6).unwrap(), "node-0:2 node-1:2 node-2:2");
    assert_eq!(placed([1, 1, 1, 2, 2, 1], json!({}), 7).unwrap(), "node-0:1 node-1:1 node-3:2 node-4:2 node-5:1");
}

#[test]
fn partitions_divide_a_group_into_equal_parts() {
    // User A of the KEP: two equal parts in separate racks, packed on nodes.
    let constraints = json!({ "rack": { "type": "spread", "partitions": 2 }, "node": { "type": "pack" } });
    assert_eq!(placed([4, 4, 4, 4, 4, 4], constraints.clone(), 8).unwrap(), "node-0:4 node-3:4");
    assert_eq!(placed([2, 2, 2, 4, 4, 4], constraints.clone(), 8).unwrap(), "node-0:2 node-1:2 node-3:4");
    assert_eq!(placed([8, 0, 0, 0, 0, 0], constraints, 8).unwrap(), "node-0:8 without rack.partitions");
}

#[test]
fn ranges_and_factors_bound_the_parts() {
    // User B of the KEP: six pods in one rack, two to four per node, spread.
    let constraints = json!({ "rack": { "type": "pack" }, "node": { "type": "spread", "min": 2, "max": 4 } });
    assert_eq!(placed([8, 8, 8, 1, 1, 1], constraints.clone(), 6).unwrap(), "node-0:2 node-1:2 node-2:2");
    assert_eq!(placed([8, 8, 1, 8, 0, 0], constraints, 6).unwrap(), "node-0:3 node-1:3");
    let factor = json!({ "node": { "factor": 4 } });
    assert_eq!(placed([6, 6, 3, 3, 3, 3], factor.clone(), 8).unwrap(), "node-0:4 node-1:4");
    assert_eq!(placed([6, 6, 3, 3, 3, 3], factor, 6).unwrap(), "node-3:3 node-4:3 without node.factor");
}

#[test]
fn soft_constraints_are_given_up_from_the_bottom_and_hard_ones_never() {
    let constraints = |hard: bool| json!({ "rack": { "min": 4, "hard": hard }, "node": { "max": 1 } });
    let capacities = [2, 1, 0, 2, 0, 0];
    assert_eq!(
        placed(capacities, constraints(false), 5).unwrap(),
        "node-0:2 node-1:1 node-3:2 without node.max without rack.min"
    );
    assert_eq!(placed(capacities, constraints(true), 5), Err(Refusal::Hard(vec!["rack.min".into()])));
    assert_eq!(placed(capacities, json!({}), 6), Err(Refusal::NoCapacity { fits: 5 }));
}

#[test]
fn nodes_that_the_topology_does_not_list_are_units_of_their_own() {
    let tree = two_racks().tree(["extra", "node-1", "node-4"].into_iter());
    let paths: Vec<String> = tree.nodes().map(|node| tree.path(node).join("/")).collect();
    assert_eq!(paths, ["rack-0/node-1", "rack-1/node-4", "extra/extra"]);
    let flat = Topology::default().tree(["b", "a"].into_iter());
    assert_eq!(flat.levels, ["node"]);
    let capacity = BTreeMap::from([("a", 1), ("b", 5)]);
    let solution = solve(&flat, &capacity, &Constraints::new(), 5).unwrap();
    assert_eq!(solution.counts.len(), 1, "the node with room for all");
}

#[test]
fn invalid_topologies_and_groups_are_rejected_with_their_keys() {
    let levels = || ("level-names", json!(["rack", "node"]).to_string());
    let of = |tree: serde_json::Value| Topology::read(&data(&[levels(), ("tree", tree.to_string())])).unwrap_err();
    assert_eq!(of(json!({ "r": { "n": { "m": {} } } })), "data.tree: node r/n: has units below the last level");
    assert_eq!(of(json!({ "r": { "n": {} }, "s": { "n": {} } })), "data.tree: node n: is listed twice");
    assert_eq!(of(json!({ "r": ["n"] })), "data.tree: rack r: expected an object");
    assert_eq!(Topology::read(&data(&[levels()])).unwrap_err(), "data.tree: required");
    let group = |entries: &[(&str, &str)]| {
        Group::read(&entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    };
    assert_eq!(group(&[]).unwrap_err(), "data.size: required, 1 to 4096");
    assert_eq!(group(&[("size", "0")]).unwrap_err(), "data.size: \"0\" is not a number from 1 to 4096");
    assert_eq!(group(&[("size", "2"), ("priority", "high")]).unwrap_err(), "data.priority: \"high\" is not an integer");
    for (constraints, expected) in [
        (r#"{"rack": {"type": "tight"}}"#, "data.constraints: rack: unknown variant `tight`"),
        (r#"{"rack": {"least": 3}}"#, "data.constraints: rack: unknown field `least`"),
        (r#"{"rack": {"factor": 0}}"#, "data.constraints: rack.factor: 0 is less than 1"),
        (r#"{"rack": {"partitions": 300}}"#, "data.constraints: rack.partitions: 300 is more than 256"),
        (r#"{"rack": {"min": "3", "max": 2}}"#, "data.constraints: rack.min: 3 is more than max (2)"),
        ("[]", "data.constraints: expected a JSON object of constraints by level"),
    ] {
        let error = group(&[("size", "2"), ("constraints", constraints)]).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let levels = &two_racks().levels;
    let soft = group(&[("size", "2"), ("constraints", r#"{"row": {"max": 1}}"#)]).unwrap();
    assert_eq!((soft.check_levels(levels), soft.unknown_levels(levels)), (Ok(()), vec!["row"]));
    let hard = group(&[("size", "2"), ("constraints", r#"{"row": {"hard": true}}"#)]).unwrap();
    let error = hard.check_levels(levels).unwrap_err();
    assert_eq!(error, "data.constraints: \"row\" is not a level of the topology: expected rack, node");
}

#[test]
fn the_master_has_rank_0_and_others_are_ranked_by_their_distance() {
    let names = ["node-0", "node-2", "node-3", "node-4"];
    let tree = two_racks().tree(names.into_iter());
    let index = |name: &str| tree.nodes().find(|node| tree.unit(*node).name == name).unwrap();
    let solution = Solution {
        counts: vec![(index("node-0"), 1), (index("node-2"), 2), (index("node-4"), 1)],
        given_up: Vec::new(),
    };
    let pods = ["worker-10", "worker-2", "job-master-0", "worker-1"].map(str::to_owned).to_vec();
    let members = assign(&tree, &solution, pods);
    assert_eq!(group::ranks(&members), r#"[("job-master-0",0) ("worker-1",1) ("worker-2",2) ("worker-10",3) ]"#);
    assert_eq!(
        group::placement(&tree, &members),
        json!({ "root": {
            "rack-0": { "node-0": ["job-master-0"], "node-2": ["worker-1", "worker-2"] },
            "rack-1": { "node-4": ["worker-10"] },
        } })
        .to_string()
    );
    assert_eq!(
        (tree.distance(index("node-0"), index("node-2")), tree.distance(index("node-0"), index("node-3"))),
        (2, 4)
    );
}

#[test]
fn a_pod_group_needs_its_pods_ungated_and_its_resources_free() {
    let rules = Rules { min_member: 3, min_resources: None };
    let check = |all, gated| check_siblings("p", &rules, Siblings { all, gated });
    assert_eq!(
        check(2, 0).unwrap_err(),
        "pre-filter pod p cannot find enough sibling pods, current pods number: 2, minMember of group: 3"
    );
    assert_eq!(check(3, 1).unwrap_err(), "pre-filter pod p cannot proceed due to gated pods in the same PodGroup");
    assert_eq!(check(5, 2), Ok(()), "more pods than minMember: some may stay gated");
    let mut least = Resources::default();
    least.set("cpu", 4_500);
    least.set("nvidia.com/gpu", 8);
    let rules = Rules { min_member: 3, min_resources: Some(least) };
    let mut free = Resources::default();
    free.set("cpu", 4_000);
    free.set("nvidia.com/gpu", 7);
    free.set("pods", 110);
    assert_eq!(
        check_resources("ns/g", &rules, &free).unwrap_err(),
        "podGroup ns/g: minResources exceed the free capacity of all nodes by 500m of cpu, 1 of nvidia.com/gpu"
    );
    free.set("cpu", 4_500);
    free.set("nvidia.com/gpu", 8);
    assert_eq!(check_resources("ns/g", &rules, &free), Ok(()));
}

#[test]
fn a_gap_of_up_to_the_percentage_keeps_placed_pods() {
    assert!(!is_rejected(10, 9, 10), "a tenth is missing");
    assert!(is_rejected(10, 8, 10));
    assert!(is_rejected(4, 3, 10));
    assert!(!is_rejected(4, 3, 25));
    assert!(!is_rejected(4, 5, 0), "nothing is missing");
    assert!(is_rejected(1000, 999, 0));
}

/// Every list of numbers that the sets and the constraint allow, with this sum.
fn all_distributions(sets: &[Counts], constraint: &Constraint, size: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for set in sets {
        let numbers: Vec<usize> = std::iter::once(0).chain(set.positive(size)).collect();
        all = all
            .into_iter()
            .flat_map(|list: Vec<usize>| numbers.iter().map(move |number| [&list[..], &[*number]].concat()))
            .filter(|list| list.iter().sum::<usize>() <= size)
            .collect();
    }
    let used = |list: &[usize]| list.iter().filter(|count| **count > 0).count();
    all.retain(|list| list.iter().sum::<usize>() == size && constraint.partitions.is_none_or(|it| used(list) == it));
    all
}

#[test]
fn distributions_are_the_best_of_all_possible_ones() {
    let mut draw = crate::gangs::tests::Draw(7);
    for case in 0..3000 {
        let size = 1 + draw.below(9);
        let units = 1 + draw.below(5);
        let bounds = Constraint {
            min: (draw.below(3) == 0).then(|| 1 + draw.below(3)),
            factor: (draw.below(4) == 0).then(|| 1 + draw.below(3)),
            ..Constraint::default()
        };
        let capacity: Vec<usize> = (0..units).map(|_| draw.below(7)).collect();
        let sets: Vec<Counts> =
            capacity.iter().map(|capacity| Counts::UpTo((*capacity).min(size)).restricted(&bounds, size)).collect();
        let constraint = Constraint {
            shape: if draw.below(2) == 0 { Shape::Pack } else { Shape::Spread },
            partitions: (draw.below(3) == 0).then(|| 1 + draw.below(3)),
            ..Constraint::default()
        };
        let all = all_distributions(&sets, &constraint, size);
        let by_reference: Vec<&Counts> = sets.iter().collect();
        let found = distribute(&by_reference, &capacity, &constraint, size);
        let sum = Counts::sum(&by_reference, constraint.partitions, size);
        assert_eq!(sum.contains(size), !all.is_empty(), "case {case}: {capacity:?} {bounds:?} {constraint:?} {size}");
        let Some(found) = found else {
            assert!(all.is_empty(), "case {case}: {capacity:?} {bounds:?} {constraint:?} {size} has {:?}", all[0]);
            continue;
        };
        assert!(
            all.contains(&found),
            "case {case}: {found:?} is not allowed: {capacity:?} {bounds:?} {constraint:?} {size}"
        );
        let used = |list: &[usize]| list.iter().filter(|count| **count > 0).count();
        let largest = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
        if constraint.shape == Shape::Pack && constraint.partitions.is_none() {
            let fewest = all.iter().map(|list| used(list)).min();
            assert_eq!(Some(used(&found)), fewest, "case {case}: {found:?}, {capacity:?} {bounds:?} {size}");
        } else {
            let most = all.iter().map(|list| used(list)).max();
            assert_eq!(Some(used(&found)), most, "case {case}: {found:?}, {capacity:?} {bounds:?} {size}");
            let even = all.iter().filter(|list| Some(used(list)) == most).map(|list| largest(list)).min();
            assert_eq!(Some(largest(&found)), even, "case {case}: {found:?}, {capacity:?} {bounds:?} {size}");
        }
    }
}

/// A seeded generator of small numbers.
pub(crate) struct Draw(pub u64);

impl Draw {
    /// A number from 0, less than `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = crate::random::draw(self.0, &["gangs"]);
        (self.0 % bound as u64) as usize
    }
}

/// The tree is not empty if it has nodes.
#[test]
fn a_tree_without_nodes_is_empty() {
    let tree: Tree = two_racks().tree([].into_iter());
    assert!(tree.is_empty());
    assert_eq!(solve(&tree, &BTreeMap::new(), &Constraints::new(), 1), Err(Refusal::NoCapacity { fits: 0 }));
}
