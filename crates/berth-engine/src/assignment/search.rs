//! The search through the flavors of each resource group (§8.1–§8.13).

use super::filter::{Rejection, reject};
use super::{
    Assignment, AssignmentRequest, FlavorChoice, Oracle, PodSetOutcome, RequestedPodSet, ScanState, Simulated,
};
use crate::amount::Amount;
use crate::decision::{AssignmentMode, Finding, FlavorAttempt, PendingReason, PreemptionBar, PreemptionMode};
use crate::ids::{FrId, Name, ResourceId, WorkloadId};
use crate::model::{
    BorrowWithinCohort, FlavorFungibility, FungibilityPolicy, FungibilityPreference, PreemptionPolicies,
    PreemptionPolicy,
};
use crate::quota::{FrAmounts, add_amount, amount_of};
use crate::world::World;
use crate::world::queue::{Group, QueueConfig};

/// Grade of a flavor: the two criteria that the search compares (§8.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grade {
    pub mode: PreemptionMode,
    /// Borrowing level; 0 without borrowing (§7.7).
    pub level: u32,
}

impl Grade {
    const WORST: Grade = Grade { mode: PreemptionMode::NoFit, level: u32::MAX };

    /// The mode that conditions and decisions report for this grade (§8.7).
    pub fn assignment_mode(self) -> AssignmentMode {
        match self.mode {
            PreemptionMode::NoFit => AssignmentMode::NoFit,
            PreemptionMode::Fit => AssignmentMode::Fit,
            _ => AssignmentMode::Preempt,
        }
    }

    /// True if this is strictly better than the other under the queue's preference (§8.9).
    pub fn is_preferred_to(self, other: Grade, preference: FungibilityPreference) -> bool {
        if self.mode == PreemptionMode::NoFit {
            return false;
        }
        if other.mode == PreemptionMode::NoFit {
            return true;
        }
        let hopeless = |grade: Grade| grade.mode == PreemptionMode::NoPreemptionCandidates;
        if hopeless(self) != hopeless(other) {
            return hopeless(other);
        }
        match preference {
            FungibilityPreference::BorrowingOverPreemption => {
                (self.mode, std::cmp::Reverse(self.level)) > (other.mode, std::cmp::Reverse(other.level))
            }
            FungibilityPreference::PreemptionOverBorrowing => {
                (std::cmp::Reverse(self.level), self.mode) > (std::cmp::Reverse(other.level), other.mode)
            }
        }
    }

    /// True if the search continues with the next flavor after this one (§8.10).
    fn continues_search(self, fungibility: &FlavorFungibility) -> bool {
        match self.mode {
            PreemptionMode::NoFit | PreemptionMode::NoPreemptionCandidates => return true,
            PreemptionMode::Preempt | PreemptionMode::Reclaim => {
                if fungibility.when_can_preempt == FungibilityPolicy::TryNextFlavor {
                    return true;
                }
            }
            PreemptionMode::Fit => {}
        }
        self.level > 0 && fungibility.when_can_borrow == FungibilityPolicy::TryNextFlavor
    }
}

/// Assigns flavors to every pod set of a request. Topology is not considered; see
/// [`crate::topology`].
pub(crate) fn assign_flavors(world: &mut World, ask: &AssignmentRequest, oracle: &mut dyn Oracle) -> Assignment {
    let record = world.record(ask.workload);
    let scan = if ask.resume { record.scan.clone() } else { None };
    let class = record.class;
    let config = world.queue(ask.queue).config.clone();
    let mut assignment = Assignment {
        scan: ScanState::new(Some(class), world.cycle, world.queue(ask.queue).generation),
        ..Assignment::default()
    };
    let mut search = Search { ask, config, scan: scan.as_deref(), oracle };
    assignment.pod_sets.reserve_exact(ask.pod_sets.len());
    for first in 0..ask.pod_sets.len() {
        let Some(sets) = search.members(world, first) else { continue };
        let found = search.group(world, &assignment.usage, &sets, first);
        let complete = search.take(world, &mut assignment, sets, found);
        if !complete {
            break;
        }
    }
    assignment.scan.continue_from(scan.as_deref());
    assignment.no_fit = no_fit_reason(&assignment);
    assignment
}

/// Result of the search for one group of pod sets.
#[derive(Default)]
struct Found {
    flavors: Vec<FlavorChoice>,
    findings: Vec<Finding>,
    attempts: Vec<FlavorAttempt>,
    borrowing: u32,
    failed: bool,
}

