//! `berth queue` and `berth jobs`: the jobs that wait and run, and those that ended.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use berth_api::berth::usage::{Stay, StayState, Stays};
use berth_apimachinery::table::human_duration;
use berth_apimachinery::times;
use berth_controllers::explain::ask;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde_json::json;

use super::Place;
use crate::accounting::{PeriodOptions, request_error};
use crate::listing::{Column, Format, Listing, or_none};
use crate::{foresee, process};

/// Number of jobs in a request: the server's maximum.
const LIMIT: usize = 10_000;

/// Options of both lists.
#[derive(Args)]
pub struct Filter {
    /// Jobs of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Only jobs of this user.
    #[arg(short, long)]
    user: Option<String>,
    /// Only jobs of this LocalQueue or ClusterQueue.
    #[arg(short, long)]
    queue: Option<String>,
    /// Only jobs in one of these states, separated by commas.
    #[arg(short, long, value_delimiter = ',', ignore_case = true, value_parser = states())]
    state: Vec<StayState>,
    /// Output format: table, wide, json, yaml, name, csv or jsonpath=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    place: Place,
}

/// Options of `berth queue`.
#[derive(Args)]
pub struct QueueOptions {
    /// Add the forecast of the start of waiting jobs. This reads the state of the whole cluster, with
    /// your permissions: docs/forecast.md.
    #[arg(long)]
    start: bool,
    #[command(flatten)]
    filter: Filter,
}

/// Options of `berth jobs`.
#[derive(Args)]
pub struct JobsOptions {
    #[command(flatten)]
    period: PeriodOptions,
    #[command(flatten)]
    filter: Filter,
}

/// Parses a state by its name, in any case.
fn states() -> impl TypedValueParser<Value = StayState> {
    let named = |text: String| StayState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(&text));
    // The parser accepts names of states only.
    PossibleValuesParser::new(StayState::ALL.map(StayState::name)).map(move |text| named(text).unwrap_or_default())
}

impl Filter {
    fn selects(&self, stay: &Stay) -> bool {
        self.user.as_ref().is_none_or(|user| *user == stay.user)
            && self.queue.as_ref().is_none_or(|queue| *queue == stay.queue || *queue == stay.cluster_queue)
            && (self.state.is_empty() || self.state.contains(&stay.state))
    }

    /// The message in place of an empty list, with what would list more.
    fn none(&self, what: &str, namespace: &str) -> String {
        let is_filtered = self.user.is_some() || self.queue.is_some() || !self.state.is_empty();
        let job = if is_filtered { "No job of this selection" } else { "No job" };
        match self.all_namespaces {
            true => format!("{job} {what}."),
            false => format!("{job} {what} in namespace {namespace}; -A lists all namespaces."),
        }
    }

    /// The selected stays of a period, and the time on the cluster's clock.
    async fn stays(&self, client: &Client, namespace: &str, query: &str) -> anyhow::Result<(Vec<Stay>, Timestamp)> {
        let scope = (!self.all_namespaces).then_some(namespace);
        let answer = ask::stays(client, scope, &format!("limit={LIMIT}&{query}")).await;
        let found: Stays = serde_json::from_value(answer.map_err(|error| request_error(error, "the jobs"))?)?;
        if found.unlisted > 0 {
            eprintln!("berth: {} older jobs are not listed; choose a shorter period or a namespace", found.unlisted);
        }
        if let Some(withheld) = &found.withheld {
            eprintln!("berth: {} jobs of other namespaces are not listed. {}", withheld.stays, withheld.why.message);
        }
        let now = found.now.context("the controllers do not report their time")?.0;
        Ok((found.items.into_iter().filter(|stay| self.selects(stay)).collect(), now))
    }
}

