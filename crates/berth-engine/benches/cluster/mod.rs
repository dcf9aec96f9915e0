//! Builders for queues and workloads under test. They are cheap enough not to affect measurements.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::{
    ClusterQueue, FlavorQuotas, Labels, LocalQueue, PodSet, PodTemplate, Quota, ResourceFlavor, ResourceGroup,
    StopPolicy, Time, Workload, WorkloadKey,
};
use berth_engine::{Amount, CycleOutcome, Engine, EngineConfig, Event, Name, Verdict};

/// An engine and the objects that it was given.
pub struct Cluster {
    pub engine: Engine,
    pub now: Time,
    objects: HashMap<WorkloadKey, Workload>,
    created: i64,
}

/// A cluster queue that is being built.
pub struct Queue(ClusterQueue);

/// A queue with this number of cores.
pub fn queue(name: &str, cores: i64) -> Queue {
    let mut queue = ClusterQueue::new(name);
    let quota = Quota { nominal: Amount::Bounded(cores * 1000), borrowing_limit: None, lending_limit: None };
    queue.resource_groups = vec![ResourceGroup {
        resources: vec![Name::from("cpu")],
        flavors: vec![FlavorQuotas { flavor: Name::from("default"), quotas: vec![(Name::from("cpu"), quota)] }],
    }];
    Queue(queue)
}

impl Queue {
    /// Changes any field.
    pub fn with(mut self, change: impl FnOnce(&mut ClusterQueue)) -> Queue {
        change(&mut self.0);
        self
    }
}

/// A workload that is being built.
pub struct Job(Workload);

/// A workload of one pod that requests this many thousandths of a core.
pub fn job(name: &str, queue: &str, milli: i64) -> Job {
    let mut workload = Workload::new("default", name);
    workload.uid = Name::from(name);
    workload.queue = Name::from(queue);
    let requests: berth_engine::model::ResourceList = [(Name::from("cpu"), milli)].into();
    workload.pod_sets = vec![PodSet {
        name: Name::from("main"),
        count: 1,
        min_count: None,
        reclaimable: 0,
        requests: requests.clone(),
        template: Arc::new(PodTemplate { requests, ..PodTemplate::default() }),
        topology: None,
    }];
    Job(workload)
}

impl Job {
    /// Changes any field.
    pub fn with(mut self, change: impl FnOnce(&mut Workload)) -> Job {
        change(&mut self.0);
        self
    }
}

impl From<Job> for Workload {
    fn from(job: Job) -> Workload {
        job.0
    }
}

impl Cluster {
    /// An engine without queues. Flushes take effect at once.
    pub fn new(change: impl FnOnce(&mut EngineConfig)) -> Cluster {
        let mut config = EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() };
        change(&mut config);
        let mut cluster =
            Cluster { engine: Engine::new(config), now: Time::from_seconds(1000), objects: HashMap::new(), created: 0 };
        cluster.apply(Event::NamespaceUpserted { name: Name::from("default"), labels: Labels::new() });
        cluster
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
    }

    pub fn flavor(&mut self, name: &str) -> &mut Cluster {
        self.apply(Event::FlavorUpserted(ResourceFlavor { name: Name::from(name), ..ResourceFlavor::default() }));
        self
    }

    /// Adds a cluster queue and a local queue of the same name.
    pub fn queue(&mut self, queue: Queue) -> &mut Cluster {
        let name = queue.0.name.clone();
        self.apply(Event::ClusterQueueUpserted(queue.0));
        self.apply(Event::LocalQueueUpserted(LocalQueue {
            namespace: Name::from("default"),
            name: name.clone(),
            cluster_queue: name,
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        }));
        self
    }

    /// Creates a workload with a later time than all others.
    pub fn submit(&mut self, job: Job) {
        self.resubmit(job.0);
    }

    /// Creates a workload again, as a new one.
    pub fn resubmit(&mut self, mut workload: Workload) {
        self.created += 1;
        workload.created = Time(self.created);
        self.objects.insert(workload.key.clone(), workload.clone());
        self.apply(Event::WorkloadUpserted(Box::new(workload)));
    }

    /// A workload in the state in which it was created.
    pub fn object(&self, key: &WorkloadKey) -> Workload {
        let mut object = self.objects[key].clone();
        object.admission = None;
        object.admitted = false;
        object.reserved_at = None;
        object
    }

    /// A workload that holds quota in a queue.
    pub fn running_in(&self, queue: &str) -> WorkloadKey {
        let found = self.objects.values().find(|it| it.admission.is_some() && &*it.queue == queue);
        found.expect("a workload runs in the queue").key.clone()
    }

    /// Finishes and deletes a workload.
    pub fn finish(&mut self, key: &WorkloadKey) {
        let mut object = self.objects.remove(key).expect("the workload exists");
        object.finished = true;
        self.apply(Event::WorkloadUpserted(Box::new(object)));
        self.apply(Event::WorkloadRemoved(key.clone()));
    }

    /// Writes the admissions of a cycle to the objects, and sends the objects to the engine.
    pub fn confirm(&mut self, outcome: &CycleOutcome) {
        for event in self.confirmations(outcome) {
            self.apply(event);
        }
    }

    /// Writes the admissions of a cycle to the objects. Returns the events that report them to the
    /// engine.
    pub fn confirmations(&mut self, outcome: &CycleOutcome) -> Vec<Event> {
        let mut events = Vec::new();
        for decision in &outcome.decisions {
            let Verdict::Admit(admit) = &decision.verdict else { continue };
            let object = self.objects.get_mut(&decision.workload).expect("decisions are about workloads that exist");
            object.admission = Some(admit.admission.clone());
            object.admitted = true;
            object.reserved_at = Some(self.now);
            events.push(Event::WorkloadUpserted(Box::new(object.clone())));
        }
        events
    }

    /// Runs cycles until nothing more is decided.
    pub fn settle(&mut self) {
        loop {
            let outcome = self.engine.cycle(self.now);
            self.confirm(&outcome);
            if !outcome.more {
                return;
            }
        }
    }
}
