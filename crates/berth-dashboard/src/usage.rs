//! The usage of a period, as `berth usage` reports it.

use std::collections::BTreeMap;

use berth_api::berth::NodePool;
use berth_api::berth::usage::{UsageGroup, UsageReport};
use berth_api::kueue::v1beta2::ResourceFlavor;
use berth_controllers::explain::ask;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;

use crate::dashboard::Dashboard;
use crate::html::Html;
use crate::layout::{self, cannot, notice};
use crate::prices::Prices;
use crate::read::{self, Unread};
use crate::request::{Asked, Parameters};
use crate::state;

/// The periods to choose from, and their hours.
const PERIODS: [(&str, &str, i64); 5] = [
    ("1h", "Last hour", 1),
    ("24h", "Last day", 24),
    ("7d", "Last week", 7 * 24),
    ("30d", "Last 30 days", 30 * 24),
    ("365d", "Last year", 365 * 24),
];
/// What to group by.
const BY: [(&str, &str); 5] = [
    ("team", "By team"),
    ("user", "By user"),
    ("queue", "By ClusterQueue"),
    ("localqueue", "By LocalQueue"),
    ("flavor", "By flavor"),
];

/// Maximum number of NodePools and flavors that are read.
const OBJECTS_MAX: usize = 2_000;

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked) -> Response<String> {
    let frame = dashboard.frame(asked, "Usage", &["usage"]);
    let given = &asked.parameters;
    let now = dashboard.now().await;
    let by = BY.iter().map(|(by, _)| *by).find(|by| given.get("by") == Some(by)).unwrap_or("team");
    let query = format!("by={by}&{}", period(given, now, "7d"));
    let (read, prices) =
        futures::join!(read::within(ask::usage(&dashboard.client, given.get("ns"), &query)), prices(dashboard, given));
    let report: Result<UsageReport, Unread> =
        read.and_then(|it| serde_json::from_value(it).map_err(|error| Unread::Failed(error.to_string())));
    let code = report.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    layout::page(code, &frame, |html| {
        html.class("div", "bar-line", |html| {
            html.line("h1", "", "Usage");
            periods(html, "/usage", given, "7d", &BY);
        });
        if let Err(problem) = &prices {
            notice(html, format_args!("Prices: {problem}"));
        }
        match &report {
            Ok(report) => show(html, report, &prices.unwrap_or_default()),
            Err(unread) => cannot(html, unread),
        }
    })
}

/// The prices that the reader entered, or else those of the NodePools, if the reader may list them.
async fn prices(dashboard: &Dashboard, given: &Parameters) -> Result<Prices, String> {
    let entered = given.get("prices").unwrap_or_default();
    let found = dashboard.prices;
    if !entered.is_empty() {
        return found(entered, &[], &[]);
    }
    let pools: Api<NodePool> = Api::all(dashboard.client.clone());
    let flavors: Api<ResourceFlavor> = Api::all(dashboard.client.clone());
    match futures::join!(read::list(&pools, OBJECTS_MAX), read::list(&flavors, OBJECTS_MAX)) {
        (Ok(pools), Ok(flavors)) => found("", &pools.items, &flavors.items),
        _ => Ok(Prices::default()),
    }
}

/// The start of the period that the reader chose, as a parameter.
pub fn period(given: &Parameters, now: Timestamp, usual: &str) -> String {
    let chosen = given.get("since").unwrap_or(usual);
    let hours = PERIODS.iter().find(|(name, ..)| *name == chosen).map_or(24, |(.., hours)| *hours);
    let since = now.checked_sub(SignedDuration::from_hours(hours)).unwrap_or(now);
    format!("since={}", berth_apimachinery::percent::component(&berth_apimachinery::times::time(since)))
}

/// The form with the period, the namespace and the groups.
pub fn periods(
    html: &mut Html,
    action: &'static str,
    given: &Parameters,
    usual: &'static str,
    by: &[(&'static str, &'static str)],
) {
    html.element("form", &[("class", &"filter"), ("action", &action), ("data-instant", &"")], |html| {
        let all: Vec<(&str, &str)> = PERIODS.iter().map(|(value, text, _)| (*value, *text)).collect();
        select(html, "since", "Period", &all, given.get("since").unwrap_or(usual));
        if !by.is_empty() {
            select(html, "by", "Groups", by, given.get("by").unwrap_or("team"));
            let (prices, hint) = (given.get("prices").unwrap_or_default(), "Prices per hour: l4/nvidia.com/gpu=0.8");
            html.open(
                "input",
                &[("name", &"prices"), ("aria-label", &hint), ("placeholder", &hint), ("value", &prices)],
            );
        }
        let namespace = given.get("ns").unwrap_or_default();
        html.open(
            "input",
            &[("name", &"ns"), ("aria-label", &"Namespace"), ("placeholder", &"All namespaces"), ("value", &namespace)],
        );
        html.markup("<button>Show</button>");
    });
}

