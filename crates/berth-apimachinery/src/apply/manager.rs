//! Maintains `managedFields` around a write: the effect of an update or apply request on an object
//! and its owners.
//!
//! This module surrounds the updater of [`super::update`]. It selects the list to use (the stored
//! one, or one that the client sent), assigns owners at the first apply, handles `kubectl`'s
//! migration from client-side to server-side apply, strips fields that are never owned, caps the
//! number of entries, and maintains their times.

use crate::well_known::LAST_APPLIED;
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::compare::{Comparison, compare};
use super::managed::{EntryText, Identity, Managed, UPDATE_MANAGERS_MAX, entry, is_reset, sort_entries};
use super::path::PathElement;
use super::remove::extract;
use super::set::{ReadSets, Set};
use super::types::{TypeRef, Types};
use super::update::{ApplyError, Conflict, ConversionError, Ignored, Owned, Typing, Updater, Versioned, Versions};
use super::walk::{TypeError, to_set, validate};
use crate::meta::{self, GroupVersionKind};
use crate::packed;
use crate::status::Status;
use crate::validation::{ANNOTATIONS_BYTES_MAX, FIELD_MANAGER_BYTES_MAX, annotations_bytes};

/// Manager of all fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Temporary manager of the update in progress; its entry is then merged with the manager's older
/// entry.
const CURRENT: &str = "current-operation";
const KUBECTL: &str = "kubectl";

/// Fields that are never owned: the identity of the object, and fields that the server sets.
static NEVER_OWNED: LazyLock<Arc<Set>> = LazyLock::new(|| {
    let mut set = Set::new();
    for path in [
        &["apiVersion"][..],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "uid"],
        &["metadata", "resourceVersion"],
        &["metadata", "generation"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "clusterName"],
        &["metadata", "managedFields"],
    ] {
        let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
        set.insert(&path);
    }
    Arc::new(set)
});

/// The parts of a write request that determine ownership.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Name of the manager that writes; see [`manager_name`].
    pub manager: &'a str,
    /// Subresource of the write, or empty for the main resource.
    pub subresource: &'a str,
    /// Time of the write, in RFC 3339 with whole seconds.
    pub now: &'a str,
}

/// Maintains the field owners of objects of one kind.
pub struct FieldManager {
    versions: Arc<dyn Versions + Send + Sync>,
    ignored: std::collections::BTreeMap<String, Ignored>,
    updates_max: usize,
    /// Fields that updates never own.
    never: Arc<Set>,
    /// Cache of recently read sets, if lists are stored packed.
    packed: Option<Arc<ReadSets>>,
}

impl std::fmt::Debug for FieldManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FieldManager").field("ignored", &self.ignored).finish_non_exhaustive()
    }
}

/// Versions whose objects have the same content in every version.
struct Unconverted {
    versions: Vec<(String, Typing)>,
}

impl Versions for Unconverted {
    fn typing(&self, version: &str) -> Result<Typing, ConversionError> {
        let found = self.versions.iter().find(|(known, _)| known == version);
        found.map(|(_, typing)| typing.clone()).ok_or(ConversionError::NoSuchVersion)
    }

    fn convert(&self, object: &Value, _: &str, to: &str) -> Result<Value, ConversionError> {
        self.typing(to).map(|_| object.clone())
    }
}

impl FieldManager {
    /// A manager for a kind whose versions are converted by `versions`.
    pub fn new(versions: Arc<dyn Versions + Send + Sync>) -> Self {
        FieldManager {
            versions,
            ignored: Default::default(),
            updates_max: UPDATE_MANAGERS_MAX,
            never: NEVER_OWNED.clone(),
            packed: None,
        }
    }

    /// A manager for a kind whose versions (apiVersion and types, see [`Types::from_schema`])
    /// differ only by name.
    pub fn unconverted(versions: impl IntoIterator<Item = (String, Arc<Types>)>) -> Self {
        let typing = |types: Arc<Types>| Typing { types, root: Types::root() };
        let versions = versions.into_iter().map(|(version, types)| (version, typing(types))).collect();
        FieldManager::new(Arc::new(Unconverted { versions }))
    }

