use berth_apiserver::ApiServer;
use berth_store::{MemoryStore, Store, Write};
use serde_json::{Value, json};

use crate::harness::{Server, config_on, server};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOATS: &str = "/apis/harbor.dev/v1/namespaces/default/boats";

fn definition() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["length"], "properties": {
            "length": {"type": "integer", "minimum": 1},
            "name": {"type": "string", "default": "unnamed"},
            "crew": {"type": "integer"}},
            "x-kubernetes-validations": [
                {"rule": "!has(self.crew) || self.crew <= self.length", "message": "too many people"},
                {"rule": "self.name == oldSelf.name", "message": "name is immutable"}]},
        "status": {"type": "object", "properties": {"afloat": {"type": "boolean"}, "crew": {"type": "integer"}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boats.harbor.dev"},
        "spec": {"group": "harbor.dev", "scope": "Namespaced",
            "names": {"plural": "boats", "kind": "Boat", "shortNames": ["bt"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.crew", "statusReplicasPath": ".status.crew"}},
                    "additionalPrinterColumns": [{"name": "Length", "type": "integer", "jsonPath": ".spec.length"}]},
                {"name": "v1alpha1", "served": true, "storage": false, "deprecated": true,
                    "schema": {"openAPIV3Schema": schema}}]}})
}

async fn harbor() -> Server {
    let server = server();
    let created = server.post(CRDS, definition()).await.expect(201);
    let conditions = created["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|condition| condition["status"] == "True"), "{conditions:?}");
    assert_eq!(created["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(created["spec"]["names"]["listKind"], "BoatList");
    server
}

fn boat(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "harbor.dev/v1", "kind": "Boat", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn a_definition_creates_a_kind() {
    let server = harbor().await;
    let created = server.post(BOATS, boat("a", json!({"length": 5, "color": "red"}))).await;
    assert_eq!(created.warnings, ["299 - \"unknown field \\\"spec.color\\\"\""]);
    let created = created.expect(201);
    assert_eq!(created["spec"], json!({"length": 5, "name": "unnamed"}));
    assert_eq!(created["metadata"]["generation"], 1);
    let list = server.get(BOATS).await.expect(200);
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("BoatList"), 1));
    let table = server.table(BOATS).await.expect(200);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 5]));
}

#[tokio::test(start_paused = true)]
async fn objects_that_violate_schema_or_rules_are_rejected_with_field_paths() {
    let server = harbor().await;
    let rejected = server.post(BOATS, boat("a", json!({"length": 0}))).await.expect(422);
    assert_eq!(
        rejected["message"],
        "Boat.harbor.dev \"a\" is invalid: spec.length: Invalid value: 0: spec.length in body should be greater than or equal to 1"
    );
    let rejected = server.post(BOATS, boat("a", json!({}))).await.expect(422);
    assert_eq!(rejected["details"]["causes"][0]["reason"], "FieldValueRequired");
    let rejected = server.post(BOATS, boat("a", json!({"length": 2, "crew": 3}))).await.expect(422);
    assert_eq!(rejected["message"], "Boat.harbor.dev \"a\" is invalid: spec: Invalid value: too many people");
    server.post(BOATS, boat("a", json!({"length": 2}))).await.expect(201);
    let rejected = server.patch(&format!("{BOATS}/a"), "merge-patch", json!({"spec": {"name": "x"}})).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().ends_with("name is immutable"), "{rejected}");
    let strict = server
        .post(&format!("{BOATS}?fieldValidation=Strict"), boat("b", json!({"length": 2, "sail": 1})))
        .await
        .expect(400);
    assert_eq!(
        strict["message"],
        "Boat in version \"v1\" cannot be handled as a Boat: strict decoding error: unknown field \"spec.sail\""
    );
}

