//! Suites of the flavor assigner, without a scheduling cycle.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate::{self, workload_key};
use berth_engine::lab::{self, AssignOptions, AssignmentReport, FlavorAmounts, SimulationTable};
use berth_engine::model::{FungibilityPreference, TopologyAssignment, TopologyDomain, WorkloadKey};
use berth_engine::{AssignmentMode, Event, Name, PreemptionMode};
use serde_json::{Value, json};

use super::super::fields::Lookup;
use super::super::{Case, Verdict};
use super::compare::{differences, normal, verdict};
use super::world::{World, object};

fn name(text: &str) -> Name {
    Name::from(text)
}

/// Amounts by flavor-resource, recorded with keys `flavor/resource`.
pub fn flavor_amounts(value: &Value) -> FlavorAmounts {
    let pair = |(key, amount): (&String, &Value)| {
        let (flavor, resource) = key.split_once('/')?;
        Some(((name(flavor), name(resource)), amount.as_i64()?))
    };
    value.as_object().into_iter().flatten().filter_map(pair).collect()
}

fn simulation(value: &Value) -> SimulationTable {
    let answer = |(key, answer): (&String, &Value)| {
        let (flavor, resource) = key.split_once('/')?;
        let mode = match answer["preemptionPossibility"].as_str()? {
            "NoCandidates" => PreemptionMode::NoPreemptionCandidates,
            "Reclaim" => PreemptionMode::Reclaim,
            _ => PreemptionMode::Preempt,
        };
        let level = u32::try_from(answer["borrowingAfterSimulation"].as_u64().unwrap_or(0)).unwrap_or(0);
        Some(((name(flavor), name(resource)), (mode, level)))
    };
    value.as_object().into_iter().flatten().filter_map(answer).collect()
}

fn add_usage(world: &mut World, input: &impl Lookup) {
    for (queue, amounts) in input.field("quotaUsage").as_object().into_iter().flatten() {
        world.engine.lab().add_usage(queue, &flavor_amounts(amounts));
    }
    for flavors in input.field("tasUsage").as_object().into_iter().flatten().map(|(_, flavors)| flavors) {
        for (flavor, list) in flavors.as_object().into_iter().flatten() {
            for usage in list.as_array().into_iter().flatten() {
                let values: Vec<Name> =
                    usage["values"].as_array().into_iter().flatten().filter_map(Value::as_str).map(name).collect();
                let per_pod = usage["singlePodRequests"].as_object().into_iter().flatten();
                let per_pod = per_pod.filter_map(|(key, it)| Some((name(key), it.as_i64()?))).collect();
                let count = i32::try_from(usage["count"].as_i64().unwrap_or(0)).unwrap_or(0);
                let assignment =
                    TopologyAssignment { levels: Vec::new(), domains: vec![TopologyDomain { values, count }] };
                world.engine.lab().add_places(&name(flavor), &assignment, &per_pod);
            }
        }
    }
}

/// Adds the workload, and the slice that it replaces, to the engine. Returns both keys; the second
/// is `None` if there is no slice.
fn add_workload(world: &mut World, input: &impl Lookup) -> Result<(WorkloadKey, Option<WorkloadKey>), String> {
    let workload: api::Workload = object(input, "workload")?;
    let key = workload_key(&workload);
    world.upsert(workload);
    let slice = input.field("replacedWorkloadSlice");
    if slice.is_null() {
        return Ok((key, None));
    }
    let mut old: api::Workload = object(slice, "workload").unwrap_or_default();
    if old.metadata.name.is_none() {
        old.metadata.name = Some("replaced-slice".to_owned());
    }
    let sets = slice["totalRequests"].as_array().into_iter().flatten().map(|set| {
        let usage = set["requests"].as_object().into_iter().flatten();
        api::PodSetAssignment {
            name: set["name"].as_str().unwrap_or_default().to_owned(),
            flavors: serde_json::from_value(set["flavors"].clone()).unwrap_or_default(),
            resource_usage: usage
                .map(|(key, it)| (key.clone(), translate::amounts::to_quantity(key, it.as_i64().unwrap_or(0))))
                .collect(),
            count: set["count"].as_i64().and_then(|count| i32::try_from(count).ok()),
            ..api::PodSetAssignment::default()
        }
    });
    let admission = api::Admission {
        cluster_queue: input.field("targetClusterQueue").as_str().unwrap_or_default().to_owned(),
        pod_set_assignments: sets.collect(),
    };
    let now = world.now;
    berth_controllers::workload::status::set_quota_reservation(&mut old, admission, now);
    let old_key = workload_key(&old);
    let model = world.translate(&old);
    world.apply(Event::WorkloadUpserted(Box::new(model)));
    // The usage of the case includes the slice's: do not count it twice.
    world.engine.lab().hide(&old_key);
    Ok((key, Some(old_key)))
}

