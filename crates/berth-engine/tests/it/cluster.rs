//! An engine under test with builders: queues with quota, workloads, cycles, and decisions as
//! readable lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::{
    ClusterQueue, Cohort, FlavorQuotas, Labels, LocalQueue, Node, PodSet, PodTemplate, Quota, ResourceFlavor,
    ResourceGroup, SliceConstraint, StopPolicy, Time, Topology, TopologyMode, TopologyRequest, Workload, WorkloadKey,
};
use berth_engine::{Amount, CycleOutcome, Engine, EngineConfig, Event, Name, Verdict};

/// The level whose domains are nodes.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// An engine under test with its objects.
pub struct Cluster {
    pub engine: Engine,
    pub now: Time,
    workloads: BTreeMap<String, Workload>,
}

/// A cluster queue that is being built. Every amount is of resource `cpu` in whole cores, unless
/// another resource is named.
pub struct Queue(ClusterQueue);

/// A queue with this name.
pub fn queue(name: &str) -> Queue {
    Queue(ClusterQueue::new(name))
}

/// `cores` in thousandths.
fn milli(cores: i64) -> Amount {
    Amount::Bounded(cores * 1000)
}

impl Queue {
    pub fn cohort(mut self, name: &str) -> Self {
        self.0.cohort = Some(Name::from(name));
        self
    }

    /// Adds a flavor with this number of cores to the queue's only resource group.
    pub fn flavor(self, flavor: &str, cores: i64) -> Self {
        self.limited(flavor, cores, None, None)
    }

    /// Adds a flavor with this number of cores and with borrowing and lending limits.
    pub fn limited(mut self, flavor: &str, cores: i64, borrow: Option<i64>, lend: Option<i64>) -> Self {
        if self.0.resource_groups.is_empty() {
            self.0.resource_groups.push(ResourceGroup { resources: vec![Name::from("cpu")], flavors: Vec::new() });
        }
        let quota = Quota { nominal: milli(cores), borrowing_limit: borrow.map(milli), lending_limit: lend.map(milli) };
        self.0.resource_groups[0]
            .flavors
            .push(FlavorQuotas { flavor: Name::from(flavor), quotas: vec![(Name::from("cpu"), quota)] });
        self
    }

    /// Changes any other field.
    pub fn with(mut self, change: impl FnOnce(&mut ClusterQueue)) -> Self {
        change(&mut self.0);
        self
    }
}

/// A workload of one pod set that is being built.
#[derive(Clone)]
pub struct Job(Workload);

/// A job of one pod with this number of cores. Its queue has the name of its cluster queue.
pub fn job(name: &str, queue: &str, cores: i64) -> Job {
    let mut workload = Workload::new("default", name);
    workload.uid = Name::from(name);
    workload.queue = Name::from(queue);
    workload.pod_sets = vec![PodSet {
        name: Name::from("main"),
        count: 1,
        min_count: None,
        reclaimable: 0,
        requests: [(Name::from("cpu"), cores * 1000)].into(),
        template: Arc::new(PodTemplate {
            requests: [(Name::from("cpu"), cores * 1000)].into(),
            ..PodTemplate::default()
        }),
        topology: None,
    }];
    Job(workload)
}

impl Job {
    pub fn priority(self, priority: i64) -> Self {
        self.with(|workload| workload.priority = priority)
    }

    pub fn created(self, seconds: i64) -> Self {
        self.with(|workload| workload.created = Time::from_seconds(seconds))
    }

    pub fn pods(self, count: i32, least: Option<i32>) -> Self {
        self.with(|workload| {
            workload.pod_sets[0].count = count;
            workload.pod_sets[0].min_count = least;
        })
    }

    pub fn required(self, level: &str) -> Self {
        self.placed(TopologyMode::Required(Name::from(level)))
    }

    pub fn preferred(self, level: &str) -> Self {
        self.placed(TopologyMode::Preferred(Name::from(level)))
    }

    pub fn placed(self, mode: TopologyMode) -> Self {
        self.topology(|request| request.mode = Some(mode))
    }

    /// Requests slices of this number of pods in one domain of a level. A second call requests
    /// smaller slices within the slices of the first one.
    pub fn slices(self, level: &str, size: i32) -> Self {
        self.topology(|request| request.slices.push(SliceConstraint { level: Name::from(level), size }))
    }

