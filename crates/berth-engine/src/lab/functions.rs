//! Functions that need no engine: comparisons, orders, searches and renderings.

use crate::assignment::search::Grade;
use crate::assignment::{ScanState, reduce};
use crate::decision::{PreemptionMode, PreemptionReason};
use crate::ids::{FrId, Name};
use crate::model::{FungibilityPreference, Time, TopologyAssignment, TopologyRequest, WorkloadKey};
use crate::topology::count::Capacity;
use crate::{Engine, FeatureGates};

/// True if the first of two ways to use a flavor is strictly better (§8.9).
pub fn is_preferred(a: (PreemptionMode, u32), b: (PreemptionMode, u32), preference: FungibilityPreference) -> bool {
    let grade = |(mode, level)| Grade { mode, level };
    grade(a).is_preferred_to(grade(b), preference)
}

/// The largest counts that `serves` accepts (§12). Each count is given with its minimum.
pub fn search_counts(counts: &[(i32, Option<i32>)], mut serves: impl FnMut(&[i32]) -> bool) -> Option<Vec<i32>> {
    reduce::search(counts, |counts| serves(counts).then_some(())).map(|(counts, ())| counts)
}

/// True if a recorded search through the flavors has to start over (§8.12). Class 0 means unknown.
pub fn is_scan_outdated(preserve: bool, recorded: (u64, u64, u32), cycle: u64, generation: u64, class: u32) -> bool {
    use crate::ids::{ClassId, Id};
    let known = |class: u32| (class != 0).then(|| ClassId::from_index(class as usize));
    let (recorded_cycle, recorded_generation, recorded_class) = recorded;
    let state = ScanState::new(known(recorded_class), recorded_cycle, recorded_generation);
    state.is_outdated(preserve, known(class), cycle, generation)
}

/// True if some flavors were not tried yet (§8.12), given the index of the last flavor tried, or
/// −1, per pod set and resource.
pub fn has_more_flavors(tried: &[Vec<i32>]) -> bool {
    use crate::ids::{Id, ResourceId};
    let mut scan = ScanState::default();
    for (at, set) in tried.iter().enumerate() {
        for (resource, index) in set.iter().enumerate() {
            scan.note(at, ResourceId::from_index(resource), *index);
        }
    }
    scan.has_more_flavors()
}

/// The message of a victim's conditions (§11.1). Empty arguments are shown as unknown.
pub fn preemption_message(
    uid: &str,
    job_uid: &str,
    reason: &str,
    preemptor_path: &str,
    preemptee_path: &str,
) -> String {
    let human = [
        PreemptionReason::InClusterQueue,
        PreemptionReason::InCohortReclamation,
        PreemptionReason::InCohortFairSharing,
        PreemptionReason::InCohortReclaimWhileBorrowing,
    ]
    .into_iter()
    .find(|known| known.as_str() == reason)
    .map_or("", PreemptionReason::human);
    crate::text::preemption(uid, Some(job_uid), human, preemptor_path, preemptee_path)
}

/// A domain of a topology with its capacity, for [`domain_order`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DomainCapacity {
    /// Values of all levels down to that of the domain.
    pub values: Vec<Name>,
    /// Number of pods that fit.
    pub pods: i64,
    /// Number of slices that fit.
    pub slices: i64,
    /// Number of pods that fit together with the leader.
    pub pods_with_leader: i64,
    /// Number of slices that fit together with the leader.
    pub slices_with_leader: i64,
    /// 1 if the leader fits.
    pub leader: i64,
    /// Weight of matching preferred affinity terms.
    pub score: i64,
}

/// The order in which domains are considered (§14.6): indices into the list.
pub fn domain_order(
    domains: &[DomainCapacity],
    with_leader: bool,
    unconstrained: bool,
    gates: &FeatureGates,
) -> Vec<usize> {
    let least_free = unconstrained && gates.tas_profile_mixed;
    let mut order: Vec<usize> = (0..domains.len()).collect();
    order.sort_by_cached_key(|at| {
        let domain = &domains[*at];
        let capacity = Capacity {
            pods: domain.pods,
            slices: domain.slices,
            pods_with_leader: domain.pods_with_leader,
            slices_with_leader: domain.slices_with_leader,
            leader: domain.leader,
            score: if gates.tas_respect_node_affinity_preferred { domain.score } else { 0 },
        };
        (
            if with_leader { capacity.rank_with_leader(least_free) } else { capacity.rank(least_free) },
            domain.values.clone(),
        )
    });
    order
}

