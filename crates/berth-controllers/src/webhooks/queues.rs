//! Validation of ClusterQueues, Cohorts and ResourceFlavors beyond their schemas.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::kueue::v1beta2::{
    ClusterQueue, ClusterQueueSpec, Cohort, FairSharing, FlavorFungibilityPolicy, QueueingStrategy,
    ReclaimWithinCohort, ResourceFlavor, ResourceGroup,
};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::labels;
use crate::gates::{Gate, Gates};

/// Maximum number of flavors in all resource groups of a queue.
const FLAVORS_MAX: usize = 256;
/// Maximum number of resources in all resource groups of a queue.
const RESOURCES_MAX: usize = 256;
/// Maximum number of combinations of flavor and resource in all resource groups of a queue.
const COMBINATIONS_MAX: usize = 512;
/// Maximum number of flavors of a queue with concurrent admission.
const CONCURRENT_FLAVORS_MAX: usize = 16;

/// Exclusive lower bound of weights other than zero.
const WEIGHT_MIN: &str = "1n";

/// The limits that a quota may have, and the word for its parent in messages.
struct Limits {
    /// True if the object has a cohort or parent.
    has_parent: bool,
    /// `cohort` or `parent`.
    word: &'static str,
    /// True if only the nominal quota can be lent. A cohort also lends what its members leave
    /// unused.
    lends_nominal_only: bool,
}

/// Validates a new ClusterQueue.
pub fn validate_cluster_queue(queue: &ClusterQueue, gates: &Gates) -> Vec<Error> {
    let path = Path::new("spec");
    let spec = &queue.spec;
    let mut errors = groups(spec, &path);
    if let Some(selector) = &spec.namespace_selector {
        errors.extend(labels::selector(selector, &path.child("namespaceSelector")));
    }
    errors.extend(preemption(spec, &path));
    errors.extend(fungibility(spec, &path));
    errors.extend(fair_sharing(spec.fair_sharing.as_ref(), None, &path));
    errors.extend(checks(spec, &path));
    errors.extend(concurrent(spec, &path, gates));
    errors
}

/// Validates a changed ClusterQueue. Other fields of a stored object that violates a newer rule can
/// still be changed.
pub fn validate_cluster_queue_update(new: &ClusterQueue, old: &ClusterQueue, gates: &Gates) -> Vec<Error> {
    let path = Path::new("spec");
    let spec = &new.spec;
    let mut errors = groups(spec, &path);
    if let Some(selector) = &spec.namespace_selector {
        errors.extend(labels::selector(selector, &path.child("namespaceSelector")));
    }
    errors.extend(preemption(spec, &path));
    errors.extend(fungibility(spec, &path));
    errors.extend(fair_sharing(spec.fair_sharing.as_ref(), old.spec.fair_sharing.as_ref(), &path));
    let unchanged =
        spec.admission_checks_strategy == old.spec.admission_checks_strategy && flavors(spec).eq(flavors(&old.spec));
    if gates.on(Gate::RejectUpdatesToCQWithInvalidOnFlavors) || !unchanged {
        errors.extend(checks(spec, &path));
    }
    if gates.on(Gate::ConcurrentAdmission)
        && spec.concurrent_admission_policy.is_some() != old.spec.concurrent_admission_policy.is_some()
    {
        let value = serde_json::to_value(&spec.concurrent_admission_policy).unwrap_or_default();
        errors.push(Error::invalid(&path.child("concurrentAdmissionPolicy"), value, "field is immutable"));
    }
    errors.extend(concurrent(spec, &path, gates));
    errors
}

fn flavors(spec: &ClusterQueueSpec) -> impl Iterator<Item = &str> {
    spec.resource_groups.iter().flat_map(|group| group.flavors.iter().map(|flavor| flavor.name.as_str()))
}

fn groups(spec: &ClusterQueueSpec, path: &Path<'_>) -> Vec<Error> {
    let limits = Limits { has_parent: !spec.cohort_name.is_empty(), word: "cohort", lends_nominal_only: true };
    resource_groups(&spec.resource_groups, &path.child("resourceGroups"), &limits)
}

