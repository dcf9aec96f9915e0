//! `metadata.managedFields` is stored as one text. Clients, policies and plugins must see a list.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use berth_apimachinery::status::Status;
use berth_apiserver::ApiServer;
use berth_apiserver::admission::{AdmissionPlugin, AdmissionRequest};
use serde_json::{Value, json};

use crate::harness::{Server, config, read, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MAP: &str = "/api/v1/namespaces/default/configmaps/a";

async fn with_map() -> Server {
    let server = server();
    server.post(&format!("{MAPS}?fieldManager=one"), json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await;
    let patch = json!({"data": {"l": "2"}});
    server.patch(&format!("{MAP}?fieldManager=two"), "merge-patch", patch).await.expect(200);
    server
}

fn managers(object: &Value) -> Vec<String> {
    let list = object["metadata"]["managedFields"].as_array().unwrap_or_else(|| panic!("no list in {object:#}"));
    assert!(list.iter().all(|entry| entry["fieldsV1"].is_object()));
    list.iter().map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn managed_fields_are_a_list_in_every_kind_of_response() {
    let server = with_map().await;
    let both = ["one", "two"];
    let ask = async |uri: &str, accept: &str| {
        let answer = server.raw(http::Method::GET, uri, &[("accept", accept)], Vec::new()).await;
        read(answer).await.expect(200)
    };
    assert_eq!(managers(&server.get(MAP).await.expect(200)), both);
    assert_eq!(managers(&server.get(&format!("{MAP}?pretty=true")).await.expect(200)), both);
    assert_eq!(managers(&server.get(MAPS).await.expect(200)["items"][0]), both);
    assert_eq!(managers(&server.get(&format!("{MAPS}?pretty=true")).await.expect(200)["items"][0]), both);
    for uri in [MAP, MAPS] {
        let Value::String(yaml) = ask(uri, "application/yaml").await else { panic!("the response is not YAML") };
        assert!(yaml.contains("f:data\":"), "{yaml}");
        let metadata = ask(uri, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").await;
        let of_list = metadata.get("items").map(|items| items[0].clone());
        assert_eq!(managers(&of_list.unwrap_or(metadata)), both);
        for include in ["Object", "Metadata"] {
            let table = server.table(&format!("{uri}?includeObject={include}")).await.expect(200);
            assert_eq!(managers(&table["rows"][0]["object"]), both);
        }
    }
    let mut watch = server.watch(&format!("{MAPS}?watch=true&resourceVersion=0&labelSelector=!x")).await;
    assert_eq!(managers(&watch.next().await.expect("an event").1), both);
    let uri = format!("{MAP}?dryRun=All&fieldManager=three");
    let dry = server.patch(&uri, "merge-patch", json!({"data": {"m": "3"}})).await.expect(200);
    assert_eq!(managers(&dry), ["one", "three", "two"]);
    assert_eq!(managers(&server.delete(MAPS, Value::Null).await.expect(200)["items"][0]), both);
}

#[tokio::test(start_paused = true)]
async fn a_patch_can_test_reset_and_replace_the_list() {
    let server = with_map().await;
    let of = async |patch: Value| server.patch(&format!("{MAP}?fieldManager=two"), "json-patch", patch).await;
    let list = server.get(MAP).await.expect(200)["metadata"]["managedFields"].clone();
    let first = json!([{"op": "test", "path": "/metadata/managedFields/0/manager", "value": "one"},
        {"op": "test", "path": "/metadata/managedFields", "value": list}]);
    assert_eq!(managers(&of(first).await.expect(200)), ["one", "two"]);
    let whole = json!([{"op": "copy", "from": "/metadata", "path": "/data/m"}]);
    assert_eq!(of(whole).await.code, 422);
    let less = json!([{"op": "remove", "path": "/metadata/managedFields/0"}]);
    assert_eq!(managers(&of(less).await.expect(200)), ["two"]);
    // The name of the field may contain an escape.
    let raw = br#"{"metadata":{"\u006danagedFields":[{}]}}"#.to_vec();
    let media = [("content-type", "application/merge-patch+json")];
    let reset = read(server.raw(http::Method::PATCH, MAP, &media, raw).await).await.expect(200);
    assert_eq!(reset["metadata"].get("managedFields"), None);
}

#[tokio::test(start_paused = true)]
async fn managed_fields_that_are_a_string_are_rejected() {
    let server = with_map().await;
    let text = json!({"metadata": {"name": "b", "managedFields": "[}"}, "data": {}});
    assert_eq!(server.post(MAPS, text).await.code, 400);
    assert_eq!(server.patch(MAP, "merge-patch", json!({"metadata": {"managedFields": "[}"}})).await.code, 422);
    assert_eq!(managers(&server.get(MAP).await.expect(200)), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn policies_see_managed_fields_as_a_list() {
    let server = with_map().await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let spec = json!({
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["UPDATE"], "resources": ["configmaps"]}]},
        "validations": [
            {"expression": "object.metadata.managedFields.exists(entry, entry.manager == 'three')"},
            {"expression": "oldObject.metadata.managedFields.all(entry, entry.manager in ['one', 'two'])"}],
    });
    let policies = format!("{group}/validatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let spec = json!({"policyName": "p", "validationActions": ["Deny"]});
    let bindings = format!("{group}/validatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": "b"}, "spec": spec})).await.expect(201);
    let patch = |manager: &str| format!("{MAP}?fieldManager={manager}");
    let change = json!({"data": {"m": "3"}});
    assert_eq!(server.patch(&patch("four"), "merge-patch", change.clone()).await.code, 422);
    let changed = server.patch(&patch("three"), "merge-patch", change).await.expect(200);
    assert_eq!(managers(&changed), ["one", "three", "two"]);
    assert_eq!(managers(&server.get(MAP).await.expect(200)), ["one", "three", "two"]);
}

/// Records the number of owner references in the objects that it mutates.
struct Counted(Arc<AtomicUsize>);

impl AdmissionPlugin for Counted {
    fn name(&self) -> &str {
        "Counted"
    }

    fn mutate(&self, request: &mut AdmissionRequest<'_>) -> Result<(), Status> {
        let object = request.object.as_ref().expect("a create");
        let owners = object["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
        self.0.store(owners, Ordering::Relaxed);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_owner_reference_is_removed_before_admission() {
    let seen = Arc::default();
    let mut config = config();
    config.admission.push(Arc::new(Counted(Arc::clone(&seen))));
    let server = Server { api: ApiServer::new(config) };
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": format!("u-{name}")});
    let map = json!({"metadata": {"name": "a", "ownerReferences": [owner("x"), owner("y"), owner("x")]}});
    let made = server.post(MAPS, map).await.expect(201);
    assert_eq!(made["metadata"]["ownerReferences"], json!([owner("x"), owner("y")]));
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

/// Recorded from kube-apiserver 1.36: field ownership is tracked before admission, so admission
/// owns no fields.
#[tokio::test(start_paused = true)]
async fn no_manager_owns_fields_that_admission_adds_and_admission_sees_the_managers() {
    let server = server();
    let group = "/apis/admissionregistration.k8s.io/v1";
    let managers = "object.metadata.managedFields.map(entry, entry.manager).join(',')";
    let expression = format!(
        "[JSONPatch{{op: 'add', path: '/data/k', value: 'mutated'}}, JSONPatch{{op: 'add', path: '/data/seen', value: {managers}}}]"
    );
    let spec = json!({
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]},
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    });
    let policies = format!("{group}/mutatingadmissionpolicies");
    server.post(&policies, json!({"metadata": {"name": "p"}, "spec": spec})).await.expect(201);
    let bindings = format!("{group}/mutatingadmissionpolicybindings");
    server.post(&bindings, json!({"metadata": {"name": "p"}, "spec": {"policyName": "p"}})).await.expect(201);
    let owned = |object: &Value| {
        let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        list.into_iter().map(|it| json!([it["manager"], it["fieldsV1"]["f:data"]])).collect::<Vec<_>>()
    };
    let (c, u) = (json!(["c", {".": {}, "f:a": {}}]), json!(["u", {"f:b": {}}]));
    let map = json!({"metadata": {"name": "a"}, "data": {"a": "1"}});
    let created = server.post(&format!("{MAPS}?fieldManager=c"), map).await.expect(201);
    assert_eq!((&created["data"], owned(&created)), (&json!({"a": "1", "k": "mutated", "seen": "c"}), vec![c.clone()]));
    let mut whole = created;
    whole["data"] = json!({"a": "1", "b": "2"});
    let put = server.put(&format!("{MAP}?fieldManager=u"), whole).await.expect(200);
    assert_eq!((&put["data"]["seen"], owned(&put)), (&json!("c,u"), vec![c.clone(), u.clone()]));
    // A manager that sets the same field as admission owns it.
    let patch = json!({"data": {"k": "mine"}});
    let patched = server.patch(&format!("{MAP}?fieldManager=k"), "merge-patch", patch).await.expect(200);
    let k = json!(["k", {"f:k": {}}]);
    assert_eq!((&patched["data"]["k"], owned(&patched)), (&json!("mutated"), vec![c.clone(), k.clone(), u.clone()]));
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"d": "4"}});
    let applied = server.patch(&format!("{MAP}?fieldManager=ap"), "apply", applied).await.expect(200);
    assert_eq!(
        (&applied["data"]["seen"], owned(&applied)),
        (&json!("ap,c,k,u"), vec![json!(["ap", {"f:d": {}}]), c, k, u])
    );
}

#[tokio::test(start_paused = true)]
async fn without_field_owners_only_applies_are_recorded() {
    let mut config = config();
    config.field_owners = false;
    let server = Server { api: ApiServer::new(config) };
    server.post(MAPS, json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await.expect(201);
    let patched = server.patch(MAP, "merge-patch", json!({"data": {"l": "2"}})).await.expect(200);
    assert_eq!(patched["metadata"]["managedFields"], Value::Null);
    let apply = async |data: Value| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
        server.patch(&format!("{MAP}?fieldManager=three"), "apply", map).await.expect(200)
    };
    assert_eq!(managers(&apply(json!({"m": "3", "n": "4"})).await), ["three", "before-first-apply"]);
    let replaced = json!({"metadata": {"name": "a"}, "data": {"k": "1", "m": "3", "n": "4", "o": "5"}});
    assert_eq!(managers(&server.put(MAP, replaced).await.expect(200)), ["three", "before-first-apply"]);
    // The second configuration lacks a field of the first, which its manager still owns.
    assert_eq!(apply(json!({"m": "3"})).await["data"], json!({"k": "1", "m": "3", "o": "5"}));
}