impl Found {
    /// Reason why no flavor was found. Flavors are alternatives, so the least severe of their
    /// reasons counts (§8.13).
    fn no_fit_reason(&self) -> PendingReason {
        least_severe(&self.attempts)
    }
}

fn least_severe(attempts: &[FlavorAttempt]) -> PendingReason {
    attempts.iter().filter_map(|attempt| attempt.no_fit).max().unwrap_or(PendingReason::NoMatchingFlavor)
}

struct Search<'a> {
    ask: &'a AssignmentRequest,
    config: std::sync::Arc<QueueConfig>,
    scan: Option<&'a ScanState>,
    oracle: &'a mut dyn Oracle,
}

impl Search<'_> {
    /// The pod sets that get the same flavors as the pod set at `first`; `None` if `first` is not
    /// the first of them (§8.1).
    fn members(&self, world: &World, first: usize) -> Option<Vec<RequestedPodSet>> {
        let group_of = |set: &'_ RequestedPodSet| set.info.topology.as_ref().and_then(|request| request.group.clone());
        let sets = &self.ask.pod_sets;
        let Some(group) = group_of(&sets[first]) else { return Some(vec![self.with_pods(world, &sets[first])]) };
        let is_member = |set: &&RequestedPodSet| group_of(set).is_some_and(|it| it == group);
        if sets[..first].iter().any(|set| is_member(&set)) {
            return None;
        }
        Some(sets[first..].iter().filter(is_member).map(|set| self.with_pods(world, set)).collect())
    }

    /// The pod set with a request for the resource `pods` added, if the queue has quota for it
    /// (§2.6).
    fn with_pods(&self, world: &World, set: &RequestedPodSet) -> RequestedPodSet {
        let mut set = set.clone();
        let pods = world.pods;
        if self.config.group_of(pods).is_some() {
            let others = set.requests.iter().filter(|(id, _)| *id != pods).copied();
            let mut requests: Vec<(ResourceId, i64)> = others.chain([(pods, i64::from(set.count))]).collect();
            requests.sort_by(|a, b| world.resource_name(a.0).cmp(world.resource_name(b.0)));
            set.requests = requests.into();
        }
        set
    }

    /// Finds a flavor for every resource that a group of pod sets requests.
    fn group(&mut self, world: &mut World, used: &FrAmounts, sets: &[RequestedPodSet], first: usize) -> Found {
        let mut total: Vec<(ResourceId, i64)> = Vec::with_capacity(sets.iter().map(|set| set.requests.len()).sum());
        for (id, amount) in sets.iter().flat_map(|set| &*set.requests) {
            match total.iter_mut().find(|(known, _)| known == id) {
                Some((_, sum)) => *sum = sum.saturating_add(*amount),
                None => total.push((*id, *amount)),
            }
        }
        total.sort_by(|(a, _), (b, _)| world.resource_name(*a).cmp(world.resource_name(*b)));
        let ignore_undeclared = world.ignores_undeclared();
        let mut wanted = total;
        let mut failures = Vec::new();
        wanted.retain(|&(id, amount)| {
            let declared = self.config.group_of(id).is_some();
            if !declared && amount != 0 && !ignore_undeclared {
                failures.push(Found {
                    findings: vec![Finding::ResourceUnavailable { resource: world.resource_name(id).clone() }],
                    failed: true,
                    ..Found::default()
                });
            }
            declared
        });
        let mut found = Found::default();
        for (at, (resource, _)) in wanted.iter().enumerate() {
            let group = self.config.group_of(*resource);
            if wanted[..at].iter().any(|(earlier, _)| self.config.group_of(*earlier) == group) {
                continue;
            }
            let scanned = self.resource_group(world, used, sets, first, &wanted, *resource);
            if scanned.failed {
                failures.push(scanned);
            } else if found.flavors.is_empty() && found.attempts.is_empty() {
                found = scanned;
            } else {
                found.flavors.retain(|known| scanned.flavors.iter().all(|choice| choice.resource != known.resource));
                found.flavors.extend(scanned.flavors);
                found.findings.extend(scanned.findings);
                found.borrowing = found.borrowing.max(scanned.borrowing);
                for attempt in scanned.attempts {
                    merge_attempt(&mut found.attempts, attempt);
                }
            }
        }
        // Every resource group is needed, so the most severe failure counts (§8.13).
        failures.into_iter().min_by_key(Found::no_fit_reason).unwrap_or(found)
    }

    /// Scans the flavors of the resource group that covers `resource` (§8.3).
    fn resource_group(
        &mut self,
        world: &mut World,
        used: &FrAmounts,
        sets: &[RequestedPodSet],
        first: usize,
        wanted: &[(ResourceId, i64)],
        resource: ResourceId,
    ) -> Found {
        let config = self.config.clone();
        let Some(group) = config.group_of(resource).map(|at| &config.groups[at]) else {
            return Found { failed: true, ..Found::default() };
        };
        let fungible = world.config.gates.flavor_fungibility;
        let start = self.scan.map_or(0, |scan| scan.next_flavor(first, resource));
        let mut found = Found::default();
        let mut best: Option<(Grade, usize)> = None;
        // The choices of the best flavor so far, and those of the current one.
        let (mut best_choices, mut choices) = (Vec::new(), Vec::with_capacity(wanted.len()));
        let mut last = start;
        for at in start..group.flavors.len() {
            last = at;
            let slot = &group.flavors[at];
            match reject(world, self.ask, group, sets, slot.flavor, resource) {
                Some(Rejection::Skipped(finding)) => {
                    found.findings.push(finding);
                    continue;
                }
                Some(Rejection::Unsuitable(finding)) => {
                    found.attempts.push(FlavorAttempt {
                        flavor: slot.name.clone(),
                        mode: AssignmentMode::NoFit,
                        preemption: PreemptionMode::NoFit,
                        borrowing_level: 0,
                        findings: vec![finding.clone()],
                        no_fit: Some(PendingReason::NoMatchingFlavor),
                    });
                    found.findings.push(finding);
                    continue;
                }
                None => {}
            }
            let (grade, attempt) = self.try_flavor(world, used, sets, wanted, (group, at), &mut choices);
            found.findings.reserve_exact(attempt.findings.len());
            found.findings.extend(attempt.findings.iter().cloned());
            push_exactly(&mut found.attempts, Some(attempt));
            let best_grade = best.as_ref().map_or(Grade::WORST, |(grade, ..)| *grade);
            let (stops, improves) = if fungible {
                let stops = !grade.continues_search(&config.fungibility);
                (stops, stops || grade.is_preferred_to(best_grade, config.fungibility.preference))
            } else {
                let improves = grade.mode > best_grade.mode;
                (improves && grade.mode == PreemptionMode::Fit, improves)
            };
            if improves {
                best = Some((grade, at));
                std::mem::swap(&mut best_choices, &mut choices);
            }
            if stops {
                break;
            }
        }
        let Some((grade, slot)) = best else {
            found.failed = true;
            return found;
        };
        let tried = if last + 1 >= group.flavors.len() { -1 } else { i32::try_from(last).unwrap_or(-1) };
        let flavor = group.flavors[slot].flavor;
        // Resources of one flavor may have different borrowing levels. The highest counts (§8.8).
        // The flavor's grade may have a lower one.
        found.borrowing = best_choices.iter().map(|(.., grade)| grade.level).max().unwrap_or(0);
        found.flavors = best_choices
            .into_iter()
            .map(|(resource, fr, grade)| FlavorChoice { resource, flavor, fr, mode: grade.assignment_mode(), tried })
            .collect();
        if grade.mode == PreemptionMode::Fit {
            found.findings.clear();
        }
        found
    }

    /// Evaluates all wanted resources on the flavor at index `at` of a resource group. Stores the
    /// grade of each resource in `choices`.
    fn try_flavor(
        &mut self,
        world: &mut World,
        used: &FrAmounts,
        sets: &[RequestedPodSet],
        wanted: &[(ResourceId, i64)],
        (group, at): (&Group, usize),
        choices: &mut Vec<(ResourceId, FrId, Grade)>,
    ) -> (Grade, FlavorAttempt) {
        let mut grade = Grade { mode: PreemptionMode::Fit, level: 0 };
        choices.clear();
        let mut findings = Vec::new();
        let mut no_fit = None;
        let mut borrowing = 0;
        for &(resource, amount) in wanted {
            let Some(fr) = group.fr(at, resource) else { continue };
            // One unavailable resource rules the flavor out. The other resources are evaluated too,
            // so that all shortages are reported.
            let is_out = grade.mode == PreemptionMode::NoFit;
            let judged = self.judge(world, used, sets, resource, fr, amount, is_out);
            push_exactly(&mut findings, judged.finding);
            no_fit = no_fit.into_iter().chain(judged.no_fit).min();
            borrowing = borrowing.max(judged.grade.level);
            if grade.is_preferred_to(judged.grade, self.config.fungibility.preference) {
                grade = judged.grade;
            }
            choices.push((resource, fr, judged.grade));
        }
        let attempt = FlavorAttempt {
            flavor: group.flavors[at].name.clone(),
            mode: grade.assignment_mode(),
            preemption: grade.mode,
            borrowing_level: borrowing,
            findings,
            no_fit,
        };
        (grade, attempt)
    }

    /// Evaluates one resource on one flavor against quota (§8.5). Does not search for victims if
    /// `is_out`: the flavor is already ruled out.
    #[expect(clippy::too_many_arguments, reason = "called in one place only")]
    fn judge(
        &mut self,
        world: &mut World,
        used: &FrAmounts,
        sets: &[RequestedPodSet],
        resource: ResourceId,
        fr: FrId,
        amount: i64,
        is_out: bool,
    ) -> Judged {
        let flavor = world.frs.get(fr).flavor;
        let mut amount = amount;
        if let Some(replaced) = self.ask.replaced {
            let flavor = world.flavor_name(flavor);
            match replaced_amount(world, replaced, sets, world.resource_name(resource), flavor) {
                Ok(before) => amount = amount.saturating_sub(before),
                Err(held) => {
                    let finding = Finding::HeldOnOtherFlavor { flavor: flavor.clone(), held };
                    return Judged::no_fit(0, finding, PendingReason::NoMatchingFlavor);
                }
            }
        }
        let node = world.queue(self.ask.queue).node;
        let assumed = amount_of(used, fr);
        let total = assumed.saturating_add(amount);
        let maximum = world.tree.potential(node, fr);
        if Amount::Bounded(total) > maximum {
            let finding = Finding::ExceedsMaximum {
                resource: world.resource_name(resource).clone(),
                flavor: world.flavor_name(flavor).clone(),
                assumed,
                requested: amount,
                maximum,
                short_at: world.tree.node(world.tree.limits_potential(node, fr)).name.clone(),
            };
            return Judged::no_fit(0, finding, PendingReason::ExceedsMaxQuota);
        }
        let (level, may_reclaim) = world.tree.borrowing_level(node, fr, total);
        let available = world.tree.available(node, fr).or_zero();
        if Amount::Bounded(total) <= available {
            return Judged { grade: Grade { mode: PreemptionMode::Fit, level }, finding: None, no_fit: None };
        }
        let nominal = world.tree.cell(node, fr).quota.nominal;
        let forbidden = if nominal >= Amount::Bounded(total) || may_reclaim {
            None
        } else {
            bars_preemption_while_borrowing(&self.config.preemption, world.is_fair_sharing())
        };
        let finding = Finding::InsufficientQuota {
            resource: world.resource_name(resource).clone(),
            flavor: world.flavor_name(flavor).clone(),
            missing: total.saturating_sub(available.saturated()),
            requested: total,
            available,
            short_at: world.tree.node(world.tree.limits_available(node, fr)).name.clone(),
            forbidden,
        };
        if forbidden.is_some() {
            return Judged::no_fit(level, finding, PendingReason::WaitingForQuota);
        }
        let Simulated { mode, level } = match is_out {
            true => Simulated { mode: PreemptionMode::NoPreemptionCandidates, level },
            false => self.oracle.simulate(world, self.ask, fr, total),
        };
        Judged { grade: Grade { mode, level }, finding: Some(finding), no_fit: None }
    }

    /// Adds the result for a group to the assignment. False if the group got no flavors, which ends
    /// the search.
    fn take(&self, world: &World, assignment: &mut Assignment, sets: Vec<RequestedPodSet>, mut found: Found) -> bool {
        let count = sets.len();
        for (at, set) in sets.into_iter().enumerate() {
            let mut flavors: Vec<FlavorChoice> = Vec::new();
            if !found.failed {
                flavors.extend(
                    found
                        .flavors
                        .iter()
                        .filter(|choice| set.requests.iter().any(|(id, _)| *id == choice.resource))
                        .copied(),
                );
                let grouped = set.info.topology.as_ref().is_some_and(|request| request.group.is_some());
                if set.requests.is_empty() && grouped {
                    // A leader without requests gets the flavor of its workers.
                    let is_tas = |choice: &&FlavorChoice| {
                        world.flavor(choice.flavor).is_some_and(|flavor| flavor.topology.is_some())
                    };
                    flavors.extend(found.flavors.iter().filter(is_tas).copied());
                }
                assignment.borrowing = assignment.borrowing.max(found.borrowing);
                let replaced = self.ask.replaced;
                for (resource, amount) in &*set.requests {
                    let Some(choice) = flavors.iter().find(|choice| choice.resource == *resource) else { continue };
                    let before =
                        replaced.map_or(0, |id| held_amount(world, id, &set.info.name, world.resource_name(*resource)));
                    add_amount(&mut assignment.usage, choice.fr, amount.saturating_sub(before));
                }
            }
            for choice in &flavors {
                assignment.scan.note(assignment.pod_sets.len(), choice.resource, choice.tried);
            }
            let (findings, attempts) = if at + 1 == count {
                (std::mem::take(&mut found.findings), std::mem::take(&mut found.attempts))
            } else {
                (found.findings.clone(), found.attempts.clone())
            };
            assignment.pod_sets.push(PodSetOutcome {
                name: set.info.name.clone(),
                count: set.count,
                requests: set.requests,
                flavors,
                findings,
                error: None,
                attempts,
                topology: None,
                delayed: None,
            });
        }
        !found.failed
    }
}

