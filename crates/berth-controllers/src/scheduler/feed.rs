//! Turns watches into events of the engine for every kind on which decisions depend. Only the
//! newest state of an object counts.

use berth_api::kueue::v1beta2::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Topology, Workload};
use berth_engine::model::WorkloadKey;
use berth_engine::{Event, Name, PendingReason};
use berth_runtime::{Cache, ControllerBuilder, Delta, ObjectKey};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use kube::Resource;

use super::SchedulerState;
use super::refusals::What;
use crate::conditions;
use crate::configuration::Resources;
use crate::decisions::Decisions;
use crate::devices::Devices;
use crate::metrics::Metrics;
use crate::queues::{cohort, priority_class};
use crate::stores::Stores;
use crate::translate::placement::labels;
use crate::translate::{self, queues};
use crate::workload::status;

/// The objects besides a workload that its translation depends on.
#[derive(Clone)]
pub(super) struct Environment {
    resources: Resources,
    limit_ranges: Cache<LimitRange>,
    runtime_classes: Cache<RuntimeClass>,
    devices: Devices,
}

impl Environment {
    pub(super) fn new(resources: Resources, extra: &Extra, devices: &Devices) -> Self {
        let (limit_ranges, runtime_classes) = (extra.limit_ranges.clone(), extra.runtime_classes.clone());
        Environment { resources, limit_ranges, runtime_classes, devices: devices.clone() }
    }

    fn translate(&self, workload: &Workload) -> berth_engine::model::Workload {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let limit_ranges: Vec<LimitRange> =
            self.limit_ranges.list_namespace(namespace).iter().map(|range| (**range).clone()).collect();
        let runtime_classes = workload
            .spec
            .pod_sets
            .iter()
            .filter_map(|set| set.template.spec.as_ref()?.runtime_class_name.clone())
            .filter_map(|name| {
                let class = self.runtime_classes.get(&ObjectKey::cluster(name.as_str()))?;
                Some((name, (*class).clone()))
            })
            .collect();
        let context = translate::Context {
            resources: &self.resources,
            limit_ranges: &limit_ranges,
            runtime_classes: &runtime_classes,
        };
        let mut translated = translate::workload(workload, &context);
        match self.devices.charges(workload, || translate::adjusted_specs(workload, &context)) {
            Ok(charges) => charges.apply(&mut translated),
            // The workload controller reports the problem. Until it is solved, the workload is
            // treated like one in back-off, and explanations name the problem.
            Err(problem) if translated.admission.is_none() => {
                translated.requeued = Some(false);
                translated.inadmissible = Some(problem.message);
            }
            Err(_) => {}
        }
        translated
    }
}

/// The caches that only the scheduler reads.
pub(super) struct Extra {
    pub cohorts: Cache<Cohort>,
    pub topologies: Cache<Topology>,
    pub limit_ranges: Cache<LimitRange>,
    pub runtime_classes: Cache<RuntimeClass>,
    /// Nodes and pods, when topology-aware scheduling is on.
    pub nodes: Option<(Cache<Node>, Cache<Pod>)>,
}

/// Feeds every change in the caches to the scheduler state. The closures request no reconcile: the
/// scheduler state wakes the cycle if a decision could have changed.
pub(super) fn watch<'a>(
    mut builder: ControllerBuilder<'a>,
    scheduler: &SchedulerState,
    stores: &Stores,
    extra: &Extra,
    environment: &Environment,
    metrics: &Metrics,
    decisions: &Decisions,
) -> ControllerBuilder<'a> {
    builder = watch_queues(builder, scheduler, stores, extra, metrics);
    if let Some((nodes, pods)) = &extra.nodes {
        builder = watch_nodes(builder, scheduler, nodes, pods);
    }
    let (env, of, metrics) = (environment.clone(), scheduler.clone(), metrics.clone());
    let (decisions, queues) = (decisions.clone(), stores.clone());
    let local = move |workload: &Workload| queues.cluster_queue_name(workload);
    builder = feed(builder, scheduler, &stores.workloads, move |delta: &Delta<Workload>| match &delta.new {
        Some(workload) => {
            metrics.changed(delta.old.as_deref(), Some(workload));
            decisions.observe(workload);
            decisions.changed(delta.old.as_deref(), Some(workload), &local(workload), of.clock_now());
            let event = of.upserted(&env, workload);
            if delta.old.as_ref().is_some_and(|old| priority_class::changed(old, workload))
                && let Some(admission) = workload.status.as_ref().and_then(|status| status.admission.as_ref())
            {
                of.apply(event);
                return Some(Event::FlushRequested { cluster_queue: admission.cluster_queue.as_str().into() });
            }
            Some(event)
        }
        None => {
            metrics.changed(delta.old.as_deref(), None);
            let key = ObjectKey::of(delta.latest().as_ref());
            let last = delta.latest();
            decisions.changed(Some(last), None, &local(last), of.clock_now());
            decisions.forget(&key);
            let key = workload_key(&key);
            of.forget(&key);
            Some(Event::WorkloadRemoved(key))
        }
    });
    // The requests of pods depend on the namespace's LimitRanges and on RuntimeClasses.
    let (env, workloads, of) = (environment.clone(), stores.workloads.clone(), scheduler.clone());
    builder = builder.watch(&extra.limit_ranges, move |delta: &Delta<LimitRange>| {
        let namespace = delta.latest().metadata.namespace.clone().unwrap_or_default();
        for workload in workloads.iter_namespace(&namespace) {
            of.apply(of.upserted(&env, &workload));
        }
        None::<ObjectKey>
    });
    builder = watch_devices(builder, scheduler, stores, environment);
    let (env, workloads, of) = (environment.clone(), stores.workloads.clone(), scheduler.clone());
    builder.watch(&extra.runtime_classes, move |delta: &Delta<RuntimeClass>| {
        let class = delta.latest().metadata.name.clone();
        for workload in workloads.iter() {
            let uses = workload.spec.pod_sets.iter().any(|set| {
                set.template.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_ref()) == class.as_ref()
            });
            if uses {
                of.apply(of.upserted(&env, &workload));
            }
        }
        None::<ObjectKey>
    })
}

