//! `berth migrate --check`: whether Berth can take over from Kueue, before anything is changed.
//!
//! Each stored object of Kueue gets a verdict: it works the same, with a difference, or a part of
//! it is not supported ([`verdict`]). The decisions that would differ are computed by the
//! controllers' own functions and by the engine ([`decisions`]): workloads that would be stopped or
//! not recognized, and pending ones in another order.

mod command_line;
pub mod decisions;
pub mod report;
pub mod verdict;

use std::collections::BTreeMap;

use berth_controllers::Config;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::objects::read::complete_namespace;
use crate::objects::{Document, Namespaced, ObjectRef, Objects, Source, validate};

pub use decisions::{Decision, Effect};

/// How an object works after Berth took over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// As with Kueue.
    Same,
    /// With a difference, which a note names.
    Different,
    /// A part of it has no effect or is rejected.
    Unsupported,
}

impl Verdict {
    /// The verdict in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Different => "different",
            Verdict::Unsupported => "not supported",
        }
    }
}

/// What is different or not supported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The verdict for this field.
    pub verdict: Verdict,
    /// Path of the field; empty for the whole object.
    pub field: String,
    /// The difference.
    pub message: String,
}

impl Note {
    fn new(verdict: Verdict, field: impl Into<String>, message: impl Into<String>) -> Note {
        Note { verdict, field: field.into(), message: message.into() }
    }
}

/// An object and its verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The object.
    pub object: ObjectRef,
    /// File and line; `None` in a live cluster.
    pub source: Option<Source>,
    /// What is not the same; empty if everything is.
    pub notes: Vec<Note>,
}

impl Judged {
    /// The worst verdict of the notes.
    pub fn verdict(&self) -> Verdict {
        self.notes.iter().map(|note| note.verdict).max().unwrap_or(Verdict::Same)
    }
}

/// Pending workloads per ClusterQueue in the order of another controller, the first first.
pub type Orders = BTreeMap<String, Vec<Namespaced>>;

/// The objects of a cluster, or of files.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// All objects.
    pub documents: Vec<Document>,
    /// Order of pending workloads as Kueue reports it.
    pub orders: Orders,
    /// What could not be read.
    pub unread: Vec<String>,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Migration {
    /// Every object of Kueue.
    pub objects: Vec<Judged>,
    /// Decisions that would differ.
    pub decisions: Vec<Decision>,
    /// Number of workloads that hold quota, and of those that wait.
    pub workloads: (usize, usize),
    /// What was not checked.
    pub unchecked: Vec<String>,
}

impl Migration {
    /// The worst verdict of all objects and decisions.
    pub fn verdict(&self) -> Verdict {
        let objects = self.objects.iter().map(Judged::verdict);
        objects.chain(self.decisions.iter().map(|decision| decision.effect.verdict())).max().unwrap_or(Verdict::Same)
    }
}

/// Judges an inventory at `now`.
pub fn check(mut inventory: Inventory, now: Timestamp) -> Migration {
    let mut unchecked = std::mem::take(&mut inventory.unread);
    let mut judged = Vec::new();
    let mut documents = Vec::new();
    let mut config = None;
    let gates = command_line::gates(&inventory.documents);
    for mut document in inventory.documents {
        complete_namespace(&mut document.value, "default");
        match configuration(&document.value) {
            None => documents.push(document),
            Some(Err(problem)) => judged.push(Judged {
                object: ObjectRef::of(&document.value),
                source: document.source,
                notes: vec![Note::new(Verdict::Unsupported, "data", problem)],
            }),
            Some(Ok(mut value)) => {
                let of_command_line = gates.iter().find(|gates| gates.configuration == ObjectRef::of(&document.value));
                let note = of_command_line.and_then(|gates| gates.add_to(&mut value));
                let (loaded, mut notes) = verdict::configuration(&value);
                notes.extend(note);
                let object = ObjectRef { kind: "Configuration".to_owned(), ..ObjectRef::of(&document.value) };
                judged.push(Judged { object, source: document.source, notes });
                config = config.or(loaded);
            }
        }
    }
    if config.is_none() {
        unchecked.push(
            "Kueue's configuration was not found or is rejected: integrations and gates are Berth's defaults"
                .to_owned(),
        );
    }
    // Without the configuration, nothing is said about timeouts.
    let config = config.unwrap_or_else(|| Config { wait_for_pods_ready: None, ..Config::default() });
    let mut judge = verdict::Judge::new(&documents, &config);
    judged.extend(documents.iter().filter_map(|document| judge.judge(document)));
    judged.sort_by(|a, b| (b.verdict(), &a.object).cmp(&(a.verdict(), &b.object)));

    let values: Vec<&Value> = documents.iter().map(|document| &document.value).collect();
    let mut decisions = decisions::of_controllers(&values, &config, now);
    // The objects are those of an API server, so they are not validated again.
    let unsourced = |document: &Document| Document { value: document.value.clone(), source: None };
    let mut objects = Objects::read(documents.iter().map(unsourced).collect());
    objects.config = config;
    decisions.extend(decisions::of_engine(&objects, &inventory.orders, now));
    decisions.sort();
    decisions.dedup_by(|a, b| a.object == b.object && a.effect == b.effect);
    if inventory.orders.is_empty() {
        unchecked.push("the order of pending workloads, which Kueue's visibility API did not give".to_owned());
    }
    let workloads = decisions::counts(&objects, now);
    Migration { objects: judged, decisions, workloads, unchecked }
}

/// Kueue's configuration in a document: the file itself, or the ConfigMap of an installation.
/// `None` if the document is something else.
fn configuration(value: &Value) -> Option<Result<Value, String>> {
    if validate::is_configuration(value) {
        return Some(Ok(value.clone()));
    }
    if value["kind"] != "ConfigMap" {
        return None;
    }
    let text = value["data"]["controller_manager_config.yaml"].as_str()?;
    let documents = crate::objects::read::documents("", text);
    Some(match documents.map(|found| found.into_iter().next()) {
        Ok(Some(document)) => Ok(document.value),
        Ok(None) => Err("controller_manager_config.yaml is empty".to_owned()),
        Err((line, problem)) => Err(format!("controller_manager_config.yaml, line {line}: {problem}")),
    })
}

#[cfg(test)]
mod tests;
