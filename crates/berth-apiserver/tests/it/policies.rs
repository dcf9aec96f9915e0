//! ValidatingAdmissionPolicies, and rules of definitions that cannot work.

use serde_json::{Value, json};

use crate::harness::{Server, server};

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn policy(server: &Server, spec: Value, binding: Value) {
    let policies = format!("{ADMISSION}/validatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let mut spec = binding;
    spec["policyName"] = "p".into();
    let bindings = format!("{ADMISSION}/validatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
}

fn about_maps() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"]}]})
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

#[tokio::test(start_paused = true)]
async fn a_bound_policy_refuses_what_its_expressions_do_not_allow() {
    let server = server();
    let spec = json!({
        "matchConstraints": about_maps(),
        "variables": [{"name": "size", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [{"expression": "variables.size <= 1", "reason": "Forbidden",
            "messageExpression": "'at most one entry, not ' + string(variables.size)"}],
    });
    policy(&server, spec, json!({"validationActions": ["Deny"]})).await;
    server.post(MAPS, map("one", json!({"a": "1"}))).await.expect(201);
    let refused = server.post(MAPS, map("two", json!({"a": "1", "b": "2"}))).await.expect(403);
    let message = "configmaps \"two\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                   at most one entry, not 2";
    assert_eq!(refused["message"], message);
    // Other kinds are none of its business, and without the binding nothing is.
    server.post("/api/v1/namespaces/default/secrets", map("s", json!({"a": "MQ==", "b": "MQ=="}))).await.expect(201);
    server.delete(&format!("{ADMISSION}/validatingadmissionpolicybindings/b"), Value::Null).await.expect(200);
    server.post(MAPS, map("two", json!({"a": "1", "b": "2"}))).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn parameters_come_from_the_object_the_binding_names() {
    let server = server();
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": about_maps(),
        "matchConditions": [{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}],
        "validations": [{"expression": "object.metadata.name.startsWith(params.data.prefix)"}],
    });
    let reference = json!({"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"});
    policy(&server, spec, json!({"validationActions": ["Deny"], "paramRef": reference})).await;
    let refused = server.post(MAPS, map("team-a", json!({}))).await.expect(403);
    assert!(refused["message"].as_str().unwrap().contains("no params found"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_definition_whose_rules_cannot_work_is_refused() {
    let server = server();
    let definition = |rule: &str| {
        json!({"metadata": {"name": "boats.harbor.dev"}, "spec": {"group": "harbor.dev", "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "properties": {"crew": {"type": "array", "items": {"type": "string"}}},
                    "x-kubernetes-validations": [{"rule": rule}]}}}}}]}})
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let refused = server.post(definitions, definition("self.crew == 1")).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("found no matching overload for '_==_' applied to '(list(string), int)'"), "{message}");
    let refused = server.post(definitions, definition("self.crew.all(a, self.crew.all(b, a != b))")).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("estimated rule cost exceeds budget"), "{refused}");
    server.post(definitions, definition("size(self.crew) > 0")).await.expect(201);
}
