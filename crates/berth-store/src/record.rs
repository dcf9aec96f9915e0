//! A stored object and a change of one.

use std::sync::{Arc, OnceLock, Weak};

use berth_apimachinery::condensed::{Condensed, Condenser};
use berth_apimachinery::managed_text::{self, Place};
use berth_apimachinery::packed;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use serde_json::Value;

/// An object as stored at one revision. Its text is what is kept, condensed once nobody is likely to ask for it; the parsed
/// form is shared while somebody holds it.
#[derive(Debug)]
pub struct Record {
    /// The key.
    pub key: Arc<str>,
    /// Revision of the write that stored this; also in the object as `metadata.resourceVersion`.
    pub revision: u64,
    text: RwLock<Text>,
    parsed: Mutex<Weak<Value>>,
    /// Where `managedFields` stand in the bytes, once it is known.
    managed: OnceLock<Option<Place>>,
}

/// The object as JSON, `resourceVersion` included.
#[derive(Debug)]
enum Text {
    Plain(Bytes),
    Condensed(Condensed),
}

impl Record {
    /// A record of bytes that are known to be JSON (written by this store).
    pub(crate) fn new(key: Arc<str>, revision: u64, bytes: Bytes) -> Record {
        let text = RwLock::new(Text::Plain(bytes));
        Record { key, revision, text, parsed: Mutex::new(Weak::new()), managed: OnceLock::new() }
    }

    /// Stamps `revision` into `value` and serialises it; it is expected to take `room` bytes.
    pub(crate) fn stamp(key: Arc<str>, revision: u64, mut value: Value, room: usize) -> (Arc<Record>, Arc<Value>) {
        if let Some(object) = value.as_object_mut() {
            let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Default::default()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
            }
        }
        let mut bytes = Vec::with_capacity(room);
        let managed = packed::write(&value, &mut bytes).map(|place| OnceLock::from(Some(place))).unwrap_or_default();
        bytes.shrink_to_fit();
        let text = RwLock::new(Text::Plain(Bytes::from(bytes)));
        let value = Arc::new(value);
        let record = Record { key, revision, text, parsed: Mutex::new(Arc::downgrade(&value)), managed };
        (Arc::new(record), value)
    }

    /// The object as JSON, `resourceVersion` included.
    pub fn bytes(&self) -> Bytes {
        match &*self.text.read() {
            Text::Plain(bytes) => bytes.clone(),
            Text::Condensed(condensed) => Bytes::from(condensed.text()),
        }
    }

    /// How long the text is.
    pub(crate) fn size(&self) -> usize {
        match &*self.text.read() {
            Text::Plain(bytes) => bytes.len(),
            Text::Condensed(condensed) => condensed.len(),
        }
    }

    /// Keeps the text in less memory from now on; reading it takes a copy then.
    pub(crate) fn condense(&self, condenser: &mut Condenser) {
        let condensed = match &*self.text.read() {
            Text::Plain(bytes) => condenser.condense(bytes),
            Text::Condensed(_) => return,
        };
        *self.text.write() = Text::Condensed(condensed);
        let mut parsed = self.parsed.lock();
        if parsed.strong_count() == 0 {
            // What is left of the last one is given back.
            *parsed = Weak::new();
        }
    }

    fn managed(&self, text: &[u8]) -> Option<&Place> {
        self.managed.get_or_init(|| managed_text::place(text)).as_ref()
    }

    /// The object's text in two parts, without `managedFields` between them.
    pub fn without_managed_fields(&self) -> [Bytes; 2] {
        let bytes = self.bytes();
        match self.managed(&bytes) {
            Some(Place { member, .. }) => [bytes.slice(..member.start), bytes.slice(member.end..)],
            None => [bytes, Bytes::new()],
        }
    }

    /// The object, parsed, its list of owners [packed]; shared with everybody who holds it at the moment.
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

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum Change {
    /// Stored for the first time.
    Created,
    /// Replaced; with what was there before.
    Updated(Arc<Record>),
    /// Removed; with what was there before.
    Deleted(Arc<Record>),
}

/// One write as watchers see it, shared by all of them and the history. It holds texts only: a watcher that lags keeps
/// thousands of these, and what one reader parses the others find through the [record](Record::value) while it is held.
#[derive(Debug)]
pub struct Event {
    /// The object after the write; after a delete its last state, stamped with the revision of the delete.
    pub record: Arc<Record>,
    /// What happened.
    pub change: Change,
}

impl Event {
    /// The revision of the write.
    pub fn revision(&self) -> u64 {
        self.record.revision
    }

    /// The object after the write, parsed.
    pub fn value(&self) -> Arc<Value> {
        self.record.value()
    }

    /// The object before the write, parsed; `None` when it was created by it.
    pub fn previous(&self) -> Option<Arc<Value>> {
        self.previous_record().map(|record| record.value())
    }

    /// The record before the write.
    pub(crate) fn previous_record(&self) -> Option<&Arc<Record>> {
        match &self.change {
            Change::Created => None,
            Change::Updated(record) | Change::Deleted(record) => Some(record),
        }
    }
}
