//! Plans the next step of a pool: machines to order, register, make ready or remove.
//!
//! The pool's spec has the desired number of machines; its status and its Nodes have the current
//! state. All times follow from stored values (when a machine was ordered, when a node will be
//! ready), so the plan is the same after a restart.
//!
//! `orders` plans which machines are ordered and removed, [`supply`] evaluates what the cloud has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::{
    ACCELERATORS_AT_ANNOTATION, HOSTED_LABEL, NodePool, NodePoolStatus, READY_AT_ANNOTATION, RESIZE_REQUEST_LABEL,
};
use berth_apimachinery::well_known::NOT_READY;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;

use super::billing::billed;
use super::faults::{self, Draws, FaultPlan};
use super::supply;
use super::template::{
    NodeTimes, SIMULATED_TAINT, label_for_request, node, resources_with_accelerators, simulated_taint,
};
use crate::Site;

/// Taint of nodes that the autoscaler has chosen to remove.
pub const REMOVAL_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// Interval at which the cost of running machines is written.
const BILLING_INTERVAL: SignedDuration = SignedDuration::from_hours(1);
const START_UP_DEFAULT: Duration = Duration::from_secs(60);
const READY_DEFAULT: Duration = Duration::from_secs(10);
const ACCELERATORS_DEFAULT: Duration = Duration::from_secs(60);

/// The next writes for one pool, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolPlan {
    /// Nodes to register.
    pub register: Vec<Node>,
    /// Nodes that become Ready, by name, with the time at which they did.
    pub become_ready: Vec<(String, Timestamp)>,
    /// Nodes whose accelerators become available, by name.
    pub show_accelerators: Vec<String>,
    /// Nodes that get or lose the taint of simulated nodes, by name, with all their taints.
    pub retaint: Vec<(String, Vec<Taint>)>,
    /// Machines that the cloud takes away soon: name, time and reason.
    pub announce: Vec<(String, Timestamp, String)>,
    /// Nodes that change because of faults, by name.
    pub faults: Vec<(String, FaultPlan)>,
    /// Nodes whose machine is removed.
    pub remove: Vec<String>,
    /// Number of machines of an order that the cloud could not fulfil, if it failed now.
    pub out_of_stock: Option<i32>,
    /// The new status of the pool.
    pub status: NodePoolStatus,
    /// Time at which the next step is due.
    pub due: Option<Timestamp>,
}

/// Plans one pool. `nodes` are its nodes. `pod_counts` has the number of unfinished pods of each
/// node, for the choice of nodes to remove. `draws` remembers random faults.
pub fn plan(
    pool: &NodePool,
    nodes: &[Arc<Node>],
    pod_counts: &BTreeMap<String, usize>,
    site: &Site,
    draws: &Draws,
    now: Timestamp,
) -> PoolPlan {
    let status = pool.status.clone().unwrap_or_default();
    if pool.spec.is_process() {
        // The machine registers its node itself.
        return PoolPlan { status: of_machine(pool, nodes, status), ..PoolPlan::default() };
    }
    let mut draft = Draft::new(pool, nodes, site, now);
    draft.end_machines();
    draft.order_and_remove(pod_counts);
    draft.register();
    draft.finish_nodes(draws);
    draft.close()
}

/// A plan in the making.
pub(super) struct Draft<'a> {
    pub(super) pool: &'a NodePool,
    pub(super) site: &'a Site,
    pub(super) now: Timestamp,
    /// True if this is the first plan of the pool.
    pub(super) is_new: bool,
    pub(super) status: NodePoolStatus,
    /// Nodes that are not being deleted.
    pub(super) alive: Vec<&'a Arc<Node>>,
    /// Names of these nodes at the start.
    pub(super) registered: BTreeSet<String>,
    pub(super) plan: PoolPlan,
    pub(super) due: Vec<Timestamp>,
}

