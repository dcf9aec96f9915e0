//! The DaemonSet controller: one pod on each node that the template's selectors, affinity and
//! tolerations allow.
//!
//! Each pod names its node in a node affinity, and the scheduler binds it. [`plan`](plan::plan)
//! decides about pods, `revisions` keeps the history of templates.

pub mod plan;
pub mod pod;
mod rollout;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::claims::{Orphans, claim, newly_orphaned};
use super::revisions::{Revisions, Wanted, history, revision_name};
use super::template_hash;
use crate::placement::matches_label_selector;
use plan::{Backoff, Plan, plan};
use pod::{HASH, pod_for};

fn selector(set: &DaemonSet) -> LabelSelector {
    set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default()
}

pub(super) fn install(manager: &mut Manager) {
    let sets = manager.cache::<DaemonSet>();
    let pods = manager.cache::<Pod>();
    let nodes = manager.nodes();
    let revisions = manager.cache::<ControllerRevision>();
    let controller = Controller {
        clock: manager.clock(),
        recorder: manager.recorder("daemonset-controller"),
        of_set: pods.index(|pod: &Pod| {
            ObjectKey::of_controller_owner::<DaemonSet>(pod).map(|key| key.to_string()).into_iter().collect()
        }),
        orphans: Orphans::new(&pods),
        revisions: Revisions::new::<DaemonSet>(manager, &revisions),
        pods: Writer::new(manager, &pods),
        writer: Writer::new(manager, &sets),
        sets: sets.clone(),
        nodes: nodes.clone(),
        backoff: Mutex::default(),
    };
    let (on_node, adopting) = (sets.clone(), sets.clone());
    manager
        .controller("daemonset")
        .concurrency(2)
        .watch_self(&sets)
        .watch_owned::<DaemonSet, _>(&pods)
        .watch(&pods, move |delta| {
            let Some(pod) = newly_orphaned(delta) else { return Vec::new() };
            let sets = adopting.iter_namespace(&pod.namespace().unwrap_or_default());
            let selecting = sets.filter(|set| matches_label_selector(Some(&selector(set)), pod.labels()));
            selecting.map(|set| ObjectKey::of(set.as_ref())).collect()
        })
        .watch(&nodes, move |delta| {
            // Heartbeats and other parts of nodes' statuses are not relevant.
            let place = |node: &Node| (node.labels().clone(), node.spec.clone());
            let changed = delta.old.as_deref().map(place) != delta.new.as_deref().map(place);
            let sets = on_node.iter().filter(|_| changed);
            sets.map(|set| ObjectKey::of(set.as_ref())).collect::<Vec<_>>()
        })
        .run(controller);
}

struct Controller {
    clock: Clock,
    recorder: Recorder,
    sets: Cache<DaemonSet>,
    nodes: Cache<Node>,
    of_set: Index<Pod>,
    orphans: Orphans<Pod>,
    revisions: Revisions,
    pods: Writer<Pod>,
    writer: Writer<DaemonSet>,
    /// Back-off of nodes on which pods failed, by UID of the set. It is empty after a restart.
    backoff: Mutex<BTreeMap<String, BTreeMap<String, Backoff>>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.sets.get(&key) else {
            let known: BTreeSet<String> = self.sets.iter().filter_map(|set| set.uid()).collect();
            self.backoff.lock().retain(|uid, _| known.contains(uid));
            return Ok(Action::Wait);
        };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let selector = selector(&set);
        let owned = self.of_set.get(&key.to_string());
        let claims = claim(set.as_ref(), &selector, owned, self.orphans.candidates(&key.namespace, &selector));
        let pods = claims.apply(set.as_ref(), &self.pods).await?;
        let spec = set.spec.clone().unwrap_or_default();
        let hash = template_hash(&spec.template);
        let live = pods.iter().filter_map(|pod| pod.labels().get(HASH)).map(|hash| revision_name(set.as_ref(), hash));
        let wanted =
            Wanted { template: &spec.template, hash: &hash, hash_label: HASH, limit: spec.revision_history_limit };
        let known = self.revisions.of(set.as_ref(), &selector).await?;
        let history = history(set.as_ref(), &wanted, &known, &live.collect());
        self.revisions.record(set.as_ref(), &history).await?;
        let uid = set.uid().unwrap_or_default();
        let backoff = self.backoff.lock().get(&uid).cloned().unwrap_or_default();
        let plan = plan(&set, &hash, &self.nodes.list(), &pods, &backoff, self.clock.now());
        let failed_create = self.apply(&set, &hash, &plan).await?;
        self.backoff.lock().insert(uid, plan.backoff);
        self.revisions.prune(&history).await?;
        if set.status.as_ref() != Some(&plan.status) {
            self.writer.replace_status(&DaemonSet { status: Some(plan.status), ..(*set).clone() }).await?;
        }
        match failed_create {
            Some(error) => Err(error.into()),
            None => Ok(plan.requeue_after.map_or(Action::Wait, Action::After)),
        }
    }
}

impl Controller {
    /// Deletes and creates pods. Returns the error of the first rejected creation.
    async fn apply(&self, set: &DaemonSet, hash: &str, plan: &Plan) -> Result<Option<kube::Error>, Error> {
        let record = |type_, reason: &str, message: &str| self.recorder.event(set, type_, reason, message);
        plan.events.iter().for_each(|event| event.record(&self.recorder, set));
        for pod in &plan.delete {
            self.pods.delete(pod).await?;
            record(EventType::Normal, "SuccessfulDelete", &format!("Deleted pod: {}", pod.name_any()));
        }
        for node in &plan.create {
            let pod = pod_for(set, node, hash);
            match self.pods.create(&pod).await {
                Ok(created) => {
                    record(EventType::Normal, "SuccessfulCreate", &format!("Created pod: {}", created.name_any()));
                }
                Err(error) => {
                    let message = format!("Error creating: {}", berth_runtime::message(&error));
                    record(EventType::Warning, "FailedCreate", &message);
                    return Ok(Some(error));
                }
            }
        }
        Ok(None)
    }
}
