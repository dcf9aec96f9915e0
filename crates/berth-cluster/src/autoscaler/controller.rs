//! The autoscaler's controller: scans the cluster once per interval in which an object changed, and
//! applies the plans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::berth::{ClusterConfiguration, NodePool, NodePoolSpec, SCALED_UP_AT_ANNOTATION};
use berth_api::pod::node_of;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Queue, Reconciler, Recorder, is_already_exists,
    is_conflict, is_not_found,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Taint};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::scale_down::{CANDIDATE_TAINT, ScaleDown, plan_scale_down};
use super::scale_up::{Growth, plan_scale_up};
use super::view::{View, is_node_bound};
use crate::Site;
use crate::placement::{PodInfo, Storage, allocation, created_claims};
use crate::pools::REMOVAL_TAINT;
use crate::provisioning::{Classes, Promised, booked};
use crate::storage::facts;

/// Adds the autoscaler, unless the configuration disables it.
pub fn install(manager: &mut Manager, configuration: Arc<ClusterConfiguration>, site: Site) {
    if !configuration.autoscaling.enabled {
        return;
    }
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    let pools: Cache<NodePool> = manager.cache();
    let requests: Cache<ProvisioningRequest> = manager.cache_if_served();
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let devices = Devices { claims: manager.cache(), classes: manager.cache(), slices: manager.cache() };
    let autoscaler = Autoscaler {
        active: pods.index(|pod| {
            let info = PodPlace::of(pod);
            info.into_iter().map(|place| place.as_str().to_owned()).collect()
        }),
        nodes: nodes.clone(),
        pools: pools.clone(),
        daemon_sets: manager.cache(),
        requests: requests.clone(),
        claims: claims.clone(),
        volumes: manager.cache(),
        classes: manager.cache(),
        devices: devices.clone(),
        provisioning_classes: Classes::of(manager),
        promised: Promised::of(manager),
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("cluster-autoscaler"),
        memory: Mutex::default(),
        configuration: configuration.clone(),
        site,
    };
    let builder = manager.controller("cluster-autoscaler");
    let scan = Scan {
        queue: builder.queue(),
        clock: autoscaler.clock.clone(),
        interval: configuration.autoscaling.scan_interval.0,
    };
    let (on_pod, on_node, on_pool, on_request) = (scan.clone(), scan.clone(), scan.clone(), scan.clone());
    let (on_device_claim, on_device_class) = (scan.clone(), scan.clone());
    builder
        .watch(&pods, move |delta| {
            // Only pods that become unschedulable, are bound or terminate are relevant, and the
            // claims that are created for them.
            let old = delta.old.as_deref().and_then(|pod| Some((PodPlace::of(pod)?, created_claims(pod))));
            let new = delta.new.as_deref().and_then(|pod| Some((PodPlace::of(pod)?, created_claims(pod))));
            on_pod.next(old != new)
        })
        .watch(&nodes, move |_| on_node.next(true))
        .watch(&pools, move |_| on_pool.next(true))
        .watch(&requests, move |_| on_request.next(true))
        .watch(&claims, move |delta| {
            // A claim that is created or bound may have been the only obstacle of a pod besides a
            // node.
            let is_bound = |claim: &Option<Arc<PersistentVolumeClaim>>| claim.as_deref().map(facts::is_bound);
            scan.next(is_bound(&delta.old) != is_bound(&delta.new))
        })
        .watch(&devices.claims, move |delta| {
            // A claim that is created may have been the only obstacle of a pod besides a node, and
            // released devices may be enough for it.
            let has_devices = |claim: &Option<Arc<ResourceClaim>>| claim.as_deref().map(|it| allocation(it).is_some());
            on_device_claim.next(has_devices(&delta.old) != has_devices(&delta.new))
        })
        .watch(&devices.classes, move |_| on_device_class.next(true))
        .concurrency(1)
        .run(autoscaler);
}

/// Claims, classes and devices of dynamic resource allocation.
#[derive(Clone)]
struct Devices {
    claims: Cache<ResourceClaim>,
    classes: Cache<DeviceClass>,
    slices: Cache<ResourceSlice>,
}

