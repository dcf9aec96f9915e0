//! The controllers that bind claims and volumes to each other: they read caches, plan one write
//! and make it.

use std::sync::Arc;

use berth_api::pod::node_of;
use berth_runtime::{
    Action, Cache, Error, Index, Manager, ObjectKey, Queue, Reconciler, Recorder, is_conflict, is_not_found, stamp,
};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeStatus, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::claim::{self, Situation};
use super::facts::{
    PROVISIONER, PROVISIONER_BETA, claim_key, claim_ref, class_of_claim, class_of_volume, default_class, is_bound,
    uses, volume_name,
};
use super::step::{Note, Plan};
use super::volume;

/// Component of the events.
const COMPONENT: &str = "persistentvolume-controller";
/// Maximum number of writes of one reconcile; binding takes three.
const STEPS_MAX: usize = 8;

/// Adds the controllers.
pub fn install(manager: &mut Manager) {
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let volumes: Cache<PersistentVolume> = manager.cache();
    let classes: Cache<StorageClass> = manager.cache();
    let pods: Cache<Pod> = manager.cache();
    let of_class = volumes.index(|volume| match claim_ref(volume) {
        None => vec![class_of_volume(volume).to_owned()],
        Some(_) => Vec::new(),
    });
    let of_claim = |volumes: &Cache<PersistentVolume>| {
        volumes.index(|volume| claim_key(volume).map(|key| key.to_string()).into_iter().collect())
    };
    // Pods without a node, by the claims that they use.
    let waiting = pods.index(|pod| {
        let is_waiting = node_of(pod).is_none();
        let namespace = pod.namespace().unwrap_or_default();
        let used = uses(pod).map(|used| ObjectKey::namespaced(&namespace, used.claim).to_string());
        if is_waiting { used.collect() } else { Vec::new() }
    });
    let unbound_claims = || {
        claims.index(|claim| match is_bound(claim) {
            false => vec![class_of_claim(claim).to_owned()],
            true => Vec::new(),
        })
    };
    let (unbound, unbound_of_class) = (unbound_claims(), unbound_claims());
    let writer = Writer {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder(COMPONENT),
        claims: claims.clone(),
        volumes: volumes.clone(),
    };
    let binder = manager
        .controller("persistentvolume-binder")
        .watch_self(&claims)
        .watch(&volumes, move |delta| {
            let mut keys: Vec<_> =
                [&delta.old, &delta.new].into_iter().flatten().filter_map(|it| claim_key(it)).collect();
            if let Some(volume) = delta.new.as_ref().filter(|volume| claim_ref(volume).is_none()) {
                keys.extend(unbound.keys(class_of_volume(volume)));
            }
            keys
        })
        .watch(&classes, move |delta| {
            // A class may become the default class, which affects claims without a class.
            let mut keys = unbound_of_class.keys(&delta.latest().name_any());
            keys.extend(unbound_of_class.keys(""));
            keys
        })
        .watch(&pods, |delta| {
            // A new pod may be the first consumer of a claim, which changes the claim's message.
            let new = delta.new.as_ref().filter(|_| delta.old.is_none());
            new.map(|pod| claims_of(pod)).unwrap_or_default()
        })
        // Claims are handled one at a time, so that no two claims choose the same volume.
        .concurrency(1);
    let queue = binder.queue();
    binder.run(Claims { writer: writer.clone(), classes, of_class, of_claim: of_claim(&volumes), waiting });
    let of_claim = of_claim(&volumes);
    manager
        .controller("persistentvolume-phases")
        .watch_self(&volumes)
        .watch(&claims, move |delta| {
            let claim = delta.latest();
            let mut keys = of_claim.keys(&ObjectKey::of(claim.as_ref()).to_string());
            keys.extend(volume_name(claim).map(ObjectKey::cluster));
            keys
        })
        .run(Volumes { writer, claims_queue: queue });
}

fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pod.namespace().unwrap_or_default();
    uses(pod).map(|used| ObjectKey::namespaced(&namespace, used.claim)).collect()
}

#[derive(Clone)]
struct Writer {
    client: Client,
    clock: berth_runtime::Clock,
    recorder: Recorder,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

/// True if the write succeeded, or if the object has changed or was deleted, which its watch
/// reports.
fn settle<K>(written: Result<K, kube::Error>, observe: impl FnOnce(K)) -> Result<bool, Error> {
    match written {
        Ok(object) => {
            observe(object);
            Ok(true)
        }
        Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Writer {
    fn claims_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    async fn replace_volume(&self, volume: &PersistentVolume) -> Result<bool, Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let written = berth_runtime::write::replace(&api, &volume.name_any(), &PostParams::default(), volume).await;
        settle(written, |volume| self.volumes.observe(volume))
    }

    async fn replace_claim(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let api = self.claims_api(claim);
        let written = berth_runtime::write::replace(&api, &claim.name_any(), &PostParams::default(), claim).await;
        settle(written, |claim| self.claims.observe(claim))
    }

    async fn patch_claim(&self, claim: &PersistentVolumeClaim, mut patch: serde_json::Value) -> Result<bool, Error> {
        let guard = json!({"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version});
        merge(&mut patch, json!({"metadata": guard}));
        let written = berth_runtime::write::patch(
            &self.claims_api(claim),
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
        settle(written, |claim| self.claims.observe(claim))
    }

    async fn claim_status(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        let api = self.claims_api(claim);
        let params = PostParams::default();
        let written = berth_runtime::write::replace_status(&api, &claim.name_any(), &params, claim).await;
        settle(written, |claim| self.claims.observe(claim))
    }

    async fn volume_phase(&self, volume: &PersistentVolume, phase: &str, message: &str) -> Result<bool, Error> {
        let mut changed = volume.clone();
        changed.status = Some(PersistentVolumeStatus {
            phase: Some(phase.to_owned()),
            message: Some(message.to_owned()).filter(|message| !message.is_empty()),
            reason: None,
            last_phase_transition_time: Some(stamp(self.clock.now())),
        });
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let params = PostParams::default();
        let written = berth_runtime::write::replace_status(&api, &volume.name_any(), &params, &changed).await;
        settle(written, |volume| self.volumes.observe(volume))
    }

    fn note<K: kube::Resource<DynamicType = ()>>(&self, object: &K, note: Option<&Note>) {
        if let Some(Note { event_type, reason, message }) = note {
            self.recorder.event(object, *event_type, reason, message);
        }
    }
}

fn merge(target: &mut serde_json::Value, more: serde_json::Value) {
    match (target, more) {
        (serde_json::Value::Object(target), serde_json::Value::Object(more)) => {
            for (key, value) in more {
                merge(target.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (target, more) => *target = more,
    }
}

struct Claims {
    writer: Writer,
    classes: Cache<StorageClass>,
    /// Volumes without a claim, by class.
    of_class: Index<PersistentVolume>,
    /// Volumes that refer to a claim, by its key.
    of_claim: Index<PersistentVolume>,
    /// Pods without a node, by the claims they use.
    waiting: Index<Pod>,
}

impl Reconciler for Claims {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        for _ in 0..STEPS_MAX {
            let Some(claim) = self.writer.claims.get(&key) else { return Ok(Action::Wait) };
            let plan = self.plan(&key, &claim);
            self.writer.note(claim.as_ref(), plan.note.as_ref());
            if plan.step == claim::Step::Wait || !self.carry_out(&claim, plan.step).await? {
                return Ok(Action::Wait);
            }
        }
        Ok(Action::Wait)
    }
}

impl Claims {
    fn plan(&self, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Plan<claim::Step> {
        let key_text = key.to_string();
        let class_name = class_of_claim(claim);
        let mut volumes = self.of_claim.get(&key_text);
        let mut waiting_pods = Vec::new();
        if !is_bound(claim) {
            volumes.extend(self.of_class.get(class_name));
            waiting_pods = self.waiting.get(&key_text).iter().map(|pod| pod.name_any()).collect();
        }
        let class = self.classes.get(&ObjectKey::cluster(class_name));
        let all: Vec<_> = self.classes.list();
        claim::plan(&Situation {
            claim,
            volumes: &volumes,
            named: volume_name(claim).and_then(|name| self.writer.volumes.get(&ObjectKey::cluster(name))),
            class: class.as_deref(),
            default_class: default_class(all.iter().map(Arc::as_ref)).map(|class| class.name_any()),
            waiting_pods,
        })
    }

    /// Executes the write. Returns false if the object has changed in the meantime.
    async fn carry_out(&self, claim: &PersistentVolumeClaim, step: claim::Step) -> Result<bool, Error> {
        let writer = &self.writer;
        match step {
            claim::Step::Wait => Ok(false),
            claim::Step::AssignClass(class) => {
                writer.patch_claim(claim, json!({"spec": {"storageClassName": class}})).await
            }
            claim::Step::Provision(provisioner) => {
                let annotations = json!({PROVISIONER: provisioner, PROVISIONER_BETA: provisioner});
                writer.patch_claim(claim, json!({"metadata": {"annotations": annotations}})).await
            }
            claim::Step::BindVolume(volume) => writer.replace_volume(&claim::with_reference(&volume, claim)).await,
            claim::Step::BindClaim(volume) => writer.replace_claim(&claim::with_volume(claim, &volume)).await,
            claim::Step::Status(status) => {
                let changed = PersistentVolumeClaim { status: Some(*status), ..claim.clone() };
                writer.claim_status(&changed).await
            }
        }
    }
}

struct Volumes {
    writer: Writer,
    claims_queue: Queue,
}

impl Reconciler for Volumes {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        for _ in 0..STEPS_MAX {
            let Some(volume) = self.writer.volumes.get(&key) else { return Ok(Action::Wait) };
            let claim = claim_key(&volume).and_then(|key| self.writer.claims.get(&key));
            let plan = volume::plan(&volume, claim.as_deref());
            if matches!(plan.step, volume::Step::Phase("Released", _)) && self.is_claim_there(&volume).await? {
                // The cache does not show the claim yet. The claim's watch event will trigger a
                // reconcile of the volume.
                return Ok(Action::Wait);
            }
            self.writer.note(volume.as_ref(), plan.note.as_ref());
            let written = match plan.step {
                volume::Step::Wait => return Ok(Action::Wait),
                volume::Step::WakeClaim => {
                    self.claims_queue.add(claim_key(&volume).unwrap_or_else(|| ObjectKey::cluster("")));
                    return Ok(Action::Wait);
                }
                volume::Step::Phase(phase, message) => self.writer.volume_phase(&volume, phase, &message).await?,
                volume::Step::RemoveReference => self.writer.replace_volume(&volume::unbound(&volume, false)).await?,
                volume::Step::KeepReservation => self.writer.replace_volume(&volume::unbound(&volume, true)).await?,
            };
            if !written {
                return Ok(Action::Wait);
            }
        }
        Ok(Action::Wait)
    }
}

impl Volumes {
    /// True if the API has the claim that the volume is bound to, under its UID and with this
    /// volume or none.
    async fn is_claim_there(&self, volume: &PersistentVolume) -> Result<bool, Error> {
        let Some(key) = claim_key(volume) else { return Ok(false) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.writer.client.clone(), &key.namespace);
        let claim = berth_runtime::write::get_opt(&api, &key.name).await?;
        Ok(claim.is_some_and(|claim| {
            claim.metadata.uid.as_deref() == super::facts::claim_uid(volume)
                && volume_name(&claim).is_none_or(|name| Some(name) == volume.metadata.name.as_deref())
        }))
    }
}
