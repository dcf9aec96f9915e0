//! Names of a JobSet's jobs, services and claims, and the position of a job in the set and its
//! group.

use berth_api::jobset::v1alpha2::{JobSet, ReplicatedJob};
use sha1::{Digest, Sha1};

/// `<set>-<replicated job>-<index>`.
pub fn job_name(set: &str, replicated_job: &str, index: i32) -> String {
    format!("{set}-{replicated_job}-{index}")
}

/// SHA-1 of `<namespace>/<job name>` in hex: a label value of fixed length that is unique in the
/// cluster.
pub fn job_key(namespace: &str, job_name: &str) -> String {
    hex::encode(Sha1::digest(format!("{namespace}/{job_name}")))
}

/// Name of the set's service and of its pods' subdomain.
pub fn subdomain(set: &JobSet) -> &str {
    match set.spec.network.as_ref().map(|network| network.subdomain.as_str()) {
        Some(subdomain) if !subdomain.is_empty() => subdomain,
        _ => set_name(set),
    }
}

/// DNS name of the coordinator, if the set has one.
pub fn coordinator_address(set: &JobSet) -> Option<String> {
    let coordinator = set.spec.coordinator.as_ref()?;
    Some(format!(
        "{}-{}-{}-{}.{}",
        set_name(set),
        coordinator.replicated_job,
        coordinator.job_index,
        coordinator.pod_index,
        subdomain(set)
    ))
}

/// Name of the claim made from a template.
pub fn claim_name(template: &str, set: &str) -> String {
    format!("{template}-{set}")
}

/// The set's name; empty if it has none yet.
pub fn set_name(set: &JobSet) -> &str {
    set.metadata.name.as_deref().unwrap_or_default()
}

/// The set's namespace.
pub fn namespace(set: &JobSet) -> &str {
    set.metadata.namespace.as_deref().unwrap_or_default()
}

/// Number of jobs of one replicated job.
pub fn replicas(replicated_job: &ReplicatedJob) -> i32 {
    replicated_job.replicas.unwrap_or(1)
}

/// Number of jobs in the whole set.
pub fn global_replicas(set: &JobSet) -> i32 {
    total(set.spec.replicated_jobs.iter())
}

/// Number of jobs in a group.
pub fn group_replicas(set: &JobSet, group: &str) -> i32 {
    total(set.spec.replicated_jobs.iter().filter(|entry| entry.group_name == group))
}

/// Index of a job among all jobs of the set; `None` if the set has no such replicated job.
pub fn global_index(set: &JobSet, replicated_job: &str, index: i32) -> Option<i32> {
    position(set.spec.replicated_jobs.iter(), replicated_job, index)
}

/// Index of a job among the jobs of its group; `None` if the group has no such replicated job.
pub fn group_index(set: &JobSet, group: &str, replicated_job: &str, index: i32) -> Option<i32> {
    position(set.spec.replicated_jobs.iter().filter(|entry| entry.group_name == group), replicated_job, index)
}

fn total<'a>(entries: impl Iterator<Item = &'a ReplicatedJob>) -> i32 {
    entries.map(replicas).fold(0, i32::saturating_add)
}

fn position<'a>(entries: impl Iterator<Item = &'a ReplicatedJob>, name: &str, index: i32) -> Option<i32> {
    let mut before = 0i32;
    for entry in entries {
        if entry.name == name {
            return Some(before.saturating_add(index));
        }
        before = before.saturating_add(replicas(entry));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_key_is_the_sha1_of_namespace_and_name() {
        assert_eq!(job_key("default", "test-jobset-replicated-job-0"), "027791c2c0a79daacbc05ab1512c28988581229f");
    }
}
