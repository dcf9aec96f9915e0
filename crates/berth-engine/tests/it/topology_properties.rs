//! Properties of topology placement on random racks, checked against a slow, obvious model.
//!
//! `PROPTEST_CASES` runs more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::model::{
    ClusterQueue, FlavorQuotas, LabelSelector, LocalQueue, Node, NodePod, PodSet, PodTemplate, Quota, ResourceFlavor,
    ResourceGroup, ResourceList, SliceConstraint, StopPolicy, Taint, TaintEffect, Time, Topology, TopologyAssignment,
    TopologyMode, TopologyRequest, Workload, WorkloadKey,
};
use berth_engine::{Amount, Engine, EngineConfig, Event, Name};
use proptest::prelude::*;

use crate::reference::placement;

const HOSTNAME: &str = "kubernetes.io/hostname";
const LEVELS: [&str; 3] = ["block", "rack", HOSTNAME];

/// A node of a random cluster.
#[derive(Debug, Clone)]
struct Machine {
    block: usize,
    rack: usize,
    cores: i64,
    pods: i64,
    gpus: Option<i64>,
    ready: bool,
    /// Cores that a pod outside topology-aware scheduling uses.
    other: Option<i64>,
}

/// A workload of one pod set.
#[derive(Debug, Clone)]
struct Gang {
    count: i32,
    cores: i64,
    gpus: i64,
    mode: Option<(bool, usize)>,
    /// Level and size of slices; the count is a multiple of the size.
    slice: Option<(usize, i32)>,
}

fn machine() -> impl Strategy<Value = Machine> {
    (
        0_usize..2,
        0_usize..3,
        0_i64..9,
        1_i64..8,
        proptest::option::of(0_i64..4),
        prop_oneof![8 => Just(true), 1 => Just(false)],
        proptest::option::weighted(0.3, 0_i64..4),
    )
        .prop_map(|(block, rack, cores, pods, gpus, ready, other)| Machine {
            block,
            rack,
            cores,
            pods,
            gpus,
            ready,
            other,
        })
}

fn machines() -> impl Strategy<Value = Vec<Machine>> {
    proptest::collection::vec(machine(), 1..14)
}

fn gang() -> impl Strategy<Value = Gang> {
    let mode = prop_oneof![Just(None), (any::<bool>(), 0_usize..3).prop_map(Some)];
    (1_i32..10, 0_i64..4, 0_i64..2, mode).prop_map(|(count, cores, gpus, mode)| Gang {
        count,
        cores,
        gpus,
        mode,
        slice: None,
    })
}

fn sliced() -> impl Strategy<Value = Gang> {
    (gang(), 1_i32..4, 1_i32..4, 0_usize..3).prop_map(|(gang, size, slices, level)| {
        let level = level.max(gang.mode.map_or(0, |(_, level)| level));
        Gang { count: size * slices, slice: Some((level, size)), ..gang }
    })
}

/// A change between two placements.
#[derive(Debug, Clone)]
enum Change {
    Submit(Gang),
    /// A placed gang leaves.
    Leave,
    /// A node joins, or gets this state.
    Node(Machine),
    Taint,
    NodeGone,
    /// A pod outside topology-aware scheduling is created, or moves.
    OtherPod(i64),
    OtherPodGone,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => prop_oneof![gang(), sliced()].prop_map(Change::Submit),
        3 => Just(Change::Leave),
        2 => machine().prop_map(Change::Node),
        1 => Just(Change::Taint),
        1 => Just(Change::NodeGone),
        2 => (0_i64..4).prop_map(Change::OtherPod),
        1 => Just(Change::OtherPodGone),
    ]
}

fn name(text: &str) -> Name {
    Name::from(text)
}

fn host(at: usize) -> String {
    format!("host-{at:02}")
}

fn values(at: usize, machine: &Machine) -> [String; 3] {
    [format!("b{}", machine.block), format!("b{}-r{}", machine.block, machine.rack), host(at)]
}

fn amounts(list: &[(&str, i64)]) -> ResourceList {
    list.iter().map(|(resource, amount)| (name(resource), *amount)).collect()
}

fn now() -> Time {
    Time::from_seconds(1_000_000)
}

