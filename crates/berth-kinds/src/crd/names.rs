//! Accepts the names of a definition that no other kind of its group has.
//!
//! Names are accepted one by one: a free name is accepted, and a conflicting one keeps the
//! previously accepted name. A definition is established once all its names were accepted. It stays
//! established, regardless of the names that it requests later.

use std::collections::BTreeSet;

use berth_apimachinery::{field, meta};
use serde_json::{Map, Value, json};

use super::conditions::{self, Condition};
use crate::registry::{Origin, Registry};

/// Names of a group that a definition requests and that other kinds have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

/// The names of one definition.
#[derive(Clone, Debug, Default)]
pub struct Names {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Names {
    fn read(names: &Value) -> Names {
        let text = |field: &str| names[field].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let short_names = names["shortNames"].as_array().into_iter().flatten();
        let short_names = short_names.filter_map(Value::as_str).map(str::to_owned);
        Names {
            resources: ["plural", "singular"].into_iter().filter_map(text).chain(short_names).collect(),
            kinds: ["kind", "listKind"].into_iter().filter_map(text).collect(),
        }
    }

    /// The accepted names of a definition.
    pub fn accepted(definition: &Value) -> Names {
        Names::read(&definition["status"]["acceptedNames"])
    }
}

impl Taken {
    /// The names that `definition` requests and that were accepted for others of its group.
    /// `definition` itself is ignored.
    pub fn by<'a>(definition: &Value, others: impl IntoIterator<Item = &'a Value>) -> Taken {
        let is_other = |other: &&Value| {
            other["spec"]["group"] == definition["spec"]["group"] && meta::name(other) != meta::name(definition)
        };
        let others: Vec<Names> = others.into_iter().filter(is_other).map(Names::accepted).collect();
        Taken::from_names(definition, &others)
    }

    /// The names that `definition` requests and that `others` have.
    pub fn from_names<'a>(definition: &Value, others: impl IntoIterator<Item = &'a Names>) -> Taken {
        let wanted = Names::read(&definition["spec"]["names"]);
        let mut taken = Taken::default();
        for other in others {
            taken.resources.extend(wanted.resources.intersection(&other.resources).cloned());
            taken.kinds.extend(wanted.kinds.intersection(&other.kinds).cloned());
        }
        taken
    }

    /// Adds the names of the built-in kinds.
    pub fn with_builtin(mut self, definition: &Value, registry: &Registry) -> Taken {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let is_own = |origin: &Origin| !matches!(origin, Origin::Custom(_));
        for row in registry.rows().filter(|row| row.group == group && is_own(&row.origin)) {
            self.resources.extend([row.plural.clone(), row.singular.clone()]);
            self.resources.extend(row.short_names.iter().cloned());
            self.kinds.extend([row.kind.clone(), row.list_kind.clone()]);
        }
        self
    }
}

/// Accepts or rejects the requested names of `definition`, and writes `status.acceptedNames` and
/// the conditions `NamesAccepted` and `Established`. A definition whose names are accepted for the
/// first time is left `Installing`; see [`establish`].
pub fn accept(definition: &mut Value, taken: &Taken, now: &str) {
    let wanted = definition["spec"]["names"].as_object().cloned().unwrap_or_default();
    let mut accepted = definition["status"]["acceptedNames"].as_object().cloned().unwrap_or_default();
    let mut conflict: Option<(&str, String)> = None;
    for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let free = |name: &str| !taken.resources.contains(name);
        take(&wanted, &mut accepted, field, free).unwrap_or_else(|why| conflict = Some((reason, why)));
    }
    take_short_names(&wanted, &mut accepted, taken).unwrap_or_else(|why| conflict = Some(("ShortNamesConflict", why)));
    for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let free = |name: &str| !taken.kinds.contains(name);
        take(&wanted, &mut accepted, field, free).unwrap_or_else(|why| conflict = Some((reason, why)));
    }
    match wanted.get("categories") {
        Some(categories) => accepted.insert("categories".to_owned(), categories.clone()),
        None => accepted.remove("categories"),
    };
    for field in ["plural", "kind"] {
        accepted.entry(field).or_insert_with(|| json!(""));
    }
    let status = meta::map_mut(meta::map_mut(definition).entry("status").or_insert_with(|| json!({})));
    status.insert("acceptedNames".to_owned(), Value::Object(accepted));
    let condition = |status, reason, message| Condition { kind: "NamesAccepted", status, reason, message };
    match &conflict {
        None => conditions::set(definition, &condition("True", "NoConflicts", "no conflicts found"), now),
        Some((reason, why)) => conditions::set(definition, &condition("False", reason, why), now),
    }
    if conditions::is_true(definition, "Established") {
        return;
    }
    let (reason, message) = match conflict {
        None => ("Installing", "the initial names have been accepted"),
        Some(_) => ("NotAccepted", "not all names are accepted"),
    };
    // An earlier reason is kept while the names are not accepted.
    if conflict.is_none() || conditions::find(definition, "Established").is_none() {
        conditions::set(definition, &Condition { kind: "Established", status: "False", reason, message }, now);
    }
}

/// Sets `Established` on a definition whose names are accepted: this server needs no further
/// preparation.
pub fn establish(definition: &mut Value, now: &str) {
    if conditions::is_true(definition, "NamesAccepted") && !conditions::is_true(definition, "Established") {
        let condition = Condition {
            kind: "Established",
            status: "True",
            reason: "InitialNamesAccepted",
            message: "the initial names have been accepted",
        };
        conditions::set(definition, &condition, now);
    }
}

fn take(
    wanted: &Map<String, Value>,
    accepted: &mut Map<String, Value>,
    field: &str,
    is_free: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let name = wanted.get(field).and_then(Value::as_str).unwrap_or_default();
    let own = accepted.get(field).and_then(Value::as_str).unwrap_or_default();
    if !name.is_empty() && name != own && !is_free(name) {
        return Err(format!("{} is already in use", field::quote(name)));
    }
    if name.is_empty() {
        accepted.remove(field);
    } else {
        accepted.insert(field.to_owned(), name.into());
    }
    Ok(())
}

/// Short names are accepted only all together.
fn take_short_names(
    wanted: &Map<String, Value>,
    accepted: &mut Map<String, Value>,
    taken: &Taken,
) -> Result<(), String> {
    let texts = |names: Option<&Value>| -> Vec<String> {
        let names = names.and_then(Value::as_array).into_iter().flatten();
        names.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (new, own) = (texts(wanted.get("shortNames")), texts(accepted.get("shortNames")));
    let conflicts: Vec<String> = new
        .iter()
        .filter(|name| !own.contains(name) && taken.resources.contains(*name))
        .map(|name| format!("{} is already in use", field::quote(name)))
        .collect();
    match conflicts.as_slice() {
        [] => {}
        [one] => return Err(one.clone()),
        many => return Err(format!("[{}]", many.join(", "))),
    }
    if new.is_empty() {
        accepted.remove("shortNames");
    } else {
        accepted.insert("shortNames".to_owned(), json!(new));
    }
    Ok(())
}
