//! Typed access to the common parts of every object: apiVersion, kind and metadata, and the names
//! of kinds and resources.
//!
//! Objects stay JSON. The accessors never fail: an absent value, or one of the wrong type, reads as
//! empty. Validation rejects malformed objects before this module reads them.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Map, Value};

fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|meta| meta.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// `apiVersion`, or empty.
pub fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

/// `kind`, or empty.
pub fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`, or empty.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// `metadata.generateName`, or empty.
pub fn generate_name(object: &Value) -> &str {
    text(object, "generateName")
}

/// `metadata.namespace`, or empty.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// `metadata.uid`, or empty.
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// `metadata.resourceVersion`, or empty.
pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// `metadata.creationTimestamp`, or empty.
pub fn creation_timestamp(object: &Value) -> &str {
    text(object, "creationTimestamp")
}

/// `metadata.deletionTimestamp`, if the object is being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    Some(text(object, "deletionTimestamp")).filter(|t| !t.is_empty())
}

/// `metadata.generation`, or 0.
pub fn generation(object: &Value) -> i64 {
    metadata(object).and_then(|meta| meta.get("generation")).and_then(Value::as_i64).unwrap_or_default()
}

/// `metadata.labels`.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("labels")?.as_object()
}

/// One label's value.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object)?.get(key)?.as_str()
}

/// `metadata.annotations`.
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("annotations")?.as_object()
}

/// One annotation's value.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object)?.get(key)?.as_str()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object).and_then(|meta| meta.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// API version of the owner.
    pub api_version: &'a str,
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner.
    pub name: &'a str,
    /// Uid of the owner.
    pub uid: &'a str,
    /// True for the managing controller; at most one owner is.
    pub controller: bool,
    /// True if foreground deletion of the owner waits for this object.
    pub block_owner_deletion: bool,
}

/// `metadata.ownerReferences`.
pub fn owner_references(object: &Value) -> Vec<OwnerReference<'_>> {
    let list = metadata(object).and_then(|meta| meta.get("ownerReferences")).and_then(Value::as_array);
    list.into_iter().flatten().map(owner_reference).collect()
}

/// The owner reference with `controller: true`.
pub fn controller_of(object: &Value) -> Option<OwnerReference<'_>> {
    owner_references(object).into_iter().find(|owner| owner.controller)
}

fn owner_reference(entry: &Value) -> OwnerReference<'_> {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
    let flag = |field: &str| entry.get(field).and_then(Value::as_bool).unwrap_or_default();
    OwnerReference {
        api_version: text("apiVersion"),
        kind: text("kind"),
        name: text("name"),
        uid: text("uid"),
        controller: flag("controller"),
        block_owner_deletion: flag("blockOwnerDeletion"),
    }
}

/// Drops owner references that equal an earlier one. Returns true if any was dropped.
pub fn dedup_owner_references(object: &mut Value) -> bool {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(list) = metadata.and_then(|it| it.get_mut("ownerReferences")).and_then(Value::as_array_mut) else {
        return false;
    };
    let before = list.len();
    if before < 2 {
        return false;
    }
    // Maps are sorted, so equal references have equal text.
    let mut seen: HashSet<String> = HashSet::with_capacity(before);
    list.retain(|reference| seen.insert(reference.to_string()));
    list.len() != before
}

/// `metadata`, created if absent. An object that is not a map is replaced by one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    map_mut(map_mut(object).entry("metadata").or_insert_with(|| Value::Object(Map::new())))
}

/// The value as a map; anything else is replaced by an empty one.
pub fn map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made a map just above")
}

/// Sets a string field of metadata; an empty string removes it.
pub fn set(object: &mut Value, field: &str, text: &str) {
    let meta = metadata_mut(object);
    if text.is_empty() {
        meta.remove(field);
    } else {
        meta.insert(field.to_owned(), Value::String(text.to_owned()));
    }
}

/// Sets `metadata.generation`.
pub fn set_generation(object: &mut Value, generation: i64) {
    metadata_mut(object).insert("generation".to_owned(), Value::from(generation));
}

/// Sets one label.
pub fn set_label(object: &mut Value, key: &str, value: &str) {
    let labels = metadata_mut(object).entry("labels").or_insert_with(|| Value::Object(Map::new()));
    map_mut(labels).insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Sets one annotation.
pub fn set_annotation(object: &mut Value, key: &str, value: &str) {
    let annotations = metadata_mut(object).entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    map_mut(annotations).insert(key.to_owned(), Value::String(value.to_owned()));
}

/// Removes and returns `metadata.managedFields`.
pub fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// True if two objects are equal apart from `metadata.managedFields`.
pub fn equal_ignoring_managed_fields(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let same = |a: &Map<String, Value>, b: &Map<String, Value>, ignored: &str| {
        let count = |map: &Map<String, Value>| map.len() - usize::from(map.contains_key(ignored));
        count(a) == count(b)
            && a.iter().filter(|(key, _)| *key != ignored).all(|(key, value)| b.get(key) == Some(value))
    };
    let no_metadata = Map::new();
    // Metadata of a wrong type is rejected elsewhere; it compares as empty here.
    fn of<'a>(map: &'a Map<String, Value>, none: &'a Map<String, Value>) -> &'a Map<String, Value> {
        map.get("metadata").and_then(Value::as_object).unwrap_or(none)
    }
    same(a, b, "metadata") && same(of(a, &no_metadata), of(b, &no_metadata), "managedFields")
}

/// A group and version, written `group/version`, or `version` alone in the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersion {
    /// Group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
}

impl GroupVersion {
    /// Names a group and version.
    pub fn new(group: &str, version: &str) -> Self {
        GroupVersion { group: group.to_owned(), version: version.to_owned() }
    }

    /// Reads an `apiVersion`. The empty string and `/` are the empty group and version.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text == "/" {
            return Ok(GroupVersion::default());
        }
        match text.split('/').collect::<Vec<_>>()[..] {
            [version] => Ok(GroupVersion::new("", version)),
            [group, version] => Ok(GroupVersion::new(group, version)),
            _ => Err(format!("unexpected GroupVersion string: {text}")),
        }
    }

    /// This group and version with a kind.
    pub fn with_kind(&self, kind: &str) -> GroupVersionKind {
        GroupVersionKind::new(&self.group, &self.version, kind)
    }

    /// This group and version with a resource.
    pub fn with_resource(&self, resource: &str) -> GroupVersionResource {
        GroupVersionResource::new(&self.group, &self.version, resource)
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        f.write_str(&self.version)
    }
}

/// A group and kind, written `Kind.group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// Group; empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl GroupKind {
    /// Names a group and kind.
    pub fn new(group: &str, kind: &str) -> Self {
        GroupKind { group: group.to_owned(), kind: kind.to_owned() }
    }

    /// Reads `Kind` or `Kind.group`.
    pub fn parse(text: &str) -> Self {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        GroupKind::new(group, kind)
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// A group and resource (plural, lower case), written `resource.group`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// Group; empty for the core group.
    pub group: String,
    /// Resource, e.g. `pods`; may carry a subresource, `pods/status`.
    pub resource: String,
}

