//! End-to-end scheduling suites: they create objects, run cycles and compare the objects.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_engine::model::WorkloadKey;
use berth_engine::{CycleOutcome, Event, Name};
use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::{Case, Verdict};
use super::compare::{differences, normal, sorted_lists, verdict, workload};
use super::world::{World, objects};

/// Runs the number of cycles of the case, then compares all expectations.
pub fn cycles(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    restore_usage(&mut world, input);
    second_pass(&mut world, input);
    let mut outcomes = Vec::new();
    for _ in 0..case.data["cycles"].as_u64().unwrap_or(1) {
        outcomes.push(world.cycle());
    }
    compare(case, &world, &outcomes)
}

fn restore_usage(world: &mut World, input: &Fields) {
    for (name, consumed) in input["initialLocalQueueUsage"].as_object().into_iter().flatten() {
        let consumed = serde_json::from_value(consumed.clone()).unwrap_or_default();
        let consumed = translate::amounts::from_resource_list(&consumed);
        let at = world.time();
        world.apply(Event::LocalQueueUsageRestored {
            namespace: Name::from("default"),
            name: Name::from(name.as_str()),
            consumed,
            at,
        });
    }
}

/// Advances the clock if the case has second passes. The first is due a second after its request.
fn second_pass(world: &mut World, input: &Fields) {
    if input["secondPass"].as_array().is_some_and(|list| !list.is_empty()) {
        world.now += jiff::SignedDuration::from_secs(1);
    }
}

/// Compares all expectations of a case after its cycles.
fn compare(case: &Case, world: &World, outcomes: &[CycleOutcome]) -> Verdict {
    let want = &case.want;
    let mut found = Vec::new();
    if let Some(list) = want.get("workloads").and_then(Value::as_array) {
        found.extend(compare_workloads(list, world));
    }
    let assignments = world.assignments();
    if let Some(wanted) = want.get("assignments") {
        found.extend(differences("assignments", &normal(wanted), &normal(&json!(assignments))));
    }
    if let Some(wanted) = want.get("newAssignments") {
        let admitted = admitted_at_start(case)?;
        let new: BTreeMap<&String, &Value> = assignments.iter().filter(|(key, _)| !admitted.contains(*key)).collect();
        found.extend(differences("newAssignments", &normal(wanted), &normal(&json!(new))));
    }
    let (left, inadmissible) = world.waiting();
    for (key, got) in [("left", left), ("inadmissibleLeft", inadmissible)] {
        if let Some(wanted) = want.get(key) {
            found.extend(differences(key, &sorted_lists(wanted), &json!(got)));
        }
    }
    if let Some(wanted) = want.get("events").and_then(Value::as_array) {
        found.extend(compare_events(wanted, &want["eventsCompare"], &world.events));
    }
    if let Some(wanted) = want.get("skippedPreemptions") {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (queue, count) in outcomes.iter().flat_map(|outcome| &outcome.skipped_preemptions) {
            *counts.entry(queue.to_string()).or_default() += count;
        }
        found.extend(differences("skippedPreemptions", &without_zeros(wanted), &json!(counts)));
    }
    if let Some(wanted) = want.get("preemptionTargetRecomputations") {
        let mut counts: BTreeMap<String, BTreeMap<&str, u32>> = BTreeMap::new();
        for (queue, results) in outcomes.iter().flat_map(|outcome| &outcome.target_recomputations) {
            for (result, count) in results {
                *counts.entry(queue.to_string()).or_default().entry(result).or_default() += count;
            }
        }
        found.extend(differences("preemptionTargetRecomputations", &without_zeros(wanted), &json!(counts)));
    }
    verdict(found)
}

/// The counts without zeros: a zero is equal to an absent count.
fn without_zeros(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let rest = map.iter().map(|(key, value)| (key.clone(), without_zeros(value)));
            Value::Object(rest.filter(|(_, value)| *value != json!(0) && *value != json!({})).collect())
        }
        other => other.clone(),
    }
}

/// Keys of the workloads that were admitted at the start and do not wait for a node replacement.
fn admitted_at_start(case: &Case) -> Result<Vec<String>, String> {
    let workloads = objects::<api::Workload>(&case.input, "workloads")?;
    let replaces_nodes = case.data["upstreamTest"] == "TestScheduleForTAS";
    let admitted = workloads.iter().filter(|workload| {
        let unhealthy = workload.status.as_ref().is_some_and(|status| !status.unhealthy_nodes.is_empty());
        berth_controllers::workload::status::is_admitted(workload) && !(replaces_nodes && unhealthy)
    });
    Ok(admitted.map(|workload| translate::workload_key(workload).to_string()).collect())
}

