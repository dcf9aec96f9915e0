//! Columns and cells of the Tables that `kubectl get` prints.

use crate::machinery::Column;
use serde_json::Value;

use crate::{ResourceInfo, VersionInfo};

/// The columns of a kind's Table.
pub fn columns(_row: &ResourceInfo, _version: &VersionInfo) -> Vec<Column> {
    Vec::new()
}

/// The cells of one object, as many as [`columns`]. `now` gives the ages.
pub fn cells(_row: &ResourceInfo, _version: &VersionInfo, _object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
    Vec::new()
}
