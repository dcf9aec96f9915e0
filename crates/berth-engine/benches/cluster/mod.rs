//! A platform in a few words, cheap enough not to show in what is measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::model::{
    ClusterQueue, FlavorQuotas, Labels, LocalQueue, PodSet, PodTemplate, Quota, ResourceFlavor, ResourceGroup,
    StopPolicy, Time, Workload, WorkloadKey,
};
use berth_engine::{Amount, CycleOutcome, Engine, EngineConfig, Event, Name, Verdict};

/// An engine and the objects it knows.
pub struct Platform {
    pub engine: Engine,
    pub now: Time,
    objects: HashMap<WorkloadKey, Workload>,
    created: i64,
}

/// A cluster queue in the making.
pub struct Queue(ClusterQueue);

/// A queue with so many cores.
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
    /// Changes anything.
    pub fn with(mut self, change: impl FnOnce(&mut ClusterQueue)) -> Queue {
        change(&mut self.0);
        self
    }
}

/// A workload in the making.
pub struct Job(Workload);

/// A workload of one pod with so many thousandths of a core.
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
    /// Changes anything.
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

impl Platform {
    /// An empty platform; flushes take effect at once.
    pub fn new(change: impl FnOnce(&mut EngineConfig)) -> Platform {
        let mut config = EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() };
        change(&mut config);
        let mut platform = Platform {
            engine: Engine::new(config),
            now: Time::from_seconds(1000),
            objects: HashMap::new(),
            created: 0,
        };
        platform.apply(Event::NamespaceUpserted { name: Name::from("default"), labels: Labels::new() });
        platform
    }

    pub fn apply(&mut self, event: Event) {
        self.engine.apply(event, self.now);
    }

    pub fn flavor(&mut self, name: &str) -> &mut Platform {
        self.apply(Event::FlavorUpserted(ResourceFlavor { name: Name::from(name), ..ResourceFlavor::default() }));
        self
    }

    /// Adds a cluster queue and a local queue of the same name.
    pub fn queue(&mut self, queue: Queue) -> &mut Platform {
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

    /// Creates a workload, later than all before.
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

    /// A workload as it was when it was created.
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
        found.expect("something runs in the queue").key.clone()
    }

    /// Lets a workload finish and be deleted.
    pub fn finish(&mut self, key: &WorkloadKey) {
        let mut object = self.objects.remove(key).expect("the workload exists");
        object.finished = true;
        self.apply(Event::WorkloadUpserted(Box::new(object)));
        self.apply(Event::WorkloadRemoved(key.clone()));
    }

    /// Writes the admissions of a cycle to the objects and lets the engine see them.
    pub fn confirm(&mut self, outcome: &CycleOutcome) {
        for event in self.confirmations(outcome) {
            self.apply(event);
        }
    }

    /// Writes the admissions of a cycle to the objects; returns the events that report this to the
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

    /// Cycles until nothing more is decided.
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
