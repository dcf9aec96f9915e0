//! A whole scheduling cycle, written as the semantics state it (§4, §5, §6).

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use berth_engine::model::{PreemptionPolicy, QueueingStrategy};
use berth_engine::{AssignmentMode, PendingReason, PreemptionReason, RequeueReason};

use super::assign::Assignment;
use super::preempt::{Assumptions, Targets};
use super::quota::{self, Node};
use super::{Amounts, Held, Model, Place};

/// Decision of a cycle about one of its heads.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Pods and flavor per pod set.
    Admit(Vec<(i32, usize)>),
    /// Victims.
    Preempt(BTreeMap<String, PreemptionReason>),
    /// Why it waits, and how it returned to its queue.
    Wait(PendingReason, RequeueReason),
}

struct Head {
    name: String,
    queue: usize,
    assignment: Assignment,
    targets: Targets,
    deferred: bool,
    requeue: RequeueReason,
    answer: Option<Answer>,
    skipped: bool,
}

impl Model {
    /// Runs a cycle. Returns the decision about every head.
    pub fn run_cycle(&mut self) -> BTreeMap<String, Answer> {
        self.time += 1;
        self.cycle += 1;
        self.flush();
        let heads: Vec<String> = (0..self.plan.queues.len()).filter_map(|queue| self.head(queue)).collect();
        for name in &heads {
            self.drop_outdated_scan(name);
        }
        let mut entries: Vec<Head> = heads.into_iter().map(|name| self.nominate(name)).collect();
        let mut assumed = Assumptions::default();
        let mut claimed = BTreeSet::new();
        let mut done = Vec::new();
        while !entries.is_empty() {
            let mut head = entries.remove(self.next(&assumed, &entries));
            self.process(&mut head, &mut assumed, &mut claimed);
            done.push(head);
        }
        done.into_iter().map(|head| self.conclude(head)).collect()
    }

    /// Returns inadmissible workloads to the heap (§4.7).
    fn flush(&mut self) {
        for queue in std::mem::take(&mut self.flushes) {
            let root = quota::root(&self.plan, Node::Queue(queue));
            for other in quota::queues_below(&self.plan, root) {
                self.pending_queues[other].no_fit.clear();
                for entry in self.jobs.values_mut().filter(|entry| entry.job.queue == other) {
                    if entry.place == Place::Inadmissible {
                        entry.place = Place::Active;
                    }
                }
            }
        }
    }

    /// The head of a queue: the sticky workload, else the first by priority and age (§3.3).
    fn head(&self, queue: usize) -> Option<String> {
        let active = self.jobs.iter().filter(|(_, it)| it.job.queue == queue && it.place == Place::Active);
        let sticky = self.pending_queues[queue].preemptor.as_ref().filter(|_| self.is_best_effort(queue));
        let first = active
            .min_by_key(|(name, it)| (Some(*name) != sticky, Reverse(it.job.priority), it.created, (*name).clone()));
        first.map(|(name, _)| name.clone())
    }

    fn drop_outdated_scan(&mut self, name: &str) {
        let generation = self.pending_queues[self.jobs[name].job.queue].generation;
        let cycle = self.cycle;
        let Some(entry) = self.jobs.get_mut(name) else { return };
        let fresh = |scan: &mut super::Scan| scan.cycle + 1 >= cycle || scan.generation >= generation;
        entry.scan = entry.scan.take().filter(|scan| fresh(&mut scan.clone()));
    }

    fn nominate(&self, name: String) -> Head {
        let (assignment, targets) = self.assign(&Assumptions::default(), &name, None);
        let queue = self.jobs[&name].job.queue;
        let requeue = RequeueReason::Generic;
        Head { name, queue, assignment, targets, deferred: false, requeue, answer: None, skipped: false }
    }

    /// Index of the head that is processed next (§6).
    fn next(&self, assumed: &Assumptions, heads: &[Head]) -> usize {
        let order = |head: &Head| {
            let entry = &self.jobs[&head.name];
            (head.assignment.level, Reverse(entry.job.priority), entry.created)
        };
        if self.plan.fair.is_none() {
            return (0..heads.len()).min_by_key(|at| order(&heads[*at])).unwrap_or(0);
        }
        let root = quota::root(&self.plan, Node::Queue(heads[0].queue));
        self.tournament(assumed, heads, root).unwrap_or(0)
    }

