//! Expands a configuration into a plan: every queue, every class, and every workload with its
//! creation time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::well_known::HOSTNAME;
use berth_engine::model::{
    ClusterQueue, FlavorQuotas, LocalQueue, Node, PodSet, PodTemplate, PreemptionPolicies, PreemptionPolicy, Quota,
    ResourceFlavor, ResourceGroup, SliceConstraint, StopPolicy, Topology, TopologyMode, TopologyRequest, Workload,
};
use berth_engine::{Amount, Event, Name};

use crate::config::{Config, Constraint, Policy, QueueSet, TopologyConfig, WorkloadTemplate};
use crate::drive::Load;

/// The resource of all quotas and requests.
pub const RESOURCE: &str = "cpu";
/// The flavor of a configuration that does not name one.
const DEFAULT_FLAVOR: &str = "rf";
/// Value of the label on a flavor's nodes.
const NODE_GROUP: &str = "tas";
/// Maximum number of pods per node: the kubelet's default.
const PODS_PER_NODE: i64 = 110;

/// The objects that a configuration creates.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The only flavor.
    pub flavor: ResourceFlavor,
    /// Its topology, if it has one.
    pub topology: Option<Topology>,
    /// Its nodes, if placement matters.
    pub nodes: Vec<Node>,
    /// Cluster queues. Each has a namespace with a local queue of the same name.
    pub queues: Vec<QueuePlan>,
    /// Classes of workloads.
    pub classes: Vec<Class>,
    /// Workloads, in order of creation.
    pub arrivals: Vec<Arrival>,
}

/// A cluster queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuePlan {
    /// Name.
    pub name: Name,
    /// Cohort.
    pub cohort: Name,
    /// Nominal quota in thousandths of a CPU.
    pub nominal: i64,
    /// Borrowing limit in thousandths of a CPU.
    pub borrowing_limit: Option<i64>,
    /// Workloads that its workloads may preempt.
    pub preemption: PreemptionPolicies,
}

/// A class of workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Name in reports; several classes may share one.
    pub name: String,
    /// Run time of a workload.
    pub runtime: Duration,
    /// Priority.
    pub priority: i32,
    /// Pods.
    pub pods: i32,
    /// Thousandths of a CPU per pod.
    pub request: i64,
    /// Topology constraint.
    pub topology: Option<TopologyRequest>,
    template: Arc<PodTemplate>,
}

impl Class {
    /// Thousandths of a CPU per workload.
    pub fn demand(&self) -> i64 {
        self.request.saturating_mul(i64::from(self.pods))
    }
}

/// One workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// Time from the start of the run.
    pub at: Duration,
    /// Index of its queue.
    pub queue: usize,
    /// Index of its class.
    pub class: usize,
    /// Name, unique in its queue.
    pub name: Name,
}

impl Plan {
    /// Expands a configuration.
    pub fn new(config: &Config) -> Plan {
        let flavor = config.resource_flavor.as_ref();
        let mut plan = Plan {
            flavor: ResourceFlavor {
                name: Name::from(flavor.map_or(DEFAULT_FLAVOR, |it| it.name.as_str())),
                node_labels: flavor
                    .and_then(|it| it.node_label.as_deref())
                    .map(|label| (Name::from(label), Name::from(NODE_GROUP)))
                    .into_iter()
                    .collect(),
                topology: flavor.and_then(|it| it.topology_name.as_deref()).map(Name::from),
                ..ResourceFlavor::default()
            },
            topology: config.topology.as_ref().map(|topology| Topology {
                name: Name::from(topology.name.as_str()),
                levels: topology.levels.iter().map(|level| Name::from(level.node_label.as_str())).collect(),
            }),
            nodes: Vec::new(),
            queues: Vec::new(),
            classes: Vec::new(),
            arrivals: Vec::new(),
        };
        if let Some(topology) = &config.topology {
            plan.nodes = nodes(topology, &plan.flavor);
        }
        for cohorts in &config.cohorts {
            for c in 0..cohorts.count {
                let cohort = format!("{}-{c}", cohorts.class_name);
                for (s, set) in cohorts.queues_sets.iter().enumerate() {
                    for q in 0..set.count {
                        plan.add_queue(format!("{}-{s}-{q}-{cohort}", set.class_name), &cohort, set);
                    }
                }
            }
        }
        // Workload sets run in parallel; creations at one instant keep the order of the file.
        plan.arrivals.sort_by_key(|arrival| arrival.at);
        plan
    }

    fn add_queue(&mut self, name: String, cohort: &str, set: &QueueSet) {
        let queue = self.queues.len();
        self.queues.push(QueuePlan {
            name: Name::from(name),
            cohort: Name::from(cohort),
            nominal: set.nominal_quota.milli(),
            borrowing_limit: set.borrowing_limit.as_ref().map(|limit| limit.milli()),
            preemption: PreemptionPolicies {
                within_cluster_queue: policy(set.within_cluster_queue),
                reclaim_within_cohort: policy(set.reclaim_within_cohort),
                ..PreemptionPolicies::default()
            },
        });
        for (s, workloads) in set.workloads_sets.iter().enumerate() {
            let mut at = Duration::ZERO;
            for n in 0..workloads.count {
                for (t, template) in workloads.workloads.iter().enumerate() {
                    at += Duration::from_millis(workloads.creation_interval_ms);
                    let class = self.class(template);
                    let name = Name::from(format!("{}-{s}-{n}-{t}", template.class_name));
                    self.arrivals.push(Arrival { at, queue, class, name });
                }
            }
        }
    }

