//! A trace under a policy, as a load for the driver.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_controllers::configuration::Resources;
use berth_controllers::translate::{amounts, transform};
use berth_engine::model::{PodSet, PodTemplate, ResourceList, Time, Workload};
use berth_engine::{Event, Name};
use berth_load::{History, Load, Probe, drive};

use crate::policy::{Policy, PolicyError, QueueRef};
use crate::trace::{Owner, Trace};

/// Start of virtual time for traces without dates: 2000-01-01.
const START: Time = Time(946_684_800_000_000_000);

/// The jobs of a trace in the queues of a policy.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    policy: &'a Policy,
    targets: Vec<Target>,
    templates: Vec<Template>,
    /// Indices of each job's target and template.
    places: Vec<(u32, u32)>,
    pod_set: Name,
}

/// Where jobs go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Target {
    queue: QueueRef,
    cluster_queue: Option<Name>,
    priority: i64,
}

/// What a pod requests.
#[derive(Debug)]
struct Template {
    requests: ResourceList,
    pod: Arc<PodTemplate>,
}

impl<'a> Replay<'a> {
    /// Maps each job to its queue. The error names the first job that has none.
    pub fn new(trace: &'a Trace, policy: &'a Policy) -> Result<Replay<'a>, PolicyError> {
        let routes: HashMap<(&Name, &Name), &Name> = policy
            .objects
            .iter()
            .filter_map(|event| match event {
                Event::LocalQueueUpserted(local) => Some(((&local.namespace, &local.name), &local.cluster_queue)),
                _ => None,
            })
            .collect();
        let mut targets: Indexed<Target> = Indexed::default();
        let mut queues: HashMap<&Owner, (QueueRef, Option<Name>)> = HashMap::new();
        let mut by_requests: HashMap<&ResourceList, u32> = HashMap::new();
        let mut templates = Vec::new();
        let mut places = Vec::with_capacity(trace.jobs.len());
        for job in &trace.jobs {
            let fail =
                |problem: String| PolicyError::Mapping { policy: policy.name.clone(), job: job.name.clone(), problem };
            if !queues.contains_key(&*job.owner) {
                queues.insert(&job.owner, policy.mapping.target(&job.owner).map_err(fail)?);
            }
            let (queue, class_of_rule) = &queues[&*job.owner];
            // A class that the policy does not define leaves the priority of the trace.
            let class = job.priority_class.as_ref().or(class_of_rule.as_ref());
            let value = class.and_then(|class| policy.priority_classes.get(class)).copied().unwrap_or(job.priority);
            let cluster_queue = routes.get(&(&queue.namespace, &queue.name)).map(|name| (*name).clone());
            let target = targets.index(Target { queue: queue.clone(), cluster_queue, priority: i64::from(value) });
            let template = *by_requests.entry(&job.requests).or_insert_with(|| {
                templates.push(Template::new(&job.requests, &policy.resources));
                templates.len() as u32 - 1
            });
            places.push((target, template));
        }
        Ok(Replay { trace, policy, targets: targets.values, templates, places, pod_set: Name::from("main") })
    }

    /// The policy.
    pub fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// The cluster queue for which a job waits; `None` if its LocalQueue routes to none.
    pub fn cluster_queue(&self, number: usize) -> Option<&Name> {
        self.targets[self.places[number].0 as usize].cluster_queue.as_ref()
    }

    /// The trace.
    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// The LocalQueue of a job.
    pub fn queue(&self, number: usize) -> &QueueRef {
        &self.targets[self.places[number].0 as usize].queue
    }

    /// The priority of a job.
    pub fn priority(&self, number: usize) -> i64 {
        self.targets[self.places[number].0 as usize].priority
    }

    /// Runs the trace to its end.
    pub fn run(&self, probe: &mut impl Probe) -> History {
        drive::run(self, self.policy.config.clone(), probe)
    }
}

impl Template {
    fn new(list: &ResourceList, resources: &Resources) -> Template {
        let exact = amounts::to_resource_list(list);
        let effective = transform::effective(&amounts::exact(Some(&exact)), resources);
        let requests =
            effective.iter().map(|(name, amount)| (Name::from(name.as_str()), amounts::request(name, amount)));
        let pod = PodTemplate { requests: list.clone(), ..PodTemplate::default() };
        Template { requests: requests.collect(), pod: Arc::new(pod) }
    }
}

impl Load for Replay<'_> {
    fn start(&self) -> Time {
        self.trace.start.unwrap_or(START)
    }

    fn objects(&self) -> Vec<Event> {
        self.policy.objects.clone()
    }

    fn jobs(&self) -> usize {
        self.trace.jobs.len()
    }

    fn created(&self, number: usize) -> Duration {
        self.trace.jobs[number].submitted
    }

    fn workload(&self, number: usize) -> Workload {
        let job = &self.trace.jobs[number];
        let (target, template) = self.places[number];
        let (target, template) = (&self.targets[target as usize], &self.templates[template as usize]);
        let mut workload = Workload::new(target.queue.namespace.clone(), job.name.clone());
        // Ties between jobs are broken by their order in the trace.
        workload.uid = Name::from(format!("{number:010}"));
        workload.queue = target.queue.name.clone();
        workload.priority = target.priority;
        workload.pod_sets = vec![PodSet {
            name: self.pod_set.clone(),
            count: job.pods,
            min_count: None,
            reclaimable: 0,
            requests: template.requests.clone(),
            template: template.pod.clone(),
            topology: None,
        }];
        workload
    }

    fn run_time(&self, number: usize) -> Duration {
        self.trace.jobs[number].run_time
    }
}

/// Distinct values and their indices.
#[derive(Debug)]
struct Indexed<T> {
    values: Vec<T>,
    indices: HashMap<T, u32>,
}

impl<T> Default for Indexed<T> {
    fn default() -> Self {
        Indexed { values: Vec::new(), indices: HashMap::new() }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Indexed<T> {
    fn index(&mut self, value: T) -> u32 {
        if let Some(known) = self.indices.get(&value) {
            return *known;
        }
        let index = u32::try_from(self.values.len()).expect("fewer distinct values than jobs");
        self.values.push(value.clone());
        self.indices.insert(value, index);
        index
    }
}
