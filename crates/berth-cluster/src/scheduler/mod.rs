//! The pod scheduler: pending pods get nodes, or a condition with the reason why not.
//!
//! One reconcile decides all pods that are worth trying in memory, the most important first, and
//! then writes the decisions. A pod that fits nowhere is tried again after a change that could help
//! it: a suitable node was added or changed, or a pod left such a node. Polling is not needed.
//!
//! A pod whose claims wait for their first consumer is decided in two steps. First its node is
//! written to the claims (or to volumes that exist there). The pod is bound once the claims are
//! bound. Devices for a pod's claims are written just before the pod is bound ([`devices`]).
//!
//! A pod chooses one of several schedulers by `spec.schedulerName` ([`profile`]). All of them share
//! the state, so they never give the same room twice. Some place gangs: pod by pod with
//! reservations ([`coscheduling`]), or as a whole ([`whole`], [`group_preemption`]).
//!
//! Not implemented: limits on the number of volumes of a node, and extenders.

mod assume;
mod coscheduling;
mod decide;
mod devices;
mod gangs;
mod group_preemption;
mod profile;
mod results;
mod state;
mod volumes;
mod whole;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::berth::ClusterConfiguration;
use berth_api::scheduling::PodGroup;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Queue, Reconciler, Recorder, is_conflict, is_not_found,
    stamp,
};
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{
    Binding, ConfigMap, Namespace, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

use crate::placement::PodInfo;
pub use profile::{GangPlugin, Profile};
pub use state::{Decision, Results, State, Wake};

/// Maximum number of bindings in flight: enough to fill a group commit, few enough to keep their
/// order readable.
const BINDINGS_IN_FLIGHT: usize = 32;
/// Delay after which a pod whose binding was rejected is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Delay from a change that may help to the next attempt for pods that fit nowhere. Such changes
/// often come in groups.
const GATHER: Duration = Duration::from_millis(50);

/// Adds the scheduler.
pub fn install(manager: &mut Manager, configuration: &ClusterConfiguration) {
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    let namespaces: Cache<Namespace> = manager.cache();
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let volumes: Cache<PersistentVolume> = manager.cache();
    let classes: Cache<StorageClass> = manager.cache();
    let pod_groups: Cache<PodGroup> = manager.cache_if_served();
    let config_maps: Cache<ConfigMap> = manager.cache();
    let budgets: Cache<PodDisruptionBudget> = manager.cache();
    let device_claims: Cache<ResourceClaim> = manager.cache();
    let device_classes: Cache<DeviceClass> = manager.cache();
    let device_slices: Cache<ResourceSlice> = manager.cache();
    let profiles = Profile::all(configuration);
    let recorders = profiles.iter().map(|profile| (profile.name.clone(), manager.recorder(&profile.name))).collect();
    let state = Arc::new(Mutex::new(State::new(profiles)));
    let scheduler = Scheduler {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder(&configuration.scheduler.name),
        recorders,
        pods: pods.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        device_claims: device_claims.clone(),
        config_maps: config_maps.clone(),
        state: state.clone(),
    };
    let builder = manager.controller("scheduler");
    let world = Watched { state, queue: builder.queue() };
    let [on_pod, on_node, on_namespace, on_claim, on_volume, on_class] = std::array::from_fn(|_| world.clone());
    let [on_device_claim, on_device_class, on_slice] = std::array::from_fn(|_| world.clone());
    let [on_budget, on_pod_group, on_config_map] = std::array::from_fn(|_| world.clone());
    builder
        .watch(&pods, move |delta| on_pod.wake(|state| state.pod_changed(delta.old.as_ref(), delta.new.as_ref())))
        .watch(&nodes, move |delta| on_node.wake(|state| state.node_changed(delta.old.as_ref(), delta.new.as_ref())))
        .watch(&namespaces, move |delta| {
            on_namespace.update(|state| state.namespace_changed(delta.old.as_ref(), delta.new.as_ref()))
        })
        .watch(&claims, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            on_claim.wake(|state| state.claim_changed(&key, delta.new.as_ref()))
        })
        .watch(&volumes, move |delta| {
            on_volume.wake(|state| state.volume_changed(delta.old.as_ref(), delta.new.as_ref()))
        })
        .watch(&classes, move |delta| {
            let name = delta.latest().name_any();
            on_class.wake(|state| state.class_changed(&name, delta.new.as_ref()))
        })
        .watch(&device_claims, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            on_device_claim.wake(|state| state.device_claim_changed(&key, delta.new.as_ref()))
        })
        .watch(&device_classes, move |delta| {
            let name = delta.latest().name_any();
            on_device_class.wake(|state| state.device_class_changed(&name, delta.new.as_ref()))
        })
        .watch(&device_slices, move |delta| {
            let name = delta.latest().name_any();
            on_slice.wake(|state| state.device_slice_changed(&name, delta.new.as_ref()))
        })
        .watch(&budgets, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            on_budget.update(|state| state.budget_changed(&key, delta.new.as_ref()))
        })
        .watch(&pod_groups, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref());
            on_pod_group.wake(|state| state.pod_group_changed(&key, delta.new.as_ref()))
        })
        .watch(&config_maps, move |delta| {
            on_config_map.wake(|state| state.config_map_changed(delta.old.as_ref(), delta.new.as_ref()))
        })
        .concurrency(1)
        .run(scheduler);
}

