//! The future in the API group `explain.berth.dev`: forecasts of the waiting jobs, and what would
//! happen if manifests were applied. Both run the engine forward from the state of the cluster, as
//! `berth forecast` and `berth what-if` do. Nothing is created.
//!
//! The controllers read the whole state. The response names only jobs of namespaces in which the
//! reader may list workloads.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::status::Status;
use berth_controllers::Installed;
use berth_controllers::explain::{GROUP, Readable, Reader, VERSION};
use berth_controllers::usage::parameter;
use berth_foresight::command::forecasts::{self, Starts};
use berth_foresight::command::source::{Known, valid};
use berth_foresight::command::what_if;
use berth_foresight::forecast::calibration::Calibration;
use berth_foresight::live::forecast::{self, JobForecast, Plan, namespace};
use berth_foresight::live::record;
use berth_foresight::live::what_if::compare;
use berth_foresight::memory::Memory;
use berth_foresight::objects::{Objects, read};
use berth_foresight::policy::Prices;
use berth_foresight::snapshot::{Changes, Snapshot};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::objects;

/// Least time for which forecasts are fresh: many readers look at them at once.
const FRESH: Duration = Duration::from_secs(5);
/// Computations take at most one part in this many of the time.
const SHARE: u32 = 10;
/// Least age up to which a reader gets forecasts while newer ones are computed.
const USABLE: Duration = Duration::from_secs(120);
/// How long the computation of the first forecasts may take for readers that do not want to wait.
/// Readers that come later during a longer one get the answer that they are pending at once.
const MOMENT: Duration = Duration::from_millis(50);
/// Number of runs per forecast, as for `berth forecast`, of up to [`JOBS_USUAL`] jobs.
const DRAWS: usize = 20;
/// With more jobs there are fewer runs, so that forecasts stay some seconds old.
const JOBS_USUAL: usize = 10_000;
/// Maximum number of objects in a question.
const MANIFESTS_MAX: usize = 100;

/// Computes futures, one after the other; clones share the last one.
#[derive(Clone, Default)]
pub(crate) struct Foresight {
    cached: Arc<parking_lot::Mutex<Option<Cached>>>,
    turn: Arc<Mutex<()>>,
    /// The begin of the computation that runs.
    running: Arc<parking_lot::Mutex<Option<Instant>>>,
    /// Earlier forecasts, and the starts that followed.
    record: Record,
}

type Record = Arc<parking_lot::Mutex<Calibration>>;

#[derive(Clone)]
struct Cached {
    at: Instant,
    /// Time for which it is fresh.
    fresh: Duration,
    present: Arc<Present>,
}

impl Cached {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < self.fresh
    }

    /// True if readers get it while a newer one is computed.
    fn is_usable(&self) -> bool {
        self.at.elapsed() < usable(self.fresh)
    }
}

/// The age up to which readers get forecasts while newer ones are computed: what takes long to
/// compute is usable for longer than it is fresh, so that the forecasts of a large cluster do not
/// disappear meanwhile.
fn usable(fresh: Duration) -> Duration {
    USABLE.max(fresh * 2)
}

/// The state of the cluster, and the forecasts of all waiting jobs.
struct Present {
    snapshot: Snapshot,
    known: Known,
    forecasts: Vec<JobForecast>,
    /// The forecasts by namespace and name of the Workload.
    by_workload: HashMap<(String, String), usize>,
    /// The namespaces of the jobs that forecasts name.
    namespaces: BTreeSet<String>,
    starts: Starts,
}

/// Which forecasts a reader asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Name of the only Workload.
    workload: Option<String>,
    /// Only the next starts.
    summary: bool,
    /// What the controllers know beside the objects, and no forecasts.
    memory: bool,
    /// False if the reader waits only a moment for the first computation.
    wait: bool,
}

