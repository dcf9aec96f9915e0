//! Converts stored objects to the version of a request, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::schema::Root;
use berth_apimachinery::status::Status;
use berth_store::Record;
use serde_json::Value;

use crate::crd::CustomKind;
use crate::registry::{ResourceInfo, SchemaSource, events};

/// One kind in one of its versions.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) row: Arc<ResourceInfo>,
    pub(crate) version: String,
    pub(crate) custom: Option<Arc<CustomKind>>,
}

impl View {
    /// True if this view returns the stored bytes unchanged.
    pub(crate) fn is_stored_form(&self, record: &Record) -> bool {
        if self.version != self.row.storage_version || self.is_foreign() {
            return false;
        }
        // Objects older than the schema may lack the schema's defaults.
        self.custom.as_ref().is_none_or(|custom| record.revision > custom.since)
    }

    /// True unless the object of a custom resource is stored in another version than the storage
    /// version, because it was not written since that changed.
    pub(crate) fn is_in_storage_version(&self, record: &Record) -> bool {
        self.custom.is_none() || version_of(&record.value()) == self.row.storage_version
    }

    /// True if the objects are stored as another kind (events.k8s.io as core events).
    fn is_foreign(&self) -> bool {
        self.row.storage() != (self.row.group.as_str(), self.row.plural.as_str())
    }

    /// True if this is a version of a built-in kind that is not the stored one.
    fn is_other_builtin(&self) -> bool {
        self.custom.is_none() && !self.is_foreign() && self.version != self.row.storage_version
    }

    /// A stored object, converted to this version.
    pub(crate) fn show(&self, record: &Record) -> Result<Arc<Value>, Status> {
        let value = record.value();
        if self.is_stored_form(record) { Ok(value) } else { self.convert(&value).map(Arc::new) }
    }

    /// True if a conversion webhook converts stored objects to this version.
    pub(crate) fn calls_webhook(&self) -> bool {
        self.version != self.row.storage_version && self.custom.as_ref().is_some_and(|custom| custom.calls_webhook())
    }

    /// Stored objects, converted to this version, in their order. A conversion webhook gets the
    /// objects of each stored version together, instead of one by one.
    pub(crate) fn show_all(&self, records: &[Arc<Record>]) -> Result<Vec<Arc<Value>>, Status> {
        let Some(custom) = self.custom.as_ref().filter(|_| self.calls_webhook()) else {
            return records.iter().map(|record| self.show(record)).collect();
        };
        let mut shown: Vec<Option<Arc<Value>>> = vec![None; records.len()];
        // Objects may be stored in several versions: an object is rewritten only at its next
        // write.
        let mut by_version: BTreeMap<String, Vec<(usize, Value)>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            let mut object = record.value().as_ref().clone();
            let version = version_of(&object);
            self.complete(&version, &mut object);
            if version == self.version {
                shown[index] = Some(Arc::new(object));
            } else {
                by_version.entry(version).or_default().push((index, object));
            }
        }
        for group in by_version.into_values() {
            let (indexes, objects): (Vec<usize>, Vec<Value>) = group.into_iter().unzip();
            let converted = custom.convert_all(objects, &self.row.api_version(&self.version))?;
            for (index, mut object) in indexes.into_iter().zip(converted) {
                self.complete(&self.version, &mut object);
                shown[index] = Some(Arc::new(object));
            }
        }
        Ok(shown.into_iter().flatten().collect())
    }

    /// A parsed stored object in this version, regardless of its revision.
    pub(crate) fn convert(&self, stored: &Value) -> Result<Value, Status> {
        let mut object = stored.clone();
        if self.is_foreign() {
            events::from_core(&mut object);
            return Ok(object);
        }
        if self.is_other_builtin() {
            return Ok(self.row.convert_builtin(object, &self.row.api_version(&self.version)));
        }
        if let Some(custom) = &self.custom {
            let stored_version = version_of(&object);
            self.complete(&stored_version, &mut object);
            if stored_version != self.version {
                object = custom.convert(object, &self.row.api_version(&self.version))?;
                self.complete(&self.version, &mut object);
            }
        }
        Ok(object)
    }

    /// [`View::convert`] for watch events and write results; `None` if the stored form needs no
    /// conversion or cannot be converted. The caller then uses the stored form, because a watch has
    /// no way to report the error.
    pub(crate) fn convert_if_needed(&self, stored: &Value) -> Option<Value> {
        if !self.is_foreign() && self.version == self.row.storage_version {
            return None;
        }
        self.convert(stored).ok()
    }

    /// Converts an object of this version to the storage version.
    pub(crate) fn to_storage(&self, mut object: Value) -> Result<Value, Status> {
        if self.is_foreign() {
            events::to_core(&mut object);
            return Ok(object);
        }
        if self.is_other_builtin() {
            return Ok(self.row.convert_builtin(object, &self.row.api_version(&self.row.storage_version)));
        }
        let storage = &self.row.storage_version;
        match &self.custom {
            Some(custom) if self.version != *storage => {
                let mut object = custom.convert(object, &self.row.api_version(storage))?;
                self.complete(storage, &mut object);
                Ok(object)
            }
            _ => Ok(object),
        }
    }

    /// Restores fields for a write in a version other than the stored one of a built-in kind. Such
    /// a version keeps parts of the specification and of the status in annotations. The field
    /// `kept` (`spec` or `status`) is replaced by that of `stored`, or removed if `stored` is
    /// `None`.
    pub(crate) fn keep_stored(&self, object: &mut Value, kept: &str, stored: Option<&Value>) -> Result<(), Status> {
        if !self.is_other_builtin() {
            return Ok(());
        }
        let mut whole = self.to_storage(std::mem::take(object))?;
        let map = meta::map_mut(&mut whole);
        match stored.and_then(|stored| stored.get(kept)) {
            Some(value) => map.insert(kept.to_owned(), value.clone()),
            None => map.remove(kept),
        };
        *object = self.convert(&whole)?;
        Ok(())
    }

    /// Prunes and defaults a custom resource by the schema of `version`.
    fn complete(&self, version: &str, object: &mut Value) {
        if let Some(SchemaSource::Custom(custom)) = self.row.version(version).map(|version| &version.schema) {
            custom.schema.prune(object, Root::Resource);
            custom.schema.drop_nulls(object);
            custom.schema.apply_defaults(object);
        }
    }
}

fn version_of(object: &Value) -> String {
    meta::api_version(object).rsplit('/').next().unwrap_or_default().to_owned()
}