/// The state that watched objects update, and the queue of the pending pods.
#[derive(Clone)]
struct Watched {
    state: Arc<Mutex<State>>,
    queue: Queue,
}

impl Watched {
    /// Updates the state. No key is returned: the queue has one key, which is added when it is due.
    fn update(&self, change: impl FnOnce(&mut State)) -> Option<ObjectKey> {
        change(&mut lock(&self.state));
        None
    }

    /// Updates the state, and wakes the scheduler if the change may help a pending pod.
    fn wake(&self, change: impl FnOnce(&mut State) -> Wake) -> Option<ObjectKey> {
        let wake = change(&mut lock(&self.state));
        match wake {
            Wake::Never => {}
            Wake::Soon => self.queue.add_after(ObjectKey::cluster("pending"), GATHER),
            Wake::Now => self.queue.add(ObjectKey::cluster("pending")),
        }
        None
    }
}

/// True if any scheduler of the configuration forms gangs.
pub fn forms_gangs(configuration: &ClusterConfiguration) -> bool {
    Profile::all(configuration).iter().any(|profile| profile.gangs != GangPlugin::None)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock()
}

struct Scheduler {
    client: Client,
    clock: Clock,
    /// Records events of the default scheduler.
    recorder: Recorder,
    /// Recorders of all schedulers, by name.
    recorders: BTreeMap<String, Recorder>,
    pods: Cache<Pod>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    device_claims: Cache<ResourceClaim>,
    config_maps: Cache<ConfigMap>,
    state: Arc<Mutex<State>>,
}

impl Reconciler for Scheduler {
    async fn reconcile(&self, _: ObjectKey) -> Result<Action, Error> {
        let mut refused = false;
        loop {
            let started = self.clock.now();
            let decisions = lock(&self.state).decide(started);
            let solver_time = self.clock.now().duration_since(started);
            let mut writes = futures::stream::iter(decisions)
                .map(|decision| self.write(decision, solver_time))
                .buffered(BINDINGS_IN_FLIGHT);
            while let Some(written) = writes.next().await {
                refused |= !written;
            }
            // Claims may have been bound while the choices for other pods were written, and a gang
            // may have given nodes back that other pods can use.
            let state = lock(&self.state);
            if refused || !state.has_active() {
                let due = state.due().map(|due| self.clock.until(due));
                let retry = refused.then_some(RETRY);
                return Ok(due.into_iter().chain(retry).min().map_or(Action::Wait, Action::After));
            }
        }
    }
}

impl Scheduler {
    /// The recorder of a pod's scheduler.
    fn recorder(&self, pod: &PodInfo) -> &Recorder {
        self.recorders.get(pod.scheduler_name()).unwrap_or(&self.recorder)
    }

    /// Writes one decision. Returns false if the pod must be tried again soon.
    async fn write(&self, decision: Decision, solver_time: SignedDuration) -> bool {
        match decision {
            Decision::Gang { results, members } => self.write_gang(results, members, solver_time).await,
            single => self.write_single(single).await,
        }
    }

    /// Writes the decision for one pod.
    async fn write_single(&self, decision: Decision) -> bool {
        match decision {
            Decision::Bind { pod, node } => self.bind(&pod, &node).await,
            Decision::Prepare { pod, node, choices } => self.prepare(&pod, &node, &choices).await,
            Decision::Discard { pod, claim } => self.discard(&pod, &claim).await,
            Decision::Release { pod, claim } => self.release(&pod, &claim).await,
            Decision::Hold { pod, message } => {
                self.recorder(&pod).event(pod.pod.as_ref(), EventType::Normal, "WaitingForPodGroup", &message);
                true
            }
            Decision::NoScheduler { pod, message } => {
                self.recorder.event(pod.pod.as_ref(), EventType::Warning, "FailedScheduling", &message);
                true
            }
            Decision::Wait { pod, message, nominated, victims } => {
                self.wait(&pod, &message, nominated.as_deref(), &victims).await;
                true
            }
            Decision::Gang { .. } => unreachable!("gangs have no gangs as members"),
        }
    }

