//! Suites of the status of queues, which the engine counts.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::kueue::v1beta2::{ClusterQueue, ClusterQueueStatus, LocalQueue, Workload};
use berth_controllers::configuration::Resources;
use berth_controllers::translate::{self, queues as read_queues};
use berth_controllers::{duration, queues};
use berth_engine::model::AdmissionScope;
use berth_engine::{AdmissionFairSharing, Engine, EngineConfig, Event, QueueProblem, QueueReadiness};
use kube::ResourceExt;
use serde_json::{Value, json};

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
    let data = &case.input;
    let want = &case.want;
    // Upstream has a cache and a queue manager. The engine is both: it has the queue or not.
    let (cached, managed) = (&data["insertCqIntoCache"], &data["insertCqIntoManager"]);
    let exists = *cached == true && *managed == true;
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
    if exists {
        engine.apply(Event::ClusterQueueUpserted(read_queues::cluster_queue(&queue)), at);
    }
    engine.apply(Event::LocalQueueUpserted(read_queues::local_queue(&local)), at);
    apply(&mut engine, &workloads, "", at);
    let not_found = ["cluster queue not found", "clusterQueue doesn't exist"];
    let Some(mut counts) = engine.cluster_queue_status(text("clusterQueueName")) else {
        // The status of a queue that the engine does not have is not written.
        let got = serde_json::to_value(queue.status).map_err(|e| e.to_string())?;
        let mut lines = differences(&want["cqStatus"], &got, &[]);
        if !want["error"].as_str().is_some_and(|text| not_found.contains(&text)) {
            lines.push(format!("error: want {}, got: the queue does not exist", want["error"]));
        }
        return verdict(lines);
    };
    let problem = QueueProblem::Prescribed {
        reason: Box::leak(text("newReason").to_owned().into_boxed_str()),
        message: text("newMessage").to_owned(),
    };
    let problems = if text("newConditionStatus") == "True" { Vec::new() } else { vec![problem] };
    counts.readiness = QueueReadiness { problems };
    let after = queues::cluster_queue::refreshed(&queue, &counts, false, now(case));
    let got = serde_json::to_value(after.status).map_err(|e| e.to_string())?;
    let want = json!({"cqStatus": want["cqStatus"], "error": want["error"]});
    verdict(differences(&want, &json!({"cqStatus": got}), &[]))
}

fn local_queue(case: &Case) -> Verdict {
    // Create the engine with the ClusterQueue.
    let data = &case.input;
    let queue: LocalQueue = input(case, "localQueue")?;
    let cluster: Option<ClusterQueue> = match &data["clusterQueue"] {
        Value::Null => None,
        object => Some(read(object)?),
    };
    let at = translate::time(now(case));
    let mut config = EngineConfig::default();
    let sharing = &data["afsConfig"];
    if !sharing.is_null() {
        let span = |field: &str| sharing[field].as_str().and_then(|text| duration::parse(text).ok());
        let span = |field: &str| span(field).and_then(|it| Duration::try_from(it).ok()).unwrap_or_default();
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: span("usageHalfLifeTime"),
            usage_sampling_interval: span("usageSamplingInterval"),
            resource_weights_milli: Default::default(),
        });
    }
    let mut engine = Engine::new(config);
    if let Some(cluster) = &cluster {
        let mut spec = read_queues::cluster_queue(cluster);
        // Penalties need a queue with usage-based admission, which the cases do not set.
        spec.admission_scope = (!sharing.is_null()).then_some(AdmissionScope::UsageBased);
        engine.apply(Event::ClusterQueueUpserted(spec), at);
    }
    // Restore the usage that the case records, then that of the queue's status.
    let entry = &data["initialConsumedResources"];
    if entry["lastUpdate"].is_string() {
        let mut recorded = queue.clone();
        recorded.status = Some(serde_json::from_value(json!({"fairSharing": {"weightedShare": 0,
            "admissionFairSharingStatus": {"consumedResources": entry["resources"], "lastUpdate": entry["lastUpdate"]}}}))
            .map_err(|e| e.to_string())?);
        engine.apply(read_queues::recorded_usage(&recorded).ok_or("no recorded usage")?, at);
    }
    if let Some(event) = read_queues::recorded_usage(&queue) {
        engine.apply(event, at);
    }
    // Add the LocalQueue, its workloads, and a pending entry penalty.
    engine.apply(Event::LocalQueueUpserted(read_queues::local_queue(&queue)), at);
    let (namespace, name) = (queue.namespace().unwrap_or_default(), queue.name_any());
    apply(&mut engine, &input::<Vec<Workload>>(case, "runningWls")?, &namespace, at);
    if !data["pendingEntryPenalty"].is_null() {
        // Berth's penalties belong to workloads that hold quota: add one.
        let usage = &data["pendingEntryPenalty"];
        let workload = json!({"metadata": {"name": "charged", "namespace": namespace}, "spec": {"queueName": name,
            "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": [
                {"name": "c", "resources": {"requests": usage}}]}}}]},
            "status": {"admission": {"clusterQueue": queue.spec.cluster_queue, "podSetAssignments": [
                {"name": "main", "count": 1, "resourceUsage": usage}]},
            "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
                "lastTransitionTime": now(case).to_string()}]}});
        let workload: Workload = read(&workload)?;
        apply(&mut engine, std::slice::from_ref(&workload), &namespace, at);
        engine.lab().charge(&translate::workload_key(&workload));
    }
    // Sample the usage and compute the status.
    let sample = engine.sample_usage(&namespace, &name, at);
    let mut counts = engine.local_queue_status(&namespace, &name);
    if !data["pendingEntryPenalty"].is_null()
        && let Some(counts) = &mut counts
    {
        // Do not count the workload that was added for the penalty.
        counts.reserving -= 1;
    }
    let cluster = cluster.filter(|_| data["deleteClusterQueue"] != true);
    let recorded = sample.is_some_and(|sample| sample.recorded);
    let after = queues::local_queue::refreshed(&queue, cluster.as_ref(), counts.as_ref(), recorded, now(case));
    let got = serde_json::to_value(after).map_err(|e| e.to_string())?;
    let want = &case.want;
    // Compare the object, the requeue delay and the consumed usage.
    let mut lines = differences(&want["localQueue"], &got, &["lastUpdate"]);
    let next = sample.and_then(|sample| sample.next).map(duration::format);
    if want["requeueAfter"].as_str() != next.as_deref() {
        lines.push(format!("requeueAfter: want {}, got {next:?}", want["requeueAfter"]));
    }
    if !want["consumedResources"].is_null() {
        let stamp = want["consumedResources"]["lastUpdate"].as_str().unwrap_or_default();
        let stamp = stamp.parse().map_err(|error| format!("consumedResources.lastUpdate: {error}"))?;
        let accounted = engine.lab().is_record_accounted(&namespace, &name);
        if want["consumedResources"]["statusAccounted"] != accounted {
            lines.push(format!("consumedResources.statusAccounted: got {accounted}"));
        }
        let (consumed, got) = counts.and_then(|counts| counts.consumed).ok_or("no consumed usage")?;
        if translate::time(stamp) != got {
            lines.push(format!("consumedResources.lastUpdate: want {stamp}, got {got:?}"));
        }
        let exact = |(name, amount): (&berth_engine::Name, &f64)| {
            (name.to_string(), translate::amounts::to_exact_quantity(name, *amount))
        };
        let consumed: BTreeMap<String, _> = consumed.iter().map(exact).collect();
        lines.extend(differences(&want["consumedResources"]["resources"], &json!(consumed), &[]));
    }
    verdict(lines)
}
