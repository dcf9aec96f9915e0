//! Kinds of configuration (flow control, IP addresses, controller revisions, CSI drivers),
//! component statuses, and addresses of Services.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_apiserver::ApiServer;
use berth_store::{CommitFuture, MemoryStore, Store, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Answer, Server, config_on, server};
use crate::intercepted_store::{CommitInterceptor, InterceptedStore};

const FLOW_CONTROL: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const NETWORKING: &str = "/apis/networking.k8s.io/v1";

/// The same object under another name.
fn renamed(mut object: Value) -> Value {
    object["metadata"]["name"] = "b".into();
    object
}

/// The fields that a rejection names.
fn fields(answer: Answer) -> Vec<String> {
    let rejected = answer.expect(422);
    let causes = rejected["details"]["causes"].as_array().unwrap();
    causes.iter().map(|cause| cause["field"].as_str().unwrap().to_owned()).collect()
}

fn level(spec: Value) -> Value {
    json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
        "metadata": {"name": "a"}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn priority_levels_are_defaulted_and_validated() {
    let server = server();
    let levels = format!("{FLOW_CONTROL}/prioritylevelconfigurations");
    let limited = |queuing: Value| json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": queuing}}});
    let created = server.post(&levels, level(limited(json!({})))).await.expect(201);
    assert_eq!(
        created["spec"]["limited"],
        json!({"nominalConcurrencyShares": 30, "lendablePercent": 0, "limitResponse": {"type": "Queue",
            "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}}})
    );
    assert_eq!(created["metadata"]["generation"], 1);
    let table = server.table(&levels).await.expect(200);
    assert_eq!(
        cells(&table),
        json!([
            ["a", "Limited", 30, 64, 8, 50, "0s"],
            ["catch-all", "Limited", 5, "<none>", "<none>", "<none>", "0s"],
            ["exempt", "Exempt", "<none>", "<none>", "<none>", "<none>", "0s"],
        ])
    );

    let name = format!("{levels}/a");
    let jail = json!({"spec": {"limited": {"nominalConcurrencyShares": 0}}});
    server.patch(&name, "merge-patch", jail).await.expect(200);
    let deep = json!({"spec": {"limited": {"limitResponse": {"queuing": {"queues": 512, "handSize": 8}}}}});
    let expected = ["spec.limited.limitResponse.queuing.handSize"];
    assert_eq!(fields(server.patch(&name, "merge-patch", deep).await), expected);
    let mixed = json!({"spec": {"exempt": {}, "limited": {"lendablePercent": 101}}});
    assert_eq!(
        fields(server.patch(&name, "merge-patch", mixed).await),
        ["spec.exempt", "spec.limited.lendablePercent"]
    );
    assert_eq!(fields(server.post(&levels, renamed(level(json!({"type": "Exempt"})))).await), ["spec.type"]);
}

#[tokio::test(start_paused = true)]
async fn flow_schemas_need_valid_subjects_and_rules() {
    let server = server();
    let schemas = format!("{FLOW_CONTROL}/flowschemas");
    let schema = |precedence: i64, rule: Value| {
        json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "a"},
            "spec": {"priorityLevelConfiguration": {"name": "low"}, "matchingPrecedence": precedence, "rules": [rule]}})
    };
    let subject = json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "team", "name": "*"}});
    let resources = json!({"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]});
    let good = json!({"subjects": [subject], "resourceRules": [resources]});
    let created = server.post(&schemas, schema(0, good.clone())).await.expect(201);
    assert_eq!(created["spec"]["matchingPrecedence"], 1000);
    let table = server.table(&schemas).await.expect(200);
    assert_eq!(
        cells(&table),
        json!([
            ["exempt", "exempt", 1, "<none>", "0s", "False"],
            ["a", "low", 1000, "<none>", "0s", "True"],
            ["catch-all", "catch-all", 10000, "ByUser", "0s", "False"],
        ])
    );

    assert_eq!(fields(server.post(&schemas, renamed(schema(1, good))).await), ["spec.matchingPrecedence"]);
    let bad = json!({
        "subjects": [{"kind": "User", "group": {"name": "g"}}, {"kind": "Robot"}],
        "resourceRules": [{"verbs": ["get", "*"], "apiGroups": [], "resources": ["pods"], "namespaces": ["Bad_"]}],
        "nonResourceRules": [{"verbs": ["fly"], "nonResourceURLs": ["healthz", "/a*/b"]}],
    });
    assert_eq!(
        fields(server.post(&schemas, renamed(schema(10, bad))).await),
        [
            "spec.rules[0].subjects[0].user",
            "spec.rules[0].subjects[0].group",
            "spec.rules[0].subjects[1].kind",
            "spec.rules[0].resourceRules[0].verbs",
            "spec.rules[0].resourceRules[0].apiGroups",
            "spec.rules[0].resourceRules[0].namespaces[0]",
            "spec.rules[0].nonResourceRules[0].verbs",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]",
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[1]",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn ip_addresses_and_service_cidrs_are_immutable() {
    let server = server();
    let addresses = format!("{NETWORKING}/ipaddresses");
    let address = |name: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": name},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "kubernetes"}}})
    };
    server.post(&addresses, address("10.96.0.1")).await.expect(201);
    let table = server.table(&addresses).await.expect(200);
    assert_eq!(table["rows"][0]["cells"], json!(["10.96.0.1", "services/default/kubernetes", "0s"]));
    assert_eq!(fields(server.post(&addresses, address("10.96.0.01")).await), ["metadata.name"]);
    let moved = json!({"spec": {"parentRef": {"name": "other"}}});
    let name = format!("{addresses}/10.96.0.1");
    assert_eq!(fields(server.patch(&name, "merge-patch", moved).await), ["spec.parentRef"]);

    let ranges = format!("{NETWORKING}/servicecidrs");
    let range = |cidrs: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "a"},
            "spec": {"cidrs": cidrs}})
    };
    for (wrong, field) in [
        (json!([]), "spec.cidrs"),
        (json!(["10.0.0.0/24", "10.1.0.0/24"]), "spec.cidrs"),
        (json!(["10.0.0.1/24"]), "spec.cidrs[0]"),
    ] {
        assert_eq!(fields(server.post(&ranges, range(wrong)).await), [field]);
    }
    server.post(&ranges, range(json!(["10.0.0.0/24"]))).await.expect(201);
    let patch = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
    let name = format!("{ranges}/a");
    let other = server.patch(&name, "merge-patch", patch(json!(["10.0.0.0/16"]))).await;
    assert_eq!(fields(other), ["spec.cidrs"]);
    server.patch(&name, "merge-patch", patch(json!(["10.0.0.0/24", "fd00::/108"]))).await.expect(200);
    let table = server.table(&ranges).await.expect(200);
    assert_eq!(cells(&table), json!([["a", "10.0.0.0/24,fd00::/108", "0s"], ["kubernetes", "10.96.0.0/16", "0s"]]));
}