impl Wanted {
    fn parse(query: &str) -> Result<Self, Status> {
        let given = |name: &str| parameter(query, name).filter(|it| !it.is_empty());
        let is = |name: &str, usual: bool| match given(name).as_deref() {
            None => Ok(usual),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(Status::bad_request(format!("{name}: invalid value {other:?}, expected true or false"))),
        };
        Ok(Self {
            workload: given("workload"),
            summary: is("summary", false)?,
            memory: is("memory", false)?,
            wait: is("wait", true)?,
        })
    }
}

/// A question with changes of single fields, for readers of the whole cluster.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct WhatIfSpec {
    manifests: Vec<Value>,
    quotas: Vec<String>,
    priorities: Vec<String>,
    pools: Vec<String>,
    without: Vec<String>,
}

impl Foresight {
    /// Forecasts of the waiting jobs of a namespace, or of all that the reader may list.
    /// Parameters: `workload` (name of the only Workload), `summary` (true for the next starts by
    /// queue and flavor without the jobs), `wait` (false for none if the first ones are not
    /// computed in a moment), and `memory` (true for what forecasts elsewhere need beside the
    /// objects, and nothing else).
    pub(crate) async fn forecasts(
        &self,
        installed: &Arc<Installed>,
        reader: &Reader,
        only: &str,
        query: &str,
    ) -> Result<Value, Status> {
        let wanted = Wanted::parse(query)?;
        let object =
            json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "Forecasts", "metadata": {}, "items": []});
        if wanted.memory {
            // The record of forecasts grows by those that are computed here.
            if self.turn.try_lock().is_ok() {
                self.begin(installed);
            }
            let memory = self.memory(installed, reader, only).await;
            return Ok(with(object, json!({"at": installed.explain.clock_now().to_string(), "memory": memory})));
        }
        let present = match wanted.wait {
            true => self.usable(installed).await?,
            false => match tokio::time::timeout_at(self.moment(), self.usable(installed)).await {
                Ok(present) => present?,
                Err(_) => return Ok(with(object, json!({"pending": true}))),
            },
        };
        if wanted.summary {
            let readable = readable(installed, reader, present.namespaces.clone()).await;
            let is_shown = |namespace: &str| (only.is_empty() || namespace == only) && readable.has(namespace);
            let starts = present.starts.json(&is_shown);
            return Ok(with(object, json!({"at": present.snapshot.at.to_string(), "starts": starts})));
        }
        let shown = present.shown(only, wanted.workload.as_deref());
        let named: BTreeSet<String> = match shown.len() == present.forecasts.len() {
            true => present.namespaces.clone(),
            false => shown.iter().flat_map(|it| it.namespaces()).map(str::to_owned).collect(),
        };
        let readable = readable(installed, reader, named).await;
        let before = shown.len();
        let is_listed = |it: &&JobForecast| readable.has(&it.key.namespace);
        let mut shown: Vec<JobForecast> = shown.into_iter().filter(is_listed).cloned().collect();
        let withheld = before - shown.len();
        for it in &mut shown {
            it.withhold(&|namespace| readable.has(namespace));
        }
        let sentences: Vec<String> = shown.iter().map(|it| forecasts::sentence(&present.known.state, it)).collect();
        let mut document = forecasts::json(present.snapshot.at, &shown);
        for (row, sentence) in document["forecasts"].as_array_mut().into_iter().flatten().zip(sentences) {
            row["text"] = json!(sentence);
        }
        let more = json!({"at": document["at"], "items": document["forecasts"].take(),
            "withheld": left_out(withheld, &readable)});
        Ok(with(object, more))
    }

    /// The forecasts of the first waiting jobs of each cluster queue, by place, and the time for
    /// which they were computed.
    pub(crate) async fn first(
        &self,
        installed: &Arc<Installed>,
        places: usize,
    ) -> Result<(Timestamp, Vec<JobForecast>), Status> {
        let present = self.newest(installed).await?;
        let in_queue = |it: &&JobForecast| it.cluster_queue.is_some() && it.place <= places;
        let mut first: Vec<&JobForecast> = present.forecasts.iter().filter(in_queue).collect();
        first.sort_by_key(|it| it.place);
        // Jobs that their queue does not consider yet share the place after the last one.
        let mut counts: HashMap<&str, usize> = HashMap::new();
        first.retain(|it| {
            let Some(queue) = &it.cluster_queue else { return false };
            let count = counts.entry(&**queue).or_default();
            *count += 1;
            *count <= places
        });
        Ok((present.snapshot.at, first.into_iter().cloned().collect()))
    }

    /// What would happen with the changes in a request's body. In a namespace these are manifests
    /// of jobs of that namespace.
    pub(crate) async fn what_if(
        &self,
        installed: &Arc<Installed>,
        reader: &Reader,
        only: &str,
        body: &[u8],
    ) -> Result<Value, Status> {
        let changes = changes(body, only)?;
        let present = self.newest(installed).await?;
        let config = installed.config.clone();
        let compared = tokio::task::spawn_blocking(move || {
            let changed = changes.apply(&present.snapshot).map_err(|error| error.to_string())?;
            let mut objects = valid(&changed).map_err(|error| error.to_string())?;
            objects.config = (*config).clone();
            unqueued(&objects, &changes, &present.snapshot)?;
            let after = Known::of(&objects, present.snapshot.at, None, &objects::template);
            let (before, after) = ((&present.known.state, &present.known.prospect), (&after.state, &after.prospect));
            Ok(what_if::json(&compare(before, after, &Prices::default()), false))
        });
        let compared: Result<Value, String> = compared.await.map_err(|error| Status::internal(error.to_string()))?;
        let mut document = compared.map_err(Status::unprocessable)?;
        self.withhold(installed, reader, &mut document).await;
        document["apiVersion"] = json!(format!("{GROUP}/{VERSION}"));
        document["kind"] = json!("WhatIf");
        document["metadata"] = json!({"namespace": only});
        if !only.is_empty() {
            // Figures of the whole cluster are for readers of the whole cluster.
            for figures in ["before", "after"] {
                document[figures] = Value::Null;
            }
        }
        Ok(document)
    }

    /// What the controllers know about the workloads of a namespace, or of all, that the reader may
    /// list.
    async fn memory(&self, installed: &Arc<Installed>, reader: &Reader, only: &str) -> Memory {
        let memory = Memory::from(&installed.explain.memory()).with_forecasts(&self.record.lock());
        let memory = memory.of_namespaces(&|namespace| only.is_empty() || namespace == only);
        let readable = readable(installed, reader, memory.namespaces()).await;
        memory.of_namespaces(&|namespace| readable.has(namespace))
    }

    /// Removes the jobs of namespaces in which the reader may not list workloads.
    async fn withhold(&self, installed: &Arc<Installed>, reader: &Reader, document: &mut Value) {
        let rows = document["jobs"].as_array_mut();
        let mut rows = rows.map(std::mem::take).unwrap_or_default();
        let titles = rows.iter().flat_map(|row| {
            let evicts = row["evicts"].as_array().into_iter().flatten();
            std::iter::once(&row["job"]).chain(evicts).filter_map(Value::as_str)
        });
        let named: BTreeSet<String> = titles.map(|title| namespace(title).to_owned()).collect();
        let readable = readable(installed, reader, named).await;
        let is_readable = |title: &Value| title.as_str().is_some_and(|title| readable.has(namespace(title)));
        let before = rows.len();
        // The reader's own new jobs are shown in any case.
        rows.retain(|row| row["new"] == true || is_readable(&row["job"]));
        let withheld = before - rows.len();
        for row in &mut rows {
            let Some(evicts) = row["evicts"].as_array_mut() else { continue };
            let all = evicts.len();
            evicts.retain(is_readable);
            let others = all - evicts.len();
            row["evictsOthers"] = json!(others);
        }
        document["jobs"] = Value::Array(rows);
        document["withheld"] = left_out(withheld, &readable);
    }

    /// The time until which a reader waits that does not want to wait.
    fn moment(&self) -> Instant {
        let begin = *self.running.lock();
        begin.unwrap_or_else(Instant::now) + MOMENT
    }

    /// The last computed state, while a newer one is computed.
    async fn usable(&self, installed: &Arc<Installed>) -> Result<Arc<Present>, Status> {
        let cached = self.cached.lock().clone();
        match cached.filter(Cached::is_usable) {
            Some(cached) if cached.is_fresh() => Ok(cached.present),
            Some(cached) => {
                if self.turn.try_lock().is_ok() {
                    self.begin(installed);
                }
                Ok(cached.present)
            }
            None => self.newest(installed).await,
        }
    }

    /// The state of the cluster and its forecasts, some seconds old.
    async fn newest(&self, installed: &Arc<Installed>) -> Result<Arc<Present>, Status> {
        self.begin(installed).await.map_err(|error| Status::internal(error.to_string()))?
    }

    /// Computes the state in a task, which continues if the reader disconnects.
    fn begin(&self, installed: &Arc<Installed>) -> JoinHandle<Result<Arc<Present>, Status>> {
        let (foresight, installed) = (self.clone(), installed.clone());
        tokio::spawn(async move {
            // Readers that arrive meanwhile wait for the same computation.
            let _turn = foresight.turn.lock().await;
            let cached = foresight.cached.lock().clone();
            if let Some(cached) = cached.filter(Cached::is_fresh) {
                return Ok(cached.present);
            }
            let begin = Instant::now();
            *foresight.running.lock() = Some(begin);
            let present = Present::of(&installed, foresight.record.clone()).await;
            *foresight.running.lock() = None;
            let present = Arc::new(present?);
            let fresh = FRESH.max(begin.elapsed() * SHARE);
            *foresight.cached.lock() = Some(Cached { at: begin, fresh, present: present.clone() });
            Ok(present)
        })
    }
}

