//! Benchmarks of decisions under topology-aware scheduling. docs/performance-engine.md has the
//! results and explains how to run the benchmarks.
//!
//! Every result is for the engine alone, and for whole cycles: popping, quota, placement,
//! bookkeeping, the decision.

mod measure;

use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::{
    Admission, ClusterQueue, FlavorQuotas, LabelSelector, LocalQueue, Node, PodSet, PodSetAssignment, PodTemplate,
    PreemptionPolicies, PreemptionPolicy, Quota, ResourceFlavor, ResourceGroup, ResourceList, StopPolicy, Time,
    Topology, TopologyAssignment, TopologyDomain, TopologyMode, TopologyRequest, Workload,
};
use berth_engine::{Amount, Engine, EngineConfig, Event, Name, Verdict};
use criterion::{Criterion, criterion_group, criterion_main};

use measure::timed;

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HOSTNAME: &str = "kubernetes.io/hostname";
const LEVELS: [&str; 3] = ["block", "rack", HOSTNAME];
const RACKS_PER_BLOCK: usize = 10;

fn name(text: &str) -> Name {
    Name::from(text)
}

/// One queue, and one flavor whose nodes are in racks, which are in blocks.
struct Cluster {
    engine: Engine,
    now: Time,
    node_resources: ResourceList,
    nodes_per_rack: usize,
}

impl Cluster {
    /// `nodes` nodes of 8 GPUs and 64 cores, with `resources` resources in total.
    fn new(nodes: usize, nodes_per_rack: usize, resources: usize) -> Cluster {
        let mut node_resources: ResourceList =
            [(name("cpu"), 64_000), (name("gpu"), 8), (name("memory"), 1 << 40), (name("pods"), 110)].into();
        for at in node_resources.len()..resources {
            node_resources.insert(name(&format!("example.com/device-{at:02}")), 100);
        }
        let mut engine = Engine::new(EngineConfig::default());
        let now = Time::UNSET.after(Duration::from_secs(1_000_000));
        let mut queue = ClusterQueue::new("queue");
        queue.namespace_selector = Some(LabelSelector::default());
        queue.preemption =
            PreemptionPolicies { within_cluster_queue: PreemptionPolicy::LowerPriority, ..queue.preemption };
        let quota = |resource: &Name| {
            let nominal = Amount::Bounded(i64::MAX / 4);
            (resource.clone(), Quota { nominal, borrowing_limit: None, lending_limit: None })
        };
        let covered: Vec<Name> = node_resources.keys().filter(|resource| &***resource != "pods").cloned().collect();
        queue.resource_groups = vec![ResourceGroup {
            flavors: vec![FlavorQuotas { flavor: name("gpu"), quotas: covered.iter().map(quota).collect() }],
            resources: covered,
        }];
        for event in [
            Event::NamespaceUpserted { name: name("default"), labels: Default::default() },
            Event::TopologyUpserted(Topology { name: name("racks"), levels: LEVELS.map(name).to_vec() }),
            Event::FlavorUpserted(ResourceFlavor {
                name: name("gpu"),
                topology: Some(name("racks")),
                ..ResourceFlavor::default()
            }),
            Event::ClusterQueueUpserted(queue),
            Event::LocalQueueUpserted(LocalQueue {
                namespace: name("default"),
                name: name("queue"),
                cluster_queue: name("queue"),
                stop_policy: StopPolicy::default(),
                fair_weight_milli: 1000,
            }),
        ] {
            engine.apply(event, now);
        }
        let mut cluster = Cluster { engine, now, node_resources, nodes_per_rack };
        for at in 0..nodes {
            let node = cluster.node(at);
            cluster.apply(Event::NodeUpserted(node));
        }
        cluster
    }

