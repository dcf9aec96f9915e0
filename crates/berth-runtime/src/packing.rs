//! Packing: caches keep idle objects as condensed JSON text instead of typed values. A typed pod or
//! workload takes six to ten kilobytes, mostly for fields that are not set. Its text takes one
//! kilobyte, and the part of the text that it does not share with others of its kind takes some
//! hundred bytes.
//!
//! An unpacked object equals the serialised type. That is the API's object, except for values that
//! the type cannot represent: fractions of a second in times of other clients, which Kubernetes
//! also drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::json::Json;
use berth_apimachinery::condensed::{Condensed, Condenser};

use crate::objects::{AnyObject, typed_ref};

/// Packs objects of one kind.
pub(crate) struct Packing {
    condenser: Condenser,
    write: fn(&AnyObject) -> Option<Vec<u8>>,
    read: fn(&[u8]) -> Arc<AnyObject>,
    /// Number of objects that have been unpacked.
    unpacked: AtomicU64,
}

impl Packing {
    /// Packs objects of type `K`.
    pub(crate) fn of<K: Json + Send + Sync + 'static>() -> Self {
        Self { condenser: Condenser::default(), write: write::<K>, read: read::<K>, unpacked: AtomicU64::new(0) }
    }

    /// Returns the packed object; `None` if it cannot be serialised.
    pub(crate) fn pack(&mut self, object: &AnyObject) -> Option<Condensed> {
        (self.write)(object).map(|text| self.condenser.condense(&text))
    }

    /// Returns the unpacked object.
    pub(crate) fn unpack(&self, packed: &Condensed) -> Arc<AnyObject> {
        self.unpacked.fetch_add(1, Ordering::Relaxed);
        (self.read)(&packed.text())
    }

    /// Returns the number of objects that have been unpacked.
    pub(crate) fn unpacked(&self) -> u64 {
        self.unpacked.load(Ordering::Relaxed)
    }
}

fn write<K: Json + 'static>(object: &AnyObject) -> Option<Vec<u8>> {
    typed_ref::<K>(object).to_json_text().ok()
}

fn read<K: Json + Send + Sync + 'static>(text: &[u8]) -> Arc<AnyObject> {
    let read = std::str::from_utf8(text).ok().and_then(|text| K::from_json_text(text).ok());
    Arc::new(read.expect("an object can be parsed from its own serialisation"))
}
