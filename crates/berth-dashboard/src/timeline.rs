//! The states of a workload over time, as a bar and as a list, from its history.

use berth_api::berth::usage::{Stay, WorkloadHistory};
use jiff::Timestamp;

use crate::html::Html;
use crate::{jobs, layout, state};

/// Width of the bar.
const WIDTH: f64 = 1000.0;
/// Maximum number of stays in the list.
const STAYS_MAX: usize = 100;

/// A part of the bar.
struct Span {
    class: &'static str,
    name: &'static str,
    from: i64,
    to: i64,
}

fn second(at: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>) -> Option<i64> {
    at.map(|at| at.0.as_second())
}

fn spans(stays: &[Stay], now: i64) -> Vec<Span> {
    let mut spans = Vec::new();
    for stay in stays {
        let end = second(stay.ended.as_ref()).unwrap_or(now);
        let queued = second(stay.queued.as_ref()).unwrap_or(end);
        let reserved = second(stay.reserved.as_ref());
        let admitted = second(stay.admitted.as_ref());
        let parts = [
            ("span-wait", "waits", Some(queued), reserved.or(admitted).unwrap_or(end)),
            ("span-held", "holds quota, waits for its admission checks", reserved, admitted.unwrap_or(end)),
            ("span-run", "runs", admitted, end),
        ];
        for (class, name, from, to) in parts {
            if let Some(from) = from.filter(|from| *from < to) {
                spans.push(Span { class, name, from, to });
            }
        }
    }
    spans
}

/// The section.
pub fn show(html: &mut Html, history: &WorkloadHistory, now: Timestamp) {
    if history.stays.is_empty() {
        return;
    }
    html.line("h2", "", "Timeline");
    let spans = spans(&history.stays, now.as_second());
    let (start, end) = (spans.iter().map(|it| it.from).min(), spans.iter().map(|it| it.to).max());
    if let (Some(start), Some(end)) = (start, end) {
        bar(html, &spans, start, end);
    }
    let columns = ["#Queued", "#Waited", "#Ran for", "State", "Reason", "Quota"];
    layout::table(html, &columns, |html| {
        html.class("tbody", "", |html| {
            for stay in history.stays.iter().rev().take(STAYS_MAX) {
                html.class("tr", "", |html| row(html, stay, now.as_second()));
            }
        });
    });
}

fn bar(html: &mut Html, spans: &[Span], start: i64, end: i64) {
    let whole = (end - start).max(1) as f64;
    let text: Vec<String> =
        spans.iter().map(|it| format!("{} for {}", it.name, state::duration(it.to - it.from))).collect();
    html.element(
        "svg",
        &[
            ("class", &"timeline"),
            ("viewBox", &"0 0 1000 16"),
            ("preserveAspectRatio", &"none"),
            ("role", &"img"),
            ("aria-label", &text.join(", ")),
        ],
        |html| {
            for span in spans {
                let x = format!("{:.1}", (span.from - start) as f64 / whole * WIDTH);
                let width = format!("{:.1}", ((span.to - span.from) as f64 / whole * WIDTH).max(1.0));
                let place: [(&str, &dyn std::fmt::Display); 4] =
                    [("class", &span.class), ("x", &x), ("width", &width), ("height", &"16")];
                html.element("rect", &place, |html| {
                    html.line("title", "", format_args!("{} for {}", span.name, state::duration(span.to - span.from)));
                });
            }
        },
    );
    html.markup("<p class=\"legend quiet\"><span class=\"key span-wait\"></span> waits ");
    html.markup("<span class=\"key span-held\"></span> holds quota <span class=\"key span-run\"></span> runs</p>");
}

fn row(html: &mut Html, stay: &Stay, now: i64) {
    let ago = |at: Option<i64>| at.map(|at| format!("{} ago", state::duration(now - at))).unwrap_or_default();
    let (queued, admitted) = (second(stay.queued.as_ref()), second(stay.admitted.as_ref()));
    let ended = second(stay.ended.as_ref());
    let end = ended.unwrap_or(now);
    let span = |from: Option<i64>, to: i64| from.map(|from| state::duration(to - from)).unwrap_or_default();
    html.line("td", "number", ago(queued));
    html.line("td", "number", span(queued, admitted.unwrap_or(end)));
    html.line("td", "number", span(admitted, end));
    html.class("td", state::class(stay.state), |html| {
        html.text(stay.state.name());
        html.text(ended.map(|_| format!(" {}", ago(ended))).unwrap_or_default());
    });
    html.line("td", "nowrap", stay.shown_reason());
    html.line("td", "long", jobs::holds(&stay.holds));
}
