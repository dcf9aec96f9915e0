//! The flavors that a workload would get, written as the semantics state it (§8, §12).

use berth_engine::model::{BorrowWithinCohort, FungibilityPolicy, FungibilityPreference, PreemptionPolicy};
use berth_engine::{AssignmentMode, PendingReason, PreemptionMode};

use super::preempt::{Assumptions, Need, Targets};
use super::quota::{self, Node};
use super::{Amounts, Fr, Model, Scan};
use crate::random::plan::RESOURCES;

/// Result of the search for a workload.
#[derive(Debug, Clone)]
pub struct Assignment {
    pub mode: AssignmentMode,
    /// Pods per pod set.
    pub counts: Vec<i32>,
    /// Flavor and modes of the resources, per pod set that got a flavor. The search ends at the
    /// first pod set that gets none.
    pub chosen: Vec<(usize, [AssignmentMode; RESOURCES])>,
    pub usage: Amounts,
    pub level: u32,
    pub no_fit: Option<PendingReason>,
    pub(super) scan: Scan,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Grade {
    mode: PreemptionMode,
    level: u32,
}

fn worst_severity(reason: PendingReason) -> u8 {
    match reason {
        PendingReason::NoMatchingFlavor => 0,
        PendingReason::ExceedsMaxQuota => 1,
        _ => 2,
    }
}

impl Grade {
    fn assignment_mode(self) -> AssignmentMode {
        match self.mode {
            PreemptionMode::NoFit => AssignmentMode::NoFit,
            PreemptionMode::Fit => AssignmentMode::Fit,
            _ => AssignmentMode::Preempt,
        }
    }

    /// `preferred(a, b)` of §8.9.
    fn is_preferred(self, other: Grade, preference: FungibilityPreference) -> bool {
        use PreemptionMode::{NoFit, NoPreemptionCandidates};
        if self.mode == NoFit || other.mode == NoFit {
            return self.mode != NoFit;
        }
        if (self.mode == NoPreemptionCandidates) != (other.mode == NoPreemptionCandidates) {
            return other.mode == NoPreemptionCandidates;
        }
        match preference {
            FungibilityPreference::BorrowingOverPreemption => {
                self.mode > other.mode || (self.mode == other.mode && self.level < other.level)
            }
            FungibilityPreference::PreemptionOverBorrowing => {
                self.level < other.level || (self.level == other.level && self.mode > other.mode)
            }
        }
    }
}

impl Model {
    /// The best assignment, with the targets that it needs (§5.5). With pins, one flavor per pod
    /// set is allowed and the search starts over.
    pub fn assign(&self, assumed: &Assumptions, name: &str, pins: Option<&[usize]>) -> (Assignment, Targets) {
        let sets = &self.jobs[name].job.sets;
        let full: Vec<i32> = sets.iter().map(|set| set.count).collect();
        let usable = |found: &(Assignment, Targets)| {
            found.0.mode == AssignmentMode::Fit || (found.0.mode == AssignmentMode::Preempt && !found.1.is_empty())
        };
        let whole = self.assign_counts(assumed, name, &full, pins);
        if usable(&whole) {
            return whole;
        }
        let give: Vec<i32> = sets.iter().map(|set| set.least.map_or(0, |least| (set.count - least).max(0))).collect();
        let total: i32 = give.iter().sum();
        if total > 0 {
            // The smallest sufficient reduction is found by bisection (§12.2).
            let reduced =
                |by: i32| -> Vec<i32> { full.iter().zip(&give).map(|(it, give)| it - give * by / total).collect() };
            let (mut low, mut high) = (0, total + 1);
            let mut last = None;
            while low < high {
                let middle = low + (high - low) / 2;
                let found = self.assign_counts(assumed, name, &reduced(middle), pins);
                if usable(&found) {
                    (last, high) = (Some((middle, found)), middle);
                } else {
                    low = middle + 1;
                }
            }
            if let Some((at, found)) = last
                && at == low
            {
                return found;
            }
        }
        (whole.0, Targets::new())
    }

    fn assign_counts(
        &self,
        assumed: &Assumptions,
        name: &str,
        counts: &[i32],
        pins: Option<&[usize]>,
    ) -> (Assignment, Targets) {
        let assignment = self.assign_flavors(assumed, name, counts, pins);
        let mut targets = Targets::new();
        if assignment.mode == AssignmentMode::Preempt {
            let mut short: Vec<Fr> = Vec::new();
            for (flavor, modes) in &assignment.chosen {
                short.extend((0..RESOURCES).filter(|at| modes[*at] == AssignmentMode::Preempt).map(|at| (*flavor, at)));
            }
            let queue = self.jobs[name].job.queue;
            targets = self.targets(assumed, &Need { name, queue, short, request: assignment.usage.clone() });
        }
        (assignment, targets)
    }

