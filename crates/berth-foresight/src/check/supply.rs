//! Quota and nodes: does the hardware exist that the quota promises?

use std::collections::{BTreeMap, BTreeSet};

use berth_controllers::devices::is_extended;
use berth_engine::Name;
use berth_engine::model::{ResourceFlavor, Taint, TaintEffect};

use super::facts::{Facts, Place, shown};
use super::{Findings, Severity, text};
use crate::objects::{Machines, ObjectRef, Source};

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    if facts.machines.is_empty() {
        if !facts.flavors.is_empty() {
            let missing = "supply, taints and topology levels: the set has no Node, NodePool or ClusterConfiguration";
            findings.unchecked.push(missing.to_owned());
        }
        return;
    }
    for flavor in facts.flavors.values() {
        let machines = facts.machines_of(flavor);
        if machines.is_empty() {
            without_nodes(facts, flavor, findings);
        } else {
            taints(facts, flavor, &machines, findings);
            levels(facts, flavor, &machines, findings);
        }
    }
    above_supply(facts, findings);
}

fn source<'a>(facts: &Facts<'a>, flavor: &str) -> Option<&'a Source> {
    facts.objects.flavors.get(flavor)?.source.as_ref()
}

fn without_nodes(facts: &Facts<'_>, flavor: &ResourceFlavor, findings: &mut Findings) {
    // Node auto-provisioning makes pools for pods, with the labels that the pods select.
    if facts.objects.has_auto_provisioning {
        return;
    }
    let labels: Vec<String> = flavor.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let message = format!("no node and no pool has the labels {}", labels.join(", "));
    let help = "correct spec.nodeLabels, or add a pool; if a cloud creates these nodes on demand, ignore this finding \
                (--ignore flavor-without-nodes)";
    let object = ObjectRef::cluster("ResourceFlavor", &flavor.name);
    findings.add("flavor-without-nodes", object, source(facts, &flavor.name), text("spec.nodeLabels", message, help));
}

/// Taints of the flavor's machines that it does not know.
fn taints(facts: &Facts<'_>, flavor: &ResourceFlavor, machines: &[&Machines], findings: &mut Findings) {
    let is_known = |taint: &Taint| {
        flavor.node_taints.contains(taint) || flavor.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    };
    let mut tainted: BTreeMap<&Taint, Vec<&str>> = BTreeMap::new();
    for machines in machines {
        for taint in machines.taints.iter().filter(|taint| !is_known(taint)) {
            tainted.entry(taint).or_default().push(&machines.title);
        }
    }
    for (taint, titles) in tainted {
        let is_free = titles.len() < machines.len();
        // A flavor without labels stands for all nodes, of which the others suffice.
        if is_free && flavor.node_labels.is_empty() {
            continue;
        }
        let same_key = flavor.node_taints.iter().find(|known| known.key == taint.key && known.effect == taint.effect);
        // Pods that request the device of this name get a toleration.
        let of_devices = facts.adds_tolerations && taint.effect == TaintEffect::NoSchedule && is_extended(&taint.key);
        let is_note = is_free || same_key.is_some() || of_devices;
        let severity = if is_note { Severity::Note } else { Severity::Warning };
        let shown = format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str());
        let declared =
            same_key.map_or(String::new(), |known| format!("; the flavor declares the value {:?}", known.value));
        let requests = if of_devices { format!(", and without a request for {},", taint.key) } else { String::new() };
        let message = format!(
            "{} {} the taint {shown}, which the flavor neither declares nor tolerates{declared}: jobs without a \
             toleration{requests} are admitted, and their pods wait",
            few(&titles),
            if titles.len() == 1 { "has" } else { "have" }
        );
        let help = format!("add the taint to spec.nodeTaints, or a toleration of {} to spec.tolerations", taint.key);
        let object = ObjectRef::cluster("ResourceFlavor", &flavor.name);
        let source = source(facts, &flavor.name);
        let field = if same_key.is_some() { "spec.nodeTaints" } else { "spec.tolerations" };
        findings.add_as(severity, "node-taint-undeclared", object, source, text(field, message, help));
    }
}

