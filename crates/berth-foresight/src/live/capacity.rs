//! The nodes behind the quota: which pods of admitted jobs run, and when.
//!
//! Pods are placed one by one, those of higher priority and of earlier admissions first, each on
//! the first node where it fits. A pool grows by a node where a pod fits on none, up to its
//! maximum; the node is usable after the pool's delays. A pod whose flavor has no node and no pool
//! runs as soon as earlier pods of the flavor did. Nodes that become empty are kept.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use berth_api::berth::NodePoolSpec;
use berth_controllers::devices::Charges;
use berth_controllers::translate::{self, amounts, placement};
use berth_engine::Name;
use berth_engine::model::{Admission, Labels, ResourceFlavor, ResourceList, Taint, Time, Workload};
use berth_load::Capacity;
use k8s_openapi::api::core::v1::Node;

use super::{LiveJob, State};
use crate::objects::machines::{add_devices, is_of_pool, pool_devices, repels, tolerations};
use crate::objects::{Objects, Template};

/// Time from an unplaced pod to the order of a node.
const ORDER_DELAY: Duration = Duration::from_secs(10);
/// Time from a placed pod to its start.
const POD_START: Duration = Duration::from_secs(2);

/// Equal nodes, and those that may still be created.
#[derive(Debug, Clone)]
struct Group {
    labels: Vec<Labels>,
    taints: Vec<Taint>,
    allocatable: ResourceList,
    nodes: Vec<NodeState>,
    max: usize,
    delay: Duration,
}

#[derive(Debug, Clone)]
struct NodeState {
    name: String,
    free: ResourceList,
    ready: Time,
}

/// Equal pods of a job that are not placed.
#[derive(Debug, Clone)]
struct Pods {
    count: i32,
    requests: ResourceList,
    /// The groups on which they may run.
    groups: Vec<usize>,
    /// True if they claim devices, for which pools do not grow.
    claim_devices: bool,
}

/// A job that holds quota.
#[derive(Debug, Clone)]
struct Placed {
    /// Order of its pods: higher priority first, then the earlier admission.
    order: (Reverse<i64>, u64),
    unplaced: Vec<Pods>,
    /// Pods on nodes: the end (none until the run time counts), group, node and requests.
    on_nodes: Vec<(usize, usize, ResourceList)>,
    /// The latest start of a pod.
    latest: Time,
    /// True once the driver knows when it runs.
    is_reported: bool,
}

/// Nodes and pools, and the pods on them.
#[derive(Debug, Clone)]
pub struct Pools {
    groups: Vec<Group>,
    flavors: BTreeMap<Name, ResourceFlavor>,
    delays: BTreeMap<Name, Duration>,
    /// Run times by job.
    run_times: Vec<Duration>,
    /// What the devices of each job change in the requests of its pods.
    devices: Vec<Charges>,
    /// The state's jobs, for those that hold quota at the start.
    initial: BTreeMap<usize, LiveJob>,
    jobs: BTreeMap<usize, Placed>,
    admissions: u64,
    /// Ends of single pods: time, job, admission, and position in `on_nodes`.
    ends: BinaryHeap<Reverse<(Time, usize, u64, usize)>>,
    /// True if pods may fit that did not before.
    is_dirty: bool,
}

impl Pools {
    /// The node pools of the objects. Without any, capacity is not limited: how many nodes the
    /// cloud of a real cluster would add is not known.
    pub fn of(objects: &Objects, state: &State, template: Template<'_>) -> Pools {
        let mut groups = Vec::new();
        let devices = objects.devices();
        for (name, pool) in &objects.node_pools {
            let of_machine = pool_devices(objects, &devices, name);
            groups.extend(group(objects, (name, &pool.object.spec), &template(&pool.object), of_machine, state.at));
        }
        let flavors = objects.flavors.values().map(|it| translate::flavor(&it.object));
        let initial = state.jobs.iter().enumerate().filter(|(_, job)| job.holds());
        let mut pools = Pools {
            groups,
            flavors: flavors.map(|flavor| (flavor.name.clone(), flavor)).collect(),
            delays: BTreeMap::new(),
            run_times: Vec::new(),
            devices: state.jobs.iter().map(|job| job.devices.clone()).collect(),
            initial: initial.map(|(number, job)| (number, job.clone())).collect(),
            jobs: BTreeMap::new(),
            admissions: 0,
            ends: BinaryHeap::new(),
            is_dirty: false,
        };
        pools.occupy(objects, state);
        pools
    }