    /// Adds fields of a version that are never owned: `status` on the main resource, all other
    /// fields on `/status`.
    #[must_use]
    pub fn ignoring(mut self, version: &str, ignored: Ignored) -> Self {
        self.ignored.insert(version.to_owned(), ignored);
        self
    }

    /// Adds fields, made by [`never_owned`], that updates never own.
    #[must_use]
    pub fn never_owning(mut self, never: Arc<Set>) -> Self {
        self.never = never;
        self
    }

    /// Replaces the default cap on update entries, [`UPDATE_MANAGERS_MAX`].
    #[must_use]
    pub fn with_updates_max(mut self, max: usize) -> Self {
        self.updates_max = max;
        self
    }

    /// Makes updates store [packed] lists. `sets` is the cache shared by all managers of a server.
    #[must_use]
    pub fn packed(mut self, sets: Arc<ReadSets>) -> Self {
        self.packed = Some(sets);
        self
    }

    fn updater(&self) -> Updater<'_> {
        Updater { versions: &*self.versions, ignored: &self.ignored, return_unchanged: false }
    }

    /// Updates the field owners in `new`, which replaces `live` (or is created).
    ///
    /// Never fails: an object that does not match its type keeps its owners.
    pub fn update(&self, live: Option<&Value>, new: &mut Value, write: Write<'_>) {
        // A packed list was not sent by the client: it is the stored list, carried along.
        let sent = meta::take_managed_fields(new).filter(|sent| packed::text_of(sent).is_none());
        let stored = live.and_then(|live| live.pointer("/metadata/managedFields"));
        let entries = stored.and_then(packed::text_of).and_then(|text| EntryText::all(text).ok());
        let is_stored = sent.is_none() || !write.subresource.is_empty();
        let managed = match &entries {
            Some(entries) if is_stored => {
                let sets = self.packed.clone().unwrap_or_default();
                Managed::of(entries, &sets).unwrap_or_default()
            }
            _ => current_managed(stored, sent.as_ref(), write.subresource),
        };
        if live.is_none() && managed.managers.is_empty() {
            let Ok(fields) = self.updater().created(new, &self.never) else { return };
            if fields != "{}" {
                let own = update_identity(new, write);
                let text = EntryText::list(vec![EntryText::of_update(&own, Some(&fields), &Set::new(), write.now)]);
                let list = if self.packed.is_some() { packed::of_text(text) } else { unpacked(&text) };
                meta::metadata_mut(new).insert("managedFields".to_owned(), list);
            }
            return;
        }
        // A reset list stays empty until the first apply. The list of an object that is older than
        // field ownership does too.
        if managed.managers.is_empty() && live.is_some() {
            return;
        }
        let mut compared = None;
        if let Some(live) = live
            && let Some(stored) = stored
            && (!write.subresource.is_empty() || sent.as_ref().is_none_or(|sent| is_same_list(sent, stored)))
            && let Some((comparison, added)) = self.only_adds(live, new, &managed, write)
        {
            if let Some(set) = added {
                let own = update_identity(new, write);
                let before = managed.managers.get(&own.key()).map(|owned| &owned.set);
                meta::metadata_mut(new)
                    .insert("managedFields".to_owned(), self.with_more(stored, entries, &own, set, before, write.now));
                return;
            }
            compared = Some(comparison);
        }
        let before = managed.clone();
        let mut managed = match self.updated(live.unwrap_or(&Value::Null), new, compared, &managed, write) {
            Ok(updated) => updated,
            Err(_) => managed,
        };
        managed.cap_updates(self.updates_max);
        if self.packed.is_some() && !managed.managers.is_empty() {
            // The texts of the stored entries can be reused only if the list was not replaced by
            // one that the client sent.
            let known = entries.filter(|_| is_stored).unwrap_or_default();
            let list = packed::of_text(managed.encode_packed(&before, &known));
            meta::metadata_mut(new).insert("managedFields".to_owned(), list);
        } else {
            store(new, &managed);
        }
    }

    /// Adds the fields `more` to the entry of manager `own`, which owns `before` so far, and
    /// returns the new list. `entries` are the entries of `stored` if that list is packed. The
    /// entries of other managers are copied unchanged.
    fn with_more(
        &self,
        stored: &Value,
        entries: Option<Vec<EntryText<'_>>>,
        own: &Identity,
        more: Set,
        before: Option<&Set>,
        now: &str,
    ) -> Value {
        let whole = |more: Set| before.cloned().unwrap_or_default().union(more);
        match entries {
            _ if more.is_empty() => stored.clone(),
            Some(mut entries) => {
                let own_entry = entries.iter_mut().find(|entry| entry.identity == *own);
                match own_entry {
                    Some(entry) => {
                        let known = before.is_some_and(|before| before.has_all(&more)).then_some(entry.fields);
                        *entry = EntryText::of_update(own, known, &whole(more), now);
                    }
                    None => entries.push(EntryText::of_update(own, None, &whole(more), now)),
                }
                packed::of_text(EntryText::list(entries))
            }
            None => {
                let mut list = stored.as_array().cloned().unwrap_or_default();
                let changed = entry(own, &own.version, &whole(more), now);
                match list.iter_mut().find(|entry| Identity::from_value(entry) == *own) {
                    Some(entry) => *entry = changed,
                    None => list.push(changed),
                }
                sort_entries(&mut list);
                Value::Array(list)
            }
        }
    }

    /// Returns the changes that an update makes, and the fields that it sets if it takes no field
    /// from another manager. Returns `None` if this shortcut does not apply, for example if a
    /// manager uses another version than the object. It applies to most updates by controllers.
    fn only_adds(
        &self,
        live: &Value,
        new: &Value,
        managed: &Managed,
        write: Write<'_>,
    ) -> Option<(Comparison, Option<Set>)> {
        let version = meta::api_version(new);
        let key = update_identity(new, write).key();
        let is_known = managed.managers.contains_key(&key);
        let is_plain = is_known == managed.times.contains_key(&key)
            && meta::api_version(live) == version
            && managed.managers.values().all(|owned| owned.version == version)
            && managed.managers.len() + usize::from(!is_known) <= self.updates_max;
        if !is_plain {
            return None;
        }
        self.updater().only_adds(live, new, &managed.managers, &key, &self.never).ok()
    }

    fn updated(
        &self,
        live: &Value,
        new: &Value,
        compared: Option<Comparison>,
        managed: &Managed,
        write: Write<'_>,
    ) -> Result<Managed, ApplyError> {
        let version = meta::api_version(new);
        let live_version = Some(meta::api_version(live)).filter(|version| !version.is_empty()).unwrap_or(version);
        let mut times = managed.times.clone();
        let mut managers = self.updater().update_compared(
            Versioned { object: live, version: live_version },
            Versioned { object: new, version },
            compared,
            &managed.managers,
            CURRENT,
        )?;
        if let Some(mut current) = managers.remove(CURRENT) {
            current.set = current.set.difference(&self.never);
            let key = update_identity(new, write).key();
            let before = managers.remove(&key).map(|owned| owned.set).unwrap_or_default();
            let set = before.clone().union(current.set).difference(&self.never);
            if !set.is_empty() {
                if set != before || !times.contains_key(&key) {
                    times.insert(key.clone(), write.now.to_owned());
                }
                managers.insert(key, Owned { set, version: version.to_owned(), applied: false });
            }
        }
        times.retain(|key, _| managers.contains_key(key));
        Ok(Managed { managers, times })
    }

    /// Applies a configuration. Returns the object to store, with its owners; it equals `live` if
    /// there is nothing to store. The configuration must have the kind and version of `gvk`, which
    /// the request names.
    pub fn apply(
        &self,
        live: Option<&Value>,
        applied: &Value,
        gvk: &GroupVersionKind,
        write: Write<'_>,
        force: bool,
    ) -> Result<Value, Status> {
        if let Some(entries) = applied.pointer("/metadata/managedFields")
            && entries.as_array().is_none_or(|entries| !entries.is_empty())
            && !entries.is_null()
        {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let applied_gvk = GroupVersionKind::of(applied).map_err(Status::bad_request)?;
        if applied_gvk != *gvk {
            return Err(Status::bad_request(format!("invalid object type: {applied_gvk}")));
        }
        let empty;
        let base = match live {
            Some(live) => live,
            None => {
                empty = json!({"apiVersion": gvk.api_version(), "kind": gvk.kind});
                &empty
            }
        };
        let stored = base.pointer("/metadata/managedFields").unwrap_or(&Value::Null);
        let mut managed = Managed::decode(stored)
            .map_err(|error| Status::internal(format!("failed to decode managed fields: {error}")))?;
        if managed.managers.is_empty() {
            // Existing fields need an owner: fields without one would be pruned.
            let before = Write { manager: BEFORE_FIRST_APPLY, subresource: "", now: "" };
            managed = self
                .updated(&Value::Null, base, None, &managed, before)
                .map_err(|error| Status::internal(format!("failed to create manager for existing fields: {error}")))?;
            managed.times.clear();
        }
        let (mut object, managed) = match self.applied(base, applied, &managed, write, force) {
            Err(ApplyError::Conflicts(conflicts)) if write.manager == KUBECTL => {
                let rest = self.not_from_client_side_apply(base, conflicts);
                if !rest.is_empty() {
                    return Err(managed.conflict_status(&rest));
                }
                self.applied(base, applied, &managed, write, true)
            }
            result => result,
        }
        .map_err(|error| status_of(error, &managed, applied, gvk))?;
        if write.manager == KUBECTL && meta::annotation(base, LAST_APPLIED).is_some_and(|text| !text.is_empty()) {
            remember_applied(&mut object, applied);
        }
        store(&mut object, &managed);
        Ok(object)
    }

    /// Checks that a configuration matches its type. The error names every mismatch.
    pub fn check(&self, applied: &Value, gvk: &GroupVersionKind) -> Result<(), Status> {
        let typing = match self.versions.typing(meta::api_version(applied)) {
            Ok(typing) => typing,
            // The apply itself reports this error.
            Err(_) => return Ok(()),
        };
        validate(&typing.types, &typing.root, applied, false).map_err(|error| untyped(&error, applied, gvk))
    }

    fn applied(
        &self,
        live: &Value,
        applied: &Value,
        managed: &Managed,
        write: Write<'_>,
        force: bool,
    ) -> Result<(Value, Managed), ApplyError> {
        let version = meta::api_version(applied);
        let live_version = Some(meta::api_version(live)).filter(|version| !version.is_empty()).unwrap_or(version);
        let identity = Identity {
            manager: write.manager.to_owned(),
            applied: true,
            version: String::new(),
            subresource: write.subresource.to_owned(),
        };
        let key = identity.key();
        let mut times = managed.times.clone();
        let before = managed.managers.get(&key);
        let (object, mut managers) = self.updater().apply(
            Versioned { object: live, version: live_version },
            Versioned { object: applied, version },
            &managed.managers,
            &key,
            force,
        )?;
        if let Some(owned) = managers.get_mut(&key) {
            owned.set = owned.set.difference(&NEVER_OWNED);
            if owned.set.is_empty() {
                managers.remove(&key);
            }
        }
        // The time is that of the last change to the entry or the object; a repeated apply keeps
        // it.
        if object.is_some() || before.map(|owned| &owned.set) != managers.get(&key).map(|owned| &owned.set) {
            times.insert(key, write.now.to_owned());
        }
        times.retain(|key, _| managers.contains_key(key));
        Ok((object.unwrap_or_else(|| live.clone()), Managed { managers, times }))
    }

    /// The conflicts that remain after kubectl is credited with the fields that its client-side
    /// apply last set, if they still have that value.
    fn not_from_client_side_apply(&self, live: &Value, conflicts: Vec<Conflict>) -> Vec<Conflict> {
        let own = || -> Option<Set> {
            let last: Value = serde_json::from_str(meta::annotation(live, LAST_APPLIED)?).ok()?;
            let version = meta::api_version(live);
            if meta::api_version(&last) != version {
                return None;
            }
            let typing = self.versions.typing(version).ok()?;
            let set = to_set(&typing.types, &typing.root, &last).ok()?;
            let comparison = compare(&typing.types, &typing.root, &last, live).ok()?;
            Some(set.difference(&comparison.modified).difference(&comparison.added).difference(&comparison.removed))
        };
        let own = own().unwrap_or_default();
        conflicts.into_iter().filter(|conflict| !own.has(&conflict.path)).collect()
    }
}