#[tokio::test(start_paused = true)]
async fn status_and_scale_are_subresources() {
    let server = harbor().await;
    let mut with_status = boat("a", json!({"length": 5}));
    with_status["status"] = json!({"afloat": true});
    let created = server.post(BOATS, with_status).await.expect(201);
    assert!(created.get("status").is_none());
    let status =
        json!({"metadata": {"labels": {"x": "y"}}, "spec": {"length": 9}, "status": {"afloat": true, "crew": 1}});
    let updated = server.patch(&format!("{BOATS}/a/status"), "merge-patch", status).await.expect(200);
    assert_eq!((&updated["status"]["afloat"], &updated["spec"]["length"]), (&json!(true), &json!(5)));
    assert!(updated["metadata"].get("labels").is_none());
    assert_eq!(updated["metadata"]["generation"], 1);
    let mut scale = server.get(&format!("{BOATS}/a/scale")).await.expect(200);
    // The revision is optional in a Scale, although it is required in a Boat.
    scale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    server.put(&format!("{BOATS}/a/scale"), scale.clone()).await.expect(200);
    scale["metadata"]["resourceVersion"] = "1".into();
    server.put(&format!("{BOATS}/a/scale"), scale).await.expect(409);
    let scale = server.get(&format!("{BOATS}/a/scale")).await.expect(200);
    assert_eq!((&scale["kind"], &scale["status"]["replicas"]), (&json!("Scale"), &json!(1)));
    let scale =
        server.patch(&format!("{BOATS}/a/scale"), "merge-patch", json!({"spec": {"replicas": 4}})).await.expect(200);
    assert_eq!(scale["spec"]["replicas"], 4);
    assert_eq!(server.get(&format!("{BOATS}/a")).await.expect(200)["spec"]["crew"], 4);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_scale_changes_nothing() {
    let server = harbor().await;
    server.post(BOATS, boat("a", json!({"length": 5, "crew": 3}))).await.expect(201);
    let url = format!("{BOATS}/a/scale");
    let why = "json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32";
    let mut scale = server.get(&url).await.expect(200);
    scale["spec"]["replicas"] = "4".into();
    let rejected = server.put(&url, scale.clone()).await.expect(400);
    assert_eq!(rejected["message"], format!("Scale in version \"v1\" cannot be handled as a Scale: {why}"));
    let rejected = server.patch(&url, "merge-patch", json!({"spec": {"replicas": "4"}})).await.expect(422);
    assert_eq!(rejected["details"]["causes"][0]["message"], format!("Invalid value: {why}"));
    scale["spec"] = json!({"replicas": 4, "replica": 1});
    let rejected = server.put(&format!("{url}?fieldValidation=Strict"), scale.clone()).await.expect(400);
    assert!(rejected["message"].as_str().unwrap().contains("unknown field \"spec.replica\""), "{rejected}");
    assert_eq!(server.get(&format!("{BOATS}/a")).await.expect(200)["spec"]["crew"], 3);
    server.put(&url, scale).await.expect(200);
    assert_eq!(server.get(&format!("{BOATS}/a")).await.expect(200)["spec"]["crew"], 4);
}

#[tokio::test(start_paused = true)]
async fn all_versions_serve_the_same_objects() {
    let server = harbor().await;
    server.post(BOATS, boat("a", json!({"length": 5}))).await.expect(201);
    let old = "/apis/harbor.dev/v1alpha1/namespaces/default/boats";
    let seen = server.get(&format!("{old}/a")).await;
    assert_eq!(seen.warnings, ["299 - \"harbor.dev/v1alpha1 Boat is deprecated\""]);
    assert_eq!(seen.expect(200)["apiVersion"], "harbor.dev/v1alpha1");
    let mut other = boat("b", json!({"length": 6}));
    other["apiVersion"] = json!("harbor.dev/v1alpha1");
    server.post(old, other).await.expect(201);
    assert_eq!(server.get(&format!("{BOATS}/b")).await.expect(200)["apiVersion"], "harbor.dev/v1");
    let mut watch = server.watch(&format!("{old}?watch=true")).await;
    let (_, object) = watch.next().await.unwrap();
    assert_eq!(object["apiVersion"], "harbor.dev/v1alpha1");
}

#[tokio::test(start_paused = true)]
async fn an_update_without_a_change_moves_an_object_to_a_new_storage_version() {
    let server = harbor().await;
    let created = server.post(BOATS, boat("a", json!({"length": 5}))).await.expect(201);
    let unchanged = async || {
        let written = server.patch(&format!("{BOATS}/a"), "merge-patch", json!({})).await.expect(200);
        written["metadata"]["resourceVersion"].clone()
    };
    assert_eq!(unchanged().await, created["metadata"]["resourceVersion"], "nothing is stored");
    let mut other = definition();
    other["spec"]["versions"][0]["storage"] = json!(false);
    other["spec"]["versions"][1]["storage"] = json!(true);
    let spec = json!({"spec": other["spec"]});
    let changed = server.patch(&format!("{CRDS}/boats.harbor.dev"), "merge-patch", spec).await.expect(200);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v1alpha1"]));
    let moved = unchanged().await;
    assert_ne!(moved, created["metadata"]["resourceVersion"], "the object is stored in v1alpha1");
    assert_eq!(unchanged().await, moved, "it is stored once");
    assert_eq!(server.get(&format!("{BOATS}/a")).await.expect(200)["spec"], created["spec"]);
}

#[tokio::test(start_paused = true)]
async fn defaults_added_later_appear_in_old_objects() {
    let server = harbor().await;
    server.post(BOATS, boat("a", json!({"length": 5}))).await.expect(201);
    let mut wider = definition();
    for version in wider["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["crew"]["default"] = json!(2);
    }
    server.patch(&format!("{CRDS}/boats.harbor.dev"), "merge-patch", wider).await.expect(200);
    assert_eq!(server.get(&format!("{BOATS}/a")).await.expect(200)["spec"]["crew"], 2);
    let list = server.get(BOATS).await.expect(200);
    assert_eq!(list["items"][0]["spec"]["crew"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_definition_deletes_its_objects() {
    let server = harbor().await;
    let mut held = boat("held", json!({"length": 5}));
    held["metadata"]["finalizers"] = json!(["harbor.dev/anchor"]);
    server.post(BOATS, held).await.expect(201);
    server.post(BOATS, boat("a", json!({"length": 5}))).await.expect(201);
    server.delete(&format!("{CRDS}/boats.harbor.dev"), json!(null)).await.expect(200);
    server.get(&format!("{BOATS}/a")).await.expect(404);
    // One object has a finalizer, so the definition remains.
    let definition = server.get(&format!("{CRDS}/boats.harbor.dev")).await.expect(200);
    assert!(definition["metadata"]["deletionTimestamp"].is_string());
    server.patch(&format!("{BOATS}/held"), "merge-patch", json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.get(&format!("{CRDS}/boats.harbor.dev")).await.expect(404);
    server.get(BOATS).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_definition_is_rejected() {
    let server = server();
    let mut wrong = definition();
    wrong["metadata"]["name"] = json!("ships.harbor.dev");
    let rejected = server.post(CRDS, wrong).await.expect(422);
    assert_eq!(
        rejected["details"]["causes"][0]["message"],
        "Invalid value: \"ships.harbor.dev\": must be spec.names.plural+\".\"+spec.group"
    );
    let mut shapeless = definition();
    let schema = &mut shapeless["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["length"].as_object_mut().unwrap().remove("type");
    let rejected = server.post(CRDS, shapeless).await.expect(422);
    assert_eq!(rejected["details"]["causes"][0]["reason"], "FieldValueRequired");
}

#[tokio::test(start_paused = true)]
async fn kinds_are_served_again_after_a_restart() {
    let config = crate::harness::config();
    let (store, clock) = (config.store.clone(), config.clock.clone());
    let first = Server { api: berth_apiserver::ApiServer::new(config) };
    first.post(CRDS, definition()).await.expect(201);
    first.post(BOATS, boat("a", json!({"length": 5}))).await.expect(201);
    let second = Server { api: berth_apiserver::ApiServer::new(berth_apiserver::Config::new(store, clock)) };
    assert_eq!(second.get(&format!("{BOATS}/a")).await.expect(200)["spec"]["length"], 5);
}

#[tokio::test(start_paused = true)]
async fn labels_that_are_not_strings_are_rejected() {
    let server = harbor().await;
    let mut odd = boat("a", json!({"length": 5}));
    odd["metadata"]["labels"] = json!({"x": 1});
    let rejected = server.post(BOATS, odd).await.expect(400);
    assert!(
        rejected["message"].as_str().unwrap().starts_with("Boat in version \"v1\" cannot be handled as a Boat"),
        "{rejected}"
    );
}

#[tokio::test(start_paused = true)]
async fn applied_configurations_are_defaulted_and_owned() {
    let server = harbor().await;
    let created =
        server.patch(&format!("{BOATS}/a?fieldManager=me"), "apply", boat("a", json!({"length": 5}))).await.expect(201);
    assert_eq!(created["spec"]["name"], "unnamed");
    let status = json!({"apiVersion": "harbor.dev/v1", "kind": "Boat", "status": {"afloat": true}});
    let status = server.patch(&format!("{BOATS}/a/status?fieldManager=me"), "apply", status).await.expect(200);
    assert_eq!((&status["status"]["afloat"], &status["spec"]["length"]), (&json!(true), &json!(5)));
    let again =
        server.patch(&format!("{BOATS}/a?fieldManager=me"), "apply", boat("a", json!({"length": 5}))).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], status["metadata"]["resourceVersion"]);
    let entries = again["metadata"]["managedFields"].as_array().unwrap().clone();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
}

#[tokio::test(start_paused = true)]
async fn the_definitions_of_common_operators_are_accepted() {
    let Some(folder) = berth_testing::shared("kubernetes/crds") else { return };
    let mut folders = vec![folder];
    let server = server();
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                let text = std::fs::read_to_string(&path).unwrap();
                for definition in berth_apimachinery::decode::documents(&text).unwrap() {
                    server.post(&format!("{CRDS}?fieldValidation=Strict"), definition).await.expect(201);
                    count += 1;
                }
            }
        }
    }
    assert!(count > 20, "only {count} definitions were found");
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_value_that_a_new_rule_forbids_is_kept_with_a_warning() {
    let server = harbor().await;
    server.post(BOATS, boat("a", json!({"length": 5, "crew": 1}))).await.expect(201);
    let mut stricter = definition();
    let properties =
        &mut stricter["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    properties["crew"]["x-kubernetes-validations"] = json!([{"rule": "self >= 2", "message": "the crew is too small"}]);
    let name = "boats.harbor.dev";
    let spec = json!({"spec": stricter["spec"]});
    server.patch(&format!("{CRDS}/{name}"), "merge-patch", spec).await.expect(200);
    let kept = server.patch(&format!("{BOATS}/a"), "merge-patch", json!({"spec": {"length": 6}})).await;
    assert!(kept.warnings.iter().any(|warning| warning.contains("the crew is too small")), "{:?}", kept.warnings);
    kept.expect(200);
    let rejected = server.patch(&format!("{BOATS}/a"), "merge-patch", json!({"spec": {"crew": 0}})).await.expect(422);
    assert_eq!(rejected["details"]["causes"][0]["field"], "spec.crew");
}

#[tokio::test(start_paused = true)]
async fn a_field_of_the_wrong_type_is_rejected_with_its_path() {
    let server = server();
    let start = "CustomResourceDefinition in version \"v1\" cannot be handled as a CustomResourceDefinition: ";
    for (path, value, why) in [
        (
            "/spec/versions/0/subresources/status",
            json!(true),
            "json: cannot unmarshal bool into Go struct field \
             CustomResourceSubresources.spec.versions.subresources.status of type v1.CustomResourceSubresourceStatus",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/crew",
            json!({"type": "array", "items": "x"}),
            "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.crew.items: \
             JSON schema or list of JSON schemas expected",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/status",
            json!({"type": "object", "additionalProperties": "yes"}),
            "spec.versions[0].schema.openAPIV3Schema.properties.status.additionalProperties: boolean or JSON schema expected",
        ),
    ] {
        let mut odd = definition();
        *odd.pointer_mut(path).expect("present") = value;
        let rejected = server.post(CRDS, odd).await.expect(400);
        assert_eq!(rejected["message"], format!("{start}{why}"));
    }
}

#[tokio::test(start_paused = true)]
async fn selectable_fields_with_brackets_are_rejected_unless_they_are_already_stored() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    let selecting = |path: &str| {
        let mut definition = definition();
        definition["spec"]["versions"].as_array_mut().unwrap().truncate(1);
        definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": path}]);
        definition
    };
    let rejected = server.post(CRDS, selecting(".spec['name']")).await.expect(422);
    assert_eq!(
        rejected["details"]["causes"][0],
        json!({"reason": "FieldValueInvalid", "field": "spec.selectableFields[0].jsonPath",
            "message": "Invalid value: \".spec['name']\": is an invalid path: array notation is not allowed"})
    );
    server.post(CRDS, selecting(".spec.name")).await.expect(201);
    let key = "/apiextensions.k8s.io/customresourcedefinitions/boats.harbor.dev";
    let record = store.get(key).expect("stored");
    let mut value = record.value().as_ref().clone();
    value["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec['name']"}]);
    let write = Write::Update { key: key.to_owned(), expected: record.revision, value };
    server.api.store_handle().commit(write).await.expect("stored");
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    server.patch(&format!("{CRDS}/boats.harbor.dev"), "merge-patch", labelled).await.expect(200);
    let worse = json!({"spec": {"versions": selecting(".spec['length']")["spec"]["versions"]}});
    server.patch(&format!("{CRDS}/boats.harbor.dev"), "merge-patch", worse).await.expect(422);
}
