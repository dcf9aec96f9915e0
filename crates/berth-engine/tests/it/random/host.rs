//! Carries out a plan on an engine, as a cluster would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::{
    self, CheckState, CheckStatus, Eviction, FlavorFungibility, FlavorQuotas, Labels, LocalQueue, Node, PodTemplate,
    PreemptionPolicies, ResourceFlavor, ResourceGroup, StopPolicy, Taint, TaintEffect, Time, Toleration, Topology,
    TopologyMode, TopologyRequest, Workload,
};
use berth_engine::{Amount, CycleOutcome, Engine, EngineConfig, Event, FairSharing, Name, Verdict};

use super::plan::{FLAVORS, Job, Plan, Quota, RESOURCE_NAMES};

/// An engine and the objects that it was given.
pub struct Host {
    pub engine: Engine,
    pub now: Time,
    pub workloads: BTreeMap<String, Workload>,
    arrived: usize,
}

/// Name of the n-th workload.
pub fn job_name(at: usize) -> String {
    format!("w{at:03}")
}

/// Name of the n-th flavor.
pub fn flavor_name(at: usize) -> Name {
    Name::from(format!("f{at}"))
}

/// Name of the n-th queue. The cluster queue and the local queue have the same name.
pub fn queue_name(at: usize) -> Name {
    Name::from(format!("q{at}"))
}

/// Name of the n-th cohort.
pub fn cohort_name(at: usize) -> Name {
    Name::from(format!("c{at}"))
}

/// The label with a node's own name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// Name of the n-th node.
pub fn node_name(at: usize) -> Name {
    Name::from(format!("n{at}"))
}

/// A node of a plan.
fn node(plan: &Plan, at: usize) -> Event {
    let name = node_name(at);
    let mut allocatable: model::ResourceList =
        RESOURCE_NAMES.iter().zip(plan.nodes[at]).map(|(name, amount)| (Name::from(*name), amount)).collect();
    allocatable.insert(Name::from("pods"), 100);
    Event::NodeUpserted(Node {
        labels: [(Name::from(HOSTNAME), name.clone()), (Name::from("tier"), Name::from("other"))].into(),
        name,
        taints: Vec::new(),
        allocatable,
        ready: true,
        unschedulable: false,
    })
}

fn quotas(flavor: usize, quotas: &[Quota]) -> FlavorQuotas {
    let quota = |quota: &Quota| model::Quota {
        nominal: Amount::Bounded(quota.nominal),
        borrowing_limit: quota.borrowing.map(Amount::Bounded),
        lending_limit: quota.lending.map(Amount::Bounded),
    };
    let quotas = RESOURCE_NAMES.iter().zip(quotas).map(|(name, it)| (Name::from(*name), quota(it)));
    FlavorQuotas { flavor: flavor_name(flavor), quotas: quotas.collect() }
}

fn group(flavors: Vec<FlavorQuotas>) -> Vec<ResourceGroup> {
    let resources = RESOURCE_NAMES.iter().map(|name| Name::from(*name)).collect();
    if flavors.is_empty() { Vec::new() } else { vec![ResourceGroup { resources, flavors }] }
}

/// The configuration objects of a plan.
pub fn configuration(plan: &Plan) -> Vec<Event> {
    let mut events = vec![Event::NamespaceUpserted { name: Name::from("default"), labels: Labels::new() }];
    for at in 0..FLAVORS {
        let mut flavor = ResourceFlavor { name: flavor_name(at), ..ResourceFlavor::default() };
        if at == 0 && !plan.nodes.is_empty() {
            flavor.topology = Some(Name::from("hosts"));
            events.push(Event::TopologyUpserted(Topology {
                name: Name::from("hosts"),
                levels: vec![Name::from(HOSTNAME)],
            }));
            events.extend((0..plan.nodes.len()).map(|at| node(plan, at)));
        }
        if at == 1 {
            flavor.node_labels.insert(Name::from("tier"), Name::from("f1"));
        }
        if at == 2 {
            let (key, value) = (Name::from("dedicated"), Name::from("yes"));
            flavor.node_taints.push(Taint { key, value, effect: TaintEffect::NoSchedule });
        }
        events.push(Event::FlavorUpserted(flavor));
    }
    events.extend((0..plan.cohorts.len()).map(|at| cohort(plan, at)));
    for at in 0..plan.queues.len() {
        events.push(queue(plan, at));
        events.push(Event::LocalQueueUpserted(LocalQueue {
            namespace: Name::from("default"),
            name: queue_name(at),
            cluster_queue: queue_name(at),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        }));
    }
    events
}

