//! Who owns what after an update or an apply: the core of server-side apply.
//!
//! Managers are named by opaque texts here; what a name is made of and how sets are kept in an object is the business of
//! [`super::managed`]. Sets are in the version the manager wrote in, so the updater converts between versions where
//! the caller knows how.

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

/// What one manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The fields.
    pub set: Set,
    /// The version the fields are named in.
    pub version: String,
    /// Whether the manager applied (and not updated).
    pub applied: bool,
}

/// All managers of an object.
pub type Managers = BTreeMap<String, Owned>;

/// What changed between two states: per manager the fields that only one of them has, in the later version.
pub fn managers_difference(before: &Managers, after: &Managers) -> Managers {
    let mut changed = Managers::new();
    for (name, old) in before {
        let new = match after.get(name) {
            None => old.clone(),
            // Sets of different versions cannot be compared.
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

/// One field two managers want.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Who owns it.
    pub manager: String,
    /// The field.
    pub path: Vec<PathElement>,
}

/// The text of conflicts: by manager, then field by field.
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

/// Why an update or apply was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Others own the fields.
    #[error("{}", conflict_text(.0))]
    Conflicts(Vec<Conflict>),
    /// An object does not have its type.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// An object cannot be converted between versions.
    #[error("{0}")]
    Conversion(String),
}

/// Why a conversion failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversionError {
    /// The version is not served any more; managers of that version are forgotten.
    NoSuchVersion,
    /// Anything else; the request fails.
    Failed(String),
}

/// The types of a version, and its outermost one.
#[derive(Clone, Debug)]
pub struct Typing {
    /// The types.
    pub types: Arc<Types>,
    /// The outermost one.
    pub root: TypeRef,
}

/// What the updater asks of its surroundings.
pub trait Versions {
    /// The types of a version.
    fn typing(&self, version: &str) -> Result<Typing, ConversionError>;

    /// The object in another version.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConversionError>;
}

/// Fields that are never owned, per version.
#[derive(Clone, Debug)]
pub enum Ignored {
    /// These and everything below them.
    Fields(Set),
    /// Everything a pattern does not keep.
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

/// Computes ownership.
pub struct Updater<'a> {
    /// Types and conversion.
    pub versions: &'a dyn Versions,
    /// Fields that are never owned, per version.
    pub ignored: &'a BTreeMap<String, Ignored>,
    /// Whether an apply that changes nothing answers with the unchanged object instead of nothing.
    pub return_unchanged: bool,
}

/// An object in a version.
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

    /// `None` if the version is gone. Nothing is copied for the version the object is in.
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

    /// The object in a version that must be there.
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

    /// Rewrites sets that do not fit the schema any more, and forgets managers of versions that are gone.
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

    /// Compares old and new in every manager's version (`own` is the comparison in the new object's); takes from the others what changed, or reports them.
    fn take(
        &self,
        old: Versioned<'_>,
        new: Versioned<'_>,
        own: Comparison,
        mut managers: Managers,
        manager: &str,
        force: bool,
    ) -> Result<(Managers, Comparison), ApplyError> {
        // Per version: what changed, and what went.
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

    /// What an update within one version changes, and what of it it sets (`never` aside) if nothing goes and nobody but
    /// its manager owns any of it: then all other owners stay as they are.
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
            // A set that does not fit the schema any more is rewritten.
            if takes || reconcile(&typing.types, &typing.root, live, &owned.set)?.is_some() {
                return Ok((comparison, None));
            }
        }
        Ok((comparison, Some(changed)))
    }

    /// What the creation of an object sets, `never` aside, as `fieldsV1` text.
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

    /// An update replaces the object: the manager takes over what changed, and only that.
    pub fn update(
        &self,
        live: Versioned<'_>,
        new: Versioned<'_>,
        managers: &Managers,
        manager: &str,
    ) -> Result<Managers, ApplyError> {
        self.update_compared(live, new, None, managers, manager)
    }

    /// The same when it is known what changed between two objects of one version.
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

    /// An apply says everything its manager wants: it owns what it sends, and what it no longer sends goes away
    /// unless others own it. The object is `None` if nothing changes.
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
        // Order counts here, though nobody owns it.
        let unchanged = equal_values(&live_here, &pruned);
        Ok(((!unchanged || self.return_unchanged).then_some(pruned), managers))
    }

    /// Removes what the last apply owned and this one does not, unless somebody else owns it.
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

    /// Puts back what somebody owns. The version of the pruned object comes first, so that fields that other versions
    /// need to be converted are there again.
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

    /// What a manager's set names of the live object, for extract-and-apply.
    pub fn extracted(&self, live: Versioned<'_>, owned: &Owned, with_keys: bool) -> Result<Value, ApplyError> {
        let typing = self.typing(&owned.version)?;
        let object = self
            .convert(live, &owned.version)?
            .ok_or_else(|| failed(ConversionError::NoSuchVersion, &owned.version))?;
        Ok(extract(&typing.types, &typing.root, &object, &owned.set.leaves(), with_keys)?)
    }
}

/// Puts back what nobody owned below something that was removed: the manager never said it wanted that gone.
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