    /// Changes the topology request of the last pod set.
    pub fn topology(self, change: impl FnOnce(&mut TopologyRequest)) -> Self {
        self.with(|workload| {
            let set = workload.pod_sets.last_mut().expect("a job has a pod set");
            change(set.topology.get_or_insert_default());
        })
    }

    /// Adds a pod set that only requests cores.
    pub fn pod_set(self, name: &str, count: i32, cores: i64) -> Self {
        let mut other = job(name, "", cores).0.pod_sets.remove(0);
        (other.name, other.count) = (Name::from(name), count);
        self.with(|workload| workload.pod_sets.push(other))
    }

    pub fn template(self, change: impl FnOnce(&mut PodTemplate)) -> Self {
        self.with(|workload| {
            let mut template = (*workload.pod_sets[0].template).clone();
            change(&mut template);
            workload.pod_sets[0].template = Arc::new(template);
        })
    }

    pub fn with(mut self, change: impl FnOnce(&mut Workload)) -> Self {
        change(&mut self.0);
        self
    }
}

impl Cluster {
    /// An engine with Kueue's defaults and no objects. Flushes take effect at once.
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut EngineConfig)) -> Self {
        let mut config = EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() };
        change(&mut config);
        let mut cluster =
            Cluster { engine: Engine::new(config), now: Time::from_seconds(1000), workloads: BTreeMap::new() };
        cluster.apply(Event::NamespaceUpserted { name: Name::from("default"), labels: Labels::new() });
        cluster
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
    }

    pub fn flavor(&mut self, name: &str) -> &mut Self {
        self.flavor_with(name, |_| {})
    }

    pub fn flavor_with(&mut self, name: &str, change: impl FnOnce(&mut ResourceFlavor)) -> &mut Self {
        let mut flavor = ResourceFlavor { name: Name::from(name), ..ResourceFlavor::default() };
        change(&mut flavor);
        self.apply(Event::FlavorUpserted(flavor));
        self
    }

    pub fn cohort(&mut self, name: &str, parent: Option<&str>) -> &mut Self {
        let mut cohort = Cohort::new(name);
        cohort.parent = parent.map(Name::from);
        self.apply(Event::CohortUpserted(cohort));
        self
    }

    /// Adds a cluster queue and a local queue of the same name in namespace `default`.
    pub fn queue(&mut self, queue: Queue) -> &mut Self {
        let name = queue.0.name.clone();
        self.apply(Event::ClusterQueueUpserted(queue.0));
        self.local(&name, &name);
        self
    }

    pub fn local(&mut self, name: &str, cluster_queue: &str) {
        self.apply(Event::LocalQueueUpserted(LocalQueue {
            namespace: Name::from("default"),
            name: Name::from(name),
            cluster_queue: Name::from(cluster_queue),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        }));
    }

    /// Adds a topology with levels `rack` and `kubernetes.io/hostname`, nodes `RACK-0`, `RACK-1`
    /// and so on, and a flavor for them.
    pub fn racks(&mut self, flavor: &str, racks: &[(&str, &[i64])]) -> &mut Self {
        self.topology("racks", &["rack", HOSTNAME]);
        self.flavor_with(flavor, |flavor| flavor.topology = Some(Name::from("racks")));
        for (rack, hosts) in racks {
            for (at, cores) in hosts.iter().enumerate() {
                self.node(&format!("{rack}-{at}"), &[("rack", rack)], *cores);
            }
        }
        self
    }

    pub fn topology(&mut self, name: &str, levels: &[&str]) -> &mut Self {
        let levels = levels.iter().map(|level| Name::from(*level)).collect();
        self.apply(Event::TopologyUpserted(Topology { name: Name::from(name), levels }));
        self
    }

    /// Adds a node with these labels and a hostname label, capacity for 100 pods and the given
    /// number of cores.
    pub fn node(&mut self, host: &str, labels: &[(&str, &str)], cores: i64) -> &mut Self {
        self.node_with(host, labels, cores, |_| {})
    }

    pub fn node_with(
        &mut self,
        host: &str,
        labels: &[(&str, &str)],
        cores: i64,
        change: impl FnOnce(&mut Node),
    ) -> &mut Self {
        let own = (HOSTNAME, host);
        let labels = labels.iter().chain([&own]);
        let mut node = Node {
            name: Name::from(host),
            labels: labels.map(|(key, value)| (Name::from(*key), Name::from(*value))).collect(),
            taints: Vec::new(),
            allocatable: [(Name::from("cpu"), cores * 1000), (Name::from("pods"), 100)].into(),
            ready: true,
            unschedulable: false,
        };
        change(&mut node);
        self.apply(Event::NodeUpserted(node));
        self
    }

    pub fn submit(&mut self, job: Job) -> &mut Self {
        self.workloads.insert(job.0.key.name.to_string(), job.0.clone());
        self.apply(Event::WorkloadUpserted(Box::new(job.0)));
        self
    }

    /// Changes a workload's object and sends it to the engine.
    pub fn update(&mut self, name: &str, change: impl FnOnce(&mut Workload)) -> &mut Self {
        let workload = self.workloads.get_mut(name).expect("the test submitted the workload");
        change(workload);
        let workload = workload.clone();
        self.apply(Event::WorkloadUpserted(Box::new(workload)));
        self
    }

    pub fn finish(&mut self, name: &str) -> &mut Self {
        self.update(name, |workload| workload.finished = true)
    }

    /// Runs a cycle, writes its admissions to the objects, and returns its decisions as lines.
    pub fn cycle(&mut self) -> Vec<String> {
        let outcome = self.decide();
        plan_lines(&outcome)
    }

    pub fn decide(&mut self) -> CycleOutcome {
        let outcome = self.engine.cycle(self.now);
        for decision in &outcome.decisions {
            let Verdict::Admit(admit) = &decision.verdict else { continue };
            let (admission, now) = (admit.admission.clone(), self.now);
            self.update(&decision.workload.name, |workload| {
                workload.admission = Some(admission);
                workload.admitted = true;
                workload.reserved_at = Some(now);
            });
        }
        self.now = self.now.after(Duration::from_secs(1));
        outcome
    }

    /// Runs cycles until nothing more is decided. Returns the lines of all cycles.
    pub fn settle(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..1000 {
            let outcome = self.decide();
            lines.extend(plan_lines(&outcome));
            if !outcome.more {
                return lines;
            }
        }
        panic!("the decisions do not end: {lines:?}");
    }

    /// Names of workloads that hold quota.
    pub fn running(&self) -> Vec<String> {
        self.engine.holding().into_iter().map(|key| key.name.to_string()).collect()
    }

    /// Hosts of a workload's pods.
    pub fn hosts(&self, name: &str) -> Vec<(String, i32)> {
        self.hosts_of(name, 0)
    }

    /// Hosts of the pods of one pod set, with all values of a domain joined.
    pub fn hosts_of(&self, name: &str, set: usize) -> Vec<(String, i32)> {
        let admission = self.engine.admission(&WorkloadKey::new("default", name));
        let topology = admission.and_then(|admission| admission.pod_sets[set].topology.as_ref());
        let domains = topology.iter().flat_map(|it| &it.domains);
        domains
            .map(|it| {
                let values: Vec<&str> = it.values.iter().map(|value| &**value).collect();
                (values.join("/"), it.count)
            })
            .collect()
    }
}

/// The decisions of a cycle as lines: decision, workload and details.
pub fn plan_lines(outcome: &CycleOutcome) -> Vec<String> {
    let mut lines = Vec::new();
    for decision in &outcome.decisions {
        let name = &decision.workload.name;
        lines.push(match &decision.verdict {
            Verdict::Admit(admit) => {
                let set = &admit.admission.pod_sets[0];
                let flavor = set.flavors.values().next().map_or("", |flavor| &**flavor);
                format!("admit {name} on {flavor} x{}", set.count.unwrap_or(0))
            }
            Verdict::Preempt { victims, .. } => {
                let victims: Vec<String> =
                    victims.iter().map(|it| format!("{} ({})", it.workload.name, it.reason.as_str())).collect();
                format!("preempt {} for {name}", victims.join(", "))
            }
            Verdict::Wait(wait) => format!("{name} waits: {}: {}", wait.reason().as_str(), wait.message()),
            Verdict::Evict(eviction) => format!("evict {name}: {}", eviction.reason()),
        });
    }
    lines
}