fn mode(mode: AssignmentMode) -> &'static str {
    mode.as_str()
}

/// Compares the assignment with full pod counts.
pub fn assign(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    for flavor in input["deletedResourceFlavors"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        world.apply(Event::FlavorRemoved(name(flavor)));
    }
    add_usage(&mut world, input);
    let (key, replaced) = add_workload(&mut world, input)?;
    let options = AssignOptions { simulation: Some(simulation(&input["simulationResult"])), pinned: None, replaced };
    let queue = input["targetClusterQueue"].as_str().unwrap_or_default();
    let now = world.time();
    let report = world.engine.lab().assign(&key, queue, &options, now).ok_or("the queue does not exist")?;
    verdict(compare(&case.want, &report))
}

/// Nominates flavors, changes the usage, and assigns again with the nominated flavors. Compares
/// both assignments.
pub fn recompute(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    add_usage(&mut world, input);
    let (key, replaced) = add_workload(&mut world, input)?;
    let queue = input["targetClusterQueue"].as_str().unwrap_or_default();
    let now = world.time();
    let mut options =
        AssignOptions { simulation: Some(simulation(&input["simulationResult"])), pinned: None, replaced };
    let nominated = world.engine.lab().assign(&key, queue, &options, now).ok_or("the queue does not exist")?;
    let mut found = compare(&case.want["nominated"], &nominated);
    let second = &input["atRecompute"];
    add_usage(&mut world, second);
    let pins = second["nominationMapping"].as_object().into_iter().flatten().map(|(set, flavors)| {
        let flavors = flavors.as_object().into_iter().flatten();
        (name(set), flavors.map(|(key, it)| (name(key), name(it.as_str().unwrap_or_default()))).collect())
    });
    options.pinned = Some(pins.collect());
    options.simulation = Some(simulation(&second["simulationResult"]));
    let again = world.engine.lab().assign(&key, queue, &options, now).ok_or("the queue does not exist")?;
    found.extend(compare(&case.want["recomputed"], &again));
    verdict(found)
}