fn select(html: &mut Html, name: &'static str, label: &'static str, options: &[(&str, &str)], chosen: &str) {
    html.element("select", &[("name", &name), ("aria-label", &label)], |html| {
        for (value, text) in options {
            let mut attributes: Vec<(&'static str, &dyn std::fmt::Display)> = vec![("value", value)];
            if *value == chosen {
                attributes.push(("selected", &""));
            }
            html.element("option", &attributes, |html| html.text(text));
        }
    });
}

fn show(html: &mut Html, report: &UsageReport, prices: &Prices) {
    if let Some(withheld) = &report.withheld {
        let (stays, why) = (withheld.stays, &withheld.why.message);
        html.line("p", "quiet", format_args!("{stays} stays of other namespaces are left out. {why}"));
    }
    let time = |at: &Time| berth_apimachinery::times::time(at.0);
    let ends = report.known_since.as_ref().map(|known| format!(" Ends of jobs are known since {}.", time(known)));
    if let (Some(since), Some(until)) = (&report.since, &report.until) {
        let period = format!("From {} to {}.{}", time(since), time(until), ends.unwrap_or_default());
        html.line("p", "quiet", period);
    }
    if report.groups.is_empty() {
        html.line("p", "quiet", "Nothing was used in this period.");
        return;
    }
    let mut columns = vec![
        "Group",
        "#Jobs",
        "#Succeeded",
        "#Failed",
        "#Preempted",
        "#Evicted",
        "#Wait (median)",
        "#Wait (90 %)",
        "Resource",
        "#Hours",
        "#Lost",
        "#Of quota",
    ];
    if !prices.is_empty() {
        columns.extend(["#Cost", "#Cost of lost"]);
    }
    layout::rows(html, &columns, |html| {
        for group in &report.groups {
            rows(html, group, &group.name, prices);
        }
        if report.groups.len() > 1 {
            rows(html, &report.total, "All", prices);
        }
    });
}

/// Use of a resource, summed over the flavors of a group.
#[derive(Default)]
struct Summed {
    hours: f64,
    lost: f64,
    quota: f64,
    cost: f64,
    lost_cost: f64,
}

fn by_resource<'a>(group: &'a UsageGroup, prices: &Prices) -> BTreeMap<&'a str, Summed> {
    let mut sums: BTreeMap<&str, Summed> = BTreeMap::new();
    for used in &group.used {
        let sum = sums.entry(&used.resource).or_default();
        let lost = used.lost_by_preemption + used.lost_by_eviction + used.lost_by_failure;
        let price = prices.of(&used.flavor, &used.resource);
        sum.hours += used.hours;
        sum.lost += lost;
        sum.quota += used.quota_hours.unwrap_or(0.0);
        sum.cost += used.hours * price;
        sum.lost_cost += lost * price;
    }
    sums
}

/// A row per resource.
fn rows(html: &mut Html, group: &UsageGroup, name: &str, prices: &Prices) {
    let name = if name.is_empty() { "none" } else { name };
    let sums = by_resource(group, prices);
    let mut resources = sums.iter();
    for row in 0..sums.len().max(1) {
        html.class("tr", "", |html| {
            html.line("td", "name", if row == 0 { name } else { "" });
            let counts = [group.jobs, group.succeeded, group.failed, group.preemptions, group.evictions];
            for count in counts {
                html.line("td", "number", if row == 0 { count.to_string() } else { String::new() });
            }
            for seconds in [group.wait.p50, group.wait.p90] {
                let is_known = row == 0 && group.wait.admissions > 0;
                html.line("td", "number", if is_known { state::duration(seconds as i64) } else { String::new() });
            }
            let Some((resource, sum)) = resources.next() else {
                html.markup("<td></td><td></td><td></td><td></td>");
                if !prices.is_empty() {
                    html.markup("<td></td><td></td>");
                }
                return;
            };
            html.line("td", "nowrap", resource);
            html.line("td", "number", format_args!("{:.1}", sum.hours));
            html.line(
                "td",
                if sum.lost > 0.0 { "number bad" } else { "number quiet" },
                format_args!("{:.1}", sum.lost),
            );
            let share = (sum.quota > 0.0).then(|| format!("{:.0} %", sum.hours / sum.quota * 100.0));
            html.line("td", "number", share.unwrap_or_default());
            if !prices.is_empty() {
                html.line("td", "number", format_args!("{:.2}", sum.cost));
                let class = if sum.lost_cost > 0.0 { "number bad" } else { "number quiet" };
                html.line("td", class, format_args!("{:.2}", sum.lost_cost));
            }
        });
    }
}
