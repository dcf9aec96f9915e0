//! Suites of Kueue's cache: quota arithmetic, snapshots, shares, readiness and usage in statuses.

use std::collections::BTreeMap;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_engine::lab::{self, NodeReport};
use berth_engine::model::WorkloadKey;
use berth_engine::{Amount, Event, FlavorUsage, Name};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::{Case, Verdict};
use super::assigner::flavor_amounts;
use super::compare::{differences, normal, verdict};
use super::topology::add_topology_usage;
use super::world::{World, object, objects};

fn amount(amount: Amount) -> Value {
    match amount {
        Amount::Bounded(value) => json!(value),
        Amount::Unlimited => json!("unlimited"),
    }
}

/// Compares the available quota of queues, with and without usage.
pub fn available(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for queue in world.queues.clone().into_keys() {
        let usage = flavor_amounts(&input["usage"][&queue]);
        world.engine.lab().add_usage(&queue, &usage);
    }
    let want = &case.want;
    let mut found = Vec::new();
    for (at, key) in ["available", "potentiallyAvailable"].into_iter().enumerate() {
        for (queue, pairs) in want[key].as_object().into_iter().flatten() {
            for (pair, wanted) in pairs.as_object().into_iter().flatten() {
                let (flavor, resource) = pair.split_once('/').unwrap_or_default();
                let got = world.engine.lab().available(queue, &Name::from(flavor), &Name::from(resource));
                let got = got.map_or(Value::Null, |both| amount(if at == 0 { both.0 } else { both.1 }));
                found.extend(differences(&format!("{key}.{queue}.{pair}"), wanted, &got));
            }
        }
    }
    verdict(found)
}

/// Compares dominant resource shares.
pub fn fair_sharing(case: &Case) -> Verdict {
    let input = &case.input;
    let want = &case.want;
    if let Some(ratio) = input.get("unweightedRatio") {
        let milli = |value: &Value| (value.as_f64().unwrap_or(0.0) * 1000.0).round() as i64;
        let share = lab::precise_share(milli(ratio), milli(&input["fairWeight"]));
        return verdict(differences("serialized", &want["serialized"], &json!(format!("{share}"))));
    }
    let mut world = World::new(case)?;
    // Usage is given per queue, or for the queue `cq` only.
    let per_queue = input["usage"].as_object().is_some_and(|map| map.values().any(Value::is_object));
    if per_queue {
        for (queue, usage) in input["usage"].as_object().into_iter().flatten() {
            world.engine.lab().add_usage(queue, &flavor_amounts(usage));
        }
    } else {
        world.engine.lab().add_usage("cq", &flavor_amounts(&input["usage"]));
    }
    if want.get("borrowingOnRequested").is_some() {
        let requested = flavor_amounts(&input["requestedFRs"]);
        let share = world.engine.lab().share_with(("cq", true), "cq", &BTreeMap::new());
        let got = json!({
            "borrowing": share.is_some_and(|share| share.borrowing),
            "borrowingOnRequested": world.engine.lab().is_borrowing_on("cq", &requested),
        });
        return verdict(differences("", want.whole(), &got));
    }
    let added = input["additionalRequest"].get("cq").unwrap_or(&input["additionalRequest"]);
    let added = flavor_amounts(added);
    let mut found = Vec::new();
    for share in want["shares"].as_array().into_iter().flatten() {
        let name = share["name"].as_str().unwrap_or_default();
        let is_queue = share["kind"] == "ClusterQueue";
        let got = world.engine.lab().share_with((name, is_queue), "cq", &added);
        let got = got.map_or(Value::Null, |it| {
            json!({
                "borrowing": it.borrowing,
                "dominantResource": it.dominant_resource.as_deref().unwrap_or_default(),
                "kind": share["kind"],
                "name": name,
                "weightedShare": it.value,
            })
        });
        found.extend(differences(name, share, &got));
    }
    verdict(found)
}

/// Compares the generation of a queue after an update.
pub fn generation(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let (old, new): (api::ClusterQueue, api::ClusterQueue) = (object(input, "cq")?, object(input, "newcq")?);
    world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&old)));
    world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&new)));
    let got = world.engine.lab().generation(&new.name_any());
    verdict(differences("generation", &case.want["lastAssignmentGeneration"], &json!(got)))
}

