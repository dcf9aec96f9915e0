//! Status of queues, counted by the engine the controllers use.

use berth_api::kueue::v1beta2::{ClusterQueue, ClusterQueueStatus, LocalQueue, Workload};
use berth_controllers::config::Resources;
use berth_controllers::queues;
use berth_controllers::translate::{self, queues as read_queues};
use berth_engine::{Engine, EngineConfig, Event, QueueReadiness};
use serde_json::Value;

use super::compare::{differences, verdict};
use super::{input, now, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "core-update-cq-status-if-changed" => cluster_queue,
        "core-local-queue-reconcile" => local_queue,
        _ => return None,
    })
}

fn apply(engine: &mut Engine, workloads: &[Workload], namespace: &str, at: berth_engine::model::Time) {
    let labels = Default::default();
    engine.apply(Event::NamespaceUpserted { name: namespace.into(), labels }, at);
    let (resources, classes) = (Resources::default(), Default::default());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    for workload in workloads {
        engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(workload, &context))), at);
    }
}

fn cluster_queue(case: &Case) -> Verdict {
    let data = &case.data["input"];
    let want = &case.data["want"];
    let known = data["insertCqIntoCache"] == true && data["insertCqIntoManager"] == true;
    if !known {
        // The engine is cache and manager in one: there is no such half-known queue, and no status to write.
        return if want["error"].is_null() { Err("an error is not wanted".to_owned()) } else { Ok(()) };
    }
    let text = |field: &str| data[field].as_str().unwrap_or_default();
    let mut queue = ClusterQueue::named(text("clusterQueueName"));
    queue.metadata.generation = Some(1);
    queue.status = Some(read::<ClusterQueueStatus>(&data["cqStatus"])?);
    let mut local = LocalQueue::named(text("localQueueName"));
    local.spec.cluster_queue = text("clusterQueueName").to_owned();
    let mut workloads: Vec<Workload> = input(case, "workloads")?;
    if !data["newWl"].is_null() {
        workloads.push(read(&data["newWl"])?);
    }
    let at = translate::time(now(case));
    let mut engine = Engine::new(EngineConfig::default());
    engine.apply(Event::ClusterQueueUpserted(read_queues::cluster_queue(&queue)), at);
    engine.apply(Event::LocalQueueUpserted(read_queues::local_queue(&local)), at);
    apply(&mut engine, &workloads, "", at);
    let mut figures =
        engine.cluster_queue_status(text("clusterQueueName")).ok_or("the engine does not know the queue")?;
    figures.readiness = QueueReadiness {
        active: text("newConditionStatus") == "True",
        reason: Box::leak(text("newReason").to_owned().into_boxed_str()),
        message: text("newMessage").to_owned(),
    };
    let after = queues::cluster_queue::refreshed(&queue, &figures, false, now(case));
    let got = serde_json::to_value(after.status).map_err(|e| e.to_string())?;
    verdict(differences(&want["cqStatus"], &got, &[]))
}

fn local_queue(case: &Case) -> Verdict {
    let data = &case.data["input"];
    if !data["afsConfig"].is_null() {
        return Err("no runner for recorded usage yet".to_owned());
    }
    let queue: LocalQueue = input(case, "localQueue")?;
    let cluster: Option<ClusterQueue> = match &data["clusterQueue"] {
        Value::Null => None,
        object => Some(read(object)?),
    };
    let at = translate::time(now(case));
    let mut engine = Engine::new(EngineConfig::default());
    if let Some(cluster) = &cluster {
        engine.apply(Event::ClusterQueueUpserted(read_queues::cluster_queue(cluster)), at);
    }
    engine.apply(Event::LocalQueueUpserted(read_queues::local_queue(&queue)), at);
    let namespace = queue.metadata.namespace.clone().unwrap_or_default();
    apply(&mut engine, &input::<Vec<Workload>>(case, "runningWls")?, &namespace, at);
    let figures = engine.local_queue_status(&namespace, queue.metadata.name.as_deref().unwrap_or_default());
    let cluster = cluster.filter(|_| data["deleteClusterQueue"] != true);
    let after = queues::local_queue::refreshed(&queue, cluster.as_ref(), figures.as_ref(), now(case));
    let got = serde_json::to_value(after).map_err(|e| e.to_string())?;
    verdict(differences(&case.data["want"]["localQueue"], &got, &["lastUpdate"]))
}
