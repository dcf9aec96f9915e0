//! Suites of topology placement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_engine::lab::GivenPodSet;
use berth_engine::model::{
    ClusterQueue, FlavorQuotas, LabelSelector, PodSet, PodTemplate, ResourceFlavor, ResourceGroup, ResourceList,
    Topology, TopologyAssignment, TopologyDomain, Workload, WorkloadKey,
};
use berth_engine::{Event, Name};
use k8s_openapi::api::core::v1::{Affinity, NodeAffinity, Toleration};
use serde_json::{Map, Value, json};

use super::super::fields::Fields;
use super::super::{Case, Verdict};
use super::compare::{differences, verdict};
use super::world::World;

fn name(text: &str) -> Name {
    Name::from(text)
}

fn amounts(value: &Value) -> ResourceList {
    value.as_object().into_iter().flatten().filter_map(|(key, it)| Some((name(key), it.as_i64()?))).collect()
}

fn strings(value: &Value) -> Vec<Name> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(name).collect()
}

/// Compares the placement of pod sets on one flavor.
pub fn assignment(case: &Case) -> Verdict {
    let input = &case.input;
    let mut world = World::new(case)?;
    let topology = input["topologyName"].as_str().unwrap_or("default");
    world.apply(Event::TopologyUpserted(Topology { name: name(topology), levels: strings(&input["levels"]) }));
    let labels: BTreeMap<String, String> =
        serde_json::from_value(input["flavorNodeLabels"].clone()).unwrap_or_default();
    for flavor in ["default", "other"] {
        world.apply(Event::FlavorUpserted(ResourceFlavor {
            name: name(flavor),
            node_labels: translate::labels(Some(&labels)),
            topology: Some(name(topology)),
            ..ResourceFlavor::default()
        }));
    }
    let mut queue = ClusterQueue::new("cq");
    queue.namespace_selector = Some(LabelSelector::default());
    queue.resource_groups = vec![ResourceGroup {
        resources: vec![name("pods")],
        flavors: vec![FlavorQuotas { flavor: name("default"), quotas: Vec::new() }],
    }];
    world.apply(Event::ClusterQueueUpserted(queue));
    for (key, flavor) in [("priorOwnUsage", "default"), ("priorFlavorUsage", "other")] {
        add_topology_usage(&mut world, flavor, &input[key]);
    }
    if let Some(usages) = input["aggregatedDomainUsages"].as_object().filter(|usages| !usages.is_empty()) {
        for (host, usage) in usages {
            world.engine.lab().set_node_usage(&name(host), amounts(usage));
        }
    }
    let model = workload(&world, input);
    let key = model.key.clone();
    world.apply(Event::WorkloadUpserted(Box::new(model)));
    let found = world.engine.lab().place(&key, "cq", &name("default"), &earlier_slice(input)?);
    let mut got = Map::new();
    for (set, result) in found {
        let entry = match result {
            Ok(topology) => json!({"topologyAssignment": encode(&topology)}),
            Err(reason) => json!({"failureReason": reason}),
        };
        got.insert(set.to_string(), entry);
    }
    let mut wanted = case.want["podSets"].clone();
    // A pod set without assignment and reason equals a pod set that is absent from the results.
    if let Some(sets) = wanted.as_object_mut() {
        sets.retain(|_, set| set.as_object().is_some_and(|set| !set.is_empty()));
    }
    verdict(differences("podSets", &wanted, &Value::Object(got)))
}

/// Adds usage to the domains of a flavor's topology.
pub fn add_topology_usage(world: &mut World, flavor: &str, usages: &Value) {
    for usage in usages.as_array().into_iter().flatten() {
        let domain = TopologyDomain {
            values: strings(&usage["values"]),
            count: i32::try_from(usage["count"].as_i64().unwrap_or(0)).unwrap_or(0),
        };
        let places = TopologyAssignment { levels: Vec::new(), domains: vec![domain] };
        world.engine.lab().add_places(&name(flavor), &places, &amounts(&usage["singlePodRequests"]));
    }
}

