//! Reading and writing the types: absent fields, null fields, and fields that are always written.

use berth_api::kueue::v1beta2::{
    AdmissionCheckState, CheckState, ClusterQueue, ClusterQueueSpec, ClusterQueueStatus, FlavorFungibility,
    FlavorFungibilityPolicy, FlavorUsage, QueueingStrategy, ResourceFlavor, ResourceUsage, Workload,
    WorkloadPriorityClass, WorkloadStatus,
};
use berth_api::zero_time;
use kube::Resource;
use serde_json::{from_value, json, to_value};

#[test]
fn an_object_without_spec_is_read_and_written() {
    let object = json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": "default-flavor" } });
    let flavor: ResourceFlavor = from_value(object).expect("is readable");
    assert_eq!(flavor.meta().name.as_deref(), Some("default-flavor"));
    assert_eq!(
        to_value(&flavor).expect("is writable"),
        json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": { "name": "default-flavor" }, "spec": {} })
    );
}

#[test]
fn a_priority_class_has_its_fields_at_the_root() {
    let mut class = WorkloadPriorityClass::named("high");
    class.value = -5;
    let value = to_value(&class).expect("is writable");
    assert_eq!(value["value"], -5);
    assert!(value.get("spec").is_none() && value.get("description").is_none());
    assert_eq!(from_value::<WorkloadPriorityClass>(value).expect("is readable"), class);
}

#[test]
fn counters_are_written_when_zero() {
    let status = ClusterQueueStatus {
        flavors_usage: vec![FlavorUsage {
            name: "f".into(),
            resources: vec![ResourceUsage { name: "cpu".into(), ..Default::default() }],
        }],
        ..Default::default()
    };
    assert_eq!(
        to_value(status).expect("is writable"),
        json!({
            "pendingWorkloads": 0, "reservingWorkloads": 0, "admittedWorkloads": 0,
            "flavorsUsage": [{ "name": "f", "resources": [{ "name": "cpu", "total": "0", "borrowed": "0" }] }],
        })
    );
}

#[test]
fn missing_and_null_times_are_the_zero_time() {
    let status: WorkloadStatus = from_value(json!({
        "conditions": [{ "type": "Admitted", "status": "True" }, { "type": "Finished", "status": "True", "lastTransitionTime": null }],
        "admissionChecks": [{ "name": "check", "state": "Ready" }],
    }))
    .expect("is readable");
    assert!(status.conditions.iter().all(|condition| condition.last_transition_time == zero_time()));
    assert_eq!(
        status.admission_checks,
        [AdmissionCheckState {
            name: "check".into(),
            state: CheckState::Ready,
            last_transition_time: zero_time(),
            ..Default::default()
        }]
    );
    assert_eq!(to_value(zero_time()).expect("is writable"), "0001-01-01T00:00:00Z");
}

#[test]
fn values_outside_an_enumeration_are_rejected_and_the_empty_string_is_the_default() {
    let error = from_value::<ClusterQueueSpec>(json!({ "queueingStrategy": "LIFO" }))
        .expect_err("must be rejected")
        .to_string();
    assert_eq!(error, "unknown variant `LIFO`, expected `BestEffortFIFO` or `StrictFIFO`");
    let spec: ClusterQueueSpec = from_value(json!({ "queueingStrategy": "" })).expect("is readable");
    assert_eq!(spec.queueing_strategy, Some(QueueingStrategy::BestEffortFIFO));
}

#[test]
fn absent_policies_have_the_defaults_of_the_definitions() {
    let fungibility = FlavorFungibility::default();
    assert_eq!(fungibility.when_can_borrow_or_default(), FlavorFungibilityPolicy::MayStopSearch);
    assert_eq!(fungibility.when_can_preempt_or_default(), FlavorFungibilityPolicy::TryNextFlavor);
    assert!(Workload::default().spec.is_active());
    assert_eq!(ClusterQueue::default().spec.queueing_strategy_or_default(), QueueingStrategy::BestEffortFIFO);
}
