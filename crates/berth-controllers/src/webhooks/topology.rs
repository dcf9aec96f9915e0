//! Validation of the topology annotations of pod templates.

use std::collections::BTreeMap;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::{PodSet, PodSetSliceRequiredTopologyConstraint};
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::json;

use crate::gates::{Gate, Gates};

/// Maximum number of layers of slices.
const LAYERS_MAX: usize = 3;

/// Validates the annotations of one template; `path` is the path of the annotations.
pub fn annotations(annotations: Option<&BTreeMap<String, String>>, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let Some(map) = annotations else { return Vec::new() };
    let mut errors = Vec::new();
    let modes = [
        annotations::PODSET_REQUIRED_TOPOLOGY,
        annotations::PODSET_PREFERRED_TOPOLOGY,
        annotations::PODSET_UNCONSTRAINED_TOPOLOGY,
    ];
    if modes.iter().filter(|mode| map.contains_key(**mode)).count() > 1 {
        let list = modes.map(|mode| format!("{mode:?}")).join(", ");
        let detail = format!("must not contain more than one topology annotation: [{list}]");
        errors.push(Error::invalid(path, json!(map), detail));
    }
    for key in [
        annotations::PODSET_REQUIRED_TOPOLOGY,
        annotations::PODSET_PREFERRED_TOPOLOGY,
        annotations::PODSET_SLICE_REQUIRED_TOPOLOGY,
    ] {
        if let Some(level) = map.get(key) {
            let wrong = names::is_qualified_name(level).into_iter();
            errors.extend(wrong.map(|m| Error::invalid(&path.key(key), level.as_str(), m)));
        }
    }
    if let Some(text) = map.get(annotations::PODSET_UNCONSTRAINED_TOPOLOGY)
        && text.parse::<bool>().is_err()
    {
        let at = path.key(annotations::PODSET_UNCONSTRAINED_TOPOLOGY);
        errors.push(Error::invalid(&at, text.as_str(), "must be a boolean value"));
    }
    let (slice, size) = (map.get(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY), map.get(annotations::PODSET_SLICE_SIZE));
    let at = path.key(annotations::PODSET_SLICE_SIZE);
    let word = format!("'{}'", annotations::PODSET_SLICE_REQUIRED_TOPOLOGY);
    match (slice, size) {
        (Some(_), None) => errors.push(Error::required(&at, format!("must be set when {word} is specified"))),
        (None, Some(_)) => {
            errors.push(Error::forbidden(&at, format!("may not be set when {word} is not specified")));
        }
        (Some(_), Some(text)) => match text.parse::<i32>() {
            Ok(size) if size >= 1 => {}
            Ok(_) => errors.push(Error::invalid(&at, text.as_str(), "must be greater than or equal to 1")),
            Err(_) => errors.push(Error::invalid(&at, text.as_str(), "must be a numeric value")),
        },
        (None, None) => {}
    }
    if let Some(text) = map.get(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS) {
        errors.extend(constraints(map, text, path, gates));
    }
    errors
}

/// Validates the annotation with several layers of slices.
fn constraints(map: &BTreeMap<String, String>, text: &str, path: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let at = path.key(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS);
    if !gates.on(Gate::TASMultiLayerTopology) {
        return vec![Error::forbidden(&at, "may not be set when the TASMultiLayerTopology feature gate is disabled")];
    }
    let mut errors = Vec::new();
    let excluded =
        [annotations::PODSET_SLICE_REQUIRED_TOPOLOGY, annotations::PODSET_SLICE_SIZE, annotations::PODSET_GROUP_NAME];
    for other in excluded {
        if map.contains_key(other) {
            errors.push(Error::forbidden(&at, format!("may not be set when '{other}' is specified")));
        }
    }
    let layers: Vec<PodSetSliceRequiredTopologyConstraint> = match serde_json::from_str(text) {
        Ok(layers) => layers,
        Err(error) => {
            errors.push(Error::invalid(&at, text, format!("must be a valid JSON list: {error}")));
            return errors;
        }
    };
    if layers.is_empty() || layers.len() > LAYERS_MAX {
        errors.push(Error::invalid(&at, text, format!("must contain between 1 and {LAYERS_MAX} entries")));
        return errors;
    }
    let mut seen = Vec::new();
    let mut previous: Option<i32> = None;
    for layer in &layers {
        let wrong = names::is_qualified_name(&layer.topology).into_iter();
        errors.extend(wrong.map(|m| Error::invalid(&at, layer.topology.as_str(), m)));
        if seen.contains(&&layer.topology) {
            errors.push(Error::duplicate(&at, layer.topology.as_str()));
        }
        seen.push(&layer.topology);
        if layer.size < 1 {
            errors.push(Error::invalid(&at, layer.size, "size must be greater than or equal to 1"));
            continue;
        }
        if let Some(outer) = previous
            && (layer.size > outer || outer % layer.size != 0)
        {
            errors.push(Error::invalid(&at, layer.size, format!("size must divide the previous layer's size {outer}")));
        }
        previous = Some(layer.size);
    }
    errors
}

