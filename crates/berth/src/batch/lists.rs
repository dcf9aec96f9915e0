//! `berth queue` and `berth jobs`: the jobs that wait and run, and those that ended.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_api::berth::current_jobs::{CurrentJob, CurrentJobs};
use berth_api::berth::usage::{Stay, StayState, Stays, WithheldUsage};
use berth_apimachinery::percent::component;
use berth_apimachinery::selector::LabelSelector;
use berth_apimachinery::table::human_duration;
use berth_apimachinery::times;
use berth_controllers::explain::ask;
use berth_controllers::usage::Period;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde_json::json;

use super::Place;
use super::watch::{self, Key, Watched};
use crate::accounting::{PeriodOptions, request_error};
use crate::flat::Kind;
use crate::listing::{Column, Format, Listing, or_none};
use crate::{foresee, process};

/// Number of jobs in a request: the server's maximum.
const LIMIT: usize = 10_000;
/// The controllers record the end of a stay within this time of the cluster's clock, which may be
/// faster than real time.
const RECORDED_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// The states of `berth queue` by default: jobs that have not finished. Those that are evicted stop,
/// and wait again.
const UNFINISHED: [StayState; 6] = [
    StayState::Waiting,
    StayState::Held,
    StayState::Reserved,
    StayState::Running,
    StayState::Preempted,
    StayState::Evicted,
];

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
    /// Only jobs whose Workloads have these labels, as for kubectl. A Workload has the labels of
    /// its job that integrations.labelKeysToCopy of the configuration lists.
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// After the list, print a row for each job that changes, is added, or leaves the list.
    #[arg(short, long)]
    watch: bool,
    /// Output format: table, wide, json, yaml, name, csv, parquet, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Format,
    #[command(flatten)]
    place: Place,
}

/// Options of `berth queue`.
#[derive(Args)]
pub struct QueueOptions {
    /// Only jobs in one of these states, separated by commas. Default: those that have not finished.
    #[arg(short, long, value_delimiter = ',', ignore_case = true, value_parser = states(&StayState::OF_CURRENT))]
    state: Vec<StayState>,
    /// Add the forecast of the start of waiting jobs. This reads the state of the whole cluster, with
    /// your permissions: docs/forecast.md.
    #[arg(long, conflicts_with = "watch")]
    start: bool,
    #[command(flatten)]
    pub filter: Filter,
}

/// Options of `berth jobs`.
#[derive(Args)]
pub struct JobsOptions {
    /// Only jobs in one of these states, separated by commas.
    #[arg(short, long, value_delimiter = ',', ignore_case = true, value_parser = states(&StayState::ALL))]
    state: Vec<StayState>,
    #[command(flatten)]
    period: PeriodOptions,
    #[command(flatten)]
    filter: Filter,
}

/// Parses one of these states by its name, in any case.
fn states(accepted: &'static [StayState]) -> impl TypedValueParser<Value = StayState> {
    // The parser accepts names of states only.
    PossibleValuesParser::new(accepted.iter().map(|state| state.name()))
        .map(move |text| StayState::named(&text, accepted).unwrap_or_default())
}

/// Checks a label selector, which the server reads.
fn selector(text: &str) -> Result<String, String> {
    LabelSelector::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

impl Filter {
    /// The namespace to list; `None` for all.
    pub fn scope<'a>(&self, namespace: &'a str) -> Option<&'a str> {
        (!self.all_namespaces).then_some(namespace)
    }

    /// The parameters of a request, each with a leading `&`.
    fn query(&self, states: &[StayState]) -> String {
        let states = states.iter().map(|state| state.name()).collect::<Vec<_>>().join(",");
        let given = [
            ("state", Some(&states)),
            ("user", self.user.as_ref()),
            ("queue", self.queue.as_ref()),
            ("labels", self.selector.as_ref()),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value.filter(|it| !it.is_empty())?)));
        given.map(|(name, value)| format!("&{name}={}", component(value))).collect()
    }

    /// The message in place of an empty list, with what would list more.
    fn none(&self, what: &str, namespace: &str, states: &[StayState]) -> String {
        let given = [&self.user, &self.queue, &self.selector];
        let is_filtered = !states.is_empty() || given.iter().any(|it| it.is_some());
        let job = if is_filtered { "No job of this selection" } else { "No job" };
        match self.all_namespaces {
            true => format!("{job} {what}."),
            false => format!("{job} {what} in namespace {namespace}; -A lists all namespaces."),
        }
    }
}

