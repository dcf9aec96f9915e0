//! Custom resources: rows of the table that come and go with CustomResourceDefinition objects.
//!
//! There is no controller between a definition and its row: the write that stores a definition decides whether its
//! names are accepted, and the row is there when the write is answered.

mod accepted;
pub(crate) mod cleanup;
mod webhook_converter;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use berth_apimachinery::schema::Schema;
use berth_apimachinery::status::Status;
use berth_apimachinery::{builtin, meta};
use berth_store::Write;
use serde_json::{Value, json};

use berth_kinds::crd::{GROUP, PLURAL, Rules, conversion, definition, is_definitions, row};

use crate::admission::{quota, webhooks};
use crate::registry::{Origin, ResourceInfo, SchemaSource, VersionInfo};
use crate::strategy::StoredObjects;
use crate::{ApiServer, aggregation, flow_schemas, objects, service_addresses};
use webhook_converter::WebhookConverter;

pub(crate) use accepted::Accepted;

/// Converts custom resources of one kind between its versions, in the server's process (where a cluster would call the
/// operator's webhook).
pub trait Converter: Send + Sync {
    /// `object` in the form of `to_api_version`; its metadata must stay as it is. An error is shown to the client.
    fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, String>;

    /// Many objects at once, in their order.
    fn convert_all(&self, objects: Vec<Value>, to_api_version: &str) -> Result<Vec<Value>, String> {
        objects.into_iter().map(|object| self.convert(object, to_api_version)).collect()
    }

    /// Whether a webhook converts, so that converting many objects in one call is worth it.
    fn asks_elsewhere(&self) -> bool {
        false
    }
}

/// What the server keeps for a row of custom resources besides the row.
pub(crate) struct CustomKind {
    /// Objects written up to this revision may not have seen the current schema.
    pub(crate) since: u64,
    /// Whether the definition is being deleted: nothing new is made of a kind that is going.
    pub(crate) terminating: bool,
    converter: Option<Arc<dyn Converter>>,
    /// `spec.conversion`, as far as the converter comes from it.
    conversion: Value,
    rules: Arc<BTreeMap<String, Rules>>,
}

impl CustomKind {
    /// The CEL rules of a version, if it has any.
    pub(crate) fn rules(&self, version: &str) -> Option<&Rules> {
        self.rules.get(version)
    }

    /// Whether another program converts.
    pub(crate) fn asks_elsewhere(&self) -> bool {
        self.converter.as_ref().is_some_and(|converter| converter.asks_elsewhere())
    }

    /// An object in another version.
    pub(crate) fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, Status> {
        let mut converted = self.convert_all(vec![object], to_api_version)?;
        converted.pop().ok_or_else(|| Status::internal("the conversion lost the object"))
    }

    /// Objects of one version in another, in their order.
    pub(crate) fn convert_all(&self, mut objects: Vec<Value>, to_api_version: &str) -> Result<Vec<Value>, Status> {
        let in_version = |object: &mut Value| {
            meta::map_mut(object).insert("apiVersion".to_owned(), to_api_version.into());
        };
        let (Some(converter), Some(first)) = (&self.converter, objects.first()) else {
            objects.iter_mut().for_each(in_version);
            return Ok(objects);
        };
        let from = meta::api_version(first).to_owned();
        let kind = first["kind"].as_str().unwrap_or_default();
        // In the words, and with as little else, as upstream says it.
        let failed = |error: String| {
            let why = format!("conversion webhook for {from}, Kind={kind} failed: {error}");
            Status { reason: "".into(), details: None, message: why, ..Status::internal("") }
        };
        let mut converted = converter.convert_all(objects.clone(), to_api_version).map_err(failed)?;
        for (original, converted) in objects.iter().zip(&mut converted) {
            // Of metadata a conversion may change labels and annotations only.
            conversion::restore_metadata(original, converted).map_err(failed)?;
            in_version(converted);
        }
        Ok(converted)
    }
}

/// The schema of a custom resource with `apiVersion`, `kind` and metadata, which a definition need
/// not declare: ownership of their fields is tracked too. `None` when the schema cannot be parsed,
/// which validation prevents.
pub(crate) fn schema_with_metadata(written: Value) -> Option<Arc<Schema>> {
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

/// Installs the rows of all stored definitions.
pub(crate) fn load(server: &ApiServer) {
    for definition in server.objects().list(GROUP, PLURAL, None) {
        install(server, &definition);
    }
}

/// Follow-ups of a write. Reloads webhooks when their configurations change, recounts changed
/// quotas, and releases quota of deleted objects. Adds and removes the rows of definitions, and
/// deletes a terminating definition with its last object.
///
/// Cleaning up goes through the server again; the box ends the recursion of types.
pub(crate) fn after_write<'a>(
    server: &'a ApiServer,
    row: &'a ResourceInfo,
    object: &'a Arc<Value>,
    gone: bool,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    if row.group == webhooks::GROUP {
        server.inner.hooks.forget();
        server.inner.policies.forget();
        server.inner.mutating_policies.forget();
    }
    if row.group == aggregation::GROUP {
        server.inner.services.forget();
    }
    if is_definitions(row) {
        if gone {
            uninstall(server, object);
        } else {
            install(server, object);
            if meta::deletion_timestamp(object).is_some() {
                return Box::pin(cleanup::delete_objects(server.clone(), object.clone()));
            }
        }
        // Names that were given up may be what another definition waits for.
        return Box::pin(recheck_names(server.clone(), object.clone()));
    }
    if quota::is_about(row) {
        server.inner.quotas.refresh(&server.inner.objects);
        if gone {
            // Quotas are counted by others.
            return Box::pin(quota::released(server, row, object, None));
        }
        let is_counted = object["status"]["hard"] == object["spec"]["hard"];
        if !is_counted {
            return Box::pin(quota::recount(server, meta::namespace(object), meta::name(object)));
        }
    } else if flow_schemas::is_about(row) {
        return Box::pin(flow_schemas::follow(server.clone(), object.clone(), gone));
    } else if service_addresses::is_about(row) {
        return Box::pin(async move {
            if gone {
                quota::released(server, row, object, None).await;
            }
            service_addresses::follow(server, object, gone).await;
        });
    } else if gone {
        return Box::pin(async move {
            quota::released(server, row, object, None).await;
            // Reading the definition costs more than the whole deletion of an object, so skip it
            // unless the kind is known to terminate. A definition whose deletion becomes known
            // only later looks for its last object itself.
            if let Origin::Custom(name) = &row.origin
                && server.kinds().is_terminating(row)
            {
                cleanup::finish(server.clone(), name.clone()).await;
            }
        });
    }
    Box::pin(std::future::ready(()))
}

