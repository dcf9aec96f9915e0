//! Suites of preemption: targets, their order, policies, priorities and messages.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate::workload_key;
use berth_controllers::workload::status;
use berth_engine::lab::{self, FlavorAmounts};
use berth_engine::model::{PreemptionPolicy, Time, WorkloadKey};
use berth_engine::{Name, PreemptionReason};
use serde_json::{Value, json};

use super::super::{Case, Verdict};
use super::compare::{differences, verdict, workload};
use super::world::{World, object, objects};

fn name(value: &Value) -> Name {
    Name::from(value.as_str().unwrap_or_default())
}

/// Compares the targets of a preemptor whose flavors are given.
pub fn targets(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for admitted in objects::<api::Workload>(input, "admitted")? {
        world.upsert(admitted);
    }
    let incoming: api::Workload = object(input, "incoming")?;
    let key = workload_key(&incoming);
    // The preemptor holds no quota, even if its object has an admission.
    let mut model = world.translate(&incoming);
    model.admission = None;
    world.apply(berth_engine::Event::WorkloadUpserted(Box::new(model.clone())));
    // Sum the request per flavor-resource, and collect the flavor-resources that need preemption.
    let queue = input["targetClusterQueue"].as_str().unwrap_or_default().to_owned();
    let (mut request, mut short) = (FlavorAmounts::new(), BTreeSet::new());
    for set in input["assignment"]["podSets"].as_array().into_iter().flatten() {
        let pod_set = model.pod_sets.iter().find(|it| *it.name == *set["name"].as_str().unwrap_or_default());
        let count = set["count"].as_i64().unwrap_or(0);
        for (resource, flavor) in set["flavors"].as_object().into_iter().flatten() {
            let pair = (name(&flavor["flavor"]), Name::from(resource.as_str()));
            let per_pod = pod_set.and_then(|it| it.requests.get(&*pair.1)).copied().unwrap_or(0);
            *request.entry(pair.clone()).or_default() += per_pod * count;
            if flavor["mode"] == "Preempt" {
                short.insert(pair);
            }
        }
    }
    let now = world.time();
    let short: Vec<_> = short.into_iter().collect();
    let found = world.engine.lab().targets(&key, &queue, &request, &short, now);
    let want = &case.want;
    let mut differences_found = Vec::new();
    if let Some(count) = want["preempted"].as_u64() {
        differences_found.extend(differences("preempted", &json!(count), &json!(found.len())));
    }
    let got: BTreeMap<String, &str> = found.iter().map(|(key, reason)| (key.to_string(), reason.as_str())).collect();
    let wanted = want.get("targets").or_else(|| case.data["observed"].get("targets"));
    if let Some(list) = wanted.and_then(Value::as_array) {
        let wanted: BTreeMap<String, &str> = list
            .iter()
            .map(|it| {
                (it["workload"].as_str().unwrap_or_default().to_owned(), it["reason"].as_str().unwrap_or_default())
            })
            .collect();
        differences_found.extend(differences("targets", &json!(wanted), &json!(got)));
    }
    if let Some(list) = want["workloads"].as_array() {
        differences_found.extend(evict_and_compare(&mut world, &key, &queue, &found, list));
    }
    verdict(differences_found)
}

/// Evicts the targets as the scheduler would, and returns the differences of the objects.
fn evict_and_compare(
    world: &mut World,
    preemptor: &WorkloadKey,
    queue: &str,
    found: &[(WorkloadKey, PreemptionReason)],
    wanted: &[Value],
) -> Vec<String> {
    for (victim, reason) in found {
        let message = world.engine.lab().preemption_message(preemptor, queue, victim, *reason).unwrap_or_default();
        let (gates, now) = (world.gates.clone(), world.now);
        if let Some(object) = world.workloads.get_mut(victim)
            && !status::is_evicted(object)
        {
            status::preempt(object, reason.as_str(), &message, &gates, now);
        }
    }
    let form = |object: &Value| {
        let typed: Option<api::Workload> = serde_json::from_value(object.clone()).ok();
        let typed = typed.unwrap_or_default();
        (workload_key(&typed).to_string(), workload(&serde_json::to_value(&typed).unwrap_or_default()))
    };
    let wanted: BTreeMap<String, Value> = wanted.iter().map(form).collect();
    let got: BTreeMap<String, Value> =
        world.workloads.values().map(|it| form(&serde_json::to_value(it).unwrap_or_default())).collect();
    differences("workloads", &json!(wanted), &json!(got))
}

