//! The ownership graph of all objects, over all kinds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// Finalizer of owners that wait until their dependents are deleted.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of owners whose dependents are to be orphaned.
pub const ORPHAN: &str = "orphan";

/// The metadata of one object that garbage collection needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The object's kind, as position in the list of kinds.
    pub kind: usize,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// `resourceVersion` at which the object was last seen; empty if unknown.
    pub version: Box<str>,
    /// The object's owner references.
    pub owners: Vec<Owner>,
    /// True if the object has a deletion timestamp.
    pub is_deleting: bool,
    /// True if the object has the finalizer [`FOREGROUND`].
    pub waits_for_dependents: bool,
    /// True if the object has the finalizer [`ORPHAN`].
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
    /// UID.
    pub uid: String,
    /// `blockOwnerDeletion`: true if the dependent blocks the owner's foreground deletion.
    pub blocks: bool,
}

impl Record {
    /// True if the object blocks the foreground deletion of the owner with this UID.
    pub fn blocks(&self, owner: &str) -> bool {
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
            version: meta.resource_version.clone().unwrap_or_default().into(),
            owners: meta.owner_references.iter().flatten().map(owner).collect(),
            is_deleting: meta.deletion_timestamp.is_some(),
            waits_for_dependents: has(FOREGROUND),
            orphans_dependents: has(ORPHAN),
        }
    }
}

