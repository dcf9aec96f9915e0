//! Suites of small functions: order of entries and of topology domains, merging and truncating
//! placements, and entry penalties.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate::{self, workload_key};
use berth_engine::lab::{self, ContenderFacts, DomainCapacity, EntryFacts};
use berth_engine::model::{AdmissionScope, ClusterQueue, LocalQueue, StopPolicy, TopologyAssignment, TopologyDomain};
use berth_engine::{Event, Name, RequeuingTimestamp};
use serde_json::{Value, json};

use super::super::{Case, Verdict};
use super::compare::{differences, normal, verdict};
use super::world::{World, config, object};

fn name(text: &str) -> Name {
    Name::from(text)
}

fn strings(value: &Value) -> Vec<Name> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(name).collect()
}

/// Compares the order of entries without fair sharing.
pub fn entry_ordering(case: &Case) -> Verdict {
    let input = &case.input;
    let world = World::new(case)?;
    let (mut engine, ..) = config(case)?;
    engine.requeuing_timestamp = match input["workloadOrdering"]["podsReadyRequeuingTimestamp"].as_str() {
        Some("Eviction") => RequeuingTimestamp::Eviction,
        _ => RequeuingTimestamp::Creation,
    };
    let mut names = Vec::new();
    let mut entries = Vec::new();
    for entry in input["entries"].as_array().into_iter().flatten() {
        let workload: api::Workload = object(entry, "workload")?;
        names.push(workload_key(&workload).name.to_string());
        entries.push(EntryFacts {
            workload: world.translate(&workload),
            borrowing: u32::try_from(entry["borrowing"].as_u64().unwrap_or(0)).unwrap_or(0),
            is_preemptor: entry["isPreemptor"] == json!(true),
        });
    }
    let order: Vec<&String> = lab::entry_order(&engine, &entries).into_iter().map(|at| &names[at]).collect();
    verdict(differences("order", &case.want["order"], &json!(order)))
}

/// Compares the order of two entries under fair sharing.
pub fn fair_sharing_compare(case: &Case) -> Verdict {
    let input = &case.input;
    let world = World::new(case)?;
    // Each flavor-resource gets a number.
    let mut pairs: BTreeMap<String, u32> = BTreeMap::new();
    let mut number = |key: String| {
        let next = u32::try_from(pairs.len()).unwrap_or(0);
        *pairs.entry(key).or_insert(next)
    };
    let mut contender = |entry: &Value| -> Result<ContenderFacts, String> {
        let workload: api::Workload = object(entry, "workload")?;
        let model = world.translate(&workload);
        let share = &entry["dominantResourceShare"];
        let milli = |value: &Value| (value.as_f64().unwrap_or(0.0) * 1000.0).round() as i64;
        let borrowed = share["borrowedFRs"].as_array().into_iter().flatten().map(|pair| {
            number(format!("{}/{}", pair["flavor"].as_str().unwrap_or(""), pair["resource"].as_str().unwrap_or("")))
        });
        let borrowed = borrowed.collect();
        let requested = entry["requestedFlavorResources"].as_object().into_iter().flatten();
        Ok(ContenderFacts {
            is_preemptor: entry["isPreemptor"] == json!(true),
            share: (share["unweightedRatio"].as_i64().unwrap_or(0), milli(&share["fairWeight"])),
            borrowed,
            requested: requested.map(|(key, _)| number(key.clone())).collect(),
            priority: model.priority,
            time: Some(model.created),
        })
    };
    let (a, b) = (contender(&input["a"])?, contender(&input["b"])?);
    let got = lab::goes_before(&world.engine.config().gates, &a, &b);
    verdict(differences("aBeforeB", &case.want["aBeforeB"], &json!(got)))
}

/// Compares the order of topology domains.
pub fn domain_order(case: &Case) -> Verdict {
    let input = &case.input;
    let (engine, ..) = config(case)?;
    let number = |domain: &Value, key: &str| domain[key].as_i64().unwrap_or(0);
    let list: Vec<(String, DomainCapacity)> = input["domains"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|domain| {
            let capacity = DomainCapacity {
                values: strings(&domain["levelValues"]),
                pods: number(domain, "podCount"),
                slices: number(domain, "sliceCount"),
                pods_with_leader: number(domain, "podCountWithLeader"),
                slices_with_leader: number(domain, "sliceCountWithLeader"),
                leader: number(domain, "leaderCount"),
                score: number(domain, "affinityScore"),
            };
            (domain["id"].as_str().unwrap_or_default().to_owned(), capacity)
        })
        .collect();
    let capacities: Vec<DomainCapacity> = list.iter().map(|(_, capacity)| capacity.clone()).collect();
    let (with_leader, unconstrained) = (input["withLeader"] == json!(true), input["unconstrained"] == json!(true));
    let order = lab::domain_order(&capacities, with_leader, unconstrained, &engine.gates);
    let order: Vec<&String> = order.into_iter().map(|at| &list[at].0).collect();
    verdict(differences("order", &case.want["order"], &json!(order)))
}