/// Jobs, and the time on the cluster's clock.
pub struct Found {
    /// The jobs.
    pub jobs: Vec<CurrentJob>,
    /// The time of the last response.
    pub now: Timestamp,
    /// Number of older jobs of the selection that are not listed.
    pub unlisted: usize,
    /// Jobs of namespaces that the user may not read.
    withheld: Option<WithheldUsage>,
}

impl Found {
    /// Says on standard error which jobs are not listed.
    pub fn report(&self) {
        if self.unlisted > 0 {
            eprintln!("berth: {} older jobs are not listed; choose a shorter period or a namespace", self.unlisted);
        }
        if let Some(withheld) = &self.withheld {
            eprintln!("berth: {} jobs of other namespaces are not listed. {}", withheld.stays, withheld.why.message);
        }
    }
}

impl Watched for QueueOptions {
    fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The selected jobs, in the order in which they started or were queued. The server selects them,
    /// so their number is not limited.
    async fn find(&mut self, client: &Client, namespace: &str) -> anyhow::Result<Found> {
        let states = if self.state.is_empty() { &UNFINISHED[..] } else { &self.state };
        let (scope, query) = (self.filter.scope(namespace), self.filter.query(states));
        let query = format!("sort=queued&limit={LIMIT}{query}");
        let (mut jobs, mut seen, mut offset) = (Vec::new(), HashSet::new(), 0);
        loop {
            let answer = ask::current_jobs(client, scope, &format!("{query}&offset={offset}")).await;
            let found: CurrentJobs = serde_json::from_value(answer.map_err(|error| request_error(error, "the jobs"))?)?;
            offset += found.items.len();
            let is_last = found.items.is_empty() || offset >= found.total;
            // Jobs move between pages when others change.
            jobs.extend(found.items.into_iter().filter(|job| seen.insert(job.stay.uid.clone())));
            if !is_last {
                continue;
            }
            if jobs.len() < found.total {
                let missing = found.total - jobs.len();
                eprintln!("berth: {missing} jobs changed while they were listed, and may be missing; list them again");
            }
            let started = |stay: &Stay| stay.admitted.as_ref().or(stay.queued.as_ref()).map(|at| at.0);
            jobs.sort_by_cached_key(|job| (started(&job.stay), job.stay.workload.name.clone()));
            let now = found.now.context("the controllers do not report their time")?.0;
            return Ok(Found { jobs, now, unlisted: 0, withheld: found.withheld });
        }
    }

    async fn last_state(&self, client: &Client, job: &CurrentJob) -> anyhow::Result<Option<CurrentJob>> {
        let name = &job.stay.workload;
        let query = format!("q={}&sort=-queued&limit=1000", component(&name.name));
        let answer = ask::current_jobs(client, Some(&name.namespace), &query).await;
        let found: CurrentJobs = serde_json::from_value(answer.map_err(|error| request_error(error, "the jobs"))?)?;
        Ok(found.items.into_iter().find(|it| it.stay.uid == job.stay.uid))
    }

    /// A job is the same one after an eviction.
    fn key(&self, stay: &Stay) -> Key {
        (stay.uid.clone(), None)
    }

    fn rows(&self, jobs: &[CurrentJob], now: Timestamp) -> Listing {
        current_list(jobs, now, None)
    }

    fn none(&self, namespace: &str) -> String {
        self.filter.none("waits or runs", namespace, &self.state)
    }
}

/// `berth jobs`: its options, and the period of the next request.
struct PeriodJobs<'a> {
    options: &'a JobsOptions,
    /// The period of the options.
    period: Period,
    /// Start of the period of the next request. Stays that ended before it cannot change.
    since: Timestamp,
}

impl PeriodJobs<'_> {
    /// The stays of a namespace, or of all, since the start of the next request's period.
    async fn stays(&self, client: &Client, namespace: Option<&str>, chosen: &str) -> anyhow::Result<Stays> {
        let Period { until, .. } = self.period;
        let mut query = format!("limit={LIMIT}&since={}{chosen}", component(&times::time(self.since)));
        if self.options.period.has_end() {
            query.push_str(&format!("&until={}", component(&times::time(until))));
        }
        let answer = ask::stays(client, namespace, &query).await;
        Ok(serde_json::from_value(answer.map_err(|error| request_error(error, "the jobs"))?)?)
    }
}

