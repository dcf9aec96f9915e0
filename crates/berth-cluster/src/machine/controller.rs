//! The kubelet's tasks for its Node: registration, Lease, status.

use std::time::Duration;

use berth_api::berth::NodePool;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, is_already_exists, is_not_found,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::node::Registration;
use super::pressure::{Shortages, TYPES, is_same};
use super::{LEASES, MachineNode};

/// Time between two measurements, and between two renewals of the Lease.
const PERIOD: Duration = Duration::from_secs(10);
/// Time for which a Lease is valid, in seconds.
pub(super) const LEASE_SECONDS: i32 = 40;
/// An unchanged status is reported again after this time.
const REPORT: Duration = Duration::from_secs(5 * 60);

/// Adds the controller of one machine's Node.
pub(super) fn install(manager: &mut Manager, node: MachineNode, kubelet_version: &str) {
    let nodes = manager.nodes();
    let pools: Cache<NodePool> = manager.cache();
    let (own, of_pool) = (node.name.clone(), node.name.clone());
    let reconciler = MachineReconciler {
        node,
        kubelet_version: kubelet_version.to_owned(),
        nodes: nodes.clone(),
        pools: pools.clone(),
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("kubelet"),
        state: Mutex::default(),
    };
    let builder = manager
        .controller("machine-node")
        .watch(&nodes, move |delta| Some(ObjectKey::of(delta.latest().as_ref())).filter(|key| key.name == own))
        .watch(&pools, move |delta| delta.latest().spec.is_process().then(|| ObjectKey::cluster(&of_pool)));
    // The machine registers even if no object exists that would trigger a reconcile.
    builder.queue().add(ObjectKey::cluster(&reconciler.node.name));
    builder.run(reconciler);
}

/// What this process has measured and written so far. A new process starts without it, and does
/// everything at once.
#[derive(Debug, Default)]
struct State {
    shortages: Shortages,
    /// Time of the last measurement.
    read: Option<Timestamp>,
    /// Time of the last renewal of the Lease.
    renewed: Option<Timestamp>,
    /// Time at which the whole status was last written.
    reported: Option<Timestamp>,
}

struct MachineReconciler {
    node: MachineNode,
    kubelet_version: String,
    nodes: Cache<Node>,
    pools: Cache<NodePool>,
    client: Client,
    clock: Clock,
    recorder: Recorder,
    state: Mutex<State>,
}

impl Reconciler for MachineReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let now = self.clock.now();
        self.read_figures(now);
        let pools = self.pools.list();
        let pool = pools
            .iter()
            .filter(|pool| pool.spec.is_process() && pool.metadata.deletion_timestamp.is_none())
            .min_by_key(|pool| pool.name_any());
        let registration = Registration {
            name: &self.node.name,
            facts: self.node.machine.facts(),
            margin: self.node.machine.margin(),
            devices: self.node.devices.capacity(),
            pool: pool.map(AsRef::as_ref),
            runtime_version: &self.node.runtime_version,
            kubelet_version: &self.kubelet_version,
        };
        let node = match self.nodes.get(&key) {
            Some(node) => node.as_ref().clone(),
            None => match self.register(&registration, now).await? {
                Some(node) => node,
                // The cache will show the existing Node.
                None => return Ok(Action::After(PERIOD)),
            },
        };
        if node.metadata.deletion_timestamp.is_none() {
            self.renew(&node, now).await?;
            self.report(&registration, &node, now).await?;
        }
        Ok(Action::After(PERIOD))
    }
}

impl MachineReconciler {
    fn read_figures(&self, now: Timestamp) {
        let mut state = self.state.lock();
        if !is_due(state.read, PERIOD, now) {
            return;
        }
        state.read = Some(now);
        match self.node.machine.pressure() {
            Ok(pressure) => state.shortages.observe(pressure, now),
            Err(error) => tracing::warn!(%error, "cannot measure this machine: its conditions are not updated"),
        }
    }

    fn conditions(&self, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
        self.state.lock().shortages.conditions(before, now)
    }

