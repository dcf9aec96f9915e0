//! The core of server-side apply: computes field owners after an update or an apply.
//!
//! Managers have opaque names here; [`super::managed`] defines the names and how sets are stored in
//! an object. A manager's set uses the version that the manager wrote in, so the updater converts
//! between versions through the caller's [`Versions`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::compare::{Comparison, compare};
use super::created::created_fields;
use super::merge::merge;
use super::path::{PathElement, equal_values, path_text};
use super::reconcile::{reconcile, with_named_fields};
use super::remove::{extract, remove};
use super::set::{Pattern, Set};
use super::types::{TypeRef, Types};
use super::walk::{TypeError, to_set, validate};

/// The fields that one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The fields.
    pub set: Set,
    /// The version whose field names the set uses.
    pub version: String,
    /// True if the manager applied, false if it updated.
    pub applied: bool,
}

/// All managers of an object.
pub type Managers = BTreeMap<String, Owned>;

/// The difference of two states: per manager, the fields that only one state has, in the later
/// version.
pub fn managers_difference(before: &Managers, after: &Managers) -> Managers {
    let mut changed = Managers::new();
    for (name, old) in before {
        let new = match after.get(name) {
            None => old.clone(),
            // Sets in different versions cannot be compared.
            Some(new) if new.version != old.version => new.clone(),
            Some(new) => Owned { set: new.set.difference(&old.set).union(old.set.difference(&new.set)), ..new.clone() },
        };
        if !new.set.is_empty() {
            changed.insert(name.clone(), new);
        }
    }
    changed.extend(
        after.iter().filter(|(name, _)| !before.contains_key(*name)).map(|(name, new)| (name.clone(), new.clone())),
    );
    changed
}

/// A field that two managers want to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The manager that owns the field.
    pub manager: String,
    /// The field.
    pub path: Vec<PathElement>,
}

/// The message of a list of conflicts, ordered by manager and field.
pub fn conflict_text(conflicts: &[Conflict]) -> String {
    let mut by_manager: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for conflict in conflicts {
        by_manager.entry(&conflict.manager).or_default().push(path_text(&conflict.path));
    }
    let lines: Vec<String> = by_manager
        .into_iter()
        .flat_map(|(manager, paths)| {
            let head = format!("conflicts with {}:", crate::field::quote(manager));
            std::iter::once(head).chain(paths.into_iter().map(|path| format!("- {path}")))
        })
        .collect();
    lines.join("\n")
}

/// Why an update or apply was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own the fields.
    #[error("{}", conflict_text(.0))]
    Conflicts(Vec<Conflict>),
    /// An object does not match its type.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// An object cannot be converted between versions.
    #[error("{0}")]
    Conversion(String),
}

/// Why a conversion failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversionError {
    /// The version is no longer served; managers of that version are dropped.
    NoSuchVersion,
    /// Any other failure; the request fails.
    Failed(String),
}

/// The types of a version and the reference to its root type.
#[derive(Clone, Debug)]
pub struct Typing {
    /// The types.
    pub types: Arc<Types>,
    /// The root type.
    pub root: TypeRef,
}

/// Access to types and conversion, which the caller provides.
pub trait Versions {
    /// The types of a version.
    fn typing(&self, version: &str) -> Result<Typing, ConversionError>;

    /// Converts the object to another version.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConversionError>;
}

/// Fields that are never owned, per version.
#[derive(Clone, Debug)]
pub enum Ignored {
    /// These fields and everything below them.
    Fields(Set),
    /// Every field that the pattern does not keep.
    AllBut(Pattern),
}

impl Ignored {
    fn filter(&self, set: &Set) -> Set {
        match self {
            Ignored::Fields(fields) => set.recursive_difference(fields),
            Ignored::AllBut(pattern) => set.filtered(pattern),
        }
    }

    fn compare(&self, comparison: Comparison) -> Comparison {
        match self {
            Ignored::Fields(fields) => comparison.excluding(fields),
            Ignored::AllBut(pattern) => comparison.filtered(pattern),
        }
    }
}

/// Computes field ownership.
pub struct Updater<'a> {
    /// Types and conversion.
    pub versions: &'a dyn Versions,
    /// Fields that are never owned, per version.
    pub ignored: &'a BTreeMap<String, Ignored>,
    /// True if an apply that changes nothing returns the unchanged object instead of `None`.
    pub return_unchanged: bool,
}

/// An object and the version it is in.
#[derive(Clone, Copy, Debug)]
pub struct Versioned<'a> {
    /// The object.
    pub object: &'a Value,
    /// The version it is in.
    pub version: &'a str,
}

