//! The workloads to preempt, written as the semantics state it (§9, §10).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use berth_engine::model::{BorrowWithinCohort, PreemptionPolicy};
use berth_engine::{PreemptionReason, PreemptionStrategy};

use super::quota::{self, Node};
use super::{Amounts, Entry, Fr, Model, Use};

/// Victims with the reason why each may be preempted.
pub type Targets = Vec<(String, PreemptionReason)>;

/// Assumptions while a decision is computed.
#[derive(Debug, Clone, Default)]
pub struct Assumptions {
    /// Workloads that are assumed to have left.
    pub gone: BTreeSet<String>,
    /// Usage that is assumed in addition to held quota.
    pub extra: Use,
}

/// The preemptor and its request.
#[derive(Debug, Clone)]
pub struct Need<'a> {
    pub name: &'a str,
    pub queue: usize,
    /// Flavor-resources that are short.
    pub short: Vec<Fr>,
    /// The whole request.
    pub request: Amounts,
}

impl Model {
    /// Usage under the assumptions.
    pub fn used(&self, assumed: &Assumptions) -> Use {
        let mut used = self.in_use(&assumed.gone);
        for (key, amount) in &assumed.extra {
            *used.entry(*key).or_default() += amount;
        }
        used
    }

    fn holder(&self, name: &str) -> &Entry {
        &self.jobs[name]
    }

    /// The targets that make the workload fit; empty if there are none.
    pub fn targets(&self, assumed: &Assumptions, need: &Need<'_>) -> Targets {
        match &self.plan.fair {
            None => self.classical(assumed, need),
            Some(strategies) => self.fair(assumed, need, strategies),
        }
    }

    /// True if the workload fits under the assumptions.
    fn fits(&self, assumed: &Assumptions, need: &Need<'_>, borrow: bool) -> bool {
        let (plan, used, node) = (&self.plan, self.used(assumed), Node::Queue(need.queue));
        need.request.iter().all(|(fr, amount)| {
            (borrow || !quota::borrows_with(plan, &used, node, *fr, *amount))
                && *amount <= quota::available(plan, &used, node, *fr)
        })
    }

    /// Drops targets that are not needed, from the second-to-last backwards (§9.9).
    fn fill_back(&self, assumed: &Assumptions, need: &Need<'_>, mut targets: Targets, borrow: bool) -> Targets {
        for at in (0..targets.len().saturating_sub(1)).rev() {
            let mut without = assumed.clone();
            without.gone.extend(targets.iter().map(|(name, _)| name.clone()));
            without.gone.remove(&targets[at].0);
            if self.fits(&without, need, borrow) {
                targets.swap_remove(at);
            }
        }
        let needless = |spared: &&(String, PreemptionReason)| {
            let mut without = assumed.clone();
            without.gone.extend(targets.iter().filter(|it| it != spared).map(|(name, _)| name.clone()));
            self.fits(&without, need, borrow)
        };
        // The last target is never dropped. Every other target is needed.
        assert!(targets.iter().filter(needless).count() <= 1, "needless victims for {}: {targets:?}", need.name);
        targets
    }

    fn satisfies(&self, policy: PreemptionPolicy, name: &str, candidate: &Entry) -> bool {
        let mine = self.holder(name);
        let lower = mine.job.priority > candidate.job.priority;
        match policy {
            PreemptionPolicy::Never => false,
            PreemptionPolicy::LowerPriority => lower,
            PreemptionPolicy::LowerOrNewerEqualPriority => {
                lower || (mine.job.priority == candidate.job.priority && mine.created < candidate.created)
            }
            PreemptionPolicy::Any => true,
        }
    }

    /// Holders of a queue that the policy allows to be preempted and that use a short
    /// flavor-resource (§9.3).
    fn exposed(&self, assumed: &Assumptions, need: &Need<'_>, queue: usize, policy: PreemptionPolicy) -> Vec<String> {
        let holders = self.jobs.iter().filter(|(name, entry)| {
            entry.job.queue == queue
                && !assumed.gone.contains(*name)
                && entry.held().is_some_and(|held| held.usage.keys().any(|fr| need.short.contains(fr)))
                && self.satisfies(policy, need.name, entry)
        });
        holders.map(|(name, _)| name.clone()).collect()
    }

