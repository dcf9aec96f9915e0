//! Random histories. In each step workloads finish and arrive, and cycles run until no decision
//! changes any more. Victims stop after each cycle.
//!
//! The runner compares the admissions and evictions of every cycle. After each step it compares the
//! quota that workloads hold, and the waiting workloads of each queue.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_controllers::workload::status;
use berth_engine::model::WorkloadKey;
use berth_engine::{CycleOutcome, Event, Verdict as Decided};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::super::{Case, Verdict};
use super::compare::{differences, sorted_lists, verdict};
use super::world::{World, objects};

/// Number of successive cycles without a decision after which a step ends.
const IDLE_CYCLES_MAX: u32 = 3;
/// Number of cycles after which a step counts as unstable.
const CYCLES_MAX: u32 = 60;

/// A flush delay that no history reaches.
const NEVER: Duration = Duration::from_secs(1_000_000_000);

/// Runs a history step by step. Stops at the first step that differs: later differences may be
/// consequences of it.
pub fn random(case: &Case) -> Verdict {
    // In a history, inadmissible workloads return to their heaps after a cycle and after a workload
    // finishes, not after a delay. The flushes that the configuration objects request at the start
    // therefore run after the first cycle.
    let mut world = World::with_flush_delay(case, NEVER)?;
    let each = case.input["addMode"] == "each";
    for step in case.data["steps"].as_array().into_iter().flatten() {
        let mut run = Run::default();
        reject_unknown(step, &["name", "finish", "add", "want"])?;
        reject_unknown(&step["want"], &["cycles", "assignments", "active", "inadmissible", "unstable"])?;
        for key in step["finish"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            finish(&mut world, key);
        }
        for mut workload in objects::<api::Workload>(step, "add")? {
            world.now += SignedDuration::from_secs(1);
            workload.metadata.creation_timestamp = Some(Time(world.now));
            world.upsert(workload);
            if each {
                run.settle(&mut world);
            }
        }
        run.settle(&mut world);
        let found = run.compare(&world, &step["want"]);
        let name = step["name"].as_str().unwrap_or_default();
        verdict(found.into_iter().map(|it| format!("{name}: {it}")).collect())?;
    }
    Ok(())
}

/// Fails if the object has a field that this runner does not read.
fn reject_unknown(object: &Value, keys: &[&str]) -> Verdict {
    match object.as_object().into_iter().flatten().find(|(key, _)| !keys.contains(&key.as_str())) {
        Some((key, _)) => Err(format!("{key}: the runner does not read this field")),
        None => Ok(()),
    }
}

/// Removes a workload. If it is the sticky workload of a queue, the queue then has none.
fn finish(world: &mut World, key: &str) {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let key = WorkloadKey::new(namespace, name);
    for (queue, preemptor) in preemptors(world) {
        if preemptor == key {
            world.engine.lab().set_preemptor(&queue, None);
        }
    }
    world.workloads.remove(&key);
    world.apply(Event::WorkloadRemoved(key));
    world.flush();
}

/// Results of one step.
#[derive(Default)]
struct Run {
    /// Admissions and evictions of each cycle.
    cycles: Vec<Value>,
    /// True if [`CYCLES_MAX`] cycles did not suffice.
    unstable: bool,
}

impl Run {
    /// Runs cycles until no heap has a workload, or several cycles in a row decide nothing.
    fn settle(&mut self, world: &mut World) {
        let mut idle_cycles = 0;
        for _ in 0..CYCLES_MAX {
            if !world.engine.has_candidates() || idle_cycles == IDLE_CYCLES_MAX {
                return;
            }
            let preemptors = preemptors(world);
            let outcome = world.cycle();
            restore_preemptors(world, &preemptors);
            let cycle = summary(&outcome);
            let is_idle = cycle == json!({"admitted": [], "evicted": []});
            idle_cycles = if is_idle { idle_cycles + 1 } else { 0 };
            self.cycles.push(cycle);
            world.now += SignedDuration::from_secs(1);
            confirm(world, &outcome);
            stop_evicted(world);
            world.flush();
        }
        self.unstable |= world.engine.has_candidates() && idle_cycles < IDLE_CYCLES_MAX;
    }