/// Compares the expectations that a case has of an assignment.
fn compare(want: &impl Lookup, report: &AssignmentReport) -> Vec<String> {
    let mut found = Vec::new();
    let first = report.pod_sets.first();
    if let Some(wanted) = want.find("representativeMode") {
        found.extend(differences("representativeMode", wanted, &json!(mode(report.mode))));
    }
    if let Some(wanted) = want.find("flavors") {
        let got: BTreeMap<&str, &str> =
            first.iter().flat_map(|set| &set.flavors).map(|(key, (flavor, ..))| (&**key, &**flavor)).collect();
        found.extend(differences("flavors", wanted, &json!(got)));
    }
    if let Some(wanted) = want.find("noFitReason") {
        let got = report.no_fit.map_or("", |reason| reason.as_str());
        found.extend(differences("noFitReason", wanted, &json!(got)));
    }
    if let Some(wanted) = want.find("flavorAttemptNoFitReasons") {
        let attempts = report.pod_sets.iter().flat_map(|set| &set.attempts);
        // Compare flavors that were attempted and that the case names.
        for attempt in attempts {
            if let Some(wanted) = wanted.get(&*attempt.flavor) {
                let got = attempt.no_fit.map_or("", |reason| reason.as_str());
                found.extend(differences(
                    &format!("flavorAttemptNoFitReasons.{}", attempt.flavor),
                    wanted,
                    &json!(got),
                ));
            }
        }
    }
    if let Some(wanted) = want.find("lastTriedFlavorIdx") {
        let got: BTreeMap<&str, i32> =
            first.iter().flat_map(|set| &set.flavors).map(|(key, (_, _, tried))| (&**key, *tried)).collect();
        found.extend(differences("lastTriedFlavorIdx", wanted, &json!(got)));
    }
    if let Some(wanted) = want.find("topologyAssigned") {
        let got = first.is_some_and(|set| set.topology.is_some());
        found.extend(differences("topologyAssigned", wanted, &json!(got)));
    }
    if let Some(wanted) = want.find("podSetErrors") {
        let got: BTreeMap<&str, &str> =
            report.pod_sets.iter().filter_map(|set| Some((&*set.name, set.error.as_deref()?))).collect();
        found.extend(differences("podSetErrors", &normal(wanted), &normal(&json!(got))));
    }
    if let Some(wanted) = want.find("podSetFlavors") {
        let got: BTreeMap<&str, BTreeMap<&str, &str>> = report
            .pod_sets
            .iter()
            .map(|set| (&*set.name, set.flavors.iter().map(|(key, it)| (&**key, &*it.0)).collect()))
            .collect();
        let flavor_of = |(resource, choice): (&String, &Value)| (resource.clone(), choice["flavor"].clone());
        let wanted: BTreeMap<String, Value> = wanted
            .as_object()
            .into_iter()
            .flatten()
            .map(|(set, flavors)| {
                (set.clone(), Value::Object(flavors.as_object().into_iter().flatten().map(flavor_of).collect()))
            })
            .collect();
        let got: BTreeMap<_, _> = got.into_iter().filter(|(set, _)| wanted.contains_key(*set)).collect();
        found.extend(differences("podSetFlavors", &normal(&json!(wanted)), &normal(&json!(got))));
    }
    if let Some(wanted) = want.find("assignment") {
        found.extend(compare_assignment(wanted, report));
    }
    found
}

fn compare_assignment(want: &Value, report: &AssignmentReport) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(differences("borrowing", &want["borrowing"], &json!(report.borrowing)));
    let got: BTreeMap<String, i64> =
        report.usage.iter().map(|((flavor, resource), it)| (format!("{flavor}/{resource}"), *it)).collect();
    if let Some(wanted) = want["usage"]["quota"].get("assigned") {
        found.extend(differences("usage", wanted, &json!(got)));
    }
    let null = Vec::new();
    let sets = want["podSets"].as_array().unwrap_or(&null);
    if sets.len() != report.pod_sets.len() {
        found.push(format!("podSets: want {}, got {}", sets.len(), report.pod_sets.len()));
        return found;
    }
    for (want, got) in sets.iter().zip(&report.pod_sets) {
        let path = format!("podSets[{}]", got.name);
        found.extend(differences(&format!("{path}.name"), &want["name"], &json!(&*got.name)));
        found.extend(differences(&format!("{path}.count"), &want["count"], &json!(got.count)));
        let flavors: BTreeMap<&str, Value> = got
            .flavors
            .iter()
            .map(|(key, (flavor, it, tried))| {
                (&**key, json!({"flavor": &**flavor, "mode": mode(*it), "triedFlavorIdx": tried}))
            })
            .collect();
        let wanted = want.get("flavors").cloned().filter(|it| !it.is_null()).unwrap_or(json!({}));
        found.extend(differences(&format!("{path}.flavors"), &wanted, &json!(flavors)));
        let requests = json!({"requests": translate::requests(&got.requests)});
        let wanted = json!({"requests": want["requests"]});
        found.extend(differences(&path, &normal(&wanted), &normal(&requests)));
        if let Some(error) = want["error"].as_str().filter(|text| !text.is_empty()) {
            found.extend(differences(&format!("{path}.error"), &json!(error), &json!(got.error)));
        } else {
            let reasons: BTreeSet<&str> = got.reasons.iter().map(String::as_str).collect();
            let wanted: BTreeSet<&str> =
                want["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            found.extend(differences(&format!("{path}.reasons"), &json!(wanted), &json!(reasons)));
        }
        if let Some(wanted) = want.get("topologyAssignment") {
            let domains = got.topology.iter().flat_map(|it| &it.domains).map(|domain| {
                json!({"values": domain.values.iter().map(|it| &**it).collect::<Vec<_>>(), "count": domain.count})
            });
            let levels: Vec<&str> = got.topology.iter().flat_map(|it| &it.levels).map(|it| &**it).collect();
            let got = json!({"levels": levels, "domains": domains.collect::<Vec<_>>()});
            found.extend(differences(&format!("{path}.topologyAssignment"), &normal(wanted), &normal(&got)));
        }
        if let Some(wanted) = want.get("flavorAssignmentAttempts").and_then(Value::as_array) {
            found.extend(compare_attempts(&path, wanted, &got.attempts));
        }
    }
    found
}

