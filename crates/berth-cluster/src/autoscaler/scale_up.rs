//! Plans scale-up: which pools grow by how many nodes, which pools are created, and why some pods
//! trigger neither.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{ClusterConfiguration, NodePool};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use kube::ResourceExt;

use super::binpack::{Packed, pack};
use super::provision::derive_pool;
use super::view::{View, add_capacity};
use crate::placement::{Cluster, NodeState, Packing, Placement, PodInfo, Resources, amount, fits, place};
use crate::pools::{template, zones};

/// Exclusive upper bound of the numbers in the names of pools that node auto-provisioning creates
/// for equal TPU slices.
const SLICES_MAX: usize = 1000;

/// A pool that grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Name of the pool.
    pub pool: String,
    /// `spec.nodes` before the growth; nodes of resize requests do not count.
    pub from: i32,
    /// `spec.nodes` after the growth.
    pub to: i32,
    /// Maximum number of nodes of the pool.
    pub max: i32,
    /// The pool to create, if it does not exist.
    pub new_pool: Option<Box<NodePool>>,
    /// Pods that the new nodes are for.
    pub pods: Vec<ObjectKey>,
}

/// The planned scale-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleUp {
    /// Pools that grow, in the order in which they were chosen.
    pub growths: Vec<Growth>,
    /// Pods for which no pool can grow, with the reasons.
    pub unhelped: BTreeMap<ObjectKey, String>,
    /// Pools whose orders the cloud could not fulfil, with the number of machines that they keep.
    pub withdraw: BTreeMap<String, i32>,
    /// End of the first back-off, if pods wait.
    pub due: Option<Timestamp>,
}

/// Plans growth for the view's pending pods. Pods that fit on ordered nodes need none.
///
/// Of several suitable pools, the pool with the lowest price per placed pod grows. If prices are
/// equal, the pool that places more pods is chosen, then the first name; the Kubernetes autoscaler
/// chooses at random. New pools are created only for pods that fit on no existing pool.
///
/// A pool whose last order the cloud could not fulfil does not grow before its back-off is over.
pub fn plan_scale_up(view: &View, configuration: &ClusterConfiguration, now: Timestamp) -> ScaleUp {
    let mut plan = ScaleUp { withdraw: withdrawals(view), ..ScaleUp::default() };
    if view.pending.is_empty() {
        return plan;
    }
    let mut cluster = view.cluster().clone();
    let mut left = without_nodes(&mut cluster, &view.pending);
    if left.is_empty() {
        return plan;
    }
    // Grow the cheapest suitable pool, until no pool helps a remaining pod.
    let mut budget = Budget::new(view, configuration);
    let machines: BTreeMap<String, NodeState> =
        view.growable().map(|pool| (pool.name_any(), new_node(pool, view, 0))).collect();
    let mut grown: BTreeMap<String, i32> = BTreeMap::new();
    loop {
        let mut best: Option<(Cost, &Arc<NodePool>, Packed)> = None;
        for pool in view.growable() {
            if configuration.autoscaling.retry_at(pool).is_some_and(|retry| retry > now) {
                continue;
            }
            let own = pool.spec.nodes_own() + grown.get(&pool.name_any()).copied().unwrap_or(0);
            let room = pool.spec.nodes_max().saturating_sub(own).max(0);
            let room = usize::try_from(room).unwrap_or(0).min(budget.nodes);
            if room == 0 {
                continue;
            }
            let make = |i: usize| new_node(pool, view, usize::try_from(own).unwrap_or(0) + i);
            let room = budget.limited(&machines[&pool.name_any()].node, room);
            let Some(packed) = packed_whole(pool, &left, &cluster, room, make) else { continue };
            let cost = Cost::of(pool, &packed);
            if best.as_ref().is_none_or(|(known, ..)| cost.is_better_than(known)) {
                best = Some((cost, pool, packed));
            }
        }
        let Some((_, pool, packed)) = best else { break };
        let own = pool.spec.nodes_own();
        let count = i32::try_from(packed.nodes.len()).unwrap_or(i32::MAX);
        *grown.entry(pool.name_any()).or_insert(0) += count;
        let to = own + grown[&pool.name_any()];
        let pods = take_placed(&mut left, &packed);
        budget.take(&packed.nodes);
        for node in &packed.nodes {
            cluster.add_node(node);
        }
        match plan.growths.iter_mut().find(|growth| growth.pool == pool.name_any()) {
            Some(growth) => {
                growth.to = to;
                growth.pods.extend(pods);
            }
            None => plan.growths.push(Growth {
                pool: pool.name_any(),
                from: own,
                to,
                max: pool.spec.nodes_max(),
                new_pool: None,
                pods,
            }),
        }
    }
    create_pools((view, configuration, now), &machines, &mut left, &mut budget, &mut plan);
    // The pods that are left: when to try again, and why no pool helps.
    if !left.is_empty() {
        let retries = view.growable().filter_map(|pool| configuration.autoscaling.retry_at(pool));
        plan.due = retries.filter(|at| *at > now).min();
    }
    for pod in left {
        let why = || reasons(&pod, (view, configuration, now), &machines, &grown);
        plan.unhelped.entry(pod.key.clone()).or_insert_with(why);
    }
    plan
}

