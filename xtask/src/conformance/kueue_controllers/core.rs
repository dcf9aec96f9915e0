//! Suites of the core controllers: workloads, queues, flavors and priority classes.

use std::time::Duration;

use berth_api::kueue::v1beta2::{
    AdmissionCheckState, ClusterQueue, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass,
};
use berth_controllers::configuration::file::DeviceClassMapping;
use berth_controllers::configuration::{
    Config, ObjectRetentionPolicies, RequeuingStrategy, WaitForPodsReady, WorkloadRetentionPolicy,
};
use berth_controllers::jobs::reconcile::Context;
use berth_controllers::plan::Step;
use berth_controllers::workload::reconcile::{not_ready, reconcile};
use berth_controllers::workload::{checks, status};
use berth_controllers::{Devices, Stores, duration, queues, translate};
use berth_engine::{Engine, Event};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input, now, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "core-workload-reconcile"
        | "core-workload-reconcile-dra"
        | "core-workload-reconcile-eviction"
        | "core-workload-reconcile-inadmissible"
        | "core-workload-reconcile-requeue" => workload_reconcile,
        "core-admitted-not-ready-workload" => admitted_not_ready,
        "core-sync-check-states" => sync_check_states,
        "core-reconcile-sync-admission-checks" => sync_admission_checks,
        "core-resource-flavor-reconcile" => flavor_reconcile,
        "core-workload-priority-class-reconcile" => priority_class_reconcile,
        "workload-sync-admitted-condition" => sync_admitted,
        "workload-set-requeue-state" => set_requeue_state,
        "workload-set-check-state" => set_check_state,
        "workload-finish" => finish,
        "workload-set-quota-reservation" => set_quota_reservation,
        "workload-admission-checks-for-workload" | "workload-filter-checks-for-admission" => required_checks,
        "workload-is-on-hold" => |case| flag(case, "wl", status::is_on_hold),
        "workload-get-max-retry-time" => max_retry_time,
        "workload-total-execution-time" => total_execution_time,
        _ => return None,
    })
}

fn go_duration(value: &Value) -> Option<Duration> {
    let parsed = duration::parse(value.as_str()?).ok()?;
    Some(Duration::try_from(parsed).unwrap_or_default())
}

/// An expected duration. Zero if the case has none.
fn wanted_duration(value: &Value) -> Result<Duration, String> {
    match value {
        Value::Null => Ok(Duration::ZERO),
        text => go_duration(text).ok_or_else(|| format!("{text} is not a duration")),
    }
}

