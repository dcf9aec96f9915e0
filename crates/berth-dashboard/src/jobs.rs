//! The jobs that exist now: filters, columns, groups and order are in the address, so that a view is a
//! link.

use berth_api::berth::current_jobs::{CurrentJob, CurrentJobs};
use berth_api::berth::explanation::Held;
use berth_api::berth::usage::{NOT_TRIED_YET, StayState};
use berth_controllers::explain::ask;
use http::{Response, StatusCode};
use jiff::Timestamp;

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::layout::{self, cannot, notice};
use crate::read::{self, Unread};
use crate::request::{Asked, Parameters};
use crate::state;

/// Number of jobs on a page.
const ROWS: usize = 100;
/// The usual order.
const NEWEST: &str = "-queued";
/// The columns: name in the address, title, the order that a click on the title asks for, and whether
/// it is shown by default. Titles with the prefix `#` are right-aligned.
const COLUMNS: [(&str, &str, &str, bool); 13] = [
    ("job", "Job", "name", true),
    ("kind", "Kind", "", false),
    ("queue", "ClusterQueue", "queue", true),
    ("localqueue", "LocalQueue", "", false),
    ("user", "User", "user", true),
    ("state", "State", "state", true),
    ("priority", "#Priority", "-priority", true),
    ("pods", "#Pods", "-pods", true),
    ("wait", "#Waited", "", true),
    ("run", "#Runs for", "", true),
    ("age", "#Age", "-queued", false),
    ("holds", "Holds", "", false),
    ("reason", "Reason", "", true),
];

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked) -> Response<String> {
    let frame = dashboard.frame(asked, "Jobs", &["jobs"]);
    let given = &asked.parameters;
    let (jobs, now) = futures::join!(list(dashboard, given, ROWS), dashboard.now());
    let code = jobs.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    layout::page(code, &frame, |html| {
        html.class("div", "bar-line", |html| {
            html.line("h1", "", "Jobs");
            filter(html, given);
        });
        match &jobs {
            Ok(jobs) => show(html, jobs, given, now),
            Err(unread @ Unread::Refused { code: 403, .. }) => {
                notice(html, format_args!("Enter a namespace whose jobs you may list. {unread}"));
            }
            Err(unread) => cannot(html, unread),
        }
    })
}

/// At most `rows` of the jobs that the parameters select, and how many jobs are in each state.
pub async fn list(dashboard: &Dashboard, given: &Parameters, rows: usize) -> Result<CurrentJobs, Unread> {
    let mut query = Parameters::default().with("limit", rows).with("offset", given.number("from"));
    // The newest jobs first, unless the reader asks for another order.
    query = query.with("sort", given.get("sort").unwrap_or(NEWEST));
    for name in ["q", "state", "queue", "user", "labels", "group"] {
        if let Some(value) = given.get(name) {
            query = query.with(name, value);
        }
    }
    let mut query = query.query();
    // The value of a group may be empty.
    if let (Some(value), Some(_)) = (given.given("value"), given.get("group")) {
        query.push_str(&format!("&value={}", berth_apimachinery::percent::component(value)));
    }
    let answer = read::within(ask::current_jobs(&dashboard.client, given.get("ns"), &query)).await?;
    serde_json::from_value(answer).map_err(|error| Unread::Failed(error.to_string()))
}

fn filter(html: &mut Html, given: &Parameters) {
    html.markup("<form class=\"filter\" action=\"/jobs\" role=\"search\" data-instant>");
    let mut input = |name: &'static str, label: &'static str, kind: &'static str| {
        html.open(
            "input",
            &[
                ("name", &name),
                ("type", &kind),
                ("aria-label", &label),
                ("placeholder", &label),
                ("value", &given.get(name).unwrap_or_default()),
                ("autocomplete", &"off"),
                ("spellcheck", &"false"),
            ],
        );
    };
    input("q", "Words in job, namespace, queue, user", "search");
    input("ns", "Namespace", "text");
    input("labels", "Label: team=a", "text");
    html.element("select", &[("name", &"group"), ("aria-label", &"Group by")], |html| {
        let now = given.get("group").unwrap_or_default();
        let mut option = |value: &str, text: &str| {
            let mut attributes: Vec<(&'static str, &dyn std::fmt::Display)> = vec![("value", &value)];
            if value == now {
                attributes.push(("selected", &""));
            }
            html.element("option", &attributes, |html| html.text(text));
        };
        option("", "No groups");
        for (value, text) in [
            ("namespace", "By namespace"),
            ("user", "By user"),
            ("queue", "By ClusterQueue"),
            ("localqueue", "By LocalQueue"),
            ("state", "By state"),
            ("reason", "By reason"),
        ] {
            option(value, text);
        }
        if let Some(label) = now.strip_prefix("label:") {
            option(now, &format!("By label {label}"));
        }
    });
    for name in ["state", "queue", "user", "sort", "columns"] {
        if let Some(value) = given.get(name) {
            html.open("input", &[("type", &"hidden"), ("name", &name), ("value", &value)]);
        }
    }
    html.markup("<button>Filter</button></form>");
}

