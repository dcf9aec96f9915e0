//! Names of objects that do not exist.

use std::collections::BTreeSet;

use berth_engine::Name;

use super::facts::Facts;
use super::{Findings, text};
use crate::objects::ObjectRef;

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    flavors(facts, findings);
    topologies(facts, findings);
    cycles(facts, findings);
}

fn flavors(facts: &Facts<'_>, findings: &mut Findings) {
    let mut used: BTreeSet<&Name> = BTreeSet::new();
    let mut reported = BTreeSet::new();
    let quotas = facts.quotas();
    for place in &quotas {
        used.insert(place.flavor);
        if facts.flavors.contains_key(place.flavor) || !reported.insert((&place.owner, place.flavor)) {
            continue;
        }
        let effect = match place.owner.kind.as_str() {
            "ClusterQueue" => "the queue admits nothing until it does",
            _ => "its quota cannot be used until it does",
        };
        let message = format!("ResourceFlavor {} does not exist; {effect}", place.flavor);
        let field = place.field.rsplit_once(".resources").map_or(place.field.as_str(), |(flavor, _)| flavor);
        let help = "create the ResourceFlavor, or remove the flavor from the group";
        let source = facts.owner_source(&place.owner);
        findings.add("flavor-missing", place.owner.clone(), source, text(format!("{field}.name"), message, help));
    }
    for (name, flavor) in &facts.objects.flavors {
        if !used.contains(&Name::from(name.as_str())) {
            let object = ObjectRef::cluster("ResourceFlavor", name);
            let help = "give a ClusterQueue or Cohort quota of it, or delete it";
            let found = text("", "no ClusterQueue and no Cohort has quota of this flavor", help);
            findings.add("flavor-unused", object, flavor.source.as_ref(), found);
        }
    }
}

fn topologies(facts: &Facts<'_>, findings: &mut Findings) {
    for (name, flavor) in &facts.objects.flavors {
        let Some(topology) = flavor.object.spec.topology_name.as_deref().filter(|it| !it.is_empty()) else { continue };
        if facts.objects.topologies.contains_key(topology) {
            continue;
        }
        let message = format!("Topology {topology} does not exist; no job gets this flavor until it does");
        let object = ObjectRef::cluster("ResourceFlavor", name);
        let help = "create the Topology, or remove spec.topologyName";
        findings.add("topology-missing", object, flavor.source.as_ref(), text("spec.topologyName", message, help));
    }
}

/// Cohorts above each other.
fn cycles(facts: &Facts<'_>, findings: &mut Findings) {
    for cohort in facts.cohorts.values() {
        let (mut above, mut next) = (Vec::new(), cohort.parent.clone());
        while let Some(name) = next.filter(|name| !above.contains(name)) {
            next = facts.cohorts.get(&name).and_then(|cohort| cohort.parent.clone());
            above.push(name);
        }
        if !above.contains(&cohort.name) {
            continue;
        }
        let path: Vec<&str> = above.iter().map(|name| &**name).collect();
        let message = format!("the cohort is above itself ({}); its queues admit nothing", path.join(" -> "));
        let help = "remove spec.parentName from one of the cohorts";
        let object = ObjectRef::cluster("Cohort", &cohort.name);
        let source = facts.objects.cohorts.get(&*cohort.name).and_then(|it| it.source.as_ref());
        findings.add("cohort-cycle", object, source, text("spec.parentName", message, help));
    }
}
