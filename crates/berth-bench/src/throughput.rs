//! `berth bench api`: throughput of the API server on a durable store. It measures creates and
//! patches by many clients, events of one object to many watchers, a long list in pages, and the
//! latency of one tenant while another floods the server.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use berth_load::drive::Spread;
use berth_process::{process, say};
use clap::Args;
use futures::AsyncBufReadExt;
use futures::stream::StreamExt;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Output;
use crate::measure::{Cost, mebibytes};
use crate::objects::create;
use crate::sender::{Call, Sender};
use crate::target::{Server, Where, client_with};

/// Namespace of the objects that are created, patched and listed.
const LISTED: &str = "bench-api";
/// Namespace of the watched object.
const WATCHED: &str = "bench-watch";
/// Namespace of the tenant's and the flood's objects.
const TENANT: &str = "bench-tenant";
/// Number of requests that each client of the flood has in flight.
const FLOOD_DEPTH: usize = 4;
/// Pause between two changes to the watched object.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);
/// Maximum time for the last event to reach the watchers.
const EVENTS_MAX: Duration = Duration::from_secs(30);

/// Options of `berth bench api`.
#[derive(Args)]
pub struct Options {
    /// Where the API server runs.
    #[arg(long, value_enum, default_value = "processes")]
    api: Where,
    /// Number of clients that write concurrently, each with its own connection unless the server
    /// is embedded.
    #[arg(long, default_value_t = 100)]
    clients: usize,
    /// Number of objects to create and then to patch.
    #[arg(long, default_value_t = 20_000)]
    writes: usize,
    /// Creates per second, over all clients, in a second round; 0 for no second round. In the first
    /// round, each client sends its next create request as soon as the last one has returned, so
    /// the latencies of the first round are those of a saturated server.
    #[arg(long, default_value_t = 10_000)]
    rate: u32,
    /// Payload of an object, in bytes.
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Number of watchers of one object.
    #[arg(long, default_value_t = 200)]
    watchers: usize,
    /// Number of changes to the watched object.
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// Number of calls of one user, first alone and then while another user floods the server with
    /// all clients; 0 for none. Needs `--api processes`, because an embedded server does not queue
    /// requests by user.
    #[arg(long, default_value_t = 1000)]
    tenant_calls: usize,
    /// Number of objects to list.
    #[arg(long, default_value_t = 100_000)]
    listed: usize,
    /// Number of objects in a page of the list.
    #[arg(long, default_value_t = 500)]
    page: usize,
    /// Folder for the store, on the disk to measure; kept afterwards. Default: a temporary folder,
    /// removed afterwards.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
    /// Format of the report.
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Runs the bench. The exit code is a failure when an object or an event was lost.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(run(options))
}

async fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let server = Server::start(options.api, options.data_dir.as_deref()).await?;
    let mut clients = Vec::with_capacity(options.clients.max(1));
    let mut senders = Vec::with_capacity(options.clients.max(1));
    for _ in 0..options.clients.max(1) {
        clients.push(server.client().await?);
        senders.push(Arc::new(server.sender().await?));
    }
    for name in [LISTED, WATCHED] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create(&clients[0], "/api/v1/namespaces", body.to_string().into_bytes()).await.context("a namespace")?;
    }
    // Writes: creates as fast as possible, creates at a rate, patches.
    let payload: Arc<str> = "x".repeat(options.size).into();
    let (text, started) = (payload.clone(), server.cost());
    let creates = many(&senders, 0..options.writes, None, move |number| post(number, &text)).await?;
    let after_creates = server.cost();
    let made = if options.rate > 0 { 2 * options.writes } else { options.writes };
    let text = payload.clone();
    let paced = many(&senders, options.writes..made, Some(options.rate), move |number| post(number, &text)).await?;
    let after_paced = server.cost();
    let patches = many(&senders, 0..options.writes, None, |number| {
        let body = json!({"data": {"changed": number.to_string()}}).to_string().into_bytes();
        let path = format!("/api/v1/namespaces/{LISTED}/configmaps/object-{number}");
        (http::Method::PATCH, path, "application/merge-patch+json", body)
    })
    .await?;
    let after_patches = server.cost();
    // Watches, a tenant during a flood of requests, and lists.
    let (delays, missed) = fan_out(&server, &clients, options).await?;
    let tenant = beside_a_flood(&server, &clients, options.tenant_calls).await?;
    if options.listed > made {
        many(&senders, made..options.listed, None, move |number| post(number, &payload)).await?;
    }
    let (pages, found, listing) = list(&clients[0], options.page).await?;

    let expected = options.listed.max(made);
    // The list may contain one more object: every namespace has a ConfigMap with the certificate of
    // the server's certificate authority, if the server has one.
    let lost = expected.saturating_sub(found);
    let report = json!({
        "api": format!("{:?}", options.api),
        "clients": clients.len(),
        "objectBytes": options.size,
        "create": creates.json(after_creates.since(started)),
        "createAtRate": (options.rate > 0).then(|| paced.json(after_paced.since(after_creates))),
        "patch": patches.json(after_patches.since(after_paced)),
        "watch": {
            "watchers": options.watchers,
            "changes": options.changes,
            "milliseconds": spread(&delays),
            "missed": missed,
        },
        "tenant": tenant.as_ref().map(Tenant::json),
        "list": {"objects": found, "pages": pages, "seconds": listing.as_secs_f64(), "lost": lost},
        "server": {
            "cpuSeconds": server.cost().cpu.as_secs_f64(),
            "peakMiB": mebibytes(server.cost().peak).round(),
        },
    });
    match options.output {
        Output::Json => say!("{}", serde_json::to_string_pretty(&report)?),
        Output::Text => print(&report, options.watchers),
    }
    Ok(if lost == 0 && missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the report as text: one line for each kind of request.
fn print(report: &Value, watchers: usize) {
    let times =
        |value: &Value| format!("mean {} ms, median {} ms, p99 {} ms", value["mean"], value["median"], value["p99"]);
    for (name, key) in [("create", "create"), ("at rate", "createAtRate"), ("patch", "patch")] {
        let it = &report[key];
        let (rate, cpu) = (&it["perSecond"], &it["serverCpuMicroseconds"]);
        if it.is_object() {
            say!("{name:8} {rate} a second, {}, {cpu} µs of server cpu each", times(&it["milliseconds"]));
        }
    }
    let delays = times(&report["watch"]["milliseconds"]);
    say!("watch    {delays}, from sending to each of {watchers} watchers");
    if let Some(tenant) = report["tenant"].as_object() {
        say!("tenant   alone {}", times(&tenant["aloneMilliseconds"]));
        let (beside, ratio) = (times(&tenant["besideFloodMilliseconds"]), &tenant["p99Ratio"]);
        say!("         during a flood of {} calls a second {beside}: p99 {ratio} times", tenant["floodPerSecond"]);
    }
    let list = &report["list"];
    let seconds = list["seconds"].as_f64().unwrap_or_default();
    say!("list     {} objects in {} pages: {seconds:.2} s", list["objects"], list["pages"]);
    say!("server   {} s cpu, peak {} MiB", report["server"]["cpuSeconds"], report["server"]["peakMiB"]);
    say!("lost     {} objects, {} events", list["lost"], report["watch"]["missed"]);
}

/// Latencies of a tenant's calls.
struct Tenant {
    alone: Vec<Duration>,
    flooded: Vec<Duration>,
    /// Number of the flood's calls during the tenant's, and the time they took.
    flood: (usize, Duration),
}

impl Tenant {
    fn json(&self) -> Value {
        let p99 = |times: &[Duration]| Spread::of(&mut times.to_vec()).p99.as_secs_f64();
        let (calls, time) = self.flood;
        json!({
            "calls": self.alone.len(),
            "aloneMilliseconds": spread(&self.alone),
            "besideFloodMilliseconds": spread(&self.flooded),
            "p99Ratio": (p99(&self.flooded) / p99(&self.alone).max(1e-9) * 100.0).round() / 100.0,
            "floodCalls": calls,
            "floodPerSecond": (calls as f64 / time.as_secs_f64().max(1e-9)).round(),
        })
    }
}

/// Measures a tenant's calls without other load, and while another service account sends as many
/// requests as it can over as many connections as there are clients. The tenant has its own thread
/// and connection, like a program on another machine, so that it does not wait for the flood's
/// clients in this process.
async fn beside_a_flood(server: &Server, clients: &[Client], calls: usize) -> anyhow::Result<Option<Tenant>> {
    if calls == 0 || !server.takes_turns() {
        return Ok(None);
    }
    let tenant = server.config_with(&token_of(&clients[0], "tenant").await?).await?;
    let token = token_of(&clients[0], "flood").await?;
    let alone = patch_apart(tenant.clone(), calls).await?;
    let sent = Arc::new(AtomicUsize::new(0));
    let mut flood: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for number in 0..clients.len() {
        let client = client_with(server.config_with(&token).await?)?;
        for depth in 0..FLOOD_DEPTH {
            let (client, sent) = (client.clone(), sent.clone());
            flood.spawn(async move {
                loop {
                    let change = sent.fetch_add(1, Ordering::Relaxed);
                    // Each task patches its own object, so that the tasks compete for the server
                    // alone.
                    let number = number * FLOOD_DEPTH + depth;
                    let body =
                        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"changed": change.to_string()}});
                    let path =
                        format!("/api/v1/namespaces/{TENANT}/configmaps/flood-{number}?fieldManager=bench&force=true");
                    let kind = "application/apply-patch+yaml";
                    send(&client, (http::Method::PATCH, path, kind, body.to_string().into_bytes())).await?;
                }
            });
        }
    }
    // Waits until every client of the flood has connected and has made some calls.
    while sent.load(Ordering::Relaxed) < 10 * FLOOD_DEPTH * clients.len() && !flood.is_empty() {
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    let (before, start) = (sent.load(Ordering::Relaxed), Instant::now());
    let flooded = tokio::select! {
        flooded = patch_apart(tenant, calls) => flooded?,
        // A task of the flood ends only with an error.
        Some(ended) = flood.join_next() => return ended?.context("the flood").map(|()| None),
    };
    let flood = (sent.load(Ordering::Relaxed) - before, start.elapsed());
    Ok(Some(Tenant { alone, flooded, flood }))
}