impl<'a> Draft<'a> {
    fn new(pool: &'a NodePool, nodes: &'a [Arc<Node>], site: &'a Site, now: Timestamp) -> Self {
        let alive: Vec<_> = nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none()).collect();
        let registered: BTreeSet<String> = alive.iter().map(|node| node.name_any()).collect();
        let mut status = pool.status.clone().unwrap_or_default();
        status.creating.retain(|instance| !registered.contains(&instance.name));
        let is_new = pool.status.is_none();
        let (plan, due) = (PoolPlan::default(), Vec::new());
        Self { pool, site, now, is_new, status, alive, registered, plan, due }
    }

    /// Machines that have started register their nodes.
    fn register(&mut self) {
        let [start_up, ready, accelerators] = delays(self.pool);
        let mut arrived = Vec::new();
        for instance in &self.status.creating {
            let registers = later(instance.ordered_at.0, start_up);
            if registers > self.now {
                self.due.push(registers);
                continue;
            }
            let ready = later(registers, ready);
            let times = NodeTimes { registered: registers, ready, accelerators: later(ready, accelerators) };
            let mut new = node(self.pool, self.site, &instance.zone, &instance.name, times, self.now);
            if let Some(request) = &instance.resize_request {
                label_for_request(&mut new, request);
            }
            arrived.push(instance.name.clone());
            self.plan.register.push(new);
        }
        self.status.creating.retain(|instance| !arrived.contains(&instance.name));
    }

    /// Nodes become ready, and show their accelerators, when their delays are over.
    fn finish_nodes(&mut self, draws: &Draws) {
        let (_, complete) = resources_with_accelerators(self.pool);
        let is_complete = |node: &Node| {
            let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            complete.keys().all(|resource| allocatable.is_some_and(|known| known.contains_key(resource)))
        };
        let (plan, due, now) = (&mut self.plan, &mut self.due, self.now);
        let mut ready_nodes = 0;
        for existing in &self.alive {
            if let Some(taints) = retainted(existing, self.site) {
                plan.retaint.push((existing.name_any(), taints));
            }
            let ready_at = annotated_time(existing.as_ref(), READY_AT_ANNOTATION);
            let complete_at = annotated_time(existing.as_ref(), ACCELERATORS_AT_ANNOTATION);
            if has_taint(existing, NOT_READY) && is_starting(existing) {
                match ready_at {
                    Some(at) if at > now => due.push(at),
                    at => plan.become_ready.push((existing.name_any(), at.unwrap_or(now))),
                }
            }
            if !is_starting(existing) {
                let fault = faults::plan(self.pool, existing, self.site, draws, now);
                due.extend(fault.due);
                let changes = fault.metadata.is_some() || fault.silent.is_some() || fault.problem.is_some();
                plan.faults.extend(changes.then(|| (existing.name_any(), fault)));
            }
            if !is_complete(existing) {
                match complete_at {
                    Some(at) if at > now => due.push(at),
                    _ => plan.show_accelerators.push(existing.name_any()),
                }
            }
            if is_ready(existing) && is_complete(existing) {
                ready_nodes += 1;
            }
        }
        for new in &plan.register {
            let keys = [READY_AT_ANNOTATION, ACCELERATORS_AT_ANNOTATION];
            due.extend(keys.iter().filter_map(|key| annotated_time(new, key)));
            if is_ready(new) && is_complete(new) {
                ready_nodes += 1;
            }
        }
        self.status.ready_nodes = ready_nodes;
    }

    /// The finished plan. Its status counts the nodes as the plan leaves them.
    fn close(mut self) -> PoolPlan {
        let nodes = i32::try_from(self.alive.len() + self.plan.register.len()).unwrap_or(i32::MAX);
        self.status.nodes = nodes;
        self.status.stock = supply::stock(self.pool, self.site, self.now);
        self.due.extend(supply::next_change(self.pool, self.now));
        let billing = billed(self.status.billing.as_ref(), nodes, self.pool.spec.price(), self.now);
        if nodes > 0 && self.pool.spec.price() > 0.0 {
            self.due.push(later(billing.up_to.0, BILLING_INTERVAL));
        }
        self.status.billing = Some(billing);
        self.status.observed_generation = self.pool.metadata.generation;
        self.plan.status = self.status;
        self.plan.due = self.due.into_iter().filter(|at| *at > self.now).min();
        self.plan
    }
}

