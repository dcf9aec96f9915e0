//! Converts a CustomResourceDefinition to a row of the table.

use std::sync::Arc;

use berth_apimachinery::schema::Schema;
use berth_apimachinery::{builtin, meta};
use serde_json::{Value, json};

use crate::printers;
use crate::registry::{
    CustomSchema, Origin, PrinterColumn, ResourceInfo, ScalePaths, SchemaSource, Subresource, VersionInfo,
};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const READ_WRITE: [&str; 3] = ["get", "patch", "update"];

/// The registry row of a validated definition with accepted names.
pub fn row_of(definition: &Value) -> Result<ResourceInfo, String> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let group = text(&spec["group"]);
    let names = &definition["status"]["acceptedNames"];
    let kind = text(&names["kind"]);
    let mut versions = Vec::new();
    let mut storage_version = String::new();
    for version in spec["versions"].as_array().into_iter().flatten() {
        if version["storage"] == true {
            storage_version = text(&version["name"]);
        }
        versions.push(version_of(&group, &kind, version)?);
    }
    if storage_version.is_empty() {
        return Err("no version is marked as the storage version".to_owned());
    }
    versions.sort_by(|a, b| meta::compare_versions(&a.name, &b.name));
    Ok(ResourceInfo {
        list_kind: text(&names["listKind"]),
        plural: text(&names["plural"]),
        singular: text(&names["singular"]),
        short_names: list(&names["shortNames"]),
        categories: list(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        verbs: VERBS.iter().map(|verb| (*verb).to_owned()).collect(),
        storage_version,
        versions,
        origin: Origin::Custom(meta::name(definition).to_owned()),
        group,
        kind,
    })
}

/// The schema of a custom resource with `apiVersion`, `kind` and metadata, which a definition need
/// not declare: ownership of their fields is tracked too. `None` when the schema cannot be parsed,
/// which validation prevents.
pub fn schema_with_metadata(written: Value) -> Option<Arc<Schema>> {
    let mut whole = written;
    let properties = meta::map_mut(meta::map_mut(&mut whole).entry("properties").or_insert_with(|| json!({})));
    for field in ["apiVersion", "kind"] {
        properties.insert(field.to_owned(), json!({"type": "string"}));
    }
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let owner = builtin::structural("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference")?;
    let metadata = json!({"type": "object", "properties": {
        "name": text, "generateName": text, "namespace": text, "uid": text, "resourceVersion": text, "selfLink": text,
        "creationTimestamp": text, "deletionTimestamp": text,
        "generation": {"type": "integer"}, "deletionGracePeriodSeconds": {"type": "integer"},
        "labels": texts, "annotations": texts,
        "finalizers": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "ownerReferences": {"type": "array", "items": owner,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"]},
        "managedFields": {"type": "array", "x-kubernetes-list-type": "atomic",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    }});
    properties.insert("metadata".to_owned(), metadata);
    Schema::parse_crd(&whole).ok()
}

fn version_of(group: &str, kind: &str, version: &Value) -> Result<VersionInfo, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&version["name"]);
    let written = &version["schema"]["openAPIV3Schema"];
    let schema = if written.is_null() {
        SchemaSource::None
    } else {
        let schema = CustomSchema::new(written).map_err(|error| format!("schema of version {name}: {error}"))?;
        SchemaSource::Custom(Arc::new(schema))
    };
    let deprecation_warning = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"]
            .as_str()
            .map_or_else(|| format!("{group}/{name} {kind} is deprecated"), str::to_owned)
    });
    Ok(VersionInfo {
        served: version["served"] == true,
        deprecation_warning,
        subresources: subresources(group, &name, kind, &version["subresources"]),
        schema,
        columns: columns(&version["additionalPrinterColumns"]),
        selectable_fields: version["selectableFields"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|field| text(&field["jsonPath"]))
            .collect(),
        name,
    })
}

fn subresources(group: &str, version: &str, kind: &str, given: &Value) -> Vec<Subresource> {
    let mut subresources = Vec::new();
    let verbs: Vec<String> = READ_WRITE.iter().map(|verb| (*verb).to_owned()).collect();
    if given["scale"].is_object() {
        let path = |field: &str| given["scale"][field].as_str().unwrap_or_default().to_owned();
        subresources.push(Subresource {
            name: "scale".to_owned(),
            group: "autoscaling".to_owned(),
            version: "v1".to_owned(),
            kind: "Scale".to_owned(),
            verbs: verbs.clone(),
            scale: Some(ScalePaths {
                spec_replicas: path("specReplicasPath"),
                status_replicas: path("statusReplicasPath"),
                selector: given["scale"]["labelSelectorPath"].as_str().map(str::to_owned),
            }),
        });
    }
    if given["status"].is_object() {
        subresources.push(Subresource {
            name: "status".to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            verbs,
            scale: None,
        });
    }
    subresources
}

/// A custom resource without columns has a column with its age.
fn columns(given: &Value) -> Vec<PrinterColumn> {
    let age = json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
        "description": printers::created()}]);
    let given = if given.as_array().is_some_and(|list| !list.is_empty()) { given } else { &age };
    given
        .as_array()
        .into_iter()
        .flatten()
        .map(|column| {
            let text = |field: &str| column[field].as_str().unwrap_or_default().to_owned();
            PrinterColumn {
                name: text("name"),
                type_: text("type"),
                format: text("format"),
                description: text("description"),
                priority: column["priority"].as_i64().unwrap_or(0),
                json_path: text("jsonPath"),
            }
        })
        .collect()
}
