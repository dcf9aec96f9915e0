//! Reports of replays: a table, JSON, CSV, and a self-contained HTML page.

mod html;
mod table;

use std::collections::BTreeMap;

use berth_engine::Name;
use serde::Serialize;
use serde_json::{Value, json};

use crate::figures::Figures;
use crate::packing::Packing;
use crate::policy::unit;
use crate::trace::Trace;

pub use html::html;
pub use table::table;

/// Share of GPUs that the authors of the openb trace report as allocated, in percent.
pub const PUBLISHED_GPU_ALLOCATION_PERCENT: f64 = 95.3;

/// What is known about the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Name of the file.
    pub name: String,
    /// Format of the file.
    pub format: String,
    /// Number of jobs that were replayed.
    pub jobs: usize,
    /// Number of jobs that were left out, by reason.
    pub left_out: BTreeMap<&'static str, usize>,
    /// Time from the first to the last submission, in seconds.
    pub submissions_seconds: f64,
    /// Size of the cluster per resource, if the trace has it.
    pub machine: Option<BTreeMap<Name, f64>>,
    /// Tenants of the jobs.
    pub tenants: usize,
    /// The resource in which tenants are compared.
    pub main_resource: Name,
}

impl Summary {
    /// The summary of a trace.
    pub fn of(trace: &Trace) -> Summary {
        let tenants: std::collections::BTreeSet<&Name> = trace.jobs.iter().map(|job| &job.owner.tenant).collect();
        let machine = trace.machine.as_ref().map(|machine| {
            machine.iter().map(|(resource, amount)| (resource.clone(), *amount as f64 / unit(resource))).collect()
        });
        Summary {
            name: trace.name.clone(),
            format: trace.format.to_string(),
            jobs: trace.jobs.len(),
            left_out: trace.left_out.clone(),
            submissions_seconds: trace.jobs.last().map_or(0.0, |job| job.submitted.as_secs_f64()),
            machine,
            tenants: tenants.len(),
            main_resource: crate::figures::main_resource(trace),
        }
    }
}

/// A replay under one or several policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The trace.
    pub trace: Summary,
    /// Figures per policy, in the order of the command line.
    pub policies: Vec<Figures>,
    /// Packings of the trace's pods on its nodes.
    pub packings: Vec<Packing>,
}

impl Report {
    /// The report as one JSON object.
    pub fn json(&self) -> Value {
        let packings = self.packings.iter().map(|packing| {
            let mut value = serde_json::to_value(packing).unwrap_or_default();
            value["share"] = json!(packing.share());
            value
        });
        let mut value = json!({"trace": self.trace, "policies": self.policies});
        if !self.packings.is_empty() {
            value["packings"] = packings.collect();
            value["publishedGpuShare"] = json!(PUBLISHED_GPU_ALLOCATION_PERCENT / 100.0);
        }
        value
    }

    /// The report as CSV: a line per policy.
    pub fn csv(&self) -> String {
        let rows: Vec<Vec<(String, String)>> = self.policies.iter().map(cells).collect();
        let mut columns: Vec<&String> = Vec::new();
        for (name, _) in rows.iter().flatten() {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        let mut out = csv::Writer::from_writer(Vec::new());
        // Writing to memory cannot fail, and every row has the same columns.
        let _ = out.write_record(&columns);
        for row in &rows {
            let cell = |column: &&String| {
                row.iter().find(|(name, _)| name == *column).map_or(String::new(), |(_, value)| value.clone())
            };
            let _ = out.write_record(columns.iter().map(cell));
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

/// The columns of a policy in CSV, with units in their names.
fn cells(figures: &Figures) -> Vec<(String, String)> {
    let mut cells = vec![
        ("policy".to_owned(), figures.policy.clone()),
        ("jobs".to_owned(), figures.jobs.to_string()),
        ("finished".to_owned(), figures.finished.to_string()),
        ("never_started".to_owned(), figures.never_started.to_string()),
        ("makespan_s".to_owned(), figures.makespan_seconds.to_string()),
    ];
    for (name, distribution) in [("wait_s", figures.wait_seconds), ("slowdown", figures.slowdown)] {
        let values = [
            ("mean", distribution.mean),
            ("median", distribution.median),
            ("p90", distribution.p90),
            ("p99", distribution.p99),
            ("max", distribution.max),
        ];
        cells.extend(values.map(|(which, value)| (format!("{name}_{which}"), value.to_string())));
    }
    for (resource, share) in &figures.utilization {
        cells.push((format!("utilization_{resource}"), share.to_string()));
    }
    for (resource, share) in &figures.utilization_until_last_submission {
        cells.push((format!("utilization_until_last_submission_{resource}"), share.to_string()));
    }
    cells.push(("fairness_jain_served".to_owned(), figures.fairness.to_string()));
    cells.push(("fairness_jain_slowdown".to_owned(), figures.slowdown_fairness.to_string()));
    cells.push(("evictions".to_owned(), figures.evictions.to_string()));
    for (resource, hours) in &figures.lost_hours {
        cells.push((format!("lost_hours_{resource}"), hours.to_string()));
    }
    for (name, cost) in [("cost", figures.cost), ("lost_cost", figures.lost_cost)] {
        cells.extend(cost.map(|cost| (name.to_owned(), cost.to_string())));
    }
    cells
}

/// A duration for people: `45 s`, `12 min`, `3.5 h`, `2.1 d`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        it if it < 100.0 => format!("{it:.0} s"),
        it if it < 6000.0 => format!("{:.0} min", it / 60.0),
        it if it < 172_800.0 => format!("{:.1} h", it / 3600.0),
        it => format!("{:.1} d", it / 86_400.0),
    }
}

/// A number for people, with three or four digits.
pub fn number(value: f64) -> String {
    // An empty sum is a negative zero.
    match value + 0.0 {
        it if it.abs() < 10.0 => format!("{it:.2}"),
        it if it.abs() < 100.0 => format!("{it:.1}"),
        it => format!("{it:.0}"),
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
