//! The objects of a case, an engine that contains them, and the changes that the engine's decisions
//! make to the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::kueue::v1beta2 as api;
use berth_controllers::configuration::Resources;
use berth_controllers::plan::PlannedEvent;
use berth_controllers::scheduler::carry_out::{Change, Report, carry_out, changes, replaced_slice};
use berth_controllers::translate::{self, Context};
use berth_controllers::{Config, Gates};
use berth_engine::model::{Time, WorkloadKey};
use berth_engine::{CycleOutcome, Engine, EngineConfig, Event, Name};
use berth_runtime::EventType;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::Case;
use super::super::fields::Lookup;

/// An engine, the objects of a case, and the Kubernetes events that were recorded.
pub struct World {
    pub engine: Engine,
    pub gates: Gates,
    pub now: Timestamp,
    pub workloads: BTreeMap<WorkloadKey, api::Workload>,
    pub queues: BTreeMap<String, api::ClusterQueue>,
    pub events: Vec<Value>,
    /// Kind of the error that every status write returns, if the case has one.
    write_error: Option<String>,
    limit_ranges: Vec<LimitRange>,
    resources: Resources,
}

/// The objects of a list in the case's input.
pub fn objects<T: DeserializeOwned>(input: &impl Lookup, key: &str) -> Result<Vec<T>, String> {
    match input.field(key) {
        Value::Null => Ok(Vec::new()),
        list => {
            // Some suites wrap a workload in upstream's `workload.Info`.
            let unwrapped = |entry: &Value| match entry.get("workload") {
                Some(workload) if entry.get("totalRequests").is_some() => workload.clone(),
                _ => entry.clone(),
            };
            let list: Vec<Value> = list.as_array().into_iter().flatten().map(unwrapped).collect();
            serde_json::from_value(Value::Array(list)).map_err(|error| format!("input.{key}: {error}"))
        }
    }
}

/// One object of the case's input.
pub fn object<T: DeserializeOwned>(input: &impl Lookup, key: &str) -> Result<T, String> {
    serde_json::from_value(input.field(key).clone()).map_err(|error| format!("input.{key}: {error}"))
}

/// The clock of a case.
pub fn now(case: &Case) -> Timestamp {
    let text = case.data["now"].as_str().unwrap_or("2026-01-01T00:00:00Z");
    text.parse().unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Engine configuration, feature gates and resource configuration of a case.
pub fn config(case: &Case) -> Result<(EngineConfig, Gates, Resources), String> {
    let input = &case.input;
    let mut raw = json!({});
    if let Some(afs) = input.get("admissionFairSharing").or(input.get("afsConfig")).filter(|it| !it.is_null()) {
        raw["admissionFairSharing"] = afs.clone();
    }
    if input["fairSharing"] == json!(true) {
        let strategies = input.get("preemptionStrategies").or(input.get("strategies"));
        raw["fairSharing"] = match strategies.and_then(Value::as_array) {
            Some(list) if !list.is_empty() => json!({"preemptionStrategies": list}),
            _ => json!({}),
        };
    }
    if let Some(list) = input.get("resourceTransformations") {
        raw["resources"]["transformations"] = list.clone();
    }
    if let Some(strategy) = input.get("quotaCheckStrategy").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        raw["resources"]["quotaCheckStrategy"] = json!(strategy);
    }
    raw["featureGates"] = case.data["featureGates"].clone();
    if raw["featureGates"].is_null() {
        raw["featureGates"] = json!({});
    }
    let config: Config = serde_json::from_value(raw).map_err(|error| format!("configuration: {error}"))?;
    // Kueue's recorded decisions have no reports of workloads that an equivalent one represents.
    let engine = EngineConfig { report_represented: false, ..config.engine() };
    Ok((engine, config.gates(), config.resources.clone()))
}

impl World {
    /// An engine with the configuration objects and workloads of a case. It flushes inadmissible
    /// workloads without delay.
    pub fn new(case: &Case) -> Result<World, String> {
        World::with_flush_delay(case, Duration::ZERO)
    }

