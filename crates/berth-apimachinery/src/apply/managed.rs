//! `metadata.managedFields`: reading, writing, ordering, capping, and moving entries between an
//! object and its scale.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::path::{PathElement, PathError};
use super::set::{ReadSets, Set, put_text};
use super::update::{Conflict, Managers, Owned};
use crate::field::quote;
use crate::managed_text;
use crate::packed;
use crate::status::{Cause, Status};

/// Maximum number of update entries that an object keeps. Older entries of a version are merged
/// into one.
pub const UPDATE_MANAGERS_MAX: usize = 10;
/// Manager of the entry that older update entries are merged into.
pub const ANCIENT_CHANGES: &str = "ancient-changes";

/// Identity of an entry: manager, operation and subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Name of the manager.
    pub manager: String,
    /// True for an apply, false for an update.
    pub applied: bool,
    /// API version of an update. Applies of one manager in all versions share an entry.
    pub version: String,
    /// Subresource of the write, or empty for the main resource.
    pub subresource: String,
}

impl Identity {
    /// Opaque manager name for the updater: the parts, joined by characters that no part can
    /// contain.
    pub fn key(&self) -> String {
        let version = if self.applied { "" } else { &self.version };
        let operation = if self.applied { "A" } else { "U" };
        [&self.manager, operation, version, &self.subresource].join("\0")
    }

    /// Reads [`Identity::key`].
    pub fn from_key(key: &str) -> Option<Self> {
        let mut parts = key.split('\0');
        let (manager, operation, version, subresource) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(Identity {
            manager: manager.to_owned(),
            applied: operation == "A",
            version: version.to_owned(),
            subresource: subresource.to_owned(),
        })
    }

    /// The identity as a JSON value, spelled as in upstream's conflict messages.
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("manager".to_owned(), Value::from(self.manager.as_str()));
        map.insert("operation".to_owned(), Value::from(if self.applied { "Apply" } else { "Update" }));
        if !self.applied {
            map.insert("apiVersion".to_owned(), Value::from(self.version.as_str()));
        }
        if !self.subresource.is_empty() {
            map.insert("subresource".to_owned(), Value::from(self.subresource.as_str()));
        }
        Value::Object(map)
    }

    /// Reads [`Identity::to_value`], or an entry of `managedFields`.
    pub fn from_value(value: &Value) -> Self {
        let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let applied = text("operation") == "Apply";
        let version = if applied { String::new() } else { text("apiVersion") };
        Identity { manager: text("manager"), applied, version, subresource: text("subresource") }
    }

    /// The manager's name in conflict messages.
    fn shown(&self, time: Option<&str>) -> String {
        let mut text = quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if !self.applied && !self.version.is_empty() {
            text.push_str(&format!(" using {}", self.version));
            if let Some(time) = time {
                text.push_str(&format!(" at {time}"));
            }
        }
        text
    }
}

/// The parsed content of `managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managed {
    /// Owned fields of each manager, by [`Identity::key`].
    pub managers: Managers,
    /// Time of the last change to each entry, by [`Identity::key`].
    pub times: BTreeMap<String, String>,
}

impl Managed {
    /// Reads the list, packed or unpacked. Null and absent lists are empty.
    pub fn decode(entries: &Value) -> Result<Self, PathError> {
        if let Some(text) = packed::text_of(entries) {
            return Managed::of(&EntryText::all(text)?, &ReadSets::default());
        }
        let mut managed = Managed::default();
        for entry in entries.as_array().into_iter().flatten() {
            let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
            let identity = Identity::from_value(entry);
            let applied = identity.applied;
            let set = Set::from_fields_v1(entry.get("fieldsV1").unwrap_or(&Value::Null))?;
            let key = identity.key();
            let owned = Owned { set, version: text("apiVersion"), applied };
            if !text("time").is_empty() {
                managed.times.insert(key.clone(), text("time"));
            }
            managed.managers.insert(key, owned);
        }
        Ok(managed)
    }

