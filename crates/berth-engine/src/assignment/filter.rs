//! Decides whether a pod set can use a flavor at all, regardless of quota (§8.4).

use super::{AssignmentRequest, RequestedPodSet};
use crate::decision::Finding;
use crate::ids::{FlavorId, Name, ResourceId};
use crate::model::{Labels, NodeAffinity, PodTemplate, Requirement, ResourceFlavor, Taint, TaintEffect, Toleration};
use crate::world::World;
use crate::world::queue::Group;

/// Why a flavor is skipped.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The workload may not use the flavor; not counted as an attempt.
    Skipped(Finding),
    /// The flavor cannot serve the pods.
    Unsuitable(Finding),
}

/// The first reason why a flavor cannot serve the pod sets of a group, if there is one.
pub(crate) fn reject(
    world: &World,
    ask: &AssignmentRequest,
    group: &Group,
    sets: &[RequestedPodSet],
    flavor: FlavorId,
    resource: ResourceId,
) -> Option<Rejection> {
    let name = world.flavor_name(flavor);
    if let Some(pins) = &ask.pinned {
        let pinned = sets.iter().all(|set| {
            pins.get(&set.info.name).is_none_or(|pins| {
                pins.iter()
                    .filter(|(resource, _)| group.resources.contains(resource))
                    .all(|(_, pinned)| *pinned == flavor)
            })
        });
        if !pinned {
            let resource = world.resource_name(resource).clone();
            return Some(Rejection::Skipped(Finding::NotNominated { flavor: name.clone(), resource }));
        }
    }
    if world.config.gates.concurrent_admission
        && let Some(variant) = &world.record(ask.workload).facts.variant
        && !variant.allowed_flavors.is_empty()
        && !variant.allowed_flavors.contains(name)
    {
        return Some(Rejection::Skipped(Finding::NotOfVariant { flavor: name.clone() }));
    }
    let Some(object) = world.flavor(flavor) else {
        return Some(Rejection::Unsuitable(Finding::FlavorNotFound { flavor: name.clone() }));
    };
    if let Some(text) = &object.cool_down {
        return Some(Rejection::Unsuitable(Finding::CoolingDown { flavor: name.clone(), text: text.clone() }));
    }
    for set in sets {
        if world.config.gates.topology_aware_scheduling
            && let Some(problem) = crate::topology::request::flavor_mismatch(world, ask.queue, group, set, object)
        {
            return Some(Rejection::Unsuitable(Finding::TopologyRequest(problem)));
        }
        if let Some(taint) = untolerated(&object.node_taints, &[&set.info.template.tolerations, &object.tolerations]) {
            return Some(Rejection::Unsuitable(Finding::UntoleratedTaint {
                taint: taint.clone(),
                flavor: name.clone(),
            }));
        }
        if !matches_flavor(&set.info.template, object) {
            return Some(Rejection::Unsuitable(Finding::AffinityMismatch { flavor: name.clone() }));
        }
    }
    None
}

/// The first taint that no toleration covers. Taints with effect PreferNoSchedule are ignored.
pub(crate) fn untolerated<'a>(taints: &'a [Taint], tolerations: &[&[Toleration]]) -> Option<&'a Taint> {
    taints.iter().find(|taint| {
        taint.effect != TaintEffect::PreferNoSchedule
            && !tolerations.iter().flat_map(|list| list.iter()).any(|toleration| toleration.tolerates(taint))
    })
}

/// True if the flavor's labels match the node selector and required affinity. Only label keys that
/// the flavor defines are compared.
fn matches_flavor(template: &PodTemplate, flavor: &ResourceFlavor) -> bool {
    let labels = &flavor.node_labels;
    let selected = template
        .node_selector
        .iter()
        .filter(|(key, _)| labels.contains_key(*key))
        .all(|(key, value)| labels.get(key) == Some(value));
    selected && matches_affinity(&template.affinity, labels)
}

fn matches_affinity(affinity: &NodeAffinity, labels: &Labels) -> bool {
    let Some(terms) = &affinity.required else { return true };
    let known = |requirement: &&Requirement| labels.contains_key(&requirement.key);
    // A term without any relevant expression does not exclude a flavor, because some node of the
    // flavor may match.
    if terms.iter().any(|term| !term.expressions.iter().any(|requirement| labels.contains_key(&requirement.key))) {
        return true;
    }
    terms.iter().any(|term| term.expressions.iter().filter(known).all(|requirement| requirement.matches(labels)))
}

/// Labels with others added. Used for node selectors from two sources.
pub(crate) fn merged(base: &Labels, extra: Option<&Labels>) -> Labels {
    let mut labels = base.clone();
    labels.extend(extra.into_iter().flatten().map(|(key, value): (&Name, &Name)| (key.clone(), value.clone())));
    labels
}