/// Appends to a list that seldom has more than one item. The first item is stored without spare
/// capacity.
fn push_exactly<T>(list: &mut Vec<T>, item: Option<T>) {
    if list.capacity() == 0 {
        list.reserve_exact(usize::from(item.is_some()));
    }
    list.extend(item);
}

struct Judged {
    grade: Grade,
    finding: Option<Finding>,
    no_fit: Option<PendingReason>,
}

impl Judged {
    fn no_fit(level: u32, finding: Finding, reason: PendingReason) -> Judged {
        Judged { grade: Grade { mode: PreemptionMode::NoFit, level }, finding: Some(finding), no_fit: Some(reason) }
    }
}

/// The policy that forbids preemption by a workload that would borrow, if any (§8.5).
fn bars_preemption_while_borrowing(policies: &PreemptionPolicies, fair_sharing: bool) -> Option<PreemptionBar> {
    if policies.borrow_within_cohort != BorrowWithinCohort::Never {
        return None;
    }
    match policies.reclaim_within_cohort {
        _ if !fair_sharing => Some(PreemptionBar::BorrowWithinCohortNever),
        PreemptionPolicy::Never => Some(PreemptionBar::ReclaimWithinCohortNever),
        _ => None,
    }
}

/// Amount of a resource that the replaced elastic slice holds on this flavor (§8.5).
///
/// # Errors
/// The slice holds the resource on another flavor, which is returned.
fn replaced_amount(
    world: &World,
    replaced: WorkloadId,
    sets: &[RequestedPodSet],
    resource: &Name,
    flavor: &Name,
) -> Result<i64, Name> {
    let mut sum: i64 = 0;
    for set in sets {
        if let Some(held) = world.record(replaced).held_flavor(&set.info.name, resource) {
            if held != flavor {
                return Err(held.clone());
            }
            sum = sum.saturating_add(held_amount(world, replaced, &set.info.name, resource));
        }
    }
    Ok(sum)
}