/// Latencies of a client's calls from a thread of its own, after one call that connects.
async fn patch_apart(config: kube::Config, calls: usize) -> anyhow::Result<Vec<Duration>> {
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = client_with(config)?;
            patch_again(&client, 1).await?;
            patch_again(&client, calls).await
        })
    });
    thread.await?
}

/// Latencies of one client's sequential calls.
async fn patch_again(client: &Client, calls: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(calls);
    for number in 0..calls {
        let body = json!({"data": {"changed": number.to_string()}}).to_string().into_bytes();
        let path = format!("/api/v1/namespaces/{TENANT}/configmaps/own");
        let at = Instant::now();
        send(client, (http::Method::PATCH, path, "application/merge-patch+json", body)).await?;
        times.push(at.elapsed());
    }
    Ok(times)
}

/// Creates the tenant's namespace with an object and a service account that may write there.
/// Returns the account's token.
async fn token_of(client: &Client, account: &str) -> anyhow::Result<String> {
    let inside = format!("/api/v1/namespaces/{TENANT}");
    let binding = json!({
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": TENANT}],
    });
    let named = |name: &str| json!({"metadata": {"name": name}});
    for (path, body) in [
        ("/api/v1/namespaces".to_owned(), named(TENANT)),
        (format!("{inside}/serviceaccounts"), named(account)),
        (format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{TENANT}/rolebindings"), binding),
        (format!("{inside}/configmaps"), named("own")),
    ] {
        create(client, &path, body.to_string().into_bytes()).await.with_context(|| path.clone())?;
    }
    let request = http::Request::post(format!("{inside}/serviceaccounts/{account}/token"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(json!({"spec": {}}).to_string().into_bytes())?;
    let answer: Value = serde_json::from_str(&client.request_text(request).await.context("a token")?)?;
    answer["status"]["token"].as_str().map(str::to_owned).context("no token in the response")
}

fn post(number: usize, payload: &str) -> Call {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("object-{number}")},
                      "data": {"payload": payload}});
    let path = format!("/api/v1/namespaces/{LISTED}/configmaps");
    (http::Method::POST, path, "application/json", body.to_string().into_bytes())
}

async fn send(client: &Client, (method, path, kind, body): Call) -> anyhow::Result<()> {
    let request =
        http::Request::builder().method(method).uri(&path).header(http::header::CONTENT_TYPE, kind).body(body)?;
    client.request_text(request).await.with_context(|| path)?;
    Ok(())
}

/// Latencies of a number of calls, and the time they took together.
struct Calls {
    times: Vec<Duration>,
    wall: Duration,
}

impl Calls {
    fn json(&self, cost: Cost) -> Value {
        let count = self.times.len().max(1) as f64;
        json!({
            "count": self.times.len(),
            "perSecond": (self.times.len() as f64 / self.wall.as_secs_f64().max(1e-9)).round(),
            "milliseconds": spread(&self.times),
            "serverCpuMicroseconds": (cost.cpu.as_secs_f64() * 1e6 / count).round(),
        })
    }
}

fn spread(times: &[Duration]) -> Value {
    let spread = Spread::of(&mut times.to_vec());
    let [mean, median, p99] =
        [spread.mean, spread.median, spread.p99].map(|it| (it.as_secs_f64() * 1e5).round() / 100.0);
    json!({"mean": mean, "median": median, "p99": p99})
}

