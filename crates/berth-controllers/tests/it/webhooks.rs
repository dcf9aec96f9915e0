//! Error messages for invalid objects, and defaults of new jobs.

use berth_controllers::Config;
use berth_controllers::gates::Gate;
use berth_controllers::webhooks::{Request, Webhooks};
use serde_json::{Value, json};

fn check(object: Value) -> Vec<String> {
    check_update(object, None)
}

fn check_update(object: Value, old_object: Option<&Value>) -> Vec<String> {
    let resource = if object["kind"] == "Cohort" { "cohorts" } else { "clusterqueues" };
    let request = Request { group: "kueue.x-k8s.io", resource, namespace: "", old_object };
    let errors = Webhooks::new(Config::default()).validate(request, &object, &|_, _, _, _| None);
    errors.iter().map(ToString::to_string).collect()
}

fn queue(version: &str, groups: Value) -> Value {
    json!({
        "apiVersion": format!("kueue.x-k8s.io/{version}"), "kind": "ClusterQueue", "metadata": {"name": "cq"},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups},
    })
}

fn group(resource: &str, flavor: &str, quota: Value) -> Value {
    let mut quota = quota;
    quota["name"] = json!(resource);
    json!({"coveredResources": [resource], "flavors": [{"name": flavor, "resources": [quota]}]})
}

#[test]
fn a_negative_quota_is_rejected_with_its_path_in_either_version() {
    for version in ["v1beta1", "v1beta2"] {
        let errors = check(queue(version, json!([group("cpu", "spot", json!({"nominalQuota": "-1"}))])));
        assert_eq!(
            errors,
            [
                r#"spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Invalid value: "-1": must be greater than or equal to 0"#
            ]
        );
    }
}

#[test]
fn a_resource_or_flavor_in_two_groups_is_rejected() {
    let quota = json!({"nominalQuota": "1"});
    let errors = check(queue("v1beta2", json!([group("cpu", "spot", quota.clone()), group("cpu", "spot", quota)])));
    assert_eq!(
        errors,
        [
            r#"spec.resourceGroups[1].coveredResources[0]: Duplicate value: "cpu""#,
            r#"spec.resourceGroups[1].flavors[0].name: Duplicate value: "spot""#,
        ]
    );
}

#[test]
fn a_borrowing_limit_needs_a_cohort() {
    let quota = json!({"nominalQuota": "1", "borrowingLimit": "1"});
    let errors = check(queue("v1beta2", json!([group("cpu", "spot", quota)])));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].ends_with("must be nil when cohort is empty"), "{errors:?}");
}

#[test]
fn a_weight_is_zero_or_above_the_minimum() {
    for kind in ["ClusterQueue", "Cohort"] {
        let with = |weight: Value| {
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": "o"},
                "spec": {"fairSharing": {"weight": weight}}})
        };
        for (weight, detail) in [
            ("-1", "must be greater than or equal to 0"),
            ("-1n", "must be greater than or equal to 0"),
            ("1n", "must be 0 or greater than 1n"),
            ("0.0000000001", "must be 0 or greater than 1n"),
            ("1e-10", "must be 0 or greater than 1n"),
        ] {
            let refused = [format!("spec.fairSharing.weight: Invalid value: {weight:?}: {detail}")];
            assert_eq!(check(with(json!(weight))), refused, "{kind}");
            assert_eq!(check_update(with(json!(weight)), Some(&with(json!("1")))), refused, "{kind}");
            // An object stored before the rule existed can still be changed and deleted.
            assert_eq!(check_update(with(json!(weight)), Some(&with(json!(weight)))), [""; 0], "{kind}");
        }
        for weight in ["0", "2n", "500m", "1", "3"] {
            assert_eq!(check(with(json!(weight))), [""; 0], "{kind} {weight}");
        }
    }
}

#[test]
fn a_cohort_may_lend_more_than_its_own_quota_and_a_queue_may_not() {
    let quota = json!({"nominalQuota": "1", "lendingLimit": "5"});
    let groups = json!([group("cpu", "spot", quota)]);
    let cohort = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "c"},
        "spec": {"parentName": "root", "resourceGroups": groups}});
    assert_eq!(check(cohort), [""; 0]);
    let mut queue = queue("v1beta2", groups);
    queue["spec"]["cohortName"] = json!("c");
    let errors = check(queue);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].ends_with("must be less than or equal to the nominalQuota"), "{errors:?}");
}

#[test]
fn a_job_with_a_queue_is_suspended_and_a_job_without_one_is_not() {
    let webhooks = Webhooks::new(Config::default());
    for (labels, suspended) in [(json!({"kueue.x-k8s.io/queue-name": "lq"}), json!(true)), (json!({}), Value::Null)] {
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": "team", "labels": labels},
            "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}},
        });
        let request = Request { group: "batch", resource: "jobs", namespace: "team", old_object: None };
        webhooks.mutate(request, &mut job, &|_, _, _, _| None).unwrap();
        assert_eq!(job["spec"]["suspend"], suspended);
    }
}

#[test]
fn a_running_rayjob_keeps_its_queue_name_unless_its_gate_is_off() {
    let labels = |queue: Option<&str>| queue.map_or(json!({}), |queue| json!({"kueue.x-k8s.io/queue-name": queue}));
    let template = json!({"spec": {"containers": [{"name": "c"}]}});
    let job = |queue: Option<&str>| {
        json!({"apiVersion": "ray.io/v1", "kind": "RayJob",
            "metadata": {"name": "j", "namespace": "team", "labels": labels(queue)},
            "spec": {"suspend": false, "shutdownAfterJobFinishes": true,
                "rayClusterSpec": {"headGroupSpec": {"rayStartParams": {}, "template": template}}}})
    };
    let (old, new) = (job(Some("lq")), job(None));
    let errors = |config: Config, new: &Value| -> Vec<String> {
        let request = Request { group: "ray.io", resource: "rayjobs", namespace: "team", old_object: Some(&old) };
        let errors = Webhooks::new(config).validate(request, new, &|_, _, _, _| None);
        errors.iter().map(ToString::to_string).collect()
    };
    let immutable = |queue: &str| {
        format!("metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: {queue:?}: field is immutable")
    };
    assert_eq!(errors(Config::default(), &new), [immutable("")]);
    let mut config = Config::default();
    config.feature_gates.set(Gate::ValidateRayAndSparkJobUpdates, false);
    assert_eq!(errors(config.clone(), &new), [""; 0]);
    assert_eq!(errors(config.clone(), &job(Some("other"))), [immutable("other")], "it stays queued");
    config.manage_jobs_without_queue_name = true;
    assert_eq!(errors(config, &new), [immutable("")], "it is managed without a queue too");
}