    /// Evicts the victims of a pod, and writes why it has no node.
    async fn wait(&self, pod: &PodInfo, message: &str, nominated: Option<&str>, victims: &[Arc<PodInfo>]) {
        for victim in victims.iter().filter(|victim| !victim.is_terminating()) {
            if let Err(error) = self.evict(victim, pod, nominated.unwrap_or_default()).await {
                let error = berth_runtime::brief(&error);
                tracing::warn!(victim = %victim.key, %error, "preemption failed");
            }
        }
        if let Err(error) = self.explain(pod, message, nominated).await {
            let error = berth_runtime::brief(&error);
            tracing::debug!(pod = %pod.key, error, "cannot write the condition of a pod");
        }
    }

    async fn bind(&self, pod: &PodInfo, node: &str) -> bool {
        if pod.claims_devices() {
            let allocated = self.allocate(pod, node).await;
            if let Err(error) = &allocated {
                self.report_unallocated(pod, node, error).await;
            }
            if !matches!(allocated, Ok(true)) {
                lock(&self.state).binding_failed(&pod.key);
                return false;
            }
        }
        let meta = &pod.pod.metadata;
        let binding = Binding {
            metadata: ObjectMeta {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                ..Default::default()
            },
            target: ObjectReference { kind: Some("Node".into()), name: Some(node.to_owned()), ..Default::default() },
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let bound: Result<serde_json::Value, _> =
            api.create_subresource("binding", &pod.key.name, &PostParams::default(), &binding).await;
        match bound {
            Ok(_) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.recorder(pod).event(pod.pod.as_ref(), EventType::Normal, "Scheduled", &message);
                true
            }
            Err(error) => {
                if !is_not_found(&error) && !is_conflict(&error) {
                    let error = berth_runtime::brief(&error);
                    tracing::warn!(pod = %pod.key, node, %error, "binding failed");
                }
                lock(&self.state).binding_failed(&pod.key);
                is_not_found(&error)
            }
        }
    }

    /// Writes to the pod's conditions (and in an event) why it has no node, unless the condition
    /// has the message already.
    async fn explain(&self, pod: &PodInfo, message: &str, nominated: Option<&str>) -> Result<(), kube::Error> {
        let conditions = pod.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let known = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
        if decide::is_said(pod, message) && (nominated.is_none() || nominated == pod.nominated_node()) {
            return Ok(());
        }
        let now = stamp(self.clock.now());
        let since = known.filter(|known| known.status == "False").and_then(|known| known.last_transition_time.clone());
        let mut status = json!({ "conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": since.unwrap_or(now),
        }] });
        if let Some(nominated) = nominated {
            status["nominatedNodeName"] = json!(nominated);
        }
        self.patch_status(&pod.key, pod.pod.metadata.uid.as_deref(), status).await?;
        self.recorder(pod).event(pod.pod.as_ref(), EventType::Warning, "FailedScheduling", message);
        Ok(())
    }

    /// Evicts a pod of lower priority.
    async fn evict(&self, victim: &PodInfo, preemptor: &PodInfo, node: &str) -> Result<(), kube::Error> {
        let scheduler = preemptor.scheduler_name();
        let message = format!("{scheduler}: preempting to accommodate a higher priority pod");
        let status = json!({ "conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": stamp(self.clock.now()),
        }] });
        self.patch_status(&victim.key, victim.pod.metadata.uid.as_deref(), status).await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &victim.key.namespace);
        match berth_runtime::write::delete(&api, &victim.key.name, &DeleteParams::default()).await {
            Ok(deleted) => {
                if let Some(pod) = deleted {
                    self.pods.observe(pod);
                }
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
        let by = preemptor.pod.meta().uid.as_deref().unwrap_or_default();
        let message = format!("Preempted by pod {by} on node {node}");
        self.recorder(preemptor).event(victim.pod.as_ref(), EventType::Normal, "Preempted", &message);
        Ok(())
    }

    async fn patch_status(
        &self,
        key: &ObjectKey,
        uid: Option<&str>,
        status: serde_json::Value,
    ) -> Result<(), kube::Error> {
        // With the UID, the write cannot affect a later pod of the same name.
        let patch = json!({ "metadata": { "uid": uid }, "status": status });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        match berth_runtime::write::patch_status(&api, &key.name, &PatchParams::default(), &Patch::Strategic(&patch))
            .await
        {
            Ok(pod) => self.pods.observe(pod),
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
