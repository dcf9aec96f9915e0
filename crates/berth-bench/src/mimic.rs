//! Mimics jobs. A workload runs from the moment at which its admission is observed, and finishes
//! after its run time. If it is evicted before that, it starts over. All observed changes are
//! recorded in a ledger.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use berth_api::kueue::conditions;
use berth_api::kueue::v1beta2::Workload;
use berth_controllers::Gates;
use berth_controllers::execute::{Part, patch};
use berth_controllers::workload::status;
use berth_load::{Ledger, Plan};
use berth_runtime::Clock;
use futures::AsyncBufReadExt;
use futures::stream::StreamExt;
use kube::{Api, Client, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::objects::WORKLOADS;

/// Maximum number of finish writes in flight.
const WRITES_MAX: usize = 64;
/// Pause after a conflict, in which the watch delivers the newer state.
const CONFLICT_PAUSE: Duration = Duration::from_millis(1);
/// Pause after any other failed request.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// The mimic with its ledger; clones share both.
#[derive(Clone)]
pub struct Mimic(Arc<Inner>);

struct Inner {
    client: Client,
    plan: &'static Plan,
    numbers: HashMap<String, usize>,
    start: Instant,
    ledger: Mutex<Ledger<'static>>,
    known: Mutex<Vec<Known>>,
    slots: Semaphore,
    failures: Mutex<BTreeMap<String, u64>>,
}

/// The last state of a workload that the watch delivered.
#[derive(Clone, Default)]
struct Known {
    version: String,
    conditions: String,
    holding: bool,
    admitted: bool,
    evicting: bool,
    finished: bool,
    /// Number of admissions; distinguishes the end of this run from that of an earlier one.
    life: u32,
    /// Time at which the run of the last admission ends, unless the workload is evicted before.
    end: Option<Instant>,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct List<'a> {
    metadata: Metadata,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Glimpse<'a> {
    metadata: Metadata,
    #[serde(borrow, default)]
    status: Option<Status<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Deserialize, Default)]
