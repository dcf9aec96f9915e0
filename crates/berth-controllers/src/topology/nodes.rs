//! The controller that records failed nodes on workloads.

use std::sync::Arc;

use berth_api::kueue::events;
use berth_api::kueue::reasons::eviction;
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::well_known::HOSTNAME;
use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};

use super::health::{View, assess, assigned_hosts, ended_message, facts, reads_pods};
use super::{WorkloadPods, workload_of_pod};
use crate::concurrent_admission::is_variant;
use crate::configuration::Config;
use crate::execute::{Part, patch};
use crate::gates::Gates;
use crate::stores::Stores;
use crate::workload::status;

/// Adds the controller to the manager.
pub(super) fn install(
    manager: &mut Manager,
    config: &Arc<Config>,
    stores: &Stores,
    pods: &Cache<Pod>,
    nodes: &Cache<Node>,
    of_workload: &WorkloadPods,
) {
    let by_host = nodes.index(|node: &Node| host(node).into_iter().collect());
    let by_node = stores.workloads.index(|workload: &Workload| assigned_hosts(workload).into_iter().collect());
    let controller = NodeFailures {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("berth-node-failures"),
        gates: config.gates(),
        stores: stores.clone(),
        pods: pods.clone(),
        of_workload: of_workload.clone(),
        by_host,
    };
    manager
        .controller("node-failures")
        .concurrency(16)
        .watch_self(&stores.workloads)
        .watch(nodes, move |delta| {
            // Heartbeats do not affect health.
            let same = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => facts(old) == facts(new) && host(old) == host(new),
                _ => false,
            };
            let hosts = [&delta.old, &delta.new].into_iter().flatten().filter(|_| !same).filter_map(|node| host(node));
            hosts
                .flat_map(|host| by_node.get(&host))
                .map(|workload| ObjectKey::of(workload.as_ref()))
                .collect::<Vec<_>>()
        })
        .watch(pods, |delta| workload_of_pod(delta.latest()))
        .run(controller);
}

/// The node's name in topology assignments.
fn host(node: &Node) -> Option<String> {
    node.labels().get(HOSTNAME).cloned()
}

struct NodeFailures {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    gates: Gates,
    stores: Stores,
    pods: Cache<Pod>,
    of_workload: WorkloadPods,
    by_host: Index<Node>,
}

impl Reconciler for NodeFailures {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(workload) = self.stores.workloads.get(&key) else { return Ok(Action::Wait) };
        if is_variant(&workload) {
            // The pods of a variant belong to its parent, from which the failed nodes are copied.
            return Ok(Action::Wait);
        }
        let outcome = {
            let node = |host: &str| self.by_host.get(host).into_iter().next();
            let flavor = |name: &str| self.stores.flavor(name);
            let view = View { node: &node, flavor: &flavor, gates: &self.gates, now: self.clock.now() };
            let pods = if reads_pods(&workload) { self.of_workload.of(&workload) } else { Vec::new() };
            assess(&workload, &pods, &view)
        };
        if let Some(after) = &outcome.workload {
            let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
            let version = workload.resource_version();
            if let Some(answer) = patch(&api, &workload, after, Part::Status, version.as_deref()).await? {
                self.stores.workloads.observe(answer);
            }
            if let Some(message) = &outcome.evicted {
                let reason = status::eviction_event(eviction::NODE_FAILURES);
                self.recorder.event(workload.as_ref(), EventType::Normal, &reason, message);
            }
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for (before, after) in &outcome.ended {
            match patch(&api, before.as_ref(), after, Part::Status, before.resource_version().as_deref()).await {
                Ok(answer) => {
                    if let Some(answer) = answer {
                        self.pods.observe(answer);
                    }
                    self.recorder.event(
                        before.as_ref(),
                        EventType::Normal,
                        events::POD_TERMINATED_BY_KUEUE,
                        &ended_message(before),
                    );
                }
                Err(error) if berth_runtime::is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(outcome.reassess_after.map_or(Action::Wait, Action::After))
    }
}
