//! How many pods each domain could hold: phase one of a placement (§14.5), and what kept nodes out of it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::placement::{Pods, Wanted};
use super::tree::FlavorTree;
use super::{PODS, Topologies};
use crate::assignment::filter::untolerated;
use crate::ids::Name;
use crate::model::{Labels, NodeAffinity, ResourceList, Taint};

/// What a domain could hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Room {
    pub pods: i64,
    pub slices: i64,
    /// The same with the leader in the domain.
    pub pods_with_leader: i64,
    pub slices_with_leader: i64,
    /// 1 if the leader fits.
    pub leader: i64,
    /// Weight of the preferred node affinities that match.
    pub score: i64,
}

impl Room {
    /// Sort key without a leader: better affinity, then larger (or, to fill gaps, smaller) in slices, then smaller in
    /// pods.
    pub fn rank(&self, least_free: bool) -> (Reverse<i64>, Reverse<i64>, i64, i64) {
        let slices = if least_free { self.slices } else { -self.slices };
        (Reverse(0), Reverse(self.score), slices, self.pods)
    }

    /// Sort key while the leader has still to be placed: domains that can take it come first.
    pub fn rank_with_leader(&self, least_free: bool) -> (Reverse<i64>, Reverse<i64>, i64, i64) {
        let slices = if least_free { self.slices_with_leader } else { -self.slices_with_leader };
        (Reverse(self.leader), Reverse(self.score), slices, self.pods_with_leader)
    }
}

/// Leaves that cannot take a single pod, by reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Exclusions {
    pub total: usize,
    pub by_reason: BTreeMap<String, usize>,
}

impl Exclusions {
    fn note(&mut self, reason: String) {
        *self.by_reason.entry(reason).or_default() += 1;
    }

    /// `. Total nodes: …; excluded: …`, or nothing.
    pub fn text(&self) -> String {
        if self.by_reason.is_empty() {
            return String::new();
        }
        let parts: Vec<String> = self.by_reason.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
        format!(". Total nodes: {}; excluded: {}", self.total, parts.join(", "))
    }
}

/// How often a request fits into what is left, and the resource that limits it (§1.4). `None` for a request of nothing.
pub(crate) fn count_in(request: &ResourceList, left: &ResourceList) -> (i64, Option<Name>) {
    let most = i64::from(i32::MAX);
    let mut best: Option<(i64, Name)> = None;
    for (name, amount) in request {
        let fits = if *amount <= 0 { most } else { (left.get(name).copied().unwrap_or(0) / amount).clamp(0, most) };
        if best.as_ref().is_none_or(|(least, _)| fits < *least) {
            best = Some((fits, name.clone()));
        }
    }
    best.map_or((0, None), |(fits, name)| (fits, Some(name)))
}

/// What one pod takes, the one of `pods` included.
pub(crate) fn with_pod(per_pod: &ResourceList) -> ResourceList {
    let mut request = per_pod.clone();
    *request.entry(Name::from(PODS)).or_default() += 1;
    request
}

/// Counts what every domain could hold.
pub(crate) fn rooms(
    topologies: &Topologies,
    tree: &FlavorTree,
    wanted: &Wanted,
    exclusions: &mut Exclusions,
) -> Vec<Room> {
    let mut rooms = vec![Room::default(); tree.domains.len()];
    exclusions.total = tree.leaves().len();
    for &leaf in tree.leaves() {
        rooms[leaf] = leaf_room(topologies, tree, wanted, leaf, exclusions);
    }
    for id in (0..tree.domains.len()).rev() {
        if !tree.domains[id].children.is_empty() {
            rooms[id] = sum_children(tree, wanted, &rooms, id);
        }
        let level = tree.domains[id].level;
        if level == wanted.slice_level {
            rooms[id].slices = rooms[id].pods / wanted.slice_size;
            rooms[id].slices_with_leader = rooms[id].pods_with_leader / wanted.slice_size;
        }
    }
    rooms
}

