//! Clients that read an object and write it back cause no change, although they write it in another
//! form: Go's types write empty structs, and omit empty lists, strings and flags.

use berth_controllers::Config;
use berth_controllers::webhooks::{Request, Webhooks};
use serde_json::{Map, Value, json};

/// Number of pairs of forms that are compared per object.
const PAIRS: u64 = 300;

/// One of the forms in which clients write an object. Each string that begins with `?` represents
/// an empty value, which is omitted or written.
fn written(form: &Value, state: &mut u64) -> Option<Value> {
    // Knuth's linear congruential generator: every run has the same forms.
    let mut is_left_out = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 63 == 0
    };
    let nothing = match form.as_str() {
        Some("?map") => json!({}),
        Some("?list") => json!([]),
        Some("?null") => Value::Null,
        Some("?text") => json!(""),
        Some("?zero") => json!(0),
        Some("?false") => json!(false),
        _ => {
            return Some(match form {
                Value::Object(fields) => {
                    let fields = fields.iter().filter_map(|(name, field)| Some((name.clone(), written(field, state)?)));
                    Value::Object(fields.collect::<Map<_, _>>())
                }
                Value::Array(items) => items.iter().filter_map(|item| written(item, state)).collect(),
                other => other.clone(),
            });
        }
    };
    (!is_left_out()).then_some(nothing)
}

fn template() -> Value {
    json!({
        "metadata": {"creationTimestamp": "?null", "labels": "?map", "annotations": "?map"},
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "args": "?list", "stdin": "?false", "workingDir": "?text",
                    "env": [{"name": "A", "value": "?text"}], "ports": [{"containerPort": 80, "hostPort": "?zero"}],
                    "resources": {"requests": {"cpu": "1"}, "limits": "?map", "claims": "?list"}},
                {"name": "d", "resources": "?map", "volumeMounts": "?null"},
            ],
            "initContainers": "?list", "nodeSelector": "?map", "affinity": "?map", "securityContext": "?map",
            "tolerations": [{"key": "k", "operator": "Exists", "value": "?text", "effect": "?text"}],
            "hostNetwork": "?false", "priorityClassName": "?text", "topologySpreadConstraints": "?list", "overhead": "?map",
            "resourceClaims": "?list", "volumes": "?null", "restartPolicy": "Never",
        },
    })
}

fn workload(version: &str, template: &Value) -> Value {
    let updates = json!([{"name": "main", "labels": "?map", "annotations": "?map", "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "k", "operator": "?text", "value": "v", "effect": "?text"}]}]);
    const AT: &str = "2026-01-01T00:00:00Z";
    json!({
        "apiVersion": format!("kueue.x-k8s.io/{version}"), "kind": "Workload",
        "metadata": {"name": "w", "namespace": "team", "creationTimestamp": "?null", "labels": "?map", "annotations": "?map"},
        "spec": {"queueName": "q", "podSets": [
            {"name": "main", "count": 2, "template": template},
            {"name": "bare", "count": 1, "template": {"metadata": "?map", "spec": {"containers": [{"name": "c"}]}}},
        ]},
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
                "lastTransitionTime": AT}],
            "admission": {"clusterQueue": "cq", "podSetAssignments": [
                {"name": "main", "count": 2, "flavors": "?map", "resourceUsage": "?map"},
                {"name": "bare", "count": 1}]},
            "admissionChecks": [{"name": "check", "state": "Ready", "message": "", "lastTransitionTime": AT,
                "podSetUpdates": updates}],
            "reclaimablePods": "?list", "requeueState": "?map",
        },
    })
}

