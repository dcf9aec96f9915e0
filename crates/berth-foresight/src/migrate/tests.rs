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
fn the_helm_release_of_kueue_is_named_because_its_end_would_delete_the_queues() {
    let deployment = |annotations: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "kueue-controller-manager",
            "namespace": "kueue-system", "labels": {"app.kubernetes.io/name": "kueue"}, "annotations": annotations}})
    };
    let of_helm = json!({"meta.helm.sh/release-name": "queues", "meta.helm.sh/release-namespace": "ops"});
    let migration = check_of(vec![deployment(of_helm)], Orders::new());
    let field = "metadata.annotations[meta.helm.sh/release-name]".to_owned();
    assert_eq!(notes(&migration, "Deployment"), [(Verdict::Different, field)]);
    let judged = migration.objects.iter().find(|it| it.object.kind == "Deployment").expect("it is judged");
    assert!(judged.notes[0].message.starts_with("installed by Helm release queues of namespace ops"));
    let migration = check_of(vec![deployment(json!({}))], Orders::new());
    assert!(migration.objects.iter().all(|it| it.object.kind != "Deployment"), "other installations need no note");
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

#[test]
fn gates_of_the_command_line_count_and_are_named_with_the_way_to_keep_them() {
    let deployment = |arguments: Value, map: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "kueue-controller-manager", "namespace": "kueue-system"},
            "spec": {"template": {"spec": {"volumes": [{"name": "c", "configMap": {"name": map}}],
                "containers": [{"name": "manager", "command": ["/manager"], "args": arguments}]}}}})
    };
    let of = |deployment| {
        let migration = check_of(vec![deployment], Orders::new());
        let judged = migration.objects.into_iter().find(|judged| judged.object.kind == "Configuration");
        let notes = judged.expect("the configuration is judged").notes;
        let notes = notes.into_iter().filter(|note| note.field.starts_with("featureGates"));
        notes.map(|note| (note.verdict, note.field, note.message)).collect::<Vec<_>>()
    };
    let different = |gates: &str| {
        let message = format!(
            "set by --feature-gates of Deployment kueue-system/kueue-controller-manager: add `featureGates: {{{gates}}}` to \
             the file for `berth install --config`"
        );
        (Verdict::Different, "featureGates".to_owned(), message)
    };
    let config = "kueue-manager-config";
    let one = deployment(
        json!(["--config=/c.yaml", "--feature-gates=PartialAdmission=false,LocalQueueMetrics=true"]),
        config,
    );
    assert_eq!(of(one), [different("LocalQueueMetrics: true, PartialAdmission: false")]);
    assert_eq!(
        of(deployment(json!(["-feature-gates", "PartialAdmission=0"]), config)),
        [different("PartialAdmission: false")]
    );
    assert_eq!(of(deployment(json!(["--feature-gates=PartialAdmission=false"]), "of-another-program")), []);
    let missing = of(deployment(json!(["--feature-gates=SchedulerLibraryIntegration=true"]), config));
    assert_eq!(missing[0].0, Verdict::Unsupported, "{missing:?}");
}

#[test]
fn the_order_of_admission_fair_sharing_is_that_of_the_recorded_usage() {
    let mut objects = vec![workload("full", 0, "4", true)];
    for (name, consumed) in [("little", "1"), ("much", "100")] {
        objects.push(json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": "ns"},
            "spec": {"clusterQueue": "fair"},
            "status": {"fairSharing": {"weightedShare": 0, "admissionFairSharingStatus": {
                "consumedResources": {"cpu": consumed}, "lastUpdate": "2026-01-01T00:59:59Z"}}}}));
    }
    objects.push(json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "fair"}, "spec": {
        "namespaceSelector": {}, "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "f", "resources": [{"name": "cpu", "nominalQuota": "0"}]}]}]}}));
    for (name, queue) in [("a", "much"), ("b", "little"), ("c", "much"), ("d", "little")] {
        let mut waiting = workload(name, 0, "4", false);
        waiting["spec"]["queueName"] = json!(queue);
        objects.push(waiting);
    }
    let mut all = queues();
    let map = all.last_mut().expect("the configuration comes last");
    let text = map["data"]["controller_manager_config.yaml"].as_str().expect("a text").to_owned();
    map["data"]["controller_manager_config.yaml"] =
        json!(text + "admissionFairSharing: {usageHalfLifeTime: 168h, usageSamplingInterval: 5m}\n");
    let moved = |order: [&str; 4]| {
        let order = order.iter().map(|name| ("ns".to_owned(), (*name).to_owned())).collect();
        let documents =
            all.iter().chain(&objects).map(|value| Document { value: value.clone(), source: None }).collect();
        let inventory = Inventory { documents, orders: [("fair".to_owned(), order)].into(), unread: Vec::new() };
        let decisions = check(inventory, NOW.parse().unwrap()).decisions;
        decisions.into_iter().map(|it| (it.effect, it.object.name)).collect::<Vec<_>>()
    };
    assert_eq!(moved(["b", "d", "a", "c"]), []);
    let other = |name: &str| (Effect::Moved, name.to_owned());
    assert_eq!(moved(["a", "b", "c", "d"]), [other("a"), other("b"), other("c"), other("d")]);
}