fn leaf_room(
    topologies: &Topologies,
    tree: &FlavorTree,
    wanted: &Wanted,
    leaf: usize,
    exclusions: &mut Exclusions,
) -> Room {
    let domain = &tree.domains[leaf];
    if let Some(required) = wanted.within {
        let level = tree.domains[required].level;
        if tree.ancestor(leaf, level) != required {
            exclusions.note("topologyDomain".to_owned());
            return Room::default();
        }
    }
    let host = tree.leaf_values(&domain.values);
    if wanted.excluded_hosts.iter().any(|name| host.first() == Some(name)) {
        return Room::default();
    }
    let mut score = 0;
    if tree.node_level
        && let Some(node) = domain.nodes.first().and_then(|name| topologies.node(name))
    {
        for pods in wanted.leader.iter().chain([&wanted.workers]) {
            if let Some(taint) = untolerated(&node.taints, &[&pods.tolerations]) {
                exclusions.note(format!("taint {:?}", taint_text(taint)));
                return Room::default();
            }
            if !pods.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) {
                exclusions.note("nodeSelector".to_owned());
                return Room::default();
            }
            if !matches(&pods.affinity, &node.labels, &node.name) {
                exclusions.note("affinity".to_owned());
                return Room::default();
            }
        }
        if wanted.respect_preferred {
            score = preferred_score(&wanted.workers.affinity, &node.labels);
        }
    }
    let left = topologies.remaining(tree, wanted.flavor, leaf, wanted.empty);
    let left = minus_assumed(left, wanted, tree.leaf_values(&domain.values));
    let per_pod = with_pod(&wanted.workers.per_pod);
    let (pods, limiting) = count_in(&per_pod, &left);
    if pods == 0
        && let Some(resource) = limiting
    {
        exclusions.note(format!("resource {resource:?}"));
    }
    let Some(leader) = &wanted.leader else {
        return Room { pods, pods_with_leader: pods, score, ..Room::default() };
    };
    let leader_request = with_pod(&leader.per_pod);
    let fits = i64::from(count_in(&leader_request, &left).0 >= 1);
    let mut beside = left;
    for (name, amount) in &leader_request {
        *beside.entry(name.clone()).or_default() -= amount;
    }
    let pods_with_leader = if fits == 1 { count_in(&per_pod, &beside).0 } else { pods };
    Room { pods, pods_with_leader, leader: fits, score, ..Room::default() }
}

fn minus_assumed(mut left: ResourceList, wanted: &Wanted, values: &[Name]) -> ResourceList {
    for assumed in wanted.assumed.iter().filter(|assumed| *assumed.0 == *values) {
        for (name, amount) in &assumed.1 {
            *left.entry(name.clone()).or_default() -= amount;
        }
    }
    left
}

fn sum_children(tree: &FlavorTree, wanted: &Wanted, rooms: &[Room], id: usize) -> Room {
    let mut sum = Room::default();
    let mut least_loss: Option<(i64, i64)> = None;
    for &child in &tree.domains[id].children {
        let room = rooms[child];
        let unit = wanted.layer_size(tree.domains[child].level).unwrap_or(1).max(1);
        let whole = |pods: i64| pods / unit * unit;
        sum.pods += whole(room.pods);
        sum.slices += room.slices;
        sum.score += room.score;
        sum.leader = sum.leader.max(room.leader);
        if room.leader > 0 {
            let loss = (whole(room.pods) - whole(room.pods_with_leader), room.slices - room.slices_with_leader);
            least_loss = Some(least_loss.map_or(loss, |known| (known.0.min(loss.0), known.1.min(loss.1))));
        }
    }
    let (pods_lost, slices_lost) = least_loss.unwrap_or_default();
    sum.pods_with_leader = sum.pods - pods_lost;
    sum.slices_with_leader = sum.slices - slices_lost;
    sum
}

/// A taint as exclusions name it.
fn taint_text(taint: &Taint) -> String {
    format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str())
}

/// Required node affinity against a node.
fn matches(affinity: &NodeAffinity, labels: &Labels, node: &Name) -> bool {
    let Some(terms) = &affinity.required else { return true };
    let fields: Labels = [(Name::from("metadata.name"), node.clone())].into_iter().collect();
    terms.iter().any(|term| {
        (!term.expressions.is_empty() || !term.fields.is_empty())
            && term.expressions.iter().all(|requirement| requirement.matches(labels))
            && term.fields.iter().all(|requirement| requirement.matches(&fields))
    })
}

fn preferred_score(affinity: &NodeAffinity, labels: &Labels) -> i64 {
    let matching = affinity.preferred.iter().filter(|it| it.term.expressions.iter().all(|it| it.matches(labels)));
    matching.map(|it| i64::from(it.weight)).sum()
}

impl Pods {
    /// Tolerations of the pods and of the flavor they run on.
    pub fn tolerate(mut self, more: &[crate::model::Toleration]) -> Pods {
        self.tolerations.extend(more.iter().cloned());
        self
    }
}
