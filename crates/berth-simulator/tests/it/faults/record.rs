//! What clients of the API see during the week: the latest objects, and checks of each change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_runtime::Clock;
use futures::StreamExt;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, WatchEvent, WatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;

use super::load::{JOB, Kind, NODES, RETRY_LIMIT, Submission};
use super::nodes::Nodes;
use super::recovery::{Course, PodFacts, Recovery, deployed_at};
use crate::objects::{condition, is_true};

/// Group and version of the kinds.
const KINDS: [(&str, &str, &str); 8] = [
    ("", "v1", "Node"),
    ("", "v1", "Pod"),
    ("", "v1", "Event"),
    ("batch", "v1", "Job"),
    ("kubeflow.org", "v1", "PyTorchJob"),
    ("workload.codeflare.dev", "v1beta2", "AppWrapper"),
    ("kueue.x-k8s.io", "v1beta2", "Workload"),
    ("kueue.x-k8s.io", "v1beta2", "ClusterQueue"),
];

/// Namespace and name.
pub type Key = (String, String);

pub fn resource(kind: &str) -> ApiResource {
    let known = KINDS.iter().find(|(_, _, known)| *known == kind);
    let (group, version, kind) = known.copied().unwrap_or(("kueue.x-k8s.io", "v1beta2", kind));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// All that was seen.
#[derive(Default)]
pub struct Record {
    pub jobs: BTreeMap<String, Submission>,
    pub objects: BTreeMap<&'static str, BTreeMap<Key, Value>>,
    pub nodes: Nodes,
    pub courses: BTreeMap<String, Course>,
    pub recoveries: Vec<Recovery>,
    /// Reasons of events, by kind and name of the object.
    pub events: BTreeMap<(String, String), BTreeSet<String>>,
    /// Number of resets, by AppWrapper: all, and those that count.
    pub resets: BTreeMap<String, (u64, i64)>,
    /// Number of pods that have started, by node pool.
    pub starts: BTreeMap<&'static str, usize>,
    /// Evictions of Workloads by reason.
    pub evictions: BTreeMap<String, usize>,
    /// What must not happen and did.
    pub violations: Vec<String>,
}

impl Record {
    /// Starts to watch all kinds.
    pub fn start(client: &Client, clock: &Clock) -> Arc<Mutex<Self>> {
        let record = Arc::new(Mutex::new(Self::default()));
        for (_, _, kind) in KINDS {
            tokio::spawn(follow(client.clone(), kind, record.clone(), clock.clone()));
        }
        record
    }

    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.get(kind).into_iter().flat_map(BTreeMap::values)
    }

    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(kind)?.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// The queued object of a job.
    pub fn job(&self, job: &Submission) -> Option<&Value> {
        self.get(job.object_kind(), job.namespace, &job.name)
    }

    fn apply(&mut self, kind: &'static str, object: Value, is_deleted: bool, now: Timestamp) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (text("namespace"), text("name"));
        let objects = self.objects.entry(kind).or_default();
        let old = if is_deleted { objects.remove(&key) } else { objects.insert(key.clone(), object.clone()) };
        let new = (!is_deleted).then_some(&object);
        match kind {
            "Node" => self.nodes.apply(&key.1, new, now),
            "Event" => self.event(&object, now),
            "Pod" => self.pod(old.as_ref(), &object, is_deleted, now),
            "AppWrapper" => self.wrapper(&key.1, old.as_ref(), &object, now),
            "Workload" => self.workload(&key.1, old.as_ref(), &object, now),
            "Job" | "PyTorchJob" if has_ended(&object) || is_suspended(&object) => self.stopped(&key.1),
            _ => {}
        }
    }

    fn stopped(&mut self, job: &str) {
        // A component of an AppWrapper has the name of the job, too.
        let is_own = self.jobs.get(job).is_some_and(|job| !job.is_wrapper());
        if let Some(course) = self.courses.get_mut(job).filter(|_| is_own) {
            course.stops();
        }
    }

    fn event(&mut self, event: &Value, now: Timestamp) {
        let of = &event["involvedObject"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if text(&event["message"]).is_empty() {
            self.violations.push(format!("{now}: an event without a message: {event}"));
        }
        let reason = text(&event["reason"]);
        // The events of old objects expire.
        self.objects.entry("Event").or_default().clear();
        self.events.entry((text(&of["kind"]), text(&of["name"]))).or_default().insert(reason);
    }

    fn pod(&mut self, old: Option<&Value>, pod: &Value, is_deleted: bool, now: Timestamp) {
        let Some(name) = pod["metadata"]["labels"][JOB].as_str() else { return };
        let Some(job) = self.jobs.get(name).cloned() else { return };
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let course = self.courses.entry(name.to_owned()).or_default();
        let before = course.pods.get(&uid).cloned();
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        match phase {
            _ if before.as_ref().is_some_and(|before| before.phase == phase) => {}
            "Succeeded" | "Failed" => course.pod_ended(phase),
            "Running" => {
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                *self.starts.entry(pool_of(node)).or_default() += 1;
            }
            _ => {}
        }
        if is_deleted {
            course.pods.remove(&uid);
        } else {
            let since = before.as_ref().map_or(now, |pod| pod.since);
            course.pods.insert(uid, PodFacts::of(pod, since));
        }
        let recovery = course.pods_changed(&job, before.as_ref(), &self.nodes, now);
        self.recoveries.extend(recovery);
        self.running_once(&job, now);
        let fails = |pod: &Value| pod["status"]["phase"] == "Failed";
        if fails(pod) && old.is_none_or(|old| !fails(old)) && !is_explained(pod) {
            self.violations.push(format!("{now}: a pod failed without a reason: {:#}", pod["status"]));
        }
    }

    /// No pod of a job runs twice at once, and a new deployment begins after the end of the old
    /// one.
    fn running_once(&mut self, job: &Submission, now: Timestamp) {
        let Some(course) = self.courses.get(&job.name) else { return };
        let live: Vec<&PodFacts> =
            course.pods.values().filter(|pod| !matches!(pod.phase.as_str(), "Succeeded" | "Failed")).collect();
        let owners: BTreeSet<&str> = live.iter().map(|pod| pod.owner.as_str()).collect();
        let indexes: BTreeSet<&str> = live.iter().map(|pod| pod.index.as_str()).collect();
        let is_indexed = matches!(job.kind, Kind::Job | Kind::WrappedJob);
        if live.len() > job.pods || owners.len() > 1 || is_indexed && indexes.len() != live.len() {
            self.violations
                .push(format!("{now}: {} ({:?}, {} pods) runs twice: {live:?}", job.name, job.kind, job.pods));
        }
    }

    fn wrapper(&mut self, name: &str, old: Option<&Value>, wrapper: &Value, now: Timestamp) {
        let count = |wrapper: &Value| wrapper["status"]["resettingCount"].as_i64().unwrap_or(0);
        let phase = wrapper["status"]["phase"].as_str().unwrap_or_default();
        if old.is_some_and(|old| old["status"]["phase"] == phase) {
            return;
        }
        let unhealthy = condition(wrapper, "Unhealthy").cloned().unwrap_or_default();
        let reason = unhealthy["reason"].as_str().unwrap_or_default().to_owned();
        let course = self.courses.entry(name.to_owned()).or_default();
        if matches!(phase, "Resetting" | "Failed") && (unhealthy["status"] != "True" || reason.is_empty()) {
            self.violations.push(format!("{now}: {name} enters {phase} without a reason: {:#}", wrapper["status"]));
        }
        match phase {
            "Resetting" => {
                let counted = count(wrapper) - old.map_or(0, count);
                let (all, limited) = self.resets.entry(name.to_owned()).or_default();
                (*all, *limited) = (*all + 1, *limited + counted);
                if *limited > RETRY_LIMIT || *limited != count(wrapper) {
                    self.violations.push(format!("{now}: {name} was reset {limited} times: {:#}", wrapper["status"]));
                }
                course.was_reset(&reason, old.and_then(deployed_at), &self.nodes, now);
            }
            "Suspending" | "Suspended" | "Failed" | "Succeeded" => course.stops(),
            _ => {}
        }
    }

    fn workload(&mut self, name: &str, old: Option<&Value>, workload: &Value, now: Timestamp) {
        let is_evicted = |workload: &Value| is_true(workload, "Evicted");
        if !is_evicted(workload) || old.is_some_and(is_evicted) {
            return;
        }
        let evicted = condition(workload, "Evicted").cloned().unwrap_or_default();
        let reason = evicted["reason"].as_str().unwrap_or_default().to_owned();
        if reason.is_empty() || evicted["message"].as_str().unwrap_or_default().is_empty() {
            self.violations.push(format!("{now}: {name} was evicted without a reason: {evicted}"));
        }
        *self.evictions.entry(reason).or_default() += 1;
    }
}

/// The pool of a node, by its name.
fn pool_of(node: &str) -> &'static str {
    NODES.iter().map(|(pool, _)| *pool).find(|pool| node.contains(&format!("-{pool}-"))).unwrap_or("other")
}

