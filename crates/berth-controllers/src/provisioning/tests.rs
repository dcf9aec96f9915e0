//! Requests and check states of workloads given as manifests (§18).

use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::v1beta2::{AdmissionCheckState, CheckState, ProvisioningRequestConfig, Workload};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::decide::{Step, View, decide};
use super::requests::{needed, request_name, template_name};
use crate::gates::{Gate, Gates};

const NOW: &str = "2026-01-01T00:10:00Z";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn config(spec: Value) -> ProvisioningRequestConfig {
    let mut object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ProvisioningRequestConfig",
        "metadata": {"name": "config"}, "spec": {"provisioningClassName": "class"}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    read(object)
}

/// A pod set of `count` pods, each with a container that requests one of `resource`.
fn set(name: &str, count: i32, resource: &str) -> Value {
    json!({"name": name, "count": count, "template": {"spec": {"containers": [
        {"name": "main", "image": name, "resources": {"requests": {resource: "1"}}}]}}})
}

/// A workload with quota for these pod sets, its check in this state, and further True conditions.
fn workload(sets: &[Value], check: Value, conditions: &[&str]) -> Workload {
    let condition = |type_: &&str| {
        json!({"type": type_, "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let mut state =
        json!({"name": "prov", "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for (key, value) in check.as_object().into_iter().flatten() {
        state[key] = value.clone();
    }
    let conditions: Vec<Value> = ["QuotaReserved"].iter().chain(conditions).map(condition).collect();
    let assigned: Vec<Value> = sets.iter().map(|set| json!({"name": set["name"], "count": set["count"]})).collect();
    read(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "train", "namespace": "team", "uid": "u"},
        "spec": {"queueName": "lq", "podSets": sets},
        "status": {
            "conditions": conditions,
            "admission": {"clusterQueue": "cq", "podSetAssignments": assigned},
            "admissionChecks": [state],
        },
    }))
}

/// The request of an attempt, with True conditions and their messages.
fn answered(attempt: i32, conditions: &[(&str, &str)]) -> Arc<ProvisioningRequest> {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(type_, message)| {
            json!({"type": type_, "status": "True", "reason": "R", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        })
        .collect();
    Arc::new(read(json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
        "metadata": {"name": request_name("train", "prov", attempt), "namespace": "team"},
        "spec": {"provisioningClassName": "class", "podSets": []},
        "status": {"conditions": conditions, "provisioningClassDetails": {"reservation": "r-1", "other": "o"}},
    })))
}

fn steps(workload: &Workload, config: &ProvisioningRequestConfig, requests: &[Arc<ProvisioningRequest>]) -> Vec<Step> {
    steps_with(workload, config, requests, &Gates::default())
}

fn steps_with(
    workload: &Workload,
    config: &ProvisioningRequestConfig,
    requests: &[Arc<ProvisioningRequest>],
    gates: &Gates,
) -> Vec<Step> {
    let view = View {
        checks: [("prov".to_owned(), Some(Arc::new(config.clone())))].into(),
        requests: requests.to_vec(),
        flavor: &|_| None,
        cool_down: false,
        has_alternative: &|_| false,
        gates,
        now: NOW.parse().expect("a time"),
    };
    decide(workload, &view).expect("a decision")
}

/// The check state that the steps write.
fn written(steps: &[Step]) -> Option<AdmissionCheckState> {
    let workload = steps.iter().find_map(|step| match step {
        Step::Status { workload, .. } => Some(workload),
        _ => None,
    })?;
    Some(workload.status.as_ref()?.admission_checks[0].clone())
}

/// State, message and delay that the steps write.
fn verdict(steps: &[Step]) -> Option<(CheckState, String, Option<i32>)> {
    written(steps).map(|state| (state.state, state.message, state.requeue_after_seconds))
}

fn deleted(steps: &[Step]) -> usize {
    steps.iter().filter(|step| matches!(step, Step::Delete(_))).count()
}