    fn assign_flavors(&self, assumed: &Assumptions, name: &str, counts: &[i32], pins: Option<&[usize]>) -> Assignment {
        let entry = &self.jobs[name];
        let queue = &self.plan.queues[entry.job.queue];
        let generation = self.pending_queues[entry.job.queue].generation;
        let mut assignment = Assignment {
            mode: AssignmentMode::Fit,
            counts: counts.to_vec(),
            chosen: Vec::new(),
            usage: Amounts::new(),
            level: 0,
            no_fit: None,
            scan: Scan { tried: Vec::new(), ends: Vec::new(), generation, cycle: self.cycle },
        };
        let scan = entry.scan.as_ref().filter(|_| pins.is_none());
        if let Some(earlier) = scan {
            assignment.scan.ends = earlier.ends.clone();
            assignment.scan.ends.push(earlier.tried.clone());
        }
        for (at, set) in entry.job.sets.iter().enumerate() {
            let start = scan.and_then(|scan| *scan.tried.get(at)?).map_or(0, |last| last + 1);
            let mut best: Option<(Grade, usize, [AssignmentMode; RESOURCES], u32)> = None;
            let mut reasons = Vec::new();
            let mut last = start;
            for place in start..queue.flavors.len() {
                last = place;
                let flavor = queue.flavors[place].0;
                if pins.is_some_and(|pins| pins.get(at).is_some_and(|pin| *pin != flavor)) {
                    continue;
                }
                if (flavor == 1 && entry.job.selects) || (flavor == 2 && !entry.job.tolerates) {
                    reasons.push(PendingReason::NoMatchingFlavor);
                    continue;
                }
                let mut grade = Grade { mode: PreemptionMode::Fit, level: 0 };
                let mut modes = [AssignmentMode::NoFit; RESOURCES];
                let mut level = 0;
                let mut short = Vec::new();
                for (resource, mode) in modes.iter_mut().enumerate() {
                    let amount = set.requests[resource] * i64::from(counts[at]);
                    let judged = self.judge(assumed, name, (flavor, resource), amount, &assignment.usage);
                    *mode = judged.0.assignment_mode();
                    level = level.max(judged.0.level);
                    short.extend(judged.1);
                    if grade.is_preferred(judged.0, queue.preference) {
                        grade = judged.0;
                    }
                }
                // All resource groups are needed (§8.13).
                reasons.extend(short.into_iter().min_by_key(|it| worst_severity(*it)));
                let continues = match grade.mode {
                    PreemptionMode::NoFit | PreemptionMode::NoPreemptionCandidates => true,
                    PreemptionMode::Preempt | PreemptionMode::Reclaim
                        if queue.when_can_preempt == FungibilityPolicy::TryNextFlavor =>
                    {
                        true
                    }
                    _ => grade.level > 0 && queue.when_can_borrow == FungibilityPolicy::TryNextFlavor,
                };
                let better = best.as_ref().is_none_or(|(known, ..)| grade.is_preferred(*known, queue.preference));
                if !continues || (better && grade.mode != PreemptionMode::NoFit) {
                    best = Some((grade, flavor, modes, level));
                }
                if !continues {
                    break;
                }
            }
            let Some((_, flavor, modes, level)) = best else {
                // Flavors are alternatives, so the least severe reason counts (§8.13).
                assignment.no_fit = Some(
                    reasons.into_iter().max_by_key(|it| worst_severity(*it)).unwrap_or(PendingReason::NoMatchingFlavor),
                );
                assignment.mode = AssignmentMode::NoFit;
                assignment.scan.tried.push(None);
                return assignment;
            };
            assignment.scan.tried.push((last + 1 < queue.flavors.len()).then_some(last));
            assignment.level = assignment.level.max(level);
            for (resource, mode) in modes.iter().enumerate() {
                let amount = set.requests[resource] * i64::from(counts[at]);
                *assignment.usage.entry((flavor, resource)).or_default() += amount;
                assignment.mode = assignment.mode.min(*mode);
            }
            assignment.chosen.push((flavor, modes));
        }
        assignment
    }

    /// Evaluates one resource on one flavor against quota (§8.5).
    fn judge(
        &self,
        assumed: &Assumptions,
        name: &str,
        fr: Fr,
        amount: i64,
        earlier: &Amounts,
    ) -> (Grade, Option<PendingReason>) {
        let (plan, queue) = (&self.plan, self.jobs[name].job.queue);
        let (node, policies, used) = (Node::Queue(queue), &plan.queues[queue], self.used(assumed));
        let total = earlier.get(&fr).copied().unwrap_or(0) + amount;
        let no_fit = |level| Grade { mode: PreemptionMode::NoFit, level };
        if total > quota::potential(plan, node, fr) {
            return (no_fit(0), Some(PendingReason::ExceedsMaxQuota));
        }
        let (level, may_reclaim) = quota::borrowing_level(plan, &used, queue, fr, total);
        if total <= quota::available(plan, &used, node, fr) {
            return (Grade { mode: PreemptionMode::Fit, level }, None);
        }
        let while_borrowing = policies.borrow != BorrowWithinCohort::Never
            || (plan.fair.is_some() && policies.reclaim != PreemptionPolicy::Never);
        if quota::quota(plan, node, fr).nominal < total && !may_reclaim && !while_borrowing {
            return (no_fit(level), Some(PendingReason::WaitingForQuota));
        }
        // Tests whether preempting for this flavor-resource alone would help (§8.6).
        let need = Need { name, queue, short: vec![fr], request: [(fr, total)].into() };
        let targets = self.targets(assumed, &need);
        if targets.is_empty() {
            return (Grade { mode: PreemptionMode::NoPreemptionCandidates, level }, None);
        }
        let mut then = assumed.clone();
        then.gone.extend(targets.iter().map(|(name, _)| name.clone()));
        let (level, _) = quota::borrowing_level(plan, &self.used(&then), queue, fr, total);
        let own = targets.iter().any(|(name, _)| self.jobs[name].job.queue == queue);
        (Grade { mode: if own { PreemptionMode::Preempt } else { PreemptionMode::Reclaim }, level }, None)
    }
}