/// Makes the calls `numbers`, distributed over the senders. Each sender makes one call after the
/// other. With a rate, the senders together start at most that many calls per second. If a call
/// starts late because all senders were busy, its latency counts from its due time.
async fn many(
    senders: &[Arc<Sender>],
    numbers: std::ops::Range<usize>,
    rate: Option<u32>,
    call: impl Fn(usize) -> Call + Send + Sync + 'static,
) -> anyhow::Result<Calls> {
    let (first, end) = (numbers.start, numbers.end);
    let (next, call) = (Arc::new(AtomicUsize::new(first)), Arc::new(call));
    let mut tasks: JoinSet<anyhow::Result<Vec<Duration>>> = JoinSet::new();
    let start = Instant::now();
    for sender in senders {
        let (sender, next, call) = (sender.clone(), next.clone(), call.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return Ok(times);
                }
                let call = call(number);
                let due = rate.map(|rate| start + Duration::from_secs_f64((number - first) as f64 / f64::from(rate)));
                let at = match due {
                    Some(due) if due < Instant::now() => due,
                    Some(due) => {
                        tokio::time::sleep_until(due).await;
                        Instant::now()
                    }
                    None => Instant::now(),
                };
                sender.send(call).await?;
                times.push(at.elapsed());
            }
        });
    }
    let mut times = Vec::with_capacity(numbers.len());
    while let Some(done) = tasks.join_next().await {
        times.extend(done??);
    }
    Ok(Calls { times, wall: start.elapsed() })
}

#[derive(Deserialize)]
struct Line {
    object: Watched,
}

#[derive(Deserialize)]
struct Watched {
    #[serde(default)]
    data: Data,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Data {
    change: String,
}

/// Changes one object repeatedly. Returns the delay of each change at each watcher, and the number
/// of events that did not arrive.
async fn fan_out(server: &Server, clients: &[Client], options: &Options) -> anyhow::Result<(Vec<Duration>, usize)> {
    let collection = format!("/api/v1/namespaces/{WATCHED}/configmaps");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched"}});
    create(&clients[0], &collection, body.to_string().into_bytes()).await.context("the watched object")?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let mut watchers = JoinSet::new();
    for number in 0..options.watchers {
        let client = match clients.get(number) {
            Some(client) => client.clone(),
            None => server.client().await?,
        };
        let path = format!("{collection}?watch=true&fieldSelector=metadata.name%3Dwatched");
        let stream = client.request_stream(http::Request::get(path).body(Vec::new())?).await.context("a watch")?;
        let sender = sender.clone();
        watchers.spawn(async move {
            // Keeps the connection open.
            let _client = client;
            let mut lines = stream.lines();
            while let Some(Ok(line)) = lines.next().await {
                let Ok(Line { object }) = serde_json::from_str::<Line>(&line) else { continue };
                if let Ok(change) = object.data.change.parse::<usize>()
                    && sender.send((change, Instant::now())).is_err()
                {
                    return;
                }
            }
        });
    }
    let mut sent = Vec::with_capacity(options.changes);
    for change in 0..options.changes {
        let body = json!({"data": {"change": change.to_string()}}).to_string().into_bytes();
        sent.push(Instant::now());
        send(&clients[0], (http::Method::PATCH, format!("{collection}/watched"), "application/merge-patch+json", body))
            .await?;
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
    let expected = options.changes * options.watchers;
    let mut lags = Vec::with_capacity(expected);
    let deadline = Instant::now() + EVENTS_MAX;
    while lags.len() < expected {
        match tokio::time::timeout_at(deadline, events.recv()).await {
            Ok(Some((change, at))) => lags.push(at.saturating_duration_since(sent[change])),
            _ => break,
        }
    }
    let missed = expected - lags.len();
    Ok((lags, missed))
}

#[derive(Deserialize)]
struct Page {
    metadata: Metadata,
    items: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "continue", default)]
    next: String,
}

/// Lists in pages. Returns the number of pages, the number of objects and the time taken.
async fn list(client: &Client, page: usize) -> anyhow::Result<(usize, usize, Duration)> {
    let (mut pages, mut found, mut next) = (0, 0, String::new());
    let start = Instant::now();
    loop {
        let mut path = format!("/api/v1/namespaces/{LISTED}/configmaps?limit={page}");
        if !next.is_empty() {
            path.push_str("&continue=");
            path.push_str(&next.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D"));
        }
        let text = client.request_text(http::Request::get(path).body(Vec::new())?).await.context("listing")?;
        let answer: Page = serde_json::from_str(&text).context("a page of the list")?;
        pages += 1;
        found += answer.items.len();
        next = answer.metadata.next;
        if next.is_empty() {
            return Ok((pages, found, start.elapsed()));
        }
    }
}
