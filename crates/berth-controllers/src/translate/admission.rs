//! Admissions between the engine's model and the API, with the compact encoding of topology assignments
//! (queueing-engine §8.15, §14.10).

use berth_api::kueue::v1beta2 as api;
use berth_engine::Name;
use berth_engine::model::{Admission, PodSetAssignment, TopologyAssignment, TopologyDomain};

use super::amounts::{from_resource_list, to_resource_list};
use super::placement::name;

/// An admission as the API writes it.
pub fn to_api(admission: &Admission) -> api::Admission {
    let pod_set = |set: &PodSetAssignment| api::PodSetAssignment {
        name: set.name.to_string(),
        flavors: set.flavors.iter().map(|(resource, flavor)| (resource.to_string(), flavor.to_string())).collect(),
        resource_usage: to_resource_list(&set.usage),
        count: set.count,
        topology_assignment: set.topology.as_ref().map(encode),
        delayed_topology_request: set.delayed_topology_pending.map(|pending| {
            if pending { api::DelayedTopologyRequestState::Pending } else { api::DelayedTopologyRequestState::Ready }
        }),
    };
    api::Admission {
        cluster_queue: admission.cluster_queue.to_string(),
        pod_set_assignments: admission.pod_sets.iter().map(pod_set).collect(),
    }
}

/// An admission as the engine reads it.
pub fn from_api(admission: &api::Admission) -> Admission {
    let pod_set = |set: &api::PodSetAssignment| PodSetAssignment {
        name: name(&set.name),
        flavors: set.flavors.iter().map(|(resource, flavor)| (name(resource), name(flavor))).collect(),
        usage: from_resource_list(&set.resource_usage),
        count: set.count,
        topology: set.topology_assignment.as_ref().map(decode),
        delayed_topology_pending: set
            .delayed_topology_request
            .as_ref()
            .map(|state| *state == api::DelayedTopologyRequestState::Pending),
    };
    Admission {
        cluster_queue: name(&admission.cluster_queue),
        pod_sets: admission.pod_set_assignments.iter().map(pod_set).collect(),
    }
}

/// Domains one by one.
pub fn decode(assignment: &api::TopologyAssignment) -> TopologyAssignment {
    let mut domains = Vec::new();
    for slice in &assignment.slices {
        for at in 0..usize::try_from(slice.domain_count).unwrap_or(0) {
            let value = |level: &api::TopologyAssignmentSliceLevelValues| match (&level.universal, &level.individual) {
                (Some(value), _) => name(value),
                (None, Some(it)) => {
                    let root = it.roots.get(at).map(String::as_str).unwrap_or_default();
                    let (prefix, suffix) = (it.prefix.as_deref().unwrap_or(""), it.suffix.as_deref().unwrap_or(""));
                    Name::from(format!("{prefix}{root}{suffix}"))
                }
                (None, None) => name(""),
            };
            let count = slice.pod_counts.universal.or_else(|| slice.pod_counts.individual.get(at).copied());
            domains.push(TopologyDomain {
                values: slice.values_per_level.iter().map(value).collect(),
                count: count.unwrap_or(0),
            });
        }
    }
    TopologyAssignment { levels: assignment.levels.iter().map(|level| name(level)).collect(), domains }
}

/// Domains in one slice: what they share is written once.
pub fn encode(assignment: &TopologyAssignment) -> api::TopologyAssignment {
    let levels: Vec<String> = assignment.levels.iter().map(Name::to_string).collect();
    if assignment.domains.is_empty() {
        return api::TopologyAssignment { levels, slices: Vec::new() };
    }
    let counts: Vec<i32> = assignment.domains.iter().map(|domain| domain.count).collect();
    let values_per_level = (0..levels.len()).map(|level| {
        let values: Vec<&str> = assignment.domains.iter().map(|it| it.values.get(level).map_or("", |v| &**v)).collect();
        level_values(&values)
    });
    let slice = api::TopologyAssignmentSlice {
        domain_count: i32::try_from(counts.len()).unwrap_or(i32::MAX),
        values_per_level: values_per_level.collect(),
        pod_counts: if counts.iter().all(|count| *count == counts[0]) {
            api::TopologyAssignmentSlicePodCounts { universal: Some(counts[0]), individual: Vec::new() }
        } else {
            api::TopologyAssignmentSlicePodCounts { universal: None, individual: counts }
        },
    };
    api::TopologyAssignment { levels, slices: vec![slice] }
}

fn level_values(values: &[&str]) -> api::TopologyAssignmentSliceLevelValues {
    let first = values.first().copied().unwrap_or("");
    if values.iter().all(|value| *value == first) {
        return api::TopologyAssignmentSliceLevelValues { universal: Some(first.to_owned()), individual: None };
    }
    let prefix = values.iter().fold(first, |prefix, value| &prefix[..common_prefix(prefix, value)]);
    let rests: Vec<&str> = values.iter().map(|value| &value[prefix.len()..]).collect();
    let suffix = rests.iter().fold(rests[0], |suffix, value| &suffix[suffix.len() - common_suffix(suffix, value)..]);
    let text = |part: &str| (!part.is_empty()).then(|| part.to_owned());
    api::TopologyAssignmentSliceLevelValues {
        universal: None,
        individual: Some(api::TopologyAssignmentSliceLevelIndividualValues {
            prefix: text(prefix),
            suffix: text(suffix),
            roots: rests.iter().map(|rest| rest[..rest.len() - suffix.len()].to_owned()).collect(),
        }),
    }
}

/// Bytes both texts begin with, ending between characters.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

fn common_suffix(a: &str, b: &str) -> usize {
    a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        let assignment = TopologyAssignment {
            levels: vec![name("block"), name("host")],
            domains: [("b1", "node-1-x", 4), ("b1", "node-22-x", 2), ("b1", "node-3-x", 2)]
                .into_iter()
                .map(|(block, host, count)| TopologyDomain { values: vec![name(block), name(host)], count })
                .collect(),
        };
        let encoded = encode(&assignment);
        assert_eq!(encoded.slices[0].values_per_level[0].universal.as_deref(), Some("b1"));
        assert_eq!(encoded.slices[0].values_per_level[1].individual.as_ref().unwrap().roots, ["1", "22", "3"]);
        assert_eq!(decode(&encoded), assignment);
    }
}