/// Feeds pending workloads again when their claims, device classes or published devices change.
fn watch_devices<'a>(
    mut builder: ControllerBuilder<'a>,
    scheduler: &SchedulerState,
    stores: &Stores,
    environment: &Environment,
) -> ControllerBuilder<'a> {
    let again = || {
        let (env, workloads, of) = (environment.clone(), stores.workloads.clone(), scheduler.clone());
        move |keys: Vec<ObjectKey>| {
            for workload in keys.iter().filter_map(|key| workloads.get(key)) {
                of.apply(of.upserted(&env, &workload));
            }
            None::<ObjectKey>
        }
    };
    let (devices, feed) = (stores.devices.clone(), again());
    builder = builder.watch(stores.devices.template_cache(), move |delta: &Delta<ResourceClaimTemplate>| {
        feed(devices.users_of_template(delta.latest()))
    });
    let (devices, feed) = (stores.devices.clone(), again());
    builder = builder.watch(stores.devices.class_cache(), move |delta: &Delta<DeviceClass>| {
        feed(devices.users_of_class(delta.old.as_deref(), delta.new.as_deref()))
    });
    let (devices, feed) = (stores.devices.clone(), again());
    builder.watch(stores.devices.slice_cache(), move |_: &Delta<ResourceSlice>| feed(devices.users_of_slices()))
}

/// Feeds namespaces, flavors, topologies, admission checks, cohorts and queues to the scheduler
/// state.
fn watch_queues<'a>(
    mut builder: ControllerBuilder<'a>,
    scheduler: &SchedulerState,
    stores: &Stores,
    extra: &Extra,
    metrics: &Metrics,
) -> ControllerBuilder<'a> {
    builder = feed(builder, scheduler, &stores.namespaces, |delta: &Delta<Namespace>| match &delta.new {
        Some(namespace) => Some(Event::NamespaceUpserted {
            name: name(namespace.as_ref()),
            labels: labels(namespace.metadata.labels.as_ref()),
        }),
        None => Some(Event::NamespaceRemoved(name(delta.latest().as_ref()))),
    });
    builder = feed(builder, scheduler, &stores.flavors, |delta: &Delta<ResourceFlavor>| match &delta.new {
        Some(flavor) => Some(Event::FlavorUpserted(queues::flavor(flavor))),
        None => Some(Event::FlavorRemoved(name(delta.latest().as_ref()))),
    });
    builder = feed(builder, scheduler, &extra.topologies, |delta: &Delta<Topology>| match &delta.new {
        Some(topology) => Some(Event::TopologyUpserted(queues::topology(topology))),
        None => Some(Event::TopologyRemoved(name(delta.latest().as_ref()))),
    });
    builder = feed(builder, scheduler, &stores.admission_checks, |delta: &Delta<AdmissionCheck>| match &delta.new {
        Some(check) => Some(Event::AdmissionCheckUpserted(queues::admission_check(check))),
        None => Some(Event::AdmissionCheckRemoved(name(delta.latest().as_ref()))),
    });
    let (of, cohort_metrics) = (scheduler.clone(), metrics.clone());
    builder = feed(builder, scheduler, &extra.cohorts, move |delta: &Delta<Cohort>| match &delta.new {
        Some(new) if !cohort::concerns(delta.old.as_deref(), new) => None,
        Some(cohort) => Some(Event::CohortUpserted(queues::cohort(cohort))),
        None => {
            let name = name(delta.latest().as_ref());
            of.apply(Event::CohortRemoved(name.clone()));
            cohort_metrics.cohort_deleted(&name);
            None
        }
    });
    builder = feed(builder, scheduler, &stores.cluster_queues, |delta: &Delta<ClusterQueue>| match &delta.new {
        Some(_) if is_status_only(delta) => None,
        Some(queue) => Some(Event::ClusterQueueUpserted(queues::cluster_queue(queue))),
        None => Some(Event::ClusterQueueRemoved(name(delta.latest().as_ref()))),
    });
    let of = scheduler.clone();
    builder = feed(builder, scheduler, &stores.local_queues, move |delta: &Delta<LocalQueue>| match &delta.new {
        Some(_) if is_status_only(delta) => None,
        Some(queue) => {
            if delta.old.is_none()
                && let Some(event) = queues::recorded_usage(queue)
            {
                of.apply(event);
            }
            Some(Event::LocalQueueUpserted(queues::local_queue(queue)))
        }
        None => {
            let key = ObjectKey::of(delta.latest().as_ref());
            Some(Event::LocalQueueRemoved { namespace: key.namespace.as_str().into(), name: key.name.as_str().into() })
        }
    });
    builder
}