/// Compares the pod sets that need a topology placement under the given assignment.
pub fn requests(case: &Case) -> Verdict {
    let (mut world, key, sets) = world_with_assignment(case)?;
    let got = world.engine.lab().to_place(&key, "cq", &sets).ok_or("the workload does not exist")?;
    let want = &case.want;
    let mut found = Vec::new();
    if let Some(wanted) = want.get("podSetsWithTASRequest") {
        let names: Vec<&str> = got.pod_sets.iter().map(|name| &**name).collect();
        found.extend(differences("podSetsWithTASRequest", wanted, &json!(names)));
    }
    if let Some(wanted) = want.get("representativeMode") {
        found.extend(differences("representativeMode", wanted, &json!(got.mode.as_str())));
        found.extend(differences("error", &want["error"], &json!(got.error)));
    }
    verdict(found)
}

/// Compares the topology usage that an assignment adds to that of the previous admission.
pub fn usage(case: &Case) -> Verdict {
    let (mut world, key, sets) = world_with_assignment(case)?;
    let previous: Option<api::Admission> = serde_json::from_value(case.input["previousAdmission"].clone()).ok();
    let held: Vec<GivenPodSet> = previous
        .iter()
        .flat_map(|previous| translate::admission_from_api(previous).pod_sets)
        .map(|held| GivenPodSet {
            count: held.count.unwrap_or(0),
            // The cases do not record these flavors. A second pass never changes flavors, so they
            // are those of the assignment.
            flavors: sets.iter().find(|set| set.name == held.name).map(|set| set.flavors.clone()).unwrap_or_default(),
            name: held.name,
            topology: held.topology,
        })
        .collect();
    let net = world.engine.lab().net_places(&key, "cq", &sets, &held).ok_or("the workload does not exist")?;
    let mut got: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (flavor, values, per_pod, count) in net {
        let values: Vec<&str> = values.iter().map(|value| &**value).collect();
        let per_pod: BTreeMap<&str, i64> = per_pod.iter().map(|(name, amount)| (&**name, *amount)).collect();
        let entry = json!({"values": values, "singlePodRequests": per_pod, "count": count});
        got.entry(flavor.to_string()).or_default().push(entry);
    }
    let mut wanted = case.want["tasUsage"].clone();
    // A flavor without usage equals an absent flavor.
    if let Some(flavors) = wanted.as_object_mut() {
        flavors.retain(|_, list| list.as_array().is_none_or(|list| !list.is_empty()));
    }
    let wanted = if wanted.is_null() { json!({}) } else { wanted };
    verdict(differences("tasUsage", &wanted, &json!(got)))
}

/// Creates the flavors, the queue and the workload of an assignment. Returns the world, the
/// workload's key, and the assignment.
fn world_with_assignment(case: &Case) -> Result<(World, WorkloadKey, Vec<GivenPodSet>), String> {
    let input = &case.input;
    let mut world = World::new(case)?;
    let topology_flavors = strings(&input["tasFlavors"]);
    let mut sets = Vec::new();
    for set in input["assignment"]["podSets"].as_array().into_iter().flatten() {
        let flavors = set["flavors"].as_object().into_iter().flatten();
        let topology = &set["topologyAssignment"];
        sets.push(GivenPodSet {
            name: name(set["name"].as_str().unwrap_or_default()),
            count: i32::try_from(set["count"].as_i64().unwrap_or(0)).unwrap_or(0),
            flavors: flavors.map(|(key, it)| (name(key), name(it["flavor"].as_str().unwrap_or_default()))).collect(),
            topology: (!topology.is_null()).then(|| decode(topology)),
        });
    }
    world
        .apply(Event::TopologyUpserted(Topology { name: name("hosts"), levels: vec![name("kubernetes.io/hostname")] }));
    let used = sets.iter().flat_map(|set| set.flavors.values().cloned());
    let flavors: BTreeSet<Name> = topology_flavors.iter().cloned().chain(used).collect();
    for flavor in &flavors {
        world.apply(Event::FlavorUpserted(ResourceFlavor {
            name: flavor.clone(),
            topology: topology_flavors.contains(flavor).then(|| name("hosts")),
            ..ResourceFlavor::default()
        }));
    }
    let mut queue = ClusterQueue::new("cq");
    queue.namespace_selector = Some(LabelSelector::default());
    queue.resource_groups = vec![ResourceGroup {
        resources: vec![name("cpu")],
        flavors: flavors.into_iter().map(|flavor| FlavorQuotas { flavor, quotas: Vec::new() }).collect(),
    }];
    world.apply(Event::ClusterQueueUpserted(queue));
    let source = if input["workload"].is_null() { &input["workloadInfo"]["workload"] } else { &input["workload"] };
    let object: api::Workload = serde_json::from_value(source.clone()).map_err(|error| format!("workload: {error}"))?;
    let mut model = world.translate(&object);
    if object.metadata.name.is_none() {
        model.key = WorkloadKey::new("ns", "wl");
    }
    let key = model.key.clone();
    world.apply(Event::WorkloadUpserted(Box::new(model)));
    Ok((world, key, sets))
}

