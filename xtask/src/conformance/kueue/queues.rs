//! Suites of queues (order, requeueing, flushes, back-off, second passes) and of the scheduler's
//! requeueing.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::scheduler::carry_out::Change;
use berth_controllers::translate::{self, workload_key};
use berth_engine::lab::{self, FlavorAmounts, NotQueued};
use berth_engine::model::{
    ClusterQueue, LabelSelector, LocalQueue, Operator, QueueingStrategy, Requirement, StopPolicy, WorkloadKey,
};
use berth_engine::{Decision, Event, Name, PendingReason, RequeueReason, WaitCause};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::{Case, Verdict};
use super::assigner::flavor_amounts;
use super::compare::{differences, sorted_lists, verdict};
use super::world::{World, object, objects};

fn name(text: &str) -> Name {
    Name::from(text)
}

fn requeue_reason(text: &str) -> RequeueReason {
    match text {
        "FailedAfterNomination" => RequeueReason::FailedAfterNomination,
        "NamespaceMismatch" => RequeueReason::NamespaceMismatch,
        "PendingPreemption" => RequeueReason::PendingPreemption,
        "PendingMigration" => RequeueReason::PendingMigration,
        "PreemptionFailed" => RequeueReason::PreemptionFailed,
        "PreemptionGated" => RequeueReason::PreemptionGated,
        "NoFit" => RequeueReason::NoFit,
        "PreemptionNoCandidates" => RequeueReason::PreemptionNoCandidates,
        _ => RequeueReason::Generic,
    }
}

fn pending_reason(text: &str) -> PendingReason {
    PendingReason::from_condition(text).unwrap_or(PendingReason::PendingEvaluation)
}

/// An engine with a ClusterQueue `cq` and the LocalQueues that the workloads name.
fn with_queue(case: &Case, workloads: &[api::Workload]) -> Result<World, String> {
    let input = &case.input;
    let mut world = World::new(case)?;
    let ordering = input["workloadOrdering"]["podsReadyRequeuingTimestamp"].as_str();
    if ordering.is_some_and(|text| text != "Eviction") {
        let mut config = world.engine.config().clone();
        config.requeuing_timestamp = berth_engine::RequeuingTimestamp::Creation;
        world.engine = berth_engine::Engine::new(config);
    }
    let mut queue = ClusterQueue::new("cq");
    if input["queueingStrategy"] == "StrictFIFO" {
        queue.strategy = QueueingStrategy::StrictFifo;
    }
    if let Some(text) = input["namespaceSelector"].as_str() {
        queue.namespace_selector = Some(parse_selector(text));
    }
    world.apply(Event::ClusterQueueUpserted(queue));
    for workload in workloads {
        let local = LocalQueue {
            namespace: workload_key(workload).namespace,
            name: name(&workload.spec.queue_name),
            cluster_queue: name("cq"),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        };
        world.apply(Event::LocalQueueUpserted(local));
    }
    Ok(world)
}

/// Parses `key in (a,b)`, the only form of selector in the cases.
fn parse_selector(text: &str) -> LabelSelector {
    let Some((key, values)) = text.split_once(" in ") else { return LabelSelector::default() };
    let values = values.trim_matches(['(', ')']).split(',').map(name).collect();
    LabelSelector { requirements: vec![Requirement { key: name(key), operator: Operator::In, values }] }
}

/// Compares the head of a queue with two workloads.
pub fn strict_fifo(case: &Case) -> Verdict {
    let input = &case.input;
    let pair: [api::Workload; 2] = [object(input, "w1")?, object(input, "w2")?];
    let mut world = with_queue(case, &pair)?;
    for workload in pair {
        world.upsert(workload);
    }
    let head = world.engine.lab().pop("cq");
    let got = head.map(|key| key.name.to_string());
    verdict(differences("result", &case.want["result"], &json!(got)))
}

/// Compares the heads of the active queues.
pub fn heads(case: &Case) -> Verdict {
    let mut world = World::new(case)?;
    let mut found = differences("assigned before", &case.want["assigned"], &json!(assigned(&world)));
    let mut got = Vec::new();
    for queue in world.queues.clone().into_keys().filter(|name| name.contains("active-")) {
        got.extend(world.engine.lab().pop(&queue).map(|key| key.name.to_string()));
    }
    got.sort();
    let wanted = case.want.get("workloads").cloned().unwrap_or(json!([]));
    found.extend(differences("workloads", &wanted, &json!(got)));
    found.extend(differences("assigned after", &case.want["assigned"], &json!(assigned(&world))));
    verdict(found)
}

