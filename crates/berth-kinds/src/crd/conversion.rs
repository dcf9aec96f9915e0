//! Conversion webhooks: the review sent to a webhook, and the parts of its response that are used.
//!
//! Behaviour after Kubernetes' CRD conversion (conformance suites `conversion-*`).

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::{meta, validation};
use serde_json::{Map, Value, json};

use super::GROUP;
use crate::review_version::ReviewVersion;

/// The objects that are not of `api_version`: those of a list, or the object itself.
pub fn objects_to_convert<'a>(object: &'a Value, api_version: &str) -> Vec<&'a Value> {
    let differs = |object: &&Value| meta::api_version(object) != api_version;
    match object.get("items").and_then(Value::as_array) {
        Some(items) => items.iter().filter(differs).collect(),
        None => Some(object).filter(differs).into_iter().collect(),
    }
}

/// The request body.
pub fn review(version: ReviewVersion, uid: &str, api_version: &str, objects: &[&Value]) -> Value {
    json!({
        "apiVersion": version.api_version(GROUP), "kind": "ConversionReview",
        "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
    })
}

/// The converted objects in a webhook's response to the review `uid`.
///
/// # Errors
/// The reason why the response has no valid objects.
pub fn converted_objects(version: ReviewVersion, uid: &str, answer: &Value) -> Result<Vec<Value>, String> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    if !answer.is_object() {
        return Err("unrecognized response type".to_owned());
    }
    if version == ReviewVersion::V1 {
        let expected = format!("{}, Kind=ConversionReview", version.api_version(GROUP));
        let api_version = text(answer, "apiVersion");
        let shown = if api_version.is_empty() { "/" } else { &api_version };
        let got = format!("{shown}, Kind={}", text(answer, "kind"));
        if got != expected {
            return Err(format!("expected webhook response of {expected}, got {got}"));
        }
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    // v1beta1 does not require a response to repeat the uid.
    if version == ReviewVersion::V1 && text(response, "uid") != uid {
        return Err(format!(
            "expected response.uid={}, got {}",
            field::quote(uid),
            field::quote(&text(response, "uid"))
        ));
    }
    let (status, message) = (text(&response["result"], "status"), text(&response["result"], "message"));
    if status != "Success" {
        let why = format!("response.result.status was '{status}', not 'Success'");
        return Err(if message.is_empty() { why } else { message });
    }
    Ok(response["convertedObjects"].as_array().cloned().unwrap_or_default())
}

/// Restores the metadata of `original` in `converted`, except for labels and annotations, which a
/// conversion may change.
///
/// # Errors
/// The error in the metadata.
pub fn restore_metadata(original: &Value, converted: &mut Value) -> Result<(), String> {
    let own = converted.get("metadata").cloned().ok_or("missing metadata in converted object")?;
    let Value::Object(own) = own else {
        return Err(format!("invalid metadata of type {} in converted object", go_type(&own)));
    };
    let metadata = original.get("metadata").cloned().unwrap_or_else(|| json!({}));
    meta::map_mut(converted).insert("metadata".to_owned(), metadata);
    let Some(metadata) = converted.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err(format!("invalid metadata of type {} in input object", go_type(&original["metadata"])));
    };
    for field in ["labels", "annotations"] {
        let Some(given) = own.get(field).filter(|given| !given.is_null()) else {
            metadata.remove(field);
            continue;
        };
        let Some(given) = given.as_object() else {
            return Err(format!("invalid metadata.{field} of type {} in converted object", go_type(given)));
        };
        if let Some(before) = metadata.get(field).filter(|before| !before.is_null() && !before.is_object()) {
            return Err(format!("invalid metadata.{field} of type {} in original object", go_type(before)));
        }
        check_texts(field, given)?;
        if metadata.get(field).and_then(Value::as_object) != Some(given) {
            let value = Value::Object(given.clone());
            let errors = match field {
                "labels" => validation::validate_labels(&value, &Path::new("metadata.labels")),
                _ => validation::validate_annotations(&value, &Path::new("metadata.annotation")),
            };
            if !errors.is_empty() {
                return Err(field::aggregate(&errors));
            }
        }
        metadata.insert(field.to_owned(), Value::Object(given.clone()));
    }
    Ok(())
}

fn check_texts(field: &str, given: &Map<String, Value>) -> Result<(), String> {
    match given.iter().find(|(_, value)| !value.is_string()) {
        Some((key, value)) => {
            Err(format!("metadata.{field}[{key}] must be a string, but is {} in converted object", go_type(value)))
        }
        None => Ok(()),
    }
}

/// Name of the type of a JSON value in upstream's messages, which users search for.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
