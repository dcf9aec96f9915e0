//! The contents of a server's audit log.

use std::sync::{Arc, Mutex};

use berth_apiserver::audit::policy::Policy;
use berth_apiserver::audit::{Log, Sink};
use berth_apiserver::{ApiServer, UserInfo};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::harness::{Server, config};

#[derive(Default)]
struct Memory(Mutex<Vec<Value>>);

impl Sink for Memory {
    fn write(&self, event: &str) {
        assert!(!event.contains('\n'));
        self.0.lock().unwrap().push(serde_json::from_str(event).expect("JSON"));
    }
}

#[tokio::test(start_paused = true)]
async fn audit_events_name_users_impersonation_and_outcomes() {
    let policy = json!({"omitStages": ["RequestReceived"], "omitManagedFields": true, "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "RequestResponse"},
    ]});
    let memory = Arc::new(Memory::default());
    let mut config = config();
    let policy = Arc::new(Policy::from_value(&policy).expect("a policy"));
    config.audit = Some(Log { policy, sink: memory.clone() });
    let server = Server { api: ApiServer::new(config) };
    let events = || std::mem::take(&mut *memory.0.lock().unwrap());

    server.get("/api/v1/namespaces").await.expect(200);
    assert_eq!(events(), Vec::<Value>::new());
    let secrets = "/api/v1/namespaces/default/secrets";
    server.post(secrets, json!({"metadata": {"name": "s"}, "stringData": {"password": "hush"}})).await.expect(201);
    let event = events().remove(0);
    assert_eq!(
        (&event["level"], &event["stage"], &event["verb"]),
        (&json!("Metadata"), &json!("ResponseComplete"), &json!("create"))
    );
    assert!(!event.to_string().contains("hush"));
    let reference = json!({"resource": "secrets", "apiVersion": "v1", "namespace": "default"});
    assert_eq!((&event["objectRef"], &event["responseStatus"]["code"]), (&reference, &json!(201)));

    let maps = "/api/v1/namespaces/default/configmaps";
    server.post(maps, json!({"metadata": {"name": "m"}})).await.expect(201);
    let event = events().remove(0);
    assert_eq!(event["requestObject"]["metadata"]["name"], "m");
    assert!(event["responseObject"]["metadata"]["uid"].is_string());
    assert!(event["responseObject"]["metadata"]["managedFields"].is_null());

    let request = Request::builder()
        .method(Method::DELETE)
        .uri(format!("{maps}/m"))
        .header("impersonate-user", "bob")
        .body(Full::new(Bytes::new()))
        .unwrap();
    let answer = server.api.handle(request, UserInfo::master("admin")).await;
    assert_eq!(answer.status(), 403);
    let event = events().remove(0);
    assert_eq!((&event["user"]["username"], &event["impersonatedUser"]["username"]), (&json!("admin"), &json!("bob")));
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(event["responseStatus"]["reason"], "Forbidden");
}

#[tokio::test(start_paused = true)]
async fn audit_annotations_and_failures_of_policies_are_recorded() {
    let memory = Arc::new(Memory::default());
    let mut config = config();
    let policy = json!({"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]});
    let policy = Arc::new(Policy::from_value(&policy).expect("a policy"));
    config.audit = Some(Log { policy, sink: memory.clone() });
    let server = Server { api: ApiServer::new(config) };
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"]}]},
        "validations": [{"expression": "has(object.data)", "message": "empty maps are of no use"}],
        "auditAnnotations": [{"key": "user", "valueExpression": "request.userInfo.username"}],
    });
    let policies = format!("{admission}/validatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let spec = json!({"policyName": "p", "validationActions": ["Audit"]});
    let bindings = format!("{admission}/validatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
    memory.0.lock().unwrap().clear();

    server.post("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "m"}})).await.expect(201);
    let event = memory.0.lock().unwrap().remove(0);
    assert_eq!(event["annotations"]["p/user"], "tester");
    let failures = event["annotations"]["validation.policy.admission.k8s.io/validation_failure"].as_str().unwrap();
    let failures: Value = serde_json::from_str(failures).unwrap();
    let expected = json!([{"message": "empty maps are of no use", "policy": "p", "binding": "b", "expressionIndex": 0,
        "validationActions": ["Audit"]}]);
    assert_eq!(failures, expected);
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_change_the_generated_name_and_uid_of_the_next_object() {
    let created_after = async |reads: usize| {
        let mut config = config();
        let policy = Arc::new(Policy::from_value(&json!({"rules": [{"level": "Metadata"}]})).expect("a policy"));
        let memory = Arc::new(Memory::default());
        config.audit = Some(Log { policy, sink: memory.clone() });
        let server = Server { api: ApiServer::new(config) };
        for _ in 0..reads {
            server.get("/api/v1/namespaces").await.expect(200);
        }
        let maps = "/api/v1/namespaces/default/configmaps";
        let created = server.post(maps, json!({"metadata": {"generateName": "m-"}})).await.expect(201);
        let ids: std::collections::BTreeSet<String> =
            memory.0.lock().unwrap().iter().map(|event| event["auditID"].to_string()).collect();
        assert_eq!(ids.len(), reads + 1, "each request has its own id");
        created
    };
    assert_eq!(created_after(0).await["metadata"], created_after(3).await["metadata"]);
}
