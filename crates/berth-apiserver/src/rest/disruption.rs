//! Disruption budgets: limits evictions until the disruption controller has recounted the pods.
//!
//! Behaviour after Kubernetes' documentation of the eviction API and of PodDisruptionBudgetStatus,
//! and its tests of evictions.

use std::sync::Arc;

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::selector::LabelSelector;
use berth_apimachinery::status::{Cause, Status};
use berth_store::{CommitError, Record, Write};
use serde_json::{Value, json};

use super::call::Call;
use super::create::commit_status;
use crate::objects;
use berth_kinds::crd::conditions::{self, Condition};

const GROUP: &str = "policy";
const PLURAL: &str = "poddisruptionbudgets";
/// Maximum number of evictions in a budget's status that its controller has not processed. A larger
/// number suggests that no controller runs.
const DISRUPTED_MAX: usize = 2000;
/// Attempts to update a budget that other clients write at the same time.
const ATTEMPTS: usize = 16;
/// `Retry-After` in seconds for a budget that is being processed.
const PROCESSED_AFTER: u32 = 10;
/// The condition that reports whether pods may be evicted.
const ALLOWED: &str = "DisruptionAllowed";

/// The condition of a pod that is ended for a reason outside of the pod.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The reason why an eviction is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// The budget was charged, or the pod has no budget.
    Counted,
    /// The budget does not count the pod in its current state. In another state, it may forbid the
    /// eviction.
    Uncounted,
}

/// Rejects the eviction, or charges the pod's budget. A pod that the budget does not count is not
/// charged, nor is a dry run.
pub(super) async fn allow(call: &Call, pod: &Value) -> Result<Allowed, Status> {
    let Some(name) = budget_of(call, pod)? else { return Ok(Allowed::Counted) };
    let key = objects::key(GROUP, PLURAL, meta::namespace(pod), &name);
    for _ in 0..ATTEMPTS {
        // The budget has been deleted in the meantime, so no limit applies.
        let Some(record) = call.server.store().get(&key) else { return Ok(Allowed::Counted) };
        let Some(charged) = charged(call, &record, pod)? else { return Ok(Allowed::Uncounted) };
        if call.options.dry_run {
            return Ok(Allowed::Counted);
        }
        let write = Write::Update { key: key.clone(), expected: record.revision, value: charged };
        match call.server.store().commit(write).await {
            Ok(_) => return Ok(Allowed::Counted),
            Err(CommitError::Conflict { .. } | CommitError::NotFound { .. }) => {}
            Err(error) => return Err(commit_status(call, error)),
        }
    }
    Err(Status::timeout(format!("couldn't update PodDisruptionBudget {name:?} due to conflicts"), PROCESSED_AFTER))
}

/// Gives a pod that will be evicted the condition `DisruptionTarget`, which failure policies of
/// Jobs match. Returns the pod's new revision. `None` if no budget counts the pod and another
/// client changed it: then the eviction must be decided again.
pub(super) async fn mark(call: &Call, mut record: Arc<Record>, allowed: Allowed) -> Result<Option<u64>, Status> {
    for _ in 0..ATTEMPTS {
        let mut pod = record.value().as_ref().clone();
        let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        if call.options.dry_run || has_ended || meta::deletion_timestamp(&pod).is_some() {
            return Ok(Some(record.revision));
        }
        let (reason, message) = ("EvictionByEvictionAPI", "Eviction API: evicting");
        let condition = Condition { kind: DISRUPTION_TARGET, status: "True", reason, message };
        conditions::set(&mut pod, &condition, call.server.timestamp().as_str().unwrap_or_default());
        let write = Write::Update { key: call.key(), expected: record.revision, value: pod };
        match call.server.store().commit(write).await {
            Ok(written) => return Ok(Some(written.record.revision)),
            Err(CommitError::Conflict { .. }) if allowed == Allowed::Uncounted => return Ok(None),
            Err(CommitError::Conflict { .. }) => record = call.stored()?,
            Err(error) => return Err(commit_status(call, error)),
        }
    }
    let text = format!("couldn't update the status of pod {:?} due to conflicts", call.info.name);
    Err(Status::timeout(text, PROCESSED_AFTER))
}

/// The name of the pod's budget. Several budgets cannot be charged together.
fn budget_of(call: &Call, pod: &Value) -> Result<Option<String>, Status> {
    let Some(labels) = meta::labels(pod).filter(|labels| !labels.is_empty()) else { return Ok(None) };
    let budgets = call.server.inner.objects.list(GROUP, PLURAL, Some(meta::namespace(pod)));
    let selects = |budget: &&Arc<Value>| {
        let selector = &budget["spec"]["selector"];
        selector.is_object() && LabelSelector::from_object(selector).is_ok_and(|selector| selector.matches(labels))
    };
    let mut found = budgets.iter().filter(selects);
    let budget = found.next().map(|budget| meta::name(budget).to_owned());
    match found.next() {
        None => Ok(budget),
        Some(_) => Err(Status::internal(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

/// The budget after one more eviction; `None` if the eviction is not charged.
fn charged(call: &Call, record: &Record, pod: &Value) -> Result<Option<Value>, Status> {
    let mut budget = record.value().as_ref().clone();
    let (name, status) = (meta::name(&budget), &budget["status"]);
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    // The budget does not count pods that are not ready.
    if !is_ready(pod) {
        let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        let is_kept = number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy");
        if always || is_kept {
            return Ok(None);
        }
    }
    let rejected = |why: String, retry_after: u32| {
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
        Status::too_many_requests(text, retry_after).with_causes([cause])
    };
    let forbidden = |why: &str| Status::forbidden(&GroupResource::new(GROUP, "poddisruptionbudget"), name, why);
    if number("observedGeneration") < meta::generation(&budget) {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(rejected(why, PROCESSED_AFTER));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > DISRUPTED_MAX) {
        return Err(forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller"));
    }
    if allowed == 0 {
        let failed = conditions::find(&budget, ALLOWED).filter(|condition| condition["reason"] == "SyncFailed");
        let why = match failed {
            Some(condition) => format!(
                "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
                condition["message"].as_str().unwrap_or_default()
            ),
            None => format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                number("desiredHealthy"),
                number("currentHealthy")
            ),
        };
        return Err(rejected(why, 0));
    }
    let now = call.server.timestamp();
    let status = meta::map_mut(meta::map_mut(&mut budget).entry("status").or_insert_with(|| json!({})));
    status.insert("disruptionsAllowed".to_owned(), (allowed - 1).into());
    // Until the controller has processed the eviction, it does not count the pod as healthy.
    let disrupted = meta::map_mut(status.entry("disruptedPods").or_insert_with(|| json!({})));
    disrupted.insert(meta::name(pod).to_owned(), now.clone());
    if allowed == 1 {
        let condition = Condition { kind: ALLOWED, status: "False", reason: "InsufficientPods", message: "" };
        conditions::set(&mut budget, &condition, now.as_str().unwrap_or_default());
    }
    Ok(Some(budget))
}

fn is_ready(pod: &Value) -> bool {
    conditions::find(pod, "Ready").is_some_and(|condition| condition["status"] == "True")
}