/// Prints the jobs that wait and run.
pub fn queue(options: &QueueOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let filter = &options.filter;
        let (client, namespace) = filter.place.open().await?;
        // Stays that go on are part of every period that ends now.
        let since = foresee::now(&client).await?.checked_sub(jiff::SignedDuration::from_secs(60))?;
        let query = format!("since={}", times::time(since));
        let (mut stays, now) = filter.stays(&client, &namespace, &query).await?;
        stays.retain(|stay| stay.ended.is_none());
        let starts = if options.start { foresee::starts(&client).await? } else { BTreeMap::new() };
        let list = queue_list(&stays, now, options.start.then_some(&starts));
        list.print(&filter.output, &filter.none("waits or runs", &namespace))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the jobs of a period.
pub fn jobs(options: &JobsOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let filter = &options.filter;
        let (client, namespace) = filter.place.open().await?;
        let query = options.period.query(foresee::now(&client).await?)?;
        let (stays, now) = filter.stays(&client, &namespace, &query).await?;
        let list = jobs_list(&stays, now);
        list.print(&filter.output, &filter.none("existed in this period", &namespace))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Forecast start by namespace and name of the Workload.
pub type Starts = BTreeMap<(String, String), String>;

/// The list of `berth queue`, with a column of forecast starts if there are any.
pub fn queue_list(stays: &[Stay], now: Timestamp, starts: Option<&Starts>) -> Listing {
    let mut columns = vec![
        Column::Usual("NAMESPACE"),
        Column::Usual("JOB"),
        Column::Usual("QUEUE"),
        Column::Usual("USER"),
        Column::Usual("STATE"),
        Column::Usual("TIME"),
        Column::Usual("PODS"),
        Column::Usual("PRIORITY"),
        Column::Usual("REASON"),
        Column::Wide("CLUSTER QUEUE"),
        Column::Wide("HOLDS"),
        Column::Wide("WORKLOAD"),
    ];
    columns.extend(starts.map(|_| Column::Usual("STARTS")));
    let row = |stay: &Stay| {
        let since = stay.admitted.as_ref().or(stay.reserved.as_ref()).or(stay.queued.as_ref());
        let is_admitted = stay.state == StayState::Running;
        let mut cells = vec![
            stay.workload.namespace.clone(),
            job_of(stay),
            or_none(&stay.queue),
            or_none(&stay.user),
            stay.state.name().to_owned(),
            span(since, stay.ended.as_ref().or(Some(&Time(now)))),
            stay.pods.to_string(),
            stay.priority.to_string(),
            if is_admitted { String::new() } else { stay.shown_reason().to_owned() },
            or_none(&stay.cluster_queue),
            holds(stay),
            stay.workload.name.clone(),
        ];
        cells.extend(starts.map(|starts| {
            let key = (stay.workload.namespace.clone(), stay.workload.name.clone());
            starts.get(&key).cloned().unwrap_or_else(|| if is_admitted { String::new() } else { "unknown".to_owned() })
        }));
        cells
    };
    list(columns, stays, row)
}

fn jobs_list(stays: &[Stay], now: Timestamp) -> Listing {
    let columns = vec![
        Column::Usual("NAMESPACE"),
        Column::Usual("JOB"),
        Column::Usual("QUEUE"),
        Column::Usual("USER"),
        Column::Usual("STATE"),
        Column::Usual("PODS"),
        Column::Usual("QUEUED"),
        Column::Usual("WAIT"),
        Column::Usual("ELAPSED"),
        Column::Usual("END"),
        Column::Wide("REASON"),
        Column::Wide("PRIORITY"),
        Column::Wide("CLUSTER QUEUE"),
        Column::Wide("HOLDS"),
        Column::Wide("START"),
        Column::Wide("WORKLOAD"),
    ];
    let now = Time(now);
    let row = |stay: &Stay| {
        let moment = |at: Option<&Time>| at.map_or_else(|| "-".to_owned(), |at| times::time(at.0));
        let ended = stay.ended.as_ref();
        vec![
            stay.workload.namespace.clone(),
            job_of(stay),
            or_none(&stay.queue),
            or_none(&stay.user),
            stay.state.name().to_owned(),
            stay.pods.to_string(),
            moment(stay.queued.as_ref()),
            span(stay.queued.as_ref(), stay.admitted.as_ref().or(ended).or(Some(&now))),
            span(stay.admitted.as_ref(), ended.or(Some(&now))),
            moment(ended),
            stay.shown_reason().to_owned(),
            stay.priority.to_string(),
            or_none(&stay.cluster_queue),
            holds(stay),
            moment(stay.admitted.as_ref()),
            stay.workload.name.clone(),
        ]
    };
    list(columns, stays, row)
}

fn list(columns: Vec<Column>, stays: &[Stay], row: impl Fn(&Stay) -> Vec<String>) -> Listing {
    Listing {
        columns,
        rows: stays.iter().map(row).collect(),
        names: stays.iter().map(|stay| format!("workload.kueue.x-k8s.io/{}", stay.workload.name)).collect(),
        items: stays.iter().map(|stay| json!(stay)).collect(),
    }
}

/// The name of the job, or of a Workload without job.
fn job_of(stay: &Stay) -> String {
    stay.job.as_ref().map_or_else(|| stay.workload.name.clone(), |job| job.name.clone())
}

fn holds(stay: &Stay) -> String {
    let amounts = stay.holds.iter().map(|it| format!("{} {} of {}", it.amount.0, it.resource, it.flavor));
    or_none(&amounts.collect::<Vec<_>>().join(", "))
}

/// Time between two instants, as kubectl prints ages.
fn span(from: Option<&Time>, to: Option<&Time>) -> String {
    match (from, to) {
        (Some(from), Some(to)) => human_duration(to.0.duration_since(from.0).as_secs().max(0)),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::explanation::{Job, ObjectName};

    use super::*;

    fn at(minute: i64) -> Time {
        Time(Timestamp::from_second(1_767_225_600 + minute * 60).expect("in range"))
    }

    fn stay(name: &str, state: StayState) -> Stay {
        let is_admitted = state == StayState::Running || state.is_end();
        Stay {
            workload: ObjectName { namespace: "team".to_owned(), name: format!("job-{name}-1") },
            job: Some(Job { kind: "Job".to_owned(), name: name.to_owned() }),
            user: "alice".to_owned(),
            queue: "main".to_owned(),
            pods: 2,
            queued: Some(at(0)),
            admitted: is_admitted.then(|| at(5)),
            ended: state.is_end().then(|| at(65)),
            reason: if state == StayState::Waiting { "WaitingForQuota".to_owned() } else { state.name().to_owned() },
            state,
            ..Stay::default()
        }
    }

    fn rows(listing: &Listing) -> Vec<Vec<String>> {
        let text = listing.render(&Format::Table).expect("text");
        text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn the_queue_has_the_reason_and_the_start_of_waiting_jobs() {
        let stays = [stay("runs", StayState::Running), stay("waits", StayState::Waiting)];
        let starts = BTreeMap::from([(("team".to_owned(), "job-waits-1".to_owned()), "in 5 min".to_owned())]);
        let rows = rows(&queue_list(&stays, at(10).0, Some(&starts)));
        assert_eq!(rows[0], ["team", "runs", "main", "alice", "Running", "5m", "2", "0"]);
        let expected =
            ["team", "waits", "main", "alice", "Waiting", "10m", "2", "0", "WaitingForQuota", "in", "5", "min"];
        assert_eq!(rows[1], expected);
    }

    #[test]
    fn a_job_that_was_not_tried_yet_says_so() {
        let untried = Stay { reason: String::new(), ..stay("waits", StayState::Waiting) };
        let held = Stay { reason: String::new(), ..stay("held", StayState::Held) };
        let list = rows(&queue_list(&[untried, held], at(10).0, None));
        assert_eq!(list[0].last().map(String::as_str), Some("NotTriedYet"));
        assert_eq!(list[1].len(), 8, "without a reason: {:?}", list[1]);
    }

    #[test]
    fn ended_jobs_have_their_wait_and_run_time() {
        let rows = rows(&jobs_list(&[stay("done", StayState::Failed)], at(100).0));
        let expected = ["team", "done", "main", "alice", "Failed", "2", "2026-01-01T00:00:00Z", "5m", "60m"];
        assert_eq!(rows[0][..9], expected);
    }
}