/// The first names of a list.
fn few(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

fn levels(facts: &Facts<'_>, flavor: &ResourceFlavor, machines: &[&Machines], findings: &mut Findings) {
    let Some(topology) = flavor.topology.as_ref().and_then(|name| facts.objects.topologies.get(&**name)) else {
        return;
    };
    for (number, level) in topology.object.spec.levels.iter().enumerate() {
        let key = Name::from(level.node_label.as_str());
        if machines.iter().any(|it| it.labels.iter().any(|labels| labels.contains_key(&key))) {
            continue;
        }
        let name = flavor.topology.as_deref().unwrap_or_default();
        let message = format!("no node of ResourceFlavor {} has the label {key}, so no job can be placed", flavor.name);
        let help = "correct the label of the level, or label the nodes";
        let object = ObjectRef::cluster("Topology", name);
        let field = format!("spec.levels[{number}].nodeLabel");
        findings.add("topology-level-missing", object, topology.source.as_ref(), text(field, message, help));
    }
}

/// Nominal quota above the supply: of a flavor, or of several flavors of the same machines.
fn above_supply(facts: &Facts<'_>, findings: &mut Findings) {
    let quotas = facts.quotas();
    for group in groups(facts) {
        let resources: BTreeSet<&Name> =
            quotas.iter().filter(|place| group.contains(place.flavor)).map(|place| place.resource).collect();
        for resource in resources {
            if !is_measured(facts, resource, findings) {
                continue;
            }
            let mut is_reported = false;
            for flavor in &group {
                is_reported |= exceeds(facts, &quotas, &[flavor], resource, findings);
            }
            let flavors: Vec<&Name> = group.iter().collect();
            if !is_reported && flavors.len() > 1 {
                exceeds(facts, &quotas, &flavors, resource, findings);
            }
        }
    }
}

/// True if it is known how much of a resource machines have. It is not for counters and capacities
/// of devices, and for devices whose classes the set does not map.
fn is_measured(facts: &Facts<'_>, resource: &Name, findings: &mut Findings) -> bool {
    if facts.translator.devices().unmeasured().contains(&**resource) {
        return false;
    }
    let objects = facts.objects;
    let is_mapped = !objects.config.resources.device_class_mappings.is_empty();
    let has_devices = !objects.device_slices.is_empty()
        || !objects.device_classes.is_empty()
        || objects.node_pools.values().any(|pool| !pool.object.spec.devices.is_empty());
    let is_on_a_machine = facts.machines.iter().any(|machines| machines.allocatable.contains_key(resource));
    let is_known = is_on_a_machine || is_mapped || !has_devices;
    if !is_known {
        let missing = format!("the supply of {resource}: the set has no Configuration with deviceClassMappings");
        if !findings.unchecked.contains(&missing) {
            findings.unchecked.push(missing);
        }
    }
    is_known
}

/// Flavors that share machines, directly or through others.
fn groups(facts: &Facts<'_>) -> Vec<BTreeSet<Name>> {
    let mut groups: Vec<(BTreeSet<Name>, BTreeSet<&str>)> = Vec::new();
    for flavor in facts.flavors.values() {
        let titles: BTreeSet<&str> = facts.machines_of(flavor).into_iter().map(|it| it.title.as_str()).collect();
        if titles.is_empty() {
            continue;
        }
        let (mut names, mut all) = (BTreeSet::from([flavor.name.clone()]), titles);
        groups.retain(|(other, of_other)| {
            let is_apart = of_other.is_disjoint(&all);
            if !is_apart {
                names.extend(other.iter().cloned());
                all.extend(of_other);
            }
            is_apart
        });
        groups.push((names, all));
    }
    groups.into_iter().map(|(names, _)| names).collect()
}

/// Reports quota of flavors above the supply of their machines; true if it is above.
fn exceeds(
    facts: &Facts<'_>,
    quotas: &[Place<'_>],
    flavors: &[&Name],
    resource: &Name,
    findings: &mut Findings,
) -> bool {
    let places: Vec<&Place<'_>> =
        quotas.iter().filter(|place| place.resource == resource && flavors.contains(&place.flavor)).collect();
    let mut owners: BTreeMap<&ObjectRef, i64> = BTreeMap::new();
    for place in places.iter().filter(|place| !place.quota.nominal.is_unlimited() && !place.quota.nominal.is_zero()) {
        let sum = owners.entry(&place.owner).or_default();
        *sum = sum.saturating_add(place.quota.nominal.saturated());
    }
    let nominal = owners.values().fold(0_i64, |sum, amount| sum.saturating_add(*amount));
    let mut machines: Vec<&Machines> =
        flavors.iter().filter_map(|name| facts.flavors.get(*name)).flat_map(|it| facts.machines_of(it)).collect();
    machines.sort_by_key(|machines| &machines.title);
    machines.dedup();
    let supply = machines.iter().fold(0_i64, |sum, machines| sum.saturating_add(machines.supply(resource)));
    if nominal <= supply {
        return false;
    }
    // The system takes a part of every machine's CPUs and memory, so quota of whole machines is
    // a little above the supply.
    let is_small = matches!(&**resource, "cpu" | "memory") && nominal / 10 * 9 <= supply;
    let severity = if is_small { Severity::Note } else { Severity::Warning };
    let first = flavors.first().map_or("", |name| &***name);
    let title = match flavors {
        [one] => format!("ResourceFlavor {one}"),
        several => {
            let names: Vec<&str> = several.iter().map(|name| &***name).collect();
            format!("ResourceFlavors {}, which share machines,", names.join(", "))
        }
    };
    let of_queues: Vec<String> =
        owners.iter().map(|(owner, amount)| format!("{owner}: {}", shown(resource, *amount))).collect();
    let of_machines: Vec<String> = machines
        .iter()
        .filter(|it| it.supply(resource) > 0)
        .map(|it| {
            format!(
                "{}: at most {} with {} each",
                it.title,
                it.max,
                shown(resource, it.supply(resource) / it.max.max(1))
            )
        })
        .collect();
    let by = if of_machines.is_empty() { "no machine has the resource".to_owned() } else { listed(&of_machines) };
    let message = format!(
        "nominal quota of {resource} in {title} is {} and the supply at most {} ({by}); quota: {}",
        shown(resource, nominal),
        shown(resource, supply),
        listed(&of_queues)
    );
    let help = format!(
        "lower the nominalQuota by {} in total, or let the machines grow; jobs admitted beyond the supply hold quota \
         while their pods wait for nodes",
        shown(resource, nominal - supply)
    );
    let object = ObjectRef::cluster("ResourceFlavor", first);
    let field = places.first().map_or(String::new(), |place| format!("{} {}.nominalQuota", place.owner, place.field));
    findings.add_as(severity, "quota-above-supply", object, source(facts, first), text(field, message, help));
    true
}

fn listed(parts: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = parts.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    if parts.len() > SHOWN { format!("{shown}; and {} more", parts.len() - SHOWN) } else { shown }
}