fn node(at: usize, machine: &Machine) -> Node {
    let mut allocatable = amounts(&[("cpu", machine.cores * 1000), ("pods", machine.pods)]);
    allocatable.extend(machine.gpus.map(|gpus| (name("gpu"), gpus)));
    Node {
        name: name(&host(at)),
        labels: LEVELS.iter().zip(values(at, machine)).map(|(level, value)| (name(level), name(&value))).collect(),
        taints: Vec::new(),
        allocatable,
        ready: machine.ready,
        unschedulable: false,
    }
}

/// An engine over these machines, added in this order.
fn engine(machines: &[Machine], order: &[usize]) -> Engine {
    engine_with(EngineConfig::default(), machines, order)
}

fn engine_with(config: EngineConfig, machines: &[Machine], order: &[usize]) -> Engine {
    let mut engine = Engine::new(config);
    let mut queue = ClusterQueue::new("queue");
    queue.namespace_selector = Some(LabelSelector::default());
    let resources = [name("cpu"), name("gpu")];
    let quota = Quota { nominal: Amount::Bounded(1 << 40), borrowing_limit: None, lending_limit: None };
    queue.resource_groups = vec![ResourceGroup {
        resources: resources.to_vec(),
        flavors: vec![FlavorQuotas { flavor: name("racks"), quotas: resources.map(|it| (it, quota)).to_vec() }],
    }];
    for event in [
        Event::NamespaceUpserted { name: name("default"), labels: Default::default() },
        Event::TopologyUpserted(Topology { name: name("racks"), levels: LEVELS.map(name).to_vec() }),
        Event::FlavorUpserted(ResourceFlavor {
            name: name("racks"),
            topology: Some(name("racks")),
            ..ResourceFlavor::default()
        }),
        Event::ClusterQueueUpserted(queue),
        Event::LocalQueueUpserted(LocalQueue {
            namespace: name("default"),
            name: name("queue"),
            cluster_queue: name("queue"),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        }),
    ] {
        engine.apply(event, now());
    }
    for &at in order {
        engine.apply(Event::NodeUpserted(node(at, &machines[at])), now());
        if let Some(cores) = machines[at].other {
            let pod = NodePod {
                namespace: name("kube-system"),
                name: name(&format!("daemon-{at}")),
                node: name(&host(at)),
                requests: amounts(&[("cpu", cores * 1000)]),
            };
            engine.apply(Event::NodePodUpserted(pod), now());
        }
    }
    engine
}

fn in_order(machines: &[Machine]) -> Vec<usize> {
    (0..machines.len()).collect()
}

fn workload(title: &str, gang: &Gang) -> Workload {
    let mut requests = amounts(&[("cpu", gang.cores * 1000)]);
    if gang.gpus > 0 {
        requests.insert(name("gpu"), gang.gpus);
    }
    let mode = match gang.mode {
        None => TopologyMode::Unconstrained,
        Some((true, level)) => TopologyMode::Required(name(LEVELS[level])),
        Some((false, level)) => TopologyMode::Preferred(name(LEVELS[level])),
    };
    let slices = gang.slice.iter().map(|(level, size)| SliceConstraint { level: name(LEVELS[*level]), size: *size });
    let mut workload = Workload::new("default", title);
    workload.uid = name(title);
    workload.queue = name("queue");
    workload.pod_sets = vec![PodSet {
        name: name("main"),
        count: gang.count,
        min_count: None,
        reclaimable: 0,
        requests: requests.clone(),
        template: Arc::new(PodTemplate { requests, ..PodTemplate::default() }),
        topology: Some(TopologyRequest { mode: Some(mode), slices: slices.collect(), group: None }),
    }];
    workload
}

/// Placement of a gang in the current state.
fn place(engine: &mut Engine, gang: &Gang) -> Result<BTreeMap<String, i64>, String> {
    let probe = workload("probe", gang);
    let key = probe.key.clone();
    engine.apply(Event::WorkloadUpserted(Box::new(probe)), now());
    let found = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    let again = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    assert_eq!(found, again, "a placement without a decision changes nothing");
    engine.apply(Event::WorkloadRemoved(key), now());
    let (_, result) = found.into_iter().next().expect("the gang has one pod set");
    result.map(|topology| pods_of(&topology))
}