    fn is_evicted(&self, name: &str) -> bool {
        self.holder(name).held().is_some_and(|held| held.evicted)
    }

    /// Compares two candidates in the order of preemption (§9.5).
    fn candidate_order(&self, own: usize, a: &str, b: &str) -> Ordering {
        let key = |name: &str| {
            let entry = self.holder(name);
            let since = entry.held().map_or(i64::MAX, |held| held.since);
            (!self.is_evicted(name), entry.job.queue == own, entry.job.priority, -since, name.to_owned())
        };
        key(a).cmp(&key(b))
    }

    fn classical(&self, assumed: &Assumptions, need: &Need<'_>) -> Targets {
        struct Candidate {
            name: String,
            /// 0: reclaimed because of the hierarchy; 1: reclaimed by priority; 2: in the
            /// preemptor's own queue.
            class: u8,
            common: Option<Node>,
            not_while_borrowing: bool,
            reason: PreemptionReason,
        }
        let (plan, policies, used) = (&self.plan, &self.plan.queues[need.queue], self.used(assumed));
        let own = Node::Queue(need.queue);
        let mut candidates = Vec::new();
        for name in self.exposed(assumed, need, need.queue, policies.within_queue) {
            let reason = PreemptionReason::InClusterQueue;
            candidates.push(Candidate { name, class: 2, common: None, not_while_borrowing: false, reason });
        }
        let mut remaining = need.request.clone();
        let fits_in = |node: Node, amounts: &Amounts| {
            amounts.iter().all(|(fr, it)| quota::usage(plan, &used, node, *fr) + it <= quota::subtree(plan, node, *fr))
        };
        let take_local = |node: Node, amounts: &mut Amounts| {
            for (fr, amount) in amounts.iter_mut() {
                *amount = (*amount - quota::local_available(plan, &used, node, *fr)).max(0);
            }
        };
        let mut advantage = fits_in(own, &remaining);
        take_local(own, &mut remaining);
        let mut visited = own;
        for cohort in quota::path(plan, own).into_iter().skip(1) {
            for queue in quota::queues_below(plan, cohort) {
                let way: Vec<Node> =
                    quota::path(plan, Node::Queue(queue)).into_iter().take_while(|node| *node != cohort).collect();
                // Workloads are candidates only if every queue and cohort above them, up to
                // `cohort`, uses more than its own quota and was not visited before.
                let closed = |node: &Node| *node == visited || quota::within_nominal(plan, &used, *node, &need.short);
                if way.iter().any(closed) {
                    continue;
                }
                for name in self.exposed(assumed, need, queue, policies.reclaim) {
                    let (class, not_while_borrowing, reason) = match policies.borrow {
                        _ if advantage => (0, false, PreemptionReason::InCohortReclamation),
                        BorrowWithinCohort::LowerPriority { max_priority_threshold }
                            if self.holder(&name).job.priority < self.holder(need.name).job.priority
                                && max_priority_threshold
                                    .is_none_or(|most| self.holder(&name).job.priority <= most) =>
                        {
                            (1, false, PreemptionReason::InCohortReclaimWhileBorrowing)
                        }
                        _ => (1, true, PreemptionReason::InCohortReclamation),
                    };
                    candidates.push(Candidate { name, class, common: Some(cohort), not_while_borrowing, reason });
                }
            }
            advantage = advantage || fits_in(cohort, &remaining);
            take_local(cohort, &mut remaining);
            visited = cohort;
        }
        candidates.sort_by(|a, b| {
            let key = |it: &Candidate| (!self.is_evicted(&it.name), it.class);
            key(a).cmp(&key(b)).then_with(|| self.candidate_order(need.queue, &a.name, &b.name))
        });
        let forbidden = policies.borrow == BorrowWithinCohort::Never;
        let under_nominal =
            need.short.iter().all(|fr| quota::usage(plan, &used, own, *fr) < quota::quota(plan, own, *fr).nominal);
        let attempts = if candidates.iter().all(|it| it.class == 2) || (forbidden && !under_nominal) {
            vec![true]
        } else if forbidden && candidates.iter().all(|it| it.class != 0) {
            vec![false, true]
        } else {
            vec![true, false]
        };
        for borrow in attempts {
            let mut then = assumed.clone();
            let mut targets = Targets::new();
            for candidate in &candidates {
                if let Some(common) = candidate.common {
                    let used = self.used(&then);
                    let queue = self.holder(&candidate.name).job.queue;
                    let mut way = quota::path(plan, Node::Queue(queue)).into_iter().take_while(|node| *node != common);
                    if (borrow && candidate.not_while_borrowing)
                        || way.any(|node| quota::within_nominal(plan, &used, node, &need.short))
                    {
                        continue;
                    }
                }
                then.gone.insert(candidate.name.clone());
                targets.push((candidate.name.clone(), candidate.reason));
                if self.fits(&then, need, borrow) {
                    return self.fill_back(assumed, need, targets, borrow);
                }
            }
        }
        Targets::new()
    }