impl Present {
    async fn of(installed: &Installed, record: Record) -> Result<Present, Status> {
        let unavailable = |problem: &dyn std::fmt::Display| {
            Status::service_unavailable(format!("the state of the cluster cannot be read: {problem}"))
        };
        let listed = objects::list(&installed.client, true).await.map_err(|error| unavailable(&error))?;
        if let Some(missing) = listed.incomplete() {
            return Err(unavailable(&missing));
        }
        let (at, config) = (installed.explain.clock_now(), installed.config.clone());
        let memory = Memory::from(&installed.explain.memory());
        let computed = tokio::task::spawn_blocking(move || {
            let documents = listed.documents.into_iter().map(|document| document.value);
            let mut snapshot = Snapshot::of(documents, at);
            let mut objects = valid(&snapshot)?;
            objects.config = (*config).clone();
            let memory = {
                let mut guard = record.lock();
                record::settle(&mut guard, &objects);
                memory.with_forecasts(&guard)
            };
            objects.memory = Some(memory.clone());
            snapshot = snapshot.with_memory(Some(memory));
            let known = Known::of(&objects, at, None, &objects::template);
            let draws = (DRAWS * JOBS_USUAL / known.state.jobs.len().max(1)).clamp(1, DRAWS);
            let forecasts = forecast::forecast(&known.state, &known.prospect, Plan { draws, only: None });
            record::add(&mut record.lock(), &forecasts, known.state.at);
            anyhow::Ok(Present::new(snapshot, known, forecasts))
        });
        let present = computed.await.map_err(|error| Status::internal(error.to_string()))?;
        present.map_err(|error| unavailable(&error))
    }