fn workload_reconcile(case: &Case) -> Verdict {
    // Objects and configuration before the reconcile.
    let gates = gates(case);
    let data = &case.input;
    let mut stores = Stores::by_hand();
    if case.suite == "core-workload-reconcile-dra" {
        stores.devices = devices(case, &stores)?;
    }
    let workload: Workload = input(case, "workload")?;
    let mut namespace = Namespace::default();
    namespace.metadata.name = workload.namespace();
    stores.namespaces.observe(namespace);
    if !data["cq"].is_null() {
        let mut queue: ClusterQueue = read(&data["cq"])?;
        if data["shouldDeleteCQ"] == true {
            queue.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now(case)));
        }
        stores.cluster_queues.observe(queue);
    }
    if !data["lq"].is_null() {
        let mut queue: LocalQueue = read(&data["lq"])?;
        if data["shouldDeleteLQ"] == true {
            queue.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now(case)));
        }
        stores.local_queues.observe(queue);
    }
    let mut config = Config { wait_for_pods_ready: None, ..Config::default() };
    let options = &data["reconcilerOpts"];
    if let Some(wait) = options["waitForPodsReady"].as_object() {
        let number = |key: &str| wait.get(key).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok());
        let max = wait.get("requeuingBackoffMaxDuration").and_then(go_duration).unwrap_or_default();
        config.wait_for_pods_ready = Some(WaitForPodsReady {
            timeout: wait.get("timeout").and_then(go_duration),
            recovery_timeout: wait.get("recoveryTimeout").and_then(go_duration),
            requeuing_strategy: RequeuingStrategy {
                backoff_limit_count: number("requeuingBackoffLimitCount"),
                backoff_base_seconds: number("requeuingBackoffBaseSeconds").unwrap_or(0),
                backoff_max_seconds: i32::try_from(max.as_secs()).unwrap_or(i32::MAX),
                ..RequeuingStrategy::default()
            },
            ..WaitForPodsReady::default()
        });
    }
    if !options["workloadRetention"].is_null() {
        let policy: WorkloadRetentionPolicy = read(&options["workloadRetention"])?;
        config.object_retention_policies = Some(ObjectRetentionPolicies { workloads: Some(policy) });
    }
    // Reconcile, and apply the steps to the workload.
    let context = Context { stores: &stores, config: &config, gates: &gates, now: now(case) };
    let plan = reconcile(context, &workload);

    let want = &case.want;
    let failing = data["patchErr"].as_str();
    let mut after = Some(workload.clone());
    let mut events = Vec::new();
    let mut error = String::new();
    for step in plan.steps {
        match step {
            Step::PatchStatus(new) => {
                if let Some(message) = failing {
                    error = message.to_owned();
                    break;
                }
                if let Some(after) = &mut after {
                    after.status = new.status;
                }
            }
            Step::Patch(new) => {
                if let Some(old) = &mut after {
                    old.metadata = new.metadata;
                    old.spec = new.spec;
                }
            }
            Step::Delete(_) => after = None,
            Step::Event(event) => events.push(json!({
                "key": {"namespace": workload.namespace().unwrap_or_default(), "name": workload.name_any()},
                "eventType": format!("{:?}", event.event_type),
                "reason": event.reason,
                "message": event.message,
            })),
            _ => {}
        }
    }
    // Compare the workload. Berth writes merge patches: if the case records their result
    // separately, that result counts.
    let mut lines = Vec::new();
    let merged = &want["workloadUseMergePatch"];
    let mut wanted = want["workload"].clone();
    if !merged.is_null() {
        // Both recorded results are equal except for the fields that a merge patch can clear.
        for field in CLEARED {
            wanted["status"][field] = merged["status"][field].clone();
        }
        lines.extend(differences(&adjust(merged, &gates), &adjust(&wanted, &gates), &["requeueAt"]));
    }
    if !wanted.is_null() {
        let got = serde_json::to_value(&after).map_err(|e| e.to_string())?;
        let adjusted = adjust(&wanted, &gates);
        lines.extend(differences(&adjusted, &adjust(&got, &gates), &["requeueAt"]));
    }
    if let Some(wanted) = want.get("workloadsInQueue") {
        lines.extend(differences(
            &json!({"queued": wanted}),
            &json!({"queued": queued(&stores, after.as_ref(), now(case))}),
            &[],
        ));
    }
    if let Some(wanted) = want.get("dRAResourceTotal") {
        let total = device_total(&stores.devices, &workload);
        lines.extend(differences(&json!({"devices": wanted}), &json!({"devices": total}), &[]));
    }
    lines.extend(differences(&list(&want["events"]), &Value::from(events), &[]));
    let wanted_error = want["error"].as_str().unwrap_or_default();
    let part = want["errorMsg"].as_str().unwrap_or_default();
    // Compare the error and the requeue delay. Only a write can fail here. The case has the whole
    // error text or a part of it.
    if error != wanted_error && (part.is_empty() || !wanted_error.is_empty()) || !error.contains(part) {
        lines.push(format!("error: want {wanted_error:?}, got {error:?}"));
    }
    if want["result"]["requeue"] == true {
        lines.push("requeue: want an immediate requeue, which plans do not have".to_owned());
    }
    let wanted_after = wanted_duration(&want["result"]["requeueAfter"])?;
    let got_after = plan.requeue_after.unwrap_or_default();
    if wanted_after.as_secs() != got_after.as_secs() {
        lines.push(format!("requeueAfter: want {wanted_after:?}, got {got_after:?}"));
    }
    verdict(lines)
}

/// The claims and device classes of a case, with the mapping of the recorded test.
fn devices(case: &Case, stores: &Stores) -> Result<Devices, String> {
    let mappings: Vec<DeviceClassMapping> = read(&json!([{"name": "gpu", "deviceClassNames": ["gpu.example.com"]}]))?;
    let devices = Devices::by_hand(&mappings, &gates(case), &stores.workloads);
    for template in case.input["resourceClaimTemplates"].as_array().into_iter().flatten() {
        devices.template_cache().observe(read(template)?);
    }
    for class in case.input["additionalObjects"].as_array().into_iter().flatten() {
        devices.class_cache().observe(read(class)?);
    }
    Ok(devices)
}