/// Compares the condition Active of a queue.
pub fn readiness(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    if input["skipTopology"] == json!(true) {
        for topology in objects::<api::Topology>(input, "topologies")? {
            world.apply(Event::TopologyRemoved(Name::from(topology.name_any())));
        }
    }
    for key in ["cq", "updatedCq"] {
        if let Ok(queue) = object::<api::ClusterQueue>(input, key)
            && queue.metadata.name.is_some()
        {
            world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
        }
    }
    let name = input["clusterQueueName"].as_str().unwrap_or("cq").to_owned();
    if input["terminate"] == json!(true)
        && let Some(queue) = world.queues.get(&name)
    {
        let mut queue = translate::cluster_queue(queue);
        queue.terminating = true;
        world.apply(Event::ClusterQueueUpserted(queue));
    }
    let status = world.engine.cluster_queue_status(&name);
    let (active, reason, message) = match &status {
        Some(status) => (status.readiness.is_active(), status.readiness.reason(), status.readiness.message()),
        None => (false, "NotFound", "ClusterQueue not found".to_owned()),
    };
    let want = &case.want;
    let mut found = differences("reason", &want["reason"], &json!(reason));
    // One of the suites does not assert the status.
    if let Some(wanted) = want["status"].as_str().filter(|text| !text.is_empty()) {
        found.extend(differences("status", &json!(wanted), &json!(if active { "True" } else { "False" })));
    }
    if let Some(wanted) = want.get("terminating") {
        found.extend(differences("terminating", wanted, &json!(reason == "Terminating")));
    }
    found.extend(differences("message", &want["message"], &json!(message)));
    if let Some(wanted) = want.get("active") {
        found.extend(differences("active", wanted, &json!(active)));
    }
    verdict(found)
}

/// Compares quota and usage of a snapshot. The usage of topology domains is compared for the
/// flavors of the first queue, after some of these flavors got other labels.
pub fn snapshot(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for (flavor, usages) in input["tasFlavorUsage"].as_object().into_iter().flatten() {
        add_topology_usage(&mut world, flavor, usages);
    }
    for flavor in objects::<api::ResourceFlavor>(input, "relabeledResourceFlavors")? {
        world.apply(Event::FlavorUpserted(translate::flavor(&flavor)));
    }
    let want = &case.want;
    let mut found = compare_snapshot(want, &mut world);
    if let Some(wanted) = want["clusterQueues"].as_object() {
        let queues: Vec<String> = world.queues.keys().cloned().collect();
        let extra =
            queues.into_iter().filter(|name| !wanted.contains_key(name) && world.engine.lab().is_schedulable(name));
        found.extend(extra.map(|name| format!("clusterQueues.{name}: want nothing, got an active queue")));
    }
    if let Some(wanted) = want.get("tasUsage") {
        let flavors = world.queues.values().next().map(flavors_of).unwrap_or_default();
        let mut got = BTreeMap::new();
        for flavor in flavors {
            let domains = world.engine.lab().used_domains(&Name::from(flavor.as_str()));
            let domains = domains.into_iter().map(|(values, amounts)| {
                let amounts: BTreeMap<String, i64> =
                    amounts.into_iter().map(|(name, amount)| (name.to_string(), amount)).collect();
                (values.join(","), amounts)
            });
            got.insert(flavor, domains.collect::<BTreeMap<_, _>>());
        }
        found.extend(differences("tasUsage", wanted, &json!(got)));
    }
    verdict(found)
}

/// The flavors that a queue has quota on.
fn flavors_of(queue: &api::ClusterQueue) -> Vec<String> {
    let groups = queue.spec.resource_groups.iter();
    groups.flat_map(|group| group.flavors.iter().map(|flavor| flavor.name.clone())).collect()
}

/// Compares usage after workloads were hidden from the snapshot and added again.
pub fn snapshot_usage(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for (list, removes) in [("remove", true), ("add", false)] {
        for key in input[list].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            let key = WorkloadKey::new(namespace, name);
            if removes {
                world.engine.lab().hide(&key);
            } else {
                world.engine.lab().unhide(&key);
            }
        }
    }
    verdict(compare_snapshot(&case.want, &mut world))
}

fn compare_snapshot(want: &Fields, world: &mut World) -> Vec<String> {
    let mut found = Vec::new();
    for (name, wanted) in want["clusterQueues"].as_object().into_iter().flatten() {
        let report = world.engine.lab().queue_report(name);
        found.extend(compare_node(&format!("clusterQueues.{name}"), wanted, report, true));
    }
    for (name, wanted) in want["cohorts"].as_object().into_iter().flatten() {
        let report = world.engine.lab().cohort_report(name);
        found.extend(compare_node(&format!("cohorts.{name}"), wanted, report, false));
    }
    for name in want["inactiveClusterQueues"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !world.queues.contains_key(name) || world.engine.lab().is_schedulable(name) {
            found.push(format!("{name}: want an existing and inactive queue"));
        }
    }
    found
}