    fn new(snapshot: Snapshot, known: Known, forecasts: Vec<JobForecast>) -> Self {
        let (mut by_workload, mut namespaces) = (HashMap::new(), BTreeSet::new());
        for (place, it) in forecasts.iter().enumerate() {
            by_workload.insert((it.key.namespace.to_string(), it.key.name.to_string()), place);
            for namespace in it.namespaces() {
                if !namespaces.contains(namespace) {
                    namespaces.insert(namespace.to_owned());
                }
            }
        }
        let starts = Starts::of(&forecasts);
        Self { snapshot, known, forecasts, by_workload, namespaces, starts }
    }

    /// The forecasts of a namespace, or of all if it is empty; only that of one Workload if it is
    /// given.
    fn shown(&self, only: &str, workload: Option<&str>) -> Vec<&JobForecast> {
        if let (Some(name), false) = (workload, only.is_empty()) {
            let place = self.by_workload.get(&(only.to_owned(), name.to_owned()));
            return place.map(|place| &self.forecasts[*place]).into_iter().collect();
        }
        let is_asked = |it: &&JobForecast| {
            (only.is_empty() || *it.key.namespace == *only) && workload.is_none_or(|name| *it.key.name == *name)
        };
        self.forecasts.iter().filter(is_asked).collect()
    }
}

