//! Recorded cases of Kueue's scheduling: scheduler, preemption, flavor assignment, queues, caches
//! and topology.
//!
//! The controllers' translator turns the objects of a case into events for an engine. The results
//! are compared field by field. [`world`] has the engine and the objects of a case, and [`compare`]
//! computes the differences.

mod assigner;
mod cache;
mod compare;
mod helpers;
mod history;
mod preemption;
mod queues;
mod schedule;
mod topology;
mod world;

use super::Runner;

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "schedule"
        | "schedule-fair-sharing"
        | "schedule-recompute-preemption"
        | "schedule-concurrent-admission"
        | "schedule-tas"
        | "schedule-admission-fair-sharing" => schedule::cycles,
        "schedule-two-cycles" => schedule::two_cycles,
        "schedule-preserve-scan" => schedule::preserve_scan,
        "random" => history::random,
        "preemption" | "preemption-hierarchical" | "preemption-fair" => preemption::targets,
        "preemption-fair-ordering" => preemption::fair_ordering,
        "preemption-candidates-ordering" => preemption::candidates_ordering,
        "preemption-policy" => preemption::policy,
        "preemption-priority-info" => preemption::priority_info,
        "preemption-message" => preemption::message,
        "flavor-assigner" => assigner::assign,
        "flavor-assigner-tas-requests" => topology::requests,
        "flavor-assigner-tas-usage" => topology::usage,
        "flavor-assigner-total-requests" => assigner::total_requests,
        "flavor-assigner-recompute" => assigner::recompute,
        "flavor-assigner-preference" => assigner::preference,
        "flavor-assigner-partial-admission" => assigner::partial_admission,
        "cache-available" => cache::available,
        "cache-fair-sharing" => cache::fair_sharing,
        "cache-generation" => cache::generation,
        "cache-readiness" => cache::readiness,
        "cache-snapshot" => cache::snapshot,
        "cache-snapshot-usage" => cache::snapshot_usage,
        "cache-cluster-queue-usage" => cache::cluster_queue_usage,
        "cache-local-queue-usage" => cache::local_queue_usage,
        "queue-strict-fifo" => queues::strict_fifo,
        "queue-heads" => queues::heads,
        "queue-admission-fair-sharing" => queues::admission_fair_sharing,
        "queue-requeue" => queues::requeue,
        "queue-requeue-hash" | "queue-no-fit-reason" => queues::class_reason,
        "queue-requeue-workload" => queues::requeue_workload,
        "queue-operations" => queues::operations,
        "queue-push" => queues::push,
        "queue-backoff" => queues::backoff,
        "queue-inadmissible" => queues::inadmissible,
        "queue-add-workload" => queues::add_workload,
        "queue-update-workload" => queues::update_workload,
        "queue-second-pass" => queues::second_pass,
        "schedule-resources-to-reserve" => queues::resources_to_reserve,
        "schedule-requeue" => queues::entry_requeue,
        "schedule-last-assignment" => queues::last_assignment,
        "cache-tas-assignment" => topology::assignment,
        "schedule-entry-ordering" => helpers::entry_ordering,
        "schedule-fair-sharing-compare" => helpers::fair_sharing_compare,
        "schedule-afs-penalty" => helpers::entry_penalty,
        "cache-tas-domain-order" => helpers::domain_order,
        "cache-tas-level-order" => helpers::level_order,
        "cache-tas-has-level" => helpers::has_level,
        "cache-tas-merge" => helpers::merge,
        "cache-tas-truncate" => helpers::truncate,
        _ => return None,
    })
}