    /// Like [`World::new`], with a delay before inadmissible workloads are flushed.
    pub fn with_flush_delay(case: &Case, delay: Duration) -> Result<World, String> {
        let input = &case.input;
        let (mut config, gates, resources) = config(case)?;
        config.flush_delay = delay;
        let mut world = World {
            engine: Engine::new(config),
            gates,
            now: now(case),
            workloads: BTreeMap::new(),
            queues: BTreeMap::new(),
            events: Vec::new(),
            write_error: ["admissionError", "patchStatusError"]
                .into_iter()
                .find_map(|key| input[key]["kind"].as_str())
                .map(str::to_owned),
            limit_ranges: Vec::new(),
            resources,
        };
        // Configuration objects, each after those that it refers to.
        for object in objects::<Value>(input, "objects")? {
            if object["kind"] == "LimitRange" {
                world.limit_ranges.push(serde_json::from_value(object).map_err(|error| error.to_string())?);
            }
        }
        for namespace in objects::<Value>(input, "namespaces")? {
            // Some suites have the metadata only.
            let metadata = if namespace["metadata"].is_object() { &namespace["metadata"] } else { &namespace };
            let metadata: ObjectMeta = serde_json::from_value(metadata.clone()).map_err(|error| error.to_string())?;
            let labels = translate::labels(metadata.labels.as_ref());
            world.apply(Event::NamespaceUpserted { name: Name::from(metadata.name.unwrap_or_default()), labels });
        }
        for topology in objects::<api::Topology>(input, "topologies")? {
            world.apply(Event::TopologyUpserted(translate::topology(&topology)));
        }
        for node in objects::<Node>(input, "nodes")? {
            world.apply(Event::NodeUpserted(translate::node(&node)));
        }
        for pod in objects::<Pod>(input, "pods")? {
            if let Some(pod) = translate::node_pod(&pod) {
                world.apply(Event::NodePodUpserted(pod));
            }
        }
        for flavor in objects::<Value>(input, "resourceFlavors")? {
            let flavor = match flavor.as_str() {
                Some(name) => berth_engine::model::ResourceFlavor { name: Name::from(name), ..Default::default() },
                None => translate::flavor(&serde_json::from_value(flavor).map_err(|error| error.to_string())?),
            };
            world.apply(Event::FlavorUpserted(flavor));
        }
        for check in objects::<api::AdmissionCheck>(input, "admissionChecks")? {
            world.apply(Event::AdmissionCheckUpserted(translate::admission_check(&check)));
        }
        for cohort in objects::<api::Cohort>(input, "cohorts")? {
            if !cohort.name_any().is_empty() {
                world.apply(Event::CohortUpserted(translate::cohort(&cohort)));
            }
        }
        for queue in objects::<api::ClusterQueue>(input, "clusterQueues")? {
            world.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)));
            world.queues.insert(queue.name_any(), queue);
        }
        for queue in objects::<api::LocalQueue>(input, "localQueues")? {
            world.apply(Event::LocalQueueUpserted(translate::local_queue(&queue)));
        }
        // Workloads last: the engine then knows the queues that they name.
        for workload in objects::<api::Workload>(input, "workloads")? {
            if !world.workloads.contains_key(&translate::workload_key(&workload)) {
                world.upsert(workload);
            }
        }
        Ok(world)
    }

    /// The engine's clock.
    pub fn time(&self) -> Time {
        translate::time(self.now)
    }

    /// Sends an event to the engine.
    pub fn apply(&mut self, event: Event) {
        let now = self.time();
        self.engine.apply(event, now);
    }

    /// Stores a new version of a workload and sends it to the engine.
    pub fn upsert(&mut self, workload: api::Workload) {
        let model = self.translate(&workload);
        self.workloads.insert(translate::workload_key(&workload), workload);
        self.apply(Event::WorkloadUpserted(Box::new(model)));
    }

    /// Sends the stored version of a workload to the engine, as a watch would.
    pub fn resend(&mut self, key: &WorkloadKey) {
        if let Some(object) = self.workloads.get(key).cloned() {
            self.upsert(object);
        }
    }

    /// Runs all requested flushes of inadmissible workloads, without delay.
    pub fn flush(&mut self) {
        let now = self.time();
        self.engine.lab().flush_requested(now);
    }

    /// Translates a workload into the engine's form.
    pub fn translate(&self, workload: &api::Workload) -> berth_engine::model::Workload {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let limit_ranges: Vec<LimitRange> = self
            .limit_ranges
            .iter()
            .filter(|range| range.metadata.namespace.as_deref().unwrap_or_default() == namespace)
            .cloned()
            .collect();
        let classes = BTreeMap::new();
        translate::workload(
            workload,
            &Context { resources: &self.resources, limit_ranges: &limit_ranges, runtime_classes: &classes },
        )
    }

    /// Runs one cycle and applies its decisions to the objects.
    pub fn cycle(&mut self) -> CycleOutcome {
        let now = self.time();
        let outcome = self.engine.cycle(now);
        for (key, change) in changes(outcome.clone()) {
            // In upstream's tests only the scheduler runs and no controller, so bypassed workloads
            // get no condition.
            if !matches!(change, Change::Bypassed(_)) {
                self.carry_out(&key, &change);
            }
        }
        outcome
    }

    /// Applies a change to the objects of the case, as the scheduling controller's writer does.
    pub fn carry_out(&mut self, key: &WorkloadKey, change: &Change) {
        if let Some(kind) = self.write_error.clone() {
            return self.fail(key, change, &kind);
        }
        let Some(before) = self.workloads.get(key) else { return };
        let Some((after, reports)) = carry_out(change, before, &self.gates, self.now) else { return };
        let replaced = match change {
            Change::Admit(admit) => replaced_slice(&after, admit),
            _ => None,
        };
        self.workloads.insert(key.clone(), after);
        reports.into_iter().for_each(|report| self.record(report));
        if let Some((key, change)) = replaced {
            self.carry_out(&key, &change);
        }
    }

    /// Reverts a change in the engine after its write failed. Does nothing if the object was
    /// deleted, as the removal is then the next event.
    fn fail(&mut self, key: &WorkloadKey, change: &Change, kind: &str) {
        match change {
            _ if kind == "NotFound" => {}
            Change::Admit(_) => self.apply(Event::AdmissionFailed(key.clone())),
            Change::Preempt(_) => self.apply(Event::PreemptionFailed(key.clone())),
            Change::Evict(eviction) => {
                self.apply(Event::PreemptionFailed(key.clone()));
                if let Some(message) = eviction.unplaced() {
                    let event = PlannedEvent::warning("SecondPassFailed", message);
                    self.record(Report { about: key.clone(), event, unnamed: None });
                }
            }
            Change::Wait(_) | Change::Bypassed(_) | Change::ReplaceSlice { .. } => {}
        }
    }

    fn record(&mut self, report: Report) {
        let type_ = match report.event.event_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        self.events.push(json!({
            "namespace": &*report.about.namespace, "name": &*report.about.name,
            "type": type_, "reason": report.event.reason, "message": report.event.message,
        }));
    }

    /// Keys of the waiting workloads per queue: those in the heap, and the inadmissible ones.
    pub fn waiting(&self) -> (BTreeMap<String, Vec<String>>, BTreeMap<String, Vec<String>>) {
        let (mut heap, mut inadmissible) =
            (BTreeMap::<String, Vec<String>>::new(), BTreeMap::<String, Vec<String>>::new());
        for queue in self.queues.keys() {
            for position in self.engine.pending(queue) {
                let places = if position.inadmissible { &mut inadmissible } else { &mut heap };
                places.entry(queue.clone()).or_default().push(position.workload.to_string());
            }
        }
        heap.values_mut().chain(inadmissible.values_mut()).for_each(|keys| keys.sort());
        (heap, inadmissible)
    }

    /// Admission of every workload that holds quota, by key, in API form.
    pub fn assignments(&self) -> BTreeMap<String, Value> {
        let admissions = self.engine.holding().into_iter().filter_map(|key| {
            let admission = translate::admission(self.engine.admission(key)?, true);
            Some((key.to_string(), serde_json::to_value(admission).unwrap_or_default()))
        });
        admissions.collect()
    }
}