    /// The capacity of a run in which jobs run this long.
    #[must_use]
    pub fn with_run_times(&self, run_times: Vec<Duration>) -> Pools {
        Pools { run_times, ..self.clone() }
    }

    /// Sets the time from admission to running pods for flavors without nodes and pools.
    pub fn set_delay(&mut self, flavor: Name, delay: Duration) {
        self.delays.insert(flavor, delay);
    }

    /// Takes the room of the pods that belong to no job of the state.
    fn occupy(&mut self, objects: &Objects, state: &State) {
        let jobs: std::collections::BTreeSet<&str> =
            state.jobs.iter().filter_map(|job| job.owner.as_ref().map(|owner| owner.name.as_str())).collect();
        for pod in objects.pods.values() {
            let owners = pod.metadata.owner_references.iter().flatten();
            let of_job = owners.into_iter().any(|owner| jobs.contains(owner.name.as_str()));
            let job_set =
                pod.metadata.labels.as_ref().is_some_and(|it| it.contains_key("jobset.sigs.k8s.io/jobset-uid"));
            if of_job || job_set {
                continue;
            }
            let Some(taken) = translate::node_pod(pod) else { continue };
            for group in &mut self.groups {
                if let Some(node) = group.nodes.iter_mut().find(|node| node.name == *taken.node) {
                    subtract(&mut node.free, &taken.requests);
                }
            }
        }
    }

    /// The groups on which the pods of a set may run, and their requests.
    fn pods(&self, job: usize, workload: &Workload, admission: &Admission) -> Vec<(usize, Pods)> {
        let sets = workload.pod_sets.iter().zip(&admission.pod_sets).enumerate();
        sets.map(|(number, (set, assigned))| {
            let flavors: Vec<&ResourceFlavor> =
                assigned.flavors.values().filter_map(|name| self.flavors.get(name)).collect();
            let mut labels = set.template.node_selector.clone();
            labels.extend(flavors.iter().flat_map(|flavor| flavor.node_labels.clone()));
            // A cluster with pools adds tolerations for devices.
            let tolerations = tolerations(&set.template, &flavors, true);
            let mut requests = set.template.requests.clone();
            if let Some(devices) = self.devices.get(job) {
                devices.apply_to(number, &mut requests);
                // Devices that no machine of the state shows do not limit it.
                let is_shown = |it: &Name| self.groups.iter().any(|group| group.allocatable.contains_key(it));
                requests.retain(|name, _| set.template.requests.contains_key(name) || is_shown(name));
            }
            let fits = |group: &Group| {
                let has = |of: &Labels| labels.iter().all(|(key, value)| of.get(key) == Some(value));
                group.labels.iter().any(has)
                    && group.taints.iter().all(|taint| tolerations.iter().any(|it| it.tolerates(taint)))
                    && is_within(&requests, &group.allocatable)
            };
            let groups = self.groups.iter().enumerate().filter(|(_, group)| fits(group)).map(|(at, _)| at).collect();
            let count = assigned.count.unwrap_or(set.count);
            let claim_devices = requests.keys().any(|name| !set.template.requests.contains_key(name));
            (number, Pods { count, requests, groups, claim_devices })
        })
        .collect()
    }

    /// Places the pods of a job that runs at the start on the nodes where they are.
    fn keep(&mut self, number: usize, job: &LiveJob, placed: &mut Placed, since: Time, now: Time) {
        let mut bound = job.pods.iter();
        let mut unplaced = std::mem::take(&mut placed.unplaced);
        for pods in &mut unplaced {
            while pods.count > 0 {
                let Some(pod) = bound.next() else { break };
                pods.count -= 1;
                let start = pod.since.or(job.running_since).unwrap_or(now).max(since);
                placed.latest = placed.latest.max(start);
                let at = self
                    .groups
                    .iter()
                    .enumerate()
                    .find_map(|(g, group)| Some((g, group.nodes.iter().position(|node| node.name == pod.node)?)));
                if let (Some((g, n)), false) = (at, pod.ended) {
                    subtract(&mut self.groups[g].nodes[n].free, &pods.requests);
                    self.end_later(number, placed, (g, n, pods.requests.clone()), start, now);
                }
            }
        }
        placed.unplaced = unplaced;
        // Ready pods run, even if the set does not have them.
        let are_placed = job.pods.is_empty() || placed.unplaced.iter().all(|pods| pods.count <= 0);
        if let Some(ready) = job.running_since.filter(|_| are_placed) {
            placed.latest = ready.max(since);
            placed.unplaced.clear();
        }
    }