/// Places pods on existing nodes, and returns those that need new ones.
fn without_nodes(cluster: &mut Cluster, pending: &[Arc<PodInfo>]) -> Vec<Arc<PodInfo>> {
    let mut left = Vec::new();
    for pod in pending {
        // Preemption is freeing a node for this pod.
        if let Some(node) = pod.nominated_node().filter(|node| cluster.node(node).is_some()).map(str::to_owned) {
            cluster.place(pod.clone(), &node);
            continue;
        }
        match place(pod, cluster, Packing::Pack) {
            Placement::Node(node) => cluster.place(pod.clone(), &node),
            Placement::Nowhere { .. } => left.push(pod.clone()),
        }
    }
    left
}

/// Node auto-provisioning: plans new pools for pods that fit on no existing pool.
fn create_pools(
    (view, configuration, now): (&View, &ClusterConfiguration, Timestamp),
    machines: &BTreeMap<String, NodeState>,
    left: &mut Vec<Arc<PodInfo>>,
    budget: &mut Budget,
    plan: &mut ScaleUp,
) {
    if !configuration.node_auto_provisioning.enabled {
        return;
    }
    let mut position = 0;
    while position < left.len() {
        let pod = left[position].clone();
        let derived = derive_pool(&pod, configuration);
        let mut pool = match derived {
            Ok(pool) => pool,
            Err(why) => {
                plan.unhelped.insert(
                    pod.key.clone(),
                    format!("{}, {why}", reasons(&pod, (view, configuration, now), machines, &BTreeMap::new())),
                );
                position += 1;
                continue;
            }
        };
        let is_known =
            |name: &str| view.pools.contains_key(name) || plan.growths.iter().any(|growth| growth.pool == name);
        if pool.spec.is_slice() {
            // A pool is one slice, so a further slice is a further pool.
            let first = pool.name_any();
            let names = (2..SLICES_MAX).map(|number| format!("{first}-{number}"));
            let free = std::iter::once(first.clone()).chain(names).find(|name| !is_known(name));
            pool.metadata.name = Some(free.unwrap_or(first));
        }
        let name = pool.name_any();
        if is_known(&name) {
            position += 1;
            continue;
        }
        let make = |i: usize| new_node(&pool, view, i);
        let room = usize::try_from(pool.spec.nodes_max()).unwrap_or(0).min(budget.nodes);
        let room = budget.limited(&make(0).node, room);
        let packed = packed_whole(&pool, left, view.cluster(), room, make).unwrap_or_default();
        if !packed.placed.contains(&position) {
            let hosts = pool.spec.slice_hosts();
            if room < usize::try_from(hosts).unwrap_or(1) {
                let mut why = "no.scale.up.nap: the limits of node auto-provisioning are reached".to_owned();
                if let Some(limit) = budget.shortage(&make(0).node, hosts) {
                    why.push_str(&format!(": {limit}"));
                }
                plan.unhelped.insert(pod.key.clone(), format!("pod didn't trigger scale-up: {why}"));
            }
            position += 1;
            continue;
        }
        let count = i32::try_from(packed.nodes.len()).unwrap_or(i32::MAX);
        pool.spec.nodes = Some(count);
        budget.take(&packed.nodes);
        let pods = take_placed(left, &packed);
        plan.growths.push(Growth {
            pool: name,
            from: 0,
            to: count,
            max: pool.spec.nodes_max(),
            new_pool: Some(Box::new(pool)),
            pods,
        });
        position = 0;
    }
}