/// The LocalQueue of every workload that has one and holds no quota, by key.
fn assigned(world: &World) -> BTreeMap<String, String> {
    let local = |key: &WorkloadKey| Some(format!("{}/{}", key.namespace, world.engine.local_queue(key)?));
    let holds_quota = |key: &WorkloadKey| world.engine.admission(key).is_some();
    let keys = world.workloads.keys().filter(|key| !holds_quota(key));
    keys.filter_map(|key| Some((key.to_string(), local(key)?))).collect()
}

/// Compares the head of a queue that orders LocalQueues by usage.
pub fn admission_fair_sharing(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let queue: api::ClusterQueue = object(input, "cq")?;
    world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
    for mut local in objects::<api::LocalQueue>(input, "lqs")? {
        local.spec.cluster_queue = queue.name_any();
        world.apply(Event::LocalQueueUpserted(translate::local_queue(&local)));
    }
    for (key, consumed) in input["initConsumedResources"].as_object().into_iter().flatten() {
        let (namespace, local) = key.split_once('/').unwrap_or_default();
        let consumed = serde_json::from_value(consumed.clone()).unwrap_or_default();
        let consumed = translate::amounts::from_resource_list(&consumed);
        let at = world.time();
        world.apply(Event::LocalQueueUsageRestored { namespace: name(namespace), name: name(local), consumed, at });
    }
    for workload in objects::<api::Workload>(input, "wls")? {
        world.upsert(workload);
    }
    let got = world.engine.lab().pop(&queue.name_any()).map(|key| key.name.to_string());
    verdict(differences("wl", &case.want["wl"]["metadata"]["name"], &json!(got)))
}

/// Requeues a popped workload. Compares its place, and whether it is the sticky workload.
pub fn requeue(case: &Case) -> Verdict {
    let input = &case.input;
    let workload: api::Workload = object(input, "workload")?;
    let key = workload_key(&workload);
    let mut world = with_queue(case, std::slice::from_ref(&workload))?;
    world.upsert(workload);
    let now = world.time();
    let mut lab = world.engine.lab();
    lab.take_out(&key);
    let tried = input["lastAssignment"]["lastTriedFlavorIdx"].as_array().into_iter().flatten().map(|set| {
        let indices = set.as_object().into_iter().flatten();
        indices.map(|(key, it)| (name(key), it.as_i64().and_then(|it| i32::try_from(it).ok()).unwrap_or(-1))).collect()
    });
    let tried: Vec<BTreeMap<Name, i32>> = tried.collect();
    if !tried.is_empty() {
        lab.set_scan(&key, &tried);
    }
    // Pop once more, so that no flush counts as later than the last pop.
    lab.pop("cq");
    let reason = requeue_reason(input["reason"].as_str().unwrap_or_default());
    let (added, active) = lab.requeue(&key, reason, PendingReason::PendingEvaluation, now);
    let sticky = lab.sticky("cq").is_some();
    let (again, _) = lab.requeue(&key, reason, PendingReason::PendingEvaluation, now);
    let got = json!({"inadmissible": !active, "sticky": sticky});
    let mut want = case.want.whole().clone();
    if want.get("sticky").is_none() {
        want["sticky"] = json!(false);
    }
    let mut found = differences("", &want, &got);
    if !added || again {
        found.push(format!("added: want true then false, got {added} then {again}"));
    }
    verdict(found)
}

/// Compares whether a requeue reason makes the scheduling equivalence class inadmissible, and the
/// reason that the queue stores for the class.
pub fn class_reason(case: &Case) -> Verdict {
    let input = &case.input;
    let workload: api::Workload = object(input, "workload")?;
    let key = workload_key(&workload);
    let mut world = with_queue(case, std::slice::from_ref(&workload))?;
    world.upsert(workload);
    let now = world.time();
    let mut lab = world.engine.lab();
    lab.pop("cq");
    lab.take_out(&key);
    let reason = input.get("reason").or(input.get("requeueReason")).and_then(Value::as_str).unwrap_or_default();
    let shown = pending_reason(input["conditionReason"].as_str().unwrap_or_default());
    lab.requeue(&key, requeue_reason(reason), shown, now);
    if input["deleteFromInadmissible"] == json!(true) {
        world.apply(Event::WorkloadRemoved(key.clone()));
    }
    let class_reason = world.engine.lab().inadmissible_class_reason("cq", &key);
    let want = &case.want;
    if let Some(wanted) = want.get("schedulingHashRecordedAsInadmissible") {
        return verdict(differences("recorded", wanted, &json!(class_reason.is_some())));
    }
    let mut found = differences("ok", &want["ok"], &json!(class_reason.is_some()));
    let got = class_reason.map_or("", |reason| reason.as_str());
    found.extend(differences("reason", &json!(want["reason"].as_str().unwrap_or_default()), &json!(got)));
    verdict(found)
}

