//! Dense identifiers, and the interner that maps names to them.
//!
//! Inside the engine every object is an index into a vector. Names are used only in events and in
//! decisions. Identifiers are never reused while an engine lives, so an index held across events
//! always refers to the same object.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

/// A name shared by reference: cluster queue, flavor, resource, pod set, label key…
pub type Name = Arc<str>;

/// An index type made by `define_ids!`.
pub(crate) trait Id: Copy + Eq + Ord {
    fn from_index(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! define_ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl Id for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("an engine holds fewer than 2^32 objects of a kind"))
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

define_ids! {
    /// A cluster queue.
    QueueId;
    /// A local queue.
    LocalQueueId;
    /// A node of the quota tree: a cluster queue or a cohort.
    NodeId;
    /// A flavor and a resource: the unit quota is counted in.
    FrId;
    /// A resource flavor.
    FlavorId;
    /// A resource name.
    ResourceId;
    /// A workload.
    WorkloadId;
    /// A scheduling-equivalence class: workloads that every decision treats alike (§4.8).
    ClassId;
}

/// An ordered set of identifiers, one bit each.
#[derive(Debug, Clone)]
pub(crate) struct IdSet<I> {
    words: Vec<u64>,
    kind: PhantomData<I>,
}

impl<I> Default for IdSet<I> {
    fn default() -> Self {
        Self { words: Vec::new(), kind: PhantomData }
    }
}

impl<I: Id> IdSet<I> {
    pub fn insert(&mut self, id: I) {
        let (word, bit) = (id.index() / 64, id.index() % 64);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    pub fn remove(&mut self, id: I) {
        if let Some(word) = self.words.get_mut(id.index() / 64) {
            *word &= !(1 << (id.index() % 64));
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = I> {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let rest = std::iter::successors(Some(*word), |rest| Some(rest & rest.wrapping_sub(1)));
            let bits = rest.take_while(|rest| *rest != 0).map(|rest| rest.trailing_zeros() as usize);
            bits.map(move |bit| I::from_index(at * 64 + bit))
        })
    }
}

/// The flavor and the resource of an [`FrId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlavorResource {
    /// The flavor.
    pub flavor: FlavorId,
    /// The resource.
    pub resource: ResourceId,
}

/// Names of one kind, numbered in order of first appearance.
#[derive(Debug, Clone)]
pub(crate) struct Interner<I> {
    ids: HashMap<Name, I>,
    names: Vec<Name>,
    kind: PhantomData<I>,
}

impl<I> Default for Interner<I> {
    fn default() -> Self {
        Self { ids: HashMap::new(), names: Vec::new(), kind: PhantomData }
    }
}

impl<I: Id> Interner<I> {
    /// Identifier of a name, assigned now if the name is new.
    pub fn intern(&mut self, name: &Name) -> I {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = I::from_index(self.names.len());
        self.names.push(name.clone());
        self.ids.insert(name.clone(), id);
        id
    }

    /// The name of an identifier.
    pub fn name(&self, id: I) -> &Name {
        &self.names[id.index()]
    }
}