    fn fair(&self, assumed: &Assumptions, need: &Need<'_>, strategies: &[PreemptionStrategy]) -> Targets {
        let (plan, policies, used) = (&self.plan, &self.plan.queues[need.queue], self.used(assumed));
        let own = Node::Queue(need.queue);
        let mut candidates = self.exposed(assumed, need, need.queue, policies.within_queue);
        if quota::parent(plan, own).is_some() {
            for queue in quota::queues_below(plan, quota::root(plan, own)) {
                let node = Node::Queue(queue);
                let borrows = need
                    .short
                    .iter()
                    .any(|fr| quota::usage(plan, &used, node, *fr) > quota::quota(plan, node, *fr).nominal);
                if queue != need.queue && borrows {
                    candidates.extend(self.exposed(assumed, need, queue, policies.reclaim));
                }
            }
        }
        candidates.sort_by(|a, b| self.candidate_order(need.queue, a, b));
        // The shares are computed as if the preemptor were admitted.
        let mut then = assumed.clone();
        quota::add(&mut then.extra, need.queue, &need.request);
        let mut targets = Targets::new();
        let fits_now = |then: &Assumptions| {
            let mut without = then.clone();
            quota::remove(&mut without.extra, need.queue, &need.request);
            self.fits(&without, need, true)
        };
        let done = |targets: Targets| self.fill_back(assumed, need, targets, true);
        let reclaims = quota::within_nominal(plan, &self.used(&then), own, &need.short);
        let mut retry: Vec<String> = Vec::new();
        let mut order = Order { model: self, need, waiting: candidates, pruned: BTreeSet::new() };
        while let Some(queue) = order.next(&then) {
            if queue == need.queue || reclaims {
                let Some(name) = order.pop(queue) else { continue };
                let reason = if queue == need.queue {
                    PreemptionReason::InClusterQueue
                } else {
                    PreemptionReason::InCohortReclamation
                };
                then.gone.insert(name.clone());
                targets.push((name, reason));
                if fits_now(&then) {
                    return done(targets);
                }
                continue;
            }
            let (mine, theirs) = self.below_common(need.queue, queue);
            let used = self.used(&then);
            let (new, old) = (quota::share(plan, &used, mine), quota::share(plan, &used, theirs));
            if new.is_infinite() && !old.is_infinite() {
                while let Some(name) = order.pop(queue) {
                    retry.push(name);
                }
                continue;
            }
            while let Some(name) = order.pop(queue) {
                let mut without = then.clone();
                without.gone.insert(name.clone());
                let passes = match strategies.first() {
                    Some(PreemptionStrategy::LessThanInitialShare) => new.compare(&old) == Ordering::Less,
                    _ => {
                        let last = quota::share(plan, &self.used(&without), theirs);
                        new.compare(&last) != Ordering::Greater
                    }
                };
                if !passes {
                    retry.push(name);
                    continue;
                }
                then = without;
                targets.push((name, PreemptionReason::InCohortFairSharing));
                if fits_now(&then) {
                    return done(targets);
                }
                break;
            }
        }
        if strategies.get(1) != Some(&PreemptionStrategy::LessThanInitialShare) {
            return Targets::new();
        }
        let mut order = Order { model: self, need, waiting: retry, pruned: BTreeSet::new() };
        while let Some(queue) = order.next(&then) {
            let (mine, theirs) = self.below_common(need.queue, queue);
            let used = self.used(&then);
            let smaller = quota::share(plan, &used, mine).compare(&quota::share(plan, &used, theirs)) == Ordering::Less;
            if smaller && let Some(name) = order.pop(queue) {
                then.gone.insert(name.clone());
                targets.push((name, PreemptionReason::InCohortFairSharing));
                if fits_now(&then) {
                    return done(targets);
                }
            }
            order.pruned.insert(Node::Queue(queue));
        }
        Targets::new()
    }

