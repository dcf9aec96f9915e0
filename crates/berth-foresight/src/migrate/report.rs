//! A migration check as text and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Judged, Migration, Verdict};
use crate::objects::ObjectRef;

/// Decisions that the text lists; JSON has all.
const DECISIONS_MAX: usize = 50;

/// The check as text. `all`: objects that work the same are listed, too.
pub fn text(migration: &Migration, all: bool) -> String {
    // Writing to a String cannot fail.
    let mut out = String::new();
    let mut kinds: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for judged in &migration.objects {
        kinds.entry(&judged.object.kind).or_default()[judged.verdict() as usize] += 1;
    }
    if !kinds.is_empty() {
        let _ = writeln!(out, "{:<28}{:>8}{:>12}{:>16}", "KIND", "SAME", "DIFFERENT", "NOT SUPPORTED");
        for (kind, [same, different, unsupported]) in &kinds {
            let _ = writeln!(out, "{kind:<28}{same:>8}{different:>12}{unsupported:>16}");
        }
    }
    for judged in migration.objects.iter().filter(|judged| all || judged.verdict() != Verdict::Same) {
        let _ = writeln!(out, "{}{}: {}", place(judged), judged.verdict().as_str(), judged.object);
        for note in &judged.notes {
            let field = if note.field.is_empty() { String::new() } else { format!("{}: ", note.field) };
            let _ = writeln!(out, "  {field}{}", note.message);
        }
    }
    for decision in migration.decisions.iter().take(DECISIONS_MAX) {
        let _ = writeln!(out, "decision: {} would {}: {}", decision.object, decision.effect.as_str(), decision.message);
    }
    if migration.decisions.len() > DECISIONS_MAX {
        let _ = writeln!(out, "and {} more decisions; -o json lists all", migration.decisions.len() - DECISIONS_MAX);
    }
    for unchecked in &migration.unchecked {
        let _ = writeln!(out, "not checked: {unchecked}");
    }
    let count = |verdict| migration.objects.iter().filter(|judged| judged.verdict() == verdict).count();
    let _ = writeln!(
        out,
        "{} objects: {} the same, {} different, {} not supported; {} decisions about {} admitted and {} pending workloads \
         would differ",
        migration.objects.len(),
        count(Verdict::Same),
        count(Verdict::Different),
        count(Verdict::Unsupported),
        migration.decisions.len(),
        migration.workloads.0,
        migration.workloads.1
    );
    out
}

fn place(judged: &Judged) -> String {
    judged.source.as_ref().map(|it| format!("{}:{}: ", it.file, it.line)).unwrap_or_default()
}

/// The check as one JSON object.
pub fn json(migration: &Migration) -> Value {
    let object = |object: &ObjectRef| {
        let mut value = json!({"kind": object.kind, "name": object.name});
        if !object.namespace.is_empty() {
            value["namespace"] = json!(object.namespace);
        }
        value
    };
    let judged = |judged: &Judged| {
        let notes = judged
            .notes
            .iter()
            .map(|note| json!({"verdict": note.verdict, "field": note.field, "message": note.message}));
        let mut value = json!({
            "object": object(&judged.object), "verdict": judged.verdict(), "notes": notes.collect::<Vec<_>>(),
        });
        if let Some(source) = &judged.source {
            value["file"] = json!(source.file.as_ref());
            value["line"] = json!(source.line);
        }
        value
    };
    let decisions = migration.decisions.iter().map(|decision| {
        json!({
            "object": object(&decision.object), "effect": decision.effect.as_str(),
            "verdict": decision.effect.verdict(), "message": decision.message,
        })
    });
    json!({
        "objects": migration.objects.iter().map(judged).collect::<Vec<_>>(),
        "decisions": decisions.collect::<Vec<_>>(),
        "workloads": {"admitted": migration.workloads.0, "pending": migration.workloads.1},
        "unchecked": migration.unchecked,
    })
}
