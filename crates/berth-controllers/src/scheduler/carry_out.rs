//! Turns a decision of the engine into the new state of a workload and the events that report it,
//! based on the newest state of the object. This file writes nothing: the writer of decisions and
//! the runner of recorded cases do.

use berth_api::kueue::reasons::{eviction, finished};
use berth_api::kueue::v1beta2::{PodSetRequest, Workload};
use berth_api::kueue::{events, labels};
use berth_engine::model::WorkloadKey;
use berth_engine::{Admit, CycleOutcome, Name, PendingReason, Verdict, Victim, Wait};
use jiff::Timestamp;

use crate::conditions;
use crate::gates::{Gate, Gates};
use crate::plan::PlannedEvent;
use crate::translate::{admission, amounts, decision, workload_key};
use crate::workload::status;

/// A cycle's decision about one workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Reserve quota.
    Admit(Box<Admit>),
    /// Report why it waits.
    Wait(Box<Wait>),
    /// Evict it for another workload.
    Preempt(Box<Victim>),
    /// Evict it for a reason of its own.
    Evict(Box<berth_engine::Eviction>),
    /// Report that it became inadmissible with an equivalent workload (semantics §4.8).
    Bypassed(PendingReason),
    /// Finish it: a newer slice of its elastic job replaces it (semantics §13.3).
    ReplaceSlice {
        /// UID of the newer slice.
        uid: String,
        /// UID of the job, from the newer slice's label.
        job_uid: String,
    },
}

/// An event to record once the change is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The workload that the event is about; not always the one that was written.
    pub about: WorkloadKey,
    /// The event, with Kueue's message.
    pub event: PlannedEvent,
    /// The message without the name and priority of a workload of another namespace, which readers
    /// of the event may not be allowed to know. `None` if the message does not name such a
    /// workload.
    pub unnamed: Option<String>,
}

impl Report {
    /// The message to record.
    pub fn message(&self) -> &str {
        self.unnamed.as_ref().unwrap_or(&self.event.message)
    }
}

/// A cycle's decisions about each workload, in order. Victims that are already being evicted are
/// omitted.
pub fn changes(outcome: CycleOutcome) -> Vec<(WorkloadKey, Change)> {
    let mut list = Vec::new();
    for decision in outcome.decisions {
        let key = decision.workload;
        match decision.verdict {
            Verdict::Admit(admit) => list.push((key, Change::Admit(Box::new(admit)))),
            Verdict::Preempt { victims, wait } => {
                for victim in victims.into_iter().filter(|victim| victim.write) {
                    list.push((victim.workload.clone(), Change::Preempt(Box::new(victim))));
                }
                list.push((key, Change::Wait(Box::new(wait))));
            }
            Verdict::Wait(wait) => list.push((key, Change::Wait(Box::new(wait)))),
            Verdict::Evict(eviction) => list.push((key, Change::Evict(Box::new(eviction)))),
        }
    }
    list.extend(outcome.bypassed.into_iter().map(|(key, reason)| (key, Change::Bypassed(reason))));
    list
}

/// The change of the slice that an admitted workload replaces, if it replaces a slice.
pub fn replaced_slice(admitted: &Workload, admit: &Admit) -> Option<(WorkloadKey, Change)> {
    let label = |key: &str| admitted.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned();
    let uid = admitted.metadata.uid.clone().unwrap_or_default();
    let job_uid = label(labels::JOB_UID).unwrap_or_default();
    Some((admit.replaces.clone()?, Change::ReplaceSlice { uid, job_uid }))
}

/// The new state of the workload, and the events to record; `None` if the change no longer applies
/// to it.
pub fn carry_out(change: &Change, before: &Workload, gates: &Gates, now: Timestamp) -> Option<(Workload, Vec<Report>)> {
    let mut after = before.clone();
    let mut reports = Reports { about: workload_key(before), list: Vec::new() };
    match change {
        Change::Admit(it) => admit(&mut after, it, &mut reports, gates, now)?,
        Change::Wait(it) => wait(&mut after, it, &mut reports, gates, now)?,
        Change::Preempt(victim) => {
            if !may_be_evicted(&after) {
                return None;
            }
            let (message, preemptor) = (victim.message(), &victim.preemption.workload);
            status::preempt(&mut after, victim.reason.as_str(), &message, gates, now);
            reports.add(PlannedEvent::normal(status::eviction_event(eviction::PREEMPTED), message));
            reports.add(PlannedEvent::normal(events::PREEMPTED, decision::preempted_event(victim)));
            reports.list.push(Report {
                about: preemptor.clone(),
                event: PlannedEvent::normal(events::PREEMPTED_WORKLOAD, decision::preempted_workload_event(victim)),
                unnamed: (preemptor.namespace != victim.workload.namespace)
                    .then(|| decision::preempted_unnamed_event(victim)),
            });
        }
        Change::Evict(eviction) => {
            if !may_be_evicted(&after) {
                return None;
            }
            let (reason, message) = (eviction.reason(), eviction.message());
            status::evict(&mut after, &status::Eviction { reason, cause: "", message: &message }, gates, now);
            reports.add(PlannedEvent::normal(status::eviction_event(reason), message));
        }
        Change::Bypassed(reason) => {
            if !is_waiting(&after) {
                return None;
            }
            let message = "Bypassed scheduling evaluation because an equivalent workload recently failed";
            let reason = decision::pending_reason(*reason, gates);
            status::unset_quota_reservation(&mut after, reason, message, gates, now);
        }
        Change::ReplaceSlice { uid, job_uid } => {
            let message = format!(
                "Replaced to accommodate a workload (UID: {uid}, JobUID: {job_uid}) due to workload slice aggregation"
            );
            if !status::finish(&mut after, finished::WORKLOAD_SLICE_REPLACED, &message, now) {
                return None;
            }
            reports.add(PlannedEvent::normal(events::WORKLOAD_SLICE_REPLACED, message));
        }
    }
    Some((after, reports.list))
}

