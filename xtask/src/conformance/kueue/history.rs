//! Random platforms with histories: workloads arrive and finish, cycles run until nothing moves, victims stop. What is
//! compared is every cycle's admissions and evictions, and at the end of each step who holds what and who waits where.

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

/// Fruitless cycles after which a step is settled, and the number of cycles after which it never will be.
const FRUITLESS_MAX: u32 = 3;
const CYCLES_MAX: u32 = 60;

const NEVER: Duration = Duration::from_secs(1_000_000_000);

/// Runs a history step by step; ends at the first step that differs, because later ones may follow from it.
pub fn random(case: &Case) -> Verdict {
    // Histories say when workloads return to their heaps: after a cycle and after a finish, never by themselves. What the
    // configuration objects asked for at the start is therefore carried out after the first cycle.
    let mut world = World::with_flush_delay(case, NEVER)?;
    let each = case.input["addMode"] == "each";
    for step in case.data["steps"].as_array().into_iter().flatten() {
        let mut run = Run::default();
        known(step, &["name", "finish", "add", "want"])?;
        known(&step["want"], &["cycles", "assignments", "active", "inadmissible", "unstable"])?;
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

/// Refuses what this runner would leave aside.
fn known(object: &Value, keys: &[&str]) -> Verdict {
    match object.as_object().into_iter().flatten().find(|(key, _)| !keys.contains(&key.as_str())) {
        Some((key, _)) => Err(format!("{key}: the runner does not look at it")),
        None => Ok(()),
    }
}

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

/// What one step did.
#[derive(Default)]
struct Run {
    cycles: Vec<Value>,
    unstable: bool,
}

impl Run {
    /// Cycles until no heap holds a workload, or nothing moves any more.
    fn settle(&mut self, world: &mut World) {
        let mut fruitless = 0;
        for _ in 0..CYCLES_MAX {
            if !world.engine.has_candidates() || fruitless == FRUITLESS_MAX {
                return;
            }
            let preemptors = preemptors(world);
            let outcome = world.cycle();
            keep_preemptors(world, &preemptors);
            let cycle = summary(&outcome);
            let moved = cycle != json!({"admitted": [], "evicted": []});
            fruitless = if moved { 0 } else { fruitless + 1 };
            self.cycles.push(cycle);
            world.now += SignedDuration::from_secs(1);
            confirm(world, &outcome);
            stop_evicted(world);
            world.flush();
        }
        self.unstable |= world.engine.has_candidates() && fruitless < FRUITLESS_MAX;
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
        let (active, aside) = world.waiting();
        found.extend(differences("active", &sorted_lists(&want["active"]), &json!(active)));
        found.extend(differences("inadmissible", &sorted_lists(&want["inadmissible"]), &json!(aside)));
        let unstable = want["unstable"] == json!(true);
        found.extend(differences("unstable", &json!(unstable), &json!(self.unstable)));
        found
    }
}

/// Who got quota in a cycle and who was told to leave.
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

/// The workload every queue remembers as waiting for preemptions it started.
fn preemptors(world: &mut World) -> Vec<(String, WorkloadKey)> {
    let queues: Vec<String> = world.queues.keys().cloned().collect();
    let lab = world.engine.lab();
    queues.into_iter().filter_map(|queue| lab.sticky(&queue).map(|key| (queue, key))).collect()
}

/// Upstream it is the workload controller that tells a queue to forget its preemptor once that was admitted. Histories
/// were recorded without one: a queue remembers its last preemptor until another comes.
fn keep_preemptors(world: &mut World, before: &[(String, WorkloadKey)]) {
    let mut lab = world.engine.lab();
    for (queue, key) in before {
        if lab.sticky(queue).is_none() {
            lab.set_preemptor(queue, Some(key));
        }
    }
}

/// Lets the engine see the objects a cycle changed, as a watch would.
fn confirm(world: &mut World, outcome: &CycleOutcome) {
    for decision in &outcome.decisions {
        world.see(&decision.workload);
        if let Decided::Preempt { victims, .. } = &decision.verdict {
            victims.iter().for_each(|victim| world.see(&victim.workload));
        }
    }
}

/// Every evicted workload stops, gives its quota back and queues again.
fn stop_evicted(world: &mut World) {
    let leaving = world.workloads.iter().filter(|(_, it)| status::is_evicted(it) && status::has_quota_reservation(it));
    let leaving: Vec<WorkloadKey> = leaving.map(|(key, _)| key.clone()).collect();
    for key in leaving {
        let (now, gates) = (world.now, world.gates.clone());
        let Some(object) = world.workloads.get_mut(&key) else { continue };
        status::release_after_eviction(object, &gates, now);
        world.see(&key);
    }
}

/// Who holds what, in the form the histories were recorded in.
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