/// A cohort of a plan.
fn cohort(plan: &Plan, at: usize) -> Event {
    let plan = &plan.cohorts[at];
    let mut cohort = model::Cohort::new(cohort_name(at));
    cohort.parent = plan.parent.map(cohort_name);
    cohort.fair_weight_milli = plan.weight;
    cohort.resource_groups = group(plan.quotas.iter().map(|(flavor, list)| quotas(*flavor, list)).collect());
    Event::CohortUpserted(cohort)
}

/// A queue of a plan.
fn queue(plan: &Plan, at: usize) -> Event {
    let plan = &plan.queues[at];
    let mut queue = model::ClusterQueue::new(queue_name(at));
    queue.cohort = plan.cohort.map(cohort_name);
    queue.strategy = plan.strategy;
    queue.fair_weight_milli = plan.weight;
    queue.stop_policy = if plan.stopped { StopPolicy::Hold } else { StopPolicy::None };
    queue.resource_groups = group(plan.flavors.iter().map(|(flavor, list)| quotas(*flavor, list)).collect());
    queue.fungibility = FlavorFungibility {
        when_can_borrow: plan.when_can_borrow,
        when_can_preempt: plan.when_can_preempt,
        preference: plan.preference,
    };
    queue.preemption = PreemptionPolicies {
        within_cluster_queue: plan.within_queue,
        reclaim_within_cohort: plan.reclaim,
        borrow_within_cohort: plan.borrow,
    };
    Event::ClusterQueueUpserted(queue)
}

impl Host {
    /// A host with a plan's configuration.
    pub fn new(plan: &Plan) -> Self {
        Self::with_events(plan, configuration(plan))
    }