impl Devices {
    /// Adds them to a storage, if any of the pods may need devices.
    fn add_to(&self, storage: &mut Storage, pods: &[PodInfo]) {
        let may_need = |pod: &PodInfo| pod.names_claims() || pod.requests.extended().next().is_some();
        if !pods.iter().any(may_need) {
            return;
        }
        for claim in self.claims.iter() {
            storage.devices.set_claim(&ObjectKey::of(claim.as_ref()), Some(claim));
        }
        for class in self.classes.iter() {
            storage.devices.set_class(&class.name_any(), Some(class));
        }
        for slice in self.slices.iter() {
            storage.devices.set_slice(&slice.name_any(), Some(slice));
        }
    }
}

/// How the autoscaler counts a pod that has not terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodPlace {
    /// Bound to a node.
    Bound,
    /// The scheduler found no node for it.
    Unschedulable,
}

impl PodPlace {
    fn of(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        if node_of(pod).is_some() {
            return Some(Self::Bound);
        }
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_unschedulable = conditions.into_iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("Unschedulable")
        });
        (is_unschedulable && pod.metadata.deletion_timestamp.is_none()).then_some(Self::Unschedulable)
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Unschedulable => "unschedulable",
        }
    }
}

/// Schedules the next scan at the next multiple of the scan interval.
#[derive(Clone)]
struct Scan {
    queue: Queue,
    clock: Clock,
    interval: Duration,
}

impl Scan {
    /// Schedules a scan if the event is relevant. Returns `None`: the event itself enqueues no key.
    fn next(&self, is_change: bool) -> Option<ObjectKey> {
        if is_change {
            let wait = until_scan(self.clock.now(), self.clock.now(), self.interval);
            self.queue.add_after(ObjectKey::cluster("scan"), wait);
        }
        None
    }
}

/// Time from `now` to the first multiple of the interval after `at`; never zero.
fn until_scan(at: Timestamp, now: Timestamp, interval: Duration) -> Duration {
    let interval = i128::try_from(interval.as_nanos()).unwrap_or(i128::MAX).max(1);
    let slot = at.as_nanosecond().div_euclid(interval) + 1;
    let wait = slot.saturating_mul(interval) - now.as_nanosecond();
    Duration::from_nanos(u64::try_from(wait.max(1)).unwrap_or(u64::MAX))
}

struct Autoscaler {
    active: Index<Pod>,
    nodes: Cache<Node>,
    pools: Cache<NodePool>,
    daemon_sets: Cache<DaemonSet>,
    requests: Cache<ProvisioningRequest>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    devices: Devices,
    provisioning_classes: Classes,
    promised: Promised,
    client: Client,
    clock: Clock,
    recorder: Recorder,
    memory: Mutex<Memory>,
    configuration: Arc<ClusterConfiguration>,
    site: Site,
}

/// State that a restart may lose.
#[derive(Default)]
struct Memory {
    /// The last `NotTriggerScaleUp` message of each pod, by UID, so that an event is not repeated.
    reported: BTreeMap<String, String>,
}

