//! Who owns whom, over all kinds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Finalizer of owners that wait for their dependents to go first.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of owners whose dependents are to be set free.
pub const ORPHAN: &str = "orphan";

/// What is known of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its kind: position in the list of kinds.
    pub kind: usize,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its owners.
    pub owners: Vec<Owner>,
    /// Is it being deleted?
    pub is_deleting: bool,
    /// Must its dependents go first?
    pub waits_for_dependents: bool,
    /// Are its dependents to be set free?
    pub orphans_dependents: bool,
}

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// `group/version` or `version`.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Does the dependent hold the owner in foreground deletion?
    pub blocks: bool,
}

impl Record {
    /// Does the object hold this owner of its in foreground deletion?
    pub fn holds(&self, owner: &str) -> bool {
        self.owners.iter().any(|known| known.uid == owner && known.blocks)
    }

    /// Reads an object's metadata.
    pub fn new(kind: usize, meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
        let owner = |reference: &OwnerReference| Owner {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
            blocks: reference.block_owner_deletion == Some(true),
        };
        Self {
            kind,
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            owners: meta.owner_references.iter().flatten().map(owner).collect(),
            is_deleting: meta.deletion_timestamp.is_some(),
            waits_for_dependents: has(FOREGROUND),
            orphans_dependents: has(ORPHAN),
        }
    }
}

