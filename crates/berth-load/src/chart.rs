//! Charts over time as self-contained SVG: panels of lines below each other, with one time axis.

use std::fmt::Write as _;

use crate::ledger::Moment;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 180.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const GAP: f64 = 50.0;
/// Colors of the lines of a panel, in order; each has a contrast of at least 3 to 1 on white.
const COLORS: [&str; 8] = ["#1f6feb", "#c2410c", "#15803d", "#9333ea", "#b91c1c", "#0e7490", "#a16207", "#4b5563"];

/// A panel: lines with one vertical axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel<'a> {
    /// What the vertical axis shows.
    pub label: &'a str,
    /// Name and points of each line: seconds, value. Names are shown if there are several lines.
    pub lines: Vec<(&'a str, Vec<(f64, f64)>)>,
    /// Upper end of the vertical axis, unless a value is larger.
    pub least: f64,
}

/// Draws a run from its moments: quota in use, pending workloads, and admissions per second.
/// `quota` is the total quota in thousandths of a CPU.
pub fn svg(title: &str, moments: &[Moment], quota: i64) -> String {
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
    let panel = |label, points, least| Panel { label, lines: vec![(label, points)], least };
    let panels = [
        panel("quota in use, %", usage, 100.0),
        panel("workloads waiting", pending, 1.0),
        panel("admissions per second", rates, 1.0),
    ];
    panels_svg(title, &panels)
}

/// Draws panels below each other.
pub fn panels_svg(title: &str, panels: &[Panel<'_>]) -> String {
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|(_, points)| points);
    let seconds = points().map(|(at, _)| *at).fold(0.001, f64::max);
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
    for (index, panel) in panels.iter().enumerate() {
        draw(&mut out, TOP + index as f64 * (HEIGHT + GAP), panel, seconds);
    }
    out.push_str("</svg>\n");
    out
}

fn draw(out: &mut String, top: f64, panel: &Panel<'_>, seconds: f64) {
    let values = panel.lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
    let most = values.fold(panel.least, f64::max);
    let bottom = top + HEIGHT;
    let _ = writeln!(out, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", top + 12.0, escape(panel.label));
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
        let at = axis_time(seconds * f64::from(part) / 4.0, seconds);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at}</text>", bottom + 16.0);
    }
    for (number, (name, points)) in panel.lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let mut line = String::new();
        for (at, value) in points {
            let x = LEFT + WIDTH * (at / seconds).min(1.0);
            let y = bottom - (HEIGHT - 20.0) * value / most;
            let _ = write!(line, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            line.trim_end()
        );
        if panel.lines.len() > 1 {
            let (x, y) = (LEFT + 260.0 + 140.0 * (number % 5) as f64, top + 12.0 + 14.0 * (number / 5) as f64);
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{}</text>", escape(name));
        }
    }
}

/// A time on an axis of this length, in seconds, hours or days.
fn axis_time(at: f64, length: f64) -> String {
    const HOUR: f64 = 3600.0;
    const DAY: f64 = 86_400.0;
    if length >= 3.0 * DAY {
        format!("{:.1} d", at / DAY)
    } else if length >= 3.0 * HOUR {
        format!("{:.1} h", at / HOUR)
    } else {
        format!("{at:.1} s")
    }
}

/// Escapes text for XML and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