    /// Parses the entries of a packed list.
    pub(super) fn of(entries: &[EntryText<'_>], sets: &ReadSets) -> Result<Self, PathError> {
        let mut managed = Managed::default();
        for entry in entries {
            let set = sets.read(entry.fields)?;
            let key = entry.identity.key();
            if !entry.time.is_empty() {
                managed.times.insert(key.clone(), entry.time.clone());
            }
            let owned = Owned { set, version: entry.version.clone(), applied: entry.identity.applied };
            managed.managers.insert(key, owned);
        }
        Ok(managed)
    }

    /// The list in its stored form and canonical order.
    pub fn encode(&self) -> Value {
        let mut entries: Vec<Value> = self
            .managers
            .iter()
            .map(|(key, owned)| {
                let identity = Identity::from_key(key).unwrap_or_default();
                let identity = Identity { applied: owned.applied, ..identity };
                entry(
                    &identity,
                    &owned.version,
                    &owned.set,
                    self.times.get(key).map(String::as_str).unwrap_or_default(),
                )
            })
            .collect();
        sort_entries(&mut entries);
        Value::Array(entries)
    }

    /// [`Managed::encode`], packed. Sets that are unchanged since `before` (read from `entries`)
    /// reuse their text.
    pub(super) fn encode_packed(&self, before: &Managed, entries: &[EntryText<'_>]) -> String {
        let entries = self.managers.iter().map(|(key, owned)| {
            let identity = Identity::from_key(key).unwrap_or_default();
            let identity = Identity { applied: owned.applied, ..identity };
            let time = self.times.get(key).cloned().unwrap_or_default();
            let same = before.managers.get(key).filter(|before| before.set == owned.set);
            let known = same.and_then(|_| entries.iter().find(|entry| entry.identity.key() == *key));
            let fields = known.map(|entry| entry.fields);
            EntryText {
                text: Cow::Owned(entry_text(&identity, &owned.version, fields, &owned.set, &time)),
                identity,
                version: owned.version.clone(),
                time,
                fields: "null",
            }
        });
        EntryText::list(entries.collect())
    }

    /// Merges the oldest update entries, per version, until at most `max` remain or none can be
    /// merged.
    pub fn cap_updates(&mut self, max: usize) {
        let mut updates: Vec<String> =
            self.managers.iter().filter(|(_, owned)| !owned.applied).map(|(key, _)| key.clone()).collect();
        let mut left = updates.len();
        if left <= max {
            return;
        }
        updates.sort_by(|a, b| self.times.get(a).cmp(&self.times.get(b)).then_with(|| a.cmp(b)));
        // The first update entry of each version. It is renamed only once another entry is merged
        // into it.
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for key in updates {
            if left <= max {
                return;
            }
            let Some(version) = self.managers.get(&key).map(|owned| owned.version.clone()) else { continue };
            let Some(bucket) = first.get(&version).cloned() else {
                first.insert(version, key);
                continue;
            };
            let identity =
                Identity { manager: ANCIENT_CHANGES.to_owned(), version: version.clone(), ..Identity::default() };
            let into = identity.key();
            let mut folded = Set::new();
            for part in [&bucket, &key] {
                if let Some(owned) = self.managers.remove(part) {
                    folded = folded.union(owned.set);
                }
            }
            let time = self.times.remove(&key);
            self.times.remove(&bucket);
            self.managers.insert(into.clone(), Owned { set: folded, version: version.clone(), applied: false });
            if let Some(time) = time {
                self.times.insert(into.clone(), time);
            }
            first.insert(version, into);
            left -= 1;
        }
    }

    /// The 409 response to an apply that changes fields of other managers.
    pub fn conflict_status(&self, conflicts: &[Conflict]) -> Status {
        let shown = |conflict: &Conflict| {
            let time = self.times.get(&conflict.manager).map(String::as_str);
            Identity::from_key(&conflict.manager)
                .map_or_else(|| quote(&conflict.manager), |identity| identity.shown(time))
        };
        let named: Vec<(String, String)> =
            conflicts.iter().map(|conflict| (shown(conflict), super::path::path_text(&conflict.path))).collect();
        conflict_status(&named)
    }
}

/// One entry of the stored list.
pub(super) fn entry(identity: &Identity, version: &str, set: &Set, time: &str) -> Value {
    let mut entry = Map::new();
    let mut put = |field: &str, text: &str| {
        if !text.is_empty() {
            entry.insert(field.to_owned(), Value::from(text));
        }
    };
    put("manager", &identity.manager);
    put("operation", if identity.applied { "Apply" } else { "Update" });
    put("apiVersion", version);
    put("time", time);
    put("fieldsType", "FieldsV1");
    put("subresource", &identity.subresource);
    entry.insert("fieldsV1".to_owned(), set.to_fields_v1());
    Value::Object(entry)
}

/// An entry of a [packed] list: its text and the fields that identify it.
pub(super) struct EntryText<'t> {
    /// Text of the whole entry.
    pub(super) text: Cow<'t, str>,
    pub(super) identity: Identity,
    version: String,
    time: String,
    /// Text of its `fieldsV1`.
    pub(super) fields: &'t str,
}

impl Default for EntryText<'_> {
    fn default() -> Self {
        Self {
            text: Cow::Borrowed("{}"),
            identity: Identity::default(),
            version: String::new(),
            time: String::new(),
            fields: "null",
        }
    }
}