/// Feeds nodes, and the pods that use a part of their resources.
fn watch_nodes<'a>(
    builder: ControllerBuilder<'a>,
    scheduler: &SchedulerState,
    nodes: &Cache<Node>,
    pods: &Cache<Pod>,
) -> ControllerBuilder<'a> {
    let builder = feed(builder, scheduler, nodes, |delta: &Delta<Node>| match &delta.new {
        Some(node) => Some(Event::NodeUpserted(queues::node(node))),
        None => Some(Event::NodeRemoved(name(delta.latest().as_ref()))),
    });
    feed(builder, scheduler, pods, |delta: &Delta<Pod>| {
        let pod = delta.new.as_ref().and_then(|pod| queues::node_pod(pod));
        match (pod, delta.old.as_ref().and_then(|pod| queues::node_pod(pod))) {
            (Some(pod), _) => Some(Event::NodePodUpserted(pod)),
            (None, Some(old)) => Some(Event::NodePodRemoved { namespace: old.namespace, name: old.name }),
            (None, None) => None,
        }
    })
}

impl SchedulerState {
    /// Feeds the cached state of a workload to the engine again. Returns false if the workload was
    /// deleted.
    pub(super) fn feed_again(&self, environment: &Environment, workloads: &Cache<Workload>, key: &ObjectKey) -> bool {
        if let Some(workload) = workloads.get(key) {
            self.apply(self.upserted(environment, &workload));
            if workloads.get(key).is_some() {
                return true;
            }
        }
        // The watch may have reported the deletion before the event above was applied.
        self.forget(&workload_key(key));
        self.apply(Event::WorkloadRemoved(workload_key(key)));
        false
    }

    pub(super) fn upserted(&self, environment: &Environment, workload: &Workload) -> Event {
        let mut translated = environment.translate(workload);
        self.refine(&mut translated);
        let waits = status::condition(workload, conditions::QUOTA_RESERVED).filter(|it| it.status == "False");
        self.note_reason(&translated.key, waits.and_then(|waits| PendingReason::from_condition(&waits.reason)));
        if !self.refusals().allow(&translated.key, || What::of(workload)) {
            // The workload is treated like one in back-off.
            translated.requeued = Some(false);
        }
        Event::WorkloadUpserted(Box::new(translated))
    }
}

fn feed<'a, K: Resource + Send + Sync + 'static>(
    builder: ControllerBuilder<'a>,
    scheduler: &SchedulerState,
    cache: &Cache<K>,
    event: impl Fn(&Delta<K>) -> Option<Event> + Send + Sync + 'static,
) -> ControllerBuilder<'a> {
    let scheduler = scheduler.clone();
    builder.watch(cache, move |delta| {
        if let Some(event) = event(delta) {
            scheduler.apply(event);
        }
        None::<ObjectKey>
    })
}

/// True if only status or metadata changed: other changes increase the generation.
fn is_status_only<K: Resource>(delta: &Delta<K>) -> bool {
    match (&delta.old, &delta.new) {
        (Some(old), Some(new)) => {
            let (old, new) = (old.meta(), new.meta());
            old.uid == new.uid
                && old.generation.is_some()
                && old.generation == new.generation
                && old.deletion_timestamp == new.deletion_timestamp
        }
        _ => false,
    }
}

fn name(object: &impl Resource) -> Name {
    object.meta().name.as_deref().unwrap_or_default().into()
}

/// The engine's key of an object.
pub(crate) fn workload_key(key: &ObjectKey) -> WorkloadKey {
    WorkloadKey::new(key.namespace.as_str(), key.name.as_str())
}

/// The key of the engine's workload.
pub(crate) fn object_key(key: &WorkloadKey) -> ObjectKey {
    ObjectKey::namespaced(key.namespace.as_ref(), key.name.as_ref())
}