/// Fields that updates of a kind never own: the identity of objects, and the containers at the
/// paths `always_there`. Such a container exists from creation and has no owner; its fields are
/// owned as usual. Upstream, a new object is compared with an empty object that already has these
/// containers.
pub fn never_owned(always_there: &[Vec<String>]) -> Arc<Set> {
    if always_there.is_empty() {
        return NEVER_OWNED.clone();
    }
    let mut set = Set::clone(&NEVER_OWNED);
    for path in always_there {
        let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
        set.insert(&path);
    }
    Arc::new(set)
}

/// Identity of the manager that updates `object`.
fn update_identity(object: &Value, write: Write<'_>) -> Identity {
    Identity {
        manager: write.manager.to_owned(),
        applied: false,
        version: meta::api_version(object).to_owned(),
        subresource: write.subresource.to_owned(),
    }
}

/// The list to use: the stored one, unless the client sends a new one with the main resource.
fn current_managed(stored: Option<&Value>, sent: Option<&Value>, subresource: &str) -> Managed {
    // An unreadable list is treated as absent: another client's bad data must not make an update
    // fail.
    let decode = |entries: Option<&Value>| Managed::decode(entries.unwrap_or(&Value::Null)).unwrap_or_default();
    if subresource.is_empty() {
        if is_reset(sent) {
            return Managed::default();
        }
        let sent = decode(sent);
        if !sent.managers.is_empty() {
            return sent;
        }
    }
    decode(stored)
}