impl<'t> EntryText<'t> {
    /// The entries of a packed list.
    pub(super) fn all(list: &'t str) -> Result<Vec<EntryText<'t>>, PathError> {
        let mut entries: Vec<EntryText<'t>> = Vec::new();
        let items = managed_text::items(list.as_bytes(), |item, key, value| {
            // Earlier items may have no members.
            if entries.len() <= item {
                entries.resize_with(item + 1, EntryText::default);
            }
            entries[item].put(&list[key], &list[value]);
        });
        let items = items.ok_or_else(|| PathError("of a list that is not JSON".to_owned()))?;
        entries.resize_with(items.len(), EntryText::default);
        for (entry, item) in entries.iter_mut().zip(items) {
            entry.text = Cow::Borrowed(&list[item]);
            if !entry.identity.applied {
                entry.identity.version.clone_from(&entry.version);
            }
        }
        Ok(entries)
    }

    fn put(&mut self, key: &str, value: &'t str) {
        // A value that is not a string counts as absent, as in the unpacked form.
        let string = || serde_json::from_str::<String>(value).unwrap_or_default();
        match key {
            "\"manager\"" => self.identity.manager = string(),
            "\"operation\"" => self.identity.applied = string() == "Apply",
            "\"apiVersion\"" => self.version = string(),
            "\"subresource\"" => self.identity.subresource = string(),
            "\"time\"" => self.time = string(),
            "\"fieldsV1\"" => self.fields = value,
            _ => {}
        }
    }

    /// The entry of an update by `identity`. `fields` is the text of the set, if known.
    pub(super) fn of_update(identity: &Identity, fields: Option<&str>, set: &Set, time: &str) -> EntryText<'static> {
        EntryText {
            text: Cow::Owned(entry_text(identity, &identity.version, fields, set, time)),
            identity: identity.clone(),
            version: identity.version.clone(),
            time: time.to_owned(),
            fields: "null",
        }
    }

    /// Entries as a packed list, in its canonical order.
    pub(super) fn list(mut entries: Vec<EntryText<'_>>) -> String {
        fn order<'e>(entry: &'e EntryText<'_>) -> (bool, &'e str, &'e str, &'e str, &'e str) {
            let Identity { manager, applied, subresource, .. } = &entry.identity;
            (!applied, whole_seconds(&entry.time), manager, &entry.version, subresource)
        }
        entries.sort_by(|a, b| order(a).cmp(&order(b)));
        let texts: Vec<&str> = entries.iter().map(|entry| entry.text.as_ref()).collect();
        format!("[{}]", texts.join(","))
    }
}