impl Watched for PeriodJobs<'_> {
    fn filter(&self) -> &Filter {
        &self.options.filter
    }

    async fn find(&mut self, client: &Client, namespace: &str) -> anyhow::Result<Found> {
        let filter = &self.options.filter;
        let found = self.stays(client, filter.scope(namespace), &filter.query(&self.options.state)).await?;
        let now = found.now.context("the controllers do not report their time")?.0;
        self.since = self.period.since.max(now.checked_sub(RECORDED_WITHIN).unwrap_or(now));
        let job = |stay: Stay| CurrentJob { stay, ..CurrentJob::default() };
        let jobs = found.items.into_iter().map(job).collect();
        Ok(Found { jobs, now, unlisted: found.unlisted, withheld: found.withheld })
    }

    async fn last_state(&self, client: &Client, job: &CurrentJob) -> anyhow::Result<Option<CurrentJob>> {
        let found = self.stays(client, Some(&job.stay.workload.namespace), "").await?;
        let key = self.key(&job.stay);
        let stay = found.items.into_iter().rev().find(|stay| self.key(stay) == key);
        Ok(stay.map(|stay| CurrentJob { stay, ..CurrentJob::default() }))
    }

    /// Each stay has a row.
    fn key(&self, stay: &Stay) -> Key {
        (stay.uid.clone(), stay.queued.as_ref().map(|at| at.0))
    }

    fn rows(&self, jobs: &[CurrentJob], now: Timestamp) -> Listing {
        jobs_list(jobs, now)
    }

    fn none(&self, namespace: &str) -> String {
        self.options.filter.none("existed in this period", namespace, &self.options.state)
    }
}

