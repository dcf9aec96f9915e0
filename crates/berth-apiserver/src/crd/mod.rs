//! Custom resources: rows of the table that are added and removed with CustomResourceDefinition
//! objects.
//!
//! No controller runs between a definition and its row. The write that stores a definition decides
//! whether its names are accepted, and the row exists when the client gets the response.

mod accepted;
mod cleanup;
mod custom_kind;
mod webhook_converter;

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_kinds::crd::{GROUP, PLURAL, Rules, definition, is_definitions, row};
use berth_store::Write;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use crate::kind_hooks::{Commit, KindHook};
use crate::objects;
use crate::own_requests::OwnRequests;
use crate::registry::{Origin, ResourceInfo, SchemaSource, VersionInfo};
use crate::state::{Kinds, State};
use crate::strategy::StoredObjects;
use webhook_converter::WebhookConverter;

pub(crate) use accepted::Accepted;
pub use custom_kind::Converter;
pub(crate) use custom_kind::CustomKind;

/// Adds and removes the rows of definitions, and deletes the objects of a deleted definition.
pub(crate) struct Definitions {
    state: Arc<State>,
    /// Converters in this process, by group and kind. They replace the webhooks of their kinds.
    converters: BTreeMap<(String, String), Arc<dyn Converter>>,
}

impl KindHook for Definitions {
    /// Definitions, and the kinds that they define.
    fn is_about(&self, row: &ResourceInfo) -> bool {
        is_definitions(row) || matches!(row.origin, Origin::Custom(_))
    }

    fn after_commit<'a>(&'a self, requests: &'a dyn OwnRequests, commit: Commit<'a>) -> BoxFuture<'a, ()> {
        if let Origin::Custom(name) = &commit.row.origin {
            // Reading the definition costs more than the whole deletion of an object, so skip it
            // unless the kind is known to terminate. If the deletion of the definition becomes
            // known only later, its own follow-up looks for the last object.
            if commit.gone && self.state.kinds().is_terminating(commit.row) {
                return cleanup::finish(&self.state, name).boxed();
            }
            return ready(()).boxed();
        }
        if commit.gone {
            uninstall(&self.state, commit.object);
        } else {
            self.install(commit.object);
            if meta::deletion_timestamp(commit.object).is_some() {
                return cleanup::delete_objects(&self.state, requests, commit.object).boxed();
            }
        }
        // Other definitions may wait for names that this one has released.
        self.recheck_names(commit.object).boxed()
    }
}

impl Definitions {
    /// Installs the rows of all stored definitions.
    pub(crate) fn load(state: Arc<State>, converters: BTreeMap<(String, String), Arc<dyn Converter>>) -> Definitions {
        let definitions = Definitions { state, converters };
        for definition in definitions.state.objects.list(GROUP, PLURAL, None) {
            definitions.install(&definition);
        }
        definitions
    }

    /// Checks again the names of the definitions in the same group that lack an accepted name.
    async fn recheck_names(&self, changed: &Value) {
        let group = changed["spec"]["group"].as_str().unwrap_or_default();
        for name in self.state.objects.definitions_lacking_names(group, meta::name(changed)) {
            let key = objects::key(GROUP, PLURAL, "", &name);
            let Some(record) = self.state.store().get(&key) else { continue };
            let current = record.value();
            let registry = self.state.registry();
            let taken = self.state.objects.names_in_the_way(&current).with_builtin(&current, &registry);
            let mut updated = current.as_ref().clone();
            let now = self.state.timestamp();
            definition::set_status(&mut updated, &taken, now.as_str().unwrap_or_default());
            if updated == *current {
                continue;
            }
            let write = Write::Update { key, expected: record.revision, value: updated };
            // On a conflict, the other write has checked the names.
            if let Ok(committed) = self.state.commit(write).await {
                self.install(&committed.value);
            }
        }
    }