/// The times of a new machine: from the order to its registration, then until it is ready, then
/// until its accelerators are available.
fn delays(pool: &NodePool) -> [SignedDuration; 3] {
    let delay = |given: Option<berth_api::berth::Duration>, default: Duration| {
        SignedDuration::try_from(given.map_or(default, |given| given.0)).unwrap_or_default()
    };
    let spec = &pool.spec;
    [
        delay(spec.start_up_delay, START_UP_DEFAULT),
        delay(spec.ready_delay, READY_DEFAULT),
        delay(spec.accelerator_ready_delay, ACCELERATORS_DEFAULT),
    ]
}

/// Time from the order of a machine of the pool until pods can use all of it.
pub fn start_time(pool: &NodePool) -> SignedDuration {
    let [start_up, ready, accelerators] = delays(pool);
    let usable = if pool.spec.accelerator().is_some() { accelerators } else { SignedDuration::ZERO };
    start_up.saturating_add(ready).saturating_add(usable)
}

/// The status of the pool that represents the machine on which Berth runs.
fn of_machine(pool: &NodePool, nodes: &[Arc<Node>], status: NodePoolStatus) -> NodePoolStatus {
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    NodePoolStatus {
        nodes: count(nodes.len()),
        ready_nodes: count(nodes.iter().filter(|node| is_ready(node)).count()),
        observed_generation: pool.metadata.generation,
        ..status
    }
}

/// The taints of a node after the cluster got or lost a real node. `None` if they do not change.
fn retainted(node: &Node, site: &Site) -> Option<Vec<Taint>> {
    let has_simulated_pods = site.taints_simulated && !is_hosted(node);
    if has_taint(node, SIMULATED_TAINT) == has_simulated_pods {
        return None;
    }
    let known = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let mut taints: Vec<Taint> = known.into_iter().filter(|taint| taint.key != SIMULATED_TAINT).collect();
    if has_simulated_pods {
        taints.push(simulated_taint());
    }
    Some(taints)
}

/// True if the pods on this node of a simulated cloud run as processes, where a machine runs them.
pub fn is_hosted(node: &Node) -> bool {
    node.labels().contains_key(HOSTED_LABEL)
}

/// The resize request for which a node was ordered.
pub fn request_of(node: &Node) -> Option<&str> {
    node.labels().get(RESIZE_REQUEST_LABEL).map(String::as_str)
}

/// True if the node has a taint with this key.
pub fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == key)
}

/// True if the node reports Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// True if it is NotReady because it has just registered, and not because of a failure.
fn is_starting(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| {
        condition.type_ == "Ready"
            && condition.status != "True"
            && condition.reason.as_deref() == Some("KubeletNotReady")
    })
}

/// The time in an annotation. `None` if the object does not have it, or it is no time.
pub fn annotated_time(object: &impl ResourceExt, key: &str) -> Option<Timestamp> {
    object.annotations().get(key)?.parse().ok()
}

