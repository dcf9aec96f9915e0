//! Snapshots: the objects on which decisions depend, at one instant, in one file.
//!
//! A snapshot has no images, commands, environment and volumes of pods, and no messages: nothing on
//! which a decision does not depend ([`trim`]). It may have what the controllers know beside the
//! objects ([`Memory`]). Names can be replaced too ([`anonymous`]). The same file gives the same
//! forecasts, byte for byte.

mod anonymous;
mod changes;
mod trim;

use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;

pub use changes::{ChangeError, Changes};

use crate::memory::Memory;
use crate::objects::{Document, Objects};

/// `apiVersion` of a snapshot.
pub const API_VERSION: &str = "berth.dev/v1alpha1";
/// `kind` of a snapshot.
pub const KIND: &str = "Snapshot";

/// Objects at one instant.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The instant, on the cluster's clock.
    pub at: Timestamp,
    /// The objects.
    pub objects: Vec<Value>,
    /// What the controllers knew beside the objects; `None` if they were not asked, or gave no
    /// answer.
    pub memory: Option<Memory>,
}

/// Why a file is not a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct SnapshotError {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl Snapshot {
    /// The objects without what no decision depends on.
    pub fn of(objects: impl IntoIterator<Item = Value>, at: Timestamp) -> Snapshot {
        let mut objects: Vec<Value> = objects.into_iter().filter_map(trim::object).collect();
        let key = |object: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&object["kind"]), text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
        };
        objects.sort_by_cached_key(key);
        Snapshot { at, objects, memory: None }
    }

    /// The snapshot with what the controllers know beside its objects.
    #[must_use]
    pub fn with_memory(self, memory: Option<Memory>) -> Snapshot {
        Snapshot { memory, ..self }
    }

    /// The snapshot with other names and labels. The order of names is kept, because it decides
    /// between equal alternatives.
    #[must_use]
    pub fn anonymous(mut self) -> Snapshot {
        self.memory = anonymous::rename(&mut self.objects, self.memory.as_ref());
        self
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is not a snapshot.
    pub fn parse(text: &str) -> Result<Snapshot, SnapshotError> {
        let fail = |field, problem: String| SnapshotError { field, problem };
        let mut file: Value =
            serde_json::from_str(text).map_err(|error| fail("file", format!("is not JSON: {error}")))?;
        if file["kind"] != KIND || file["apiVersion"] != API_VERSION {
            return Err(fail(
                "kind",
                format!("expected {KIND} of apiVersion {API_VERSION}, as `berth snapshot` writes it"),
            ));
        }
        let at = file["at"].as_str().unwrap_or_default();
        let at = at.parse().map_err(|_| fail("at", format!("{at:?} is not a time such as 2026-01-31T12:00:00Z")))?;
        let memory = match file["memory"].take() {
            Value::Null => None,
            memory => Some(serde_json::from_value(memory).map_err(|error| fail("memory", error.to_string()))?),
        };
        match file["objects"].take() {
            Value::Array(objects) => Ok(Snapshot { at, objects, memory }),
            _ => Err(fail("objects", "expected a list of objects".to_owned())),
        }
    }

    /// The file: an object per line.
    pub fn text(&self) -> String {
        let mut head = json!({"apiVersion": API_VERSION, "kind": KIND, "at": self.at.to_string()});
        if let Some(memory) = &self.memory {
            head["memory"] = json!(memory);
        }
        let head = head.to_string();
        let mut text = format!("{},\"objects\":[", head.strip_suffix('}').unwrap_or(&head));
        for (number, object) in self.objects.iter().enumerate() {
            text.push_str(if number == 0 { "\n" } else { ",\n" });
            text.push_str(&object.to_string());
        }
        text.push_str("\n]}\n");
        text
    }

    /// The objects, for rules and forecasts.
    pub fn read(&self) -> Objects {
        let documents = self.objects.iter().map(|value| Document { value: value.clone(), source: None });
        let mut objects = Objects::read(documents.collect());
        objects.memory = self.memory.clone();
        objects
    }
}