    /// The best head below a node.
    fn tournament(&self, assumed: &Assumptions, heads: &[Head], node: Node) -> Option<usize> {
        if let Node::Queue(queue) = node {
            return heads.iter().position(|head| head.queue == queue);
        }
        let mut best: Option<(usize, Node)> = None;
        for child in quota::children(&self.plan, node) {
            let Some(at) = self.tournament(assumed, heads, child) else { continue };
            if best.is_none_or(|(other, sibling)| self.beats(assumed, (&heads[at], child), (&heads[other], sibling))) {
                best = Some((at, child));
            }
        }
        best.map(|(at, _)| at)
    }

    /// True if the first of two heads, from two children of one cohort, goes first (§6.2).
    fn beats(&self, assumed: &Assumptions, a: (&Head, Node), b: (&Head, Node)) -> bool {
        let share = |(head, node): (&Head, Node)| {
            let mut then = assumed.clone();
            quota::add(&mut then.extra, head.queue, &head.assignment.usage);
            quota::share(&self.plan, &self.used(&then), node)
        };
        let (mine, theirs) = (share(a), share(b));
        let borrows =
            |head: &Head, share: &quota::Share| share.borrowed.iter().any(|fr| head.assignment.usage.contains_key(fr));
        let key = |head: &Head| {
            let entry = &self.jobs[&head.name];
            (Reverse(entry.job.priority), entry.created)
        };
        borrows(a.0, &mine)
            .cmp(&borrows(b.0, &theirs))
            .then_with(|| mine.compare(&theirs))
            .then_with(|| key(a.0).cmp(&key(b.0)))
            == Ordering::Less
    }

    /// Decides one head against the state that the earlier ones left (§5.6).
    fn process(&self, head: &mut Head, assumed: &mut Assumptions, claimed: &mut BTreeSet<String>) {
        let overlaps =
            |targets: &Targets, claimed: &BTreeSet<String>| targets.iter().any(|(name, _)| claimed.contains(name));
        if overlaps(&head.targets, claimed) {
            let mut then = assumed.clone();
            then.gone.extend(claimed.iter().cloned());
            let pins: Vec<usize> = head.assignment.chosen.iter().map(|(flavor, _)| *flavor).collect();
            (head.assignment, head.targets) = self.assign(&then, &head.name, Some(&pins));
            head.deferred = head.assignment.mode == AssignmentMode::Fit;
        }
        let usage = head.assignment.usage.clone();
        match head.assignment.mode {
            AssignmentMode::NoFit => {
                head.requeue = RequeueReason::NoFit;
                let reason = head.assignment.no_fit.unwrap_or(PendingReason::NoMatchingFlavor);
                head.answer = Some(Answer::Wait(reason, head.requeue));
            }
            AssignmentMode::Preempt if head.targets.is_empty() => {
                head.requeue = RequeueReason::PreemptionNoCandidates;
                head.answer = Some(Answer::Wait(PendingReason::WaitingForQuota, head.requeue));
                if self.plan.queues[head.queue].reclaim != PreemptionPolicy::Any {
                    let reserved = self.reserved(head, &self.used(assumed));
                    quota::add(&mut assumed.extra, head.queue, &reserved);
                }
            }
            _ if head.deferred => {
                head.requeue = RequeueReason::PendingPreemption;
                head.answer = Some(Answer::Wait(PendingReason::WaitingForPreemptedWorkloads, head.requeue));
                quota::add(&mut assumed.extra, head.queue, &usage);
            }
            mode => {
                if overlaps(&head.targets, claimed) || !self.still_fits(head, assumed, claimed) {
                    head.skipped = true;
                    head.requeue = RequeueReason::FailedAfterNomination;
                    head.answer = Some(Answer::Wait(PendingReason::WaitingForQuota, head.requeue));
                    return;
                }
                claimed.extend(head.targets.iter().map(|(name, _)| name.clone()));
                quota::add(&mut assumed.extra, head.queue, &usage);
                if mode == AssignmentMode::Preempt {
                    head.requeue = RequeueReason::PendingPreemption;
                    head.answer = Some(Answer::Preempt(head.targets.iter().cloned().collect()));
                } else {
                    let sets = head.assignment.counts.iter().zip(&head.assignment.chosen);
                    head.answer = Some(Answer::Admit(sets.map(|(count, (flavor, _))| (*count, *flavor)).collect()));
                }
            }
        }
    }