fn compare_workloads(wanted: &[Value], world: &World) -> Vec<String> {
    let key = |object: &Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", text("namespace"), text("name"))
    };
    let wanted: BTreeMap<String, Value> = wanted
        .iter()
        .map(|object| {
            // Parse and serialize with the API type, so that both sides have the same form.
            let typed: Option<api::Workload> = serde_json::from_value(object.clone()).ok();
            (key(object), typed.map_or(Value::Null, |it| workload(&serde_json::to_value(it).unwrap_or_default())))
        })
        .collect();
    let got: BTreeMap<String, Value> = world
        .workloads
        .iter()
        .map(|(key, it)| (key.to_string(), workload(&serde_json::to_value(it).unwrap_or_default())))
        .collect();
    differences("workloads", &json!(wanted), &json!(got))
}

fn compare_events(wanted: &[Value], how: &Value, got: &[Value]) -> Vec<String> {
    let form = |event: &Value| {
        let mut event = event.clone();
        if how["messageIgnored"] == json!(true) {
            event.as_object_mut().map(|map| map.remove("message"));
        }
        event
    };
    let mut wanted: Vec<Value> = wanted.iter().map(form).collect();
    let mut got: Vec<Value> = got.iter().map(form).collect();
    if how["orderIgnored"] == json!(true) {
        wanted.sort_by_key(Value::to_string);
        got.sort_by_key(Value::to_string);
    }
    differences("events", &json!(wanted), &json!(got))
}

/// Runs a cycle, deletes workloads, and runs a second cycle.
pub fn two_cycles(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    world.cycle();
    let mut found = Vec::new();
    if let Some(list) = case.want["workloadsAfterFirstCycle"].as_array() {
        found.extend(compare_workloads(list, &world));
    }
    confirm(&mut world);
    for key in input["deleteWorkloadsAfterFirstCycle"].as_array().into_iter().flatten() {
        let (namespace, name) = key.as_str().unwrap_or_default().split_once('/').unwrap_or_default();
        let key = WorkloadKey::new(namespace, name);
        world.workloads.remove(&key);
        world.apply(Event::WorkloadRemoved(key));
    }
    world.cycle();
    let wanted = &case.want["assignmentsAfterSecondCycle"];
    found.extend(differences("assignmentsAfterSecondCycle", &normal(wanted), &normal(&json!(world.assignments()))));
    verdict(found)
}

/// Sends all objects to the engine, as a watch would.
fn confirm(world: &mut World) {
    let objects: Vec<api::Workload> = world.workloads.values().cloned().collect();
    for object in objects {
        world.upsert(object);
    }
}

/// Runs several cycles, optionally with changing quota. Compares the flavors that workloads got,
/// which depend on the scan progress that the engine keeps.
pub fn preserve_scan(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let names: Vec<String> = world.queues.keys().cloned().collect();
    for cycle in 0..case.data["cycles"].as_u64().unwrap_or(1) {
        world.cycle();
        if input["quotaChurn"] == json!(true) {
            for name in &names {
                let Some(queue) = world.queues.get_mut(name) else { continue };
                let quota = if cycle % 2 == 0 { "5" } else { "4" };
                if let Some(flavor) = queue.spec.resource_groups.first_mut().and_then(|group| group.flavors.get_mut(1))
                {
                    flavor.resources[0].nominal_quota.0 = quota.to_owned();
                }
                let queue = translate::cluster_queue(queue);
                world.apply(Event::ClusterQueueUpserted(queue));
            }
        }
        for name in &names {
            world.apply(Event::FlushRequested { cluster_queue: Name::from(name.as_str()) });
        }
    }
    let mut got: BTreeMap<String, String> = BTreeMap::new();
    for key in world.workloads.keys() {
        let admission = world.engine.admission(key);
        let flavor = admission.and_then(|it| it.pod_sets.first()).and_then(|set| set.flavors.values().next());
        got.insert(key.to_string(), flavor.map(|it| it.to_string()).unwrap_or_default());
    }
    let wanted = case.want["admittedFlavor"].as_object().cloned().unwrap_or_default();
    let got = got.into_iter().filter(|(key, _)| wanted.contains_key(key)).collect::<BTreeMap<_, _>>();
    verdict(differences("admittedFlavor", &json!(wanted), &json!(got)))
}
