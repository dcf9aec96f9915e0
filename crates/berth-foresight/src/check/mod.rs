//! `berth check`: configuration that cannot work.
//!
//! Each rule is a pure function of a set of objects ([`crate::objects::Objects`]) and returns
//! findings: the object, the field, what is wrong, and what to do. A rule says nothing about what
//! the set does not show: without nodes and pools, for example, nothing is known about supply.

mod borrowing;
mod checks;
mod facts;
mod jobs;
mod priorities;
mod reach;
mod references;
pub mod report;
mod rest;
mod rules;
mod supply;

use jiff::Timestamp;
use serde::Serialize;

use crate::objects::{ObjectRef, Objects, Source, Template};
use facts::Facts;

pub use rules::{RULES, Rule};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Works, but perhaps not as intended.
    Note,
    /// A part of the configuration has no effect, or jobs may wait without need.
    Warning,
    /// Something can never work.
    Error,
}

impl Severity {
    /// The name in reports; SARIF has the same names.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// One thing that cannot work, or does not work as intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The object.
    pub object: ObjectRef,
    /// Path of the field; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
    /// File and line of the object.
    pub source: Option<Source>,
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Findings, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// Number of objects that the rules used.
    pub objects: usize,
}

/// Collects the findings of a rule.
#[derive(Default)]
struct Findings {
    found: Vec<Finding>,
    unchecked: Vec<String>,
}

impl Findings {
    /// Adds a finding with the severity of its rule.
    fn add(&mut self, rule: &'static str, object: ObjectRef, source: Option<&Source>, text: Text) {
        let severity = rules::severity(rule);
        self.add_as(severity, rule, object, source, text);
    }

    fn add_as(
        &mut self,
        severity: Severity,
        rule: &'static str,
        object: ObjectRef,
        source: Option<&Source>,
        text: Text,
    ) {
        let Text { field, message, help } = text;
        self.found.push(Finding { rule, severity, object, field, message, help, source: source.cloned() });
    }
}

/// The texts of a finding.
struct Text {
    field: String,
    message: String,
    help: String,
}

fn text(field: impl Into<String>, message: impl Into<String>, help: impl Into<String>) -> Text {
    Text { field: field.into(), message: message.into(), help: help.into() }
}

/// Checks a set of objects. `template` makes the nodes of a pool, and `now` is the time at which
/// the jobs of the set would be created.
pub fn check(objects: &Objects, template: Template<'_>, now: Timestamp) -> Checked {
    let facts = Facts::new(objects, template);
    let mut findings = Findings::default();
    invalid(objects, &mut findings);
    references::check(&facts, &mut findings);
    supply::check(&facts, &mut findings);
    reach::check(&facts, &mut findings);
    borrowing::check(&facts, &mut findings);
    checks::check(&facts, &mut findings);
    priorities::check(&facts, &mut findings);
    let jobs = jobs::check(&facts, now, &mut findings);
    rest::check(&facts, &jobs, &mut findings);
    let Findings { found: mut all, unchecked } = findings;
    all.sort_by(|a, b| {
        let key = |it: &Finding| (std::cmp::Reverse(it.severity), it.rule, it.object.clone(), it.field.clone());
        key(a).cmp(&key(b))
    });
    all.dedup();
    Checked { findings: all, unchecked, objects: objects.count() }
}

fn invalid(objects: &Objects, findings: &mut Findings) {
    for invalid in &objects.invalid {
        let rule = if invalid.object.kind == "File" { "unreadable-file" } else { "invalid-object" };
        for problem in &invalid.problems {
            let (field, message) = match problem.split_once(": ") {
                Some((field, message)) if !field.contains(' ') => (field, message),
                _ => ("", problem.as_str()),
            };
            let help = match rule {
                "unreadable-file" => "write the file as YAML or JSON, or leave it out with a narrower -f",
                _ => "correct the field; the API server would reject the object, and the rules leave it out",
            };
            findings.add(rule, invalid.object.clone(), invalid.source.as_ref(), text(field, message, help));
        }
    }
}