/// True if the object says why the pod failed.
fn is_explained(pod: &Value) -> bool {
    let states = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let mut codes = states.filter_map(|status| status["state"]["terminated"]["exitCode"].as_i64());
    is_true(pod, "DisruptionTarget")
        || pod["status"]["reason"].is_string()
        || pod["metadata"]["deletionTimestamp"].is_string()
        || codes.any(|code| code != 0)
}

/// True for a Job or PyTorchJob that has ended.
pub fn has_ended(job: &Value) -> bool {
    ["Complete", "Failed", "Succeeded"].iter().any(|type_| is_true(job, type_))
}

fn is_suspended(job: &Value) -> bool {
    job["spec"]["suspend"] == true || job["spec"]["runPolicy"]["suspend"] == true
}

/// Applies every change of a kind.
async fn follow(client: Client, kind: &'static str, record: Arc<Mutex<Record>>, clock: Clock) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let mut version = "0".to_owned();
    loop {
        let parameters = WatchParams::default().timeout(290);
        let mut changes = match api.watch(&parameters, &version).await {
            Ok(changes) => changes.boxed(),
            Err(error) => panic!("cannot watch {kind}: {error}"),
        };
        while let Some(change) = changes.next().await {
            let (object, is_deleted) = match change {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                Ok(WatchEvent::Deleted(object)) => (object, true),
                Ok(WatchEvent::Bookmark(bookmark)) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(error)) => panic!("the watch of {kind} failed: {error:?}"),
                Err(error) => panic!("the watch of {kind} failed: {error}"),
            };
            version = object.resource_version().unwrap_or(version);
            let object = serde_json::to_value(object).expect("JSON");
            record.lock().apply(kind, object, is_deleted, clock.now());
        }
    }
}