/// A list that this server packed, as a value.
fn unpacked(text: &str) -> Value {
    serde_json::from_str(text).expect("entries are written as JSON")
}

/// True if the list that was sent equals the stored one, packed or not.
fn is_same_list(sent: &Value, stored: &Value) -> bool {
    match packed::text_of(stored) {
        Some(text) => sent.to_string().as_str() == text,
        None => sent == stored,
    }
}

fn store(object: &mut Value, managed: &Managed) {
    if managed.managers.is_empty() {
        meta::take_managed_fields(object);
    } else {
        meta::metadata_mut(object).insert("managedFields".to_owned(), managed.encode());
    }
}

/// Updates the annotation of client-side apply, so that client-side apply keeps working on the
/// object.
fn remember_applied(object: &mut Value, applied: &Value) {
    let mut applied = applied.clone();
    meta::take_managed_fields(&mut applied);
    if let Some(annotations) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    meta::set_annotation(object, LAST_APPLIED, &format!("{applied}\n"));
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else { return };
    if annotations_bytes(annotations) > ANNOTATIONS_BYTES_MAX {
        annotations.remove(LAST_APPLIED);
    }
}

/// The error for a configuration that does not match its type.
fn untyped(error: &TypeError, applied: &Value, gvk: &GroupVersionKind) -> Status {
    let (namespace, name) = (meta::namespace(applied), meta::name(applied));
    Status::bad_request(format!("failed to create typed patch object ({namespace}/{name}; {gvk}): {error}"))
}