/// Packs pods on at most `room` new nodes of a pool; whole TPU slices only. `None` if no pod is
/// placed.
fn packed_whole(
    pool: &NodePool,
    left: &[Arc<PodInfo>],
    cluster: &Cluster,
    room: usize,
    make: impl Fn(usize) -> NodeState,
) -> Option<Packed> {
    let mut packed = pack(left, cluster, room, &make);
    if packed.placed.is_empty() {
        return None;
    }
    let used = i32::try_from(packed.nodes.len()).unwrap_or(i32::MAX);
    let whole = usize::try_from(pool.spec.whole_slices(used)).unwrap_or(0);
    if whole > room {
        return None;
    }
    packed.nodes.extend((packed.nodes.len()..whole).map(make));
    Some(packed)
}

/// Pools with an order that the cloud could not fulfil, and the number of machines that they have.
fn withdrawals(view: &View) -> BTreeMap<String, i32> {
    let short = |pool: &Arc<NodePool>| {
        let missing = pool.status.as_ref()?.shortage.as_ref()?.missing;
        // The machines of a pool's minimum stay ordered until the cloud delivers them.
        let kept = pool.spec.nodes_own().saturating_sub(missing).max(pool.spec.min_nodes);
        (missing > 0 && kept < pool.spec.nodes_own()).then(|| (pool.name_any(), kept))
    };
    view.growable().filter_map(short).collect()
}

/// Removes the placed pods from `left`. Returns their keys.
fn take_placed(left: &mut Vec<Arc<PodInfo>>, packed: &Packed) -> Vec<ObjectKey> {
    let mut positions = packed.placed.iter().copied().peekable();
    let mut keys = Vec::new();
    let mut at = 0;
    left.retain(|pod| {
        let is_helped = positions.next_if(|position| *position == at).is_some();
        at += 1;
        if is_helped {
            keys.push(pod.key.clone());
        }
        !is_helped
    });
    keys
}

/// A new node of a pool, with the pods that DaemonSets will create on it.
fn new_node(pool: &NodePool, view: &View, number: usize) -> NodeState {
    let zone = zones(pool, &view.site).swap_remove(0);
    view.with_daemons(template(pool, &view.site, &zone, &format!("{}-new-{number}", pool.name_any())))
}

/// The message that explains why no pool grows for a pod, in the words of the Kubernetes
/// autoscaler. `machines` has a new node of each pool.
fn reasons(
    pod: &PodInfo,
    (view, configuration, now): (&View, &ClusterConfiguration, Timestamp),
    machines: &BTreeMap<String, NodeState>,
    grown: &BTreeMap<String, i32>,
) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for pool in view.growable() {
        let own = pool.spec.nodes_own() + grown.get(&pool.name_any()).copied().unwrap_or(0);
        let is_backed_off = configuration.autoscaling.retry_at(pool).is_some_and(|retry| retry > now);
        let why = match fits(pod, &machines[&pool.name_any()], &Resources::default()) {
            Err(unfit) => unfit.iter().map(ToString::to_string).collect(),
            Ok(()) if is_backed_off => vec!["in backoff after failed scale-up".to_owned()],
            Ok(()) if own >= pool.spec.nodes_max() => vec!["max node group size reached".to_owned()],
            Ok(()) => vec!["max cluster limit reached".to_owned()],
        };
        for reason in why {
            *counts.entry(reason).or_insert(0) += 1;
        }
    }
    let parts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let parts = if parts.is_empty() { "no node group can grow".to_owned() } else { parts.join(", ") };
    format!("pod didn't trigger scale-up: {parts}")
}

