//! The parts of a version other than its schema: printer columns, subresources, selectable fields,
//! deprecation.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::schema::{Schema, Type};
use berth_cel::rules::{ArrayNotation, valid_field_path};
use serde_json::Value;

/// Maximum number of selectable fields of a version.
const SELECTABLE_FIELDS_MAX: usize = 8;
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Maximum length of a deprecation warning, in characters.
const WARNING_LENGTH_MAX: usize = 256;

/// The part called `name` of a version; `None` if it is absent or null.
pub(super) fn part<'a>(version: &'a Value, name: &str) -> Option<&'a Value> {
    version.get(name).filter(|part| !part.is_null())
}

/// Checks `additionalPrinterColumns`.
pub(super) fn columns(given: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    for (index, column) in given.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        let text = |field: &str| column[field].as_str().unwrap_or_default();
        if text("name").is_empty() {
            errors.push(Error::required(&at.child("name"), ""));
        }
        let types = || format!("must be one of {}", COLUMN_TYPES.join(","));
        match text("type") {
            "" => errors.push(Error::required(&at.child("type"), types())),
            known if COLUMN_TYPES.contains(&known) => {}
            other => errors.push(Error::invalid(&at.child("type"), other, types())),
        }
        if !text("format").is_empty() && !COLUMN_FORMATS.contains(&text("format")) {
            let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(Error::invalid(&at.child("format"), text("format"), detail));
        }
        match text("jsonPath") {
            "" => errors.push(Error::required(&at.child("JSONPath"), "")),
            json_path => {
                simple_path(json_path, &at.child("JSONPath"), &mut errors);
            }
        }
    }
    errors
}

fn simple_path(json_path: &str, path: &Path<'_>, errors: &mut Vec<Error>) -> bool {
    let fits = json_path.starts_with('.');
    if !fits {
        errors.push(Error::invalid(path, json_path, "must be a simple json path starting with ."));
    }
    fits
}

/// Checks `subresources`.
pub(super) fn subresources(given: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let Some(scale) = part(given, "scale") else { return errors };
    let at = path.child("scale");
    for (field, below, detail) in [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."][..], "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."][..], "should be a json path under either .spec or .status"),
    ] {
        let json_path = scale[field].as_str().unwrap_or_default();
        if json_path.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(Error::required(&at.child(field), ""));
            }
        } else if simple_path(json_path, &at.child(field), &mut errors)
            && !below.iter().any(|prefix| json_path.starts_with(prefix))
        {
            errors.push(Error::invalid(&at.child(field), json_path, detail));
        }
    }
    errors
}

/// Checks `selectableFields` against the schema. If they are `unchanged`, there may be too many of
/// them, and their paths may have names in brackets, which earlier versions accepted.
pub(super) fn selectable_fields(given: &Value, schema: Option<&Value>, unchanged: bool, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let fields = given.as_array().map(Vec::as_slice).unwrap_or_default();
    if fields.is_empty() {
        return errors;
    }
    let Some(schema) = schema else {
        return vec![Error::invalid(path, "", "may only be set when validations.schema is included")];
    };
    // The validation of the schema reports why it cannot be parsed.
    let Ok(schema) = Schema::parse_crd(schema) else { return errors };
    let notation = if unchanged { ArrayNotation::Allowed } else { ArrayNotation::Refused };
    let mut seen: HashSet<String> = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let item = path.index(index);
        let at = item.child("jsonPath");
        let json_path = field["jsonPath"].as_str().unwrap_or_default();
        if json_path.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let (steps, target) = match valid_field_path(json_path, &schema, notation) {
            Ok(found) => found,
            Err(why) => {
                errors.push(Error::invalid(&at, json_path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if steps.split(['.', '[']).next() == Some("metadata") {
            errors.push(Error::invalid(&at, json_path, "must not point to fields in metadata"));
        }
        if !matches!(target.schema_type, Some(Type::String | Type::Boolean | Type::Integer)) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings \
                          with formats are allowed.";
            errors.push(Error::invalid(&at, json_path, detail));
        }
        if !seen.insert(steps) {
            errors.push(Error::duplicate(&at, json_path));
        }
    }
    if seen.len() > SELECTABLE_FIELDS_MAX && !unchanged {
        errors.push(Error::too_many(path, seen.len() as i64, SELECTABLE_FIELDS_MAX as i64));
    }
    errors
}

/// The first name of a path, and the rest of the path.
pub fn next_step(path: &str) -> Result<(String, &str), String> {
    if let Some(rest) = path.strip_prefix("['") {
        let (name, after) = rest.split_once("']").ok_or("unterminated property name in brackets")?;
        return Ok((name.replace("\\'", "'"), after));
    }
    let rest = path.strip_prefix('.').ok_or_else(|| format!("expected [ or . but got: {path}"))?;
    let end = rest.find(['.', '[']).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    if name.is_empty() {
        return Err("unexpected end of JSON path".to_owned());
    }
    Ok((name.to_owned(), after))
}

/// The errors in the deprecation warning of a version.
pub fn deprecation_warning(deprecated: bool, warning: Option<&str>) -> Vec<String> {
    let Some(warning) = warning else { return Vec::new() };
    if !deprecated {
        return vec!["can only be set for deprecated versions".to_owned()];
    }
    let mut errors = Vec::new();
    if warning.is_empty() {
        errors.push("must not be empty".to_owned());
    }
    if warning.contains('\u{fffd}') {
        errors.push("must only contain printable UTF-8 characters".to_owned());
    } else if let Some((at, _)) = warning.char_indices().find(|(_, c)| c.is_control() || *c != ' ' && c.is_whitespace())
    {
        let why = format!("must only contain printable UTF-8 characters; non-printable character found at index {at}");
        errors.push(why);
    }
    if warning.chars().count() > WARNING_LENGTH_MAX {
        errors.push(format!("must be <= {WARNING_LENGTH_MAX} characters long"));
    }
    errors
}
