//! The live side of `berth top`: caches that follow the kinds of the opened views, and the clock of
//! the cluster.

use berth_api::json::Json;
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, LocalQueue, Workload};
use berth_dashboard::gpu_use::GpuUses;
use berth_runtime::{Followed, Following};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Event, Node, NodeStatus, Pod, PodSpec, PodStatus, PodTemplateSpec};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::state::{Kind, State};
use super::views::View;

/// The caches.
pub struct Live {
    client: Client,
    /// The only namespace to show, if the user chose one.
    namespace: Option<String>,
    /// The namespace to show if the user may not list all.
    default_namespace: String,
    /// Notified after each change.
    pub changed: Arc<Notify>,
    queues: Option<Followed<ClusterQueue>>,
    cohorts: Option<Followed<Cohort>>,
    local_queues: Option<Followed<LocalQueue>>,
    workloads: Option<Followed<Workload>>,
    nodes: Option<Followed<Node>>,
    /// What the GPUs of the nodes reported last.
    pub gpu_use: GpuUses,
    pods: Option<Followed<Pod>>,
    events: Option<Followed<Event>>,
}

impl Live {
    /// Without caches: each kind is followed from the first time that a view needs it.
    pub fn new(client: Client, namespace: Option<String>, default_namespace: String) -> Self {
        Self {
            client,
            namespace,
            default_namespace,
            changed: Arc::default(),
            queues: None,
            cohorts: None,
            local_queues: None,
            workloads: None,
            nodes: None,
            gpu_use: GpuUses::default(),
            pods: None,
            events: None,
        }
    }

    /// Follows the kinds of a view.
    pub fn follow(&mut self, view: View) {
        match view {
            View::Queues => {
                let (queues, cohorts) = (self.following(|_| {}), self.following(|_| {}));
                self.queues.get_or_insert_with(|| Followed::all(&self.client, queues));
                self.cohorts.get_or_insert_with(|| Followed::all(&self.client, cohorts));
            }
            View::LocalQueues => self.follow_local_queues(),
            View::Jobs => {
                self.follow_local_queues();
                if self.workloads.is_none() {
                    self.workloads = Some(self.namespaced(of_workload));
                }
            }
            View::Nodes | View::Gpus => {
                let nodes = self.following(of_node);
                self.nodes.get_or_insert_with(|| Followed::all(&self.client, nodes));
                self.follow_pods();
            }
            View::Pods => self.follow_pods(),
            View::Events => {
                if self.events.is_none() {
                    self.events = Some(self.namespaced(|_| {}));
                }
            }
        }
    }

    fn follow_local_queues(&mut self) {
        if self.local_queues.is_none() {
            self.local_queues = Some(self.namespaced(|_| {}));
        }
    }

    fn follow_pods(&mut self) {
        if self.pods.is_none() {
            self.pods = Some(self.namespaced(of_pod));
        }
    }

    fn following<K>(&self, projection: fn(&mut K)) -> Following<K> {
        Following { projection, changed: self.changed.clone() }
    }

    fn namespaced<K>(&self, projection: fn(&mut K)) -> Followed<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Json
            + Clone
            + std::fmt::Debug
            + Send
            + Sync
            + 'static,
    {
        let following = self.following(projection);
        match &self.namespace {
            Some(namespace) => Followed::namespaced(&self.client, namespace, following),
            None => Followed::within_rights(&self.client, &self.default_namespace, following),
        }
    }

    /// The state of the cluster at a time.
    pub fn state(&self, now: Timestamp) -> State {
        State {
            now,
            queues: kind(self.queues.as_ref()),
            cohorts: kind(self.cohorts.as_ref()),
            local_queues: kind(self.local_queues.as_ref()),
            workloads: kind(self.workloads.as_ref()),
            nodes: kind(self.nodes.as_ref()),
            gpu_use: self.gpu_use.clone(),
            pods: kind(self.pods.as_ref()),
            events: kind(self.events.as_ref()),
        }
    }
}

fn kind<K>(followed: Option<&Followed<K>>) -> Kind<K>
where
    K: Resource<DynamicType = ()> + Json + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let Some(followed) = followed else { return Kind::default() };
    Kind { objects: followed.cache().list(), sight: Some(followed.sight()) }
}

/// Drops pod templates, which are most of a Workload.
fn of_workload(workload: &mut Workload) {
    for set in &mut workload.spec.pod_sets {
        set.template = PodTemplateSpec::default();
    }
}

/// Keeps what a node offers and whether it works.
fn of_node(node: &mut Node) {
    if let Some(NodeStatus { allocatable, conditions, .. }) = node.status.take() {
        node.status = Some(NodeStatus { allocatable, conditions, ..NodeStatus::default() });
    }
}

/// Keeps a pod's node, requests and phase.
fn of_pod(pod: &mut Pod) {
    let kept = |container: Container| Container {
        name: container.name,
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    };
    if let Some(PodSpec { node_name, containers, init_containers, .. }) = pod.spec.take() {
        let init_containers = init_containers.map(|all| all.into_iter().map(kept).collect());
        let containers = containers.into_iter().map(kept).collect();
        pod.spec = Some(PodSpec { node_name, containers, init_containers, ..PodSpec::default() });
    }
    if let Some(PodStatus { phase, .. }) = pod.status.take() {
        pod.status = Some(PodStatus { phase, ..PodStatus::default() });
    }
}

/// Span between two readings of the cluster's clock that suffices to measure its speed.
const SPEED_SPAN: Duration = Duration::from_secs(10);

/// The cluster's clock, extrapolated between readings. It may run faster than real time.
#[derive(Clone, Copy, Debug)]
pub struct ClusterClock {
    first: (Timestamp, Instant),
    last: (Timestamp, Instant),
}

impl ClusterClock {
    /// A clock that was read once.
    pub fn new(read: Timestamp, at: Instant) -> Self {
        Self { first: (read, at), last: (read, at) }
    }

    /// The clock was read again.
    pub fn read(&mut self, read: Timestamp, at: Instant) {
        self.last = (read, at);
    }

    /// Time on the clock.
    pub fn now(&self, at: Instant) -> Timestamp {
        let real = self.last.1.duration_since(self.first.1);
        let passed = self.last.0.duration_since(self.first.0).as_secs_f64();
        let speed = if real < SPEED_SPAN { 1.0 } else { (passed / real.as_secs_f64()).max(0.0) };
        let since = at.saturating_duration_since(self.last.1).as_secs_f64() * speed;
        let since = SignedDuration::try_from_secs_f64(since).unwrap_or_default();
        self.last.0.checked_add(since).unwrap_or(self.last.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_the_cluster_is_extrapolated_at_its_measured_speed() {
        let (start, at) = (Timestamp::UNIX_EPOCH, Instant::now());
        let mut clock = ClusterClock::new(start, at);
        let seconds = |clock: &ClusterClock, real: u64| clock.now(at + Duration::from_secs(real)).as_second();
        assert_eq!(seconds(&clock, 4), 4);
        clock.read("1970-01-01T00:03:20Z".parse().expect("a time"), at + Duration::from_secs(20));
        assert_eq!(seconds(&clock, 20), 200);
        assert_eq!(seconds(&clock, 23), 230);
    }
}