/// An object with further fields.
fn with(mut object: Value, more: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (object.as_object_mut(), more) {
        fields.extend(more);
    }
    object
}

async fn readable(installed: &Arc<Installed>, reader: &Reader, namespaces: BTreeSet<String>) -> Readable {
    installed.explain.readable(reader, &namespaces.into_iter().collect::<Vec<_>>()).await
}

fn left_out(jobs: usize, readable: &Readable) -> Value {
    if jobs == 0 {
        return Value::Null;
    }
    let why = readable.why();
    json!({"jobs": jobs, "reason": why.reason, "message": why.message})
}

/// The changes of a question: manifests, or an object of kind WhatIf with single changes.
fn changes(body: &[u8], only: &str) -> Result<Changes, Status> {
    let invalid = |problem: String| Status::bad_request(format!("the body of the request: {problem}"));
    let text = std::str::from_utf8(body).map_err(|_| invalid("is not UTF-8".to_owned()))?;
    let documents = read::documents("body", text)
        .map_err(|(line, problem)| invalid(format!("document in line {line}: {problem}")))?;
    let mut changes = Changes::default();
    for document in documents {
        let value = document.value;
        if value["kind"] != "WhatIf" {
            changes.manifests.push(value);
            continue;
        }
        let spec: WhatIfSpec =
            serde_json::from_value(value["spec"].clone()).map_err(|error| invalid(format!("spec: {error}")))?;
        changes.manifests.extend(spec.manifests);
        changes.quotas.extend(spec.quotas);
        changes.priorities.extend(spec.priorities);
        changes.pools.extend(spec.pools);
        changes.without.extend(spec.without);
    }
    if changes.is_empty() {
        return Err(invalid("expected the manifest of a job, or an object of kind WhatIf with changes".to_owned()));
    }
    if changes.manifests.len() > MANIFESTS_MAX {
        return Err(invalid(format!("has {} objects, more than {MANIFESTS_MAX}", changes.manifests.len())));
    }
    if !only.is_empty() {
        in_namespace(&mut changes, only)?;
    }
    Ok(changes)
}

/// Restricts changes to new jobs of a namespace.
fn in_namespace(changes: &mut Changes, only: &str) -> Result<(), Status> {
    let has_edits =
        [&changes.quotas, &changes.priorities, &changes.pools, &changes.without].iter().any(|it| !it.is_empty());
    if has_edits {
        return Err(Status::bad_request(
            "spec: in a namespace, only manifests of jobs are accepted; changes of quota, priority, pools and other \
             objects need the path /apis/explain.berth.dev/v1alpha1/whatifs",
        ));
    }
    for manifest in &mut changes.manifests {
        let kind = manifest["kind"].as_str().unwrap_or_default().to_owned();
        let metadata = &mut manifest["metadata"];
        if !metadata.is_object() {
            return Err(Status::bad_request(format!("{kind}: metadata is required")));
        }
        match metadata["namespace"].as_str().unwrap_or_default() {
            "" => metadata["namespace"] = json!(only),
            own if own == only => {}
            other => {
                return Err(Status::bad_request(format!(
                    "{kind} {}: metadata.namespace: invalid value {other:?}, expected {only:?}, the namespace of the \
                     request",
                    metadata["name"].as_str().unwrap_or_default()
                )));
            }
        }
        if metadata["name"].as_str().unwrap_or_default().is_empty() {
            metadata["name"] = json!("new");
        }
    }
    Ok(())
}