fn compare_node(path: &str, want: &Value, report: Option<NodeReport>, is_queue: bool) -> Vec<String> {
    let Some(report) = report else { return vec![format!("{path}: not found")] };
    let text = |(flavor, resource): &(Name, Name)| format!("{flavor}/{resource}");
    let quotas: BTreeMap<String, Value> = report
        .quotas
        .iter()
        .map(|(key, (nominal, borrowing, lending))| {
            let mut quota = json!({"nominal": amount(*nominal)});
            for (name, limit) in [("borrowingLimit", borrowing), ("lendingLimit", lending)] {
                if let Some(limit) = limit {
                    quota[name] = amount(*limit);
                }
            }
            (text(key), quota)
        })
        .collect();
    let amounts = |map: &BTreeMap<(Name, Name), Amount>| {
        let nonzero = map.iter().filter(|(_, it)| !it.is_zero());
        json!(nonzero.map(|(key, it)| (text(key), amount(*it))).collect::<BTreeMap<_, _>>())
    };
    let without_zeros = |value: &Value| {
        let entries = value.as_object().into_iter().flatten().filter(|(_, it)| **it != json!(0));
        json!(entries.map(|(key, it)| (key.clone(), it.clone())).collect::<BTreeMap<_, _>>())
    };
    let mut found = differences(&format!("{path}.quotas"), &normal(&want["quotas"]), &normal(&json!(quotas)));
    found.extend(differences(
        &format!("{path}.subtreeQuota"),
        &without_zeros(&want["subtreeQuota"]),
        &amounts(&report.subtree),
    ));
    found.extend(differences(&format!("{path}.usage"), &without_zeros(&want["usage"]), &amounts(&report.usage)));
    let parent = report.parent.as_deref().unwrap_or_default();
    found.extend(differences(
        &format!("{path}.parent"),
        &json!(want["parent"].as_str().unwrap_or_default()),
        &json!(parent),
    ));
    if is_queue {
        let got: Vec<String> = report.workloads.iter().map(ToString::to_string).collect();
        let wanted: Vec<&str> = want["workloads"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        found.extend(differences(&format!("{path}.workloads"), &json!(wanted), &json!(got)));
    }
    found
}

/// Usage per flavor, as in a queue's status.
fn usage_of_flavors(list: &[(Name, BTreeMap<Name, FlavorUsage>)], borrowed: bool) -> Value {
    let list = list.iter().map(|(flavor, resources)| {
        let resources = resources.iter().map(|(resource, usage)| {
            let mut entry =
                json!({"name": &**resource, "total": translate::amounts::to_quantity(resource, usage.total).0});
            if borrowed {
                entry["borrowed"] = json!(translate::amounts::to_quantity(resource, usage.borrowed).0);
            }
            entry
        });
        json!({"name": &**flavor, "resources": resources.collect::<Vec<_>>()})
    });
    json!(list.collect::<Vec<_>>())
}

/// Compares the usage in a ClusterQueue's status.
pub fn cluster_queue_usage(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let queue: api::ClusterQueue = object(input, "clusterQueue")?;
    world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
    let status = world.engine.cluster_queue_status(&queue.name_any()).ok_or("the queue does not exist")?;
    let got = json!({
        "admittedWorkloads": status.admitted,
        "reservingWorkloads": status.reserving,
        "reservedResources": usage_of_flavors(&status.flavors_reservation, true),
        "usedResources": usage_of_flavors(&status.flavors_usage, true),
    });
    let mut want = case.want.whole().clone();
    for key in ["admittedWorkloads", "reservingWorkloads"] {
        if want.get(key).is_none() {
            want[key] = json!(0);
        }
    }
    verdict(differences("", &want, &got))
}

/// Compares the usage in a LocalQueue's status.
pub fn local_queue_usage(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    if let Ok(queue) = object::<api::ClusterQueue>(input, "cq")
        && queue.metadata.name.is_some()
    {
        world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
    }
    let local: api::LocalQueue = object(input, "localQueue")?;
    world.apply(Event::LocalQueueUpserted(translate::local_queue(&local)));
    for workload in objects::<api::Workload>(input, "wls")? {
        world.upsert(workload);
    }
    let namespace = local.metadata.namespace.clone().unwrap_or_default();
    let status = world.engine.local_queue_status(&namespace, &local.name_any());
    let got = status.map_or(json!([]), |status| usage_of_flavors(&status.flavors_reservation, false));
    let want = case.want.get("usage").cloned().unwrap_or(json!([]));
    let null_as_empty = if want.is_null() { json!([]) } else { want };
    verdict(differences("usage", &null_as_empty, &got))
}
