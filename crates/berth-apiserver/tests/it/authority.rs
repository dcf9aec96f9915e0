//! What nobody gets by a way round: objects made by those who may only change them, rights given away by those who lack them.

use berth_apiserver::UserInfo;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, server};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

fn rule(groups: &str, resources: &str, names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = json!({"apiGroups": [groups], "resources": [resources], "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// A user who may do what the rules say, everywhere.
async fn user(server: &Server, name: &str, rules: Value) -> UserInfo {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    server.post(&format!("{RBAC}/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": name}]});
    server.post(&format!("{RBAC}/clusterrolebindings"), binding).await.expect(201);
    UserInfo::new(name, &[])
}

#[track_caller]
fn refused(answer: Answer, text: &str) {
    let answer = answer.expect(403);
    assert!(answer["message"].as_str().unwrap().contains(text), "{answer:#}");
}

#[tokio::test(start_paused = true)]
async fn who_may_only_change_objects_makes_none() {
    let server = server();
    let maps = "/api/v1/namespaces/default/configmaps";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let editor = user(
        &server,
        "editor",
        json!([
            rule("", "configmaps", &[], &["get", "patch", "update"]),
            rule("", "configmaps", &["mine"], &["create"]),
            rule("coordination.k8s.io", "leases", &[], &["get", "patch", "update"]),
        ]),
    )
    .await;
    let map =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}});
    let apply = async |name: &str| {
        server.request_as(&editor, Method::PATCH, &format!("{maps}/{name}?fieldManager=t"), APPLY, &map(name)).await
    };
    let why = "configmaps \"new\" is forbidden: User \"editor\" cannot create resource \"configmaps\" in API group \"\" \
               in the namespace \"default\"";
    refused(apply("new").await, why);
    server.get(&format!("{maps}/new")).await.expect(404);
    // The question is about that object: a rule with its name allows it, and what is there is only changed.
    apply("mine").await.expect(201);
    server.post(maps, map("new")).await.expect(201);
    apply("new").await.expect(200);

    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let put = async |lease: &Value| server.request_as(&editor, Method::PUT, &format!("{leases}/l"), JSON, lease).await;
    let why = "User \"editor\" cannot create resource \"leases\" in API group \"coordination.k8s.io\"";
    refused(put(&lease).await, why);
    server.get(&format!("{leases}/l")).await.expect(404);
    let made = server.put(&format!("{leases}/l"), lease.clone()).await.expect(201);
    put(&made).await.expect(200);
}