impl GroupResource {
    /// Names a group and resource.
    pub fn new(group: &str, resource: &str) -> Self {
        GroupResource { group: group.to_owned(), resource: resource.to_owned() }
    }

    /// Reads `resource` or `resource.group`.
    pub fn parse(text: &str) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource::new(group, resource)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// A group, version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionKind {
    /// Group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

impl GroupVersionKind {
    /// Names a group, version and kind.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// The group, version and kind of an object.
    pub fn of(object: &Value) -> Result<Self, String> {
        Ok(GroupVersion::parse(api_version(object))?.with_kind(kind(object)))
    }

    /// Reads `Kind.version.group`, as command lines spell it. `None` with fewer than three parts.
    pub fn parse_argument(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('.')?;
        let (version, group) = rest.split_once('.')?;
        Some(GroupVersionKind::new(group, version, kind))
    }

    /// The group and version alone.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }

    /// The group and kind alone.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(&self.group, &self.kind)
    }

    /// The `apiVersion` of such objects.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }

    /// Guesses the plural and singular resource names of a kind: lower case with an English plural.
    pub fn guess_resource(&self) -> (GroupVersionResource, GroupVersionResource) {
        let singular = self.kind.to_lowercase();
        let plural = if singular.ends_with("endpoints") {
            singular.clone()
        } else if let Some(stem) = singular.strip_suffix('y') {
            format!("{stem}ies")
        } else if singular.ends_with('s') {
            format!("{singular}es")
        } else {
            format!("{singular}s")
        };
        let resource = |name: &str| GroupVersionResource::new(&self.group, &self.version, name);
        if singular.is_empty() {
            return (GroupVersionResource::default(), GroupVersionResource::default());
        }
        (resource(&plural), resource(&singular))
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// A group, version and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersionResource {
    /// Group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Resource, plural and in lower case.
    pub resource: String,
}

impl GroupVersionResource {
    /// Names a group, version and resource.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        GroupVersionResource { group: group.to_owned(), version: version.to_owned(), resource: resource.to_owned() }
    }

    /// Reads `resource.version.group`, as command lines spell it. `None` with fewer than three
    /// parts.
    pub fn parse_argument(text: &str) -> Option<Self> {
        let (resource, rest) = text.split_once('.')?;
        let (version, group) = rest.split_once('.')?;
        Some(GroupVersionResource::new(group, version, resource))
    }

    /// The group and version alone.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }

    /// The group and resource alone.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.resource)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

/// Orders versions by client preference, best first: `v2`, `v1`, `v2beta1`, `v1alpha1`, then other
/// names alphabetically.
pub fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    match (version_rank(a), version_rank(b)) {
        (Some(x), Some(y)) => y.cmp(&x),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// (stability, major, minor) of a version like `v1beta2`; `None` for other names.
fn version_rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = |text: &str| (!text.starts_with('0')).then(|| text.parse::<u64>().ok()).flatten();
    let major = number(&rest[..digits])?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        rest => {
            let (stability, minor) = match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (1, minor),
                (_, Some(minor)) => (0, minor),
                _ => return None,
            };
            minor.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
            Some((stability, major, number(minor)?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_metadata_reads_as_empty() {
        let object = json!({"kind": "Pod"});
        assert_eq!(name(&object), "");
        assert_eq!(generation(&object), 0);
        assert!(labels(&object).is_none());
        assert!(deletion_timestamp(&object).is_none());
    }

    #[test]
    fn versions_are_preferred_by_stability_then_number() {
        let mut versions = vec!["v1alpha1", "foo", "v1beta2", "v2", "v10", "v1beta1"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(versions, ["v10", "v2", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }

    #[test]
    fn managed_fields_do_not_count_as_a_difference() {
        let a = json!({"metadata": {"name": "a", "managedFields": []}});
        assert!(equal_ignoring_managed_fields(&a, &json!({"metadata": {"name": "a"}})));
        assert!(!equal_ignoring_managed_fields(&a, &json!({"metadata": {"name": "b"}})));
    }
}
