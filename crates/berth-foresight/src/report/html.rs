//! The report as one HTML file: figures, charts over time and tenants. It loads nothing.

use std::fmt::Write as _;

use berth_load::chart::{Panel, escape, panels_svg};

use super::table::rows;
use super::{PUBLISHED_GPU_ALLOCATION_PERCENT, Report, number, percent, time};
use crate::figures::Figures;
use crate::policy::unit_name;

const STYLE: &str = "body{font:15px/1.5 sans-serif;color:#111;background:#fff;max-width:1080px;margin:2rem auto;\
padding:0 1rem}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}th,td{padding:.25rem .75rem;\
border-bottom:1px solid #ccc;text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}p.note{color:#444}";

/// The report as an HTML page.
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    let trace = &report.trace;
    let title = format!("Replay of {}", escape(&trace.name));
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>{}: {} jobs of {} tenants, submitted within {}.",
        escape(&trace.format),
        trace.jobs,
        trace.tenants,
        time(trace.submissions_seconds)
    );
    for (reason, count) in &trace.left_out {
        let _ = write!(out, " Left out: {count} jobs, {}.", escape(reason));
    }
    out.push_str("</p>\n");
    if !report.policies.is_empty() {
        out.push_str("<h2>Policies</h2>\n");
        write_table(&mut out, &rows(report));
        let _ = writeln!(
            out,
            "<p class=\"note\">Wait: from the submission to the start of the run that finished. Slowdown: wait and run \
             time divided by the run time, which counts at least 10 s. Use: share of nominal quota until the last \
             submission; borrowing between queues of a cohort does not raise it above 100 %. Fairness: Jain's index over \
             the tenants' served share (the work done until the last submission, divided by the work that would be done \
             without waiting), and over the tenants' mean slowdown.</p>\n<h2>Over time</h2>\n{}",
            charts(report)
        );
        tenants(&mut out, report);
    }
    for packing in &report.packings {
        let _ = writeln!(
            out,
            "<h2>Packing: {}</h2>\n<p>{} of the GPUs are allocated: {} of {}. Published: \
             {PUBLISHED_GPU_ALLOCATION_PERCENT} %. {} pods were placed, {} rejected.</p>",
            packing.placement.name(),
            percent(packing.share()),
            number(packing.allocated),
            number(packing.gpus),
            packing.placed,
            packing.rejected
        );
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn write_table(out: &mut String, rows: &[Vec<String>]) {
    out.push_str("<table>\n");
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        let _ = writeln!(out, "<tr>{cells}</tr>");
    }
    out.push_str("</table>\n");
}

/// Use of the main resource and waiting jobs, a line per policy.
fn charts(report: &Report) -> String {
    let resource = &report.trace.main_resource;
    let points = |figures: &Figures, values: &[f64], factor: f64| {
        let middle = |number: usize| (number as f64 + 0.5) * figures.over_time.interval_seconds;
        values.iter().enumerate().map(|(number, value)| (middle(number), value * factor)).collect::<Vec<_>>()
    };
    let line = |figures: &Figures| {
        let values = figures.over_time.utilization.get(resource).map(Vec::as_slice).unwrap_or_default();
        points(figures, values, 100.0)
    };
    let label = format!("use of {}, % of nominal quota", unit_name(resource));
    let panels = [
        Panel {
            label: &label,
            lines: report.policies.iter().map(|it| (it.policy.as_str(), line(it))).collect(),
            least: 100.0,
        },
        Panel {
            label: "jobs waiting",
            lines: report
                .policies
                .iter()
                .map(|it| (it.policy.as_str(), points(it, &it.over_time.waiting, 1.0)))
                .collect(),
            least: 1.0,
        },
    ];
    panels_svg(&report.trace.name, &panels)
}

fn tenants(out: &mut String, report: &Report) {
    let resource = &report.trace.main_resource;
    for figures in &report.policies {
        let _ = writeln!(out, "<h2>Tenants under {}</h2>", escape(&figures.policy));
        let head = ["tenant", "jobs", "wait, mean", "wait, p90", "slowdown, mean", "served", "evictions"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows[0].push(format!("{} hours", unit_name(resource)));
        for (name, tenant) in &figures.tenants {
            rows.push(vec![
                name.to_string(),
                tenant.jobs.to_string(),
                time(tenant.wait_seconds.mean),
                time(tenant.wait_seconds.p90),
                number(tenant.slowdown.mean),
                percent(tenant.served),
                tenant.evictions.to_string(),
                number(tenant.work_hours.get(resource).copied().unwrap_or(0.0)),
            ]);
        }
        write_table(out, &rows);
    }
}
