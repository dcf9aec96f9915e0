//! Writes the lending limits of the slack queue, and the conditions of other ClusterQueues.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, ResourceFlavor};
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_not_found, set_condition,
    write,
};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::shortfall::Snapshot;
use super::{CONDITION, Flavors, Shortfall, adjusted, shortfalls};
use crate::health::{NodeHealth, NodeHealthConfiguration};

/// Reason of the condition and of its event while quota exceeds healthy capacity.
const UNHEALTHY: &str = "UnhealthyNodes";
/// Reason of the condition once healthy capacity is sufficient again.
const SUFFICIENT: &str = "HealthyCapacitySuffices";
/// Reason of events about changed lending limits.
const LIMITED: &str = "LendingLimitChanged";

/// Adds the controller. `slack_queue` is the name of the slack queue; empty if there is none.
pub fn install(manager: &mut Manager, configuration: Arc<NodeHealthConfiguration>, slack_queue: &str) {
    if !configuration.monitor_nodes {
        return;
    }
    let nodes = manager.nodes();
    let queues = manager.cache_if_served::<ClusterQueue>();
    let cohorts = manager.cache_if_served::<Cohort>();
    let flavors = manager.cache_if_served::<ResourceFlavor>();
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("node-health"),
        configuration,
        slack_queue: slack_queue.to_owned(),
        nodes: nodes.clone(),
        queues: queues.clone(),
        cohorts: cohorts.clone(),
        flavors: flavors.clone(),
    };
    let all = || ObjectKey::cluster("quota");
    manager
        .controller("node-health-quota")
        .watch(&nodes, move |delta| {
            let changed = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => differs(old, new),
                _ => true,
            };
            changed.then(all)
        })
        .watch(&queues, move |delta| {
            let conditions = |queue: &ClusterQueue| condition(queue).cloned();
            let changed = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => old.spec != new.spec || conditions(old) != conditions(new),
                _ => true,
            };
            changed.then(all)
        })
        .watch(&cohorts, move |_| Some(all()))
        .watch(&flavors, move |_| Some(all()))
        .run(controller);
}

/// True if a part of a node changed on which its health or its flavor depends.
fn differs(old: &Node, new: &Node) -> bool {
    let spec = |node: &Node| node.spec.as_ref().map(|spec| (spec.unschedulable, spec.taints.clone()));
    let capacity = |node: &Node| node.status.as_ref().and_then(|status| status.capacity.clone());
    old.labels() != new.labels() || spec(old) != spec(new) || capacity(old) != capacity(new)
}

fn condition(queue: &ClusterQueue) -> Option<&Condition> {
    queue.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == CONDITION)
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    configuration: Arc<NodeHealthConfiguration>,
    slack_queue: String,
    nodes: Cache<Node>,
    queues: Cache<ClusterQueue>,
    cohorts: Cache<Cohort>,
    flavors: Cache<ResourceFlavor>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, _key: ObjectKey) -> Result<Action, Error> {
        let nodes: Vec<(Arc<Node>, NodeHealth)> = self
            .nodes
            .list()
            .into_iter()
            .map(|node| {
                let health = NodeHealth::of(&node, &self.configuration);
                (node, health)
            })
            .collect();
        let flavors = Flavors::of(&self.flavors.list());
        self.limit(&flavors, &nodes).await?;
        let (queues, cohorts) = (self.queues.list(), self.cohorts.list());
        let cluster = Snapshot {
            queues: &queues,
            cohorts: &cohorts,
            flavors: &flavors,
            nodes: &nodes,
            slack_queue: &self.slack_queue,
        };
        let short = shortfalls(&cluster);
        for queue in &queues {
            self.report(queue, &short).await?;
        }
        Ok(Action::Wait)
    }
}

impl Controller {
    /// Sets the lending limits of the slack queue.
    async fn limit(&self, flavors: &Flavors, nodes: &[(Arc<Node>, NodeHealth)]) -> Result<(), Error> {
        if self.slack_queue.is_empty() {
            return Ok(());
        }
        let Some(queue) = self.queues.get(&ObjectKey::cluster(&self.slack_queue)) else { return Ok(()) };
        let groups = adjusted(&queue.spec.resource_groups, |group| flavors.lost(group, nodes));
        let Some(groups) = groups.filter(|_| queue.metadata.deletion_timestamp.is_none()) else { return Ok(()) };
        let patch = json!({
            "metadata": { "resourceVersion": queue.resource_version() }, "spec": { "resourceGroups": groups },
        });
        let api: Api<ClusterQueue> = Api::all(self.client.clone());
        let written = write::patch(&api, &self.slack_queue, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if let Some(written) = self.observe(written)? {
            let message = limits_text(&written);
            self.recorder.event(&written, EventType::Normal, LIMITED, &message);
        }
        Ok(())
    }

    /// Sets the condition of a queue. A queue that was never short has none.
    async fn report(&self, queue: &ClusterQueue, short: &BTreeMap<String, Vec<Shortfall>>) -> Result<(), Error> {
        let of_queue = short.get(&queue.name_any());
        let known = condition(queue);
        let (is_short, reason, message) = match of_queue {
            Some(all) => {
                let messages: Vec<&str> = all.iter().map(|short| short.message.as_str()).collect();
                (true, UNHEALTHY, format!("{}.", messages.join(". ")))
            }
            None if known.is_none() => return Ok(()),
            None => (false, SUFFICIENT, "The nominal quota does not exceed what healthy nodes have.".to_owned()),
        };
        if known.is_some_and(|known| (known.status == "True") == is_short && known.message == message) {
            return Ok(());
        }
        let mut conditions = queue.status.clone().unwrap_or_default().conditions;
        let new = berth_runtime::condition(CONDITION, is_short, reason, &message, self.clock.now());
        set_condition(&mut conditions, Condition { observed_generation: queue.metadata.generation, ..new });
        let patch: Value = json!({
            "metadata": { "resourceVersion": queue.resource_version() }, "status": { "conditions": conditions },
        });
        let api: Api<ClusterQueue> = Api::all(self.client.clone());
        let name = queue.name_any();
        let written = write::patch_status(&api, &name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        if self.observe(written)?.is_some() {
            let kind = if is_short { EventType::Warning } else { EventType::Normal };
            self.recorder.event(queue, kind, reason, &message);
        }
        Ok(())
    }

    /// Adds a written queue to the cache. `None` if the queue was deleted.
    fn observe(&self, written: kube::Result<ClusterQueue>) -> Result<Option<ClusterQueue>, Error> {
        match written {
            Ok(written) => {
                self.queues.observe(written.clone());
                Ok(Some(written))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The lending limits of a queue, for its event.
fn limits_text(queue: &ClusterQueue) -> String {
    let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
    let limits = flavors.flat_map(|flavor| {
        let limits = flavor.resources.iter().filter_map(|quota| Some((quota, quota.lending_limit.as_ref()?)));
        limits.map(|(quota, limit)| {
            format!("{} of {} {} in flavor {}", limit.0, quota.nominal_quota.0, quota.name, flavor.name)
        })
    });
    match limits.collect::<Vec<_>>().join(", ") {
        limits if limits.is_empty() => "All nodes are healthy: the queue lends all of its quota".to_owned(),
        limits => format!("Nodes are unhealthy: the queue lends {limits}"),
    }
}