impl Reconciler for Autoscaler {
    async fn reconcile(&self, _: ObjectKey) -> Result<Action, Error> {
        let now = self.clock.now();
        let scaling = &self.configuration.autoscaling;
        let cutoff = scaling.expendable_pods_priority_cutoff;
        let unschedulable = self.active.get(PodPlace::Unschedulable.as_str());
        let pending = unschedulable
            .into_iter()
            .map(PodInfo::new)
            .filter(|pod| !pod.is_gated() && pod.consumed_request().is_none() && pod.priority >= cutoff)
            .filter(|pod| !is_node_bound(pod))
            .collect();
        let pending = self.with_volumes(pending);
        let bound = self.active.get(PodPlace::Bound.as_str());
        let view = View::new(self.pools.list(), self.nodes.list(), bound, pending, self.site.clone())
            .and_daemons(self.daemon_sets.list())
            .and_promised(self.promised.pods(None));
        let up = plan_scale_up(&view, &self.configuration, now);
        let mut due = up.due;
        for growth in &up.growths {
            self.grow(growth, &view, now).await?;
        }
        for (name, nodes) in &up.withdraw {
            if let Some(pool) = view.pools.get(name) {
                let mut spec = pool.spec.clone();
                spec.nodes = Some(*nodes);
                self.write_spec(pool, &spec, None).await?;
            }
        }
        self.report_unhelped(&view, &up.unhelped);
        // As in the Kubernetes autoscaler, a scan that scales up does not scale down.
        if up.growths.is_empty() {
            let protected = self.protected(now);
            let down = plan_scale_down(&view, scaling, &protected, now);
            due = due.into_iter().chain(down.due).min();
            self.shrink(&down, now).await?;
        }
        let interval = scaling.scan_interval.0;
        // The next scan is the first one at or after the due time.
        let just_before = |at: Timestamp| at.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(at);
        Ok(due.map_or(Action::Wait, |at| Action::After(until_scan(just_before(at), self.clock.now(), interval))))
    }
}

/// A new pool with the time of its scale-up.
fn scaled_up(pool: &NodePool, now: Timestamp) -> NodePool {
    let mut pool = pool.clone();
    pool.annotations_mut().insert(SCALED_UP_AT_ANNOTATION.to_owned(), now.to_string());
    pool
}