/// Gives definitions of the same group that lack a name another chance.
async fn recheck_names(server: ApiServer, changed: Arc<Value>) {
    let group = changed["spec"]["group"].as_str().unwrap_or_default();
    for name in server.objects().definitions_lacking_names(group, meta::name(&changed)) {
        let key = objects::key(GROUP, PLURAL, "", &name);
        let Some(record) = server.store().get(&key) else { continue };
        let current = record.value();
        let registry = server.registry();
        let taken = server.objects().names_in_the_way(&current).with_builtin(&current, &registry);
        let mut updated = current.as_ref().clone();
        let now = server.timestamp();
        definition::set_status(&mut updated, &taken, now.as_str().unwrap_or_default());
        if updated == *current {
            continue;
        }
        let write = Write::Update { key, expected: record.revision, value: updated };
        // On a conflict, the other write has checked the names.
        if let Ok(committed) = server.commit(write).await {
            install(&server, &committed.value);
        }
    }
}

fn install(server: &ApiServer, object: &Value) {
    if !definition::is_accepted(object) {
        return;
    }
    let row = match row::row_of(object) {
        Ok(row) => row,
        Err(error) => {
            tracing::warn!(name = meta::name(object), %error, "a stored CustomResourceDefinition cannot be served");
            return;
        }
    };
    let key = (row.group.clone(), row.plural.clone());
    let terminating = meta::deletion_timestamp(object).is_some();
    let kinds = server.kinds();
    if let (Some(old), Some(_)) = (kinds.registry.get(&key.0, &key.1), kinds.custom.get(&key))
        && same_schemas(old, &row)
        && kinds.custom[&key].conversion == object["spec"]["conversion"]
    {
        // Only status or names changed, not schemas or conversion: keep `since` and the converter.
        let mut custom = kinds.custom[&key].clone();
        if custom.terminating != terminating {
            custom = Arc::new(CustomKind {
                since: custom.since,
                terminating,
                converter: custom.converter.clone(),
                conversion: custom.conversion.clone(),
                rules: custom.rules.clone(),
            });
        }
        server.change_kinds(|kinds| put(kinds, row, custom));
        return;
    }
    let rules: BTreeMap<String, Rules> = row
        .versions
        .iter()
        .filter_map(|version| match &version.schema {
            SchemaSource::Custom(custom) => Some((version.name.clone(), Rules::compile(&custom.schema)?)),
            _ => None,
        })
        .collect();
    let rules = Arc::new(rules);
    let conversion = object["spec"]["conversion"].clone();
    // A converter in the process stands in for the webhook of its kind.
    let own = server.inner.config.converters.get(&(row.group.clone(), row.kind.clone())).cloned();
    let converter = own.or_else(|| {
        let webhook = WebhookConverter::new(&conversion, server.objects());
        (conversion["strategy"] == "Webhook").then(|| Arc::new(webhook) as Arc<dyn Converter>)
    });
    // No schema change is newer than the definition itself.
    let since = meta::resource_version(object).parse().unwrap_or_else(|_| server.store().revision());
    server.forget_types(&row.group, &row.kind);
    let custom = Arc::new(CustomKind { since, terminating, converter, conversion, rules });
    server.change_kinds(|kinds| put(kinds, row, custom));
}

fn put(kinds: &mut crate::server::Kinds, row: ResourceInfo, custom: Arc<CustomKind>) {
    kinds.custom.insert((row.group.clone(), row.plural.clone()), custom);
    Arc::make_mut(&mut kinds.registry).insert(row);
}

fn same_schemas(a: &ResourceInfo, b: &ResourceInfo) -> bool {
    let same = |(a, b): (&VersionInfo, &VersionInfo)| {
        let same_schema = match (&a.schema, &b.schema) {
            (SchemaSource::Custom(a), SchemaSource::Custom(b)) => a.text() == b.text(),
            _ => false,
        };
        a.name == b.name && same_schema
    };
    a.storage_version == b.storage_version
        && a.versions.len() == b.versions.len()
        && a.versions.iter().zip(&b.versions).all(same)
}

fn uninstall(server: &ApiServer, object: &Value) {
    let group = object["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let plural = object["spec"]["names"]["plural"].as_str().unwrap_or_default().to_owned();
    server.change_kinds(|kinds| {
        // The row may be another definition's, if this one's names were never accepted.
        let is_own = kinds
            .registry
            .get(&group, &plural)
            .is_some_and(|row| row.origin == Origin::Custom(meta::name(object).to_owned()));
        if is_own {
            Arc::make_mut(&mut kinds.registry).remove(&group, &plural);
            kinds.custom.remove(&(group.clone(), plural.clone()));
        }
    });
}