impl Updater<'_> {
    fn typing(&self, version: &str) -> Result<Typing, ApplyError> {
        self.versions.typing(version).map_err(|error| failed(error, version))
    }

    /// Converts the object to a version. Returns `None` if the version is no longer served. Does
    /// not copy an object that already has the version.
    fn convert<'v>(&self, object: Versioned<'v>, to: &str) -> Result<Option<Cow<'v, Value>>, ApplyError> {
        if object.version == to {
            return Ok(Some(Cow::Borrowed(object.object)));
        }
        match self.versions.convert(object.object, object.version, to) {
            Ok(value) => Ok(Some(Cow::Owned(value))),
            Err(ConversionError::NoSuchVersion) => Ok(None),
            Err(error) => Err(failed(error, to)),
        }
    }

    /// Converts the object to a version that must be served.
    fn converted(&self, object: Value, from: &str, to: &str) -> Result<Value, ApplyError> {
        if from == to {
            return Ok(object);
        }
        let converted = self.convert(Versioned { object: &object, version: from }, to)?;
        converted.map(Cow::into_owned).ok_or_else(|| failed(ConversionError::NoSuchVersion, to))
    }

    fn comparison(&self, old: &Value, new: &Value, version: &str) -> Result<Comparison, ApplyError> {
        let typing = self.typing(version)?;
        let comparison = compare(&typing.types, &typing.root, old, new)?;
        Ok(match self.ignored.get(version) {
            Some(ignored) => ignored.compare(comparison),
            None => comparison,
        })
    }

    /// Rewrites sets that no longer fit the schema, and drops managers of versions that are no
    /// longer served.
    fn reconciled(&self, live: Versioned<'_>, managers: &Managers) -> Result<Managers, ApplyError> {
        let mut result = Managers::new();
        for (name, owned) in managers {
            let typing = match self.versions.typing(&owned.version) {
                Ok(typing) => typing,
                Err(ConversionError::NoSuchVersion) => continue,
                Err(error) => return Err(failed(error, &owned.version)),
            };
            let Some(object) = self.convert(live, &owned.version)? else { continue };
            let owned = match reconcile(&typing.types, &typing.root, &object, &owned.set)? {
                Some(set) => Owned { set, ..owned.clone() },
                None => owned.clone(),
            };
            result.insert(name.clone(), owned);
        }
        Ok(result)
    }

    /// Compares old and new in every manager's version (`own` is the comparison in the new object's
    /// version). Removes changed fields from other managers, or reports them as conflicts.
    fn take(
        &self,
        old: Versioned<'_>,
        new: Versioned<'_>,
        own: Comparison,
        mut managers: Managers,
        manager: &str,
        force: bool,
    ) -> Result<(Managers, Comparison), ApplyError> {
        // Per version: the changed fields and the removed fields.
        let mut comparisons: BTreeMap<String, Option<(Set, Set)>> = BTreeMap::new();
        let parts = |comparison: &Comparison| {
            (comparison.modified.clone().union(comparison.added.clone()), comparison.removed.clone())
        };
        comparisons.insert(new.version.to_owned(), Some(parts(&own)));
        let mut conflicts = Vec::new();
        let mut taken: Vec<(String, Set)> = Vec::new();
        let mut forgotten = Vec::new();
        for (name, owned) in managers.iter().filter(|(name, _)| name.as_str() != manager) {
            if !comparisons.contains_key(&owned.version) {
                let comparison = self.comparison_between(old, new, &owned.version)?;
                comparisons.insert(owned.version.clone(), comparison.as_ref().map(parts));
            }
            let Some(Some((changed, removed))) = comparisons.get(&owned.version) else {
                forgotten.push(name.clone());
                continue;
            };
            let mut left = None;
            if owned.set.intersects(changed) {
                let wanted = owned.set.intersection(changed);
                left = Some(owned.set.difference(&wanted));
                conflicts.extend(wanted.paths().into_iter().map(|path| Conflict { manager: name.clone(), path }));
            }
            if !removed.is_empty() {
                left = Some(left.as_ref().unwrap_or(&owned.set).recursive_difference(removed));
            }
            taken.extend(left.map(|left| (name.clone(), left)));
        }
        if !force && !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(conflicts));
        }
        for name in forgotten {
            managers.remove(&name);
        }
        for (name, left) in taken {
            if let Some(owned) = managers.get_mut(&name) {
                owned.set = left;
            }
        }
        managers.retain(|name, owned| name == manager || !owned.set.is_empty());
        Ok((managers, own))
    }

    fn comparison_between(
        &self,
        old: Versioned<'_>,
        new: Versioned<'_>,
        version: &str,
    ) -> Result<Option<Comparison>, ApplyError> {
        let (Some(old), Some(new)) = (self.convert(old, version)?, self.convert(new, version)?) else {
            return Ok(None);
        };
        match self.versions.typing(version) {
            Err(ConversionError::NoSuchVersion) => Ok(None),
            _ => self.comparison(&old, &new, version).map(Some),
        }
    }

    /// The changes of an update within one version, and the fields it sets (without `never`), if it
    /// removes no field and no other manager owns a field it sets. All other owners then stay
    /// unchanged.
    pub(super) fn only_adds(
        &self,
        live: &Value,
        new: &Value,
        managers: &Managers,
        manager: &str,
        never: &Set,
    ) -> Result<(Comparison, Option<Set>), ApplyError> {
        let version = crate::meta::api_version(new);
        let comparison = self.comparison(live, new, version)?;
        let Comparison { added, modified, removed } = &comparison;
        if !removed.difference(never).is_empty() {
            return Ok((comparison, None));
        }
        let changed = modified.clone().union(added.clone()).difference(never);
        let typing = self.typing(version)?;
        for (name, owned) in managers {
            let takes = name != manager && owned.set.intersects(&changed);
            // A set that no longer fits the schema must be rewritten.
            if takes || reconcile(&typing.types, &typing.root, live, &owned.set)?.is_some() {
                return Ok((comparison, None));
            }
        }
        Ok((comparison, Some(changed)))
    }

    /// The fields that the creation of an object sets, without `never`, as `fieldsV1` text.
    pub(super) fn created(&self, new: &Value, never: &Set) -> Result<String, ApplyError> {
        let version = crate::meta::api_version(new);
        let typing = self.typing(version)?;
        let written = |ignored| created_fields(&typing.types, &typing.root, new, never, ignored);
        Ok(match self.ignored.get(version) {
            None => written(None)?,
            Some(Ignored::Fields(fields)) => written(Some(fields))?,
            Some(Ignored::AllBut(pattern)) => {
                let set = Set::from_fields_v1_text(&written(None)?);
                let set = set.map_err(|error| ApplyError::Conversion(error.to_string()))?;
                let mut text = String::new();
                set.filtered(pattern).write_fields_v1(&mut text);
                text
            }
        })
    }

    /// Records an update, which replaces the object: the manager takes over the changed fields
    /// only.
    pub fn update(
        &self,
        live: Versioned<'_>,
        new: Versioned<'_>,
        managers: &Managers,
        manager: &str,
    ) -> Result<Managers, ApplyError> {
        self.update_compared(live, new, None, managers, manager)
    }

    /// Records an update whose comparison, within one version, is already known.
    pub(super) fn update_compared(
        &self,
        live: Versioned<'_>,
        new: Versioned<'_>,
        compared: Option<Comparison>,
        managers: &Managers,
        manager: &str,
    ) -> Result<Managers, ApplyError> {
        let managers = self.reconciled(live, managers)?;
        let compared = match compared {
            Some(compared) => compared,
            None => self.comparison_between(live, new, new.version)?.unwrap_or_default(),
        };
        let (mut managers, comparison) = self.take(live, new, compared, managers, manager, true)?;
        let before = managers.remove(manager).map(|owned| owned.set).unwrap_or_default();
        let mut set = before.difference(&comparison.removed).union(comparison.modified).union(comparison.added);
        if let Some(ignored) = self.ignored.get(new.version) {
            set = ignored.filter(&set);
        }
        if !set.is_empty() {
            managers.insert(manager.to_owned(), Owned { set, version: new.version.to_owned(), applied: false });
        }
        Ok(managers)
    }

    /// Applies a configuration, which names all fields the manager wants. The manager owns the
    /// fields it sends; a field it no longer sends is removed unless another manager owns it. The
    /// object is `None` if nothing changes.
    pub fn apply(
        &self,
        live: Versioned<'_>,
        applied: Versioned<'_>,
        managers: &Managers,
        manager: &str,
        force: bool,
    ) -> Result<(Option<Value>, Managers), ApplyError> {
        let mut managers = self.reconciled(live, managers)?;
        let version = applied.version;
        let typing = self.typing(version)?;
        validate(&typing.types, &typing.root, applied.object, false)?;
        let live_here = self.convert(live, version)?.ok_or_else(|| failed(ConversionError::NoSuchVersion, version))?;
        let merged = merge(&typing.types, &typing.root, &live_here, applied.object)?;
        let mut set = to_set(&typing.types, &typing.root, applied.object)?;
        if let Some(ignored) = self.ignored.get(version) {
            set = ignored.filter(&set);
        }
        let last = managers.insert(manager.to_owned(), Owned { set, version: version.to_owned(), applied: true });
        let pruned = self.prune(merged, version, &managers, last.as_ref())?;
        let new = Versioned { object: &pruned, version };
        let compared = self.comparison_between(live, new, version)?.unwrap_or_default();
        let (mut managers, _) = self.take(live, new, compared, managers, manager, force)?;
        managers.retain(|_, owned| !owned.set.is_empty());
        // The order of list items is part of the comparison, although no manager owns it.
        let unchanged = equal_values(&live_here, &pruned);
        Ok(((!unchanged || self.return_unchanged).then_some(pruned), managers))
    }

    /// Removes fields that the last apply owned and this one omits, unless another manager owns
    /// them.
    fn prune(
        &self,
        merged: Value,
        version: &str,
        managers: &Managers,
        last: Option<&Owned>,
    ) -> Result<Value, ApplyError> {
        let Some(last) = last.filter(|last| !last.set.is_empty()) else { return Ok(merged) };
        let Some(merged_then) = self.convert(Versioned { object: &merged, version }, &last.version)? else {
            return Ok(merged);
        };
        let typing = match self.versions.typing(&last.version) {
            Ok(typing) => typing,
            Err(ConversionError::NoSuchVersion) => return Ok(merged),
            Err(error) => return Err(failed(error, &last.version)),
        };
        let named = with_named_fields(&typing.types, &typing.root, &last.set);
        let pruned = remove(&typing.types, &typing.root, &merged_then, &named)?;
        let pruned = self.add_back_owned(&merged_then, pruned, &last.version, managers)?;
        let pruned = add_back_dangling(&typing, &merged_then, &pruned, &last.set)?;
        self.converted(pruned, &last.version, version)
    }

    /// Restores fields that have an owner. The version of the pruned object comes first, so that
    /// fields that conversion to other versions needs exist again.
    fn add_back_owned(
        &self,
        merged: &Value,
        pruned: Value,
        version: &str,
        managers: &Managers,
    ) -> Result<Value, ApplyError> {
        let mut by_version: BTreeMap<&str, Set> = BTreeMap::new();
        for owned in managers.values() {
            let set = by_version.entry(&owned.version).or_default();
            *set = std::mem::take(set).union(owned.set.clone());
        }
        let mut order: Vec<(&str, Set)> = by_version.into_iter().collect();
        order.sort_by_key(|(other, _)| *other != version);
        let mut at = version.to_owned();
        let (mut merged, mut pruned) = (merged.clone(), pruned);
        for (other, owned) in order {
            let Ok(typing) = self.versions.typing(other) else { continue };
            let (Some(merged_there), Some(pruned_there)) = (
                self.convert(Versioned { object: &merged, version: &at }, other)?,
                self.convert(Versioned { object: &pruned, version: &at }, other)?,
            ) else {
                continue;
            };
            let named = |set: &Set| with_named_fields(&typing.types, &typing.root, set);
            let all = to_set(&typing.types, &typing.root, &merged_there)?;
            let left = to_set(&typing.types, &typing.root, &pruned_there)?;
            let unowned = named(&all).difference(&named(&left).union(named(&owned)));
            pruned = remove(&typing.types, &typing.root, &merged_there, &unowned)?;
            merged = merged_there.into_owned();
            other.clone_into(&mut at);
        }
        self.converted(pruned, &at, version)
    }

    /// The live fields of a manager's set, for extract-and-apply.
    pub fn extracted(&self, live: Versioned<'_>, owned: &Owned, with_keys: bool) -> Result<Value, ApplyError> {
        let typing = self.typing(&owned.version)?;
        let object = self
            .convert(live, &owned.version)?
            .ok_or_else(|| failed(ConversionError::NoSuchVersion, &owned.version))?;
        Ok(extract(&typing.types, &typing.root, &object, &owned.set.leaves(), with_keys)?)
    }
}

/// Restores fields without an owner that lie below a removed field: the manager did not request
/// their removal.
fn add_back_dangling(typing: &Typing, merged: &Value, pruned: &Value, last: &Set) -> Result<Value, ApplyError> {
    let named = |set: &Set| with_named_fields(&typing.types, &typing.root, set);
    let all = named(&to_set(&typing.types, &typing.root, merged)?);
    let left = named(&to_set(&typing.types, &typing.root, pruned)?);
    Ok(remove(&typing.types, &typing.root, merged, &all.difference(&left).intersection(&named(last)))?)
}

fn failed(error: ConversionError, version: &str) -> ApplyError {
    match error {
        ConversionError::NoSuchVersion => ApplyError::Conversion(format!("version {version} is not served")),
        ConversionError::Failed(why) => ApplyError::Conversion(why),
    }
}