pub(super) fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The zones of a pool; at least one.
pub fn zones(pool: &NodePool, site: &Site) -> Vec<String> {
    if pool.spec.zones.is_empty() { vec![format!("{}-a", site.region)] } else { pool.spec.zones.clone() }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::{LocationPolicy, NodePoolSpec, PoolRuntime, ResizeRequest};

    use super::*;

    fn plan(
        pool: &NodePool,
        nodes: &[Arc<Node>],
        pod_counts: &BTreeMap<String, usize>,
        site: &Site,
        now: Timestamp,
    ) -> PoolPlan {
        super::plan(pool, nodes, pod_counts, site, &Draws::default(), now)
    }

    fn site() -> Site {
        Site {
            cluster: "batch-dev".into(),
            region: "us-central1".into(),
            version: "v1.35.2".into(),
            seed: 1,
            ..Site::default()
        }
    }

    fn pool(spec: NodePoolSpec, is_new: bool) -> NodePool {
        let mut pool = NodePool::new("spot-np", spec);
        pool.status = (!is_new).then(NodePoolStatus::default);
        pool
    }

    fn gpu_pool(nodes: i32, is_new: bool) -> NodePool {
        let spec = NodePoolSpec {
            machine_type: Some("g2-standard-24".into()),
            initial_nodes: nodes,
            zones: vec!["us-central1-a".into(), "us-central1-b".into(), "us-central1-c".into()],
            ..Default::default()
        };
        pool(spec, is_new)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn a_new_pools_first_nodes_are_ready_and_spread_over_its_zones() {
        let mut pool = gpu_pool(6, true);
        pool.spec.location_policy = LocationPolicy::Balanced;
        let plan = plan(&pool, &[], &BTreeMap::new(), &site(), at(0));
        // The next step is the bill after an hour.
        assert_eq!((plan.register.len(), plan.status.ready_nodes, plan.due), (6, 6, Some(at(3600))));
        let names: BTreeSet<_> = plan.register.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names.len(), 6);
        assert!(names.iter().all(|name| name.starts_with("gke-batch-dev-spot-np-")), "{names:?}");
    }

    #[test]
    fn an_ordered_machine_registers_then_is_ready_then_has_its_accelerators() {
        let mut pool = gpu_pool(1, false);
        let first = plan(&pool, &[], &BTreeMap::new(), &site(), at(0));
        assert_eq!((first.register.len(), first.status.creating.len(), first.due), (0, 1, Some(at(60))));
        pool.status = Some(first.status);
        let second = plan(&pool, &[], &BTreeMap::new(), &site(), at(60));
        assert_eq!((second.register.len(), second.status.creating.len(), second.due), (1, 0, Some(at(70))));
        assert!(has_taint(&second.register[0], NOT_READY));
        let node = Arc::new(second.register[0].clone());
        pool.status = Some(second.status);
        let third = plan(&pool, std::slice::from_ref(&node), &BTreeMap::new(), &site(), at(70));
        assert_eq!((third.become_ready.len(), third.show_accelerators.len(), third.due), (1, 0, Some(at(130))));
        let fourth = plan(&pool, &[node], &BTreeMap::new(), &site(), at(130));
        assert_eq!(fourth.show_accelerators.len(), 1);
    }

    #[test]
    fn marked_nodes_and_orders_are_removed_first() {
        let mut pool = gpu_pool(4, true);
        let made = plan(&pool, &[], &BTreeMap::new(), &site(), at(0));
        pool.status = Some(made.status);
        let mut nodes = made.register;
        let marked = nodes[2].name_any();
        nodes[2].spec.as_mut().unwrap().taints.as_mut().unwrap().push(k8s_openapi::api::core::v1::Taint {
            key: REMOVAL_TAINT.into(),
            effect: "NoSchedule".into(),
            ..Default::default()
        });
        let nodes: Vec<_> = nodes.into_iter().map(Arc::new).collect();
        pool.spec.nodes = Some(3);
        let down = plan(&pool, &nodes, &BTreeMap::new(), &site(), at(10));
        assert_eq!((down.remove, down.status.nodes), (vec![marked], 3));
    }

    #[test]
    fn machines_of_a_resize_request_are_in_its_zone_and_are_removed_with_it() {
        let mut pool = gpu_pool(0, false);
        pool.spec.resize_requests = vec![ResizeRequest {
            name: "r1".into(),
            nodes: 2,
            zone: Some("us-central1-b".into()),
            ..Default::default()
        }];
        let ordered = plan(&pool, &[], &BTreeMap::new(), &site(), at(0));
        assert!(ordered.status.creating.iter().all(|instance| instance.zone == "us-central1-b"));
        pool.status = Some(ordered.status);
        let registered = plan(&pool, &[], &BTreeMap::new(), &site(), at(60));
        let nodes: Vec<_> = registered.register.into_iter().map(Arc::new).collect();
        assert!(nodes.iter().all(|node| request_of(node) == Some("r1")) && nodes.len() == 2);
        pool.status = Some(registered.status);
        pool.spec.resize_requests.clear();
        assert_eq!(plan(&pool, &nodes, &BTreeMap::new(), &site(), at(61)).remove.len(), 2);
    }

    #[test]
    fn simulated_nodes_beside_a_real_one_get_a_taint_and_lose_it_again() {
        let pool = gpu_pool(1, true);
        let alone = plan(&pool, &[], &BTreeMap::new(), &site(), at(0));
        let nodes: Vec<_> = alone.register.into_iter().map(Arc::new).collect();
        assert!(!has_taint(&nodes[0], SIMULATED_TAINT));
        let mut known = pool.clone();
        known.status = Some(alone.status);
        let beside = Site { taints_simulated: true, ..site() };
        let planned = plan(&known, &nodes, &BTreeMap::new(), &beside, at(1));
        let [(name, taints)] = planned.retaint.as_slice() else { panic!("{:?}", planned.retaint) };
        assert_eq!(*name, nodes[0].name_any());
        let mut tainted = (*nodes[0]).clone();
        let before = tainted.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        assert_eq!(taints.len(), before.len() + 1);
        tainted.spec.as_mut().expect("a spec").taints = Some(taints.clone());
        let tainted = [Arc::new(tainted)];
        assert!(plan(&known, &tainted, &BTreeMap::new(), &beside, at(2)).retaint.is_empty());
        let again = plan(&known, &tainted, &BTreeMap::new(), &site(), at(3));
        assert_eq!(again.retaint, [(nodes[0].name_any(), before)]);
        // New nodes, and the autoscaler's templates, have the taint from the start.
        let new = plan(&pool, &[], &BTreeMap::new(), &beside, at(0));
        assert!(new.register.iter().all(|node| has_taint(node, SIMULATED_TAINT)));
    }

    #[test]
    fn nodes_that_run_processes_do_not_get_the_taint_of_simulated_nodes() {
        let mut pool = gpu_pool(1, true);
        pool.spec.runtime = PoolRuntime::Hosted;
        assert_eq!(pool.spec.problems("spec"), []);
        let beside = Site { taints_simulated: true, ..site() };
        let new = plan(&pool, &[], &BTreeMap::new(), &beside, at(0));
        let nodes: Vec<_> = new.register.into_iter().map(Arc::new).collect();
        assert!(is_hosted(&nodes[0]) && !has_taint(&nodes[0], SIMULATED_TAINT));
        pool.status = Some(new.status);
        assert!(plan(&pool, &nodes, &BTreeMap::new(), &beside, at(1)).retaint.is_empty());
    }

    #[test]
    fn the_pool_of_this_machine_orders_and_removes_nothing() {
        let spec: NodePoolSpec = serde_json::from_value(serde_json::json!({ "runtime": "process" })).expect("a spec");
        assert_eq!(spec.problems("spec"), []);
        let pool = NodePool::new("machine", spec);
        let node = Arc::new(super::super::template(&pool, &site(), "z", "laptop"));
        for nodes in [Vec::new(), vec![node]] {
            let planned = plan(&pool, &nodes, &BTreeMap::new(), &Site { taints_simulated: true, ..site() }, at(0));
            let count = i32::try_from(nodes.len()).expect("small");
            assert_eq!((planned.status.nodes, planned.status.ready_nodes), (count, count));
            assert_eq!(PoolPlan { status: NodePoolStatus::default(), ..planned }, PoolPlan::default());
        }
    }
}
