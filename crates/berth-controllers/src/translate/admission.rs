//! Converts admissions between the engine's model and the API, including the compact encoding of
//! topology assignments (semantics §8.15, §14.10).

use std::collections::HashMap;

use berth_api::kueue::v1beta2 as api;
use berth_engine::Name;
use berth_engine::model::{Admission, PodSetAssignment, TopologyAssignment, TopologyDomain};

use super::amounts::{from_resource_list, to_resource_list};
use super::placement::name;

/// Maximum number of slices in an assignment.
const SLICES_MAX: usize = 1000;
/// Maximum number of domains in a slice.
const DOMAINS_MAX: usize = 100_000;
/// The level whose values are host names.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// An admission in the API's form; `by_prefix` as for [`encode`].
pub fn to_api(admission: &Admission, by_prefix: bool) -> api::Admission {
    let pod_set = |set: &PodSetAssignment| api::PodSetAssignment {
        name: set.name.to_string(),
        flavors: set.flavors.iter().map(|(resource, flavor)| (resource.to_string(), flavor.to_string())).collect(),
        resource_usage: to_resource_list(&set.usage),
        count: set.count,
        topology_assignment: set.topology.as_ref().map(|topology| encode(topology, by_prefix)),
        delayed_topology_request: set.delayed_topology_pending.map(|pending| {
            if pending { api::DelayedTopologyRequestState::Pending } else { api::DelayedTopologyRequestState::Ready }
        }),
    };
    api::Admission {
        cluster_queue: admission.cluster_queue.to_string(),
        pod_set_assignments: admission.pod_sets.iter().map(pod_set).collect(),
    }
}

/// An admission in the engine's form.
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

/// Expands an assignment into single domains.
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

/// Encodes domains in slices, in which shared parts of values are written once. `by_prefix`
/// (`TASAssignmentsEncodingByHostnamePrefix`): hosts with a common prefix get their own slice if
/// that is shorter.
pub fn encode(assignment: &TopologyAssignment, by_prefix: bool) -> api::TopologyAssignment {
    let levels: Vec<String> = assignment.levels.iter().map(Name::to_string).collect();
    let as_slices = |runs: &[&[TopologyDomain]]| {
        let chunks = runs.iter().flat_map(|run| run.chunks(DOMAINS_MAX));
        let slices = chunks.map(|chunk| slice(levels.len(), chunk)).collect();
        api::TopologyAssignment { levels: levels.clone(), slices }
    };
    let whole = as_slices(&[&assignment.domains]);
    let of_hosts = levels.last().is_some_and(|level| level == HOSTNAME);
    if !by_prefix || !of_hosts || assignment.domains.len() < 2 {
        return whole;
    }
    let parted = as_slices(&runs_by_prefix(&assignment.domains));
    let length = |it: &api::TopologyAssignment| serde_json::to_string(it).map_or(usize::MAX, |text| text.len());
    if parted.slices.len() > 1 && length(&parted) <= length(&whole) { parted } else { whole }
}

fn slice(levels: usize, domains: &[TopologyDomain]) -> api::TopologyAssignmentSlice {
    let counts: Vec<i32> = domains.iter().map(|domain| domain.count).collect();
    let values_per_level = (0..levels).map(|level| {
        let values: Vec<&str> = domains.iter().map(|it| it.values.get(level).map_or("", |v| &**v)).collect();
        level_values(&values)
    });
    api::TopologyAssignmentSlice {
        domain_count: i32::try_from(counts.len()).unwrap_or(i32::MAX),
        values_per_level: values_per_level.collect(),
        pod_counts: if counts.iter().all(|count| *count == counts[0]) {
            api::TopologyAssignmentSlicePodCounts { universal: Some(counts[0]), individual: Vec::new() }
        } else {
            api::TopologyAssignmentSlicePodCounts { universal: None, individual: counts }
        },
    }
}