    /// Schedules the end of a pod.
    fn end_later(
        &mut self,
        number: usize,
        placed: &mut Placed,
        at: (usize, usize, ResourceList),
        start: Time,
        now: Time,
    ) {
        let run_time = self.run_times.get(number).copied().unwrap_or_default();
        let end = start.after(run_time).max(now);
        self.ends.push(Reverse((end, number, placed.order.1, placed.on_nodes.len())));
        placed.on_nodes.push(at);
    }

    /// Places what fits.
    fn place(&mut self, now: Time) {
        let mut order: Vec<(Reverse<i64>, u64, usize)> = self
            .jobs
            .iter()
            .filter(|(_, placed)| !placed.unplaced.is_empty())
            .map(|(number, placed)| (placed.order.0, placed.order.1, *number))
            .collect();
        order.sort_unstable();
        for (_, _, number) in order {
            let Some(mut placed) = self.jobs.remove(&number) else { continue };
            let mut rest = Vec::new();
            for mut pods in std::mem::take(&mut placed.unplaced) {
                while pods.count > 0 {
                    let Some((g, n)) = self.room(&pods, now) else { break };
                    pods.count -= 1;
                    subtract(&mut self.groups[g].nodes[n].free, &pods.requests);
                    let start = self.groups[g].nodes[n].ready.max(now).after(POD_START);
                    placed.latest = placed.latest.max(start);
                    self.end_later(number, &mut placed, (g, n, pods.requests.clone()), start, now);
                }
                if pods.count > 0 {
                    rest.push(pods);
                }
            }
            placed.unplaced = rest;
            self.jobs.insert(number, placed);
        }
    }

    /// A node with room for a pod; a new one if a pool can grow.
    fn room(&mut self, pods: &Pods, now: Time) -> Option<(usize, usize)> {
        for g in &pods.groups {
            let nodes = &self.groups[*g].nodes;
            // Usable nodes first, then those that come.
            let mut found = nodes.iter().enumerate().filter(|(_, node)| is_within(&pods.requests, &node.free));
            if let Some(n) = found.clone().find(|(_, node)| node.ready <= now).or_else(|| found.next()) {
                return Some((*g, n.0));
            }
        }
        if pods.claim_devices {
            return None;
        }
        let g = *pods.groups.iter().find(|g| self.groups[**g].nodes.len() < self.groups[**g].max)?;
        let group = &mut self.groups[g];
        let ready = now.after(group.delay);
        group.nodes.push(NodeState { name: String::new(), free: group.allocatable.clone(), ready });
        Some((g, group.nodes.len() - 1))
    }
}

impl Capacity for Pools {
    fn admitted(&mut self, number: usize, workload: &Workload, admission: &Admission, since: Time, now: Time) {
        self.admissions += 1;
        let mut placed = Placed {
            order: (Reverse(workload.priority), self.admissions),
            unplaced: Vec::new(),
            on_nodes: Vec::new(),
            latest: since,
            is_reported: false,
        };
        for (set, pods) in self.pods(number, workload, admission) {
            if pods.groups.is_empty() {
                let flavors = admission.pod_sets.get(set).into_iter().flat_map(|assigned| assigned.flavors.values());
                let delay = flavors.filter_map(|flavor| self.delays.get(flavor)).max().copied().unwrap_or_default();
                placed.latest = placed.latest.max(since.after(delay));
            } else if pods.count > 0 {
                placed.unplaced.push(pods);
            }
        }
        if let Some(job) = self.initial.remove(&number) {
            self.keep(number, &job, &mut placed, since, now);
            placed.unplaced.retain(|pods| pods.count > 0);
        }
        self.jobs.insert(number, placed);
        self.is_dirty = true;
    }

    fn released(&mut self, number: usize, _: Time) {
        self.initial.remove(&number);
        let Some(placed) = self.jobs.remove(&number) else { return };
        for (g, n, requests) in placed.on_nodes {
            add(&mut self.groups[g].nodes[n].free, &requests);
        }
        self.is_dirty = true;
    }

    fn next(&self) -> Option<Time> {
        self.ends.peek().map(|Reverse((at, ..))| *at)
    }