/// Placement of a workload with one or two pod sets. The second pod set is placed after the first.
fn place_both(engine: &mut Engine, (first, second): &(Gang, Option<Gang>)) -> String {
    let mut probe = workload("probe", first);
    if let Some(second) = second {
        let set = workload("probe", second).pod_sets.into_iter().next().expect("the gang has one pod set");
        probe.pod_sets.push(PodSet { name: name("second"), ..set });
    }
    let key = probe.key.clone();
    engine.apply(Event::WorkloadUpserted(Box::new(probe)), now());
    let found = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    engine.apply(Event::WorkloadRemoved(key), now());
    format!("{found:?}")
}

fn pods_of(topology: &TopologyAssignment) -> BTreeMap<String, i64> {
    topology.domains.iter().map(|domain| (domain.values[0].to_string(), i64::from(domain.count))).collect()
}

/// The machines in the model's types, with the usage of the placed gangs.
fn leaves(machines: &[Machine], standing: &Standing) -> Vec<placement::Leaf> {
    let ready = machines.iter().enumerate().filter(|(_, machine)| machine.ready);
    let leaves = ready.map(|(at, machine)| {
        let mut free = [machine.pods, machine.cores, machine.gpus.unwrap_or(0)];
        if let Some(cores) = machine.other {
            free = [free[0] - 1, free[1] - cores, free[2]];
        }
        for (gang, places) in standing.values() {
            let here = places.get(&host(at)).copied().unwrap_or(0);
            free = [free[0] - here, free[1] - here * gang.cores, free[2] - here * gang.gpus];
        }
        placement::Leaf { values: values(at, machine).to_vec(), free }
    });
    leaves.collect()
}

fn asked(gang: &Gang, layers: &[(usize, i32)], leader: Option<i64>) -> placement::Gang {
    placement::Gang {
        count: i64::from(gang.count),
        per_pod: [1, gang.cores, gang.gpus],
        leader: leader.map(|cores| [1, cores, 0]),
        mode: gang.mode,
        slices: layers.iter().map(|(level, size)| (*level, i64::from(*size))).collect(),
    }
}

/// The placed workloads by name, each with its placement.
type Standing = BTreeMap<String, (Gang, BTreeMap<String, i64>)>;

/// Submits a gang and lets the engine decide. Returns its placement, if it was admitted. A waiting
/// gang is deleted.
fn submit(engine: &mut Engine, title: &str, gang: &Gang) -> Option<BTreeMap<String, i64>> {
    engine.apply(Event::WorkloadUpserted(Box::new(workload(title, gang))), now());
    while engine.cycle(now()).more {}
    let key = WorkloadKey::new("default", title);
    let Some(admission) = engine.admission(&key) else {
        engine.apply(Event::WorkloadRemoved(key), now());
        return None;
    };
    admission.pod_sets[0].topology.as_ref().map(pods_of)
}

fn check_capacity(machines: &[Machine], standing: &Standing) -> Result<(), TestCaseError> {
    for (at, machine) in machines.iter().enumerate() {
        let (mut pods, mut cores, mut gpus) = (0, 0, 0);
        for (gang, places) in standing.values() {
            let here = places.get(&host(at)).copied().unwrap_or(0);
            (pods, cores, gpus) = (pods + here, cores + here * gang.cores, gpus + here * gang.gpus);
        }
        if pods == 0 {
            continue;
        }
        prop_assert!(machine.ready, "{} is not ready", host(at));
        prop_assert!(pods + i64::from(machine.other.is_some()) <= machine.pods, "pods of {}", host(at));
        // Other pods may already use more than the capacity. Nothing is added to that.
        prop_assert!(cores == 0 || cores + machine.other.unwrap_or(0) <= machine.cores, "cores of {}", host(at));
        prop_assert!(gpus <= machine.gpus.unwrap_or(0), "GPUs of {}", host(at));
    }
    Ok(())
}

fn check_levels(machines: &[Machine], gang: &Gang, places: &BTreeMap<String, i64>) -> Result<(), TestCaseError> {
    let hosts: BTreeMap<String, [String; 3]> =
        machines.iter().enumerate().map(|(at, machine)| (host(at), values(at, machine))).collect();
    prop_assert_eq!(places.values().sum::<i64>(), i64::from(gang.count));
    if let Some((true, level)) = gang.mode {
        let domains: BTreeSet<&[String]> = places.keys().map(|host| &hosts[host][..=level]).collect();
        prop_assert_eq!(domains.len(), 1, "pods of a required level are in one domain");
    }
    if let Some((level, size)) = gang.slice {
        let mut counts: BTreeMap<&[String], i64> = BTreeMap::new();
        for (host, pods) in places {
            *counts.entry(&hosts[host][..=level]).or_default() += pods;
        }
        prop_assert!(counts.values().all(|pods| pods % i64::from(size) == 0), "slices are whole: {:?}", counts);
    }
    Ok(())
}