    /// Creates the Node. `None` if it exists.
    async fn register(&self, registration: &Registration<'_>, now: Timestamp) -> Result<Option<Node>, Error> {
        let mut node = registration.node();
        let status = node.status.get_or_insert_default();
        status.conditions = Some(self.conditions(&[], now));
        let api: Api<Node> = Api::all(self.client.clone());
        match berth_runtime::write::create(&api, &PostParams::default(), &node).await {
            Ok(created) => {
                self.nodes.observe(created.clone());
                self.recorder.event(&created, EventType::Normal, "Starting", "Starting kubelet.");
                Ok(Some(created))
            }
            Err(error) if is_already_exists(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews the Lease, as a heartbeat.
    async fn renew(&self, node: &Node, now: Timestamp) -> Result<(), Error> {
        // The Lease is renewed a little early, because timers fire a little late.
        let period = PERIOD - Duration::from_millis(500);
        if !is_due(self.state.lock().renewed, period, now) {
            return Ok(());
        }
        let api: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let name = &self.node.name;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": LEASES,
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid() }],
            },
            "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micros(now) },
        });
        match berth_runtime::write::patch(&api, name, &PatchParams::default(), &Patch::Merge(&lease)).await {
            Ok(_) => {}
            Err(error) if is_not_found(&error) => {
                let lease: Lease = berth_api::json::from_value(lease)?;
                berth_runtime::write::create(&api, &PostParams::default(), &lease).await?;
            }
            Err(error) => return Err(error.into()),
        }
        self.state.lock().renewed = Some(now);
        Ok(())
    }

    /// Writes labels and status if they differ from the facts, and the status at least every five
    /// minutes.
    async fn report(&self, registration: &Registration<'_>, node: &Node, now: Timestamp) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let known = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let conditions = self.conditions(known, now);
        let is_known = |condition: &NodeCondition| known.iter().any(|other| is_same(condition, other));
        let is_current = conditions.iter().all(is_known) && registration.is_reported(node);
        let reported = self.state.lock().reported;
        // The first report of this process always writes the status (`reported` is `None`), because
        // the cache does not keep `nodeInfo`, so changed versions would not be noticed.
        if !is_current || is_due(reported, REPORT, now) {
            let mut patch = registration.status_patch(node);
            let others = known.iter().filter(|condition| !TYPES.contains(&condition.type_.as_str()));
            let all: Vec<&NodeCondition> = conditions.iter().chain(others).collect();
            patch["conditions"] = json!(all);
            self.patch_status(&api, node, patch).await?;
            self.announce(node, known, &conditions);
            self.state.lock().reported = Some(now);
        }
        if let Some(patch) = registration.metadata_patch(node) {
            let patch = Patch::Merge(&patch);
            let written = berth_runtime::write::patch(&api, &self.node.name, &PatchParams::default(), &patch).await;
            self.observe(written)?;
        }
        Ok(())
    }

    async fn patch_status(&self, api: &Api<Node>, node: &Node, status: Value) -> Result<(), Error> {
        // The patch applies to this version of the Node only, because it contains conditions of
        // other controllers.
        let patch = json!({ "metadata": { "resourceVersion": node.resource_version() }, "status": status });
        let parameters = PatchParams::default();
        let patch = Patch::Merge(&patch);
        let written = berth_runtime::write::patch_status(api, &self.node.name, &parameters, &patch).await;
        self.observe(written)
    }

    fn observe(&self, written: kube::Result<Node>) -> Result<(), Error> {
        match written {
            Ok(node) => self.nodes.observe(node),
            // The next reconcile registers the Node again.
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Records an event for each condition that changed.
    fn announce(&self, node: &Node, before: &[NodeCondition], after: &[NodeCondition]) {
        for condition in after {
            let known = before.iter().find(|known| known.type_ == condition.type_);
            if known.is_none_or(|known| known.status == condition.status) {
                continue;
            }
            // As in the kubelet, the event for reason `KubeletHasDiskPressure` has the reason
            // `NodeHasDiskPressure`.
            let reason = condition.reason.as_deref().unwrap_or_default().replacen("KubeletHas", "NodeHas", 1);
            let reason = if reason == "KubeletReady" { "NodeReady".to_owned() } else { reason };
            let is_bad = (condition.status == "True") != (condition.type_ == "Ready");
            let kind = if is_bad { EventType::Warning } else { EventType::Normal };
            let message = condition.message.as_deref().unwrap_or_default();
            self.recorder.event(node, kind, &reason, &format!("Node {}: {message}", self.node.name));
        }
    }
}

fn is_due(last: Option<Timestamp>, period: Duration, now: Timestamp) -> bool {
    let period = SignedDuration::try_from(period).unwrap_or_default();
    last.is_none_or(|last| now.duration_since(last) >= period)
}

/// A time with microseconds, as in Leases.
fn micros(now: Timestamp) -> String {
    format!("{now:.6}")
}