/// The text form of [`entry`].
fn entry_text(identity: &Identity, version: &str, fields: Option<&str>, set: &Set, time: &str) -> String {
    let mut text = String::from("{");
    let put = |text: &mut String, field: &str, value: &str| {
        if !value.is_empty() {
            put_text(text, "", field);
            text.push(':');
            put_text(text, "", value);
            text.push(',');
        }
    };
    put(&mut text, "apiVersion", version);
    put(&mut text, "fieldsType", "FieldsV1");
    text.push_str("\"fieldsV1\":");
    match fields {
        Some(fields) => text.push_str(fields),
        None => set.write_fields_v1(&mut text),
    }
    text.push(',');
    put(&mut text, "manager", &identity.manager);
    put(&mut text, "operation", if identity.applied { "Apply" } else { "Update" });
    put(&mut text, "subresource", &identity.subresource);
    put(&mut text, "time", time);
    text.pop();
    text.push('}');
    text
}

/// The 409 response that lists conflicts as pairs of manager name and field path.
pub fn conflict_status(conflicts: &[(String, String)]) -> Status {
    let causes = conflicts
        .iter()
        .map(|(manager, path)| Cause {
            reason: "FieldManagerConflict".to_owned(),
            message: format!("conflict with {manager}"),
            field: path.clone(),
        })
        .collect();
    let message = match conflicts {
        [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
        conflicts => {
            let mut by_manager: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (manager, path) in conflicts {
                by_manager.entry(manager).or_default().push(path);
            }
            let lines: Vec<String> = by_manager
                .into_iter()
                .flat_map(|(manager, paths)| {
                    let head = format!("conflicts with {manager}:");
                    std::iter::once(head).chain(paths.into_iter().map(|path| format!("- {path}")))
                })
                .collect();
            format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
        }
    };
    Status::apply_conflict(causes, message)
}

/// Orders entries: applies before updates, then by time, manager, version and subresource.
pub fn sort_entries(entries: &mut [Value]) {
    fn order(a: &Value, b: &Value) -> Ordering {
        fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
            entry.get(field).and_then(Value::as_str).unwrap_or_default()
        }
        fn time(entry: &Value) -> &str {
            whole_seconds(text(entry, "time"))
        }
        text(a, "operation")
            .cmp(text(b, "operation"))
            .then_with(|| time(a).cmp(time(b)))
            .then_with(|| text(a, "manager").cmp(text(b, "manager")))
            .then_with(|| text(a, "apiVersion").cmp(text(b, "apiVersion")))
            .then_with(|| text(a, "subresource").cmp(text(b, "subresource")))
    }
    entries.sort_by(order);
}

/// A time without its fraction: stored times have whole seconds, so times within one second are
/// equal.
fn whole_seconds(time: &str) -> &str {
    time.split_once('.').map_or(time.trim_end_matches('Z'), |(seconds, _)| seconds)
}

/// True if a list sent by a client resets ownership: an empty list, or a list of one empty entry.
pub fn is_reset(entries: Option<&Value>) -> bool {
    match entries.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(entry)]) => entry.is_empty(),
        _ => false,
    }
}

/// Moves ownership of the replica count between an object and its scale subresource.
///
/// `paths` gives the path of the replica count for each apiVersion of the object.
#[derive(Clone, Debug)]
pub struct ScaleFields {
    /// Path of the replica count by apiVersion of the parent; empty for a version without a scale.
    pub paths: BTreeMap<String, Vec<String>>,
    /// apiVersion of the parent in this request.
    pub parent_version: String,
    /// apiVersion of the scale object.
    pub scale_version: String,
}