    /// The two nodes just below the lowest common cohort of two queues.
    fn below_common(&self, a: usize, b: usize) -> (Node, Node) {
        let (mut a, mut b) = (quota::path(&self.plan, Node::Queue(a)), quota::path(&self.plan, Node::Queue(b)));
        let mut last = (a[0], b[0]);
        while let (Some(x), Some(y)) = (a.pop(), b.pop()) {
            last = (x, y);
            if x != y {
                break;
            }
        }
        last
    }
}

/// The order in which queues provide victims (§10.6).
struct Order<'a> {
    model: &'a Model,
    need: &'a Need<'a>,
    waiting: Vec<String>,
    pruned: BTreeSet<Node>,
}

impl Order<'_> {
    fn first(&self, queue: usize) -> Option<usize> {
        self.waiting.iter().position(|name| self.model.jobs[name].job.queue == queue)
    }

    fn pop(&mut self, queue: usize) -> Option<String> {
        self.first(queue).map(|at| self.waiting.remove(at))
    }

    fn next(&mut self, then: &Assumptions) -> Option<usize> {
        let root = quota::root(&self.model.plan, Node::Queue(self.need.queue));
        if let Node::Queue(queue) = root {
            return (self.first(queue).is_some() && !self.pruned.contains(&root)).then_some(queue);
        }
        while !self.pruned.contains(&root) {
            if let Some(queue) = self.descend(then, root) {
                return Some(queue);
            }
        }
        None
    }

    fn descend(&mut self, then: &Assumptions, cohort: Node) -> Option<usize> {
        let plan = &self.model.plan;
        let used = self.model.used(then);
        let mine = quota::path(plan, Node::Queue(self.need.queue));
        let mut best: [Option<(quota::Share, Node)>; 2] = [None, None];
        for child in quota::children(plan, cohort) {
            if self.pruned.contains(&child) {
                continue;
            }
            let share = quota::share(plan, &used, child);
            let useless = share.borrowed.is_empty() && !mine.contains(&child);
            let better = match child {
                Node::Queue(queue) => {
                    if useless || self.first(queue).is_none() {
                        self.pruned.insert(child);
                        continue;
                    }
                    best[0].as_ref().is_none_or(|(known, other)| match share.compare(known) {
                        Ordering::Greater => true,
                        Ordering::Less => false,
                        Ordering::Equal => {
                            let name = |node: Node| match node {
                                Node::Queue(queue) => self.first(queue).map(|at| self.waiting[at].as_str()),
                                Node::Cohort(_) => None,
                            };
                            match (name(child), name(*other)) {
                                (Some(a), Some(b)) => {
                                    self.model.candidate_order(self.need.queue, a, b) == Ordering::Less
                                }
                                _ => false,
                            }
                        }
                    })
                }
                Node::Cohort(_) => {
                    if useless {
                        self.pruned.insert(child);
                        continue;
                    }
                    best[1].as_ref().is_none_or(|(known, _)| share.compare(known) != Ordering::Less)
                }
            };
            if better {
                best[usize::from(matches!(child, Node::Cohort(_)))] = Some((share, child));
            }
        }
        match best {
            [None, None] => {
                self.pruned.insert(cohort);
                None
            }
            [Some((_, Node::Queue(queue))), None] => Some(queue),
            [Some((share, Node::Queue(queue))), Some((larger, _))] if larger.compare(&share) == Ordering::Less => {
                Some(queue)
            }
            [_, Some((_, cohort))] => self.descend(then, cohort),
            [Some((_, Node::Cohort(_))), None] => None,
        }
    }
}
