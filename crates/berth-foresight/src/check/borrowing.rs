//! Borrowing and reclaiming that can never happen.

use berth_engine::Name;
use berth_engine::model::{BorrowWithinCohort, ClusterQueue, PreemptionPolicy, Quota};

use super::facts::{Facts, lendable, shown};
use super::{Findings, text};
use crate::objects::ObjectRef;

pub(super) fn check(facts: &Facts<'_>, findings: &mut Findings) {
    for queue in &facts.queues {
        quotas(facts, queue, findings);
        reclaim(facts, queue, findings);
    }
}

fn quotas(facts: &Facts<'_>, queue: &ClusterQueue, findings: &mut Findings) {
    for (g, group) in queue.resource_groups.iter().enumerate() {
        for (f, flavor) in group.flavors.iter().enumerate() {
            for (r, (resource, quota)) in flavor.quotas.iter().enumerate() {
                let field = format!("spec.resourceGroups[{g}].flavors[{f}].resources[{r}]");
                judge(facts, queue, (&flavor.flavor, resource, quota), &field, findings);
            }
        }
    }
}

fn judge(
    facts: &Facts<'_>,
    queue: &ClusterQueue,
    (flavor, resource, quota): (&Name, &Name, &Quota),
    field: &str,
    findings: &mut Findings,
) {
    let may_borrow = queue.cohort.is_some() && quota.borrowing_limit.is_none_or(|limit| !limit.is_zero());
    let can_borrow = may_borrow && is_lent(facts, queue, flavor, resource);
    let object = ObjectRef::cluster("ClusterQueue", &queue.name);
    let source = facts.queue_source(&queue.name);
    let cohort = facts.tree(queue);
    let lenders = match &cohort {
        Some(cohort) => format!("no other member of cohort {cohort} lends {resource} of flavor {flavor}"),
        None => "the queue is in no cohort".to_owned(),
    };
    if quota.nominal.is_zero() && !can_borrow {
        let why = if may_borrow || cohort.is_none() { lenders } else { "its borrowingLimit is 0".to_owned() };
        let message =
            format!("the queue can never use {resource} of flavor {flavor}: its nominalQuota is 0, and {why}");
        let help = "give it nominalQuota, let it borrow, or remove the flavor from the queue";
        findings.add("quota-unusable", object, source, text(format!("{field}.nominalQuota"), message, help));
    } else if let Some(limit) = quota.borrowing_limit.filter(|limit| !limit.is_zero())
        && !can_borrow
    {
        let limit = if limit.is_unlimited() { "unlimited".to_owned() } else { shown(resource, limit.saturated()) };
        let message = format!("borrowingLimit {limit} has no effect: {lenders}");
        let help = "remove it, give another queue or the cohort quota of the flavor, or raise their lendingLimit";
        findings.add("borrowing-impossible", object, source, text(format!("{field}.borrowingLimit"), message, help));
    }
}

/// True if another member of the tree lends a resource of a flavor. Limits of cohorts between them
/// are not considered.
fn is_lent(facts: &Facts<'_>, queue: &ClusterQueue, flavor: &Name, resource: &Name) -> bool {
    let tree = facts.tree(queue);
    let others = facts.others_in_tree(queue).into_iter().map(|other| &other.resource_groups);
    let in_tree = |start: &Name| {
        let mut at = start;
        for _ in 0..facts.cohorts.len() {
            match facts.cohorts.get(at).and_then(|cohort| cohort.parent.as_ref()) {
                Some(parent) => at = parent,
                None => break,
            }
        }
        Some(at) == tree.as_ref()
    };
    let cohorts = facts.cohorts.values().filter(|cohort| in_tree(&cohort.name)).map(|cohort| &cohort.resource_groups);
    let flavors = others.chain(cohorts).flatten().flat_map(|group| &group.flavors).filter(|it| it.flavor == *flavor);
    let mut quotas = flavors.flat_map(|it| &it.quotas).filter(|(name, _)| name == resource);
    quotas.any(|(_, quota)| !lendable(quota).is_zero() && !quota.nominal.is_zero())
}

fn reclaim(facts: &Facts<'_>, queue: &ClusterQueue, findings: &mut Findings) {
    let policies = &queue.preemption;
    let field = if policies.reclaim_within_cohort != PreemptionPolicy::Never {
        "reclaimWithinCohort"
    } else if policies.borrow_within_cohort != BorrowWithinCohort::Never {
        "borrowWithinCohort"
    } else {
        return;
    };
    if !facts.others_in_tree(queue).is_empty() {
        return;
    }
    let why = match &queue.cohort {
        Some(cohort) => format!("no other ClusterQueue is in cohort {cohort}"),
        None => "the queue is in no cohort".to_owned(),
    };
    let help = "set spec.cohortName to a cohort with other queues, or remove the policy";
    let object = ObjectRef::cluster("ClusterQueue", &queue.name);
    let found = text(format!("spec.preemption.{field}"), format!("{field} has no effect: {why}"), help);
    findings.add("reclaim-impossible", object, facts.queue_source(&queue.name), found);
}