    /// True if it fits once every victim of the cycle and its own victims have left (§5.7).
    fn still_fits(&self, head: &Head, assumed: &Assumptions, claimed: &BTreeSet<String>) -> bool {
        let mut then = assumed.clone();
        then.gone.extend(claimed.iter().cloned());
        then.gone.extend(head.targets.iter().map(|(name, _)| name.clone()));
        let used = self.used(&then);
        let usage = &head.assignment.usage;
        usage.iter().all(|(fr, it)| *it <= quota::available(&self.plan, &used, Node::Queue(head.queue), *fr))
    }

    /// Amounts to reserve for a head that must preempt and has no targets (§5.9).
    fn reserved(&self, head: &Head, used: &super::Use) -> Amounts {
        let (plan, node) = (&self.plan, Node::Queue(head.queue));
        let keep = |fr: super::Fr, amount: i64| {
            let quota = quota::quota(plan, node, fr);
            let free = quota.nominal - quota::usage(plan, used, node, fr);
            match quota.borrowing {
                Some(limit) if head.assignment.level > 0 => amount.min(free + limit),
                None if head.assignment.level > 0 => amount,
                _ => amount.min(free).max(0),
            }
        };
        head.assignment.usage.iter().map(|(fr, amount)| (*fr, keep(*fr, *amount))).collect()
    }

    /// Carries out a head's outcome (§4.4, §4.5, §4.8, §5.10).
    fn conclude(&mut self, head: Head) -> (String, Answer) {
        let answer = head.answer.expect("every head was processed");
        let (name, queue, time) = (head.name, head.queue, self.time);
        let scan = head.assignment.scan;
        if let Answer::Admit(sets) = &answer {
            let held = Held {
                counts: sets.iter().map(|(count, _)| *count).collect(),
                flavors: sets.iter().map(|(_, flavor)| *flavor).collect(),
                usage: head.assignment.usage,
                since: time,
                evicted: false,
            };
            let entry = self.jobs.get_mut(&name).expect("the heads exist");
            (entry.place, entry.scan) = (Place::Holding(held), None);
            let pending_queue = &mut self.pending_queues[queue];
            pending_queue.preemptor = pending_queue.preemptor.take().filter(|known| *known != name);
            return (name, answer);
        }
        if let Answer::Preempt(victims) = &answer {
            for victim in victims.keys() {
                if let Some(Place::Holding(held)) = self.jobs.get_mut(victim).map(|it| &mut it.place) {
                    held.evicted = true;
                }
            }
        }
        let started = matches!(answer, Answer::Preempt(_)) || head.deferred;
        let more = scan.has_more() && !started;
        let entry = self.jobs.get_mut(&name).expect("the heads exist");
        entry.scan = more.then_some(scan);
        let class = entry.class();
        if head.requeue == RequeueReason::PendingPreemption {
            self.pending_queues[queue].preemptor = Some(name.clone());
        }
        let at_once = match self.plan.queues[queue].strategy {
            QueueingStrategy::StrictFifo => true,
            QueueingStrategy::BestEffortFifo => {
                matches!(head.requeue, RequeueReason::FailedAfterNomination | RequeueReason::PendingPreemption)
            }
        };
        if at_once || more {
            return (name, answer);
        }
        self.jobs.get_mut(&name).expect("the heads exist").place = Place::Inadmissible;
        self.pending_queues[queue].no_fit.push(class.clone());
        for entry in self.jobs.values_mut() {
            if entry.job.queue == queue && entry.place == Place::Active && entry.class() == class {
                entry.place = Place::Inadmissible;
            }
        }
        (name, answer)
    }
}
