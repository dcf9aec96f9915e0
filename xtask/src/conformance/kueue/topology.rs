//! Topology placement suites.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::translate;
use berth_engine::model::{
    ClusterQueue, FlavorQuotas, LabelSelector, PodSet, PodTemplate, ResourceFlavor, ResourceGroup, ResourceList,
    Topology, TopologyAssignment, TopologyDomain, Workload, WorkloadKey,
};
use berth_engine::{Event, Name};
use k8s_openapi::api::core::v1::{Affinity, NodeAffinity, Toleration};
use serde_json::{Map, Value, json};

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

/// Placement of pod sets in one flavor.
pub fn assignment(case: &Case) -> Verdict {
    let input = &case.data["input"];
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
        for usage in input[key].as_array().into_iter().flatten() {
            let domain = TopologyDomain {
                values: strings(&usage["values"]),
                count: i32::try_from(usage["count"].as_i64().unwrap_or(0)).unwrap_or(0),
            };
            let places = TopologyAssignment { levels: Vec::new(), domains: vec![domain] };
            world.engine.lab().add_places(&name(flavor), &places, &amounts(&usage["singlePodRequests"]));
        }
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
    let mut wanted = case.data["want"]["podSets"].clone();
    // A pod set with neither an assignment nor a reason got nothing; one that was not looked at got nothing either.
    if let Some(sets) = wanted.as_object_mut() {
        sets.retain(|_, set| set.as_object().is_some_and(|set| !set.is_empty()));
    }
    verdict(differences("podSets", &wanted, &Value::Object(got)))
}

/// Placements of the slice an elastic workload replaces, per pod set.
fn earlier_slice(input: &Value) -> Result<BTreeMap<Name, TopologyAssignment>, String> {
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

/// The workload of a case: its pod sets as the requests say, its failed nodes as its object says.
fn workload(world: &World, input: &Value) -> Workload {
    let object: api::Workload = serde_json::from_value(input["workload"].clone()).unwrap_or_default();
    let mut model = world.translate(&object);
    if object.metadata.name.is_none() {
        model.key = WorkloadKey::new("ns", "wl");
    }
    let keeps = !model.unhealthy_nodes.is_empty();
    model.admission = model.admission.filter(|_| keeps);
    if keeps {
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
