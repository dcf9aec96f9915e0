//! Privilege escalation: users with permission to update but not to create, and users that grant
//! permissions that they do not have.

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

/// A user with these rules in all namespaces.
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
fn rejected(answer: Answer, text: &str) {
    let answer = answer.expect(403);
    assert!(answer["message"].as_str().unwrap().contains(text), "{answer:#}");
}

#[tokio::test(start_paused = true)]
async fn a_user_without_create_permission_cannot_create_by_update() {
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
    rejected(apply("new").await, why);
    server.get(&format!("{maps}/new")).await.expect(404);
    // The check has the name of the object: a rule with this name allows the create. An existing
    // object is only updated.
    apply("mine").await.expect(201);
    server.post(maps, map("new")).await.expect(201);
    apply("new").await.expect(200);

    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    let put = async |lease: &Value| server.request_as(&editor, Method::PUT, &format!("{leases}/l"), JSON, lease).await;
    let why = "User \"editor\" cannot create resource \"leases\" in API group \"coordination.k8s.io\"";
    rejected(put(&lease).await, why);
    server.get(&format!("{leases}/l")).await.expect(404);
    let made = server.put(&format!("{leases}/l"), lease.clone()).await.expect(201);
    put(&made).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_roles_labels_requires_its_permissions() {
    let server = server();
    let roles = format!("{RBAC}/clusterroles");
    let secrets = json!([rule("", "secrets", &[], &["*"])]);
    let wide = json!({"metadata": {"name": "wide", "finalizers": ["example.com/keep"]}, "rules": secrets});
    server.post(&roles, wide).await.expect(201);
    let aggregated = json!({"metadata": {"name": "aggregated"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to-view": "true"}}]}});
    server.post(&roles, aggregated).await.expect(201);
    let all = rule("rbac.authorization.k8s.io", "clusterroles", &[], &["get", "patch", "update"]);
    let clerk = user(&server, "clerk", json!([all])).await;
    let patch = async |user: &UserInfo, name: &str, patch: Value| {
        server.request_as(user, Method::PATCH, &format!("{roles}/{name}"), MERGE, &patch).await
    };
    let label = json!({"metadata": {"labels": {"to-view": "true"}}});
    let granting = "is attempting to grant RBAC permissions not currently held";
    rejected(patch(&clerk, "wide", label.clone()).await, granting);
    rejected(patch(&clerk, "wide", json!({"metadata": {"annotations": {"a": "b"}}})).await, granting);
    // Changes to finalizers and owner references (garbage collection) grant nothing. Neither do
    // updates without a change.
    patch(&clerk, "wide", json!({})).await.expect(200);
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}]);
    patch(&clerk, "wide", json!({"metadata": {"finalizers": null, "ownerReferences": owner}})).await.expect(200);
    // Removing an aggregation rule requires the same permission as adding one.
    let freed = json!({"aggregationRule": null});
    rejected(
        patch(&clerk, "aggregated", freed.clone()).await,
        "must have cluster-admin privileges to use the aggregationRule",
    );

    let everything = rule("*", "*", &[], &["*"]);
    let boss = user(&server, "boss", json!([everything])).await;
    patch(&boss, "wide", label).await.expect(200);
    let escalates = rule("rbac.authorization.k8s.io", "clusterroles", &["aggregated"], &["get", "patch", "escalate"]);
    let trusted = user(&server, "trusted", json!([escalates])).await;
    patch(&trusted, "aggregated", freed).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_bindings_labels_requires_its_permissions() {
    let server = server();
    let bindings = format!("{RBAC}/clusterrolebindings");
    user(&server, "keeper", json!([rule("", "secrets", &[], &["*"])])).await;
    let all = rule("rbac.authorization.k8s.io", "clusterrolebindings", &[], &["get", "patch", "update"]);
    let clerk = user(&server, "clerk", json!([all])).await;
    let patch = async |patch: Value| {
        server.request_as(&clerk, Method::PATCH, &format!("{bindings}/keeper"), MERGE, &patch).await
    };
    rejected(patch(json!({"metadata": {"labels": {"a": "b"}}})).await, "RBAC permissions not currently held");
    patch(json!({"metadata": {"finalizers": ["example.com/keep"]}})).await.expect(200);
}
