//! The report as text: a row per figure, a column per policy.

use std::fmt::Write as _;

use super::{PUBLISHED_GPU_ALLOCATION_PERCENT, Report, number, percent, time};
use crate::figures::{Distribution, Figures};
use crate::policy::unit_name;

/// The report as text.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let trace = &report.trace;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{} ({}): {} jobs of {} tenants, submitted within {}",
        trace.name,
        trace.format,
        trace.jobs,
        trace.tenants,
        time(trace.submissions_seconds)
    );
    for (reason, count) in &trace.left_out {
        let _ = writeln!(out, "left out: {count} jobs, {reason}");
    }
    if !report.policies.is_empty() {
        out.push('\n');
        columns(&mut out, &rows(report));
    }
    for packing in &report.packings {
        let _ = writeln!(
            out,
            "\npacking {}: {} of the GPUs allocated ({} of {}; published: {PUBLISHED_GPU_ALLOCATION_PERCENT} %), \
             {} pods placed, {} rejected",
            packing.placement.name(),
            percent(packing.share()),
            number(packing.allocated),
            number(packing.gpus),
            packing.placed,
            packing.rejected
        );
    }
    out
}

/// A row per figure: its name, and its value under each policy.
pub(super) fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: String, value: &dyn Fn(&Figures) -> String| {
        let mut row = vec![name];
        row.extend(report.policies.iter().map(value));
        rows.push(row);
    };
    row("POLICY".to_owned(), &|it| it.policy.clone());
    row("finished".to_owned(), &|it| it.finished.to_string());
    row("never started".to_owned(), &|it| it.never_started.to_string());
    row("makespan".to_owned(), &|it| time(it.makespan_seconds));
    let statistics: [(&str, fn(&Distribution) -> f64); 4] =
        [("mean", |it| it.mean), ("median", |it| it.median), ("p90", |it| it.p90), ("p99", |it| it.p99)];
    for (name, of) in statistics {
        row(format!("wait, {name}"), &|it| time(of(&it.wait_seconds)));
    }
    for (name, of) in statistics {
        row(format!("slowdown, {name}"), &|it| number(of(&it.slowdown)));
    }
    let first = report.policies.first();
    for resource in first.into_iter().flat_map(|figures| figures.utilization.keys()) {
        let share = |figures: &Figures| figures.utilization_until_last_submission.get(resource).copied();
        row(format!("use of {}", unit_name(resource)), &|it| share(it).map_or("-".to_owned(), percent));
    }
    row("fairness, served".to_owned(), &|it| format!("{:.3}", it.fairness));
    row("fairness, slowdown".to_owned(), &|it| format!("{:.3}", it.slowdown_fairness));
    row("evictions".to_owned(), &|it| it.evictions.to_string());
    let lost = &report.trace.main_resource;
    row(format!("lost {} hours", unit_name(lost)), &|it| number(it.lost_hours.get(lost).copied().unwrap_or(0.0)));
    if report.policies.iter().any(|figures| figures.restless_instants > 0) {
        row("restless instants".to_owned(), &|it| it.restless_instants.to_string());
    }
    if report.policies.iter().any(|figures| figures.cost.is_some()) {
        row("cost".to_owned(), &|it| it.cost.map_or("-".to_owned(), number));
        row("cost of lost work".to_owned(), &|it| it.lost_cost.map_or("-".to_owned(), number));
    }
    rows
}

/// Prints rows with aligned columns.
fn columns(out: &mut String, rows: &[Vec<String>]) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("   ").trim_end());
    }
}