/// Compares whether a workload is requeued, depending on whether it exists and is queued.
pub fn requeue_workload(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let workload: api::Workload = object(input, "workload")?;
    let key = workload_key(&workload);
    if input["inClient"] == json!(true) || input["inQueue"] == json!(true) {
        world.upsert(workload);
    }
    if input["inQueue"] != json!(true) {
        world.engine.lab().take_out(&key);
    }
    if input["inClient"] != json!(true) {
        world.apply(Event::WorkloadRemoved(key.clone()));
    }
    let now = world.time();
    let (added, _) = world.engine.lab().requeue(&key, RequeueReason::Generic, PendingReason::PendingEvaluation, now);
    verdict(differences("requeued", &case.want["requeued"], &json!(added)))
}

/// Runs a script of operations on one queue.
pub fn operations(case: &Case) -> Verdict {
    let input = &case.input;
    let list = |key: &str| objects::<api::Workload>(input, key);
    let keys =
        ["workloadsToAdd", "inadmissibleWorkloadsToRequeue", "admissibleWorkloadsToRequeue", "workloadsToUpdate"];
    let mut all = Vec::new();
    for key in keys {
        all.extend(list(key)?);
    }
    let mut world = with_queue(case, &all)?;
    for workload in list("workloadsToAdd")? {
        world.upsert(workload);
    }
    // Requeue workloads that were never popped.
    for (suite, reason) in [
        ("inadmissibleWorkloadsToRequeue", RequeueReason::Generic),
        ("admissibleWorkloadsToRequeue", RequeueReason::FailedAfterNomination),
    ] {
        for workload in list(suite)? {
            let key = workload_key(&workload);
            if !world.engine.lab().is_waiting(&key) {
                world.upsert(workload);
                world.engine.lab().take_out(&key);
            }
            let now = world.time();
            world.engine.lab().requeue(&key, reason, PendingReason::PendingEvaluation, now);
        }
    }
    for workload in list("workloadsToUpdate")? {
        world.upsert(workload);
    }
    for workload in list("workloadsToDelete")? {
        world.apply(Event::WorkloadRemoved(workload_key(&workload)));
    }
    let now = world.time();
    let moved =
        if input["queueInadmissibleWorkloads"] == json!(true) { world.engine.lab().flush("cq", now) } else { 0 };
    let positions = world.engine.pending("cq");
    let mut active: Vec<String> =
        positions.iter().filter(|it| !it.inadmissible).map(|it| it.workload.to_string()).collect();
    active.sort();
    let got = json!({"activeWorkloads": active, "pending": positions.len(), "inadmissibleWorkloadsRequeued": moved});
    verdict(differences("", case.want.whole(), &got))
}

/// Pushes a workload twice, then pops.
pub fn push(case: &Case) -> Verdict {
    let workload: api::Workload = object(&case.input, "workload")?;
    let mut world = with_queue(case, std::slice::from_ref(&workload))?;
    world.upsert(workload.clone());
    world.upsert(workload);
    let head = world.engine.lab().pop("cq").map(|key| key.to_string());
    let positions = world.engine.pending("cq");
    let inadmissible: Vec<String> =
        positions.iter().filter(|it| it.inadmissible).map(|it| it.workload.to_string()).collect();
    let mut found = differences("head", &case.want["head"], &json!(head));
    found.extend(differences("inadmissible", &case.want["inadmissible"], &json!(inadmissible)));
    verdict(found)
}

/// Compares whether the back-off has expired.
pub fn backoff(case: &Case) -> Verdict {
    let workload: api::Workload = object(&case.input, "workload")?;
    let key = workload_key(&workload);
    let mut world = World::new(case)?;
    world.upsert(workload);
    let now = world.time();
    let got = world.engine.lab().is_backoff_over(&key, now);
    verdict(differences("result", &case.want["result"], &json!(got)))
}