/// Compares the order of two topology domains that differ in their values only.
pub fn level_order(case: &Case) -> Verdict {
    let input = &case.input;
    let capacity = |key: &str| DomainCapacity { values: strings(&input[key]), ..DomainCapacity::default() };
    let capacities = [capacity("a"), capacity("b")];
    let (engine, ..) = config(case)?;
    let got = if capacities[0].values == capacities[1].values {
        0
    } else if lab::domain_order(&capacities, false, false, &engine.gates)[0] == 0 {
        -1
    } else {
        1
    };
    verdict(differences("sign", &case.want["sign"], &json!(got)))
}

/// Compares whether a topology has the levels of a request.
pub fn has_level(case: &Case) -> Verdict {
    let input = &case.input;
    let request: api::PodSetTopologyRequest = object(input, "podSetTopologyRequest").unwrap_or_default();
    let got = lab::has_levels(&strings(&input["levels"]), &translate::workload::topology_request(&request));
    verdict(differences("result", &case.want["result"], &json!(got)))
}

fn placement(value: &Value) -> TopologyAssignment {
    let domains = value["domains"].as_array().into_iter().flatten().map(|domain| TopologyDomain {
        values: strings(&domain["values"]),
        count: domain["count"].as_i64().and_then(|count| i32::try_from(count).ok()).unwrap_or(0),
    });
    TopologyAssignment { levels: strings(&value["levels"]), domains: domains.collect() }
}

fn encode(placement: &TopologyAssignment) -> Value {
    let domains = placement.domains.iter().map(
        |domain| json!({"count": domain.count, "values": domain.values.iter().map(|it| &**it).collect::<Vec<_>>()}),
    );
    json!({
        "levels": placement.levels.iter().map(|it| &**it).collect::<Vec<_>>(),
        "domains": domains.collect::<Vec<_>>(),
    })
}

/// Merges two placements and compares the result.
pub fn merge(case: &Case) -> Verdict {
    let input = &case.input;
    let got = lab::merge_placements(&placement(&input["a"]), &placement(&input["b"]));
    verdict(differences("result", &normal(&case.want["result"]), &normal(&encode(&got))))
}

/// Truncates a placement to its first pods and compares the result.
pub fn truncate(case: &Case) -> Verdict {
    let input = &case.input;
    let count = input["newCount"].as_i64().and_then(|count| i32::try_from(count).ok()).unwrap_or(0);
    let got = lab::truncate_placement(&placement(&input["assignment"]), count);
    verdict(differences("result", &normal(&case.want["result"]), &normal(&encode(&got))))
}

/// Compares whether an admission adds a penalty to the usage of its LocalQueue.
pub fn entry_penalty(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let mut queue = ClusterQueue::new("cq");
    queue.admission_scope =
        (input["admissionMode"] == "UsageBasedAdmissionFairSharing").then_some(AdmissionScope::UsageBased);
    queue.resource_groups = vec![berth_engine::model::ResourceGroup {
        resources: vec![name("cpu")],
        flavors: vec![berth_engine::model::FlavorQuotas {
            flavor: name("default"),
            quotas: vec![(
                name("cpu"),
                berth_engine::model::Quota { nominal: berth_engine::Amount::Bounded(100_000), ..Default::default() },
            )],
        }],
    }];
    world.apply(Event::NamespaceUpserted { name: name("ns"), labels: BTreeMap::new() });
    world.apply(Event::FlavorUpserted(berth_engine::model::ResourceFlavor {
        name: name("default"),
        ..Default::default()
    }));
    world.apply(Event::ClusterQueueUpserted(queue));
    world.apply(Event::LocalQueueUpserted(LocalQueue {
        namespace: name("ns"),
        name: name("lq"),
        cluster_queue: name("cq"),
        stop_policy: StopPolicy::None,
        fair_weight_milli: 1000,
    }));
    let workload: api::Workload = object(input, "wl")?;
    let key = workload_key(&workload);
    world.upsert(workload);
    world.cycle();
    let got = world.engine.lab().has_penalty(&key);
    verdict(differences("result", &case.want["result"], &json!(got)))
}