/// Splits domains into runs of neighbours. All hosts of a run have one prefix, the longest prefix
/// up to a dash that each shares with another host. If that gives too many slices, shorter prefixes
/// are used.
fn runs_by_prefix(domains: &[TopologyDomain]) -> Vec<&[TopologyDomain]> {
    let host = |domain: &TopologyDomain| domain.values.last().cloned().unwrap_or_else(|| name(""));
    let hosts: Vec<Name> = domains.iter().map(host).collect();
    let prefixes = |host: &'_ str| -> Vec<usize> { host.match_indices('-').map(|(at, _)| at + 1).collect() };
    let mut hosts_with: HashMap<&str, usize> = HashMap::new();
    for host in &hosts {
        for end in prefixes(host) {
            *hosts_with.entry(&host[..end]).or_default() += 1;
        }
    }
    let shared: Vec<Vec<usize>> = hosts
        .iter()
        .map(|host| {
            prefixes(host).into_iter().filter(|end| *end < host.len() && hosts_with[&host[..*end]] > 1).collect()
        })
        .collect();
    for dashes in (1..=shared.iter().map(Vec::len).max().unwrap_or(0)).rev() {
        let prefix = |at: usize| -> &str {
            let ends = &shared[at];
            ends.get(..dashes.min(ends.len())).and_then(<[usize]>::last).map_or("", |end| &hosts[at][..*end])
        };
        let starts: Vec<usize> =
            (0..domains.len()).filter(|at| *at == 0 || prefix(*at) != prefix(*at - 1)).chain([domains.len()]).collect();
        if starts.len() <= SLICES_MAX {
            return starts.windows(2).map(|pair| &domains[pair[0]..pair[1]]).collect();
        }
    }
    vec![domains]
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

/// Number of leading bytes that both strings share, up to a character boundary.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

fn common_suffix(a: &str, b: &str) -> usize {
    a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &[(&str, i32)]) -> TopologyAssignment {
        let domain = |(host, count): &(&str, i32)| TopologyDomain { values: vec![name(host)], count: *count };
        TopologyAssignment { levels: vec![name(HOSTNAME)], domains: list.iter().map(domain).collect() }
    }

    #[test]
    fn encoding_and_decoding_gives_the_same_assignment() {
        let assignment = TopologyAssignment {
            levels: vec![name("block"), name("host")],
            domains: [("b1", "node-1-x", 4), ("b1", "node-22-x", 2), ("b1", "node-3-x", 2)]
                .into_iter()
                .map(|(block, host, count)| TopologyDomain { values: vec![name(block), name(host)], count })
                .collect(),
        };
        let encoded = encode(&assignment, true);
        assert_eq!(encoded.slices.len(), 1);
        assert_eq!(encoded.slices[0].values_per_level[0].universal.as_deref(), Some("b1"));
        assert_eq!(encoded.slices[0].values_per_level[1].individual.as_ref().unwrap().roots, ["1", "22", "3"]);
        assert_eq!(decode(&encoded), assignment);
        // The end of one value overlaps with the start of another value.
        for assignment in
            [hosts(&[("ababa", 1), ("aba", 1)]), hosts(&[("-", 1), ("--", 2)]), hosts(&[]), hosts(&[("a", 3)])]
        {
            for by_prefix in [true, false] {
                assert_eq!(decode(&encode(&assignment, by_prefix)), assignment);
            }
        }
    }

    #[test]
    fn hosts_with_a_common_prefix_get_their_own_slice_if_that_is_shorter() {
        let pool = |pool: &str, hosts: usize| -> Vec<(String, i32)> {
            (0..hosts).map(|at| (format!("cluster-pool-of-machines-{pool}-{at:03}"), 8)).collect()
        };
        let all: Vec<(String, i32)> = pool("east", 20).into_iter().chain(pool("west", 20)).collect();
        let all: Vec<(&str, i32)> = all.iter().map(|(host, count)| (host.as_str(), *count)).collect();
        let assignment = hosts(&all);
        let parted = encode(&assignment, true);
        let prefixes: Vec<Option<&str>> = parted
            .slices
            .iter()
            .map(|slice| slice.values_per_level[0].individual.as_ref().and_then(|it| it.prefix.as_deref()))
            .collect();
        assert_eq!(prefixes, [Some("cluster-pool-of-machines-east-0"), Some("cluster-pool-of-machines-west-0")]);
        assert_eq!(decode(&parted), assignment);
        assert_eq!(encode(&assignment, false).slices.len(), 1);
        // Two slices would be longer for two hosts.
        assert_eq!(encode(&hosts(&[("a-b-1", 1), ("a-c-1", 1)]), true).slices.len(), 1);
    }

    #[test]
    fn the_number_of_slices_is_limited() {
        let all: Vec<(String, i32)> =
            (0..6000).map(|at| (format!("zone-{}-of-{:04}-x-{at:04}", at / 3000, at / 2), 1)).collect();
        let all: Vec<(&str, i32)> = all.iter().map(|(host, count)| (host.as_str(), *count)).collect();
        let assignment = hosts(&all);
        let runs = runs_by_prefix(&assignment.domains);
        assert_eq!(runs.iter().map(|run| run.len()).collect::<Vec<_>>(), [3000, 3000]);
        assert_eq!(decode(&encode(&assignment, true)), assignment);
    }
}
