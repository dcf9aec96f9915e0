//! Gives the chosen places of a group to its pods, and ranks them.
//!
//! Source: Sakkara's KEP, "Placement results": pods are ranked by their distance in the tree from
//! the master, the pod with `master` in its name, or an arbitrary one. Choices that the KEP leaves
//! open: without a master the first pod by name is it, numbers at the end of names count as
//! numbers, and the master gets the first chosen node of the tree.

use super::solver::Solution;
use super::topology::Tree;

/// A pod with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the pod.
    pub pod: String,
    /// The node, as an index of the tree.
    pub node: usize,
    /// Rank, from 0.
    pub rank: usize,
}

/// Gives each pod a place of the solution, which has as many places as there are pods. The result
/// is in the order of ranks.
pub fn assign(tree: &Tree, solution: &Solution, pods: Vec<String>) -> Vec<Member> {
    let pods = in_order(pods, |name| name);
    let mut nodes = solution.counts.clone();
    if let Some((first, _)) = nodes.first().copied() {
        nodes.sort_by_key(|(node, _)| (tree.distance(first, *node), *node));
    }
    let places = nodes.into_iter().flat_map(|(node, count)| std::iter::repeat_n(node, count));
    pods.into_iter().zip(places).enumerate().map(|(rank, (pod, node))| Member { pod, node, rank }).collect()
}

/// Pods in the order in which they get places: the master first, the others by name.
pub fn in_order<P>(mut pods: Vec<P>, name: impl Fn(&P) -> &str) -> Vec<P> {
    pods.sort_by(|one, other| {
        let key = |name: &str| (!name.contains("master"), natural(name).0.to_owned(), natural(name).1);
        let (one, other) = (name(one), name(other));
        key(one).cmp(&key(other)).then_with(|| one.cmp(other))
    });
    pods
}

/// A name without the number at its end, and the number; 0 without one or if it is too large.
fn natural(name: &str) -> (&str, u64) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (stem, name[stem.len()..].parse().unwrap_or(0))
}