fn held_amount(world: &World, id: WorkloadId, pod_set: &Name, resource: &Name) -> i64 {
    let holding = world.record(id).holding.as_ref();
    let set = holding.and_then(|holding| holding.admission.pod_sets.iter().find(|set| set.name == *pod_set));
    set.and_then(|set| set.usage.get(resource)).copied().unwrap_or(0)
}

/// Adds an attempt. A flavor that serves several resource groups has the mode of its worst group.
fn merge_attempt(attempts: &mut Vec<FlavorAttempt>, attempt: FlavorAttempt) {
    match attempts.iter_mut().find(|it| it.flavor == attempt.flavor) {
        None => attempts.push(attempt),
        Some(known) => {
            known.findings.extend(attempt.findings);
            known.borrowing_level = known.borrowing_level.max(attempt.borrowing_level);
            if attempt.preemption < known.preemption {
                known.mode = attempt.mode;
                known.preemption = attempt.preemption;
                known.no_fit = attempt.no_fit;
            }
        }
    }
}

/// Reason why nothing fits (§8.13). The least severe reason counts among alternative flavors, and
/// the most severe among resources that are all needed.
pub(crate) fn no_fit_reason(assignment: &Assignment) -> Option<PendingReason> {
    if assignment.mode() != AssignmentMode::NoFit {
        return None;
    }
    assignment
        .pod_sets
        .iter()
        .filter(|set| set.error.is_none() && set.mode() == AssignmentMode::NoFit)
        .map(|set| least_severe(&set.attempts))
        .min()
}
