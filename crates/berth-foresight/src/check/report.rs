//! A check as text, JSON and SARIF.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Checked, Finding, RULES, Severity};

/// The findings as text, a paragraph each, and a last line with their number.
pub fn text(checked: &Checked) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    for finding in &checked.findings {
        let place = finding.source.as_ref().map(|it| format!("{}:{}: ", it.file, it.line)).unwrap_or_default();
        let _ = writeln!(out, "{place}{}: {} [{}]", finding.severity.as_str(), finding.object, finding.rule);
        let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
        let _ = writeln!(out, "  {field}{}", finding.message);
        let _ = writeln!(out, "  To do: {}", finding.help);
    }
    for unchecked in &checked.unchecked {
        let _ = writeln!(out, "not checked: {unchecked}");
    }
    let count = |severity| checked.findings.iter().filter(|finding| finding.severity == severity).count();
    let part = |severity: Severity| {
        let number = count(severity);
        format!("{number} {}{}", severity.as_str(), if number == 1 { "" } else { "s" })
    };
    let parts = [Severity::Error, Severity::Warning, Severity::Note].map(part);
    let _ = writeln!(out, "{} objects checked: {}", checked.objects, parts.join(", "));
    out
}

/// The findings as one JSON object.
pub fn json(checked: &Checked) -> Value {
    let finding = |finding: &Finding| {
        let mut object = json!({
            "rule": finding.rule,
            "severity": finding.severity.as_str(),
            "object": {"kind": finding.object.kind, "name": finding.object.name},
            "field": finding.field,
            "message": finding.message,
            "help": finding.help,
        });
        if !finding.object.namespace.is_empty() {
            object["object"]["namespace"] = json!(finding.object.namespace);
        }
        if let Some(source) = &finding.source {
            object["file"] = json!(source.file.as_ref());
            object["line"] = json!(source.line);
        }
        object
    };
    let findings: Vec<Value> = checked.findings.iter().map(finding).collect();
    json!({"objects": checked.objects, "findings": findings, "unchecked": checked.unchecked})
}

/// The findings in the Static Analysis Results Interchange Format 2.1.0, which code hosts show
/// beside the lines of a change.
pub fn sarif(checked: &Checked) -> Value {
    let index: BTreeMap<&str, usize> = RULES.iter().enumerate().map(|(number, rule)| (rule.id, number)).collect();
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": {"text": rule.about},
                "defaultConfiguration": {"level": rule.severity.as_str()},
            })
        })
        .collect();
    let result = |finding: &Finding| {
        let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
        let message = format!("{}: {field}{} To do: {}.", finding.object, sentence(&finding.message), finding.help);
        let mut location = json!({"logicalLocations": [{
            "fullyQualifiedName": finding.object.to_string(), "kind": "object"}]});
        if let Some(source) = &finding.source {
            location["physicalLocation"] = json!({
                "artifactLocation": {"uri": source.file.as_ref()},
                "region": {"startLine": source.line},
            });
        }
        json!({
            "ruleId": finding.rule,
            "ruleIndex": index.get(finding.rule),
            "level": finding.severity.as_str(),
            "message": {"text": message},
            "locations": [location],
        })
    };
    let results: Vec<Value> = checked.findings.iter().map(result).collect();
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "berth check", "version": version, "rules": rules}},
            "results": results,
        }],
    })
}

fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}