#[test]
fn only_pod_sets_that_request_a_managed_resource_need_nodes() {
    let sets = [set("gpus", 2, "nvidia.com/gpu"), set("cores", 3, "cpu"), set("none", 0, "nvidia.com/gpu")];
    let workload = workload(&sets, json!({}), &[]);
    let asked = |managed: Value| -> Vec<(String, i32)> {
        let needed = needed(&workload, &config(json!({"managedResources": managed}))).expect("pod sets");
        needed.into_iter().map(|it| (it.pod_sets.join("+"), it.count)).collect()
    };
    assert_eq!(asked(json!(["nvidia.com/gpu"])), [("gpus".to_owned(), 2)]);
    assert_eq!(asked(json!([])), [("gpus".to_owned(), 2), ("cores".to_owned(), 3)]);
    let none = steps(&workload, &config(json!({"managedResources": ["example.com/tpu"]})), &[]);
    assert_eq!(verdict(&none), Some((CheckState::Ready, "the provisioning request is not needed".to_owned(), None)));
}

#[test]
fn a_request_has_one_template_per_pod_set_and_merges_equal_ones_by_policy() {
    let mut other = set("other-image", 3, "cpu");
    other["template"]["spec"]["containers"][0]["image"] = json!("something-else");
    let mut twin = set("twin", 2, "cpu");
    twin["template"] = set("first", 1, "cpu")["template"].clone();
    let workload = workload(&[set("first", 1, "cpu"), twin, other, set("gpus", 4, "nvidia.com/gpu")], json!({}), &[]);
    let made = |policy: Value| -> Vec<(String, i32)> {
        let steps = steps(&workload, &config(json!({"podSetMergePolicy": policy})), &[]);
        let [Step::Create { templates, request, .. }] = steps.as_slice() else { panic!("{steps:?}") };
        let of_sets: Vec<(String, i32)> =
            request.spec.pod_sets.iter().map(|set| (set.pod_template_ref.name.clone(), set.count)).collect();
        let names: Vec<String> = templates.iter().map(ResourceExt::name_any).collect();
        assert_eq!(of_sets.iter().map(|it| &it.0).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
        of_sets.into_iter().map(|(name, count)| (name.replace("ppt-train-prov-1-", ""), count)).collect()
    };
    let sets = |list: &[(&str, i32)]| list.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect::<Vec<_>>();
    assert_eq!(made(Value::Null), sets(&[("first", 1), ("twin", 2), ("other-image", 3), ("gpus", 4)]));
    assert_eq!(made(json!("IdenticalPodTemplates")), sets(&[("first", 3), ("other-image", 3), ("gpus", 4)]));
    assert_eq!(made(json!("IdenticalWorkloadSchedulingRequirements")), sets(&[("first", 6), ("gpus", 4)]));
}

#[test]
fn long_names_end_in_a_hash_of_the_full_name() {
    assert_eq!(request_name("train", "prov", 2), "train-prov-2");
    assert_eq!(template_name("train-prov-2", "main"), "ppt-train-prov-2-main");
    let long = "w".repeat(250);
    let (first, second) = (request_name(&long, "prov", 1), request_name(&long, "prov", 2));
    assert_eq!((first.len(), second.len()), (253, 253));
    assert_ne!(first, second);
    assert!(first.starts_with(&"w".repeat(247)));
}

#[test]
fn parameters_in_annotations_override_the_configuration() {
    let mut workload = workload(&[set("main", 1, "cpu")], json!({}), &[]);
    workload.annotations_mut().insert("provreq.kueue.x-k8s.io/duration".to_owned(), "2".to_owned());
    workload.annotations_mut().insert("other/duration".to_owned(), "3".to_owned());
    let steps = steps(&workload, &config(json!({"parameters": {"duration": "1", "zone": "z"}})), &[]);
    let [Step::Create { request, .. }] = steps.as_slice() else { panic!("{steps:?}") };
    let parameters: Vec<(&str, &str)> = request.spec.parameters.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(parameters, [("duration", "2"), ("zone", "z")]);
}

#[test]
fn a_provisioned_request_selects_nodes_by_its_class_details() {
    let config = config(json!({"podSetUpdates": {"nodeSelector": [
        {"key": "cloud/reservation", "valueFromProvisioningClassDetail": "reservation"},
        {"key": "cloud/none", "valueFromProvisioningClassDetail": "not-there"}]}}));
    let workload = workload(&[set("main", 1, "cpu"), set("side", 1, "cpu")], json!({}), &[]);
    let found = written(&steps(&workload, &config, &[answered(1, &[("Provisioned", "there")])])).expect("a state");
    assert_eq!((found.state, &*found.message), (CheckState::Ready, "there"));
    let names: Vec<&str> = found.pod_set_updates.iter().map(|update| &*update.name).collect();
    assert_eq!(names, ["main", "side"]);
    for update in &found.pod_set_updates {
        let selector: Vec<_> = update.node_selector.iter().collect();
        assert_eq!(selector, [(&"cloud/reservation".to_owned(), &"r-1".to_owned())]);
        assert_eq!(update.annotations["autoscaling.x-k8s.io/consume-provisioning-request"], "train-prov-1");
        assert_eq!(update.annotations["autoscaling.x-k8s.io/provisioning-class-name"], "class");
    }
}

#[test]
fn failed_and_expired_requests_are_retried_with_growing_delay_up_to_the_limit() {
    let sets = [set("main", 1, "cpu")];
    // By default there are three retries: the first after one minute, each later one after twice
    // the delay.
    for (attempt, delay) in [(1, 60), (2, 120), (3, 240)] {
        let workload = workload(&sets, json!({"retryCount": attempt - 1}), &[]);
        let failed = steps(&workload, &config(json!({})), &[answered(attempt, &[("Failed", "no room")])]);
        let retry = (CheckState::Retry, "Retrying after failure: no room".to_owned(), Some(delay));
        assert_eq!(verdict(&failed), Some(retry), "{attempt}");
    }
    let fourth = workload(&sets, json!({"retryCount": 3}), &[]);
    let given_up = steps(&fourth, &config(json!({})), &[answered(4, &[("Failed", "no room")])]);
    assert_eq!(verdict(&given_up), Some((CheckState::Rejected, "no room".to_owned(), None)));
    let more = config(json!({"retryStrategy": {"backoffLimitCount": 9, "backoffBaseSeconds": 600}}));
    let expired = steps(&fourth, &more, &[answered(4, &[("Provisioned", ""), ("BookingExpired", "too late")])]);
    let retry = (CheckState::Retry, "Retrying after booking expired: too late".to_owned(), Some(1800));
    assert_eq!(verdict(&expired), Some(retry));
    // A running workload whose request failed after all is evicted, too.
    let failed = [answered(1, &[("Provisioned", ""), ("Failed", "no room")])];
    let runs = workload(&sets, json!({"state": "Ready"}), &["Admitted"]);
    let retry = (CheckState::Retry, "Retrying after failure: no room".to_owned(), Some(60));
    assert_eq!(verdict(&steps(&runs, &config(json!({})), &failed)), Some(retry));
    // An expired booking does not affect an admitted workload.
    let runs = workload(&sets, json!({"state": "Ready"}), &["Admitted"]);
    assert_eq!(verdict(&steps(&runs, &more, &[answered(1, &[("Provisioned", ""), ("BookingExpired", "")])])), None);
}

#[test]
fn the_delay_of_a_retry_has_a_maximum_and_without_retries_the_first_failure_rejects() {
    let second = workload(&[set("main", 1, "cpu")], json!({"retryCount": 1}), &[]);
    let strategy = |limit, base, max| {
        let strategy = json!({"backoffLimitCount": limit, "backoffBaseSeconds": base, "backoffMaxSeconds": max});
        config(json!({"retryStrategy": strategy}))
    };
    let failed = [answered(2, &[("Failed", "no room")])];
    let delay = |config| verdict(&steps(&second, &config, &failed)).and_then(|(_, _, delay)| delay);
    assert_eq!(delay(strategy(3, 60, 100)), Some(100));
    assert_eq!(delay(strategy(3, 10, 100)), Some(20));
    let first = workload(&[set("main", 1, "cpu")], json!({}), &[]);
    let rejected = steps(&first, &strategy(0, 60, 100), &[answered(1, &[("Failed", "no room")])]);
    assert_eq!(verdict(&rejected), Some((CheckState::Rejected, "no room".to_owned(), None)));
}

#[test]
fn a_waiting_request_is_replaced_when_the_class_or_a_parameter_of_its_configuration_changes() {
    let waits = workload(&[set("main", 1, "cpu")], json!({}), &[]);
    let requests = [answered(1, &[("Accepted", "")])];
    assert_eq!(steps(&waits, &config(json!({})), &requests), []);
    for changed in [json!({"provisioningClassName": "other"}), json!({"parameters": {"zone": "a"}})] {
        let steps = steps(&waits, &config(changed.clone()), &requests);
        let [Step::Delete(old), Step::Create { request, .. }] = &steps[..] else { panic!("{changed}: {steps:?}") };
        assert_eq!((old.name_any(), request.name_any()), ("train-prov-1".to_owned(), "train-prov-1".to_owned()));
        assert!(request.spec.provisioning_class_name == "other" || request.spec.parameters["zone"] == "a");
    }
}

#[test]
fn revoked_capacity_rejects_the_check_of_an_active_workload() {
    let revoked = [answered(1, &[("Provisioned", ""), ("CapacityRevoked", "gone")])];
    let mut workload = workload(&[set("main", 1, "cpu")], json!({"state": "Ready"}), &["Admitted"]);
    let found = verdict(&steps(&workload, &config(json!({})), &revoked));
    assert_eq!(found, Some((CheckState::Rejected, "gone".to_owned(), None)));
    workload.spec.active = Some(false);
    assert_eq!(verdict(&steps(&workload, &config(json!({})), &revoked)), None);
}

#[test]
fn requests_are_deleted_on_eviction_and_always_at_the_end() {
    let sets = [set("main", 1, "cpu")];
    let requests = [answered(1, &[])];
    let evicted = workload(&sets, json!({}), &["Evicted"]);
    assert_eq!(deleted(&steps(&evicted, &config(json!({})), &requests)), 1);
    let kept = Gates::default().with(Gate::CleanupProvisioningRequestsOnEviction, false);
    assert_eq!(steps_with(&evicted, &config(json!({})), &requests, &kept), []);
    let finished = workload(&sets, json!({}), &["Finished"]);
    assert_eq!(deleted(&steps_with(&finished, &config(json!({})), &requests, &kept)), 1);
    // A request of an earlier attempt is deleted, and the next one created.
    let again = steps(&workload(&sets, json!({"retryCount": 1}), &[]), &config(json!({})), &requests);
    let made = again.iter().find_map(|step| match step {
        Step::Create { request, .. } => Some(request.name_any()),
        _ => None,
    });
    assert_eq!((deleted(&again), made.as_deref()), (1, Some("train-prov-2")));
}

#[test]
fn the_request_of_a_check_without_configuration_is_deleted() {
    let ready = workload(&[set("main", 1, "cpu")], json!({"state": "Ready"}), &[]);
    let gates = Gates::default();
    let view = View {
        checks: [("prov".to_owned(), None)].into(),
        requests: vec![answered(1, &[("Provisioned", "")])],
        flavor: &|_| None,
        cool_down: false,
        has_alternative: &|_| false,
        gates: &gates,
        now: NOW.parse().expect("a time"),
    };
    let steps = decide(&ready, &view).expect("a decision");
    assert_eq!(deleted(&steps), 1);
    assert_eq!(verdict(&steps), Some((CheckState::Pending, "the check is not active".to_owned(), None)));
}
