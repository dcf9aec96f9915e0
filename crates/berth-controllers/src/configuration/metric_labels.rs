//! Validation of `metrics.customLabels`: labels and annotations of objects that become labels of
//! series.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::json;

use super::file::{CustomLabel, Metrics};
use super::validate::one_error;

/// Maximum number of custom labels.
const LABELS_MAX: usize = 20;
/// Maximum number of custom labels per source kind.
const LABELS_PER_KIND_MAX: usize = 6;
/// Maximum number of custom labels from workloads.
const LABELS_PER_WORKLOAD_MAX: usize = 2;
/// Maximum number of tracked values per label.
const VALUES_MAX: usize = 16;
/// Maximum number of tracked values per label from workloads.
const VALUES_PER_WORKLOAD_MAX: usize = 12;
/// Source kind of an entry that does not set one.
const KIND_DEFAULT: &str = "ClusterQueue";
const WORKLOAD: &str = "Workload";

/// Validates the entries.
pub(super) fn validate(metrics: &Metrics) -> Vec<Error> {
    let path = Path::new("metrics");
    let path = path.child("customLabels");
    let mut errors = Vec::new();
    let entries = &metrics.custom_labels;
    if entries.len() > LABELS_MAX {
        errors.push(Error::too_many(&path, entries.len() as i64, LABELS_MAX as i64));
    }
    let mut names = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = path.index(index);
        errors.extend(one(entry, &at));
        if !names.insert(&entry.name) {
            errors.push(Error::duplicate(&at.child("name"), entry.name.as_str()));
        }
    }
    let mut per_kind: BTreeMap<&str, usize> = BTreeMap::new();
    for entry in entries {
        *per_kind.entry(kind(entry)).or_default() += 1;
    }
    for (kind, count) in per_kind {
        let max = match kind {
            "Cohort" | "LocalQueue" | "ClusterQueue" => LABELS_PER_KIND_MAX,
            WORKLOAD => LABELS_PER_WORKLOAD_MAX,
            _ => {
                errors.push(Error::invalid(&path, kind, format!("unknown source kind: {kind}")));
                continue;
            }
        };
        if count > max {
            let detail = format!("too many custom labels for source kind {kind}: found {count}, expected <= {max}");
            errors.push(Error::invalid(&path, count, detail));
        }
    }
    errors
}

fn kind(entry: &CustomLabel) -> &str {
    entry.source_kind.as_deref().unwrap_or(KIND_DEFAULT)
}

fn one(entry: &CustomLabel, at: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let name = entry.name.as_str();
    let starts = name.chars().next().is_some_and(|first| first.is_ascii_alphabetic());
    if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        errors.push(Error::invalid(&at.child("name"), name, "must match ^[a-zA-Z][a-zA-Z0-9_]*$"));
    }
    let (label, annotation) = (entry.source_label_key.as_str(), entry.source_annotation_key.as_str());
    match (label.is_empty(), annotation.is_empty()) {
        (false, false) => {
            let detail = "sourceLabelKey and sourceAnnotationKey are mutually exclusive";
            errors.push(Error::invalid(at, json!(entry), detail));
        }
        (false, true) => {
            errors.extend(one_error(names::is_qualified_name(label), label, &at.child("sourceLabelKey")));
        }
        (true, false) => {
            let problems = names::is_qualified_name(&annotation.to_lowercase());
            errors.extend(one_error(problems, annotation, &at.child("sourceAnnotationKey")));
        }
        // Without keys, the name is the key of the label to read.
        (true, true) => errors.extend(one_error(names::is_qualified_name(name), name, &at.child("name"))),
    }
    let at = at.child("trackedValues");
    let values = &entry.tracked_values;
    if kind(entry) == WORKLOAD {
        if values.is_empty() {
            let detail = "must not be empty when sourceKind is 'Workload'";
            errors.push(Error::invalid(&at, json!(values), detail));
        } else if values.len() > VALUES_PER_WORKLOAD_MAX {
            let detail = format!("must not be greater than {VALUES_PER_WORKLOAD_MAX} when sourceKind is 'Workload'");
            errors.push(Error::invalid(&at, json!(values), detail));
        }
    } else if values.len() > VALUES_MAX {
        errors.push(Error::too_many(&at, values.len() as i64, VALUES_MAX as i64));
    }
    if values.iter().collect::<BTreeSet<_>>().len() != values.len() {
        errors.push(Error::invalid(&at, json!(values), "must not contain duplicates"));
    }
    errors
}