    fn class(&mut self, template: &WorkloadTemplate) -> usize {
        let level = || Name::from(template.tas_level.as_deref().unwrap_or_default());
        let topology = template.tas_constraint.map(|constraint| match constraint {
            Constraint::Required => {
                TopologyRequest { mode: Some(TopologyMode::Required(level())), ..TopologyRequest::default() }
            }
            Constraint::Preferred => {
                TopologyRequest { mode: Some(TopologyMode::Preferred(level())), ..TopologyRequest::default() }
            }
            Constraint::Balanced => TopologyRequest {
                slices: vec![SliceConstraint { level: level(), size: template.slice_size.unwrap_or(1) }],
                ..TopologyRequest::default()
            },
        });
        let request = template.request.milli();
        let class = Class {
            name: template.class_name.clone(),
            runtime: Duration::from_millis(template.runtime_ms),
            priority: template.priority,
            pods: template.pod_count.unwrap_or(1),
            request,
            topology,
            template: Arc::new(PodTemplate {
                requests: [(Name::from(RESOURCE), request)].into(),
                ..PodTemplate::default()
            }),
        };
        self.classes.iter().position(|known| *known == class).unwrap_or_else(|| {
            self.classes.push(class);
            self.classes.len() - 1
        })
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        events.extend(self.topology.clone().map(Event::TopologyUpserted));
        events.extend(self.nodes.iter().cloned().map(Event::NodeUpserted));
        events.push(Event::FlavorUpserted(self.flavor.clone()));
        for queue in &self.queues {
            events.push(Event::NamespaceUpserted { name: queue.name.clone(), labels: BTreeMap::new() });
            let mut spec = ClusterQueue::new(queue.name.clone());
            spec.cohort = Some(queue.cohort.clone());
            spec.preemption = queue.preemption;
            let resource = Name::from(RESOURCE);
            let quota = Quota {
                nominal: Amount::Bounded(queue.nominal),
                borrowing_limit: queue.borrowing_limit.map(Amount::Bounded),
                lending_limit: None,
            };
            spec.resource_groups = vec![ResourceGroup {
                resources: vec![resource.clone()],
                flavors: vec![FlavorQuotas { flavor: self.flavor.name.clone(), quotas: vec![(resource, quota)] }],
            }];
            events.push(Event::ClusterQueueUpserted(spec));
            events.push(Event::LocalQueueUpserted(LocalQueue {
                namespace: queue.name.clone(),
                name: queue.name.clone(),
                cluster_queue: queue.name.clone(),
                stop_policy: StopPolicy::None,
                fair_weight_milli: 1000,
            }));
        }
        events
    }
}

impl Load for Plan {
    fn objects(&self) -> Vec<Event> {
        self.events()
    }

    fn jobs(&self) -> usize {
        self.arrivals.len()
    }

    fn created(&self, number: usize) -> Duration {
        self.arrivals[number].at
    }

    fn run_time(&self, number: usize) -> Duration {
        self.classes[self.arrivals[number].class].runtime
    }

    /// Its UID is its number, so that ties are broken by creation order.
    fn workload(&self, number: usize) -> Workload {
        let arrival = &self.arrivals[number];
        let class = &self.classes[arrival.class];
        let queue = &self.queues[arrival.queue].name;
        let mut workload = Workload::new(queue.clone(), arrival.name.clone());
        workload.uid = Name::from(format!("{number:08}"));
        workload.queue = queue.clone();
        workload.priority = i64::from(class.priority);
        workload.pod_sets = vec![PodSet {
            name: Name::from("main"),
            count: class.pods,
            min_count: None,
            reclaimable: 0,
            requests: class.template.requests.clone(),
            template: class.template.clone(),
            topology: class.topology.clone(),
        }];
        workload
    }
}

fn policy(policy: Policy) -> PreemptionPolicy {
    match policy {
        Policy::Never => PreemptionPolicy::Never,
        Policy::LowerPriority => PreemptionPolicy::LowerPriority,
        Policy::LowerOrNewerEqualPriority => PreemptionPolicy::LowerOrNewerEqualPriority,
        Policy::Any => PreemptionPolicy::Any,
    }
}

/// The nodes of a topology. Each combination of the levels' domains is one node, named after its
/// domains.
fn nodes(config: &TopologyConfig, flavor: &ResourceFlavor) -> Vec<Node> {
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    for level in &config.levels {
        paths = paths
            .iter()
            .flat_map(|path| {
                (0..level.count).map(|at| {
                    let mut path = path.clone();
                    path.push(format!("{}-{at}", level.name));
                    path
                })
            })
            .collect();
    }
    let capacity = config.levels.last().and_then(|level| level.capacity.as_ref());
    let cpu = capacity.map_or(96_000, |it| it.cpu.milli());
    let memory = capacity.map_or(256 << 30, |it| it.memory.units());
    let node = |path: Vec<String>| {
        let name = Name::from(format!("node-{}", path.join("-")));
        let mut labels = flavor.node_labels.clone();
        for (level, value) in config.levels.iter().zip(&path) {
            labels.insert(Name::from(level.node_label.as_str()), Name::from(value.as_str()));
        }
        labels.insert(Name::from(HOSTNAME), name.clone());
        Node {
            name,
            labels,
            taints: Vec::new(),
            allocatable: [
                (Name::from(RESOURCE), cpu),
                (Name::from("memory"), memory),
                (Name::from("pods"), PODS_PER_NODE),
            ]
            .into(),
            ready: true,
            unschedulable: false,
        }
    };
    paths.into_iter().map(node).collect()
}