/// The page with other parameters, from its first row.
fn to(given: &Parameters, name: &str, value: impl std::fmt::Display) -> Href {
    let query = given.without("from").without("refresh").with(name, value).query();
    Href::path(&["jobs"]).with_query(&query)
}

fn show(html: &mut Html, jobs: &CurrentJobs, given: &Parameters, now: Timestamp) {
    states(html, jobs, given);
    chosen(html, given);
    if let Some(withheld) = &jobs.withheld {
        html.line("p", "quiet", format_args!("{} jobs are not listed. {}", withheld.stays, withheld.why.message));
    }
    if given.get("group").is_some() {
        groups(html, jobs, given);
    }
    if jobs.items.is_empty() {
        html.line("p", "quiet", if jobs.total == 0 { "No job matches." } else { "There are no more jobs." });
    }
    let from = given.number("from");
    let page = |from: usize| {
        let from = if from > 0 { from.to_string() } else { String::new() };
        Href::path(&["jobs"]).with_query(&given.without("refresh").with("from", from).query())
    };
    layout::pager(html, from, jobs.items.len(), Some(jobs.total), ROWS, page);
    if !jobs.items.is_empty() {
        layout::after(html, jobs.groups.len(), |html| table(html, jobs, given, now));
        columns(html, given);
        labels(html, jobs, given);
    }
    layout::pager(html, from, jobs.items.len(), Some(jobs.total), ROWS, page);
}

/// The number of jobs per state, each a filter.
fn states(html: &mut Html, jobs: &CurrentJobs, given: &Parameters) {
    let all: usize = jobs.states.values().sum();
    let states = by_state(jobs).map(|(state, count)| (state.name(), count));
    layout::state_tabs(html, given, all, states, |value| to(given, "state", value));
}

/// The number of jobs in each state.
pub fn by_state(jobs: &CurrentJobs) -> impl Iterator<Item = (StayState, usize)> + '_ {
    let count = |state: StayState| jobs.states.get(state.name()).copied().unwrap_or(0);
    StayState::OF_CURRENT.into_iter().map(move |state| (state, count(state)))
}

/// The filters that a click on a cell sets, each with a link that removes it.
fn chosen(html: &mut Html, given: &Parameters) {
    let mut chosen: Vec<(&str, &str)> =
        ["queue", "user"].iter().filter_map(|name| Some((*name, given.get(name)?))).collect();
    if let (Some(value), Some(_)) = (given.given("value"), given.get("group")) {
        chosen.push(("value", if value.is_empty() { "none" } else { value }));
    }
    if chosen.is_empty() {
        return;
    }
    html.class("p", "chosen", |html| {
        for (name, value) in chosen {
            let label = if name == "value" { given.get("group").unwrap_or_default() } else { name };
            html.element("a", &[("href", &to(given, name, "")), ("title", &"Remove this filter")], |html| {
                html.text(format_args!("{label}: {value} ×"));
            });
        }
    });
}

fn groups(html: &mut Html, jobs: &CurrentJobs, given: &Parameters) {
    layout::table(html, &["Group", "#Jobs", "#Waiting", "#Running", "#Pods"], |html| {
        html.class("tbody", "", |html| {
            for group in &jobs.groups {
                html.class("tr", "", |html| {
                    let query = given.without("from").without("value").query();
                    let value = berth_apimachinery::percent::component(&group.value);
                    let to = Href::path(&["jobs"]).with_query(&format!("{query}&value={value}"));
                    let name = if group.value.is_empty() { "none" } else { &group.value };
                    html.class("td", "name", |html| html.link(&to, name));
                    for count in [group.jobs, group.waiting, group.running] {
                        html.line("td", "number", count);
                    }
                    html.line("td", "number", group.pods);
                });
            }
        });
    });
    if jobs.unlisted_groups > 0 {
        html.line("p", "quiet", format_args!("{} smaller groups are not listed.", jobs.unlisted_groups));
    }
}

/// The columns that the address names, or the usual ones.
fn shown<'a>(given: &Parameters) -> Vec<(&'a str, &'a str, &'a str)> {
    let named: Option<Vec<&str>> = given.get("columns").map(|names| names.split(',').collect());
    let is_shown = |name: &str, usual: bool| named.as_ref().map_or(usual, |named| named.contains(&name));
    let all = COLUMNS.iter().filter(|(name, _, _, usual)| is_shown(name, *usual));
    let found: Vec<_> = all.map(|(name, title, sort, _)| (*name, *title, *sort)).collect();
    if found.is_empty() { vec![("job", "Job", "name")] } else { found }
}