/// Compares the effect of flushes on the trees of queues and cohorts.
pub fn inadmissible(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    world.apply(Event::NamespaceUpserted { name: name("default"), labels: BTreeMap::new() });
    world.flush();
    for queue in world.queues.clone().into_keys() {
        while let Some(key) = world.engine.lab().pop(&queue) {
            let now = world.time();
            world.engine.lab().requeue(&key, RequeueReason::Generic, PendingReason::PendingEvaluation, now);
        }
    }
    for queue in input["cqNames"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        world.apply(Event::FlushRequested { cluster_queue: name(queue) });
    }
    let now = world.time();
    let moved = world.engine.lab().flush_requested(now);
    let (active, inadmissible) = world.waiting();
    let want = &case.want;
    let mut found = differences("movedCount", &want["movedCount"], &json!(moved.iter().sum::<usize>()));
    found.extend(differences("moveWorkloadsLogCount", &want["moveWorkloadsLogCount"], &json!(moved.len())));
    found.extend(differences("active", &want["active"], &json!(active)));
    found.extend(differences("inadmissible", &want["inadmissible"], &json!(inadmissible)));
    verdict(found)
}

/// Compares the LocalQueue that a workload is assigned to, or the error.
pub fn add_workload(case: &Case) -> Verdict {
    let workload: api::Workload = object(&case.input, "workload")?;
    let key = workload_key(&workload);
    let mut world = World::new(case)?;
    world.upsert(workload);
    let (assigned, error) = place(&mut world, &key);
    let mut found = differences("assigned", &case.want["assigned"], &assigned);
    let wanted = case.want["err"].as_str().unwrap_or_default();
    found.extend(differences("err", &json!(wanted), &json!(error)));
    verdict(found)
}

/// The LocalQueue of a workload, and upstream's error text if the workload is not queued.
fn place(world: &mut World, key: &WorkloadKey) -> (Value, &'static str) {
    let local = world.engine.local_queue(key).map(|local| format!("{}/{local}", key.namespace));
    let assigned = json!({key.to_string(): local});
    match world.engine.lab().why_not_queued(key) {
        None => (assigned, ""),
        Some(NotQueued::NoClusterQueue) => (assigned, "clusterQueue doesn't exist"),
        Some(NotQueued::NoLocalQueue) => (json!({}), "localQueue doesn't exist or inactive"),
        Some(NotQueued::NotQueueable) => (json!({}), "workload is inadmissible and can't be added to a LocalQueue"),
    }
}

/// Moves a workload between LocalQueues.
pub fn update_workload(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for local in objects::<api::LocalQueue>(input, "queues")? {
        world.apply(Event::LocalQueueUpserted(translate::local_queue(&local)));
    }
    let updated: api::Workload = object(input, "updatedWorkload")?;
    let key = workload_key(&updated);
    let want = &case.want;
    let mut found = Vec::new();
    // Upstream assigns a workload without a usable queue to no LocalQueue.
    let (before, error) = place(&mut world, &key);
    let before = if error.is_empty() { before } else { json!({}) };
    found.extend(differences("input.assigned", &input["assigned"], &before));
    world.upsert(updated);
    let (assigned, error) = place(&mut world, &key);
    found.extend(differences("assigned", &want["assigned"], &assigned));
    found.extend(differences("updated", &want["updated"], &json!(error.is_empty())));
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for position in world.queues.keys().flat_map(|queue| world.engine.pending(queue)) {
        let local = format!("{}/{}", position.workload.namespace, position.local_queue);
        members.entry(local).or_default().push(position.workload.to_string());
    }
    found.extend(differences("queueMembers", &sorted_lists(&want["queueMembers"]), &sorted_lists(&json!(members))));
    found.extend(differences("err", &json!(want["err"].as_str().unwrap_or_default()), &json!(error)));
    let mut order: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for queue in world.queues.clone().into_keys() {
        while let Some(key) = world.engine.lab().pop(&queue) {
            order.entry(queue.clone()).or_default().push(key.to_string());
        }
    }
    found.extend(differences("queueOrder", &want["queueOrder"], &json!(order)));
    verdict(found)
}

/// Compares the second passes that are due.
pub fn second_pass(case: &Case) -> Verdict {
    let input = &case.input;
    let mut found = Vec::new();
    let mut world = World::new(case)?;
    if let Ok(update) = object::<api::Workload>(input, "updateWorkload")
        && update.metadata.name.is_some()
    {
        let key = workload_key(&update);
        world.upsert(update);
        let queued = world.engine.lab().awaits_second_pass(&key);
        found.extend(differences("updateQueued", &json!(case.want["updateQueued"] == true), &json!(queued)));
    }
    let seconds = input["passTime"].as_str().unwrap_or("0s").trim_end_matches('s').parse::<f64>().unwrap_or(0.0);
    world.now += jiff::SignedDuration::from_secs_f64(seconds);
    let now = world.time();
    let mut due: Vec<String> = world.engine.lab().second_pass_due(now).iter().map(ToString::to_string).collect();
    due.sort();
    found.extend(differences("ready", &case.want["ready"], &json!(due)));
    verdict(found)
}