impl Autoscaler {
    /// The pods with the requirements of their claims on a node.
    fn with_volumes(&self, pods: Vec<PodInfo>) -> Vec<Arc<PodInfo>> {
        let mut storage = Storage::default();
        if pods.iter().any(|pod| pod.claims().next().is_some()) {
            for claim in self.claims.iter() {
                storage.set_claim(&ObjectKey::of(claim.as_ref()), Some(claim));
            }
            for volume in self.volumes.iter() {
                storage.set_volume(&volume.name_any(), Some(volume));
            }
            for class in self.classes.iter() {
                storage.set_class(&class.name_any(), Some(class));
            }
        }
        self.devices.add_to(&mut storage, &pods);
        let backed = |pod: PodInfo| {
            if storage.devices.backs_any(&pod.requests) { pod.with_backed(true) } else { pod }
        };
        pods.into_iter().map(|pod| Arc::new(backed(pod).with_volumes(&storage))).collect()
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    async fn grow(&self, growth: &Growth, view: &View, now: Timestamp) -> Result<(), Error> {
        let api: Api<NodePool> = Api::all(self.client.clone());
        match &growth.new_pool {
            Some(pool) => match berth_runtime::write::create(&api, &PostParams::default(), &scaled_up(pool, now)).await
            {
                Ok(created) => {
                    self.pools.observe(created.clone());
                    let message = format!(
                        "Node auto-provisioning created pool {} of {} machines",
                        growth.pool,
                        pool.spec.machine_type.as_deref().unwrap_or("custom")
                    );
                    self.recorder.event(&created, EventType::Normal, "NodePoolCreated", &message);
                }
                Err(error) if is_already_exists(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
            None => {
                let Some(pool) = view.pools.get(&growth.pool) else { return Ok(()) };
                let mut spec = pool.spec.clone();
                spec.nodes = Some(growth.to);
                self.write_spec(pool, &spec, Some(now)).await?;
            }
        }
        let message = format!(
            "pod triggered scale-up: [{{{} {}->{} (max: {})}}]",
            growth.pool, growth.from, growth.to, growth.max
        );
        for pod in view.pending.iter().filter(|pod| growth.pods.contains(&pod.key)) {
            self.recorder.event(pod.pod.as_ref(), EventType::Normal, "TriggeredScaleUp", &message);
        }
        Ok(())
    }

    /// Writes the sizes of a pool, and the time of a scale-up in the same request, so that a restart
    /// loses neither.
    async fn write_spec(
        &self,
        pool: &NodePool,
        spec: &NodePoolSpec,
        scaled_up_at: Option<Timestamp>,
    ) -> Result<(), Error> {
        // With the `resourceVersion` that the plan was based on, so that a concurrent change causes
        // a conflict.
        let mut patch = json!({
            "metadata": { "resourceVersion": pool.metadata.resource_version },
            "spec": { "nodes": spec.nodes, "resizeRequests": spec.resize_requests },
        });
        if let Some(at) = scaled_up_at {
            patch["metadata"]["annotations"] = json!({ SCALED_UP_AT_ANNOTATION: at.to_string() });
        }
        let api: Api<NodePool> = Api::all(self.client.clone());
        self.pools.observe(
            berth_runtime::write::patch(&api, &pool.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?,
        );
        Ok(())
    }

    /// Reports the pods that no scale-up can help, each reason once.
    fn report_unhelped(&self, view: &View, unhelped: &BTreeMap<ObjectKey, String>) {
        let mut memory = self.lock();
        let mut reported = BTreeMap::new();
        for pod in &view.pending {
            let Some(message) = unhelped.get(&pod.key) else { continue };
            let uid = pod.pod.uid().unwrap_or_default();
            if memory.reported.get(&uid) != Some(message) {
                self.recorder.event(pod.pod.as_ref(), EventType::Normal, "NotTriggerScaleUp", message);
            }
            reported.insert(uid, message.clone());
        }
        memory.reported = reported;
    }

    /// Resize requests whose nodes are reserved for a ProvisioningRequest, with the end of the
    /// reservation.
    fn protected(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let requests = self.requests.list();
        let booked = requests.iter().filter_map(|request| {
            let class = self.provisioning_classes.get(&request.spec.provisioning_class_name)?;
            booked(request, &class, now)
        });
        booked.collect()
    }

    async fn shrink(&self, plan: &ScaleDown, now: Timestamp) -> Result<(), Error> {
        let seconds = now.as_second().to_string();
        for name in &plan.candidates {
            self.taint(name, Some((CANDIDATE_TAINT, &seconds, "PreferNoSchedule"))).await?;
        }
        for name in &plan.needed {
            self.taint(name, None).await?;
        }
        for name in &plan.mark {
            self.taint(name, Some((REMOVAL_TAINT, &seconds, "NoSchedule"))).await?;
            if let Some(node) = self.nodes.get(&ObjectKey::cluster(name)) {
                self.recorder.event(
                    node.as_ref(),
                    EventType::Normal,
                    "ScaleDown",
                    "node removed by cluster autoscaler",
                );
            }
        }
        for key in &plan.evict {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            match berth_runtime::write::delete(&api, &key.name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (name, spec) in &plan.shrink {
            if let Some(pool) = self.pools.get(&ObjectKey::cluster(name)) {
                self.write_spec(&pool, spec, None).await?;
            }
        }
        let api: Api<NodePool> = Api::all(self.client.clone());
        for name in &plan.delete_pools {
            let Some(pool) = self.pools.get(&ObjectKey::cluster(name)) else { continue };
            let preconditions = Preconditions { uid: pool.uid(), resource_version: pool.resource_version() };
            let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            match berth_runtime::write::delete(&api, name, &parameters).await {
                Ok(going) => {
                    if going.is_none() {
                        self.pools.observe_deleted(&pool);
                    }
                }
                Err(error) if is_not_found(&error) || is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Replaces the autoscaler's taint on a node; `None` removes it.
    async fn taint(&self, name: &str, taint: Option<(&str, &str, &str)>) -> Result<(), Error> {
        let Some(node) = self.nodes.get(&ObjectKey::cluster(name)) else { return Ok(()) };
        let known = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let mut taints: Vec<Taint> =
            known.into_iter().filter(|known| ![CANDIDATE_TAINT, REMOVAL_TAINT].contains(&known.key.as_str())).collect();
        taints.extend(taint.map(|(key, value, effect)| Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        }));
        let patch =
            json!({ "metadata": { "resourceVersion": node.metadata.resource_version }, "spec": { "taints": taints } });
        let api: Api<Node> = Api::all(self.client.clone());
        match berth_runtime::write::patch(&api, name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(node) => self.nodes.observe(node),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