#[tokio::test(start_paused = true)]
async fn every_service_has_its_own_address() {
    let server = server();
    let addresses = format!("{NETWORKING}/ipaddresses");
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        service["spec"]["ports"] = json!([{"port": 80}]);
        service
    };
    let first = server.post(services, service("first", json!({}))).await.expect(201);
    let address = first["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let found = server.get(&format!("{addresses}/{address}")).await.expect(200);
    assert_eq!(found["spec"]["parentRef"], json!({"resource": "services", "namespace": "default", "name": "first"}));
    assert_eq!(found["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");

    let taken = service("second", json!({"clusterIP": address}));
    let rejected = server.post(services, taken).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("provided IP is already allocated"), "{rejected}");
    // An address with an IPAddress of another owner is not assigned.
    let next = "10.96.0.12";
    let kept = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": next},
        "spec": {"parentRef": {"resource": "gateways", "group": "example.com", "name": "g"}}});
    server.post(&addresses, kept).await.expect(201);
    let second = server.post(services, service("second", json!({}))).await.expect(201);
    assert_eq!(second["spec"]["clusterIP"], "10.96.0.13");
    for (name, spec) in [("headless", json!({"clusterIP": "None"})), ("tried", json!({}))] {
        let path = if name == "tried" { format!("{services}?dryRun=All") } else { services.to_owned() };
        server.post(&path, service(name, spec)).await.expect(201);
    }
    let names = async || {
        let list = server.get(&addresses).await.expect(200);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|it| it["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["10.96.0.11", "10.96.0.12", "10.96.0.13"]);
    server.delete(&format!("{services}/first"), json!(null)).await.expect(200);
    assert_eq!(names().await, ["10.96.0.12", "10.96.0.13"]);
    server.post(services, service("third", json!({"clusterIP": address}))).await.expect(201);
}

fn cells(table: &Value) -> Value {
    table["rows"].as_array().into_iter().flatten().map(|row| row["cells"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn component_statuses_of_scheduler_and_controllers_are_unknown() {
    let server = server();
    let table = server.table("/api/v1/componentstatuses").await.expect(200);
    let rows: Vec<_> = table["rows"].as_array().unwrap().iter().map(|row| row["cells"].clone()).collect();
    let wanted = [
        json!(["scheduler", "Unknown", "", ""]),
        json!(["controller-manager", "Unknown", "", ""]),
        json!(["etcd-0", "Healthy", "ok", ""]),
    ];
    assert_eq!(rows, wanted);
}

#[tokio::test(start_paused = true)]
async fn controller_revisions_and_csi_drivers_have_immutable_fields() {
    let server = server();
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    let empty = server.post(revisions, json!({"metadata": {"name": "r"}, "revision": -1})).await;
    assert_eq!(fields(empty), ["data", "revision"]);
    let revision = json!({"metadata": {"name": "r"}, "revision": 1, "data": {"spec": {"a": 1}}});
    let mut revision = server.post(revisions, revision).await.expect(201);
    revision["revision"] = 2.into();
    let mut revision = server.put(&format!("{revisions}/r"), revision).await.expect(200);
    revision["data"]["spec"]["a"] = 2.into();
    assert_eq!(fields(server.put(&format!("{revisions}/r"), revision).await), ["data"]);

    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    let mut driver = server.post(drivers, json!({"metadata": {"name": "d"}, "spec": {}})).await.expect(201);
    driver["spec"]["requiresRepublish"] = true.into();
    let mut driver = server.put(&format!("{drivers}/d"), driver).await.expect(200);
    driver["spec"]["attachRequired"] = false.into();
    driver["spec"]["volumeLifecycleModes"] = json!(["Ephemeral"]);
    let rejected = fields(server.put(&format!("{drivers}/d"), driver).await);
    assert_eq!(rejected, ["spec.attachedRequired", "spec.volumeLifecycleModes"]);
}

#[tokio::test(start_paused = true)]
async fn the_dangling_condition_reports_whether_the_priority_level_exists() {
    let server = server();
    server.api.ready().await.expect("started");
    let (schemas, levels) =
        (format!("{FLOW_CONTROL}/flowschemas"), format!("{FLOW_CONTROL}/prioritylevelconfigurations"));
    let schema = json!({"metadata": {"name": "a"}, "spec": {"priorityLevelConfiguration": {"name": "mine"}}});
    let made = server.post(&schemas, schema).await.expect(201);
    assert!(made["status"]["conditions"].is_null(), "the condition is written after the create");
    let path = format!("{schemas}/a");
    let dangling = async || {
        let schema = server.get(&path).await.expect(200);
        let condition = schema["status"]["conditions"][0].clone();
        assert_eq!(condition["type"], "Dangling");
        (condition["status"].clone(), condition["reason"].clone(), condition["message"].clone(), schema)
    };
    const REFERENCES: &str = "This FlowSchema references the PriorityLevelConfiguration object named";
    let missing = format!("{REFERENCES} \"mine\" but there is no such object");
    let (status, reason, message, schema) = dangling().await;
    assert_eq!((status, reason, message), (json!("True"), json!("NotFound"), json!(missing)));
    assert_eq!(schema["metadata"]["generation"], 1);
    let owner = &schema["metadata"]["managedFields"][0];
    assert_eq!(owner["manager"], "api-priority-and-fairness-config-consumer-v1");
    assert_eq!((&owner["operation"], &owner["subresource"]), (&json!("Apply"), &json!("status")));
    let fields =
        json!({".": {}, "f:lastTransitionTime": {}, "f:message": {}, "f:reason": {}, "f:status": {}, "f:type": {}});
    let conditions = json!({"f:status": {"f:conditions": {"k:{\"type\":\"Dangling\"}": fields}}});
    assert_eq!(owner["fieldsV1"], conditions);

    let spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}});
    server.post(&levels, json!({"metadata": {"name": "mine"}, "spec": spec})).await.expect(201);
    let found = format!("{REFERENCES} \"mine\" and it exists");
    let (status, reason, message, schema) = dangling().await;
    assert_eq!((status, reason, message), (json!("False"), json!("Found"), json!(found)));
    assert_eq!(schema["metadata"]["managedFields"].as_array().map(Vec::len), Some(2));
    let other = json!({"spec": {"priorityLevelConfiguration": {"name": "exempt"}}});
    server.patch(&path, "merge-patch", other).await.expect(200);
    assert_eq!(dangling().await.2, format!("{REFERENCES} \"exempt\" and it exists"));
    let back = json!({"spec": {"priorityLevelConfiguration": {"name": "mine"}}});
    server.patch(&path, "merge-patch", back).await.expect(200);
    server.delete(&format!("{levels}/mine"), Value::Null).await.expect(200);
    assert_eq!(dangling().await.2, missing);
    // A removed condition is restored.
    server.patch(&format!("{path}/status"), "merge-patch", json!({"status": null})).await.expect(200);
    assert_eq!(dangling().await.2, missing);
}

/// Delays each commit by a random time.
struct DelayedCommits(Mutex<SmallRng>);

impl CommitInterceptor for DelayedCommits {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let pause = self.0.lock().unwrap().random_range(0..6);
        let answer = store.commit_for(user, write);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            answer.await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_updates_of_a_flow_schema_end_with_the_right_dangling_condition() {
    for seed in 0..20 {
        let store = InterceptedStore::new(DelayedCommits(Mutex::new(SmallRng::seed_from_u64(seed))));
        let server = Arc::new(Server { api: ApiServer::new(config_on(store)) });
        let subject = json!({"kind": "User", "user": {"name": "u"}});
        let paths = json!({"verbs": ["get"], "nonResourceURLs": ["*"]});
        let spec = json!({"priorityLevelConfiguration": {"name": "a"},
            "rules": [{"subjects": [subject], "nonResourceRules": [paths]}]});
        let schemas = format!("{FLOW_CONTROL}/flowschemas");
        server.post(&schemas, json!({"metadata": {"name": "s"}, "spec": spec})).await.expect(201);
        let levels = format!("{FLOW_CONTROL}/prioritylevelconfigurations");
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..3 {
            let (server, levels) = (server.clone(), levels.clone());
            let mut random = SmallRng::seed_from_u64(seed * 3 + number);
            tasks.spawn(async move {
                for _ in 0..8 {
                    if random.random_bool(0.5) {
                        let spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}});
                        drop(server.post(&levels, level(spec)).await);
                    } else {
                        drop(server.delete(&format!("{levels}/a"), Value::Null).await);
                    }
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..3))).await;
                }
            });
        }
        while tasks.join_next().await.transpose().expect("no panic").is_some() {}
        tokio::time::sleep(Duration::from_secs(1)).await;
        let exists = server.get(&format!("{levels}/a")).await.code == 200;
        let schema = server.get(&format!("{schemas}/s")).await.expect(200);
        let status = schema["status"]["conditions"][0]["status"].as_str();
        assert_eq!(status, Some(if exists { "False" } else { "True" }), "seed {seed}: {}", schema["status"]);
    }
}
