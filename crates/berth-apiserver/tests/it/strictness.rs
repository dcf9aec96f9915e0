//! Strict field validation, and other behaviour that Kubernetes' conformance tests require.

use std::time::Duration;

use berth_apiserver::forget_history;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, read, server};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Defines a kind of `x.dev` with this schema.
async fn define(server: &Server, plural: &str, kind: &str, schema: Value) -> Answer {
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.x.dev")},
        "spec": {"group": "x.dev", "scope": "Cluster", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    server.post(CRDS, definition).await
}

async fn server_with_kinds() -> Server {
    let server = server();
    let template = json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}}}});
    let properties = json!({"foo": {"type": "string"}, "template": template});
    let spec = json!({"type": "object", "properties": properties});
    define(&server, "stricts", "Strict", json!({"type": "object", "properties": {"spec": spec}})).await.expect(201);
    let spec = json!({"type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": true});
    define(&server, "keeps", "Keep", json!({"type": "object", "properties": {"spec": spec}})).await.expect(201);
    server
}

async fn apply(server: &Server, uri: &str, yaml: &str) -> Answer {
    let headers = [("content-type", "application/apply-patch+yaml")];
    read(server.raw(Method::PATCH, uri, &headers, yaml.as_bytes().to_vec()).await).await
}

#[tokio::test(start_paused = true)]
async fn an_apply_with_undeclared_fields_is_rejected_with_all_their_paths() {
    let server = server_with_kinds().await;
    let yaml = "apiVersion: x.dev/v1\nkind: Strict\nmetadata:\n  name: a\n  odd: 1\nodd: 1\nspec:\n  foo: 1\n  odd: 1\n  template:\n    \
                metadata: {name: sub, namespace: d, odd: 1}\n";
    // Apply rejects unknown fields with every field validation, because no manager can own them.
    for validation in ["Strict", "Warn", "Ignore"] {
        let uri = format!("/apis/x.dev/v1/stricts/a?fieldManager=t&fieldValidation={validation}");
        let rejected = apply(&server, &uri, yaml).await.expect(400);
        assert_eq!(
            rejected["message"],
            "failed to create typed patch object (/a; x.dev/v1, Kind=Strict): errors:\n  \
             .metadata.odd: field not declared in schema\n  .odd: field not declared in schema\n  \
             .spec.foo: expected string, got 1\n  .spec.odd: field not declared in schema\n  \
             .spec.template.metadata.odd: field not declared in schema"
        );
    }
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndat: {a: b}\n";
    let rejected = apply(&server, "/api/v1/namespaces/default/configmaps/m?fieldManager=t", map).await.expect(400);
    let message = rejected["message"].as_str().unwrap();
    assert!(message.ends_with("(default/m; /v1, Kind=ConfigMap): .dat: field not declared in schema"), "{message}");
    let sound = "apiVersion: x.dev/v1\nkind: Strict\nmetadata: {name: a}\nspec:\n  template:\n    \
                 apiVersion: v1\n    kind: Sub\n    metadata: {name: sub, labels: {a: b}, finalizers: [x.dev/a]}\n";
    apply(&server, "/apis/x.dev/v1/stricts/a?fieldManager=t&fieldValidation=Strict", sound).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn duplicate_keys_are_reported_in_every_media_type() {
    let server = server_with_kinds().await;
    let yaml =
        "\napiVersion: x.dev/v1\nkind: Keep\nmetadata: {name: NAME}\nspec:\n  foo: a\n  foo: b\n  any: {x: 1, x: 2}\n";
    let of = |name: &str| yaml.replace("NAME", name);
    let lines =
        "yaml: unmarshal errors:\n  line 7: key \"foo\" already set in map\n  line 8: key \"x\" already set in map";
    let warned =
        ["299 - \"line 7: key \\\"foo\\\" already set in map\"", "299 - \"line 8: key \\\"x\\\" already set in map\""];
    let uri = |validation: &str| format!("/apis/x.dev/v1/keeps/a?fieldManager=t&fieldValidation={validation}");
    let rejected = apply(&server, &uri("Strict"), &of("a")).await.expect(400);
    assert_eq!(rejected["message"], format!("error strict decoding YAML: error converting YAML to JSON: {lines}"));
    server.get("/apis/x.dev/v1/keeps/a").await.expect(404);
    let applied = apply(&server, &uri("Warn"), &of("a")).await;
    assert_eq!(applied.warnings, warned);
    assert_eq!(applied.expect(201)["spec"], json!({"foo": "b", "any": {"x": 2}}));
    assert!(apply(&server, &uri("Ignore"), &of("a")).await.warnings.is_empty());
    let body =
        r#"{"apiVersion": "x.dev/v1", "kind": "Keep", "metadata": {"name": "a"}, "spec": {"foo": "a", "foo": "b"}}"#;
    let rejected = apply(&server, &uri("Strict"), body).await.expect(400);
    assert!(
        rejected["message"].as_str().unwrap().ends_with("\n  line 1: key \"foo\" already set in map"),
        "{rejected}"
    );

    let post = async |name: &str, validation: &str| {
        let uri = format!("/apis/x.dev/v1/keeps?fieldValidation={validation}");
        let headers = [("content-type", "application/yaml")];
        read(server.raw(Method::POST, &uri, &headers, of(name).into_bytes()).await).await
    };
    let rejected = post("b", "Strict").await.expect(400);
    let message = format!("Keep in version \"v1\" cannot be handled as a Keep: strict decoding error: {lines}");
    assert_eq!(rejected["message"], message);
    assert_eq!(post("b", "Warn").await.warnings, warned);
    assert!(post("c", "Ignore").await.warnings.is_empty());

    let patch = async |media: &str, validation: &str, body: &str| {
        let uri = format!("/apis/x.dev/v1/keeps/a?fieldValidation={validation}");
        let media = format!("application/{media}+json");
        read(server.raw(Method::PATCH, &uri, &[("content-type", &media)], body.as_bytes().to_vec()).await).await
    };
    let merge = r#"{"odd": 1, "spec": {"foo": "c", "foo": "d"}}"#;
    let rejected = patch("merge-patch", "Strict", merge).await.expect(422);
    let both = "strict decoding error: duplicate field \"spec.foo\", unknown field \"odd\"";
    assert!(rejected["message"].as_str().unwrap().ends_with(both), "{rejected}");
    let patched = patch("merge-patch", "Warn", merge).await;
    assert_eq!(patched.warnings, ["299 - \"duplicate field \\\"spec.foo\\\"\"", "299 - \"unknown field \\\"odd\\\"\""]);
    let steps = r#"[{"op": "add", "path": "/spec/foo", "value": "e", "value": "f", "why": 1}]"#;
    let rejected = patch("json-patch", "Strict", steps).await.expect(422);
    let both = "json patch duplicate field \"[0].value\", json patch unknown field \"[0].why\"";
    assert!(rejected["message"].as_str().unwrap().ends_with(both), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn unknown_and_duplicate_fields_are_reported_in_the_order_of_the_body() {
    let server = server();
    let body =
        r#"{"metadata": {"name": "a", "zeta": 1, "alpha": 1}, "zeta": 1, "data": {"k": "1", "k": "2"}, "alpha": 1}"#;
    let uri = "/api/v1/namespaces/default/configmaps?fieldValidation=Strict";
    let media = [("content-type", "application/json")];
    let answer = server.raw(Method::POST, uri, &media, body.as_bytes().to_vec()).await;
    let rejected = read(answer).await.expect(400);
    let found = "strict decoding error: unknown field \"metadata.zeta\", unknown field \"metadata.alpha\", \
        unknown field \"zeta\", duplicate field \"data.k\", unknown field \"alpha\"";
    assert!(rejected["message"].as_str().unwrap().ends_with(found), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn kinds_without_columns_are_not_acceptable_as_tables() {
    let server = server();
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let ask = async |uri: &str, accept: &str, body: &Value| {
        let headers = [("content-type", "application/json"), ("accept", accept)];
        read(server.raw(Method::POST, uri, &headers, body.to_string().into_bytes()).await).await
    };
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let rejected = ask(reviews, table, &review).await.expect(406);
    assert_eq!(rejected["reason"], "NotAcceptable");
    let either = ask(reviews, &format!("{table},application/json"), &review).await.expect(201);
    assert_eq!(either["status"]["allowed"], true);
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    assert_eq!(ask(reviews, metadata, &review).await.expect(201)["kind"], "PartialObjectMetadata");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    ask("/api/v1/namespaces/default/pods/p/eviction", table, &eviction).await.expect(406);
    server.table("/api/v1/namespaces/default/pods").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_a_schema_is_published_as_an_open_object() {
    let server = server();
    define(&server, "frees", "Free", json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))
        .await
        .expect(201);
    define(&server, "bares", "Bare", json!({"type": "object"})).await.expect(201);
    let document = server.get("/openapi/v2").await.expect(200);
    let of = |kind: &str| document["definitions"][format!("dev.x.v1.{kind}")].clone();
    let named = json!([{"group": "x.dev", "version": "v1", "kind": "Free"}]);
    assert_eq!(of("Free"), json!({"type": "object", "x-kubernetes-group-version-kind": named}));
    let fields = of("Bare")["properties"].clone();
    let fields: Vec<&String> = fields.as_object().expect("an object").keys().collect();
    assert_eq!(fields, ["apiVersion", "kind", "metadata"]);
    assert_eq!(
        of("FreeList")["properties"]["items"]["description"],
        "List of frees. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
    );
    let document = server.get("/openapi/v3/apis/x.dev/v1").await.expect(200);
    let free = &document["components"]["schemas"]["dev.x.v1.Free"];
    assert_eq!(free["x-kubernetes-preserve-unknown-fields"], true);
}

#[tokio::test(start_paused = true)]
async fn a_definition_with_an_invalid_pattern_is_rejected() {
    let server = server();
    let with = |pattern: &str| {
        let spec = json!({"type": "object", "properties": {"s": {"type": "string", "pattern": pattern}}});
        json!({"type": "object", "properties": {"spec": spec}})
    };
    let bomb = "((((a{1,100}){1,100}){1,100}){1,100})";
    let rejected = define(&server, "bombs", "Bomb", with(bomb)).await.expect(422);
    let cause = &rejected["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.validation.openAPIV3Schema.properties[spec].properties[s].pattern");
    assert_eq!(
        cause["message"],
        format!(
            "Invalid value: \"{bomb}\": must be a valid regular expression, but isn't: error parsing regexp: invalid repeat count: \
             `{{1,100}}`"
        )
    );
    define(&server, "opens", "Open", with("(")).await.expect(422);
    define(&server, "sounds", "Sound", with("^\\d{1,3}(\\.\\d{1,3}){3}$")).await.expect(201);
    let sound =
        |text: &str| json!({"apiVersion": "x.dev/v1", "kind": "Sound", "metadata": {"name": "s"}, "spec": {"s": text}});
    server.post("/apis/x.dev/v1/sounds", sound("\u{661}.2.3.4")).await.expect(422);
    server.post("/apis/x.dev/v1/sounds", sound("1.2.3.4")).await.expect(201);
    // A pattern in a CEL expression is validated too.
    let mut schema = with("a");
    schema["properties"]["spec"]["x-kubernetes-validations"] = json!([{"rule": "self.s.matches('(a{32}){32}')"}]);
    let rejected = define(&server, "rules", "Rule", schema).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("invalid matches argument"), "{rejected}");
}

#[tokio::test(start_paused = true)]
async fn continue_tokens_expire_even_if_nothing_is_written() {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let server = server();
    forget_history(&server.api);
    for name in ["a", "b", "c"] {
        server.post(MAPS, json!({"metadata": {"name": name}})).await.expect(201);
    }
    let interval = Duration::from_secs(5 * 60);
    tokio::time::sleep(interval / 2).await;
    let first = server.get(&format!("{MAPS}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let next = |token: &str| format!("{MAPS}?limit=1&continue={token}");
    tokio::time::sleep(interval).await;
    let second = server.get(&next(&token)).await.expect(200);
    let of_second = second["metadata"]["continue"].as_str().unwrap().to_owned();
    let fresh = server.get(&format!("{MAPS}?limit=1")).await.expect(200);
    tokio::time::sleep(interval).await;
    // The token of the second page has expired with its list. That of a later list has not.
    server.get(&next(&of_second)).await.expect(410);
    server.get(&next(fresh["metadata"]["continue"].as_str().unwrap())).await.expect(200);
    let expired = server.get(&next(&token)).await.expect(410);
    assert_eq!(expired["reason"], "Expired");
    let rest = server.get(&next(expired["metadata"]["continue"].as_str().unwrap())).await.expect(200);
    assert_eq!(rest["items"][0]["metadata"]["name"], "b");
    server.get(&next(rest["metadata"]["continue"].as_str().unwrap())).await.expect(200);
}