/// All objects by uid, with their dependents.
#[derive(Debug, Default)]
pub struct Graph {
    records: BTreeMap<String, Record>,
    dependents: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Takes in an object; returns the uids that have to be looked at.
    pub fn set(&mut self, uid: &str, record: Record) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        let before = self.records.get(uid).cloned();
        let unowned = |graph: &Self, record: &Record| record.owners.iter().any(|owner| !graph.stands(&owner.uid));
        let has_new_owners = before.as_ref().is_none_or(|before| before.owners != record.owners);
        if has_new_owners {
            self.unlink(uid);
            for owner in &record.owners {
                self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
            }
            // An owner not known here may not exist at all.
            if unowned(self, &record) {
                affected.insert(uid.to_owned());
            }
            // A dependent that no longer holds its owner may set it free.
            affected.extend(before.iter().flat_map(|before| &before.owners).map(|owner| owner.uid.clone()));
        }
        let waits = |record: &Record| record.is_deleting && (record.waits_for_dependents || record.orphans_dependents);
        if waits(&record) && before.as_ref().is_none_or(|before| !waits(before)) {
            affected.insert(uid.to_owned());
        }
        self.records.insert(uid.to_owned(), record);
        affected
    }

    /// Takes in that an object is gone; returns the uids that have to be looked at.
    pub fn remove(&mut self, uid: &str) -> BTreeSet<String> {
        self.unlink(uid);
        let mut affected = self.dependents.get(uid).cloned().unwrap_or_default();
        if let Some(record) = self.records.remove(uid) {
            // An owner that other dependents hold waits for the last of them: a look at each would cost a look at all the others.
            let free = record.owners.iter().filter(|owner| !self.is_held(&owner.uid));
            affected.extend(free.map(|owner| owner.uid.clone()));
        }
        affected
    }

    /// Does the owner wait in foreground deletion for a dependent that holds it?
    fn is_held(&self, owner: &str) -> bool {
        let waits = self.get(owner).is_some_and(|it| it.is_deleting && it.waits_for_dependents);
        waits && self.dependents(owner).any(|(_, record)| record.holds(owner))
    }

    /// The record of an object.
    pub fn get(&self, uid: &str) -> Option<&Record> {
        self.records.get(uid)
    }

    /// Is the object there and not on its way out?
    fn stands(&self, uid: &str) -> bool {
        self.records.get(uid).is_some_and(|record| !(record.is_deleting && record.waits_for_dependents))
    }

    /// Dependents of an object, in uid order.
    pub fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a String, &'a Record)> + use<'a> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| Some((uid, self.records.get(uid)?)))
    }

    /// A dependent that holds this object, and with it, over others that wait in the same way, itself: all of them are being deleted
    /// and wait for their dependents, so that none of them would ever go.
    pub fn holds_in_a_circle<'a>(&'a self, uid: &'a str) -> Option<&'a str> {
        self.held_by(uid).find(|holding| {
            let mut seen = BTreeSet::from([*holding]);
            let mut open = vec![*holding];
            while let Some(at) = open.pop() {
                if at == uid {
                    return true;
                }
                open.extend(self.held_by(at).filter(|next| seen.insert(next)));
            }
            false
        })
    }

    /// The dependents that wait for their own and hold this object.
    fn held_by<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a str> {
        let holds = move |record: &Record| {
            let waits = record.is_deleting && record.waits_for_dependents;
            waits && record.holds(uid)
        };
        self.dependents(uid).filter(move |(_, record)| holds(record)).map(|(dependent, _)| dependent.as_str())
    }

    /// Objects of a kind that are not in `kept`: what a fresh list shows to be gone.
    pub fn missing(&self, kind: usize, kept: &BTreeSet<String>) -> Vec<String> {
        let of_kind = self.records.iter().filter(|(_, record)| record.kind == kind);
        of_kind.filter(|(uid, _)| !kept.contains(*uid)).map(|(uid, _)| uid.clone()).collect()
    }

    fn unlink(&mut self, uid: &str) {
        let owners = self.records.get(uid).map(|record| record.owners.clone()).unwrap_or_default();
        for owner in owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(owners: &[&str]) -> Record {
        let owner = |uid: &&str| Owner { uid: (*uid).to_owned(), ..Owner::default() };
        Record { owners: owners.iter().map(owner).collect(), ..Record::default() }
    }

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes() {
        let mut graph = Graph::default();
        assert_eq!(graph.set("job", record(&[])), set(&[]));
        assert_eq!(graph.set("pod", record(&["job"])), set(&[]));
        assert_eq!(graph.remove("job"), set(&["pod"]));
    }

    #[test]
    fn a_dependent_whose_owner_is_unknown_is_looked_at_once() {
        let mut graph = Graph::default();
        assert_eq!(graph.set("pod", record(&["job"])), set(&["pod"]));
        assert_eq!(graph.set("pod", record(&["job"])), set(&[]));
    }

    #[test]
    fn a_circle_is_found_when_all_of_it_waits() {
        let waiting = |owner: &str, blocks: bool| {
            let owners = vec![Owner { uid: owner.to_owned(), blocks, ..Owner::default() }];
            Record { owners, is_deleting: true, waits_for_dependents: true, ..Record::default() }
        };
        let mut graph = Graph::default();
        graph.set("a", waiting("c", true));
        graph.set("b", waiting("a", true));
        graph.set("c", Record { is_deleting: false, ..waiting("b", true) });
        graph.set("leaf", waiting("a", true));
        assert_eq!(graph.holds_in_a_circle("a"), None, "c has not begun to wait");
        graph.set("c", waiting("b", true));
        assert_eq!(graph.holds_in_a_circle("a"), Some("b"));
        assert_eq!(graph.holds_in_a_circle("c"), Some("a"));
        assert_eq!(graph.holds_in_a_circle("leaf"), None);
        graph.set("c", waiting("b", false));
        assert_eq!(graph.holds_in_a_circle("a"), None, "the circle is open");
        graph.set("self", waiting("self", true));
        assert_eq!(graph.holds_in_a_circle("self"), Some("self"));
    }

    #[test]
    fn an_owner_that_waits_is_looked_at_when_the_last_that_holds_it_goes() {
        let holding = |owner: &str| {
            let mut holding = record(&[owner]);
            holding.owners[0].blocks = true;
            holding
        };
        let mut graph = Graph::default();
        graph.set("job", record(&[]));
        for pod in ["one", "two", "three"] {
            graph.set(pod, holding("job"));
        }
        graph.set("free", record(&["job"]));
        graph.set("job", Record { is_deleting: true, waits_for_dependents: true, ..record(&[]) });
        assert_eq!(graph.remove("two"), set(&[]));
        assert_eq!(graph.remove("one"), set(&[]));
        assert_eq!(graph.remove("three"), set(&["job"]));
    }

    #[test]
    fn an_owner_that_waits_is_looked_at_when_a_dependent_goes() {
        let mut graph = Graph::default();
        graph.set("job", record(&[]));
        graph.set("pod", record(&["job"]));
        let waiting = Record { is_deleting: true, waits_for_dependents: true, ..record(&[]) };
        assert_eq!(graph.set("job", waiting), set(&["job"]));
        assert_eq!(graph.remove("pod"), set(&["job"]));
    }
}