struct Status<'a> {
    #[serde(borrow, default)]
    conditions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Mimic {
    /// A mimic for a plan that starts at `start`.
    pub fn new(client: Client, plan: &'static Plan, start: Instant) -> Self {
        let key = |number: usize| {
            let arrival = &plan.arrivals[number];
            format!("{}/{}", plan.queues[arrival.queue].name, arrival.name)
        };
        Mimic(Arc::new(Inner {
            client,
            plan,
            numbers: (0..plan.arrivals.len()).map(|number| (key(number), number)).collect(),
            start,
            ledger: Mutex::new(Ledger::new(plan, Duration::from_millis(250))),
            known: Mutex::new(vec![Known::default(); plan.arrivals.len()]),
            slots: Semaphore::new(WRITES_MAX),
            failures: Mutex::default(),
        }))
    }

    /// The ledger. No `.await` may happen while the guard is held.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger<'static>> {
        self.0.ledger.lock()
    }

    /// Takes the ledger and leaves an empty one.
    pub fn take_ledger(&self) -> Ledger<'static> {
        std::mem::replace(&mut *self.ledger(), Ledger::new(self.0.plan, Duration::MAX))
    }

    /// Number of failed requests by error, without conflicts.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        self.0.failures.lock().clone()
    }

    /// Counts a failed request.
    pub fn failed(&self, what: &str, error: &kube::Error) {
        let mut failures = self.0.failures.lock();
        *failures.entry(format!("{what}: {error}")).or_default() += 1;
    }

    /// Time since the start of the plan.
    pub fn elapsed(&self) -> Duration {
        self.0.start.elapsed()
    }

    /// True if the watch has delivered every workload.
    pub fn all_seen(&self) -> bool {
        let known = self.0.known.lock();
        known.iter().all(|known| !known.version.is_empty())
    }

    /// Watches workloads until dropped.
    pub async fn run(&self) -> anyhow::Result<()> {
        let mut version = self.list().await?;
        loop {
            match self.watch(&mut version).await {
                Ok(true) => {}
                Ok(false) => version = self.list().await?,
                Err(error) => {
                    tracing::debug!(%error, "the watch of workloads ended");
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    async fn list(&self) -> anyhow::Result<String> {
        let request = http::Request::get(WORKLOADS).body(Vec::new())?;
        let text = self.0.client.request_text(request).await.context("listing workloads")?;
        let list: List<'_> = serde_json::from_str(&text).context("the list of workloads")?;
        for item in &list.items {
            self.take(item.get())?;
        }
        Ok(list.metadata.resource_version)
    }

    /// Watches from a resourceVersion on. Returns false if that version has expired.
    async fn watch(&self, version: &mut String) -> anyhow::Result<bool> {
        let path = format!("{WORKLOADS}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        let request = http::Request::get(path).body(Vec::new())?;
        let stream = match self.0.client.request_stream(request).await {
            Err(kube::Error::Api(status)) if status.code == 410 => return Ok(false),
            other => other?,
        };
        let mut lines = stream.lines();
        while let Some(line) = lines.next().await {
            let line = line?;
            let Line { kind, object } = serde_json::from_str(&line).context("an event of the watch")?;
            match kind {
                "ERROR" if object.get().contains("\"code\":410") => return Ok(false),
                "ERROR" => return Err(anyhow!("{}", object.get())),
                "BOOKMARK" => *version = version_of(object.get())?,
                "DELETED" => {
                    let gone: Glimpse<'_> = serde_json::from_str(object.get())?;
                    if let Some(number) = self.number(&gone.metadata) {
                        self.ledger().deleted(number);
                    }
                    *version = gone.metadata.resource_version;
                }
                _ => *version = self.take(object.get())?,
            }
        }
        Ok(true)
    }

    fn number(&self, metadata: &Metadata) -> Option<usize> {
        self.0.numbers.get(&format!("{}/{}", metadata.namespace, metadata.name)).copied()
    }

    /// Records a state of a workload; returns its resourceVersion.
    fn take(&self, text: &str) -> anyhow::Result<String> {
        let glimpse: Glimpse<'_> = serde_json::from_str(text).context("a workload")?;
        let version = glimpse.metadata.resource_version.clone();
        let Some(number) = self.number(&glimpse.metadata) else { return Ok(version) };
        let conditions = glimpse.status.and_then(|status| status.conditions).map_or("[]", |list| list.get());
        let list: Vec<Condition> = serde_json::from_str(conditions).context("conditions of a workload")?;
        let is = |kind: &str| list.iter().any(|condition| condition.kind == kind && condition.status == "True");
        let (holding, admitted) = (is(conditions::QUOTA_RESERVED), is(conditions::ADMITTED));
        let (evicting, finished) = (is(conditions::EVICTED), is(conditions::FINISHED));
        let (mut runs, mut leaves) = (None, false);
        let life;
        {
            let at = self.elapsed();
            let mut all = self.0.known.lock();
            let known = &mut all[number];
            let mut ledger = self.ledger();
            if finished {
                if !known.finished {
                    ledger.finished(number, at);
                }
            } else {
                if known.finished {
                    ledger.violation(format!("workload {} is no longer finished", glimpse.metadata.name));
                }
                if known.holding && !holding {
                    ledger.released(number, at);
                }
                if !known.holding && holding {
                    ledger.reserved(number, at);
                }
                if admitted && (!known.admitted || !known.holding) {
                    ledger.admitted(number, at);
                    known.life += 1;
                    let runtime = self.0.plan.classes[self.0.plan.arrivals[number].class].runtime;
                    known.end = Some(Instant::now() + runtime);
                    runs = known.end;
                } else if known.evicting && known.holding && holding && !evicting {
                    // A server-side apply without a resourceVersion can remove an eviction that its
                    // writer did not know. The run continues, although its end may have passed.
                    ledger.kept(number, at);
                    runs = known.end;
                }
                if evicting && holding && !(known.evicting && known.holding) {
                    ledger.evicted(number, at);
                    leaves = true;
                }
            }
            known.version.clone_from(&version);
            conditions.clone_into(&mut known.conditions);
            (known.holding, known.admitted) = (holding && !finished, admitted && holding && !finished);
            (known.evicting, known.finished) = (evicting, finished);
            life = known.life;
        }
        if let Some(end) = runs {
            let mimic = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep_until(end).await;
                mimic.finish(number, life).await;
            });
        }
        if leaves {
            let mimic = self.clone();
            tokio::spawn(async move { mimic.leave(number).await });
        }
        Ok(version)
    }

    fn known(&self, number: usize) -> Known {
        self.0.known.lock()[number].clone()
    }

    fn path(&self, number: usize) -> (&'static str, &'static str) {
        let arrival = &self.0.plan.arrivals[number];
        (self.0.plan.queues[arrival.queue].name.as_ref(), arrival.name.as_ref())
    }

    /// Writes the Finished condition of a workload, unless it was evicted in the meantime.
    async fn finish(&self, number: usize, life: u32) {
        let (namespace, name) = self.path(number);
        loop {
            let slot = self.0.slots.acquire().await;
            let known = self.known(number);
            if known.life != life || known.finished || known.evicting || !known.holding {
                return;
            }
            let now = Clock::system().now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let list = known.conditions.trim_end().trim_end_matches(']');
            let body = format!(
                "{{\"metadata\":{{\"resourceVersion\":\"{}\"}},\"status\":{{\"conditions\":{list},\
                 {{\"type\":\"Finished\",\"status\":\"True\",\"reason\":\"Succeeded\",\"message\":\"Job finished \
                 successfully\",\"lastTransitionTime\":\"{now}\"}}]}}}}",
                known.version
            );
            let path = format!("/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads/{name}/status");
            let request = http::Request::patch(path)
                .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
                .body(body.into_bytes());
            let Ok(request) = request else { return };
            let answer = self.0.client.request_text(request).await;
            drop(slot);
            match answer {
                Ok(_) => return,
                Err(error) if berth_runtime::is_conflict(&error) => tokio::time::sleep(CONFLICT_PAUSE).await,
                Err(error) => {
                    self.failed("finishing a workload", &error);
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    /// Releases the quota of an evicted workload, as a job's controller does once its pods have
    /// ended.
    async fn leave(&self, number: usize) {
        let (namespace, name) = self.path(number);
        let api: Api<Workload> = Api::namespaced(self.0.client.clone(), namespace);
        loop {
            let written = async {
                let before = api.get(name).await?;
                let mut after = before.clone();
                let done = status::is_finished(&before) || !status::has_quota_reservation(&before);
                if !done && status::release_after_eviction(&mut after, &Gates::default(), Clock::system().now()) {
                    patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await?;
                }
                Ok::<(), kube::Error>(())
            };
            match written.await {
                Ok(()) => return,
                Err(error) if berth_runtime::is_conflict(&error) => tokio::time::sleep(CONFLICT_PAUSE).await,
                Err(error) => {
                    self.failed("releasing quota", &error);
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }
}

fn version_of(text: &str) -> anyhow::Result<String> {
    let glimpse: Glimpse<'_> = serde_json::from_str(text).context("a bookmark")?;
    Ok(glimpse.metadata.resource_version)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use berth_load::Config;
    use http::{Method, Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::objects;

    /// One workload that runs for 200 ms.
    const ONE: &str = "cohorts: [{className: all, count: 1, queuesSets: [{className: queue, count: 1, \
        nominalQuota: 10, borrowingLimit: 10, reclaimWithinCohort: Any, withinClusterQueue: LowerPriority, \
        workloadsSets: [{count: 1, creationIntervalMs: 100, workloads: [{className: small, runtimeMs: 200, \
        priority: 50, request: 1}]}]}]}]";

    /// The workload of the plan with these conditions, all of them true.
    fn state(plan: &Plan, version: u32, conditions: &[&str]) -> Value {
        let (_, body) = objects::workload(plan, 0);
        let mut workload: Value = serde_json::from_slice(&body).expect("JSON");
        workload["metadata"]["namespace"] = json!(plan.queues[0].name);
        workload["metadata"]["resourceVersion"] = json!(version.to_string());
        let condition = |kind: &&str| {
            json!({"type": kind, "status": "True", "reason": kind, "message": "",
                   "lastTransitionTime": "2026-11-27T00:00:00Z"})
        };
        workload["status"] = json!({"conditions": conditions.iter().map(condition).collect::<Vec<_>>()});
        workload
    }

    #[tokio::test(start_paused = true)]
    async fn a_workload_finishes_if_its_eviction_is_removed_after_the_end_of_its_run() {
        let config = Config::parse(ONE).expect("a generator file");
        let plan: &'static Plan = Box::leak(Box::new(Plan::new(&config)));
        let admitted = [conditions::QUOTA_RESERVED, conditions::ADMITTED];
        let evicted = [conditions::QUOTA_RESERVED, conditions::ADMITTED, conditions::EVICTED];
        let kept = state(plan, 3, &admitted);
        // A server that only knows the last state, in which the workload is not evicted.
        let (stored, patches) = (kept.clone(), Arc::new(Mutex::new(Vec::new())));
        let written = patches.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let (stored, written) = (stored.to_string(), written.clone());
            async move {
                if request.method() == Method::PATCH {
                    let body = request.into_body().collect().await.expect("a body").to_bytes();
                    written.lock().push(serde_json::from_slice::<Value>(&body).expect("JSON"));
                }
                Ok::<_, Infallible>(Response::new(Body::from(stored.into_bytes())))
            }
        });
        let mimic = Mimic::new(Client::new(server, "default"), plan, Instant::now());
        mimic.ledger().created(0, mimic.elapsed());
        mimic.take(&state(plan, 1, &admitted).to_string()).expect("a workload");
        tokio::time::sleep(Duration::from_millis(100)).await;
        mimic.take(&state(plan, 2, &evicted).to_string()).expect("a workload");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(patches.lock().len(), 0, "nothing is written about a workload that is being evicted");

        mimic.take(&kept.to_string()).expect("a workload");
        tokio::time::sleep(Duration::from_millis(10)).await;

        let patches = patches.lock();
        let types = |patch: &Value| patch["status"]["conditions"][2]["type"].clone();
        assert_eq!(patches.iter().map(types).collect::<Vec<_>>(), ["Finished"]);
        assert_eq!(patches[0]["metadata"]["resourceVersion"], "3");
    }
}
