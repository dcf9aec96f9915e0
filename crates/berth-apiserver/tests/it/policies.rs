//! Admission policies, and invalid CEL rules of definitions.

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

fn match_maps() -> Value {
    json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps"]}]})
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

#[tokio::test(start_paused = true)]
async fn a_bound_policy_rejects_objects_that_violate_its_expressions() {
    let server = server();
    let spec = json!({
        "matchConstraints": match_maps(),
        "variables": [{"name": "size", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [{"expression": "variables.size <= 1", "reason": "Forbidden",
            "messageExpression": "'at most one entry, not ' + string(variables.size)"}],
    });
    policy(&server, spec, json!({"validationActions": ["Deny"]})).await;
    server.post(MAPS, map("one", json!({"a": "1"}))).await.expect(201);
    let rejected = server.post(MAPS, map("two", json!({"a": "1", "b": "2"}))).await.expect(403);
    let message = "configmaps \"two\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: \
                   at most one entry, not 2";
    assert_eq!(rejected["message"], message);
    // The policy does not match other kinds. Without a binding it has no effect.
    server.post("/api/v1/namespaces/default/secrets", map("s", json!({"a": "MQ==", "b": "MQ=="}))).await.expect(201);
    server.delete(&format!("{ADMISSION}/validatingadmissionpolicybindings/b"), Value::Null).await.expect(200);
    server.post(MAPS, map("two", json!({"a": "1", "b": "2"}))).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn parameters_come_from_the_object_that_the_binding_names() {
    let server = server();
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": match_maps(),
        "matchConditions": [{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}],
        "validations": [{"expression": "object.metadata.name.startsWith(params.data.prefix)"}],
    });
    let reference = json!({"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"});
    policy(&server, spec, json!({"validationActions": ["Deny"], "paramRef": reference})).await;
    let rejected = server.post(MAPS, map("team-a", json!({}))).await.expect(403);
    assert!(rejected["message"].as_str().unwrap().contains("no params found"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn a_definition_with_invalid_rules_is_rejected() {
    let server = server();
    let definition = |rule: &str| {
        json!({"metadata": {"name": "boats.harbor.dev"}, "spec": {"group": "harbor.dev", "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "properties": {"crew": {"type": "array", "items": {"type": "string"}}},
                    "x-kubernetes-validations": [{"rule": rule}]}}}}}]}})
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let rejected = server.post(definitions, definition("self.crew == 1")).await.expect(422);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.contains("found no matching overload for '_==_' applied to '(list(string), int)'"), "{message}");
    let rejected = server.post(definitions, definition("self.crew.all(a, self.crew.all(b, a != b))")).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("estimated rule cost exceeds budget"), "{rejected}");
    server.post(definitions, definition("size(self.crew) > 0")).await.expect(201);
}

async fn mutating(server: &Server, name: &str, spec: Value) {
    let mut spec = spec;
    for (field, value) in [("matchConstraints", match_maps()), ("reinvocationPolicy", json!("Never"))] {
        if spec[field].is_null() {
            spec[field] = value;
        }
    }
    let policies = format!("{ADMISSION}/mutatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
    let bindings = format!("{ADMISSION}/mutatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": name}, "spec": {"policyName": name}})).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn mutating_policies_apply_and_patch_in_order() {
    let server = server();
    let apply = "Object{metadata: Object.metadata{labels: {'team': variables.team}}}";
    let patch = "[JSONPatch{op: 'add', path: '/data/seen', value: object.metadata.labels.team}]";
    mutating(
        &server,
        "a",
        json!({
            "matchConditions": [{"name": "with-data", "expression": "has(object.data)"}],
            "variables": [{"name": "team", "expression": "'blue'"}],
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": apply}},
                {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        }),
    )
    .await;
    let made = server.post(MAPS, map("m", json!({"k": "v"}))).await.expect(201);
    assert_eq!(
        (&made["metadata"]["labels"], &made["data"]),
        (&json!({"team": "blue"}), &json!({"k": "v", "seen": "blue"}))
    );
    let plain = server.post(MAPS, json!({"metadata": {"name": "plain"}})).await.expect(201);
    assert_eq!(plain["metadata"]["labels"], Value::Null);

    // With `IfNeeded`, a policy runs again after a later policy changed the object.
    let second = "[JSONPatch{op: 'add', path: '/data/first', value: has(object.data.later) ? 'saw' : 'did not see'}]";
    let patches = |expression: &str| json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]);
    mutating(&server, "b", json!({"mutations": patches(second), "reinvocationPolicy": "IfNeeded"})).await;
    mutating(&server, "c", json!({"mutations": patches("[JSONPatch{op: 'add', path: '/data/later', value: 'x'}]")}))
        .await;
    let made = server.post(MAPS, map("again", json!({"k": "v"}))).await.expect(201);
    assert_eq!(made["data"]["first"], "saw");
}