/// Events to record about one workload.
struct Reports {
    about: WorkloadKey,
    list: Vec<Report>,
}

impl Reports {
    fn add(&mut self, event: PlannedEvent) {
        self.list.push(Report { about: self.about.clone(), event, unnamed: None });
    }
}

/// Reserves quota, and admits at once if every required check is listed and Ready (semantics
/// §17.3). The workload controller adds missing checks.
fn admit(after: &mut Workload, admit: &Admit, reports: &mut Reports, gates: &Gates, now: Timestamp) -> Option<()> {
    if !status::is_active(after) || status::is_finished(after) || status::is_on_hold(after) {
        return None;
    }
    let by_prefix = gates.on(Gate::TASAssignmentsEncodingByHostnamePrefix);
    let admission = admission::to_api(&admit.admission, by_prefix);
    if admit.second_pass {
        if !status::has_quota_reservation(after) || status::is_evicted(after) {
            return None;
        }
        let status = status::status_mut(after);
        status.admission = Some(admission);
        status.unhealthy_nodes.clear();
    } else {
        if !is_waiting(after) {
            return None;
        }
        let queue = &admission.cluster_queue;
        let queued = status::seconds_queued(after, now);
        let mut message = format!("Quota reserved in ClusterQueue {queue}, wait time since queued was {queued}s");
        message.push_str(&decision::flavors_considered(&admit.considered));
        reports.add(PlannedEvent::normal(events::QUOTA_RESERVED, message));
        status::set_quota_reservation(after, admission, now);
    }
    let was_admitted = status::is_admitted(after);
    let listed = |check: &Name| {
        after.status.iter().flat_map(|status| &status.admission_checks).any(|state| state.name == **check)
    };
    if admit.checks.iter().all(listed) {
        status::sync_admitted(after, gates, now);
    }
    if status::is_admitted(after) && !was_admitted {
        reports.add(PlannedEvent::normal(events::ADMITTED, admitted_message(after, now)));
    }
    Some(())
}

fn wait(after: &mut Workload, wait: &Wait, reports: &mut Reports, gates: &Gates, now: Timestamp) -> Option<()> {
    if wait.second_pass_failed {
        reports.add(PlannedEvent::warning(events::SECOND_PASS_FAILED, wait.message()));
        return Some(());
    }
    if !is_waiting(after) {
        return None;
    }
    let (reason, message) = (decision::pending_reason(wait.reason(), gates), wait.message());
    let changed = status::unset_quota_reservation(after, reason, &message, gates, now);
    let requests = wait.requests.iter().map(|(name, resources)| PodSetRequest {
        name: name.to_string(),
        resources: amounts::to_resource_list(resources),
    });
    status::set_resource_requests(after, requests.collect());
    if wait.cause.is_preemption_gated() {
        let type_ = conditions::BLOCKED_ON_PREEMPTION_GATES;
        status::set(after, type_, true, "PreemptionGated", &message, now);
    }
    if changed {
        reports.add(PlannedEvent::warning(reason, message));
    }
    Some(())
}

fn may_be_evicted(workload: &Workload) -> bool {
    status::has_quota_reservation(workload) && !status::is_evicted(workload) && !status::is_finished(workload)
}

/// True if the workload still waits for quota.
fn is_waiting(workload: &Workload) -> bool {
    !status::has_quota_reservation(workload)
        && !status::is_finished(workload)
        && status::is_active(workload)
        && !status::is_on_hold(workload)
        && workload.metadata.deletion_timestamp.is_none()
}

fn admitted_message(workload: &Workload, now: Timestamp) -> String {
    let queue = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let queue = queue.map(|admission| admission.cluster_queue.as_str()).unwrap_or_default();
    let seconds = status::seconds_since_reservation(workload, now);
    format!("Admitted by ClusterQueue {queue}, wait time since reservation was {seconds}s")
}
