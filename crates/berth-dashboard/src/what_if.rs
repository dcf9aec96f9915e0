//! The form of what-if: manifests and changes, and what they would do. Nothing is changed.

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_apimachinery::percent::segment;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::dashboard::Dashboard;
use crate::forecast::from_now;
use crate::html::Html;
use crate::layout::{self, notice};
use crate::read::{self, Unread};
use crate::request::{Asked, Parameters};
use crate::state;

/// Maximum number of jobs in the table.
const ROWS: usize = 500;
/// Single changes: field of the form, field of the question, label, example.
const EDITS: [(&str, &str, &str, &str); 4] = [
    ("quotas", "quotas", "Nominal quota", "blue/spot/nvidia.com/gpu=+8"),
    ("priorities", "priorities", "Priority", "team/train-7=100"),
    ("pools", "pools", "Maximum nodes of a pool", "spot-np=40"),
    ("without", "without", "Leave out", "Node/gpu-7"),
];

/// The page; `form` has the fields of a question.
pub async fn page(dashboard: &Dashboard, asked: &Asked, form: Option<&str>) -> Response<String> {
    let mut frame = dashboard.frame(asked, "What if", &["what-if"]);
    // An update would discard what the reader has typed.
    frame.refresh = None;
    let given = form.map_or_else(|| asked.parameters.clone(), Parameters::parse);
    let answer = match form {
        Some(_) => Some(ask(dashboard, &given).await),
        None => None,
    };
    let code = match &answer {
        Some(Err(unread)) => unread.code(),
        _ => StatusCode::OK,
    };
    layout::page(code, &frame, |html| {
        html.line("h1", "", "What if");
        html.line(
            "p",
            "quiet",
            "What would happen to the jobs if these changes were made now? Nothing is created or changed.",
        );
        match &answer {
            Some(Ok(answer)) => show(html, answer),
            Some(Err(unread)) => notice(html, unread),
            None => {}
        }
        fields(html, &given);
    })
}

fn fields(html: &mut Html, given: &Parameters) {
    html.markup("<form class=\"fields\" action=\"/what-if\" method=\"post\"><label>Namespace of new jobs; empty for ");
    html.markup("changes of the whole cluster ");
    let namespace = given.get("ns").unwrap_or_default();
    html.open("input", &[("name", &"ns"), ("value", &namespace), ("placeholder", &"team")]);
    html.markup("</label><label>Manifests of jobs, queues or nodes, in YAML or JSON ");
    html.element("textarea", &[("name", &"manifests"), ("rows", &"12"), ("spellcheck", &"false")], |html| {
        // A browser drops a line break right after the start tag.
        html.markup("\n");
        html.text(given.get("manifests").unwrap_or_default());
    });
    html.markup("</label>");
    for (name, _, label, example) in EDITS {
        html.class("label", "", |html| {
            html.text(format_args!("{label}, one per line "));
            html.element("textarea", &[("name", &name), ("rows", &"2"), ("placeholder", &example)], |html| {
                html.markup("\n");
                html.text(given.get(name).unwrap_or_default());
            });
        });
    }
    html.markup("<button>Ask</button></form>");
}

async fn ask(dashboard: &Dashboard, given: &Parameters) -> Result<Value, Unread> {
    let mut spec = json!({});
    for (name, field, ..) in EDITS {
        let lines = given.get(name).unwrap_or_default().lines().map(str::trim).filter(|it| !it.is_empty());
        let lines: Vec<&str> = lines.collect();
        if !lines.is_empty() {
            spec[field] = json!(lines);
        }
    }
    let mut body = given.get("manifests").unwrap_or_default().replace("\r\n", "\n");
    let has_edits = spec.as_object().is_some_and(|it| !it.is_empty());
    if has_edits || body.trim_start().starts_with('{') {
        // JSON documents are not separated by lines, so the edits come first.
        let edits = json!({"kind": "WhatIf", "spec": spec});
        body = if has_edits { format!("---\n{edits}\n---\n{body}\n") } else { body };
    }
    let scope = given.get("ns").map(|it| format!("namespaces/{}/", segment(it.trim()))).unwrap_or_default();
    let path = format!("/apis/{GROUP}/{VERSION}/{scope}whatifs");
    let asking = async {
        let request = Request::post(path).header("content-type", "application/yaml").body(body.into_bytes());
        dashboard.client.request(request.map_err(kube::Error::HttpError)?).await
    };
    read::within(asking).await
}