impl ScaleFields {
    fn path(&self, version: &str) -> Option<Vec<PathElement>> {
        Some(self.paths.get(version)?.iter().map(|name| PathElement::field(name)).collect())
    }

    /// The entries of the scale object: those of managers that own the replica count.
    pub fn to_scale(&self, parent: &Managed) -> Managed {
        let mut scale = Managed::default();
        let mut count = Set::new();
        count.insert(&[PathElement::field("spec"), PathElement::field("replicas")]);
        for (key, owned) in &parent.managers {
            if !self.path(&owned.version).is_some_and(|path| owned.set.has(&path)) {
                continue;
            }
            let mut identity = Identity::from_key(key).unwrap_or_default();
            if !identity.applied {
                identity.version.clone_from(&self.scale_version);
            }
            let scale_key = identity.key();
            if let Some(time) = parent.times.get(key) {
                scale.times.insert(scale_key.clone(), time.clone());
            }
            let owned = Owned { set: count.clone(), version: self.scale_version.clone(), applied: owned.applied };
            scale.managers.insert(scale_key, owned);
        }
        scale
    }

    /// The parent's entries after the entries of the scale object became `scale`.
    pub fn to_parent(&self, parent: &Managed, scale: &Managed) -> Managed {
        let mut result = Managed { managers: Managers::new(), times: parent.times.clone() };
        // A scale entry corresponds to the parent's entry of the same manager, in any version.
        let same = |a: &Identity, b: &Identity| {
            a.manager == b.manager && a.applied == b.applied && a.subresource == b.subresource
        };
        let count_of_scale = [PathElement::field("spec"), PathElement::field("replicas")];
        let owners = scale.managers.iter().filter(|(_, owned)| owned.set.has(&count_of_scale));
        let identities: Vec<(Identity, &String)> =
            owners.filter_map(|(key, _)| Some((Identity::from_key(key)?, key))).collect();
        let mut continued: Vec<&String> = Vec::new();
        for (key, owned) in &parent.managers {
            let identity = Identity::from_key(key).unwrap_or_default();
            // The path of the count is unknown for a version that is no longer served.
            let Some(path) = self.path(&owned.version) else { continue };
            let mut owned = owned.clone();
            if owned.set.has(&path) {
                match identities.iter().find(|(other, _)| same(other, &identity)) {
                    Some((_, scale_key)) => {
                        continued.push(scale_key);
                        if let Some(time) = scale.times.get(*scale_key) {
                            result.times.insert(key.clone(), time.clone());
                        }
                    }
                    None => {
                        let mut count = Set::new();
                        count.insert(&path);
                        owned.set = owned.set.difference(&count);
                    }
                }
            }
            if owned.set.is_empty() {
                result.times.remove(key);
            } else {
                result.managers.insert(key.clone(), owned);
            }
        }
        let Some(path) = self.path(&self.parent_version) else { return result };
        for (mut identity, scale_key) in identities {
            if continued.contains(&scale_key) {
                continue;
            }
            identity.version.clone_from(&self.parent_version);
            let key = identity.key();
            let mut set = result.managers.get(&key).map(|owned| owned.set.clone()).unwrap_or_default();
            set.insert(&path);
            let owned = Owned { set, version: self.parent_version.clone(), applied: identity.applied };
            result.managers.insert(key.clone(), owned);
            if let Some(time) = scale.times.get(scale_key) {
                result.times.insert(key, time.clone());
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_without_members_are_kept() {
        let list = r#"[{},{"manager":"a","operation":"Apply"},{},{},{"apiVersion":"v1","manager":"b"},{}]"#;
        let entries = EntryText::all(list).unwrap_or_default();
        let managers: Vec<&str> = entries.iter().map(|entry| entry.identity.manager.as_str()).collect();
        assert_eq!(managers, ["", "a", "", "", "b", ""]);
        assert_eq!((entries[1].identity.applied, entries[4].identity.version.as_str()), (true, "v1"));
        assert_eq!(entries[5].text, "{}");
    }
}