/// Merges two placements. Domains are in the order of their values, and counts of the same domain
/// are added.
pub fn merge_placements(a: &TopologyAssignment, b: &TopologyAssignment) -> TopologyAssignment {
    crate::topology::replace::merge(a, b)
}

/// The first pods of a placement.
pub fn truncate_placement(assignment: &TopologyAssignment, count: i32) -> TopologyAssignment {
    crate::topology::replace::truncate(assignment, count)
}

/// True if a request has a topology and all levels that it names exist.
pub fn has_levels(levels: &[Name], request: &TopologyRequest) -> bool {
    let asks = request.mode.is_some() || !request.slices.is_empty();
    asks && crate::topology::request::requested_levels(request).all(|level| levels.contains(level))
}

/// An entry of a cycle, for [`entry_order`].
#[derive(Debug, Clone, PartialEq)]
pub struct EntryFacts {
    /// The workload.
    pub workload: crate::model::Workload,
    /// Level from which its assignment borrows.
    pub borrowing: u32,
    /// True if the entry waits for preemptions that it started.
    pub is_preemptor: bool,
}

/// The order of entries in a cycle without fair sharing (§6.1): indices into the list.
pub fn entry_order(config: &crate::EngineConfig, entries: &[EntryFacts]) -> Vec<usize> {
    let mut engine = Engine::new(config.clone());
    let mut list = Vec::new();
    for (at, facts) in entries.iter().enumerate() {
        let mut workload = facts.workload.clone();
        let second_pass = workload.admission.take().is_some();
        workload.key = WorkloadKey::new("lab", format!("{at}"));
        engine.apply(crate::Event::WorkloadUpserted(Box::new(workload.clone())), Time::UNSET);
        let Some(id) = engine.world.workloads.id(&workload.key) else { continue };
        let queue = engine.world.queue_id(&Name::from("lab"));
        let mut entry = crate::cycle::Entry::new(id, queue, facts.is_preemptor, second_pass);
        entry.assignment.borrowing = facts.borrowing;
        list.push((at, entry));
    }
    list.sort_by(|a, b| crate::cycle::order::classical(&engine.world, &a.1, &b.1));
    list.into_iter().map(|(at, _)| at).collect()
}

/// Properties by which two entries are compared under fair sharing, for [`goes_before`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContenderFacts {
    /// True if the entry waits for preemptions that it started.
    pub is_preemptor: bool,
    /// Borrowed amount in thousandths of what can be lent, and weight in thousandths.
    pub share: (i64, i64),
    /// Numbers of the flavor-resources that are borrowed at this level and requested.
    pub borrowed: Vec<u32>,
    /// Numbers of the flavor-resources that are requested.
    pub requested: Vec<u32>,
    /// Effective priority.
    pub priority: i64,
    /// Queue-order timestamp.
    pub time: Option<Time>,
}

/// True if the first of two entries goes first under fair sharing (§6.2).
pub fn goes_before(gates: &FeatureGates, a: &ContenderFacts, b: &ContenderFacts) -> bool {
    use crate::ids::Id;
    let contender = |facts: &ContenderFacts| crate::cycle::order::Contender {
        entry: 0,
        is_preemptor: facts.is_preemptor,
        share: crate::quota::Share::of(
            facts.share.0,
            1000,
            facts.share.1,
            facts.borrowed.iter().map(|at| FrId::from_index(*at as usize)).collect(),
        ),
        requested: facts.requested.iter().map(|at| (FrId::from_index(*at as usize), 1)).collect(),
        priority: facts.priority,
        time: facts.time.unwrap_or(Time::UNSET),
    };
    contender(a).goes_before(&contender(b), gates)
}

/// True if a pod set itself requests a topology (§14.2).
pub fn requests_topology(request: Option<&TopologyRequest>) -> bool {
    crate::topology::request::is_explicit(request)
}

/// A dominant resource share as a number (§10.3). It is the unweighted ratio in millionths, divided
/// by the weight in thousandths. Infinite for a borrower of weight zero.
pub fn precise_share(ratio_millionths: i64, weight_milli: i64) -> f64 {
    crate::quota::Share::of(ratio_millionths, 1_000_000, weight_milli, Vec::new()).precise()
}
