//! The preemptions of a period: which job lost which quota to which other job, and by which rule.

use berth_api::berth::decision::{DecisionOutcome, DecisionRecord};
use berth_api::berth::explanation::WorkloadExplanation;
use berth_api::berth::usage::{Stay, StayState, Stays};
use berth_controllers::explain::ask;
use futures::{FutureExt, StreamExt};
use http::{Response, StatusCode};
use jiff::Timestamp;

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::jobs::holds;
use crate::layout::{self, cannot, notice};
use crate::read::{self, Unread};
use crate::request::{Asked, Parameters};
use crate::state;
use crate::usage::{period, periods};

/// The usual period.
const USUAL: &str = "24h";
/// Number of preemptions on a page.
const ROWS: usize = 100;
/// Number of preemptions that are read.
const STAYS: usize = 1_000;
/// Number of preemptions whose decision is read.
const DECISIONS: usize = 30;
/// Number of concurrent reads.
const AT_ONCE: usize = 8;

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked) -> Response<String> {
    let frame = dashboard.frame(asked, "Preemptions", &["preemptions"]);
    let now = dashboard.now().await;
    let given = &asked.parameters;
    let stays = stays(dashboard, given, now, USUAL).await;
    let code = stays.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    let mut evicted: Vec<&Stay> = stays.iter().flat_map(|stays| stays.items.iter().rev()).collect();
    let count = evicted.len();
    evicted.truncate(ROWS);
    let reads: Vec<_> = evicted.iter().take(DECISIONS).map(|stay| decision(dashboard, stay).boxed()).collect();
    let decisions: Vec<Option<DecisionRecord>> = futures::stream::iter(reads).buffered(AT_ONCE).collect().await;
    layout::page(code, &frame, |html| {
        html.class("div", "bar-line", |html| {
            html.line("h1", "", "Preemptions");
            periods(html, "/preemptions", given, USUAL, &[]);
        });
        let stays = match &stays {
            Ok(stays) => stays,
            Err(unread) => return cannot(html, unread),
        };
        if let Some(withheld) = &stays.withheld {
            let (stays, why) = (withheld.stays, &withheld.why.message);
            html.line("p", "quiet", format_args!("{stays} preemptions in other namespaces are not considered. {why}"));
        }
        if stays.unlisted > 0 {
            notice(
                html,
                format_args!("{} older preemptions are not considered; choose a shorter period.", stays.unlisted),
            );
        }
        if evicted.is_empty() {
            html.line("p", "quiet", "No job was preempted in this period.");
            return;
        }
        let preemptions = if count == 1 { "preemption" } else { "preemptions" };
        html.line("p", "quiet", format_args!("{count} {preemptions}, the newest {} first.", evicted.len()));
        table(html, &evicted, &decisions, now);
    })
}

/// The preemptions of the period that the parameters state, or of the usual one.
pub async fn stays(
    dashboard: &Dashboard,
    given: &Parameters,
    now: Timestamp,
    usual: &'static str,
) -> Result<Stays, Unread> {
    let query = format!("{}&state=Preempted&limit={STAYS}", period(given, now, usual));
    let read = read::within(ask::stays(&dashboard.client, given.get("ns"), &query)).await?;
    let mut stays: Stays = serde_json::from_value(read).map_err(|error| Unread::Failed(error.to_string()))?;
    // Controllers of an earlier version send stays of all states.
    stays.items.retain(|it| it.state == StayState::Preempted);
    Ok(stays)
}

/// The decision that ended a stay, if the workload still exists and the decision is kept.
async fn decision(dashboard: &Dashboard, stay: &Stay) -> Option<DecisionRecord> {
    let workload = &stay.workload;
    let answer = read::within(ask::api_server(&dashboard.client, &workload.namespace, &workload.name)).await.ok()?;
    let explained: WorkloadExplanation = serde_json::from_value(answer).ok()?;
    let ended = stay.ended.as_ref()?.0.as_second();
    // The decision is made at most some seconds before its eviction is written.
    let is_it = |record: &DecisionRecord| {
        let at = record.time.as_ref().map_or(i64::MIN, |time| time.0.as_second());
        record.outcome == DecisionOutcome::Preempted && (ended - at).abs() <= 10
    };
    explained.decisions.into_iter().find(is_it)
}

fn table(html: &mut Html, evicted: &[&Stay], decisions: &[Option<DecisionRecord>], now: Timestamp) {
    let columns = ["#Ago", "Job", "ClusterQueue", "Lost", "#Ran for", "Preempted by", "Rule"];
    layout::rows(html, &columns, |html| {
        for (place, stay) in evicted.iter().enumerate() {
            let record = decisions.get(place).and_then(Option::as_ref);
            html.class("tr", "", |html| row(html, stay, record, now));
        }
    });
}

fn row(html: &mut Html, stay: &Stay, record: Option<&DecisionRecord>, now: Timestamp) {
    let ended = stay.ended.as_ref().map(|it| it.0);
    let ago = ended.map(|at| state::duration(now.as_second() - at.as_second())).unwrap_or_default();
    html.line("td", "number", ago);
    html.class("td", "name", |html| {
        let workload = &stay.workload;
        let name = stay.job.as_ref().map_or(&workload.name, |job| &job.name);
        let to = Href::path(&["workloads", &workload.namespace, &workload.name]);
        html.link(&to, format_args!("{}/{name}", workload.namespace));
    });
    html.line("td", "nowrap", &stay.cluster_queue);
    html.line("td", "long", holds(&stay.holds));
    let ran = stay.admitted.as_ref().zip(ended).map(|(from, to)| to.as_second() - from.0.as_second());
    html.line("td", "number", ran.map(state::duration).unwrap_or_default());
    let preemption = record.and_then(|record| record.preemption.as_ref());
    html.class("td", "nowrap", |html| match preemption.map(|it| (it, &it.preemptor)) {
        Some((it, Some(preemptor))) => {
            crate::explained::link(html, preemptor);
            html.line("div", "quiet", format_args!("of {}", it.preemptor_cluster_queue));
        }
        Some((it, None)) => html.line("span", "quiet", format_args!("a job of {}", it.preemptor_cluster_queue)),
        None => html.line("span", state::class(stay.state), &stay.reason),
    });
    html.line("td", "long", preemption.map_or("", |it| it.rule.as_str()));
}