proptest! {
    /// Gangs arrive and leave. No node is ever above its capacity, levels are respected, and after
    /// the last gang has left the usage is zero.
    #[test]
    fn nodes_are_never_overfilled_and_usage_is_released_with_its_workload(
        machines in machines(),
        steps in proptest::collection::vec((prop_oneof![gang(), sliced()], any::<prop::sample::Index>(), any::<bool>()), 1..14),
        probe in prop_oneof![gang(), sliced()],
    ) {
        let mut engine = engine(&machines, &in_order(&machines));
        let untouched = place(&mut engine, &probe);
        let mut standing = Standing::new();
        for (at, (gang, which, leaves)) in steps.into_iter().enumerate() {
            let title = format!("gang-{at:02}");
            if let Some(places) = submit(&mut engine, &title, &gang) {
                check_levels(&machines, &gang, &places)?;
                standing.insert(title, (gang, places));
            }
            check_capacity(&machines, &standing)?;
            if leaves && !standing.is_empty() {
                let title = standing.keys().nth(which.index(standing.len())).expect("the index is within the list").clone();
                engine.apply(Event::WorkloadRemoved(WorkloadKey::new("default", title.as_str())), now());
                standing.remove(&title);
            }
        }
        for title in standing.keys() {
            engine.apply(Event::WorkloadRemoved(WorkloadKey::new("default", title.as_str())), now());
        }
        prop_assert_eq!(place(&mut engine, &probe), untouched);
    }

    /// The order in which nodes are added does not change the result. Neither does a node that is
    /// added, changed and removed in between.
    #[test]
    fn placements_do_not_depend_on_the_order_of_events(
        (machines, order) in machines().prop_flat_map(|machines| {
            let order = Just((0..machines.len()).collect::<Vec<_>>()).prop_shuffle();
            (Just(machines), order)
        }),
        gangs in proptest::collection::vec(prop_oneof![gang(), sliced()], 1..5),
        passing in machine(),
    ) {
        let mut straight = engine(&machines, &in_order(&machines));
        let mut shuffled = engine(&machines, &order);
        for (at, gang) in gangs.iter().enumerate() {
            let title = format!("gang-{at}");
            prop_assert_eq!(place(&mut straight, gang), place(&mut shuffled, gang));
            prop_assert_eq!(submit(&mut straight, &title, gang), submit(&mut shuffled, &title, gang));
            // The tree of domains is rebuilt when a node joins or leaves, and recounted when a node
            // changes.
            let visitor = machines.len();
            shuffled.apply(Event::NodeUpserted(node(visitor, &passing)), now());
            let _ = place(&mut shuffled, gang);
            shuffled.apply(Event::NodeUpserted(node(visitor, &Machine { cores: 1, ready: true, ..passing.clone() })), now());
            let _ = place(&mut shuffled, gang);
            shuffled.apply(Event::NodeRemoved(name(&host(visitor))), now());
        }
    }

    /// Counts that are cached between placements do not change a result, regardless of the changes
    /// in between.
    #[test]
    fn cached_counts_change_no_placement(
        machines in machines(),
        probes in proptest::collection::vec(
            (prop_oneof![gang(), sliced()], proptest::option::weighted(0.4, prop_oneof![gang(), sliced()])),
            1..5,
        ),
        steps in proptest::collection::vec((change(), any::<prop::sample::Index>()), 1..20),
    ) {
        let mut engine = engine(&machines, &in_order(&machines));
        let mut standing = Vec::new();
        for (at, (change, which)) in steps.into_iter().enumerate() {
            let title = format!("gang-{at:02}");
            match change {
                Change::Submit(gang) => {
                    if submit(&mut engine, &title, &gang).is_some() {
                        standing.push(title);
                    }
                }
                Change::Leave if !standing.is_empty() => {
                    let title = standing.swap_remove(which.index(standing.len()));
                    engine.apply(Event::WorkloadRemoved(WorkloadKey::new("default", title.as_str())), now());
                }
                Change::Leave => {}
                Change::Node(machine) => {
                    let at = which.index(machines.len() + 1);
                    engine.apply(Event::NodeUpserted(node(at, &machine)), now());
                }
                Change::Taint => {
                    let at = which.index(machines.len());
                    let taint = Taint { key: name("t"), value: name(""), effect: TaintEffect::NoSchedule };
                    let node = Node { taints: vec![taint], ..node(at, &machines[at]) };
                    engine.apply(Event::NodeUpserted(node), now());
                }
                Change::NodeGone => {
                    engine.apply(Event::NodeRemoved(name(&host(which.index(machines.len())))), now());
                }
                Change::OtherPod(cores) => {
                    let pod = NodePod {
                        namespace: name("kube-system"),
                        name: name("passing"),
                        node: name(&host(which.index(machines.len()))),
                        requests: amounts(&[("cpu", cores * 1000)]),
                    };
                    engine.apply(Event::NodePodUpserted(pod), now());
                }
                Change::OtherPodGone => {
                    let (namespace, name) = (name("kube-system"), name("passing"));
                    engine.apply(Event::NodePodRemoved { namespace, name }, now());
                }
            }
            for probe in &probes {
                let kept = place_both(&mut engine, probe);
                engine.lab().forget_counts();
                prop_assert_eq!(kept, place_both(&mut engine, probe));
            }
            // The next step uses the counts of all probes.
            for probe in &probes {
                let _ = place_both(&mut engine, probe);
            }
        }
    }

    /// The engine agrees with the slow model: at every level, with slices, on machines with other
    /// usage.
    #[test]
    fn placements_agree_with_the_reference(
        machines in machines(),
        before in proptest::collection::vec(gang(), 0..4),
        gang in prop_oneof![gang(), sliced()],
    ) {
        let mut engine = engine(&machines, &in_order(&machines));
        let mut standing = Standing::new();
        for (at, gang) in before.into_iter().enumerate() {
            let title = format!("gang-{at}");
            if let Some(places) = submit(&mut engine, &title, &gang) {
                standing.insert(title, (gang, places));
            }
        }
        let layers: Vec<(usize, i32)> = gang.slice.into_iter().collect();
        let wanted = placement::place(&leaves(&machines, &standing), LEVELS.len(), &asked(&gang, &layers, None));
        prop_assert_eq!(place(&mut engine, &gang).ok(), wanted.map(|placed| placed.pods));
    }

    /// The engine agrees with the slow model for nested slices and for a leader with its workers.
    #[test]
    fn placements_in_layers_and_with_a_leader_agree_with_the_reference(
        machines in machines(),
        gang in gang(),
        (inner, times, slices) in (1_i32..3, 1_i32..4, 1_i32..4),
        layered in 0_usize..3,
        leader in proptest::option::of(0_i64..4),
    ) {
        // Layers of blocks, racks and hosts, of racks and hosts, or none.
        let sizes = [inner * times * 2, inner * times, inner];
        let levels = if layered == 2 { vec![0, 1, 2] } else { vec![1, 2] };
        let mut layers: Vec<(usize, i32)> = levels.into_iter().map(|level| (level, sizes[level])).collect();
        layers.truncate(layered + usize::from(layered > 0));
        let level = layers.first().map_or(LEVELS.len() - 1, |(level, _)| *level);
        let mode = gang.mode.map(|(required, at)| (required, at.min(level)));
        let size = layers.first().map_or(1, |(_, size)| *size);
        let gang = Gang { count: size * slices, mode, slice: None, ..gang };
        let mut engine = engine(&machines, &in_order(&machines));
        let wanted = placement::place(&leaves(&machines, &Standing::new()), LEVELS.len(), &asked(&gang, &layers, leader));
        prop_assert_eq!(place_group(&mut engine, &gang, &layers, leader), wanted);
    }

    /// Balancing changes where pods are placed, not whether they fit, and every domain can hold its
    /// pods.
    #[test]
    fn balanced_placements_fit_if_others_do(
        machines in machines(),
        gang in gang(),
        level in 0_usize..3,
        slices in proptest::option::of((0_usize..3, 1_i32..3, 1_i32..5)),
        leader in proptest::option::of(0_i64..4),
    ) {
        let layers: Vec<(usize, i32)> = slices.iter().map(|(at, size, _)| (level.max(*at), *size)).collect();
        let count = slices.map_or(gang.count, |(_, size, slices)| size * slices);
        let gang = Gang { count, mode: Some((false, level)), slice: None, ..gang };
        let order = in_order(&machines);
        let mut plain = engine(&machines, &order);
        let mut config = EngineConfig::default();
        config.gates.tas_balanced_placement = true;
        let mut balanced = engine_with(config, &machines, &order);
        let wanted = place_group(&mut plain, &gang, &layers, leader);
        let found = place_group(&mut balanced, &gang, &layers, leader);
        prop_assert_eq!(found.is_some(), wanted.is_some());
        let Some(found) = found else { return Ok(()) };
        prop_assert_eq!(found.pods.values().sum::<i64>(), i64::from(gang.count));
        prop_assert_eq!(found.leader.is_some(), leader.is_some());
        for leaf in leaves(&machines, &Standing::new()) {
            let host = leaf.values.last().expect("a leaf is a host");
            let pods = found.pods.get(host).copied().unwrap_or(0);
            let leads = i64::from(found.leader.as_ref() == Some(host));
            let asked = [pods + leads, pods * gang.cores + leads * leader.unwrap_or(0), pods * gang.gpus];
            let is_asked = |at: &usize| asked[*at] > 0;
            prop_assert!((0..3).filter(is_asked).all(|at| asked[at] <= leaf.free[at]), "{host}: {found:?}");
        }
    }
}