    fn install(&self, object: &Value) {
        if !definition::is_accepted(object) {
            return;
        }
        let row = match row::row_of(object) {
            Ok(row) => row,
            Err(error) => {
                tracing::warn!(name = meta::name(object), %error, "a stored CustomResourceDefinition cannot be served");
                return;
            }
        };
        let key = (row.group.clone(), row.plural.clone());
        let terminating = meta::deletion_timestamp(object).is_some();
        // No schema change is newer than the definition itself.
        let revision = meta::resource_version(object).parse().unwrap_or_else(|_| self.state.store().revision());
        let kinds = self.state.kinds();
        if let (Some(old), Some(_)) = (kinds.registry.get(&key.0, &key.1), kinds.custom.get(&key))
            && same_schemas(old, &row)
            && kinds.custom[&key].conversion == object["spec"]["conversion"]
        {
            // Only status or names changed, not schemas or conversion: keep `since` and the
            // converter.
            let custom = &kinds.custom[&key];
            let custom = Arc::new(CustomKind {
                since: custom.since,
                revision,
                terminating,
                converter: custom.converter.clone(),
                conversion: custom.conversion.clone(),
                rules: custom.rules.clone(),
            });
            self.state.change_kinds(|kinds| put(kinds, row, custom));
            return;
        }
        let rules: BTreeMap<String, Rules> = row
            .versions
            .iter()
            .filter_map(|version| match &version.schema {
                SchemaSource::Custom(custom) => Some((version.name.clone(), Rules::compile(&custom.schema)?)),
                _ => None,
            })
            .collect();
        let rules = Arc::new(rules);
        let conversion = object["spec"]["conversion"].clone();
        // A converter in the process replaces the webhook of its kind.
        let own = self.converters.get(&(row.group.clone(), row.kind.clone())).cloned();
        let converter = own.or_else(|| {
            let webhook = WebhookConverter::new(&conversion, self.state.objects.clone());
            (conversion["strategy"] == "Webhook").then(|| Arc::new(webhook) as Arc<dyn Converter>)
        });
        let (group, kind) = (row.group.clone(), row.kind.clone());
        let custom = Arc::new(CustomKind { since: revision, revision, terminating, converter, conversion, rules });
        self.state.change_kinds(|kinds| put(kinds, row, custom));
        // Afterwards, so that no request makes the types anew from the row that was replaced.
        self.state.forget_types(&group, &kind);
    }
}

/// Adds or replaces the row of a definition. The row stays if it was made from a later write: two
/// writes of a definition may end in any order, because a large schema takes longer to compile.
fn put(kinds: &mut Kinds, row: ResourceInfo, custom: Arc<CustomKind>) {
    let key = (row.group.clone(), row.plural.clone());
    let own = kinds.registry.get(&key.0, &key.1).is_some_and(|known| known.origin == row.origin);
    if own && kinds.custom.get(&key).is_some_and(|known| known.revision > custom.revision) {
        return;
    }
    kinds.custom.insert((row.group.clone(), row.plural.clone()), custom);
    Arc::make_mut(&mut kinds.registry).insert(row);
}

fn same_schemas(a: &ResourceInfo, b: &ResourceInfo) -> bool {
    let same = |(a, b): (&VersionInfo, &VersionInfo)| {
        let same_schema = match (&a.schema, &b.schema) {
            (SchemaSource::Custom(a), SchemaSource::Custom(b)) => a.text() == b.text(),
            _ => false,
        };
        a.name == b.name && same_schema
    };
    a.storage_version == b.storage_version
        && a.versions.len() == b.versions.len()
        && a.versions.iter().zip(&b.versions).all(same)
}

fn uninstall(state: &State, object: &Value) {
    let group = object["spec"]["group"].as_str().unwrap_or_default().to_owned();
    let plural = object["spec"]["names"]["plural"].as_str().unwrap_or_default().to_owned();
    state.change_kinds(|kinds| {
        // The row may be another definition's, if this one's names were never accepted.
        let is_own = kinds
            .registry
            .get(&group, &plural)
            .is_some_and(|row| row.origin == Origin::Custom(meta::name(object).to_owned()));
        if is_own {
            Arc::make_mut(&mut kinds.registry).remove(&group, &plural);
            kinds.custom.remove(&(group.clone(), plural.clone()));
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(revision: u64, kind: &str) -> Value {
        let mut object = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "boats.example.com", "resourceVersion": revision.to_string()},
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "boats", "singular": "boat", "kind": "Boat", "listKind": "BoatList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "description": kind}}}],
            },
            "status": {"conditions": [{"type": "NamesAccepted", "status": "True"}, {"type": "Established", "status": "True"}]},
        });
        object["status"]["acceptedNames"] = object["spec"]["names"].clone();
        object
    }

    #[test]
    fn a_definition_whose_compilation_ends_late_does_not_replace_its_update() {
        let clock: crate::clock::Clock = Arc::new(|| jiff::Timestamp::UNIX_EPOCH);
        let state = Arc::new(State::new(Arc::new(berth_store::MemoryStore::new()), clock, 1));
        let definitions = Definitions { state: state.clone(), converters: BTreeMap::new() };
        let served = || match &state.registry().get("example.com", "boats").expect("served").versions[0].schema {
            SchemaSource::Custom(custom) => custom.text().to_owned(),
            _ => String::new(),
        };
        definitions.install(&definition(7, "new"));
        definitions.install(&definition(5, "old"));
        assert!(served().contains("new"), "{}", served());
        definitions.install(&definition(9, "newest"));
        assert!(served().contains("newest"), "{}", served());
    }
}