/// Compares attempts as upstream asserts them. If a flavor fits, every attempt of Berth must be
/// among the recorded ones, and flavors that lack a resource do not count. Otherwise every recorded
/// attempt must be among Berth's.
fn compare_attempts(path: &str, wanted: &[Value], attempts: &[berth_engine::FlavorAttempt]) -> Vec<String> {
    let form = |attempt: &berth_engine::FlavorAttempt| {
        let reasons: BTreeSet<String> = attempt.findings.iter().map(ToString::to_string).collect();
        json!({"flavor": &*attempt.flavor, "mode": mode(attempt.mode), "borrow": attempt.borrowing_level, "reasons": reasons})
    };
    let plain = |attempt: &Value| {
        let reasons: BTreeSet<&str> =
            attempt["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        json!({"flavor": attempt["flavor"], "mode": attempt["mode"], "borrow": attempt["borrow"], "reasons": reasons})
    };
    let got: Vec<Value> = attempts.iter().map(form).collect();
    let wanted: Vec<Value> = wanted.iter().map(plain).collect();
    let has_fit = attempts.iter().any(|it| it.mode == AssignmentMode::Fit);
    let (checked, allowed) = if has_fit { (&got, &wanted) } else { (&wanted, &got) };
    checked
        .iter()
        .filter(|it| !allowed.contains(it))
        .filter(|it| {
            !(has_fit
                && wanted.iter().any(|want| {
                    let only_missing = want["reasons"].as_array().is_some_and(|list| {
                        list.iter()
                            .all(|text| text.as_str().is_some_and(|text| text.contains("does not provide resource")))
                    });
                    want["flavor"] == it["flavor"] && want["mode"] == "NoFit" && only_missing
                }))
        })
        .map(|it| format!("{path}.flavorAssignmentAttempts: {it} not among {}", json!(allowed)))
        .collect()
}

/// Compares the usage of an assignment per flavor-resource, less the usage of a replaced slice.
pub fn total_requests(case: &Case) -> Verdict {
    let input = &case.input;
    let mut workload: api::Workload = object(&input["workloadInfo"], "workload")?;
    // Reduce the counts to those of the assignment, and collect the quota that its flavors need.
    let mut groups: BTreeMap<String, api::FlavorQuotas> = BTreeMap::new();
    for set in input["assignment"]["podSets"].as_array().into_iter().flatten() {
        let named = workload.spec.pod_sets.iter_mut().find(|it| set["name"] == *it.name);
        if let (Some(named), Some(count)) = (named, set["count"].as_i64()) {
            named.count = i32::try_from(count).unwrap_or(0);
        }
        for (resource, choice) in set["flavors"].as_object().into_iter().flatten() {
            let flavor = choice["flavor"].as_str().unwrap_or_default();
            let quotas = groups.entry(flavor.to_owned()).or_default();
            flavor.clone_into(&mut quotas.name);
            if !quotas.resources.iter().any(|it| it.name == *resource) {
                let quota = json!({"name": resource, "nominalQuota": "1P"});
                quotas.resources.push(serde_json::from_value(quota).map_err(|error| error.to_string())?);
            }
        }
    }
    // A queue with that quota.
    let mut world = World::new(case)?;
    let mut queue = api::ClusterQueue::default();
    queue.metadata.name = Some("cq".to_owned());
    for quotas in groups.into_values() {
        let flavor = berth_engine::model::ResourceFlavor { name: name(&quotas.name), ..Default::default() };
        world.apply(Event::FlavorUpserted(flavor));
        let covered_resources = quotas.resources.iter().map(|it| it.name.clone()).collect();
        queue.spec.resource_groups.push(api::ResourceGroup { covered_resources, flavors: vec![quotas] });
    }
    world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
    let mut slice = input["replacedWorkloadSlice"].clone();
    for set in slice["totalRequests"].as_array_mut().into_iter().flatten() {
        // The slice holds the flavors that its successor gets.
        let chosen = input["assignment"]["podSets"].as_array().into_iter().flatten();
        let chosen = chosen.filter(|it| it["name"] == set["name"]).filter_map(|it| it["flavors"].as_object()).flatten();
        set["flavors"] = chosen.map(|(resource, choice)| (resource.clone(), choice["flavor"].clone())).collect();
    }
    if let Some(metadata) = slice["workload"]["metadata"].as_object_mut() {
        metadata.insert("name".to_owned(), json!("replaced-slice"));
    }
    let facts = json!({"workload": workload, "replacedWorkloadSlice": slice, "targetClusterQueue": "cq"});
    let (key, replaced) = add_workload(&mut world, &facts)?;
    let now = world.time();
    let options = AssignOptions { replaced, ..AssignOptions::default() };
    let report = world.engine.lab().assign(&key, "cq", &options, now).ok_or("the queue does not exist")?;
    let got: BTreeMap<String, i64> =
        report.usage.iter().map(|((flavor, resource), it)| (format!("{flavor}/{resource}"), *it)).collect();
    verdict(differences("totalRequests", &case.want["totalRequests"], &json!(got)))
}

/// Compares which of two assignment modes the queue prefers.
pub fn preference(case: &Case) -> Verdict {
    let input = &case.input;
    let grade = |value: &Value| {
        let mode = match value["preemptionMode"].as_str() {
            Some("noPreemptionCandidates") => PreemptionMode::NoPreemptionCandidates,
            Some("preempt") => PreemptionMode::Preempt,
            Some("reclaim") => PreemptionMode::Reclaim,
            Some("fit") => PreemptionMode::Fit,
            _ => PreemptionMode::NoFit,
        };
        (mode, u32::try_from(value["borrowingLevel"].as_u64().unwrap_or(0)).unwrap_or(0))
    };
    let preference = match input["flavorFungibility"]["preference"].as_str() {
        Some("PreemptionOverBorrowing") => FungibilityPreference::PreemptionOverBorrowing,
        _ => FungibilityPreference::BorrowingOverPreemption,
    };
    let got = lab::is_preferred(grade(&input["a"]), grade(&input["b"]), preference);
    verdict(differences("aPreferredOverB", &case.want["aPreferredOverB"], &json!(got)))
}

/// Compares the search for reduced pod counts.
pub fn partial_admission(case: &Case) -> Verdict {
    let input = &case.input;
    let number = |value: &Value| value.as_i64().and_then(|it| i32::try_from(it).ok());
    let counts: Vec<(i32, Option<i32>)> = input["podSets"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|set| (number(&set["count"]).unwrap_or(0), number(&set["minCount"])))
        .collect();
    let limit = input["countLimit"].as_i64().unwrap_or(0);
    let found = lab::search_counts(&counts, |counts| counts.iter().map(|it| i64::from(*it)).sum::<i64>() <= limit);
    let count: i64 = found.iter().flatten().map(|it| i64::from(*it)).sum();
    let got = json!({"found": found.is_some(), "count": count});
    verdict(differences("", case.want.whole(), &got))
}
