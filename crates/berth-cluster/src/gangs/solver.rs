//! Chooses how many pods of a group each node gets.
//!
//! Level by level from the top, the pods of a unit are distributed over the units that it contains
//! ([`super::distribution`]). From the bottom up, it is computed first which numbers of pods each
//! unit can get under the constraints below it, so that the distribution never has to be revised.
//!
//! If the constraints cannot be met together, soft ones are given up in this order until they can:
//! on the lowest level `factor`, then `min` and `max`, then `partitions`; then on the next level
//! up. `type` is never given up: it is a wish, and every distribution meets it as well as possible.

use std::collections::BTreeMap;

use super::constraints::{Constraint, Constraints};
use super::counts::Counts;
use super::distribution::distribute;
use super::topology::Tree;

/// A placement of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Solution {
    /// Nodes that get pods, as indexes of the tree in its order, with the number of pods.
    pub counts: Vec<(usize, usize)>,
    /// Soft constraints that were given up, as `level.field`.
    pub given_up: Vec<String>,
}

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Only so many pods fit on the nodes.
    NoCapacity {
        /// Number of pods that fit.
        fits: usize,
    },
    /// The pods fit, but not under the hard constraints, which are listed as `level.field`.
    Hard(Vec<String>),
}

/// Places `size` pods. `capacity` is the number of pods that fit on each node, by name; nodes that
/// it does not list have none. Constraints on levels that the tree does not have are ignored.
///
/// # Errors
/// Not all pods can be placed.
pub fn solve(
    tree: &Tree,
    capacity: &BTreeMap<&str, usize>,
    constraints: &Constraints,
    size: usize,
) -> Result<Solution, Refusal> {
    let capacities = capacities(tree, capacity);
    if capacities[0] < size {
        return Err(Refusal::NoCapacity { fits: capacities[0] });
    }
    let by_depth = |name: &String| constraints.get(name).copied().unwrap_or_default();
    // The constraint of depth d is that on the units of depth d; the root has none.
    let mut of_depth: Vec<Constraint> =
        std::iter::once(Constraint::default()).chain(tree.levels.iter().map(by_depth)).collect();
    let mut given_up = Vec::new();
    loop {
        if let Some(counts) = attempt(tree, &capacities, &of_depth, size) {
            return Ok(Solution { counts, given_up });
        }
        match give_up(tree, &mut of_depth) {
            Some(name) => given_up.push(name),
            None => return Err(Refusal::Hard(set_fields(tree, &of_depth))),
        }
    }
}

/// The number of pods that fit in each unit without constraints.
fn capacities(tree: &Tree, capacity: &BTreeMap<&str, usize>) -> Vec<usize> {
    let mut capacities = vec![0_usize; tree.len()];
    for node in tree.nodes() {
        capacities[node] = capacity.get(tree.unit(node).name.as_str()).copied().unwrap_or(0);
    }
    // Units come after those that contain them.
    for index in (1..tree.len()).rev() {
        let parent = tree.unit(index).parent;
        capacities[parent] = capacities[parent].saturating_add(capacities[index]);
    }
    capacities
}

/// Gives up the next soft constraint, and returns its name.
fn give_up(tree: &Tree, of_depth: &mut [Constraint]) -> Option<String> {
    for (constraint, level) in of_depth[1..].iter_mut().zip(&tree.levels).rev().filter(|(it, _)| !it.hard) {
        if constraint.factor.take().is_some() {
            return Some(format!("{level}.factor"));
        }
        if constraint.min.take().is_some() {
            return Some(format!("{level}.min"));
        }
        if constraint.max.take().is_some() {
            return Some(format!("{level}.max"));
        }
        if constraint.partitions.take().is_some() {
            return Some(format!("{level}.partitions"));
        }
    }
    None
}

fn set_fields(tree: &Tree, of_depth: &[Constraint]) -> Vec<String> {
    let mut names = Vec::new();
    for (constraint, level) in of_depth[1..].iter().zip(&tree.levels) {
        for (field, value) in [
            ("partitions", constraint.partitions),
            ("min", constraint.min),
            ("max", constraint.max),
            ("factor", constraint.factor),
        ] {
            if value.is_some() {
                names.push(format!("{level}.{field}"));
            }
        }
    }
    names
}

/// The counts of nodes under these constraints; `None` if they cannot be met.
fn attempt(tree: &Tree, capacities: &[usize], of_depth: &[Constraint], size: usize) -> Option<Vec<(usize, usize)>> {
    let sets = sets(tree, capacities, of_depth, size);
    if !sets[0].contains(size) {
        return None;
    }
    let mut counts = vec![0; tree.len()];
    counts[0] = size;
    for index in 0..tree.len() {
        let children = &tree.unit(index).children;
        if counts[index] == 0 || children.is_empty() {
            continue;
        }
        let constraint = &of_depth[tree.unit(index).depth + 1];
        let of_children: Vec<&Counts> = children.iter().map(|child| &sets[*child]).collect();
        let capacity_of_children: Vec<usize> = children.iter().map(|child| capacities[*child]).collect();
        let parts = distribute(&of_children, &capacity_of_children, constraint, counts[index])?;
        for (child, part) in children.iter().zip(parts) {
            counts[*child] = part;
        }
    }
    Some(tree.nodes().map(|node| (node, counts[node])).filter(|(_, count)| *count > 0).collect())
}

/// The numbers of pods that each unit can get.
fn sets(tree: &Tree, capacities: &[usize], of_depth: &[Constraint], size: usize) -> Vec<Counts> {
    let mut sets = vec![Counts::UpTo(0); tree.len()];
    for index in (0..tree.len()).rev() {
        let unit = tree.unit(index);
        let possible = if unit.depth == tree.levels.len() {
            Counts::UpTo(capacities[index].min(size))
        } else {
            let below: Vec<&Counts> = unit.children.iter().map(|child| &sets[*child]).collect();
            Counts::sum(&below, of_depth[unit.depth + 1].partitions, size)
        };
        sets[index] = possible.restricted(&of_depth[unit.depth], size);
    }
    sets
}