    fn node(&self, at: usize) -> Node {
        let rack = at / self.nodes_per_rack;
        let host = host(at);
        let labels = [
            (name("block"), name(&format!("block-{:02}", rack / RACKS_PER_BLOCK))),
            (name("rack"), name(&format!("rack-{rack:03}"))),
            (name(HOSTNAME), host.clone()),
        ];
        Node {
            name: host,
            labels: labels.into_iter().collect(),
            taints: Vec::new(),
            allocatable: self.node_resources.clone(),
            ready: true,
            unschedulable: false,
        }
    }

    fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
    }

    /// A workload of pods that request this many GPUs, and a little of every other resource of a
    /// node.
    fn gang(&self, title: &str, pods: i32, gpus: i64, mode: TopologyMode) -> Workload {
        let mut requests: ResourceList =
            self.node_resources.keys().filter(|resource| &***resource != "pods").map(|it| (it.clone(), 1)).collect();
        requests.insert(name("cpu"), 4_000);
        requests.insert(name("gpu"), gpus);
        requests.insert(name("memory"), 1 << 30);
        let mut workload = Workload::new("default", title);
        workload.uid = name(title);
        workload.queue = name("queue");
        workload.pod_sets = vec![PodSet {
            name: name("main"),
            count: pods,
            min_count: None,
            reclaimable: 0,
            requests: requests.clone(),
            template: Arc::new(PodTemplate { requests, ..PodTemplate::default() }),
            topology: Some(TopologyRequest { mode: Some(mode), ..TopologyRequest::default() }),
        }];
        workload
    }

    /// A running workload with one pod per node on some nodes.
    fn running(&self, title: &str, gpus: i64, nodes: &[usize]) -> Workload {
        let mut workload = self.gang(title, i32::try_from(nodes.len()).unwrap_or(0), gpus, TopologyMode::Unconstrained);
        let set = &workload.pod_sets[0];
        let domains = nodes.iter().map(|at| TopologyDomain { values: vec![host(*at)], count: 1 });
        workload.admission = Some(Admission {
            cluster_queue: name("queue"),
            pod_sets: vec![PodSetAssignment {
                name: name("main"),
                flavors: set.requests.keys().map(|resource| (resource.clone(), name("gpu"))).collect(),
                usage: set.requests.iter().map(|(it, amount)| (it.clone(), amount * i64::from(set.count))).collect(),
                count: Some(set.count),
                topology: Some(TopologyAssignment { levels: vec![name(HOSTNAME)], domains: domains.collect() }),
                delayed_topology_pending: None,
            }],
        });
        workload.reserved_at = Some(self.now);
        workload.admitted = true;
        workload
    }

    /// CPU time of the cycle that decides a workload. The workload is deleted afterwards.
    fn decide(&mut self, workload: Workload, right: impl Fn(&Verdict) -> bool) -> Duration {
        let key = workload.key.clone();
        self.apply(Event::WorkloadUpserted(Box::new(workload)));
        let (took, outcome) = timed(|| self.engine.cycle(self.now));
        assert!(outcome.decisions.iter().any(|it| it.workload == key && right(&it.verdict)), "{outcome:?}");
        self.apply(Event::WorkloadRemoved(key));
        took
    }

    /// CPU time of a cycle that admits the first pods of a kind, without cached counts for them.
    fn admit_first(&mut self, workload: Workload) -> Duration {
        self.engine.lab().forget_counts();
        self.admit(workload)
    }

    fn admit(&mut self, workload: Workload) -> Duration {
        self.decide(workload, |verdict| matches!(verdict, Verdict::Admit(_)))
    }
}

fn host(at: usize) -> Name {
    name(&format!("node-{at:05}"))
}

/// 200 pods on 1,000 nodes with 30 resources. The pods request all of them.
fn many_resources(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("topology_200_pods_1000_nodes_30_resources");
    for (title, mode) in modes() {
        let mut cluster = Cluster::new(1000, 25, 30);
        group.bench_function(title, |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| cluster.admit_first(cluster.gang("gang", 200, 1, mode.clone()))).sum()
            });
        });
        group.bench_function(format!("{title}_again"), |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| cluster.admit(cluster.gang("gang", 200, 1, mode.clone()))).sum()
            });
        });
    }
}

