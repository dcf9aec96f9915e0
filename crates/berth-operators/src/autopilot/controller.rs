//! The agents: when checks run, and what their results change.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::NodeFaults;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, is_already_exists,
    is_not_found, later, message, write,
};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::checks::{Checks, Context, Report};
use super::label::{self, GPU_HEALTH, LEVEL_3, LEVEL_3_OUTPUT, TESTING};
use super::probe::{Measurement, Peer, Probe, Request, SimulatedProbe, Unavailable};
use super::results::{Models, Results};
use super::{AutopilotConfiguration, Options, invasive};

/// Maximum number of concurrent reconciles; a check may wait for a claim.
const CONCURRENCY: usize = 64;
/// Level of DCGM's diagnostics in periodic checks.
const LEVEL_PERIODIC: u8 = 1;
/// Level of DCGM's diagnostics in invasive checks.
const LEVEL_INVASIVE: u8 = 3;
/// Label of nodes that run processes of a machine, with the value `process`.
const RUNTIME_LABEL: &str = "berth.dev/runtime";

/// Adds the agents.
pub fn install(manager: &mut Manager, options: Options) {
    if !options.configuration.enabled {
        return;
    }
    let nodes = manager.nodes();
    let pods = manager.cache::<Pod>();
    let jobs = manager.cache::<Job>();
    let agents = Arc::new(Agents {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("autopilot"),
        configuration: options.configuration,
        probes: options.probes,
        checks: options.checks,
        nodes: nodes.clone(),
        pods: pods.clone(),
        on_node: pods.index(|pod| {
            let ended = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            node.into_iter().filter(|name| !name.is_empty() && !ended).collect()
        }),
        jobs_of: jobs.index(|job| invasive::node_of(job).map(str::to_owned).into_iter().collect()),
        results: Results::default(),
        locks: Mutex::default(),
        schedules: Mutex::default(),
    });
    options.api.connect(agents.clone());
    manager
        .controller("autopilot")
        .watch(&nodes, |delta| {
            let facts = |node: &Node| (node.uid(), node.labels().clone(), is_ready(node), invasive::gpus(node));
            let changed = match (&delta.old, &delta.new) {
                (Some(old), Some(new)) => facts(old) != facts(new),
                _ => true,
            };
            changed.then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .watch(&jobs, |delta| invasive::node_of(delta.latest()).map(ObjectKey::cluster))
        .concurrency(CONCURRENCY)
        .run(Loops(agents));
}

/// True unless the node reports that it is not ready, or does not report.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    !conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status != "True")
}

/// When checks of a node are due.
#[derive(Clone, Debug)]
struct Schedule {
    /// UID of the node.
    uid: String,
    periodic: Timestamp,
    /// `None` if invasive checks are off.
    invasive: Option<Timestamp>,
    /// Checks without result in the last round, with the reasons.
    unavailable: Vec<String>,
}

/// The agents of all nodes of this process.
pub struct Agents {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    configuration: Arc<AutopilotConfiguration>,
    probes: BTreeMap<String, Arc<dyn Probe>>,
    pub(super) checks: Checks,
    nodes: Cache<Node>,
    pods: Cache<Pod>,
    /// Pods by node, without those that succeeded.
    on_node: Index<Pod>,
    /// Invasive Jobs by node.
    jobs_of: Index<Job>,
    pub(super) results: Results,
    /// Serializes the checks of a node.
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// By node. A restart begins with a periodic check, as an agent does.
    schedules: Mutex<BTreeMap<String, Schedule>>,
}

/// The periodic and the invasive loop.
struct Loops(Arc<Agents>);

impl Reconciler for Loops {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let agents = &self.0;
        let node = agents.nodes.get(&key).filter(|node| node.metadata.deletion_timestamp.is_none());
        let Some((node, probe)) = node.and_then(|node| Some((node.clone(), agents.probe(&node)?))) else {
            agents.schedules.lock().remove(&key.name);
            agents.locks.lock().remove(&key.name);
            agents.results.forget(&key.name);
            return Ok(Action::Wait);
        };
        agents.record_invasive(&node, probe.as_ref()).await?;
        // The agent of a node that does not report runs nothing. Checks that are due run once the
        // node is ready.
        if !is_ready(&node) {
            return Ok(Action::Wait);
        }
        let now = agents.clock.now();
        let schedule = agents.schedule(&node, now);
        if schedule.periodic <= now {
            agents.periodic(&node, probe.as_ref()).await?;
            agents.reschedule(&key.name, |it| it.periodic = later(now, agents.configuration.repeat.0));
        }
        if schedule.invasive.is_some_and(|due| due <= now) {
            agents.invade(&node, probe.as_ref()).await?;
            agents.reschedule(&key.name, |it| it.invasive = Some(later(now, agents.configuration.invasive.0)));
        }
        let schedule = agents.schedule(&node, now);
        let due = schedule.invasive.map_or(schedule.periodic, |invasive| invasive.min(schedule.periodic));
        Ok(Action::After(agents.clock.until(due)))
    }
}