fn resource_groups(groups: &[ResourceGroup], path: &Path<'_>, limits: &Limits) -> Vec<Error> {
    let mut errors = Vec::new();
    let total_flavors: usize = groups.iter().map(|group| group.flavors.len()).sum();
    let total_resources: usize = groups.iter().map(|group| group.covered_resources.len()).sum();
    let combinations: usize = groups.iter().map(|group| group.flavors.len() * group.covered_resources.len()).sum();
    for (total, max, what) in [
        (total_flavors, FLAVORS_MAX, "flavors across all resource groups"),
        (total_resources, RESOURCES_MAX, "covered resources across all resource groups"),
        (combinations, COMBINATIONS_MAX, "combinations of flavor and resource across all resource groups"),
    ] {
        if total > max {
            errors.push(Error::invalid(path, total as u64, format!("must have at most {max} {what}")));
        }
    }
    let mut seen_resources: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen_flavors: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        let path = path.index(index);
        let covered = path.child("coveredResources");
        for (index, resource) in group.covered_resources.iter().enumerate() {
            let at = covered.index(index);
            let wrong = names::is_qualified_name(resource).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&at, resource.as_str(), m)));
            if seen_resources.insert(resource, index).is_some() {
                errors.push(Error::duplicate(&at, resource.as_str()));
            }
        }
        let list = path.child("flavors");
        for (index, flavor) in group.flavors.iter().enumerate() {
            let at = list.index(index);
            if seen_flavors.insert(&flavor.name, index).is_some() {
                errors.push(Error::duplicate(&at.child("name"), flavor.name.as_str()));
            }
            let resources = at.child("resources");
            for (index, quota) in flavor.resources.iter().enumerate() {
                let at = resources.index(index);
                if let Some(covered) = group.covered_resources.get(index)
                    && *covered != quota.name
                {
                    let detail = format!("must match the name in coveredResources: {covered}");
                    errors.push(Error::invalid(&at.child("name"), quota.name.as_str(), detail));
                }
                errors.extend(not_negative(&at.child("nominalQuota"), &quota.nominal_quota));
                if let Some(limit) = &quota.borrowing_limit {
                    let at = at.child("borrowingLimit");
                    errors.extend(not_negative(&at, limit));
                    errors.extend(needs_parent(&at, limit, limits));
                }
                if let Some(limit) = &quota.lending_limit {
                    let at = at.child("lendingLimit");
                    errors.extend(not_negative(&at, limit));
                    errors.extend(needs_parent(&at, limit, limits));
                    let (lent, nominal) = (Quantity::parse(&limit.0), Quantity::parse(&quota.nominal_quota.0));
                    if let (Ok(lent), Ok(nominal)) = (lent, nominal)
                        && limits.lends_nominal_only
                        && lent > nominal
                    {
                        errors.push(Error::invalid(
                            &at,
                            limit.0.as_str(),
                            "must be less than or equal to the nominalQuota",
                        ));
                    }
                }
            }
        }
    }
    errors
}

fn needs_parent(path: &Path<'_>, limit: &ApiQuantity, limits: &Limits) -> Option<Error> {
    let detail = format!("must be nil when {} is empty", limits.word);
    (!limits.has_parent).then(|| Error::invalid(path, limit.0.as_str(), detail))
}

fn not_negative(path: &Path<'_>, quantity: &ApiQuantity) -> Option<Error> {
    let negative = quantity.0.trim_start().starts_with('-')
        && Quantity::parse(&quantity.0).is_ok_and(|q| q.milli_value() < 0 || q.value() < 0);
    negative.then(|| Error::invalid(path, quantity.0.as_str(), "must be greater than or equal to 0"))
}

fn preemption(spec: &ClusterQueueSpec, path: &Path<'_>) -> Option<Error> {
    use berth_api::kueue::v1beta2::BorrowWithinCohortPolicy;
    let preemption = spec.preemption.as_ref()?;
    let reclaims = preemption.reclaim_within_cohort.unwrap_or(ReclaimWithinCohort::Never) != ReclaimWithinCohort::Never;
    let borrows = preemption.borrow_within_cohort.as_ref().and_then(|borrow| borrow.policy);
    let borrows = borrows.is_some_and(|policy| policy != BorrowWithinCohortPolicy::Never);
    (borrows && !reclaims).then(|| {
        let value = serde_json::to_value(preemption).unwrap_or_default();
        Error::invalid(
            &path.child("preemption"),
            value,
            "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        )
    })
}

fn fungibility(spec: &ClusterQueueSpec, path: &Path<'_>) -> Option<Error> {
    let fungibility = spec.flavor_fungibility.as_ref()?;
    let preference = fungibility.preference?;
    let borrow = fungibility.when_can_borrow.unwrap_or(FlavorFungibilityPolicy::MayStopSearch);
    let preempt = fungibility.when_can_preempt.unwrap_or(FlavorFungibilityPolicy::TryNextFlavor);
    let next = FlavorFungibilityPolicy::TryNextFlavor;
    (borrow != next || preempt != next).then(|| {
        let detail = format!(
            "preference {:?} requires both whenCanBorrow and whenCanPreempt to be TryNextFlavor",
            preference.as_str()
        );
        let at = path.child("flavorFungibility");
        Error::invalid(&at.child("preference"), preference.as_str(), detail)
    })
}

fn checks(spec: &ClusterQueueSpec, path: &Path<'_>) -> Vec<Error> {
    let known: BTreeSet<&str> = flavors(spec).collect();
    let known: Vec<&str> = known.into_iter().collect();
    let strategy = path.child("admissionChecksStrategy");
    let list = strategy.child("admissionChecks");
    let mut errors = Vec::new();
    for (index, rule) in spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks).enumerate() {
        let at = list.index(index);
        let on = at.child("onFlavors");
        for (index, flavor) in rule.on_flavors.iter().enumerate() {
            if !known.contains(&flavor.as_str()) {
                errors.push(Error::not_supported(&on.index(index), flavor.as_str(), &known));
            }
        }
    }
    errors
}