/// Prints the jobs that wait and run.
pub fn queue(mut options: QueueOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        let (client, namespace) = options.filter.place.open().await?;
        if options.filter.watch {
            watch::watch(&mut options, &client, &namespace).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let found = options.find(&client, &namespace).await?;
        let starts = if options.start { foresee::starts(&client).await? } else { BTreeMap::new() };
        let list = current_list(&found.jobs, found.now, options.start.then_some(&starts));
        found.report();
        list.print(&options.filter.output, &options.none(&namespace))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints the jobs of a period.
pub fn jobs(options: &JobsOptions) -> anyhow::Result<ExitCode> {
    process::run(async {
        if options.filter.watch && options.period.has_end() {
            bail!("--watch follows the jobs until it is stopped, so it cannot be used with --until");
        }
        let (client, namespace) = options.filter.place.open().await?;
        let period = options.period.period(foresee::now(&client).await?)?;
        let mut jobs = PeriodJobs { options, period, since: period.since };
        if options.filter.watch {
            watch::watch(&mut jobs, &client, &namespace).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let found = jobs.find(&client, &namespace).await?;
        found.report();
        jobs.rows(&found.jobs, found.now).print(&options.filter.output, &jobs.none(&namespace))?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The list of `berth queue`, whose objects also have labels and messages.
pub fn current_list(jobs: &[CurrentJob], now: Timestamp, starts: Option<&Starts>) -> Listing {
    let stays: Vec<Stay> = jobs.iter().map(|job| job.stay.clone()).collect();
    Listing { items: jobs.iter().map(|job| json!(job)).collect(), ..queue_list(&stays, now, starts) }
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
    list(columns, stays.iter(), row)
}

/// The list of `berth jobs`.
fn jobs_list(jobs: &[CurrentJob], now: Timestamp) -> Listing {
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
        Column::Wide("QUOTA"),
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
            quota(stay),
            moment(stay.admitted.as_ref()),
            stay.workload.name.clone(),
        ]
    };
    list(columns, jobs.iter().map(|job| &job.stay), row)
}

/// The types of columns that hold no text.
const KINDS: &[(&str, Kind)] = &[
    ("PODS", Kind::Integer),
    ("PRIORITY", Kind::Integer),
    ("QUEUED", Kind::Time),
    ("START", Kind::Time),
    ("END", Kind::Time),
];

fn list<'a>(
    columns: Vec<Column>,
    stays: impl Iterator<Item = &'a Stay> + Clone,
    row: impl Fn(&Stay) -> Vec<String>,
) -> Listing {
    Listing {
        columns,
        rows: stays.clone().map(row).collect(),
        names: stays.clone().map(|stay| format!("workload.kueue.x-k8s.io/{}", stay.workload.name)).collect(),
        items: stays.map(|stay| json!(stay)).collect(),
        kinds: KINDS,
    }
}

/// The name of the job, or of a Workload without job.
fn job_of(stay: &Stay) -> String {
    stay.job.as_ref().map_or_else(|| stay.workload.name.clone(), |job| job.name.clone())
}

/// The quota that a job holds now; none after its end. The pods of an evicted job still stop.
fn holds(stay: &Stay) -> String {
    let holds_quota = !stay.state.is_end() || matches!(stay.state, StayState::Preempted | StayState::Evicted);
    if holds_quota { quota(stay) } else { or_none("") }
}

/// The quota of a stay, which may have ended.
fn quota(stay: &Stay) -> String {
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
    use std::convert::Infallible;

    use berth_api::berth::explanation::{Held, Job, ObjectName};
    use berth_controllers::usage::parameter;
    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use kube::client::Body;

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

    fn job(stay: Stay) -> CurrentJob {
        CurrentJob { stay, ..CurrentJob::default() }
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

    /// Options on a command line.
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: QueueOptions,
    }

    #[tokio::test]
    async fn the_queue_is_selected_by_the_server_and_read_page_by_page() {
        // A server with five jobs, of which a response has two. One job moves to the next page.
        let answers = tower::service_fn(|request: Request<Body>| {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
            let offset: usize = parameter(&query, "offset").and_then(|text| text.parse().ok()).expect("an offset");
            let page = match offset {
                0 => vec!["a", "b"],
                2 => vec!["b", "c"],
                4 => vec!["d"],
                _ => Vec::new(),
            };
            let job = |name: &&str| CurrentJob {
                stay: Stay { uid: (*name).to_owned(), ..stay(name, StayState::Running) },
                ..CurrentJob::default()
            };
            let items: Vec<CurrentJob> = page.iter().map(job).collect();
            let is_asked = path == "/apis/explain.berth.dev/v1alpha1/namespaces/team/currentjobs"
                && ["user", "queue", "labels", "state"].map(|name| parameter(&query, name).unwrap_or_default())
                    == ["alice", "main", "tier in (a,b)", "Running,Held"];
            let total = if is_asked { 5 } else { 0 };
            let found = CurrentJobs { total, items, now: Some(at(9)), ..CurrentJobs::default() };
            let body = serde_json::to_vec(&found).expect("JSON");
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(body))))
        });
        let words = ["berth", "-u", "alice", "-q", "main", "-l", "tier in (a,b)", "-s", "running,held"];
        let mut options = <Line as clap::Parser>::parse_from(words).options;
        let found = options.find(&Client::new(answers, "team"), "team").await.expect("jobs");
        let names: Vec<&str> = found.jobs.iter().map(|job| job.stay.uid.as_str()).collect();
        assert_eq!((names, found.now), (vec!["a", "b", "c", "d"], at(9).0));
    }

    #[test]
    fn a_finished_job_holds_nothing_now() {
        let held = Held { flavor: "spot".to_owned(), resource: "cpu".to_owned(), amount: Quantity("4".to_owned()) };
        let with = |state: StayState| Stay { holds: vec![held.clone()], ..stay("train", state) };
        let shown = |list: Listing| list.render(&Format::Wide).expect("text").contains("4 cpu of spot");
        for state in StayState::ALL {
            let holds = ["Running", "Reserved", "Waiting", "Held", "Preempted", "Evicted"].contains(&state.name());
            assert_eq!(shown(queue_list(&[with(state)], at(10).0, None)), holds, "{state:?}");
            assert!(shown(jobs_list(&[job(with(state))], at(10).0)), "its stay had the quota");
        }
    }

    #[test]
    fn ended_jobs_have_their_wait_and_run_time() {
        let rows = rows(&jobs_list(&[job(stay("done", StayState::Failed))], at(100).0));
        let expected = ["team", "done", "main", "alice", "Failed", "2", "2026-01-01T00:00:00Z", "5m", "60m"];
        assert_eq!(rows[0][..9], expected);
    }
}