/// Compares the quota that is reserved for an entry that waits for preemption.
pub fn resources_to_reserve(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    world.engine.lab().add_usage("cq", &flavor_amounts(&input["cqUsage"]));
    let usage = flavor_amounts(&input["assignmentUsage"]);
    let borrows = input["borrowing"].as_u64().unwrap_or(0) > 0;
    let got: FlavorAmounts = if input["assignmentMode"] == "Preempt" {
        world.engine.lab().amounts_to_reserve("cq", &usage, borrows)
    } else {
        usage
    };
    let got: BTreeMap<String, i64> =
        got.into_iter().map(|((flavor, resource), amount)| (format!("{flavor}/{resource}"), amount)).collect();
    verdict(differences("reserved", &case.want["reserved"], &json!(got)))
}

/// Compares whether recorded scan progress is outdated.
pub fn last_assignment(case: &Case) -> Verdict {
    let input = &case.input;
    let args = &input["args"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let class = |value: &Value| match value.as_str() {
        None | Some("" | "unknown") => 0,
        Some(text) => u32::from(text.bytes().last().unwrap_or(1)),
    };
    let last = &args["last"];
    let recorded =
        (number(&last["schedulingCycle"]), number(&last["clusterQueueGeneration"]), class(&last["schedulingHash"]));
    let got = lab::is_scan_outdated(
        input["preserveProgress"] == json!(true),
        recorded,
        number(&args["currentSchedulingCycle"]),
        number(&args["currentCQGeneration"]),
        class(&args["currentSchedulingHash"]),
    );
    verdict(differences("result", &case.want["result"], &json!(got)))
}

/// Requeues a popped workload twice, as after a cycle with the given outcome. Compares the queue,
/// the workload's status, and the number of status writes.
pub fn entry_requeue(case: &Case) -> Verdict {
    let input = &case.input;
    let entry = &input["entry"];
    let mut world = World::new(case)?;
    let keys: Vec<WorkloadKey> = world.workloads.keys().cloned().collect();
    let key = keys.first().ok_or("the case has no workload")?;
    let status = entry["status"].as_str().unwrap_or_default();
    let reason = pending_reason(entry["quotaReservedReason"].as_str().unwrap_or_default());
    let requeue = match requeue_reason(entry["requeueReason"].as_str().unwrap_or_default()) {
        RequeueReason::Generic if !status.is_empty() => RequeueReason::FailedAfterNomination,
        requeue => requeue,
    };
    let message = entry["inadmissibleMessage"].as_str().unwrap_or_default().to_owned();
    let cause = WaitCause::Prescribed { reason, requeue, gated: status == "preemptionGated", message };
    let mut writes = 0;
    for _ in 0..2 {
        for queue in world.queues.clone().into_keys() {
            world.engine.lab().pop(&queue);
        }
        let (before, now) = (world.workloads[key].status.clone(), world.time());
        if matches!(status, "assumed" | "nominated") {
            // The admission failed: the workload is requeued without a report.
            world.engine.lab().requeue(key, requeue, reason, now);
        } else if let Some(Decision { verdict: berth_engine::Verdict::Wait(wait), .. }) =
            world.engine.lab().put_back(key, cause.clone(), now)
        {
            world.carry_out(key, &Change::Wait(Box::new(wait)));
        }
        writes += u32::from(world.workloads[key].status != before);
    }
    let want = &case.want;
    let (active, inadmissible) = world.waiting();
    let mut found = differences("left", &want["left"], &json!(active));
    found.extend(differences("inadmissibleLeft", &want["inadmissibleLeft"], &json!(inadmissible)));
    found.extend(differences("statusUpdates", &want["statusUpdates"], &json!(writes)));
    let wanted: api::WorkloadStatus =
        serde_json::from_value(want["workloadStatus"].clone()).map_err(|error| format!("workloadStatus: {error}"))?;
    let form = |status: &api::WorkloadStatus| super::compare::workload(&json!({"metadata": {}, "status": status}));
    let got = world.workloads[key].status.clone().unwrap_or_default();
    found.extend(differences("workloadStatus", &form(&wanted), &form(&got)));
    verdict(found)
}