/// The racks' figures send the leader to the second rack, where it would cost one or two workers
/// their place, depending on the threshold of pods per host. The hosts' figures send it to the
/// first rack.
#[test]
fn placement_is_not_balanced_if_the_leader_would_have_no_domain() {
    let machine =
        |rack, cores, gpus| Machine { block: 0, rack, cores, pods: 20, gpus: Some(gpus), ready: true, other: None };
    let machines = [machine(0, 6, 4), machine(1, 5, 5), machine(1, 4, 3)];
    let gang = Gang { count: 11, cores: 1, gpus: 1, mode: Some((false, 1)), slice: None };
    let mut config = EngineConfig::default();
    config.gates.tas_balanced_placement = true;
    let mut engine = engine_with(config, &machines, &in_order(&machines));
    let placed = place_group(&mut engine, &gang, &[(2, 1)], Some(2)).expect("the capacity suffices for all");
    let pods: Vec<(&str, i64)> = placed.pods.iter().map(|(host, pods)| (host.as_str(), *pods)).collect();
    assert_eq!(pods, [("host-00", 4), ("host-01", 5), ("host-02", 2)]);
    assert_eq!(placed.leader.as_deref(), Some("host-00"));
}

/// Placement of the workers of a gang and of their leader.
fn place_group(
    engine: &mut Engine,
    gang: &Gang,
    layers: &[(usize, i32)],
    leader: Option<i64>,
) -> Option<placement::Placed> {
    let mut probe = workload("probe", gang);
    let mut request = probe.pod_sets[0].topology.clone().expect("a gang requests a topology");
    if gang.mode.is_none() && !layers.is_empty() {
        request.mode = None;
    }
    request.slices =
        layers.iter().map(|(level, size)| SliceConstraint { level: name(LEVELS[*level]), size: *size }).collect();
    request.group = leader.map(|_| name("group"));
    probe.pod_sets[0].topology = Some(request.clone());
    if let Some(cores) = leader {
        let requests = amounts(&[("cpu", cores * 1000)]);
        probe.pod_sets.push(PodSet {
            name: name("leader"),
            count: 1,
            requests: requests.clone(),
            template: Arc::new(PodTemplate { requests, ..PodTemplate::default() }),
            topology: Some(TopologyRequest { slices: Vec::new(), ..request }),
            ..probe.pod_sets[0].clone()
        });
    }
    let key = probe.key.clone();
    engine.apply(Event::WorkloadUpserted(Box::new(probe)), now());
    let found = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    engine.apply(Event::WorkloadRemoved(key), now());
    let mut placed = placement::Placed { pods: BTreeMap::new(), leader: None };
    for (set, result) in found {
        let pods = pods_of(&result.ok()?);
        match &*set {
            "leader" => placed.leader = pods.into_keys().next(),
            _ => placed.pods = pods,
        }
    }
    Some(placed)
}