fn table(html: &mut Html, jobs: &CurrentJobs, given: &Parameters, now: Timestamp) {
    let columns = shown(given);
    let sort = given.get("sort").unwrap_or(NEWEST);
    html.markup("<div class=\"scroll\"><table class=\"rows\"><thead><tr>");
    for (_, title, by) in &columns {
        let (class, title) = title.strip_prefix('#').map_or(("", *title), |title| ("number", title));
        let is_sorted = !by.is_empty() && sort.trim_start_matches('-') == by.trim_start_matches('-');
        let direction = if sort.starts_with('-') { "descending" } else { "ascending" };
        let mut attributes: Vec<(&'static str, &dyn std::fmt::Display)> = vec![("scope", &"col"), ("class", &class)];
        if is_sorted {
            attributes.push(("aria-sort", &direction));
        }
        html.element("th", &attributes, |html| match *by {
            "" => html.text(title),
            by => {
                let next = if sort == by { reversed(by) } else { by.to_owned() };
                html.link(&to(given, "sort", next), title);
            }
        });
    }
    html.markup("</tr></thead><tbody>");
    for job in &jobs.items {
        html.class("tr", "", |html| {
            for (name, ..) in &columns {
                cell(html, name, job, given, now);
            }
        });
    }
    html.markup("</tbody></table></div>");
}

fn reversed(sort: &str) -> String {
    sort.strip_prefix('-').map_or_else(|| format!("-{sort}"), str::to_owned)
}

fn cell(html: &mut Html, column: &str, job: &CurrentJob, given: &Parameters, now: Timestamp) {
    let stay = &job.stay;
    let seconds = |from: Option<Timestamp>, to: Option<Timestamp>| {
        from.zip(to).map(|(from, to)| state::duration(to.as_second() - from.as_second())).unwrap_or_default()
    };
    let (queued, admitted) = (stay.queued.as_ref().map(|it| it.0), stay.admitted.as_ref().map(|it| it.0));
    let ended = stay.ended.as_ref().map(|it| it.0);
    let filter = |html: &mut Html, name: &str, value: &str| {
        html.class("td", "nowrap", |html| html.link(&to(given, name, value), value));
    };
    match column {
        "job" => html.class("td", "name", |html| {
            let workload = &stay.workload;
            let name = stay.job.as_ref().map_or(&workload.name, |job| &job.name);
            let to = Href::path(&["workloads", &workload.namespace, &workload.name]);
            html.link(&to, format_args!("{}/{name}", workload.namespace));
        }),
        "kind" => html.line("td", "nowrap", stay.job.as_ref().map_or("", |job| &job.kind)),
        "queue" => filter(html, "queue", &stay.cluster_queue),
        "localqueue" => filter(html, "queue", &stay.queue),
        "user" => filter(html, "user", &stay.user),
        "state" => html.line("td", state::class(stay.state), stay.state.name()),
        "priority" => html.line("td", "number", stay.priority),
        "pods" => html.line("td", "number", stay.pods),
        "wait" => html.line("td", "number", seconds(queued, admitted.or(ended).or(Some(now)))),
        "run" => html.line("td", "number", seconds(admitted, ended.or(Some(now)))),
        "age" => html.line("td", "number", seconds(queued, Some(now))),
        "holds" => html.line("td", "long", if stay.state.is_end() { String::new() } else { holds(&stay.holds) }),
        _ => html.class("td", "long", |html| {
            if stay.state == StayState::Running || stay.state == StayState::Succeeded {
                return;
            }
            html.text(stay.shown_reason());
            if stay.shown_reason() == NOT_TRIED_YET {
                html.line("div", "quiet", "The jobs ahead of it in its queue are tried first.");
            }
            if !job.message.is_empty() {
                html.line("div", "quiet message", state::shortened(&job.message));
            }
        }),
    }
}

/// Amounts as text.
pub fn holds(held: &[Held]) -> String {
    let texts: Vec<String> =
        held.iter().map(|it| format!("{} {} of {}", it.amount.0, it.resource, it.flavor)).collect();
    texts.join(", ")
}

/// Links that add and remove columns.
fn columns(html: &mut Html, given: &Parameters) {
    let shown: Vec<&str> = shown(given).into_iter().map(|(name, ..)| name).collect();
    html.class("details", "columns", |html| {
        html.line("summary", "", "Columns");
        html.class("p", "tabs", |html| {
            for (name, title, ..) in COLUMNS {
                let is_shown = shown.contains(&name);
                let next: Vec<&str> = COLUMNS
                    .iter()
                    .map(|(it, ..)| *it)
                    .filter(|it| if *it == name { !is_shown } else { shown.contains(it) })
                    .collect();
                let to = to(given, "columns", next.join(","));
                let pressed = if is_shown { "true" } else { "false" };
                html.element("a", &[("href", &to), ("aria-current", &pressed)], |html| {
                    html.text(title.trim_start_matches('#'));
                });
            }
        });
    });
}

/// Links that group by the labels of the jobs of this page.
fn labels(html: &mut Html, jobs: &CurrentJobs, given: &Parameters) {
    let keys: std::collections::BTreeSet<&String> = jobs.items.iter().flat_map(|job| job.stay.labels.keys()).collect();
    if keys.is_empty() {
        return;
    }
    html.class("details", "columns", |html| {
        html.line("summary", "", "Group by a label");
        html.class("p", "tabs", |html| {
            for key in keys {
                html.link(&to(&given.without("value"), "group", format_args!("label:{key}")), key);
            }
        });
    });
}