    fn running(&mut self, now: Time) -> Vec<(usize, Time)> {
        while let Some(Reverse((at, number, admission, position))) = self.ends.peek().copied()
            && at <= now
        {
            self.ends.pop();
            let Some(placed) = self.jobs.get_mut(&number).filter(|placed| placed.order.1 == admission) else {
                continue;
            };
            // The amounts are given back once.
            if let Some((g, n, requests)) = placed.on_nodes.get_mut(position) {
                add(&mut self.groups[*g].nodes[*n].free, requests);
                requests.clear();
                self.is_dirty = true;
            }
        }
        if !std::mem::take(&mut self.is_dirty) {
            return Vec::new();
        }
        self.place(now);
        let mut running = Vec::new();
        for (number, placed) in &mut self.jobs {
            if placed.unplaced.is_empty() && !placed.is_reported {
                placed.is_reported = true;
                running.push((*number, placed.latest));
            }
        }
        running
    }
}

/// A pool as a group; `None` if the size of its machines is not known.
fn group(
    objects: &Objects,
    (name, spec): (&str, &NodePoolSpec),
    nodes: &[Node],
    devices: BTreeMap<String, i64>,
    now: Time,
) -> Option<Group> {
    let nodes_of_set = objects.nodes.values().map(|it| &it.object);
    let existing: Vec<&Node> = nodes_of_set.filter(|node| is_of_pool(node, name)).collect();
    let pattern = if spec.is_process() { existing.first().copied() } else { nodes.first() }?;
    let allocatable = pattern.status.as_ref().and_then(|status| status.allocatable.as_ref())?;
    let mut allocatable = amounts::from_resource_list(allocatable);
    add_devices(&mut allocatable, devices);
    let taints = pattern.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let seconds = |delay: Option<berth_api::berth::Duration>, default: u64| {
        delay.map_or(Duration::from_secs(default), |delay| delay.0)
    };
    let mut delay = seconds(spec.start_up_delay, 60) + seconds(spec.ready_delay, 10);
    let accelerators = spec.accelerator().map(|_| seconds(spec.accelerator_ready_delay, 60));
    delay += accelerators.unwrap_or_default();
    let mut states: Vec<NodeState> = existing
        .iter()
        .map(|node| NodeState {
            name: node.metadata.name.clone().unwrap_or_default(),
            free: allocatable.clone(),
            ready: ready_at(node, now),
        })
        .collect();
    for creating in pool_creating(objects, name) {
        states.push(NodeState { name: creating.0, free: allocatable.clone(), ready: creating.1.after(delay).max(now) });
    }
    let labels = if spec.is_process() { vec![pattern] } else { nodes.iter().collect() };
    let max = if spec.is_fixed() { spec.nodes_wanted() } else { spec.nodes_max() };
    Some(Group {
        labels: labels.iter().map(|node| placement::labels(node.metadata.labels.as_ref())).collect(),
        taints: placement::taints(taints).into_iter().filter(repels).collect(),
        allocatable,
        nodes: states,
        max: usize::try_from(max).unwrap_or(0),
        delay: delay + ORDER_DELAY,
    })
}

/// Machines of a pool that were ordered and have not registered, and the time of the order.
fn pool_creating(objects: &Objects, name: &str) -> Vec<(String, Time)> {
    let status = objects.node_pools.get(name).and_then(|pool| pool.object.status.as_ref());
    let creating = status.map(|status| status.creating.as_slice()).unwrap_or_default();
    creating.iter().map(|it| (it.name.clone(), translate::time(it.ordered_at.0))).collect()
}

/// When a node and its accelerators are ready: now, or at the times that a simulated node
/// announces.
fn ready_at(node: &Node, now: Time) -> Time {
    let annotations = node.metadata.annotations.as_ref();
    let at = |key: &str| {
        let text = annotations.and_then(|annotations| annotations.get(key))?;
        text.parse::<jiff::Timestamp>().ok().map(translate::time)
    };
    let times = [at(berth_api::berth::READY_AT_ANNOTATION), at(berth_api::berth::ACCELERATORS_AT_ANNOTATION)];
    times.into_iter().flatten().max().unwrap_or(now).max(now)
}

fn is_within(requests: &ResourceList, free: &ResourceList) -> bool {
    requests.iter().all(|(name, amount)| *amount <= free.get(name).copied().unwrap_or(0))
}

fn subtract(free: &mut ResourceList, requests: &ResourceList) {
    for (name, amount) in requests {
        if let Some(free) = free.get_mut(name) {
            *free = free.saturating_sub(*amount);
        }
    }
}

fn add(free: &mut ResourceList, requests: &ResourceList) {
    for (name, amount) in requests {
        if let Some(free) = free.get_mut(name) {
            *free = free.saturating_add(*amount);
        }
    }
}