/// The requests for the mapped device class of all pods.
fn device_total(devices: &Devices, workload: &Workload) -> i64 {
    let Ok(charges) = devices.charges(workload, Vec::new) else { return 0 };
    let (resources, classes) = (Default::default(), Default::default());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    let mut translated = translate::workload(workload, &context);
    charges.apply(&mut translated);
    let total =
        |set: &berth_engine::model::PodSet| set.requests.get("gpu").copied().unwrap_or(0) * i64::from(set.count);
    translated.pod_sets.iter().map(total).sum()
}

/// Status fields that a merge patch can clear. Upstream's default way of writing leaves them.
const CLEARED: [&str; 4] = ["admission", "conditions", "requeueState", "unhealthyNodes"];

/// Number of workloads that wait in a queue once the engine has the resulting workload.
fn queued(stores: &Stores, workload: Option<&Workload>, now: jiff::Timestamp) -> usize {
    let at = translate::time(now);
    let mut engine = Engine::new(Config::default().engine());
    let (resources, classes) = (Default::default(), Default::default());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    let queues = stores.cluster_queues.list();
    for queue in &queues {
        engine.apply(Event::ClusterQueueUpserted(translate::cluster_queue(queue)), at);
    }
    for queue in stores.local_queues.list() {
        engine.apply(Event::LocalQueueUpserted(translate::local_queue(&queue)), at);
    }
    if let Some(workload) = workload {
        engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(workload, &context))), at);
    }
    queues.iter().map(|queue| engine.pending(&queue.name_any()).len()).sum()
}

/// The workload without granular reasons if their gate is off. Upstream adjusts its expectations in
/// the same way.
fn adjust(workload: &Value, gates: &berth_controllers::Gates) -> Value {
    if gates.on(berth_controllers::Gate::UnadmittedWorkloadsObservability) {
        return workload.clone();
    }
    let mut workload = workload.clone();
    if let Some(conditions) = workload["status"]["conditions"].as_array_mut() {
        conditions.retain(|condition| !(condition["type"] == "Admitted" && condition["status"] == "False"));
        for condition in conditions {
            if condition["type"] == "QuotaReserved" && condition["status"] == "False" {
                condition["reason"] = json!("Pending");
            }
        }
    }
    workload
}

fn list(value: &Value) -> Value {
    if value.is_null() { json!([]) } else { value.clone() }
}

fn admitted_not_ready(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let config = &case.input["waitForPodsReady"];
    let timeout = |key: &str| go_duration(&config[key]);
    let (limit, recovery) = match config.is_null() {
        true => (None, None),
        false => (timeout("timeout"), timeout("recoveryTimeout")),
    };
    let got = not_ready(&workload, limit, recovery, now(case));
    let (cause, after) = got.map_or(("", Duration::ZERO), |(cause, after)| (cause, after));
    let want = &case.want;
    let wanted = (want["underlyingCause"].as_str().unwrap_or_default(), wanted_duration(&want["recheckAfter"])?);
    if (cause, after) == wanted { Ok(()) } else { Err(format!("want {wanted:?}, got {:?}", (cause, after))) }
}

fn sync_check_states(case: &Case) -> Verdict {
    let mut states: Vec<AdmissionCheckState> = input(case, "states")?;
    let required: Vec<String> = input(case, "list")?;
    let changed = checks::sync(&mut states, &required.into_iter().collect(), now(case));
    let want = &case.want;
    let mut lines = Vec::new();
    if changed != want["change"].as_bool().unwrap_or(false) {
        lines.push(format!("changed: got {changed}"));
    }
    let got = serde_json::to_value(states).map_err(|e| e.to_string())?;
    lines.extend(differences(&list(&want["states"]), &got, &[]));
    verdict(lines)
}

fn sync_admission_checks(case: &Case) -> Verdict {
    let workload: Workload = input(case, "wl")?;
    let queue: ClusterQueue = input(case, "cq")?;
    let mut states = workload.status.as_ref().map(|status| status.admission_checks.clone()).unwrap_or_default();
    checks::sync(&mut states, &checks::required(&workload, &queue), now(case));
    let got = serde_json::to_value(states).map_err(|e| e.to_string())?;
    verdict(differences(&list(&case.want["checks"]), &got, &[]))
}