#[tokio::test(start_paused = true)]
async fn a_failed_mutation_rejects_the_request_unless_its_failures_are_ignored() {
    let server = server();
    let broken = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/data/none'}]"}}]);
    mutating(&server, "a", json!({"mutations": broken, "failurePolicy": "Ignore"})).await;
    server.post(MAPS, map("ignored", json!({}))).await.expect(201);
    mutating(&server, "b", json!({"mutations": broken})).await;
    let rejected = server.post(MAPS, map("rejected", json!({}))).await.expect(403);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.contains("policy 'b' with binding 'b' denied request: error applying patch"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_mutated_object_must_match_the_type_of_its_kind() {
    let server = server();
    let patches = |patch: &str| json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": format!("[{patch}]")}}]);
    let when = |data: &str| json!([{"name": "when", "expression": format!("'{data}' in object.data")}]);
    for (name, patch) in [
        ("number", "JSONPatch{op: 'add', path: '/data/x', value: 1}"),
        ("field", "JSONPatch{op: 'add', path: '/colour', value: 'red'}"),
        ("kind", "JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}"),
    ] {
        mutating(&server, name, json!({"matchConditions": when(name), "mutations": patches(patch)})).await;
    }
    let rejected = server.post(MAPS, map("a", json!({"number": ""}))).await.expect(403);
    let message = rejected["message"].as_str().unwrap();
    let why = "policy 'number' with binding 'number' denied request: json: cannot unmarshal number into Go struct field \
               ConfigMap.data of type string";
    assert!(message.ends_with(why), "{message}");
    server.get(&format!("{MAPS}/a")).await.expect(404);
    // A policy must not add unknown fields. Those of a webhook are dropped.
    let rejected = server.post(MAPS, map("b", json!({"field": ""}))).await.expect(403);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.ends_with("strict decoding error: unknown field \"colour\""), "{message}");
    let rejected = server.post(MAPS, map("c", json!({"kind": ""}))).await.expect(403);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.ends_with("kind must stay \"ConfigMap\", but was changed to \"Secret\""), "{message}");
}

#[tokio::test(start_paused = true)]
async fn invalid_policies_are_rejected_with_the_paths_of_their_errors() {
    let server = server();
    let spec = json!({"matchConstraints": match_maps(), "validations": [{"expression": "object."}, {"expression": "1"}],
        "matchConditions": [{"name": "a", "expression": "true"}, {"name": "a", "expression": "nothing"}]});
    let rejected = server
        .post(&format!("{ADMISSION}/validatingadmissionpolicies"), json!({"metadata": {"name": "p"}, "spec": spec}))
        .await
        .expect(422);
    let fields: Vec<&str> =
        rejected["details"]["causes"].as_array().unwrap().iter().filter_map(|cause| cause["field"].as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.matchConditions[1].name",
            "spec.matchConditions[1].expression",
            "spec.validations[0].expression",
            "spec.validations[1].expression"
        ]
    );
    let bindings = format!("{ADMISSION}/validatingadmissionpolicybindings");
    let spec = json!({"policyName": "p", "validationActions": ["Deny", "Warn"], "paramRef": {"name": "x"}});
    let rejected = server.post(&bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(422);
    let text = rejected["message"].as_str().unwrap();
    assert!(text.contains("must not contain both Deny and Warn") && text.contains("parameterNotFoundAction"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn type_errors_of_expressions_are_reported_in_the_status() {
    let server = server();
    let spec = json!({"matchConstraints": match_maps(), "validations": [
        {"expression": "object.data.size() > 0"}, {"expression": "object.dat.size() > 0"}]});
    let policies = format!("{ADMISSION}/validatingadmissionpolicies");
    let made = server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let warnings = made["status"]["typeChecking"]["expressionWarnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["fieldRef"]), (1, &json!("spec.validations[1].expression")));
    let warning = warnings[0]["warning"].as_str().unwrap();
    assert!(warning.starts_with("v1, Kind=ConfigMap: ERROR: <input>:1:7: undefined field 'dat'"), "{warning}");
    let fix = json!({"spec": {"validations": [{"expression": "object.data.size() > 0"}]}});
    let fixed = server.patch(&format!("{policies}/p"), "merge-patch", fix).await.expect(200);
    assert_eq!(fixed["status"], json!({"observedGeneration": 2, "typeChecking": {}}));
}

#[tokio::test(start_paused = true)]
async fn admission_of_a_scale_update_sees_the_scale_object() {
    let server = server();
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template});
    server.post(sets, json!({"metadata": {"name": "rs"}, "spec": spec})).await.expect(201);
    let rules = json!({"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["replicasets/scale"]}]});
    let validations =
        json!([{"expression": "object.kind == 'Scale' && object.spec.replicas - oldObject.spec.replicas <= 2"}]);
    let spec = json!({"matchConstraints": rules, "validations": validations});
    policy(&server, spec, json!({"validationActions": ["Deny"]})).await;
    let scale = |replicas: i64| json!({"spec": {"replicas": replicas}});
    server.patch(&format!("{sets}/rs/scale"), "merge-patch", scale(9)).await.expect(422);
    let scaled = server.patch(&format!("{sets}/rs/scale"), "merge-patch", scale(3)).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let stored = server.get(&format!("{sets}/rs")).await.expect(200);
    assert_eq!((&stored["spec"]["replicas"], &stored["kind"]), (&json!(3), &json!("ReplicaSet")));
}
