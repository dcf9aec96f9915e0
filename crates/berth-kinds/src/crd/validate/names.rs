//! The names of a definition, in its specification and as accepted.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names::is_dns1035_label;
use serde_json::Value;

/// Checks the names that are set.
pub(super) fn validate(given: &Value, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let text = |field: &str| given[field].as_str().unwrap_or_default();
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(field);
        if name.is_empty() {
            continue;
        }
        let mixed_case = matches!(field, "kind" | "listKind");
        let problems = if mixed_case { is_dns1035_label(&name.to_lowercase()) } else { is_dns1035_label(name) };
        if !problems.is_empty() {
            let why = problems.join(",");
            let detail =
                if mixed_case { format!("may have mixed case, but should otherwise match: {why}") } else { why };
            errors.push(Error::invalid(&path.child(field), name, detail));
        }
    }
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let detail = "kind and listKind may not be the same";
        errors.push(Error::invalid(&path.child("listKind"), text("listKind"), detail));
    }
    for field in ["shortNames", "categories"] {
        for (index, name) in given[field].as_array().into_iter().flatten().enumerate() {
            let problems = is_dns1035_label(name.as_str().unwrap_or_default());
            if !problems.is_empty() {
                errors.push(Error::invalid(&path.child(field).index(index), name.clone(), problems.join(",")));
            }
        }
    }
    errors
}

/// Checks that the names required in a specification are set.
pub(super) fn require(given: &Value, path: &Path<'_>) -> Vec<Error> {
    ["plural", "singular", "kind", "listKind"]
        .into_iter()
        .filter(|field| given[*field].as_str().unwrap_or_default().is_empty())
        .map(|field| Error::required(&path.child(field), ""))
        .collect()
}