/// Rejects a slice that is larger than its pod set.
pub fn slice_size(pod_set: &PodSet, path: &Path<'_>) -> Option<Error> {
    let annotations = pod_set.template.metadata.as_ref()?.annotations.as_ref()?;
    let detail = format!("must not be greater than pod set count {}", pod_set.count);
    if let Some(text) = annotations.get(annotations::PODSET_SLICE_SIZE) {
        let size: i32 = text.parse().ok()?;
        let at = path.key(annotations::PODSET_SLICE_SIZE);
        return (size > pod_set.count).then(|| Error::invalid(&at, text.as_str(), detail));
    }
    // The outermost of several layers is the largest.
    let text = annotations.get(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS)?;
    let layers: Vec<PodSetSliceRequiredTopologyConstraint> = serde_json::from_str(text).ok()?;
    let size = layers.first()?.size;
    (size > pod_set.count)
        .then(|| Error::invalid(&path.key(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS), size, detail))
}

/// Validates the topology requests of several pod templates: for each, the path of its annotations
/// and the annotations. `pod_sets` has the pod set of each template, in the same order. If
/// `groups`, pod sets may name a group that is placed together.
pub fn templates(
    templates: &[(&str, Option<&BTreeMap<String, String>>)],
    pod_sets: &[PodSet],
    groups: bool,
    gates: &Gates,
) -> Vec<Error> {
    let errors: Vec<Error> =
        templates.iter().flat_map(|(path, map)| annotations(*map, &Path::new(path), gates)).collect();
    if !errors.is_empty() {
        return errors;
    }
    let with_set = templates.iter().zip(pod_sets);
    let mut errors: Vec<Error> = with_set.filter_map(|((path, _), set)| slice_size(set, &Path::new(path))).collect();
    if groups {
        let paths: Vec<&str> = templates.iter().map(|(path, _)| *path).collect();
        errors.extend(grouping(pod_sets, &paths));
    }
    errors
}

/// Validates groups of pod sets that are placed together: exactly two pod sets with the same
/// topology request, at least one of them with a single pod. `paths` has the paths of their
/// annotations.
fn grouping(pod_sets: &[PodSet], paths: &[&str]) -> Vec<Error> {
    let annotation = |set: &PodSet, key: &str| -> Option<String> {
        set.template.metadata.as_ref()?.annotations.as_ref()?.get(key).cloned()
    };
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, set) in pod_sets.iter().enumerate().take(paths.len()) {
        if let Some(name) = annotation(set, annotations::PODSET_GROUP_NAME) {
            groups.entry(name).or_default().push(index);
        }
    }
    let mut errors = Vec::new();
    let mut wrong = |index: usize, name: &str, detail: String| {
        let path = Path::new(paths[index]);
        errors.push(Error::invalid(&path.key(annotations::PODSET_GROUP_NAME), name, detail));
    };
    let mut inconsistent = Vec::new();
    for (name, members) in groups {
        let [first, second] = members[..] else {
            for index in &members {
                let detail = format!("can only define groups of exactly 2 pod sets, got: {} pod set(s)", members.len());
                wrong(*index, &name, detail);
            }
            continue;
        };
        let place = |index: usize| {
            let modes = [annotations::PODSET_REQUIRED_TOPOLOGY, annotations::PODSET_PREFERRED_TOPOLOGY];
            modes.map(|mode| annotation(&pod_sets[index], mode))
        };
        if place(first) != place(second) {
            inconsistent.extend([(first, second, name.clone()), (second, first, name.clone())]);
        }
        let (one, other) = (pod_sets[first].count, pod_sets[second].count);
        if one != 1 && other != 1 {
            for index in [first, second] {
                let detail = format!(
                    "can only define groups where at least one pod set has only 1 replica, got: {one} replica(s) and \
                     {other} replica(s) in the group"
                );
                wrong(index, &name, detail);
            }
        }
    }
    for (index, other, name) in inconsistent {
        let detail = format!(
            "must specify '{}' or '{}' topology consistent with '{}' in group '{name}'",
            annotations::PODSET_REQUIRED_TOPOLOGY,
            annotations::PODSET_PREFERRED_TOPOLOGY,
            paths[other]
        );
        let map = pod_sets[index].template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone());
        errors.push(Error::invalid(&Path::new(paths[index]), json!(map), detail));
    }
    errors
}