    fn compare(&self, world: &World, want: &Value) -> Vec<String> {
        let wanted = want["cycles"].as_array().cloned().unwrap_or_default();
        for (at, cycle) in self.cycles.iter().enumerate() {
            let none = Value::Null;
            let found = differences(&format!("cycles[{at}]"), wanted.get(at).map_or(&none, |it| it), cycle);
            if !found.is_empty() {
                return found;
            }
        }
        let mut found = differences("number of cycles", &json!(wanted.len()), &json!(self.cycles.len()));
        found.extend(differences("assignments", &want["assignments"], &json!(assignments(world))));
        let (active, inadmissible) = world.waiting();
        found.extend(differences("active", &sorted_lists(&want["active"]), &json!(active)));
        found.extend(differences("inadmissible", &sorted_lists(&want["inadmissible"]), &json!(inadmissible)));
        let unstable = want["unstable"] == json!(true);
        found.extend(differences("unstable", &json!(unstable), &json!(self.unstable)));
        found
    }
}

/// The workloads that a cycle admitted, and those that it evicted, with the reason.
fn summary(outcome: &CycleOutcome) -> Value {
    let (mut admitted, mut evicted) = (Vec::new(), BTreeMap::new());
    for decision in &outcome.decisions {
        match &decision.verdict {
            Decided::Admit(_) => admitted.push(decision.workload.to_string()),
            Decided::Preempt { victims, .. } => {
                for victim in victims.iter().filter(|victim| victim.write) {
                    evicted.insert(victim.workload.to_string(), victim.reason.as_str());
                }
            }
            Decided::Evict(eviction) => {
                evicted.insert(decision.workload.to_string(), eviction.reason());
            }
            Decided::Wait(_) => {}
        }
    }
    admitted.sort();
    let evicted: Vec<Value> =
        evicted.into_iter().map(|(workload, reason)| json!({"workload": workload, "reason": reason})).collect();
    json!({"admitted": admitted, "evicted": evicted})
}

/// The sticky workload of every queue: it waits for the preemptions that it started.
fn preemptors(world: &mut World) -> Vec<(String, WorkloadKey)> {
    let queues: Vec<String> = world.queues.keys().cloned().collect();
    let lab = world.engine.lab();
    queues.into_iter().filter_map(|queue| lab.sticky(&queue).map(|key| (queue, key))).collect()
}

/// Restores sticky workloads that a cycle removed by admitting them. Upstream's workload controller
/// removes them, and histories were recorded without that controller: a queue keeps its last sticky
/// workload until another replaces it.
fn restore_preemptors(world: &mut World, before: &[(String, WorkloadKey)]) {
    let mut lab = world.engine.lab();
    for (queue, key) in before {
        if lab.sticky(queue).is_none() {
            lab.set_preemptor(queue, Some(key));
        }
    }
}

/// Sends the objects that a cycle changed to the engine, as a watch would.
fn confirm(world: &mut World, outcome: &CycleOutcome) {
    for decision in &outcome.decisions {
        world.resend(&decision.workload);
        if let Decided::Preempt { victims, .. } = &decision.verdict {
            victims.iter().for_each(|victim| world.resend(&victim.workload));
        }
    }
}

/// Stops every evicted workload: it releases its quota and queues again.
fn stop_evicted(world: &mut World) {
    let leaving = world.workloads.iter().filter(|(_, it)| status::is_evicted(it) && status::has_quota_reservation(it));
    let leaving: Vec<WorkloadKey> = leaving.map(|(key, _)| key.clone()).collect();
    for key in leaving {
        let (now, gates) = (world.now, world.gates.clone());
        let Some(object) = world.workloads.get_mut(&key) else { continue };
        status::release_after_eviction(object, &gates, now);
        world.resend(&key);
    }
}

/// Admission of every workload that holds quota, by key, in the form of the recorded histories.
fn assignments(world: &World) -> BTreeMap<String, Value> {
    let held = world.engine.holding().into_iter().filter_map(|key| {
        let admission = translate::admission(world.engine.admission(key)?, true);
        let pod_sets: Vec<Value> = admission
            .pod_set_assignments
            .iter()
            .map(|set| json!({"name": set.name, "count": set.count, "flavors": set.flavors}))
            .collect();
        Some((key.to_string(), json!({"clusterQueue": admission.cluster_queue, "podSets": pod_sets})))
    });
    held.collect()
}