    /// A host with a plan's configuration, sent as these events.
    pub fn with_events(plan: &Plan, events: Vec<Event>) -> Self {
        let mut config = EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() };
        config.fair_sharing = plan.fair.clone().map(|preemption_strategies| FairSharing { preemption_strategies });
        let now = Time::from_seconds(1000);
        let mut host = Host { engine: Engine::new(config), now, workloads: BTreeMap::new(), arrived: 0 };
        for event in events {
            host.engine.apply(event, now);
        }
        host
    }

    fn tick(&mut self) {
        self.now = self.now.after(Duration::from_secs(1));
    }

    /// Adds a workload.
    pub fn arrive(&mut self, job: &Job) {
        let (name, workload) = self.create(job);
        self.see(name, workload);
    }

    /// Adds workloads that the engine receives in reverse order.
    pub fn arrive_backwards(&mut self, jobs: &[&Job]) {
        let created: Vec<_> = jobs.iter().map(|job| self.create(job)).collect();
        created.into_iter().rev().for_each(|(name, workload)| self.see(name, workload));
    }

    fn create(&mut self, job: &Job) -> (String, Workload) {
        self.tick();
        let name = job_name(self.arrived);
        self.arrived += 1;
        let mut workload = Workload::new("default", name.as_str());
        workload.uid = Name::from(name.as_str());
        workload.created = self.now;
        workload.queue = queue_name(job.queue);
        workload.priority = job.priority;
        let mut template = PodTemplate::default();
        if job.selects {
            template.node_selector.insert(Name::from("tier"), Name::from("other"));
        }
        if job.tolerates {
            template.tolerations.push(Toleration {
                key: Name::from("dedicated"),
                exists: true,
                value: Name::from(""),
                effect: None,
            });
        }
        let sets = job.sets.iter().enumerate().map(|(at, set)| {
            let requests: model::ResourceList =
                RESOURCE_NAMES.iter().zip(set.requests).map(|(name, it)| (Name::from(*name), it)).collect();
            model::PodSet {
                name: Name::from(format!("s{at}")),
                count: set.count,
                min_count: set.least,
                reclaimable: 0,
                requests: requests.clone(),
                template: Arc::new(PodTemplate { requests, ..template.clone() }),
                topology: job
                    .placed
                    .then(|| TopologyRequest { mode: Some(TopologyMode::Unconstrained), ..TopologyRequest::default() }),
            }
        });
        workload.pod_sets = sets.collect();
        (name, workload)
    }

    fn see(&mut self, name: String, workload: Workload) {
        self.workloads.insert(name, workload.clone());
        self.engine.apply(Event::WorkloadUpserted(Box::new(workload)), self.now);
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Workload)) {
        let Some(mut workload) = self.workloads.get(name).cloned() else { return };
        change(&mut workload);
        self.see(name.to_owned(), workload);
    }

    /// Finishes the n-th unfinished workload (modulo their number). Returns its name.
    pub fn finish(&mut self, at: usize) -> Option<String> {
        let name = self.nth(at)?;
        let workload = self.workloads.remove(&name)?;
        self.engine.apply(Event::WorkloadRemoved(workload.key), self.now);
        Some(name)
    }

    /// Sends a queue in the state of the plan.
    pub fn queue_changed(&mut self, plan: &Plan, at: usize) {
        self.engine.apply(queue(plan, at), self.now);
    }

    /// Sends a cohort in the state of the plan.
    pub fn cohort_changed(&mut self, plan: &Plan, at: usize) {
        self.engine.apply(cohort(plan, at), self.now);
    }

    /// Sends a node in the state of the plan, or deletes it.
    pub fn node_changed(&mut self, plan: &Plan, at: usize, is_there: bool) {
        let event = if is_there { node(plan, at) } else { Event::NodeRemoved(node_name(at)) };
        self.engine.apply(event, self.now);
    }

    /// The name of the n-th unfinished workload (modulo their number).
    fn nth(&self, at: usize) -> Option<String> {
        self.workloads.keys().nth(at % self.workloads.len().max(1)).cloned()
    }

    /// Sets the state of the only admission check of the n-th workload.
    pub fn check(&mut self, at: usize, state: CheckState) {
        let status =
            CheckStatus { name: Name::from("check"), state, node_selectors: [].into(), tolerations: [].into() };
        if let Some(name) = self.nth(at) {
            self.change(&name, |workload| workload.checks = vec![status]);
        }
    }

    /// Marks this number of pods of the n-th workload's first pod set as ended.
    pub fn reclaim(&mut self, at: usize, pods: i32) {
        if let Some(name) = self.nth(at) {
            self.change(&name, |workload| workload.pod_sets[0].reclaimable = pods.min(workload.pod_sets[0].count));
        }
    }

    /// Changes the n-th workload's priority.
    pub fn reprioritize(&mut self, at: usize, priority: i64) {
        if let Some(name) = self.nth(at) {
            self.change(&name, |workload| workload.priority = priority);
        }
    }

    /// Runs a part of a cycle. All writes of its decisions fail.
    pub fn refused_part(&mut self, heads: usize) {
        let outcome = self.engine.cycle_part(heads, self.now);
        for decision in outcome.decisions {
            match decision.verdict {
                Verdict::Admit(_) => drop(self.engine.apply(Event::AdmissionFailed(decision.workload), self.now)),
                Verdict::Preempt { victims, .. } => {
                    for victim in victims {
                        self.engine.apply(Event::PreemptionFailed(victim.workload), self.now);
                    }
                }
                Verdict::Wait(_) | Verdict::Evict { .. } => {}
            }
        }
        self.tick();
    }

    /// Runs a part of a cycle and writes its decisions to the objects.
    pub fn part(&mut self, heads: usize) -> CycleOutcome {
        let outcome = self.engine.cycle_part(heads, self.now);
        self.write(&outcome);
        self.tick();
        outcome
    }

    /// Runs a cycle and writes its decisions to the objects.
    pub fn cycle(&mut self) -> CycleOutcome {
        self.part(usize::MAX)
    }

    /// Runs a cycle in parts of this number of heads. Each part is written before the next one.
    pub fn cycle_in_parts(&mut self, heads: usize) -> Vec<CycleOutcome> {
        let mut parts = Vec::new();
        loop {
            let part = self.engine.cycle_part(heads, self.now);
            self.write(&part);
            let is_incomplete = part.is_incomplete;
            parts.push(part);
            if !is_incomplete {
                self.tick();
                return parts;
            }
        }
    }

    fn write(&mut self, outcome: &CycleOutcome) {
        let now = self.now;
        for decision in &outcome.decisions {
            match &decision.verdict {
                Verdict::Admit(admit) => self.change(&decision.workload.name, |workload| {
                    workload.admission = Some(admit.admission.clone());
                    workload.admitted = true;
                    workload.reserved_at = Some(now);
                    (workload.evicted, workload.preempted) = (None, None);
                }),
                Verdict::Preempt { victims, .. } => {
                    for victim in victims.iter().filter(|victim| victim.write) {
                        self.change(&victim.workload.name, |workload| {
                            workload.evicted = Some(Eviction { reason: Name::from("Preempted"), at: now });
                        });
                    }
                }
                Verdict::Wait(_) | Verdict::Evict { .. } => {}
            }
        }
    }

    /// Workloads that are being evicted and still hold quota.
    pub fn leaving(&self) -> BTreeSet<String> {
        let leaving = self.workloads.iter().filter(|(_, it)| it.evicted.is_some() && it.admission.is_some());
        leaving.map(|(name, _)| name.clone()).collect()
    }

    /// Evicted workloads stop, return their quota and queue again. Returns their names.
    pub fn stop(&mut self) -> BTreeSet<String> {
        let leaving = self.leaving();
        for name in &leaving {
            self.change(name, |workload| {
                (workload.admission, workload.reserved_at) = (None, None);
                workload.admitted = false;
                workload.requeued = Some(true);
            });
        }
        leaving
    }
}