/// Reads a topology assignment that is recorded in Kueue's internal form.
fn decode(assignment: &Value) -> TopologyAssignment {
    let domains = assignment["domains"].as_array().into_iter().flatten().map(|domain| TopologyDomain {
        values: strings(&domain["values"]),
        count: i32::try_from(domain["count"].as_i64().unwrap_or(0)).unwrap_or(0),
    });
    TopologyAssignment { levels: strings(&assignment["levels"]), domains: domains.collect() }
}

/// Placements of the slice that an elastic workload replaces, per pod set.
fn earlier_slice(input: &Fields) -> Result<BTreeMap<Name, TopologyAssignment>, String> {
    let mut earlier = BTreeMap::new();
    for request in input["podSetRequests"].as_array().into_iter().flatten() {
        if let Some(previous) = request.get("previousAssignment") {
            let previous: api::TopologyAssignment =
                serde_json::from_value(previous.clone()).map_err(|error| format!("previousAssignment: {error}"))?;
            let set = request["podSetName"].as_str().unwrap_or_default();
            earlier.insert(name(set), translate::admission::decode(&previous));
        }
    }
    Ok(earlier)
}

fn encode(topology: &TopologyAssignment) -> Value {
    let domains = topology.domains.iter().map(
        |domain| json!({"count": domain.count, "values": domain.values.iter().map(|it| &**it).collect::<Vec<_>>()}),
    );
    json!({
        "levels": topology.levels.iter().map(|it| &**it).collect::<Vec<_>>(),
        "domains": domains.collect::<Vec<_>>(),
    })
}

/// The workload of a case. The pod sets come from the requests, the failed nodes from the object.
fn workload(world: &World, input: &Fields) -> Workload {
    let object: api::Workload = serde_json::from_value(input["workload"].clone()).unwrap_or_default();
    let mut model = world.translate(&object);
    if object.metadata.name.is_none() {
        model.key = WorkloadKey::new("ns", "wl");
    }
    let replaces_nodes = !model.unhealthy_nodes.is_empty();
    model.admission = model.admission.filter(|_| replaces_nodes);
    if replaces_nodes {
        let admission = object.status.as_ref().and_then(|status| status.admission.as_ref());
        model.admission = admission.map(translate::admission_from_api);
    }
    model.pod_sets = input["podSetRequests"].as_array().into_iter().flatten().map(pod_set).collect();
    model
}

fn pod_set(request: &Value) -> PodSet {
    let affinity: Option<NodeAffinity> = serde_json::from_value(request["nodeAffinity"].clone()).ok();
    let affinity = affinity.map(|node| Affinity { node_affinity: Some(node), ..Affinity::default() });
    let tolerations: Vec<Toleration> = serde_json::from_value(request["tolerations"].clone()).unwrap_or_default();
    let selector: BTreeMap<String, String> =
        serde_json::from_value(request["nodeSelector"].clone()).unwrap_or_default();
    let mut topology: api::PodSetTopologyRequest =
        serde_json::from_value(request["topologyRequest"].clone()).unwrap_or_default();
    topology.pod_set_group_name =
        request["podSetGroupName"].as_str().map(str::to_owned).or(topology.pod_set_group_name);
    PodSet {
        name: name(request["podSetName"].as_str().unwrap_or_default()),
        count: i32::try_from(request["count"].as_i64().unwrap_or(0)).unwrap_or(0),
        min_count: None,
        reclaimable: 0,
        requests: ResourceList::new(),
        template: Arc::new(PodTemplate {
            requests: amounts(&request["requests"]),
            node_selector: translate::labels(Some(&selector)),
            affinity: translate::placement::node_affinity(affinity.as_ref()),
            tolerations: translate::placement::tolerations(&tolerations),
            shape: 0,
        }),
        topology: Some(translate::workload::topology_request(&topology)),
    }
}
