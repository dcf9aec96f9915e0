//! Decides from ProvisioningRequests which requests to create and delete, and the state of each
//! check.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::autoscaling::constants as words;
use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::events;
use berth_api::kueue::v1beta2::{
    AdmissionCheckState, CheckState, PodSetUpdate, ProvisioningRequestConfig, ResourceFlavor, Workload,
};
use berth_api::zero_time;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplate;
use kube::ResourceExt;

use super::requests::{self, Needed};
use crate::conditions;
use crate::cool_down::{self, Failure};
use crate::gates::{Gate, Gates};
use crate::plan::PlannedEvent;
use crate::workload::{checks, status};

/// Default of `backoffLimitCount`: the number of retries.
const BACKOFF_LIMIT_DEFAULT: i32 = 3;
/// Default of `backoffBaseSeconds`: the first delay.
const BACKOFF_BASE_DEFAULT: i32 = 60;
/// Default of `backoffMaxSeconds`: the longest delay.
const BACKOFF_MAX_DEFAULT: i32 = 1800;

/// The inputs of a decision other than the workload.
pub struct View<'a> {
    /// The workload's checks that this controller serves, with their configurations; `None` for an
    /// invalid check.
    pub checks: BTreeMap<String, Option<Arc<ProvisioningRequestConfig>>>,
    /// Requests owned by the workload.
    pub requests: Vec<Arc<ProvisioningRequest>>,
    /// Looks up flavors.
    pub flavor: &'a dyn Fn(&str) -> Option<Arc<ResourceFlavor>>,
    /// True if failures of flavors are recorded (cool-down).
    pub cool_down: bool,
    /// True if the workload can use other flavors than these, which failed.
    pub has_alternative: &'a dyn Fn(&[String]) -> bool,
    /// Feature gates.
    pub gates: &'a Gates,
    /// Current time.
    pub now: Timestamp,
}

/// One step to execute.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete a request.
    Delete(Arc<ProvisioningRequest>),
    /// Create the templates, then the request that refers to them, then make the request their
    /// owner.
    Create {
        /// Name of the check.
        check: String,
        /// Templates.
        templates: Vec<PodTemplate>,
        /// The request.
        request: Box<ProvisioningRequest>,
    },
    /// Record that the capacity of flavors was not provisioned, before the workload is queued
    /// again.
    Failed(Failure),
    /// Record that the capacity of flavors was provisioned.
    Succeeded(Vec<String>),
    /// Write the workload's status and report what changed.
    Status {
        /// The workload with its new status.
        workload: Box<Workload>,
        /// Events about it.
        events: Vec<PlannedEvent>,
    },
}