impl Agents {
    /// The schedule of a node. The first periodic check of a node is due at once.
    fn schedule(&self, node: &Node, now: Timestamp) -> Schedule {
        let uid = node.uid().unwrap_or_default();
        let interval = self.configuration.invasive;
        let invasive = (interval != Default::default()).then(|| later(now, interval.0));
        let new = Schedule { uid: uid.clone(), periodic: now, invasive, unavailable: Vec::new() };
        let mut schedules = self.schedules.lock();
        let known = schedules.entry(node.name_any()).or_insert_with(|| new.clone());
        if known.uid != uid {
            *known = new;
        }
        known.clone()
    }

    fn reschedule(&self, node: &str, change: impl FnOnce(&mut Schedule)) {
        if let Some(schedule) = self.schedules.lock().get_mut(node) {
            change(schedule);
        }
    }

    /// The probe of a node; `None` if the node has no agent in this process.
    pub(super) fn probe(&self, node: &Node) -> Option<Arc<dyn Probe>> {
        let labels = node.labels();
        if !self.configuration.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value)) {
            return None;
        }
        if let Some(probe) = self.probes.get(&node.name_any()) {
            return Some(probe.clone());
        }
        // The machine of another process.
        if labels.contains_key(RUNTIME_LABEL) {
            return None;
        }
        // The node pools report annotations that cannot be read.
        let faults = NodeFaults::of_annotations(node.annotations()).unwrap_or_default();
        Some(Arc::new(SimulatedProbe { faults, gpus: invasive::gpus(node) }))
    }

    /// All nodes with an agent, by name.
    pub(super) fn agents(&self) -> BTreeMap<String, (Arc<Node>, Arc<dyn Probe>)> {
        let nodes = self.nodes.list().into_iter();
        nodes.filter_map(|node| Some((node.name_any(), (node.clone(), self.probe(&node)?)))).collect()
    }

    /// Names of the nodes that run pods with this label in a namespace.
    pub(super) fn nodes_of_pods(&self, namespace: &str, key: &str, value: &str) -> Vec<String> {
        let pods = self.pods.list_namespace(namespace);
        let labelled = pods.iter().filter(|pod| pod.labels().get(key).is_some_and(|known| known == value));
        labelled.filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect()
    }

    /// Cluster time.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Runs checks of one node, one after the other. Unknown names are skipped.
    pub(super) async fn run(&self, node: &Node, probe: &dyn Probe, names: &[&str], level: u8) -> Vec<Report> {
        let lock = self.locks.lock().entry(node.name_any()).or_default().clone();
        let _guard = lock.lock().await;
        // The claim of this check is in the agents' namespace. If the namespace cannot be created,
        // the check reports that its claim cannot be.
        if names.contains(&"pvc")
            && let Err(error) = self.ensure_namespace().await
        {
            tracing::debug!(error, "the namespace of the health agents cannot be created");
        }
        let mut reports = Vec::new();
        for check in names.iter().filter_map(|name| self.checks.get(name)) {
            let peers = if check.name() == "ping" { self.peers(node) } else { Vec::new() };
            let request = Request { check: check.name().to_owned(), level, peers };
            let (client, clock) = (self.client.clone(), self.clock.clone());
            let context = Context { node, probe, request, configuration: &self.configuration, client, clock };
            reports.push(Checks::run(check.as_ref(), &context).await);
        }
        self.results.store(&node.name_any(), models(node), &reports);
        reports
    }

    /// The nodes that a node must reach: the simulated ones for a simulated node, and the machines
    /// for a machine.
    fn peers(&self, node: &Node) -> Vec<Peer> {
        let is_real = |node: &Node| node.labels().contains_key(RUNTIME_LABEL);
        let others = self.nodes.list();
        let others =
            others.iter().filter(|other| other.name_any() != node.name_any() && is_real(other) == is_real(node));
        let address = |node: &Arc<Node>| {
            let addresses = node.status.as_ref()?.addresses.as_ref()?;
            let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
            Some(Peer { name: node.name_any(), address: internal.address.clone() })
        };
        others.filter_map(address).collect()
    }

    /// The periodic check.
    async fn periodic(&self, node: &Node, probe: &dyn Probe) -> Result<(), Error> {
        let names = self.configuration.periodic_checks();
        let reports = self.run(node, probe, &names, LEVEL_PERIODIC).await;
        self.report_unavailable(node, &reports);
        if !reports.iter().any(Report::has_run) {
            return Ok(());
        }
        let failed = reports.iter().any(Report::has_failed);
        self.set_health(node, label::after_periodic(failed), &reports).await
    }

    /// Runs checks on request, and sets the label as far as it may change.
    pub(super) async fn on_request(&self, node: &Node, probe: &dyn Probe, names: &[&str], level: u8) -> Vec<Report> {
        let reports = self.run(node, probe, names, level).await;
        if reports.iter().any(Report::has_run) {
            let present = self.nodes.get(&ObjectKey::cluster(node.name_any()));
            let present = present.and_then(|node| node.labels().get(GPU_HEALTH).cloned());
            let failed = reports.iter().any(Report::has_failed);
            if let Some(health) = label::after_request(present.as_deref(), failed)
                && let Err(error) = self.set_health(node, health, &reports).await
            {
                tracing::warn!(node = node.name_any(), error, "the label of a checked node cannot be written");
            }
        }
        reports
    }

    /// Reports the checks without a result, if they differ from the last round.
    fn report_unavailable(&self, node: &Node, reports: &[Report]) {
        let missing = reports.iter().filter_map(|report| Some((report.check, report.result.as_ref().err()?)));
        let missing: Vec<String> = missing.map(|(check, why)| format!("{check}: {why}")).collect();
        let mut changed = false;
        self.reschedule(&node.name_any(), |it| {
            changed = it.unavailable != missing;
            it.unavailable.clone_from(&missing);
        });
        if changed && !missing.is_empty() {
            let message = format!("Health checks have no result: {}", missing.join("; "));
            self.recorder.event(node, EventType::Warning, "HealthCheckUnavailable", &message);
        }
    }

    /// Sets the label of a node, and records an event if it changes.
    async fn set_health(&self, node: &Node, health: &str, reports: &[Report]) -> Result<(), Error> {
        let present = self.nodes.get(&ObjectKey::cluster(node.name_any()));
        let before = present.and_then(|node| node.labels().get(GPU_HEALTH).cloned());
        if before.as_deref() == Some(health) {
            return Ok(());
        }
        self.label(node, &json!({ "labels": { GPU_HEALTH: health } })).await?;
        let reasons: Vec<String> = reports.iter().flat_map(Report::reasons).collect();
        let silent: Vec<&str> = reports.iter().filter(|report| !report.has_run()).map(|report| report.check).collect();
        let why = match (reasons.is_empty(), silent.is_empty()) {
            (true, true) => "all checks passed".to_owned(),
            (true, false) => format!("the other checks passed, and {} have no result", silent.join(", ")),
            (false, _) => reasons.join("; "),
        };
        self.report_change(node, before.as_deref(), health, &why);
        Ok(())
    }

    fn report_change(&self, node: &Node, before: Option<&str>, health: &str, why: &str) {
        let kind = if matches!(health, label::PASS | TESTING) { EventType::Normal } else { EventType::Warning };
        let before = before.filter(|value| !value.is_empty()).unwrap_or("unset");
        let shown = if health.is_empty() { "unset" } else { health };
        let message = format!("{GPU_HEALTH} changed from {before} to {shown}: {why}");
        self.recorder.event(node, kind, "GPUHealthChanged", &message);
    }

    /// Patches the metadata of a node. A node that is gone is no error.
    async fn label(&self, node: &Node, metadata: &Value) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let mut metadata = metadata.clone();
        // The patch fails if another node of this name has replaced this one.
        metadata["uid"] = json!(node.uid());
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match write::patch(&api, &node.name_any(), &PatchParams::default(), &patch).await {
            Ok(written) => {
                self.nodes.observe(written);
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the namespace of Jobs and claims, unless it exists.
    async fn ensure_namespace(&self) -> Result<(), Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        if berth_runtime::write::get_opt(&api, &self.configuration.namespace).await?.is_some() {
            return Ok(());
        }
        let namespace = json!({ "metadata": { "name": self.configuration.namespace } });
        let namespace = berth_api::json::from_value(namespace).expect("the literal has the form of a Namespace");
        match berth_runtime::write::create(&api, &PostParams::default(), &namespace).await {
            Ok(_) => Ok(()),
            Err(error) if is_already_exists(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts an invasive check if no pod uses the node's GPUs.
    pub(super) async fn invade(&self, node: &Node, probe: &dyn Probe) -> Result<(), Error> {
        let name = node.name_any();
        let is_busy = self.jobs_of.get(&name).iter().any(|job| invasive::outcome(job).is_none());
        let pods = self.on_node.get(&name);
        if is_busy || invasive::obstacle(node, pods.iter().map(AsRef::as_ref)).is_some() {
            return Ok(());
        }
        if let Some(why) = probe.invasive_obstacle() {
            let message = format!("The invasive check does not run: {why}");
            self.recorder.event(node, EventType::Warning, "HealthCheckUnavailable", &message);
            return Ok(());
        }
        self.ensure_namespace().await?;
        let before = node.labels().get(GPU_HEALTH).cloned();
        self.label(node, &json!({ "labels": { GPU_HEALTH: TESTING } })).await?;
        self.report_change(node, before.as_deref(), TESTING, "an invasive check starts");
        let attempt = self.clock.now().to_string();
        let job = invasive::job(node, &attempt, &probe.invasive_command(), &self.configuration);
        let api: Api<Job> = Api::namespaced(self.client.clone(), &self.configuration.namespace);
        if let Err(error) = berth_runtime::write::create(&api, &PostParams::default(), &job).await {
            self.label(node, &json!({ "labels": { GPU_HEALTH: "" } })).await?;
            let why = format!(
                "Job {}/{} cannot be created: {}",
                self.configuration.namespace,
                job.name_any(),
                message(&error)
            );
            self.report_change(node, Some(TESTING), "", &why);
        }
        Ok(())
    }

    /// Labels the node by the result of an invasive Job that finished.
    async fn record_invasive(&self, node: &Node, probe: &dyn Probe) -> Result<(), Error> {
        let recorded = node.annotations().get(invasive::RECORDED);
        let jobs = self.jobs_of.get(&node.name_any());
        let mut finished: Vec<_> = jobs
            .iter()
            .filter(|job| job.namespace().as_deref() == Some(&self.configuration.namespace))
            .filter(|job| job.uid().as_ref() != recorded && job.uid().is_some())
            .filter_map(|job| Some((job.creation_timestamp(), job, invasive::outcome(job)?)))
            .collect();
        finished.sort_by(|a, b| a.0.cmp(&b.0));
        // Jobs of a node do not overlap, so only the last one can be unrecorded.
        let Some((_, job, has_succeeded)) = finished.pop() else { return Ok(()) };
        let mut annotations = json!({ invasive::RECORDED: job.uid() });
        let result = self.invasive_result(probe, job, has_succeeded).await?;
        let measurements = match result {
            Ok(measurements) => measurements,
            Err(why) => {
                self.label(node, &json!({ "annotations": annotations })).await?;
                let message = format!("Job {} has no result, so the labels stay: {why}", job.name_any());
                self.recorder.event(node, EventType::Warning, "InvasiveCheckAborted", &message);
                return Ok(());
            }
        };
        let before = node.labels().get(GPU_HEALTH).map(String::as_str);
        let fatal = self.configuration.fatal_tests();
        let found = label::after_invasive(before, &measurements, &fatal, self.clock.now());
        annotations[LEVEL_3_OUTPUT] = json!(found.output);
        let labels = json!({ GPU_HEALTH: found.health, LEVEL_3: found.level_3 });
        self.label(node, &json!({ "labels": labels, "annotations": annotations })).await?;
        if before != Some(found.health) {
            let why = if found.output.is_empty() {
                "the invasive check passed".to_owned()
            } else {
                format!("the invasive check failed: {}", found.output)
            };
            self.report_change(node, before, found.health, &why);
        }
        Ok(())
    }

    /// The measurements of an invasive Job that finished.
    async fn invasive_result(
        &self,
        probe: &dyn Probe,
        job: &Job,
        has_succeeded: bool,
    ) -> Result<Result<Vec<Measurement>, Unavailable>, Error> {
        let output = self.output(job).await?;
        if let Some(result) = probe.invasive_result(&output) {
            return Ok(result);
        }
        if !has_succeeded {
            return Ok(Err(Unavailable("its pod did not complete".to_owned())));
        }
        let request = Request { check: "dcgm".to_owned(), level: LEVEL_INVASIVE, peers: Vec::new() };
        Ok(probe.measure(&request).await)
    }

    /// The log of a Job's pod; empty if there is none.
    async fn output(&self, job: &Job) -> Result<String, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.configuration.namespace);
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}", job.name_any()));
        let Some(pod) = berth_runtime::write::list(&api, &of_job).await?.items.into_iter().next() else {
            return Ok(String::new());
        };
        // A pod that the kubelet rejected has no log.
        Ok(api.logs(&pod.name_any(), &LogParams::default()).await.unwrap_or_default())
    }
}

/// The model names of a node, from the labels of device discovery.
fn models(node: &Node) -> Models {
    let label = |keys: &[&str]| keys.iter().find_map(|key| node.labels().get(*key)).cloned().unwrap_or_default();
    Models {
        cpu: label(&["feature.node.kubernetes.io/cpu-model.id", "kubernetes.io/arch"]),
        gpu: label(&["nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"]),
    }
}
