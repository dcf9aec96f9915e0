//! Charts a run over time: quota in use, pending workloads, and admissions per second, as a
//! self-contained SVG.

use std::fmt::Write as _;

use crate::ledger::Moment;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const GAP: f64 = 50.0;

/// Draws a run from its moments. `quota` is the total quota in thousandths of a CPU.
pub fn svg(title: &str, moments: &[Moment], quota: i64) -> String {
    let seconds = moments.last().map_or(0.0, |last| last.at.as_secs_f64()).max(0.001);
    let quota = (quota.max(1)) as f64;
    let usage: Vec<(f64, f64)> =
        moments.iter().map(|it| (it.at.as_secs_f64(), it.used as f64 / quota * 100.0)).collect();
    let pending: Vec<(f64, f64)> = moments.iter().map(|it| (it.at.as_secs_f64(), it.pending as f64)).collect();
    let rates: Vec<(f64, f64)> = moments
        .windows(2)
        .filter(|pair| pair[1].at > pair[0].at)
        .map(|pair| {
            let span = (pair[1].at - pair[0].at).as_secs_f64();
            (pair[1].at.as_secs_f64(), pair[1].admissions.saturating_sub(pair[0].admissions) as f64 / span)
        })
        .collect();
    let panels: [(&str, &[(f64, f64)], f64); 3] = [
        ("quota in use, %", &usage, 100.0),
        ("workloads waiting", &pending, 1.0),
        ("admissions per second", &rates, 1.0),
    ];
    let total = TOP + panels.len() as f64 * (HEIGHT + GAP);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{total}\" viewBox=\"0 0 {0} {total}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{1}</text>",
        LEFT + WIDTH + 20.0,
        escape(title)
    );
    for (index, (label, points, least)) in panels.into_iter().enumerate() {
        panel(&mut out, TOP + index as f64 * (HEIGHT + GAP), label, points, seconds, least);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, top: f64, label: &str, points: &[(f64, f64)], seconds: f64, least: f64) {
    let most = points.iter().map(|(_, value)| *value).fold(least, f64::max);
    let bottom = top + HEIGHT;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{label}</text>", top + 12.0);
    for part in 0..=2 {
        let y = bottom - (HEIGHT - 20.0) * f64::from(part) / 2.0;
        let value = most * f64::from(part) / 2.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
            LEFT + WIDTH,
            LEFT - 6.0,
            y + 4.0
        );
    }
    for part in 0..=4 {
        let x = LEFT + WIDTH * f64::from(part) / 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1} s</text>",
            bottom + 16.0,
            seconds * f64::from(part) / 4.0
        );
    }
    let mut line = String::new();
    for (at, value) in points {
        let x = LEFT + WIDTH * (at / seconds).min(1.0);
        let y = bottom - (HEIGHT - 20.0) * value / most;
        let _ = write!(line, "{x:.1},{y:.1} ");
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\"/>",
        line.trim_end()
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
