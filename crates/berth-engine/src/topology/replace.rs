//! Replaces a failed node in a placement whose other pods stay (§15.3).

use crate::ids::Name;
use crate::model::{TopologyAssignment, TopologyDomain};

/// A placement without its failed hosts, and the number of missing pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub kept: TopologyAssignment,
    pub missing: i32,
    /// The first failed domain.
    pub failed: TopologyDomain,
}

/// True if pods of the placement run on one of the hosts.
pub(crate) fn is_broken(assignment: &TopologyAssignment, unhealthy: &[Name]) -> bool {
    assignment.domains.iter().any(|domain| is_on(domain, unhealthy))
}

fn is_on(domain: &TopologyDomain, unhealthy: &[Name]) -> bool {
    domain.values.last().is_some_and(|host| unhealthy.contains(host))
}

/// Removes the failed hosts from a placement.
pub(crate) fn without(assignment: &TopologyAssignment, unhealthy: &[Name]) -> Option<Broken> {
    let (failed, kept): (Vec<TopologyDomain>, Vec<TopologyDomain>) =
        assignment.domains.iter().cloned().partition(|domain| is_on(domain, unhealthy));
    Some(Broken {
        kept: TopologyAssignment { levels: assignment.levels.clone(), domains: kept },
        missing: failed.iter().map(|domain| domain.count).sum(),
        failed: failed.first()?.clone(),
    })
}

/// Merges two placements. Domains stay in order, and counts of the same domain are added.
pub(crate) fn merge(a: &TopologyAssignment, b: &TopologyAssignment) -> TopologyAssignment {
    let mut domains = a.domains.clone();
    for domain in &b.domains {
        match domains.iter_mut().find(|known| known.values == domain.values) {
            Some(known) => known.count += domain.count,
            None => domains.push(domain.clone()),
        }
    }
    domains.sort();
    TopologyAssignment { levels: if a.levels.is_empty() { b.levels.clone() } else { a.levels.clone() }, domains }
}

/// The first pods of a placement.
pub(crate) fn truncate(assignment: &TopologyAssignment, count: i32) -> TopologyAssignment {
    let mut left = count;
    let mut domains = Vec::new();
    for domain in &assignment.domains {
        let kept = domain.count.min(left);
        if kept > 0 {
            domains.push(TopologyDomain { values: domain.values.clone(), count: kept });
        }
        left -= kept.max(0);
    }
    TopologyAssignment { levels: assignment.levels.clone(), domains }
}