fn show(html: &mut Html, answer: &Value) {
    let now: Timestamp = answer["at"].as_str().and_then(|at| at.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH);
    html.line("h2", "", "The answer");
    let rows: Vec<&Value> = answer["jobs"].as_array().into_iter().flatten().collect();
    for row in rows.iter().filter(|row| row["new"] == true) {
        verdict(html, row);
    }
    figures(html, answer);
    if let Some(text) = answer["cut"]["text"].as_str() {
        notice(html, text);
    }
    if rows.is_empty() {
        html.line("p", "", "Nothing changes for any job.");
    } else {
        jobs(html, &rows, now);
    }
    if let Some(message) = answer["withheld"]["message"].as_str() {
        html.line("p", "quiet", format_args!("{} jobs are not listed. {message}", answer["withheld"]["jobs"]));
    }
    html.line("h2", "", "The question");
}

fn verdict(html: &mut Html, row: &Value) {
    html.class("p", "notice", |html| {
        html.line("b", "", row["job"].as_str().unwrap_or_default());
        html.text(format_args!(": {}", row["verdict"].as_str().unwrap_or_default()));
        let evicts: Vec<&str> = row["evicts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if !evicts.is_empty() {
            html.text(format_args!(" Evicted: {}", evicts.join(", ")));
        }
        if let Some(others) = row["evictsOthers"].as_u64().filter(|it| *it > 0) {
            html.text(format_args!(" ({others} of them are not named here.)"));
        }
    });
}

fn figures(html: &mut Html, answer: &Value) {
    if answer["before"].is_null() {
        return;
    }
    let seconds = |value: &Value| value.as_f64().map(|it| state::duration(it.round() as i64)).unwrap_or_default();
    let plain = |value: &Value| value.to_string();
    let rows: [(&str, &str, &dyn Fn(&Value) -> String); 7] = [
        ("Waiting jobs that start", "start", &plain),
        ("Waiting jobs whose start is unknown", "unknown", &plain),
        ("Mean time to their start", "meanWaitSeconds", &seconds),
        ("Longest time to their start", "longestWaitSeconds", &seconds),
        ("Evictions", "evictions", &plain),
        ("Lost work", "lostSeconds", &seconds),
        ("Time until all known jobs ended", "wallSeconds", &seconds),
    ];
    layout::rows(html, &["", "#As it is", "#With the changes"], |html| {
        for (name, field, text) in rows {
            html.class("tr", "", |html| {
                html.line("td", "", name);
                html.line("td", "number", text(&answer["before"][field]));
                html.line("td", "number", text(&answer["after"][field]));
            });
        }
        for resource in answer["after"]["utilization"].as_object().into_iter().flatten().map(|(name, _)| name) {
            html.class("tr", "", |html| {
                html.line("td", "", format_args!("{resource} in use until all have started"));
                for side in ["before", "after"] {
                    let share = answer[side]["utilization"][resource].as_f64();
                    html.line("td", "number", share.map(|it| format!("{:.0} %", it * 100.0)).unwrap_or_default());
                }
            });
        }
    });
}

fn jobs(html: &mut Html, rows: &[&Value], now: Timestamp) {
    let columns = ["Job", "Starts as it is", "With the changes", "Ends", "Flavors", "Evicted"];
    layout::rows(html, &columns, |html| {
        for row in rows.iter().take(ROWS) {
            let time = |value: &Value| value.as_str().and_then(|at| at.parse::<Timestamp>().ok());
            let start = |fate: &Value| match (fate.is_null(), row["holdsQuota"] == true) {
                (true, _) => "–".to_owned(),
                (_, true) => "runs".to_owned(),
                _ => time(&fate["start"]).map_or("unknown".to_owned(), |at| from_now(at, now)),
            };
            let after = &row["after"];
            html.class("tr", "", |html| {
                let new = if row["new"] == true { " (new)" } else { "" };
                html.line("td", "name", format_args!("{}{new}", row["job"].as_str().unwrap_or_default()));
                html.line("td", "nowrap", start(&row["before"]));
                html.line("td", "nowrap", start(after));
                html.line("td", "nowrap", time(&after["end"]).map_or("unknown".to_owned(), |at| from_now(at, now)));
                let flavors: Vec<&str> =
                    after["flavors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                html.line("td", "", flavors.join(", "));
                html.line("td", "nowrap bad", time(&after["evicted"]).map(|at| from_now(at, now)).unwrap_or_default());
            });
        }
    });
    if rows.len() > ROWS {
        html.line("p", "quiet", format_args!("{} more jobs change.", rows.len() - ROWS));
    }
}
