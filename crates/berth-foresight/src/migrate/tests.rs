use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-01T01:00:00Z";
const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn queues() -> Vec<Value> {
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}),
        json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": {}}),
        json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
            "namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO",
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
                {"name": "f", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]}]}}),
        json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "ns"},
            "spec": {"clusterQueue": "cq"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "kueue-manager-config", "namespace": "kueue-system"},
            "data": {"controller_manager_config.yaml": "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n\
                clientConnection: {qps: 50, burst: 100}\nleaderElection: {leaderElect: false}\n\
                internalCertManagement: {enable: false}\nintegrations: {frameworks: [batch/job]}\n"}}),
    ]
}

fn workload(name: &str, priority: i32, cpu: &str, admitted: bool) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}});
    let mut workload = json!({"apiVersion": KUEUE, "kind": "Workload",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"queueName": "q", "active": true, "priority": priority,
            "podSets": [{"name": "main", "count": 1, "template": template}]}});
    if admitted {
        let condition = |type_: &str| {
            json!({"type": type_, "status": "True", "reason": "x", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        workload["status"] = json!({"conditions": [condition("QuotaReserved"), condition("Admitted"), condition("PodsReady")],
            "admission": {"clusterQueue": "cq", "podSetAssignments": [
                {"name": "main", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": cpu}, "count": 1}]}});
    }
    workload
}

fn check_of(more: Vec<Value>, orders: Orders) -> Migration {
    let documents = queues().into_iter().chain(more).map(|value| Document { value, source: None }).collect();
    check(Inventory { documents, orders, unread: Vec::new() }, NOW.parse().unwrap())
}

fn notes(migration: &Migration, kind: &str) -> Vec<(Verdict, String)> {
    let of_kind = migration.objects.iter().filter(|judged| judged.object.kind == kind);
    of_kind.flat_map(|judged| judged.notes.iter().map(|note| (note.verdict, note.field.clone()))).collect()
}

#[test]
fn a_cluster_at_rest_works_the_same_and_no_decision_differs() {
    let running = workload("runs", 0, "3", true);
    let waiting = workload("waits", 0, "3", false);
    let order = [("cq".to_owned(), vec![("ns".to_owned(), "waits".to_owned())])].into();
    let migration = check_of(vec![running, waiting], order);
    assert_eq!(migration.decisions, []);
    assert_eq!(migration.verdict(), Verdict::Same, "{:#?}", migration.objects);
    assert_eq!(migration.objects.len(), 6);
    assert_eq!((migration.workloads, migration.unchecked), ((1, 1), Vec::new()));
}

#[test]
fn objects_of_files_without_a_namespace_are_in_the_namespace_default() {
    let queue = json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "q"},
        "spec": {"clusterQueue": "cq"}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]}}}});
    let migration = check_of(vec![queue, job], Orders::new());
    let failed = migration.decisions.iter().filter(|decision| decision.effect == decisions::Effect::Failed);
    assert_eq!(failed.count(), 0, "{:?}", migration.decisions);
    assert!(migration.objects.iter().any(|judged| judged.object.namespace == "default"));
}

#[test]
fn what_is_not_supported_is_named_with_its_field() {
    let dispatch = json!({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "mk"},
        "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}});
    let cluster = json!({"apiVersion": KUEUE, "kind": "MultiKueueCluster", "metadata": {"name": "w"}, "spec": {}});
    let mut queue = queues().remove(2);
    queue["metadata"]["name"] = json!("remote");
    queue["spec"]["admissionChecksStrategy"] = json!({"admissionChecks": [{"name": "mk"}]});
    let newer = json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "newer"},
        "spec": {"fieldOfTomorrow": 1}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "cohorts.kueue.x-k8s.io"}, "spec": {"group": "kueue.x-k8s.io"},
        "status": {"storedVersions": ["v1alpha1", "v1beta2"]}});
    let migration = check_of(vec![dispatch, cluster, queue, newer, definition], Orders::new());
    let no = |field: &str| (Verdict::Unsupported, field.to_owned());
    assert_eq!(notes(&migration, "AdmissionCheck"), [no("spec.controllerName")]);
    assert_eq!(notes(&migration, "MultiKueueCluster"), [no("")]);
    assert_eq!(notes(&migration, "ClusterQueue"), [no("spec.admissionChecksStrategy.admissionChecks[0].name")]);
    assert_eq!(notes(&migration, "ResourceFlavor"), [no("spec.fieldOfTomorrow")]);
    assert_eq!(notes(&migration, "CustomResourceDefinition"), [no("status.storedVersions[0]")]);
}

#[test]
fn settings_that_are_rejected_or_different_are_named() {
    let (config, notes) = verdict::configuration(&json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "multiKueue": {"origin": "here"}, "featureGates": {"SchedulerLibraryIntegration": true}}));
    assert!(config.is_none());
    let fields: Vec<&str> = notes.iter().map(|note| note.field.as_str()).collect();
    assert_eq!(fields, ["multiKueue", "featureGates[SchedulerLibraryIntegration]"]);
    let plain = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"});
    let (config, notes) = verdict::configuration(&plain);
    assert!(config.is_some() && notes.iter().all(|note| note.verdict == Verdict::Different));
    assert!(notes.iter().any(|note| note.field == "clientConnection"));
}

#[test]
fn decisions_that_the_engine_would_make_at_once_are_found() {
    let fits = check_of(vec![workload("fits", 0, "1", false)], Orders::new());
    let effects = |migration: &Migration| -> Vec<(Effect, String)> {
        migration.decisions.iter().map(|it| (it.effect, it.object.name.clone())).collect()
    };
    assert_eq!(effects(&fits), [(Effect::Started, "fits".to_owned())]);
    assert_eq!(fits.verdict(), Verdict::Different);
    let preempts = check_of(vec![workload("low", 0, "4", true), workload("high", 9, "4", false)], Orders::new());
    assert!(effects(&preempts).contains(&(Effect::Preempted, "low".to_owned())), "{:?}", preempts.decisions);
    assert_eq!(preempts.verdict(), Verdict::Unsupported);
}

#[test]
fn pending_workloads_with_another_place_are_found() {
    let waiting = vec![workload("full", 0, "4", true), workload("a", 0, "4", false), workload("b", 0, "4", false)];
    let key = |name: &str| ("ns".to_owned(), name.to_owned());
    let order = [("cq".to_owned(), vec![key("b"), key("unknown"), key("a")])].into();
    let migration = check_of(waiting, order);
    let texts: Vec<String> =
        migration.decisions.iter().map(|it| format!("{}: {}", it.object.name, it.message)).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(
        texts[0].starts_with("a: place 2 among the pending workloads of ClusterQueue cq with Kueue, and 1"),
        "{texts:?}"
    );
    let text = report::text(&migration, false);
    assert!(text.contains("decision: Workload ns/a would get another place"), "{text}");
    assert_eq!(report::json(&migration)["decisions"].as_array().map(Vec::len), Some(2));
}
