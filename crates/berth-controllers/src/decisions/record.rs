//! Records of decisions: from a change that was written, or from the object that shows it.

use berth_api::berth::decision::{
    BalanceRecord, DecisionOutcome, DecisionRecord, Lost, PreemptionRecord, QuotaChangeRecord,
};
use berth_api::berth::explanation::{Job, ObjectName};
use berth_api::kueue::reasons::eviction;
use berth_api::kueue::v1beta2::Workload;
use berth_engine::{Balance, Considered, QuotaChange, Victim, WaitCause, WeightedShare, text};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::stay;
use crate::conditions;
use crate::explain::object::{amount, name_of, pod_set, search};
use crate::scheduler::carry_out::Change;
use crate::stores::controller_of;
use crate::workload::status;

/// The record of a change that was written at `now`; `None` for changes that decide nothing new.
pub(crate) fn of_change(
    change: &Change,
    before: &Workload,
    after: &Workload,
    now: Timestamp,
) -> Option<DecisionRecord> {
    let record = about(after, now);
    Some(match change {
        Change::Admit(admit) => {
            let (outcome, shown) = match status::is_admitted(after) {
                true => (DecisionOutcome::Admitted, conditions::ADMITTED),
                false => (DecisionOutcome::QuotaReserved, conditions::QUOTA_RESERVED),
            };
            let shown = status::true_condition(after, shown);
            DecisionRecord {
                outcome,
                cluster_queue: admit.admission.cluster_queue.to_string(),
                reason: shown.map(|shown| shown.reason.clone()).unwrap_or_default(),
                message: shown.map(|shown| shown.message.clone()).unwrap_or_default(),
                ..with_considered(record, &admit.considered)
            }
        }
        Change::Wait(wait) if !wait.second_pass_failed => {
            let preempts = matches!(wait.cause, WaitCause::Preempting { .. });
            DecisionRecord {
                outcome: if preempts { DecisionOutcome::Preempting } else { DecisionOutcome::Waiting },
                reason: wait.reason().as_str().to_owned(),
                message: wait.message(),
                ..with_considered(record, &wait.considered)
            }
        }
        Change::Preempt(victim) => DecisionRecord {
            outcome: DecisionOutcome::Preempted,
            cluster_queue: victim.cluster_queue.to_string(),
            reason: victim.reason.as_str().to_owned(),
            message: victim.message(),
            preemption: Some(preemption(victim)),
            lost: lost(before, now),
            ..record
        },
        Change::Evict(eviction) => DecisionRecord {
            outcome: DecisionOutcome::Evicted,
            reason: eviction.reason().to_owned(),
            message: eviction.message(),
            lost: lost(before, now),
            ..record
        },
        Change::Wait(_) | Change::Bypassed(_) | Change::ReplaceSlice { .. } => return None,
    })
}

/// The record of an eviction that an object shows, with the time of its condition. Used for
/// evictions that another controller or another process wrote.
pub(crate) fn of_object(workload: &Workload) -> Option<DecisionRecord> {
    let evicted = status::true_condition(workload, conditions::EVICTED)?;
    let at = evicted.last_transition_time.0;
    let preempted = evicted.reason == eviction::PREEMPTED;
    let detail = status::true_condition(workload, conditions::PREEMPTED).filter(|_| preempted);
    Some(DecisionRecord {
        outcome: if preempted { DecisionOutcome::Preempted } else { DecisionOutcome::Evicted },
        reason: detail.unwrap_or(evicted).reason.clone(),
        message: evicted.message.clone(),
        lost: lost(workload, at),
        ..about(workload, at)
    })
}

fn about(workload: &Workload, at: Timestamp) -> DecisionRecord {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    DecisionRecord {
        time: Some(Time(at)),
        workload: ObjectName { namespace: workload.namespace().unwrap_or_default(), name: workload.name_any() },
        uid: workload.metadata.uid.clone().unwrap_or_default(),
        job: controller_of(&workload.metadata).map(|owner| Job { kind: owner.kind.clone(), name: owner.name.clone() }),
        cluster_queue: admission.map(|admission| admission.cluster_queue.clone()).unwrap_or_default(),
        ..DecisionRecord::default()
    }
}

fn with_considered(record: DecisionRecord, considered: &Considered) -> DecisionRecord {
    DecisionRecord {
        pod_sets: considered.pod_sets.iter().map(pod_set).collect(),
        victim_searches: considered.victim_searches.iter().map(search).collect(),
        ..record
    }
}

fn preemption(victim: &Victim) -> PreemptionRecord {
    let preemption = &victim.preemption;
    PreemptionRecord {
        preemptor: Some(name_of(&preemption.workload)),
        preemptor_uid: preemption.uid.to_string(),
        preemptor_cluster_queue: preemption.cluster_queue.to_string(),
        preemptor_priority: Some(preemption.priority.effective()),
        priority: victim.priority.effective(),
        rule: text::rule(victim.reason, &preemption.policies, &preemption.cluster_queue),
        balances: preemption.balances.iter().map(balance).collect(),
        search: preemption.search.as_ref().map(search),
    }
}

fn balance(balance: &Balance) -> BalanceRecord {
    let quota = |it: &QuotaChange| QuotaChangeRecord {
        flavor: it.flavor.to_string(),
        resource: it.resource.to_string(),
        quota: amount(&it.resource, it.quota),
        before: amount(&it.resource, it.before),
        after: amount(&it.resource, it.after),
    };
    let share = |it: &WeightedShare| it.value;
    BalanceRecord {
        name: balance.name.to_string(),
        kind: if balance.is_cohort { "Cohort" } else { "ClusterQueue" }.to_owned(),
        quotas: balance.quotas.iter().map(quota).collect(),
        share_before: balance.shares.as_ref().map(|(before, _)| share(before)),
        share_after: balance.shares.as_ref().map(|(_, after)| share(after)),
    }
}

/// The loss of a workload that is evicted at `at`: the quota of its admission, and how long the
/// workload has held it.
fn lost(workload: &Workload, at: Timestamp) -> Option<Lost> {
    workload.status.as_ref()?.admission.as_ref()?;
    let since = status::true_condition(workload, conditions::QUOTA_RESERVED).map(|it| it.last_transition_time.clone());
    let seconds = since.as_ref().map(|since| (at.as_second() - since.0.as_second()).max(0));
    Some(Lost { holds: stay::holds(workload), since, seconds })
}
