//! Stored objects and their changes.

use std::sync::{Arc, OnceLock, Weak};

use berth_apimachinery::condensed::{Condensed, Condenser};
use berth_apimachinery::managed_text::{self, Place};
use berth_apimachinery::packed;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

/// An object as stored at one revision. The record keeps the object's text, which is condensed once
/// it is unlikely to be read again. The parsed object is shared while any caller holds it.
#[derive(Debug)]
pub struct Record {
    /// The key.
    pub key: Arc<str>,
    /// Revision of the write that stored the object; also its `metadata.resourceVersion`.
    pub revision: u64,
    text: RwLock<Text>,
    parsed: Mutex<Weak<Value>>,
    /// Location of `managedFields` in the text, computed on first use.
    managed: OnceLock<Option<Place>>,
}

/// The text of an object, with its `resourceVersion`.
#[derive(Debug)]
enum Text {
    Plain(Bytes),
    Condensed(Condensed),
}

impl Record {
    /// Creates a record from JSON that this store wrote, and that has been checked.
    pub(crate) fn new(key: Arc<str>, revision: u64, bytes: Bytes) -> Record {
        let text = RwLock::new(Text::Plain(bytes));
        Record { key, revision, text, parsed: Mutex::new(Weak::new()), managed: OnceLock::new() }
    }

    /// Stamps `revision` into `value` and serialises it into a buffer of `capacity` bytes.
    pub(crate) fn stamp(key: Arc<str>, revision: u64, mut value: Value, capacity: usize) -> (Arc<Record>, Arc<Value>) {
        if let Some(object) = value.as_object_mut() {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Default::default()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
            }
        }
        let mut bytes = Vec::with_capacity(capacity);
        let managed = packed::write(&value, &mut bytes).map(|place| OnceLock::from(Some(place))).unwrap_or_default();
        bytes.shrink_to_fit();
        let text = RwLock::new(Text::Plain(Bytes::from(bytes)));
        let value = Arc::new(value);
        let record = Record { key, revision, text, parsed: Mutex::new(Arc::downgrade(&value)), managed };
        (Arc::new(record), value)
    }

    /// Returns the object as JSON, with its `resourceVersion`.
    pub fn bytes(&self) -> Bytes {
        match &*self.text.read() {
            Text::Plain(bytes) => bytes.clone(),
            Text::Condensed(condensed) => Bytes::from(condensed.text()),
        }
    }

    /// Returns the length of the uncondensed text, in bytes.
    pub(crate) fn size(&self) -> usize {
        match &*self.text.read() {
            Text::Plain(bytes) => bytes.len(),
            Text::Condensed(condensed) => condensed.len(),
        }
    }

    /// Condenses the text. Each later read decompresses a copy.
    pub(crate) fn condense(&self, condenser: &mut Condenser) {
        let condensed = match &*self.text.read() {
            Text::Plain(bytes) => condenser.condense(bytes),
            Text::Condensed(_) => return,
        };
        *self.text.write() = Text::Condensed(condensed);
        let mut parsed = self.parsed.lock();
        if parsed.strong_count() == 0 {
            // Free the allocation of the last parsed object.
            *parsed = Weak::new();
        }
    }

    fn managed(&self, text: &[u8]) -> Option<&Place> {
        self.managed.get_or_init(|| managed_text::place(text)).as_ref()
    }

    /// Returns the object's text without `managedFields`, as the part before and the part after.
    pub fn without_managed_fields(&self) -> [Bytes; 2] {
        let bytes = self.bytes();
        match self.managed(&bytes) {
            Some(Place { member, .. }) => [bytes.slice(..member.start), bytes.slice(member.end..)],
            None => [bytes, Bytes::new()],
        }
    }

    /// Returns the parsed object, with its `managedFields` [packed]. All callers that hold it share
    /// one copy.
    pub fn value(&self) -> Arc<Value> {
        let mut parsed = self.parsed.lock();
        if let Some(value) = parsed.upgrade() {
            return value;
        }
        let bytes = self.bytes();
        let value =
            packed::parse_at(&bytes, self.managed(&bytes)).expect("the store holds only JSON that it wrote or checked");
        let value = Arc::new(value);
        *parsed = Arc::downgrade(&value);
        value
    }
}

/// The kind of a write, with the record before it.
#[derive(Clone, Debug)]
pub enum Change {
    /// The object was created.
    Created,
    /// The object was replaced; contains the previous record.
    Updated(Arc<Record>),
    /// The object was deleted; contains the previous record.
    Deleted(Arc<Record>),
}

/// One write, as watchers see it. All watchers and the history share it. An event keeps texts only,
/// because a watcher that lags keeps thousands of events. Readers share parsed objects through the
/// [record](Record::value) while any of them holds one.
#[derive(Debug)]
pub struct Event {
    /// The object after the write. After a delete, its last state stamped with the revision of the
    /// delete.
    pub record: Arc<Record>,
    /// The kind of the write.
    pub change: Change,
}

impl Event {
    /// Returns the revision of the write.
    pub fn revision(&self) -> u64 {
        self.record.revision
    }

    /// Returns the parsed object after the write.
    pub fn value(&self) -> Arc<Value> {
        self.record.value()
    }

    /// Returns the parsed object before the write; `None` if the write created it.
    pub fn previous(&self) -> Option<Arc<Value>> {
        self.previous_record().map(|record| record.value())
    }

    /// Returns the record before the write.
    pub(crate) fn previous_record(&self) -> Option<&Arc<Record>> {
        match &self.change {
            Change::Created => None,
            Change::Updated(record) | Change::Deleted(record) => Some(record),
        }
    }
}