/// Sort key for the choice of a pool: dollars per hour and placed pod, then the number of placed
/// pods (more is better), then the name.
struct Cost {
    per_pod: f64,
    take_placed: usize,
    name: String,
}

impl Cost {
    fn of(pool: &NodePool, packed: &Packed) -> Self {
        let per_pod = pool.spec.price() * packed.nodes.len() as f64 / packed.placed.len() as f64;
        Self { per_pod, take_placed: packed.placed.len(), name: pool.name_any() }
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let order = self.per_pod.total_cmp(&other.per_pod).then(other.take_placed.cmp(&self.take_placed));
        order.then_with(|| self.name.cmp(&other.name)).is_lt()
    }
}

/// The limits on the growth of the whole cluster.
struct Budget {
    /// Number of nodes that may still be added.
    nodes: usize,
    /// Current capacity, by resource.
    totals: BTreeMap<String, i64>,
    /// Maximum capacity of node auto-provisioning, by resource.
    limits: BTreeMap<String, i64>,
}

impl Budget {
    fn new(view: &View, configuration: &ClusterConfiguration) -> Self {
        let scaling = &configuration.autoscaling;
        let mut nodes = usize::try_from(scaling.max_nodes_per_scale_up).unwrap_or(0);
        if scaling.max_nodes_total > 0 {
            let most = usize::try_from(scaling.max_nodes_total).unwrap_or(0);
            nodes = nodes.min(most.saturating_sub(view.cluster().node_count()));
        }
        let provisioning = &configuration.node_auto_provisioning;
        let mut limits = BTreeMap::new();
        if provisioning.enabled {
            for (name, limit) in &provisioning.limits {
                if let Some(max) = &limit.max {
                    limits.insert(name.clone(), amount(name, max));
                }
            }
        }
        Self { nodes, totals: view.totals(), limits }
    }

    /// Number of nodes like this one that the limits allow, at most `wanted`.
    fn limited(&self, node: &k8s_openapi::api::core::v1::Node, wanted: usize) -> usize {
        let mut one = BTreeMap::new();
        add_capacity(&mut one, node, 1);
        one.iter().fold(wanted, |most, (name, each)| match self.limits.get(name) {
            Some(limit) if *each > 0 => {
                let free = (limit - self.totals.get(name).copied().unwrap_or(0)).max(0);
                most.min(usize::try_from(free / each).unwrap_or(usize::MAX))
            }
            _ => most,
        })
    }

    /// The first limit that does not allow `count` more nodes like this one.
    fn shortage(&self, node: &k8s_openapi::api::core::v1::Node, count: i32) -> Option<String> {
        let mut one = BTreeMap::new();
        add_capacity(&mut one, node, 1);
        one.iter().find_map(|(name, each)| {
            let limit = *self.limits.get(name)?;
            let has = self.totals.get(name).copied().unwrap_or(0);
            let needed = each.saturating_mul(i64::from(count));
            let text = || {
                let [needed, limit, has] = [needed, limit, has].map(|amount| in_units(name, amount));
                let machines = if count == 1 { "machine needs" } else { "machines need" };
                format!("{count} more {machines} {needed} of {name}; the limit is {limit}, and the cluster has {has}")
            };
            (needed > limit.saturating_sub(has)).then(text)
        })
    }

    fn take(&mut self, nodes: &[NodeState]) {
        self.nodes = self.nodes.saturating_sub(nodes.len());
        for node in nodes {
            add_capacity(&mut self.totals, &node.node, 1);
        }
    }
}

/// An amount of `cpu` (milli), `memory` (bytes) or an accelerator, for messages.
fn in_units(name: &str, amount: i64) -> String {
    match name {
        "cpu" if amount % 1000 == 0 => (amount / 1000).to_string(),
        "cpu" => format!("{amount}m"),
        "memory" => format!("{}Gi", amount >> 30),
        _ => amount.to_string(),
    }
}