fn status_of(error: ApplyError, managed: &Managed, applied: &Value, gvk: &GroupVersionKind) -> Status {
    match error {
        ApplyError::Conflicts(conflicts) => managed.conflict_status(&conflicts),
        ApplyError::Type(error) => untyped(&error, applied, gvk),
        ApplyError::Conversion(error) => Status::internal(error),
    }
}

/// The fields of an object that one manager applied, as a configuration without name and namespace.
/// `None` if the manager has applied nothing.
pub fn extract_applied(
    types: &Types,
    root: &TypeRef,
    object: &Value,
    manager: &str,
    subresource: &str,
) -> Result<Option<Value>, ApplyError> {
    let entries = object.pointer("/metadata/managedFields").unwrap_or(&Value::Null);
    let managed = Managed::decode(entries).map_err(|error| ApplyError::Conversion(error.to_string()))?;
    let identity = Identity {
        manager: manager.to_owned(),
        applied: true,
        version: String::new(),
        subresource: subresource.to_owned(),
    };
    let Some(owned) = managed.managers.get(&identity.key()) else { return Ok(None) };
    Ok(Some(extract(types, root, object, &owned.set.leaves(), false)?))
}

/// The manager's name: the client's `fieldManager`, else its user agent up to the first `/` or
/// control character, cut to the allowed length.
pub fn manager_name(field_manager: &str, user_agent: &str) -> String {
    if !field_manager.is_empty() {
        return field_manager.to_owned();
    }
    let name = user_agent.split('/').next().unwrap_or_default();
    let mut end = 0;
    for (at, c) in name.char_indices() {
        let next = at + c.len_utf8();
        // The first control character ends the name.
        if next > FIELD_MANAGER_BYTES_MAX || c.is_control() {
            break;
        }
        end = next;
    }
    name[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Schema;

    fn manager() -> FieldManager {
        let schema =
            Schema::parse_crd(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "a": {"type": "integer"}, "b": {"type": "integer"},
                "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}}}
            }}}}))
            .expect("parses");
        let types = Arc::new(Types::from_schema(&schema).with_object_meta());
        FieldManager::unconverted([("g/v1".to_owned(), types)])
    }

    fn object(spec: Value) -> Value {
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x"}, "spec": spec})
    }

    fn write(manager: &str) -> Write<'_> {
        Write { manager, subresource: "", now: "2026-01-01T00:00:00Z" }
    }

    fn gvk() -> GroupVersionKind {
        GroupVersionKind::new("g", "v1", "K")
    }

    #[test]
    fn an_apply_removes_only_fields_without_other_owners() {
        let manager = manager();
        let first =
            manager.apply(None, &object(json!({"a": 1, "b": 1})), &gvk(), write("one"), false).expect("applies");
        let second =
            manager.apply(Some(&first), &object(json!({"a": 1})), &gvk(), write("two"), false).expect("applies");
        let third = manager.apply(Some(&second), &object(json!({})), &gvk(), write("one"), false).expect("applies");
        assert_eq!(third["spec"], json!({"a": 1}));
    }

    #[test]
    fn a_different_value_of_another_managers_field_conflicts() {
        let manager = manager();
        let first = manager.apply(None, &object(json!({"a": 1})), &gvk(), write("one"), false).expect("applies");
        let refused =
            manager.apply(Some(&first), &object(json!({"a": 2})), &gvk(), write("two"), false).expect_err("conflicts");
        assert_eq!(refused.code, 409);
        assert_eq!(refused.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.a");
        let forced =
            manager.apply(Some(&first), &object(json!({"a": 2})), &gvk(), write("two"), true).expect("applies");
        assert_eq!(forced["spec"]["a"], 2);
    }

    #[test]
    fn an_update_owns_what_it_changed() {
        let manager = manager();
        let mut created = object(json!({"a": 1, "b": 1}));
        manager.update(None, &mut created, write("creator"));
        let mut changed = created.clone();
        changed["spec"]["b"] = json!(2);
        manager.update(Some(&created), &mut changed, write("editor"));
        let entries = changed["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1]["fieldsV1"], json!({"f:spec": {"f:b": {}}}));
    }

    #[test]
    fn an_unchanged_apply_changes_nothing() {
        let manager = manager();
        let first = manager
            .apply(None, &object(json!({"items": [{"name": "x", "v": 1}]})), &gvk(), write("one"), false)
            .expect("applies");
        let later = Write { now: "2026-01-02T00:00:00Z", ..write("one") };
        let again = manager
            .apply(Some(&first), &object(json!({"items": [{"name": "x", "v": 1}]})), &gvk(), later, false)
            .expect("applies");
        assert_eq!(first, again);
    }
}