/// The queue of the cases that record none.
fn queue_with_checks() -> Result<ClusterQueue, String> {
    let rule = |name: &str, flavors: &[&str]| json!({"name": name, "onFlavors": flavors});
    let flavor = |name: &str| json!({"name": name, "resources": []});
    let queue = json!({"metadata": {"name": "cq"}, "spec": {
        "resourceGroups": [{"coveredResources": [], "flavors": [flavor("flavor1"), flavor("flavor2")]}],
        "admissionChecksStrategy": {"admissionChecks": [
            rule("ac1", &["flavor1"]),
            rule("ac2", &["flavor2"]),
            rule("ac3", &["flavor1", "flavor2"]),
            rule("ac4", &["flavor1", "flavor2", "non-existent-flavor"]),
            rule("ac5", &["non-existent-flavor"]),
            rule("ac6", &[]),
        ]},
    }});
    read(&queue)
}

fn required_checks(case: &Case) -> Verdict {
    let workload: Workload = input(case, "wl")?;
    let queue: ClusterQueue = match case.suite.as_str() {
        "workload-filter-checks-for-admission" => input(case, "cq")?,
        _ => queue_with_checks()?,
    };
    let got: Vec<String> = checks::required(&workload, &queue).into_iter().collect();
    verdict(differences(&list(&case.want["admissionChecks"]), &json!(got), &[]))
}

fn flavor_reconcile(case: &Case) -> Verdict {
    let want = &case.want;
    let flavor: ResourceFlavor = input(case, "flavor")?;
    let queues: Vec<ClusterQueue> = input(case, "clusterQueues")?;
    let name = flavor.name_any();
    let in_use = queues.iter().any(|queue| queues::protect::uses_flavor(queue, &name));
    let deleted = want["deleted"] == true;
    // Upstream deletes some flavors before the reconcile, which the cases do not record: only the
    // outcome shows it. A flavor that is in use stays in both situations, so both are tested.
    let deletions: &[bool] = if deleted {
        &[true]
    } else if in_use {
        &[false, true]
    } else {
        &[false]
    };
    let mut lines = differences(&json!({"error": want["error"]}), &json!({"error": false}), &[]);
    for deleting in deletions {
        let mut flavor = flavor.clone();
        if *deleting {
            flavor.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now(case)));
        }
        let stored = (case.input["skipStore"] != true).then_some(flavor);
        let after = stored.map(|flavor| queues::protect::guarded(&flavor, in_use).unwrap_or(flavor));
        let is_removed =
            |flavor: &ResourceFlavor| flavor.metadata.deletion_timestamp.is_some() && flavor.finalizers().is_empty();
        lines.extend((deleted != after.as_ref().is_some_and(is_removed)).then(|| format!("deleted: want {deleted}")));
        let after = after.filter(|flavor| !is_removed(flavor));
        let got = serde_json::to_value(after).map_err(|e| e.to_string())?;
        lines.extend(differences(&json!({"flavor": want["flavor"]}), &json!({"flavor": got}), &["deletionTimestamp"]));
    }
    verdict(lines)
}

fn priority_class_reconcile(case: &Case) -> Verdict {
    let class: WorkloadPriorityClass = input(case, "wpc")?;
    let workloads: Vec<Workload> = input(case, "workloads")?;
    let after: Vec<Workload> =
        workloads.iter().map(|w| queues::priority_class::updated(w, &class).unwrap_or_else(|| w.clone())).collect();
    let got = json!({"workloads": after, "error": false});
    let want = json!({"workloads": case.want["workloads"], "error": case.want["error"]});
    verdict(differences(&want, &got, &[]))
}