/// An error for manifests of jobs that would not be queued, when nothing else changes.
fn unqueued(objects: &Objects, changes: &Changes, before: &Snapshot) -> Result<(), String> {
    let is_ours = |kind: &str, name: &str, namespace: &str| {
        changes.manifests.iter().any(|it| {
            let metadata = &it["metadata"];
            it["kind"] == kind && metadata["name"] == name && metadata["namespace"].as_str().unwrap_or("") == namespace
        })
    };
    let mut queued = 0;
    for made in objects.workloads_of_jobs(before.at) {
        if is_ours(&made.job.kind, &made.job.name, &made.job.namespace) {
            made.workload.map_err(|problem| format!("{}: {problem}", made.job))?;
            queued += 1;
        }
    }
    let only_manifests = Changes { manifests: Vec::new(), ..changes.clone() }.is_empty();
    let is_configuration = |it: &Value| {
        let group = it["apiVersion"].as_str().unwrap_or_default();
        group.starts_with("kueue.x-k8s.io/") || group.starts_with("berth.dev/") || it["kind"] == "Node"
    };
    if queued == 0 && only_manifests && !changes.manifests.iter().any(is_configuration) {
        return Err("the manifests have no job that would be queued: set the label kueue.x-k8s.io/queue-name to a \
                    LocalQueue of its namespace"
            .to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str, only: &str) -> String {
        changes(body.as_bytes(), only).expect_err("it is refused").message
    }

    #[test]
    fn manifests_of_a_namespace_stay_in_it() {
        let job = "{apiVersion: batch/v1, kind: Job, metadata: {generateName: a-}}";
        let changes = changes(job.as_bytes(), "team").expect("changes");
        let metadata = &changes.manifests[0]["metadata"];
        assert_eq!((&metadata["namespace"], &metadata["name"]), (&json!("team"), &json!("new")));
        let other = "kind: Job\nmetadata: {name: a, namespace: other}\n";
        assert!(refused(other, "team").contains("expected \"team\", the namespace of the request"));
        let edit = "kind: WhatIf\nspec: {quotas: [a/b/cpu=+1]}\n";
        assert!(refused(edit, "team").contains("/apis/explain.berth.dev/v1alpha1/whatifs"));
    }

    #[test]
    fn parameters_of_forecasts_are_checked() {
        let wanted = Wanted::parse("summary=true&wait=false&workload=").expect("parameters");
        assert_eq!(wanted, Wanted { workload: None, summary: true, memory: false, wait: false });
        assert_eq!(Wanted::parse("").map(|it| (it.summary, it.wait)).ok(), Some((false, true)));
        let error = Wanted::parse("summary=yes").expect_err("it is neither").message;
        assert_eq!(error, "summary: invalid value \"yes\", expected true or false");
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_do_not_want_to_wait_wait_for_one_moment_of_a_computation() {
        let foresight = Foresight::default();
        assert_eq!(foresight.moment(), Instant::now() + MOMENT, "none runs");
        *foresight.running.lock() = Some(Instant::now());
        tokio::time::advance(MOMENT / 2).await;
        assert_eq!(foresight.moment(), Instant::now() + MOMENT / 2);
        tokio::time::advance(MOMENT).await;
        assert!(foresight.moment() < Instant::now(), "a reader of a long computation does not wait again");
    }

    #[test]
    fn forecasts_that_take_long_stay_usable_while_newer_ones_are_computed() {
        assert_eq!(usable(FRESH), USABLE);
        let took = Duration::from_secs(40);
        assert!(usable(took * SHARE) >= took * SHARE + took, "the next ones need as long");
    }

    #[test]
    fn a_question_without_changes_is_refused_with_the_expected_form() {
        assert!(refused("", "").contains("expected the manifest of a job"));
        assert!(refused("kind: WhatIf\nspec: {quota: [x]}\n", "").contains("unknown field `quota`"));
        assert!(refused("\"", "").contains("document in line 1"));
    }
}