/// Returns the steps for a workload.
pub fn decide(workload: &Workload, view: &View<'_>) -> Result<Vec<Step>, requests::RequestError> {
    let mut steps = Vec::new();
    let delete_all = |steps: &mut Vec<Step>| steps.extend(view.requests.iter().cloned().map(Step::Delete));
    if status::is_finished(workload) {
        delete_all(&mut steps);
        return Ok(steps);
    }
    if status::is_evicted(workload) {
        if view.gates.on(Gate::CleanupProvisioningRequestsOnEviction) {
            delete_all(&mut steps);
        }
        return Ok(steps);
    }
    if !status::has_quota_reservation(workload) {
        return Ok(steps);
    }
    let name = workload.name_any();
    let states = workload.status.as_ref().map_or(&[][..], |status| &status.admission_checks);
    let mut kept: Vec<String> = Vec::new();
    let mut changed = workload.clone();
    let mut events = Vec::new();
    let mut creates = Vec::new();
    let mut outcomes = Vec::new();
    for (check, config) in &view.checks {
        let Some(state) = states.iter().find(|state| state.name == *check) else { continue };
        let latest = requests::latest(&view.requests, &name, check);
        // Without its configuration, the check makes no request and keeps none.
        let Some(config) = config else {
            set(&mut changed, update(state, CheckState::Pending, "the check is not active"), view, &mut events);
            continue;
        };
        if !requests::is_needed(workload, config)? {
            if state.state != CheckState::Ready {
                set(
                    &mut changed,
                    update(state, CheckState::Ready, "the provisioning request is not needed"),
                    view,
                    &mut events,
                );
            }
            continue;
        }
        let needed = requests::needed(workload, config)?;
        let attempt = state.retry_count.unwrap_or(0).saturating_add(1);
        // Requests of earlier attempts, and those for another class or other parameters, do not
        // count.
        let current = latest.filter(|(number, request)| {
            *number >= attempt
                && request.spec.provisioning_class_name == config.spec.provisioning_class_name
                && request.spec.parameters == requests::parameters(workload, config)
        });
        match current {
            Some((number, request)) => {
                kept.push(request.name_any());
                if let Some(mut new) = from_request(workload, state, number, request, config, &needed) {
                    outcomes.extend(outcome(workload, request, &needed, &mut new, view));
                    set(&mut changed, new, view, &mut events);
                }
            }
            // A Ready check means that the nodes were provisioned, so a missing request is not
            // created again.
            None if state.state == CheckState::Ready => {}
            None => {
                let attempt = latest.map_or(attempt, |(number, _)| attempt.max(number));
                let request = requests::request(workload, check, attempt, config, &needed);
                let templates = requests::templates(workload, &request.name_any(), &needed, view.flavor, view.gates)?;
                creates.push(Step::Create { check: check.clone(), templates, request: Box::new(request) });
            }
        }
    }
    let unneeded = view.requests.iter().filter(|request| !kept.contains(&request.name_any()));
    steps.extend(unneeded.cloned().map(Step::Delete));
    steps.extend(creates);
    steps.extend(outcomes);
    if changed != *workload {
        steps.push(Step::Status { workload: Box::new(changed), events });
    }
    Ok(steps)
}

/// The outcome of a request for its flavors, if cool-down is on. A workload that can use another
/// flavor is queued again without delay.
fn outcome(
    workload: &Workload,
    request: &ProvisioningRequest,
    needed: &[Needed],
    new: &mut AdmissionCheckState,
    view: &View<'_>,
) -> Option<Step> {
    if !view.cool_down {
        return None;
    }
    let flavors =
        cool_down::flavors_of(workload, |set| needed.iter().any(|n| n.pod_sets.iter().any(|name| name == set)));
    match new.state {
        CheckState::Ready => Some(Step::Succeeded(flavors)),
        CheckState::Retry | CheckState::Rejected => {
            if new.requeue_after_seconds.is_some() && (view.has_alternative)(&flavors) {
                new.requeue_after_seconds = Some(0);
            }
            let cause = request.uid().unwrap_or_else(|| request.name_any());
            Some(Step::Failed(Failure { flavors, cause, message: new.message.clone() }))
        }
        CheckState::Pending => None,
    }
}

/// The check state with another verdict. Delay and updates of the earlier verdict are dropped; the
/// number of retries is kept.
fn update(state: &AdmissionCheckState, verdict: CheckState, message: &str) -> AdmissionCheckState {
    AdmissionCheckState {
        name: state.name.clone(),
        state: verdict,
        message: message.to_owned(),
        last_transition_time: zero_time(),
        retry_count: state.retry_count,
        requeue_after_seconds: None,
        pod_set_updates: Vec::new(),
    }
}

fn set(workload: &mut Workload, new: AdmissionCheckState, view: &View<'_>, events: &mut Vec<PlannedEvent>) {
    let states = &mut status::status_mut(workload).admission_checks;
    let old = states.iter().find(|state| state.name == new.name).map(|state| state.state);
    if let Some(old) = old.filter(|old| *old != new.state) {
        let mut message = format!("Admission check {} updated state from {old} to {}", new.name, new.state);
        if !new.message.is_empty() {
            message.push_str(&format!(" with message: {}", new.message));
        }
        events.push(PlannedEvent::normal(events::ADMISSION_CHECK_UPDATED, message));
    }
    checks::set_state(states, new, view.now);
}

