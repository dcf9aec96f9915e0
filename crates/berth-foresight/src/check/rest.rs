//! Preemptions that repeat without end.
//!
//! `docs/queueing-map.md` names four settings under which rules of queueing form a loop. A set that
//! has one gets a note. If the set has jobs, they are also submitted at once in virtual time, and a
//! loop that really happens is an error.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{BorrowWithinCohort, ClusterQueue, PreemptionPolicy};
use berth_load::{Untimed, drive};

use super::facts::Facts;
use super::jobs::{self, Job};
use super::{Findings, text};
use crate::forward::{Forward, ForwardJob};
use crate::objects::ObjectRef;

/// Run time of the jobs of the set; only its order of magnitude matters.
const RUN_TIME: Duration = Duration::from_secs(3600);
/// Maximum number of jobs that are run.
const JOBS_MAX: usize = 5000;
/// Number of evictions of a job that no sequence of arrivals explains.
const EVICTIONS_MIN: u64 = 10;

pub(super) fn check(facts: &Facts<'_>, jobs: &[Job], findings: &mut Findings) {
    settings(facts, jobs, findings);
    run(facts, jobs, findings);
}

fn preempts(queue: &ClusterQueue) -> bool {
    let policies = &queue.preemption;
    policies.within_cluster_queue != PreemptionPolicy::Never
        || policies.reclaim_within_cohort != PreemptionPolicy::Never
}

/// The settings of which one rule follows, and together form a loop.
fn settings(facts: &Facts<'_>, jobs: &[Job], findings: &mut Findings) {
    let is_fair = facts.objects.config.fair_sharing.is_some();
    for queue in &facts.queues {
        let others = facts.others_in_tree(queue);
        let policies = &queue.preemption;
        let (field, why) = if is_fair && preempts(queue) && !others.is_empty() {
            (
                "preemption",
                "fair sharing compares shares before both workloads have moved, so two queues may preempt each \
                            other's workloads in turn",
            )
        } else if policies.borrow_within_cohort != BorrowWithinCohort::Never && others.len() > 1 {
            (
                "preemption.borrowWithinCohort",
                "a workload that borrows from a farther cohort may preempt one that goes \
                                               before it because it borrows from a nearer one",
            )
        } else if policies.reclaim_within_cohort == PreemptionPolicy::Any && others.iter().any(|other| borrows(other)) {
            (
                "preemption.reclaimWithinCohort",
                "Any reclaims quota from borrowers of higher priority, which are first \
                                                again as soon as the queue's workload moves",
            )
        } else {
            continue;
        };
        let help = "if workloads are preempted again and again, use LowerPriority for reclaimWithinCohort and Never for \
                    borrowWithinCohort; docs/queueing-map.md describes the loops";
        let object = ObjectRef::cluster("ClusterQueue", &queue.name);
        let found = text(format!("spec.{field}"), why, help);
        findings.add("preemption-may-not-rest", object, facts.queue_source(&queue.name), found);
    }
    let mut seen = BTreeSet::new();
    for job in jobs.iter().filter(|job| job.workload.pod_sets.len() > 1) {
        let queue = job.cluster_queue.as_ref().and_then(|name| facts.queues.iter().find(|it| it.name == *name));
        let Some(queue) = queue.filter(|queue| preempts(queue) && seen.insert(&queue.name)) else { continue };
        if !queue.resource_groups.iter().any(|group| group.flavors.len() > 1) {
            continue;
        }
        let why = format!(
            "jobs with several pod sets, such as {}, lose their position in the list of flavors when they preempt, and \
             may preempt the same workload again",
            job.object
        );
        let help = "give such jobs a queue with one flavor, or without preemption";
        let object = ObjectRef::cluster("ClusterQueue", &queue.name);
        let found = text("spec.preemption", why, help);
        findings.add("preemption-may-not-rest", object, facts.queue_source(&queue.name), found);
    }
}

fn borrows(queue: &ClusterQueue) -> bool {
    let flavors = queue.resource_groups.iter().flat_map(|group| &group.flavors);
    let mut quotas = flavors.flat_map(|flavor| &flavor.quotas);
    queue.cohort.is_some() && quotas.any(|(_, quota)| quota.borrowing_limit.is_none_or(|limit| !limit.is_zero()))
}

/// Submits all jobs of the set at once.
fn run(facts: &Facts<'_>, jobs: &[Job], findings: &mut Findings) {
    if jobs.len() < 2 || !facts.queues.iter().any(preempts) {
        return;
    }
    if jobs.len() > JOBS_MAX {
        let skipped = jobs.len() - JOBS_MAX;
        findings.unchecked.push(format!("whether preemptions end, for {skipped} jobs beyond the first {JOBS_MAX}"));
    }
    let jobs = &jobs[..jobs.len().min(JOBS_MAX)];
    let mut config = facts.objects.config.engine();
    config.flush_delay = Duration::ZERO;
    let forward = Forward {
        start: jobs.first().map_or(berth_engine::model::Time::from_seconds(0), |job| job.workload.created),
        objects: jobs::configuration(facts),
        jobs: jobs
            .iter()
            .map(|job| ForwardJob { workload: job.workload.clone(), created: Duration::ZERO, run_time: RUN_TIME })
            .collect(),
        restored: Vec::new(),
    };
    let history = drive::run(&forward, config, &mut Untimed);
    if history.restless == 0 {
        return;
    }
    let evicted = jobs.iter().zip(&history.jobs).filter(|(_, record)| record.evictions > EVICTIONS_MIN);
    let evicted: Vec<&Job> = evicted.map(|(job, _)| job).collect();
    let queues: BTreeSet<&Name> = evicted.iter().filter_map(|job| job.cluster_queue.as_ref()).collect();
    let names: Vec<String> = evicted.iter().take(4).map(|job| job.object.to_string()).collect();
    for queue in queues {
        let message = format!(
            "submitted at once, the jobs of the set preempt each other without end; among them: {}",
            names.join(", ")
        );
        let help =
            "change the preemption policies of the queue and of its cohort; docs/queueing-map.md describes the loops";
        let object = ObjectRef::cluster("ClusterQueue", queue);
        let found = text("spec.preemption", message, help);
        findings.add("preemption-never-rests", object, facts.queue_source(queue), found);
    }
}
