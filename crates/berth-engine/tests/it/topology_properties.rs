//! Properties of topology placement on random racks, against a reference that is slow and obvious.
//!
//! `PROPTEST_CASES` runs more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::model::{
    ClusterQueue, FlavorQuotas, LabelSelector, LocalQueue, Node, NodePod, PodSet, PodTemplate, Quota, ResourceFlavor,
    ResourceGroup, ResourceList, SliceConstraint, StopPolicy, Time, Topology, TopologyAssignment, TopologyMode,
    TopologyRequest, Workload, WorkloadKey,
};
use berth_engine::{Amount, Engine, EngineConfig, Event, Name};
use proptest::prelude::*;

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

/// An engine over these machines, told about them in this order.
fn engine(machines: &[Machine], order: &[usize]) -> Engine {
    let mut engine = Engine::new(EngineConfig::default());
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

/// Where a gang would go as things stand.
fn place(engine: &mut Engine, gang: &Gang) -> Result<BTreeMap<String, i64>, String> {
    let probe = workload("probe", gang);
    let key = probe.key.clone();
    engine.apply(Event::WorkloadUpserted(Box::new(probe)), now());
    let found = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    let again = engine.lab().place(&key, "queue", &name("racks"), &BTreeMap::new());
    assert_eq!(found, again, "asking changes nothing");
    engine.apply(Event::WorkloadRemoved(key), now());
    let (_, result) = found.into_iter().next().expect("the gang has one pod set");
    result.map(|topology| pods_of(&topology))
}

fn pods_of(topology: &TopologyAssignment) -> BTreeMap<String, i64> {
    topology.domains.iter().map(|domain| (domain.values[0].to_string(), i64::from(domain.count))).collect()
}

/// Pods of a gang a machine could take if others on it used so much.
fn fits(machine: &Machine, gang: &Gang, used: (i64, i64, i64)) -> i64 {
    let daemons = i64::from(machine.other.is_some());
    let mut fits = machine.pods - daemons - used.0;
    if gang.cores > 0 {
        fits = fits.min((machine.cores - machine.other.unwrap_or(0) - used.1) / gang.cores);
    }
    if gang.gpus > 0 {
        fits = fits.min((machine.gpus.unwrap_or(0) - used.2) / gang.gpus);
    }
    if machine.ready { fits.max(0) } else { 0 }
}

/// A domain as the reference sees it: its values and the pods it could take.
type Domain = (Vec<String>, i64);

/// The reference: required, preferred and unconstrained gangs without slices, by the book (§14.6, §14.7).
fn reference(machines: &[Machine], gang: &Gang) -> Option<BTreeMap<String, i64>> {
    let domains = |level: usize| -> Vec<Domain> {
        let mut sums: BTreeMap<Vec<String>, i64> = BTreeMap::new();
        for (at, machine) in machines.iter().enumerate().filter(|(_, machine)| machine.ready) {
            *sums.entry(values(at, machine)[..=level].to_vec()).or_default() += fits(machine, gang, (0, 0, 0));
        }
        sums.into_iter().collect()
    };
    let count = i64::from(gang.count);
    let fill_gaps = gang.mode.is_none();
    let mut level = gang.mode.map_or(2, |(_, level)| level);
    let mut chosen = loop {
        let all = domains(level);
        let mut one: Vec<&Domain> = all.iter().filter(|domain| domain.1 >= count).collect();
        one.sort_by_key(|domain| domain.1);
        if let Some(tightest) = one.first() {
            break vec![(tightest.0.clone(), count)];
        }
        match gang.mode {
            Some((true, _)) => return None,
            Some((false, _)) if level > 0 => level -= 1,
            _ => break spread(all, count, fill_gaps)?,
        }
    };
    while level < 2 {
        level += 1;
        let below = domains(level).into_iter().filter(|domain| chosen.iter().any(|(of, _)| domain.0.starts_with(of)));
        chosen = spread(below.collect(), count, fill_gaps)?;
    }
    Some(chosen.into_iter().map(|(values, pods)| (values[2].clone(), pods)).collect())
}

/// Takes domains, the largest first (or, to fill gaps, the smallest), and as the last one the tightest that will do.
fn spread(mut domains: Vec<Domain>, mut count: i64, fill_gaps: bool) -> Option<Vec<Domain>> {
    let mut taken = Vec::new();
    domains.sort_by_key(|domain| (if fill_gaps { domain.1 } else { -domain.1 }, domain.0.clone()));
    while count > 0 {
        if domains.is_empty() {
            return None;
        }
        let enough = domains.iter().filter(|domain| domain.1 >= count).min_by_key(|domain| domain.1);
        let next = match enough {
            Some(tightest) if !fill_gaps => tightest.0.clone(),
            _ => domains[0].0.clone(),
        };
        let at = domains.iter().position(|domain| domain.0 == next)?;
        let (values, room) = domains.remove(at);
        let pods = room.min(count);
        count -= pods;
        if pods > 0 {
            taken.push((values, pods));
        }
    }
    Some(taken)
}

/// What stands in the cluster: workloads by name with what they were given.
type Standing = BTreeMap<String, (Gang, BTreeMap<String, i64>)>;

/// Submits a gang and lets the engine decide; what it was given, if anything. What waits is withdrawn.
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

fn check_room(machines: &[Machine], standing: &Standing) -> Result<(), TestCaseError> {
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
        // What others use already may be more than there is; nothing is added to that.
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
        prop_assert_eq!(domains.len(), 1, "a required level has one domain");
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
    /// Gangs come and go: no node is ever above what it has, levels are respected, and once everybody has gone the cluster is
    /// as if nobody had been there.
    #[test]
    fn nodes_are_never_overfilled_and_usage_goes_with_its_workload(
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
            check_room(&machines, &standing)?;
            if leaves && !standing.is_empty() {
                let title = standing.keys().nth(which.index(standing.len())).expect("one of them").clone();
                engine.apply(Event::WorkloadRemoved(WorkloadKey::new("default", title.as_str())), now());
                standing.remove(&title);
            }
        }
        for title in standing.keys() {
            engine.apply(Event::WorkloadRemoved(WorkloadKey::new("default", title.as_str())), now());
        }
        prop_assert_eq!(place(&mut engine, &probe), untouched);
    }

    /// The order in which nodes become known changes nothing, nor does a node that comes, changes and goes in between.
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
            // The tree of domains is built anew when a node joins or leaves, and counted anew when one changes.
            let visitor = machines.len();
            shuffled.apply(Event::NodeUpserted(node(visitor, &passing)), now());
            let _ = place(&mut shuffled, gang);
            shuffled.apply(Event::NodeUpserted(node(visitor, &Machine { cores: 1, ready: true, ..passing.clone() })), now());
            let _ = place(&mut shuffled, gang);
            shuffled.apply(Event::NodeRemoved(name(&host(visitor))), now());
        }
    }

    /// Without slices, on an empty cluster, the engine agrees with the reference.
    #[test]
    fn placements_agree_with_the_reference(machines in machines(), gang in gang()) {
        let mut engine = engine(&machines, &in_order(&machines));
        prop_assert_eq!(place(&mut engine, &gang).ok(), reference(&machines, &gang));
    }
}
