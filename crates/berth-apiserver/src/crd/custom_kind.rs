//! Data of a custom resource that is not in its row: converter and rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_kinds::crd::{Rules, conversion};
use serde_json::Value;

/// Converts custom resources of one kind between its versions, in the server's process. In other
/// clusters, the conversion webhook of the kind's operator does that.
pub trait Converter: Send + Sync {
    /// Returns `object` in version `to_api_version`. Metadata must not change. An error is returned
    /// to the client.
    fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, String>;

    /// Converts many objects at once, in their order.
    fn convert_all(&self, objects: Vec<Value>, to_api_version: &str) -> Result<Vec<Value>, String> {
        objects.into_iter().map(|object| self.convert(object, to_api_version)).collect()
    }

    /// True if a webhook converts, so that converting many objects in one call is worth it.
    fn calls_webhook(&self) -> bool {
        false
    }
}

/// Data of a custom resource that is not in its row.
pub(crate) struct CustomKind {
    /// Objects written up to this revision may not have seen the current schema.
    pub(crate) since: u64,
    /// Revision of the definition from which the row was made.
    pub(super) revision: u64,
    /// True if the definition is being deleted. No objects can be created then.
    pub(crate) terminating: bool,
    pub(super) converter: Option<Arc<dyn Converter>>,
    /// `spec.conversion`, if the converter was made from it.
    pub(super) conversion: Value,
    pub(super) rules: Arc<BTreeMap<String, Rules>>,
}

impl CustomKind {
    /// The CEL rules of a version, if it has any.
    pub(crate) fn rules(&self, version: &str) -> Option<&Rules> {
        self.rules.get(version)
    }

    /// True if a webhook converts.
    pub(crate) fn calls_webhook(&self) -> bool {
        self.converter.as_ref().is_some_and(|converter| converter.calls_webhook())
    }

    /// Converts an object to another version.
    pub(crate) fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, Status> {
        let mut converted = self.convert_all(vec![object], to_api_version)?;
        converted.pop().ok_or_else(|| Status::internal("the conversion returned no object"))
    }

    /// Converts objects of one version to another, in their order.
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
        // The message is upstream's.
        let failed = |error: String| {
            let why = format!("conversion webhook for {from}, Kind={kind} failed: {error}");
            Status { reason: "".into(), details: None, message: why, ..Status::internal("") }
        };
        let mut converted = converter.convert_all(objects.clone(), to_api_version).map_err(failed)?;
        for (original, converted) in objects.iter().zip(&mut converted) {
            // A conversion may change only labels and annotations of the metadata.
            conversion::restore_metadata(original, converted).map_err(failed)?;
            in_version(converted);
        }
        Ok(converted)
    }
}