fn sync_admitted(case: &Case) -> Verdict {
    let data = &case.input;
    let mut workload = Workload::named("foo");
    workload.metadata.generation = Some(1);
    let status_value = json!({
        "conditions": data["conditions"],
        "admissionChecks": data["checkStates"],
        "admission": data["admission"],
    });
    let mut status: berth_api::kueue::v1beta2::WorkloadStatus =
        serde_json::from_value(without_nulls(&status_value)).map_err(|e| e.to_string())?;
    status.accumulated_past_execution_time_seconds =
        data["pastAdmittedTime"].as_i64().and_then(|n| i32::try_from(n).ok()).filter(|n| *n > 0);
    workload.status = Some(status);
    let changed = status::sync_admitted(&mut workload, &gates(case), now(case));
    let want = &case.want;
    let mut lines = Vec::new();
    if changed != want["change"].as_bool().unwrap_or(false) {
        lines.push(format!("change: got {changed}"));
    }
    let past = workload.status.as_ref().and_then(|s| s.accumulated_past_execution_time_seconds).unwrap_or(0);
    if i64::from(past) != want["admittedTime"].as_i64().unwrap_or(0) {
        lines.push(format!("admittedTime: got {past}"));
    }
    let got = serde_json::to_value(status::conditions(&workload)).map_err(|e| e.to_string())?;
    lines.extend(differences(
        &json!({"conditions": list(&want["conditions"])}),
        &json!({"conditions": got}),
        &["message"],
    ));
    verdict(lines)
}

fn without_nulls(value: &Value) -> Value {
    let map = value.as_object().into_iter().flatten();
    map.filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn set_requeue_state(case: &Case) -> Verdict {
    let data = &case.input;
    let mut workload: Workload = input(case, "workload")?;
    let at = data["waitUntil"].as_str().unwrap_or_default().parse().map_err(|e| format!("{e}"))?;
    let updated = status::set_requeue_state(&mut workload, at, data["incrementCount"] == true);
    let state = workload.status.and_then(|status| status.requeue_state).unwrap_or_default();
    let got = json!({"updated": updated, "count": state.count, "requeueAt": state.requeue_at});
    let mut want = case.want.whole().clone();
    if want["updated"].is_null() {
        want["updated"] = json!(false);
    }
    verdict(differences(&want, &got, &[]))
}

fn set_check_state(case: &Case) -> Verdict {
    let mut states: Vec<AdmissionCheckState> = input(case, "origStates")?;
    checks::set_state(&mut states, input(case, "state")?, now(case));
    let got = serde_json::to_value(states).map_err(|e| e.to_string())?;
    verdict(differences(&list(&case.want["states"]), &got, &[]))
}

/// The stored object and the error after a write. A failing write leaves the object unchanged.
pub(super) fn written<T: Clone + PartialEq>(before: &T, after: T, failure: &Value) -> (T, Value) {
    if *before == after || failure.is_null() { (after, Value::Null) } else { (before.clone(), failure.clone()) }
}

fn finish(case: &Case) -> Verdict {
    let args = &case.input["args"];
    let before: Workload = read(&args["wl"])?;
    let mut after = before.clone();
    let text = |key: &str| args[key].as_str().unwrap_or_default();
    status::finish(&mut after, text("reason"), text("message"), now(case));
    let (after, error) = written(&before, after, &args["patchErr"]);
    verdict(differences(&case.want["result"], &json!({"wl": after, "err": error}), &[]))
}

fn set_quota_reservation(case: &Case) -> Verdict {
    let args = &case.input["args"];
    let mut workload: Workload = read(&args["workload"])?;
    status::set_quota_reservation(&mut workload, read(&args["admission"])?, now(case));
    let got = serde_json::to_value(workload).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["result"], &got, &[]))
}

fn flag(case: &Case, field: &str, is: fn(&Workload) -> bool) -> Verdict {
    let workload: Workload = input(case, field)?;
    let want = case.want["result"].as_bool().unwrap_or(false);
    if is(&workload) == want { Ok(()) } else { Err(format!("want {want}")) }
}

fn max_retry_time(case: &Case) -> Verdict {
    let mut workload = Workload::named("wl");
    status::status_mut(&mut workload).admission_checks = input(case, "checkStates")?;
    let got = checks::retry_at(&workload);
    let want: Option<jiff::Timestamp> = case.want["retryTime"].as_str().and_then(|text| text.parse().ok());
    // Go's zero time means that there is none.
    let want = want.filter(|at| at.as_second() > 0);
    if got == want { Ok(()) } else { Err(format!("want {want:?}, got {got:?}")) }
}

fn total_execution_time(case: &Case) -> Verdict {
    let workload: Workload = input(case, "wl")?;
    let got = status::total_execution_time(&workload);
    let want = go_duration(&case.want["result"]);
    if got == want { Ok(()) } else { Err(format!("want {want:?}, got {got:?}")) }
}
