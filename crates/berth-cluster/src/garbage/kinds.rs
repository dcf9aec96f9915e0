//! The kinds that the collectors watch: built-in kinds from discovery, custom kinds from their
//! definitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::core::ApiResource;
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};

use super::definition::Definition;

/// A kind whose objects can be listed, watched and deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// True if the kind is namespaced.
    pub is_namespaced: bool,
    /// True while the API server serves the kind.
    pub is_served: bool,
}

/// The list of kinds, shared between clones. A kind keeps its position, which is its identifier.
#[derive(Clone, Default)]
pub struct Kinds {
    list: Arc<Mutex<List>>,
}

#[derive(Default)]
struct List {
    kinds: Vec<Kind>,
    positions: BTreeMap<(String, String), usize>,
}

impl Kinds {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock()
    }

    /// The kind at a position.
    pub fn get(&self, position: usize) -> Option<Kind> {
        self.lock().kinds.get(position).cloned()
    }

    /// The namespaced kinds that are served now.
    pub fn namespaced(&self) -> Vec<Kind> {
        self.lock().kinds.iter().filter(|kind| kind.is_namespaced && kind.is_served).cloned().collect()
    }

    /// The kind that an owner reference names, in any version of its group.
    pub fn of_owner(&self, api_version: &str, kind: &str) -> Option<Kind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let list = self.lock();
        list.kinds.iter().find(|known| known.resource.group == group && known.resource.kind == kind).cloned()
    }

    /// Adds a kind or marks it as served. Returns its position, and true if it was not served
    /// before.
    fn add(&self, resource: ApiResource, is_namespaced: bool) -> (usize, bool) {
        let mut list = self.lock();
        let key = (resource.group.clone(), resource.plural.clone());
        if let Some(position) = list.positions.get(&key).copied() {
            let was_served = std::mem::replace(&mut list.kinds[position].is_served, true);
            list.kinds[position].resource = resource;
            // A definition that is deleted and created again may have the other scope.
            list.kinds[position].is_namespaced = is_namespaced;
            return (position, !was_served);
        }
        let position = list.kinds.len();
        list.kinds.push(Kind { resource, is_namespaced, is_served: true });
        list.positions.insert(key, position);
        (position, true)
    }

    /// Adds the discovered kinds whose objects can be listed, watched, patched and deleted. Returns
    /// the positions of the new ones. Events are skipped: they have no owners and no dependents,
    /// and there are many of them.
    pub async fn discover(&self, client: &Client) -> Result<Vec<usize>, kube::Error> {
        let discovery = Discovery::new(client.clone()).run().await?;
        let mut found: Vec<(ApiResource, bool)> = Vec::new();
        for group in discovery.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                let can = |verb: &str| capabilities.supports_operation(verb);
                let is_collectable = can(verbs::LIST) && can(verbs::WATCH) && can(verbs::DELETE) && can(verbs::PATCH);
                if is_collectable && resource.kind != "Event" {
                    found.push((resource, capabilities.scope == Scope::Namespaced));
                }
            }
        }
        // Discovery returns kinds in random order.
        found.sort_by(|(a, _), (b, _)| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        let added = found.into_iter().map(|(resource, is_namespaced)| self.add(resource, is_namespaced));
        Ok(added.filter(|(_, is_new)| *is_new).map(|(position, _)| position).collect())
    }

    /// Adds the kind of a definition. Returns its position if it was not served before. Definitions
    /// that are not established, or are being deleted, are ignored.
    pub fn define(&self, definition: &Definition) -> Option<usize> {
        let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_established = conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Established" && condition.status == "True");
        let version = definition.spec.versions.iter().find(|v| v.storage && v.served);
        let version = version.or_else(|| definition.spec.versions.iter().find(|v| v.served))?;
        if !is_established || definition.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let names = &definition.spec.names;
        let resource = ApiResource {
            group: definition.spec.group.clone(),
            version: version.name.clone(),
            api_version: format!("{}/{}", definition.spec.group, version.name),
            kind: names.kind.clone(),
            plural: names.plural.clone(),
        };
        let (position, is_new) = self.add(resource, definition.spec.scope == "Namespaced");
        is_new.then_some(position)
    }

    /// Marks the kind of a deleted definition as not served. Returns its position; `None` if the
    /// kind is unknown.
    pub fn undefine(&self, definition: &Definition) -> Option<usize> {
        let mut list = self.lock();
        let key = (definition.spec.group.clone(), definition.spec.names.plural.clone());
        let position = list.positions.get(&key).copied()?;
        tracing::debug!(definition = definition.name_any(), "kind is no longer served");
        list.kinds[position].is_served = false;
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(scope: &str) -> Definition {
        serde_json::from_value(json!({
            "metadata": {"name": "racks.example.com"},
            "spec": {
                "group": "example.com",
                "names": {"kind": "Rack", "plural": "racks"},
                "scope": scope,
                "versions": [{"name": "v1", "served": true, "storage": true}],
            },
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_definition_created_again_has_its_new_scope() {
        let kinds = Kinds::default();
        let position = kinds.define(&definition("Namespaced")).unwrap();
        assert_eq!(kinds.namespaced().len(), 1);
        assert_eq!(kinds.undefine(&definition("Namespaced")), Some(position));
        assert_eq!(kinds.define(&definition("Cluster")), Some(position));
        assert!(!kinds.get(position).unwrap().is_namespaced);
        assert!(kinds.namespaced().is_empty());
    }
}