/// The check state that follows from a request's conditions, the first True one in order; `None` if
/// the state stays.
fn from_request(
    workload: &Workload,
    state: &AdmissionCheckState,
    attempt: i32,
    request: &ProvisioningRequest,
    config: &ProvisioningRequestConfig,
    needed: &[Needed],
) -> Option<AdmissionCheckState> {
    let conditions = request.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let holds = |type_: &str| conditions::find(conditions, type_).filter(|condition| condition.status == "True");
    let give_up_or_retry = |message: &str, retrying: &str| {
        let strategy = config.spec.retry_strategy.as_ref();
        let number = |pick: fn(&berth_api::kueue::v1beta2::ProvisioningRequestRetryStrategy) -> Option<i32>,
                      default| { strategy.and_then(pick).unwrap_or(default) };
        if attempt > number(|s| s.backoff_limit_count, BACKOFF_LIMIT_DEFAULT) {
            return update(state, CheckState::Rejected, message);
        }
        let base = i64::from(number(|s| s.backoff_base_seconds, BACKOFF_BASE_DEFAULT));
        let max = i64::from(number(|s| s.backoff_max_seconds, BACKOFF_MAX_DEFAULT));
        let factor = 1i64 << (attempt - 1).clamp(0, 31);
        let seconds = base.saturating_mul(factor).min(max);
        let mut new = update(state, CheckState::Retry, &format!("{retrying}: {message}"));
        new.requeue_after_seconds = i32::try_from(seconds).ok();
        new
    };
    if let Some(failed) = holds(words::FAILED) {
        if state.state == CheckState::Rejected {
            return None;
        }
        return Some(give_up_or_retry(&failed.message, "Retrying after failure"));
    }
    if let Some(revoked) = holds(words::CAPACITY_REVOKED) {
        if !status::is_active(workload) || status::is_finished(workload) {
            return None;
        }
        return Some(update(state, CheckState::Rejected, &revoked.message)).filter(|new| new.state != state.state);
    }
    if let Some(expired) = holds(words::BOOKING_EXPIRED) {
        if status::is_admitted(workload) {
            return None;
        }
        return Some(give_up_or_retry(&expired.message, "Retrying after booking expired"));
    }
    if let Some(provisioned) = holds(words::PROVISIONED) {
        if state.state == CheckState::Ready {
            return None;
        }
        let mut new = update(state, CheckState::Ready, &provisioned.message);
        new.pod_set_updates = pod_set_updates(request, config, needed);
        return Some(new);
    }
    if state.state == CheckState::Ready {
        return None;
    }
    // Accepted but not provisioned yet: show the estimate, if the autoscaler gives one.
    let message = match (holds(words::ACCEPTED), conditions::find(conditions, words::PROVISIONED)) {
        (Some(_), Some(waiting)) => waiting.message.as_str(),
        _ => "",
    };
    let new = AdmissionCheckState {
        last_transition_time: state.last_transition_time.clone(),
        ..update(state, CheckState::Pending, message)
    };
    (new.message != state.message || new.state != state.state).then_some(new)
}

/// The updates that make the pods run on the request's nodes.
fn pod_set_updates(
    request: &ProvisioningRequest,
    config: &ProvisioningRequestConfig,
    needed: &[Needed],
) -> Vec<PodSetUpdate> {
    let details = request.status.as_ref().map(|status| &status.provisioning_class_details);
    let mut selector = BTreeMap::new();
    for rule in config.spec.pod_set_updates.iter().flat_map(|updates| &updates.node_selector) {
        match details.and_then(|details| details.get(&rule.value_from_provisioning_class_detail)) {
            Some(value) => {
                selector.insert(rule.key.clone(), value.clone());
            }
            None => tracing::warn!(
                request = request.name_any(),
                detail = rule.value_from_provisioning_class_detail,
                "the request does not have this provisioning class detail"
            ),
        }
    }
    let annotations = BTreeMap::from([
        (words::CONSUME_PROVISIONING_REQUEST.to_owned(), request.name_any()),
        (words::PROVISIONING_CLASS_NAME.to_owned(), request.spec.provisioning_class_name.clone()),
    ]);
    needed
        .iter()
        .flat_map(|needed| &needed.pod_sets)
        .map(|name| PodSetUpdate {
            name: name.clone(),
            annotations: annotations.clone(),
            node_selector: selector.clone(),
            ..PodSetUpdate::default()
        })
        .collect()
}
