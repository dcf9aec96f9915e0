//! YAML documents in fields of Ray's kinds.

use serde_json::Value;

/// The document as JSON.
///
/// # Errors
/// Returns why the text is not YAML.
pub fn parse(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}