/// Compares the order in which fair sharing takes victims from queues.
pub fn fair_ordering(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let admitted: Vec<api::Workload> = objects(input, "admitted")?;
    for object in &admitted {
        world.upsert(object.clone());
    }
    let queues: Vec<&str> =
        input["candidateClusterQueues"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let candidates: Vec<WorkloadKey> = admitted
        .iter()
        .filter(|it| {
            let queue =
                it.status.as_ref().and_then(|status| status.admission.as_ref()).map(|it| it.cluster_queue.as_str());
            queue.is_some_and(|queue| queues.contains(&queue))
        })
        .map(workload_key)
        .collect();
    let drops: Vec<bool> = input["actions"].as_array().into_iter().flatten().map(|it| it == "drop").collect();
    let preemptor = api::Workload {
        metadata: serde_json::from_value(json!({"name": "preemptor-workload", "namespace": "nowhere"}))
            .unwrap_or_default(),
        ..api::Workload::default()
    };
    let key = workload_key(&preemptor);
    let model = world.translate(&preemptor);
    world.apply(berth_engine::Event::WorkloadUpserted(Box::new(model)));
    let now = world.time();
    let queue = input["preemptorClusterQueue"].as_str().unwrap_or_default();
    let order = world.engine.lab().victim_queue_order(&key, queue, &candidates, &drops, now);
    let order: Vec<&str> = order.iter().map(|it| &**it).collect();
    let wanted = if case.want["order"].is_null() { json!([]) } else { case.want["order"].clone() };
    verdict(differences("order", &wanted, &json!(order)))
}

/// Compares the order of preemption candidates.
pub fn candidates_ordering(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let by_usage = input["admissionFairSharingSorting"] == json!(true);
    if by_usage {
        let mut config = world.engine.config().clone();
        config.admission_fair_sharing = Some(berth_engine::AdmissionFairSharing {
            usage_half_life: std::time::Duration::from_secs(600),
            usage_sampling_interval: std::time::Duration::from_secs(60),
            resource_weights_milli: BTreeMap::new(),
        });
        world.engine = berth_engine::Engine::new(config);
    }
    let mut queues = BTreeSet::new();
    let mut list = Vec::new();
    for (at, candidate) in input["candidates"].as_array().into_iter().flatten().enumerate() {
        let mut workload: api::Workload = object(candidate, "workload")?;
        let queue = name(&candidate["clusterQueue"]);
        let local = format!("lq-{at}");
        if by_usage {
            workload.spec.queue_name = local.clone();
        }
        let key = workload_key(&workload);
        if by_usage && queues.insert(queue.clone()) {
            let mut model = berth_engine::model::ClusterQueue::new(queue.clone());
            model.admission_scope = Some(berth_engine::model::AdmissionScope::UsageBased);
            world.apply(berth_engine::Event::ClusterQueueUpserted(model));
        }
        if let Some(usage) = candidate["localQueueFairSharingUsage"].as_f64() {
            world.apply(berth_engine::Event::LocalQueueUsageRestored {
                namespace: key.namespace.clone(),
                name: Name::from(local.as_str()),
                consumed: [(Name::from("pods"), (usage * 1_000_000.0) as i64)].into_iter().collect(),
                at: Time(0),
            });
        }
        world.upsert(workload);
        list.push((key, queue));
    }
    let own = input["preemptorClusterQueue"].as_str().unwrap_or_default();
    let now = world.time();
    let order = world.engine.lab().candidate_order(own, &list, now);
    let order: Vec<&str> = order.iter().map(|it| &*it.name).collect();
    verdict(differences("order", &case.want["order"], &json!(order)))
}

/// Compares whether a policy allows one workload to preempt another.
pub fn policy(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let (preemptor, candidate): (api::Workload, api::Workload) =
        (object(input, "preemptor")?, object(input, "candidate")?);
    let keys = (workload_key(&preemptor), workload_key(&candidate));
    world.upsert(preemptor);
    world.upsert(candidate);
    let policy = match input["policy"].as_str() {
        Some("Any") => PreemptionPolicy::Any,
        Some("LowerPriority") => PreemptionPolicy::LowerPriority,
        Some("LowerOrNewerEqualPriority") => PreemptionPolicy::LowerOrNewerEqualPriority,
        _ => PreemptionPolicy::Never,
    };
    let got = world.engine.lab().satisfies(policy, &keys.0, &keys.1);
    verdict(differences("satisfies", &case.want["satisfies"], &json!(got)))
}

/// Compares base priority, boost and effective priority.
pub fn priority_info(case: &Case) -> Verdict {
    let mut world = World::new(case)?;
    let workload: api::Workload = object(&case.input, "workload")?;
    let key = workload_key(&workload);
    let model = world.translate(&workload);
    let base = model.priority;
    world.upsert(workload);
    let effective = world.engine.lab().priority(&key).unwrap_or_default();
    let got = json!({"base": base, "boost": effective - base, "effective": effective});
    verdict(differences("", case.want.whole(), &got))
}

/// Compares the preemption message of a victim.
pub fn message(case: &Case) -> Verdict {
    let input = &case.input;
    let preemptor: api::Workload = object(input, "preemptor").unwrap_or_default();
    let uid = preemptor.metadata.uid.clone().unwrap_or_default();
    let labels = preemptor.metadata.labels.clone().unwrap_or_default();
    let job_uid = labels.get("kueue.x-k8s.io/job-uid").map(String::as_str).unwrap_or_default();
    let text = |key: &str| input[key].as_str().unwrap_or_default();
    let got = lab::preemption_message(&uid, job_uid, text("reason"), text("preemptorPath"), text("preempteePath"));
    verdict(differences("message", &case.want["message"], &json!(got)))
}