/// For each object: its group, resource and form, and a change that is rejected, as a path and a
/// new value.
fn objects() -> Vec<(&'static str, &'static str, Value, &'static str, Value)> {
    const FIRST: &str = "/spec/podSets/0/template/spec/containers/0/resources/requests/cpu";
    let template = template();
    let labels = json!({"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "?text"});
    let job = |kind: &str, version: &str, spec: Value| {
        json!({"apiVersion": version, "kind": kind, "spec": spec,
            "metadata": {"name": "o", "namespace": "team", "labels": labels, "annotations": "?map", "finalizers": "?list"}})
    };
    const QUEUE: &str = "/metadata/labels/kueue.x-k8s.io~1queue-name";
    let cpu = |at: &str| format!("{at}/spec/containers/0/resources/requests/cpu");
    let (of_set, of_worker) = (cpu("/spec/template"), cpu("/spec/leaderWorkerTemplate/workerTemplate"));
    let replicated =
        json!([{"name": "r", "replicas": 1, "template": {"metadata": "?map", "spec": {"template": template}}}]);
    let queued_pod = json!({"name": "p", "namespace": "team", "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        "labels": {"kueue.x-k8s.io/managed": "true", "kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/pod-group-name": "g"}});
    vec![
        ("kueue.x-k8s.io", "workloads", workload("v1beta2", &template), FIRST, json!("2")),
        ("kueue.x-k8s.io", "workloads", workload("v1beta1", &template), FIRST, json!("2")),
        (
            "kueue.x-k8s.io",
            "workloads",
            workload("v1beta2", &template),
            "/spec/podSets/1/template/metadata",
            json!({"labels": {"a": "b"}}),
        ),
        ("kueue.x-k8s.io", "workloads", workload("v1beta2", &template), "/spec/podSets/1/count", json!(2)),
        (
            "kueue.x-k8s.io",
            "workloads",
            workload("v1beta2", &template),
            "/status/admissionChecks/0/podSetUpdates/0/tolerations/0/value",
            json!("w"),
        ),
        (
            "batch",
            "jobs",
            job("Job", "batch/v1", json!({"suspend": false, "template": template, "selector": "?map"})),
            QUEUE,
            json!("other"),
        ),
        (
            "jobset.x-k8s.io",
            "jobsets",
            job(
                "JobSet",
                "jobset.x-k8s.io/v1alpha2",
                json!({"suspend": false, "network": "?map", "replicatedJobs": replicated}),
            ),
            QUEUE,
            json!("other"),
        ),
        (
            "apps",
            "statefulsets",
            job("StatefulSet", "apps/v1", json!({"replicas": 2, "template": template})),
            Box::leak(of_set.into_boxed_str()),
            json!("2"),
        ),
        (
            "leaderworkerset.x-k8s.io",
            "leaderworkersets",
            job(
                "LeaderWorkerSet",
                "leaderworkerset.x-k8s.io/v1",
                json!({"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}}),
            ),
            Box::leak(of_worker.into_boxed_str()),
            json!("2"),
        ),
        (
            "ray.io",
            "rayclusters",
            job(
                "RayCluster",
                "ray.io/v1",
                json!({"suspend": false, "headGroupSpec": {"template": template, "rayStartParams": "?map"}, "workerGroupSpecs": "?list"}),
            ),
            QUEUE,
            json!("other"),
        ),
        (
            "",
            "pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": queued_pod, "spec": template["spec"], "status": "?map"}),
            "/metadata/labels/kueue.x-k8s.io~1pod-group-name",
            json!("h"),
        ),
    ]
}

#[test]
fn an_object_written_back_is_unchanged_and_a_changed_one_is_rejected() {
    let frameworks = berth_controllers::jobs::integrated().into_iter().map(str::to_owned).collect();
    let mut config = Config::default();
    config.integrations.frameworks = frameworks;
    let webhooks = Webhooks::new(config);
    let mut state = 7;
    for (group, resource, form, path, other) in objects() {
        let wrong = |new: &Value, old: &Value| {
            let request = Request { group, resource, namespace: "team", old_object: Some(old) };
            assert!(webhooks.concerns(group, resource), "{resource}");
            webhooks.validate(request, new, &|_, _, _, _| None).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for _ in 0..PAIRS {
            let (new, old) = (written(&form, &mut state).expect("a map"), written(&form, &mut state).expect("a map"));
            let errors = wrong(&new, &old);
            assert!(errors.is_empty(), "{resource}: {errors:?}\nnew {new:#}\nold {old:#}");
        }
        let old = written(&form, &mut state).expect("a map");
        let mut new = old.clone();
        let (parent, last) = path.rsplit_once('/').expect("a path");
        let parent = new.pointer_mut(parent).expect("the parent exists");
        match parent.as_array_mut() {
            Some(items) => items[last.parse::<usize>().expect("an index")] = other,
            None => parent[last.replace("~1", "/")] = other,
        }
        assert_eq!(wrong(&new, &old).len(), 1, "{resource}: {path}");
    }
}