/// A gang of 512 pods, one per node, on 5,000 nodes of which every third is busy.
fn large_gang(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("topology_512_pods_5000_nodes");
    for (title, mode) in modes() {
        let mut cluster = Cluster::new(5000, 50, 4);
        for at in (0..5000).step_by(3) {
            let running = cluster.running(&format!("busy-{at}"), 4, &[at]);
            cluster.apply(Event::WorkloadUpserted(Box::new(running)));
        }
        // A block of 500 nodes can take 334 such pods, so a required level can never be met.
        if title == "required_block" {
            continue;
        }
        group.bench_function(title, |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| cluster.admit_first(cluster.gang("gang", 512, 8, mode.clone()))).sum()
            });
        });
        group.bench_function(format!("{title}_again"), |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| cluster.admit(cluster.gang("gang", 512, 8, mode.clone()))).sum()
            });
        });
        group.bench_function(format!("{title}_of_one_gpu"), |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| cluster.admit_first(cluster.gang("gang", 512, 1, mode.clone()))).sum()
            });
        });
    }
}

fn modes() -> [(&'static str, TopologyMode); 3] {
    [
        ("required_block", TopologyMode::Required(name("block"))),
        ("preferred_rack", TopologyMode::Preferred(name("rack"))),
        ("unconstrained", TopologyMode::Unconstrained),
    ]
}

/// A gang that needs 200 of a block's 250 nodes, on 2,000 nodes that are all in use. 700 workloads
/// of lower priority hold two or three nodes each, scattered. Most of them have to be assumed gone
/// before some block can hold the gang, and most of those are not evicted in the end.
fn victims(criterion: &mut Criterion) {
    let mut cluster = Cluster::new(2000, 25, 4);
    for at in 0..700 {
        let nodes: Vec<usize> =
            (0..3).map(|pod| at * 3 + pod).filter(|it| *it < 2000).map(|it| it * 1237 % 2000).collect();
        let nodes = if nodes.is_empty() { vec![0] } else { nodes };
        let gpus = if at * 3 < 2000 { 8 } else { 0 };
        let mut running = cluster.running(&format!("victim-{at:03}"), gpus, &nodes);
        running.priority = 1;
        cluster.apply(Event::WorkloadUpserted(Box::new(running)));
    }
    let mut group = criterion.benchmark_group("topology_700_candidates_2000_nodes");
    group.sample_size(20);
    group.bench_function("required_block", |bencher| {
        bencher.iter_custom(|times| {
            let decide = (0..times).map(|_| {
                let mut gang = cluster.gang("gang", 200, 8, TopologyMode::Required(name("block")));
                gang.priority = 10;
                cluster.engine.lab().forget_counts();
                cluster.decide(gang, |verdict| matches!(verdict, Verdict::Preempt { .. }))
            });
            decide.sum()
        });
    });
}

/// A node that leaves and returns, with a placement after each change. Measures the rebuilding of
/// domains.
fn node_churn(criterion: &mut Criterion) {
    let mut cluster = Cluster::new(5000, 50, 4);
    let mut nodes = (0..).map(|at: usize| at * 37 % 5000);
    criterion.bench_function("topology_node_joins_5000_nodes", |bencher| {
        bencher.iter_custom(|times| {
            let churn = (0..times).map(|_| {
                let at = nodes.next().unwrap_or(0);
                cluster.apply(Event::NodeRemoved(host(at)));
                let (joined, ()) = timed(|| {
                    let node = cluster.node(at);
                    cluster.apply(Event::NodeUpserted(node));
                });
                joined + cluster.admit(cluster.gang("pod", 1, 1, TopologyMode::Required(name("rack"))))
            });
            churn.sum()
        });
    });
}

criterion_group!(benches, many_resources, large_gang, victims, node_churn);
criterion_main!(benches);