fn concurrent(spec: &ClusterQueueSpec, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let Some(policy) = spec.concurrent_admission_policy.as_ref().filter(|_| gates.on(Gate::ConcurrentAdmission)) else {
        return Vec::new();
    };
    let mut errors = Vec::new();
    let groups = path.child("resourceGroups");
    if spec.resource_groups.len() != 1 {
        let detail = "must have exactly one ResourceGroup when ConcurrentAdmissionPolicy is defined";
        errors.push(Error::invalid(&groups, spec.resource_groups.len() as u64, detail));
    } else if spec.resource_groups[0].flavors.len() > CONCURRENT_FLAVORS_MAX {
        let detail = format!(
            "cannot have more than {CONCURRENT_FLAVORS_MAX} resource flavors in the ResourceGroup when \
             ConcurrentAdmissionPolicy is defined"
        );
        let at = groups.index(0);
        errors.push(Error::invalid(&at.child("flavors"), spec.resource_groups[0].flavors.len() as u64, detail));
    }
    if spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO) {
        let detail = "StrictFIFO queueing strategy cannot be used when ConcurrentAdmissionPolicy is defined";
        errors.push(Error::invalid(&path.child("queueingStrategy"), "StrictFIFO", detail));
    }
    let last = policy.migration.constraints.as_ref().map_or("", |c| c.last_acceptable_flavor_name.as_str());
    let known: Vec<&str> = flavors(spec).collect();
    if !last.is_empty() && spec.resource_groups.len() == 1 && !known.contains(&last) {
        let detail = format!("must be one of the flavors defined in the ClusterQueue: [{}]", known.join(" "));
        let policy = path.child("concurrentAdmissionPolicy");
        let migration = policy.child("migration");
        let constraints = migration.child("constraints");
        errors.push(Error::invalid(&constraints.child("lastAcceptableFlavorName"), last, detail));
    }
    errors
}

/// Validates a new Cohort or, with `old`, a changed one.
pub fn validate_cohort(cohort: &Cohort, old: Option<&Cohort>) -> Vec<Error> {
    let path = Path::new("spec");
    let spec = &cohort.spec;
    let limits = Limits { has_parent: !spec.parent_name.is_empty(), word: "parent", lends_nominal_only: false };
    let mut errors = resource_groups(&spec.resource_groups, &path.child("resourceGroups"), &limits);
    errors.extend(fair_sharing(spec.fair_sharing.as_ref(), old.and_then(|old| old.spec.fair_sharing.as_ref()), &path));
    errors
}

/// Validates a fair sharing weight. Shares are divided by the weight, so it must be zero or large
/// enough for a division. An unchanged weight is accepted, because the stored object may be older
/// than this rule.
fn fair_sharing(sharing: Option<&FairSharing>, old: Option<&FairSharing>, path: &Path<'_>) -> Option<Error> {
    let weight = sharing?.weight.as_ref()?;
    if old.is_some_and(|old| old.weight.as_ref() == Some(weight)) {
        return None;
    }
    let at = path.child("fairSharing");
    let at = at.child("weight");
    let amount = Quantity::parse(&weight.0).ok()?;
    let detail = if amount < Quantity::ZERO {
        "must be greater than or equal to 0".to_owned()
    } else if amount > Quantity::ZERO && Quantity::parse(WEIGHT_MIN).is_ok_and(|min| amount <= min) {
        format!("must be 0 or greater than {WEIGHT_MIN}")
    } else {
        return None;
    };
    Some(Error::invalid(&at, weight.0.as_str(), detail))
}

/// Validates a ResourceFlavor.
pub fn validate_resource_flavor(flavor: &ResourceFlavor) -> Vec<Error> {
    let path = Path::new("spec");
    let mut errors = labels::labels(&flavor.spec.node_labels, &path.child("nodeLabels"));
    errors.extend(taints(&flavor.spec.node_taints, &path.child("nodeTaints")));
    errors
}

fn taints(taints: &[Taint], path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let at = path.index(index);
        let wrong = names::is_qualified_name(&taint.key).into_iter();
        errors.extend(wrong.map(|m| Error::invalid(&at.child("key"), taint.key.as_str(), m)));
        if let Some(value) = &taint.value {
            let wrong = names::is_label_value(value).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&at.child("value"), value.as_str(), m)));
        }
        if !seen.insert((&taint.key, &taint.effect)) {
            errors.push(Error::duplicate(&at, serde_json::to_value(taint).unwrap_or_default()));
        }
    }
    errors
}