/// All objects by UID, with their dependents.
#[derive(Debug, Default)]
pub struct Graph {
    records: BTreeMap<String, Record>,
    dependents: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    /// Adds or updates an object. Returns the UIDs of the objects to reconcile.
    pub fn set(&mut self, uid: &str, record: Record) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        if let Some(known) = self.records.get_mut(uid) {
            known.version.clone_from(&record.version);
            // Most changes, such as those of a status, do not change the graph.
            if *known == record {
                return affected;
            }
        }
        let before = self.records.get(uid).cloned();
        let unowned = |graph: &Self, record: &Record| record.owners.iter().any(|owner| !graph.is_present(&owner.uid));
        let has_new_owners = before.as_ref().is_none_or(|before| before.owners != record.owners);
        if has_new_owners {
            self.unlink(uid);
            for owner in &record.owners {
                self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
            }
            // An owner that is missing in the graph possibly does not exist, so the object is
            // reconciled.
            if unowned(self, &record) {
                affected.insert(uid.to_owned());
            }
            // A former owner may have waited for this dependent.
            affected.extend(before.iter().flat_map(|before| &before.owners).map(|owner| owner.uid.clone()));
        }
        let waits = |record: &Record| record.is_deleting && (record.waits_for_dependents || record.orphans_dependents);
        if waits(&record) && before.as_ref().is_none_or(|before| !waits(before)) {
            affected.insert(uid.to_owned());
        }
        self.records.insert(uid.to_owned(), record);
        affected
    }

    /// Removes a deleted object. Returns the UIDs of the objects to reconcile.
    pub fn remove(&mut self, uid: &str) -> BTreeSet<String> {
        self.unlink(uid);
        let mut affected = self.dependents.get(uid).cloned().unwrap_or_default();
        if let Some(record) = self.records.remove(uid) {
            // An owner that other dependents still block is reconciled after the last of them:
            // each reconcile scans all its dependents.
            let free = record.owners.iter().filter(|owner| !self.is_blocked(&owner.uid));
            affected.extend(free.map(|owner| owner.uid.clone()));
        }
        affected
    }

    /// True if the owner is in foreground deletion and a dependent blocks it.
    fn is_blocked(&self, owner: &str) -> bool {
        let waits = self.get(owner).is_some_and(|it| it.is_deleting && it.waits_for_dependents);
        waits && self.dependents(owner).any(|(_, record)| record.blocks(owner))
    }

    /// The record of an object.
    pub fn get(&self, uid: &str) -> Option<&Record> {
        self.records.get(uid)
    }

    /// True if the object exists and is not in foreground deletion.
    fn is_present(&self, uid: &str) -> bool {
        self.records.get(uid).is_some_and(|record| !(record.is_deleting && record.waits_for_dependents))
    }

    /// Dependents of an object, in UID order.
    pub fn dependents<'a>(&'a self, uid: &str) -> impl Iterator<Item = (&'a String, &'a Record)> + use<'a> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| Some((uid, self.records.get(uid)?)))
    }

    /// A dependent that blocks this object and that this object blocks through a chain of
    /// dependents in foreground deletion. Without intervention, none of them would ever be deleted.
    pub fn blocking_dependent_in_cycle<'a>(&'a self, uid: &'a str) -> Option<&'a str> {
        self.waiting_blockers(uid).find(|blocking| {
            let mut seen = BTreeSet::from([*blocking]);
            let mut open = vec![*blocking];
            while let Some(at) = open.pop() {
                if at == uid {
                    return true;
                }
                open.extend(self.waiting_blockers(at).filter(|next| seen.insert(next)));
            }
            false
        })
    }

    /// The dependents in foreground deletion that block this object.
    fn waiting_blockers<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a str> {
        let blocks = move |record: &Record| {
            let waits = record.is_deleting && record.waits_for_dependents;
            waits && record.blocks(uid)
        };
        self.dependents(uid).filter(move |(_, record)| blocks(record)).map(|(dependent, _)| dependent.as_str())
    }

    /// UIDs of the objects of a kind that are not in `kept`, the UIDs of a new list.
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
    fn dependents_are_reconciled_when_their_owner_is_deleted() {
        let mut graph = Graph::default();
        assert_eq!(graph.set("job", record(&[])), set(&[]));
        assert_eq!(graph.set("pod", record(&["job"])), set(&[]));
        assert_eq!(graph.remove("job"), set(&["pod"]));
    }

    #[test]
    fn a_dependent_of_an_unknown_owner_is_reconciled_once() {
        let mut graph = Graph::default();
        assert_eq!(graph.set("pod", record(&["job"])), set(&["pod"]));
        assert_eq!(graph.set("pod", record(&["job"])), set(&[]));
    }

    #[test]
    fn a_cycle_is_found_once_all_its_objects_are_in_foreground_deletion() {
        let waiting = |owner: &str, blocks: bool| {
            let owners = vec![Owner { uid: owner.to_owned(), blocks, ..Owner::default() }];
            Record { owners, is_deleting: true, waits_for_dependents: true, ..Record::default() }
        };
        let mut graph = Graph::default();
        graph.set("a", waiting("c", true));
        graph.set("b", waiting("a", true));
        graph.set("c", Record { is_deleting: false, ..waiting("b", true) });
        graph.set("leaf", waiting("a", true));
        assert_eq!(graph.blocking_dependent_in_cycle("a"), None, "c is not being deleted");
        graph.set("c", waiting("b", true));
        assert_eq!(graph.blocking_dependent_in_cycle("a"), Some("b"));
        assert_eq!(graph.blocking_dependent_in_cycle("c"), Some("a"));
        assert_eq!(graph.blocking_dependent_in_cycle("leaf"), None);
        graph.set("c", waiting("b", false));
        assert_eq!(graph.blocking_dependent_in_cycle("a"), None, "c no longer blocks b");
        graph.set("self", waiting("self", true));
        assert_eq!(graph.blocking_dependent_in_cycle("self"), Some("self"));
    }

    #[test]
    fn an_owner_in_foreground_deletion_is_reconciled_after_its_last_blocking_dependent() {
        let blocking = |owner: &str| {
            let mut blocking = record(&[owner]);
            blocking.owners[0].blocks = true;
            blocking
        };
        let mut graph = Graph::default();
        graph.set("job", record(&[]));
        for pod in ["one", "two", "three"] {
            graph.set(pod, blocking("job"));
        }
        graph.set("free", record(&["job"]));
        graph.set("job", Record { is_deleting: true, waits_for_dependents: true, ..record(&[]) });
        assert_eq!(graph.remove("two"), set(&[]));
        assert_eq!(graph.remove("one"), set(&[]));
        assert_eq!(graph.remove("three"), set(&["job"]));
    }

    #[test]
    fn an_owner_in_foreground_deletion_is_reconciled_when_a_nonblocking_dependent_is_deleted() {
        let mut graph = Graph::default();
        graph.set("job", record(&[]));
        graph.set("pod", record(&["job"]));
        let waiting = Record { is_deleting: true, waits_for_dependents: true, ..record(&[]) };
        assert_eq!(graph.set("job", waiting), set(&["job"]));
        assert_eq!(graph.remove("pod"), set(&["job"]));
    }
}
