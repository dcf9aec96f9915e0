//! How a cache keeps objects nobody looks at: as their JSON text, condensed, instead of as a tree. A typed pod or workload
//! takes six to ten kilobytes, most of it for fields that are not set; its text takes one, and what the text does not share
//! with others of its kind some hundred bytes.
//!
//! An object comes back as its type writes it down. That is how the API has it, but for what the type cannot write:
//! fractions of a second in times somebody else set, which Kubernetes cuts off too.

use std::sync::atomic::{AtomicU64, Ordering};

use berth_apimachinery::condensed::{Condensed, Condenser};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Packs objects of one kind.
pub(crate) struct Packing<K> {
    condenser: Condenser,
    write: fn(&K) -> Option<Vec<u8>>,
    read: fn(&[u8]) -> K,
    /// How many objects have been unpacked.
    unpacked: AtomicU64,
}

impl<K: Serialize + DeserializeOwned> Packing<K> {
    pub(crate) fn new() -> Self {
        Self { condenser: Condenser::default(), write, read, unpacked: AtomicU64::new(0) }
    }
}

impl<K> Packing<K> {
    /// The packed form; nothing for an object that cannot be written down.
    pub(crate) fn pack(&mut self, object: &K) -> Option<Condensed> {
        (self.write)(object).map(|text| self.condenser.condense(&text))
    }

    /// The object, as it was.
    pub(crate) fn unpack(&self, packed: &Condensed) -> K {
        self.unpacked.fetch_add(1, Ordering::Relaxed);
        (self.read)(&packed.text())
    }

    /// How many objects have been unpacked so far.
    pub(crate) fn unpacked(&self) -> u64 {
        self.unpacked.load(Ordering::Relaxed)
    }
}

fn write<K: Serialize>(object: &K) -> Option<Vec<u8>> {
    serde_json::to_vec(object).ok()
}

fn read<K: DeserializeOwned>(text: &[u8]) -> K {
    serde_json::from_slice(text).expect("an object can be read from the text it was written as")
}
