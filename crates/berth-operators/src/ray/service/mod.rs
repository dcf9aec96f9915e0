//! The RayService controller: applications of Ray Serve on a cluster that is replaced without an
//! interruption.
//!
//! The status names an active and a pending cluster. The pending one is created, gets the
//! applications, and becomes the active one once all of them run: the Services of the RayService
//! then select its pods. A replaced cluster is deleted after a delay. Services whose
//! `spec.managedBy` names another controller are ignored.
//!
//! Not implemented: `NewClusterWithIncrementalUpgrade`, which needs the Gateway API.

mod clusters;
mod serve;
mod status;
pub mod types;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::frameworks::{RayCluster, RayService};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, stamp};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use crate::ray::constants::{CONTROLLER_NAME, SERVE, SERVE_PORT, SERVE_PORT_NAME};
use crate::ray::dashboard::http::{self, Http};
use crate::ray::dashboard::simulated::{Deployed, SimulatedServe};
use crate::ray::dashboard::{Application, Serve};
use crate::ray::job::command::port_of;
use crate::ray::job::submitter::token_secret;
use crate::ray::objects::{heads_by_cluster, of_cluster};
use crate::ray::simulation::{Runs, runs};
use crate::ray::types::{RayClusterSpec, RayClusterStatus, condition};
use crate::ray::{names, services, yaml};
use berth_runtime::{Writer, is_controlled_by};
use status::{Observed, Serving, Suspension};
use types::{RayServiceSpec, RayServiceStatus};

/// Finalizer of a RayService: its clusters are deleted before the RayService.
const FINALIZER: &str = "ray.io/rayservice-finalizer";
/// Label of an EndpointSlice: name of its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Seconds for which a replaced cluster remains, unless the service sets another number.
const DELETION_DELAY_DEFAULT: i32 = 60;
/// Time after which a real dashboard is asked again.
const POLL: Duration = Duration::from_secs(2);
/// Maximum number of concurrent reconciles; each may wait for a dashboard.
const CONCURRENCY: usize = 16;

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let rays = manager.cache_if_served::<RayService>();
    let clusters = manager.cache_if_served::<RayCluster>();
    let all_services = manager.cache::<Service>();
    let pods = manager.cache::<Pod>();
    let slices = manager.cache::<EndpointSlice>();
    let owner = |cluster: &RayCluster| ObjectKey::of_controller_owner::<RayService>(cluster);
    let by_owner = clusters.index(move |cluster| owner(cluster).map(|key| key.to_string()).into_iter().collect());
    let service_of = |slice: &EndpointSlice| {
        let name = slice.labels().get(SERVICE_NAME)?;
        Some(ObjectKey::namespaced(slice.namespace().unwrap_or_default(), name))
    };
    let slices_of = slices.index(move |slice| service_of(slice).map(|key| key.to_string()).into_iter().collect());
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("rayservice-controller"),
        heads: heads_by_cluster(&pods),
        write: Writer::new(manager, &rays),
        write_cluster: Writer::new(manager, &clusters),
        write_service: Writer::new(manager, &all_services),
        write_pod: Writer::new(manager, &pods),
        rays: rays.clone(),
        clusters: clusters.clone(),
        services: all_services.clone(),
        by_owner,
        slices_of,
        memory: Mutex::default(),
        deployed: Deployed::default(),
    };
    let (of_pod, of_service) = (clusters.clone(), all_services.clone());
    let of_clusters_service = clusters.clone();
    let owner_of = move |clusters: &Cache<RayCluster>, key: Option<ObjectKey>| {
        key.and_then(|key| clusters.get(&key)).and_then(|cluster| owner(&cluster))
    };
    manager
        .controller("rayservice")
        .watch_self(&rays)
        .watch_owned::<RayService, _>(&clusters)
        .watch(&all_services, move |delta| {
            let service = delta.latest().as_ref();
            let own = ObjectKey::of_controller_owner::<RayService>(service);
            own.or_else(|| owner_of(&of_clusters_service, of_cluster(service)))
        })
        .watch(&pods, move |delta| owner_of(&of_pod, of_cluster(delta.latest().as_ref())))
        .watch(&slices, move |delta| {
            let service = service_of(delta.latest()).and_then(|key| of_service.get(&key))?;
            ObjectKey::of_controller_owner::<RayService>(service.as_ref())
        })
        .concurrency(CONCURRENCY)
        .run(controller);
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    rays: Cache<RayService>,
    clusters: Cache<RayCluster>,
    services: Cache<Service>,
    by_owner: Index<RayCluster>,
    heads: Index<Pod>,
    slices_of: Index<EndpointSlice>,
    write: Writer<RayService>,
    write_cluster: Writer<RayCluster>,
    write_service: Writer<Service>,
    write_pod: Writer<Pod>,
    /// What is remembered of each service. It is lost at a restart of the operator. The
    /// applications are then deployed again, which changes nothing, and delays start again.
    memory: Mutex<BTreeMap<ObjectKey, Memory>>,
    deployed: Deployed,
}

/// What the controller remembers of a service.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// The deployed configuration of each cluster.
    configurations: BTreeMap<String, String>,
    /// The time since which each replaced cluster waits for its deletion.
    replaced: BTreeMap<String, Timestamp>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(ray) = self.rays.get(&key) else {
            self.memory.lock().remove(&key);
            return Ok(Action::Wait);
        };
        if ray.spec["managedBy"].as_str().unwrap_or(CONTROLLER_NAME) != CONTROLLER_NAME {
            return Ok(Action::Wait);
        }
        let old = RayServiceStatus::read(ray.status.as_ref());
        let mut owned = self.by_owner.get(&key.to_string());
        let uid = ray.uid().unwrap_or_default();
        owned.retain(|cluster| is_controlled_by(cluster.as_ref(), &uid));
        if ray.metadata.deletion_timestamp.is_some() {
            return self.finish(&ray, &owned).await;
        }
        let mut current = ray.as_ref().clone();
        if !current.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            current.finalizers_mut().push(FINALIZER.to_owned());
            current = self.write.replace(&current).await?;
        }
        let mut status = old.clone();
        let after = self.step(&current, &key, &mut status, &owned).await;
        // The status is written even after an error, because it records what was done before.
        if status != old {
            status.last_update_time = Some(stamp(self.clock.now()));
            current.status = Some(json!(status));
            self.write.replace_status(&current).await?;
        }
        Ok(after?.map_or(Action::Wait, Action::After))
    }
}

impl Controller {
    fn event(&self, ray: &RayService, kind: EventType, reason: &str, message: &str) {
        self.recorder.event(ray, kind, reason, message);
    }

    /// Deletes the clusters of a deleted service, then removes the finalizer.
    async fn finish(&self, ray: &RayService, owned: &[Arc<RayCluster>]) -> Result<Action, Error> {
        for cluster in owned.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) {
            self.delete_cluster(ray, cluster, "").await?;
        }
        if owned.is_empty() && ray.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            let mut current = ray.clone();
            current.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
            self.write.replace(&current).await?;
        }
        Ok(Action::Wait)
    }

    async fn delete_cluster(&self, ray: &RayService, cluster: &RayCluster, when: &str) -> Result<(), Error> {
        let name = format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
        match self.write_cluster.delete(cluster).await {
            Ok(()) => {
                let message = format!("Deleted the RayCluster {name}{when}");
                self.event(ray, EventType::Normal, "DeletedRayCluster", &message);
                Ok(())
            }
            Err(error) => {
                let message =
                    format!("Failed to delete the RayCluster {name}{when}: {}", berth_runtime::message(&error));
                self.event(ray, EventType::Warning, "FailedToDeleteRayCluster", &message);
                Err(error.into())
            }
        }
    }

    /// One step of a service that is not being deleted. Returns the time until the next step is
    /// due.
    async fn step(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        status: &mut RayServiceStatus,
        owned: &[Arc<RayCluster>],
    ) -> Result<Option<Duration>, Error> {
        let now = self.clock.now();
        let read = RayServiceSpec::read(&ray.spec).map_err(|error| format!("The RayService spec is invalid: {error}"));
        let valid = read.and_then(|spec| match validate::service(ray, &spec) {
            Ok(()) => Ok(spec),
            Err(invalid) => Err(invalid.message),
        });
        let spec = match valid {
            Ok(spec) => spec,
            Err(message) => {
                self.refuse(ray, key, status, &message, now);
                return Ok(None);
            }
        };
        let own_services = self.own_services(ray, key);
        let has_objects = !owned.is_empty() || !own_services.is_empty();
        match status::suspension(ray, &spec, status, has_objects, now) {
            Suspension::Run => {}
            // The write of the status triggers the next step.
            Suspension::Stop => return Ok(None),
            Suspension::Delete => {
                for cluster in owned.iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()) {
                    self.delete_cluster(ray, cluster, " during suspend").await?;
                }
                for service in own_services.iter().filter(|service| service.metadata.deletion_timestamp.is_none()) {
                    self.write_service.delete(service).await?;
                    let message =
                        format!("Deleted the Service {}/{} during suspend", key.namespace, service.name_any());
                    self.event(ray, EventType::Normal, "DeletedService", &message);
                }
                return Ok(None);
            }
        }
        let next_deletion = self.delete_replaced(ray, key, &spec, status, owned).await?;
        if status.has_timed_out() {
            return Ok(next_deletion);
        }
        let next = self.run(ray, key, &spec, status).await?;
        Ok([next_deletion, next].into_iter().flatten().min())
    }

    fn refuse(&self, ray: &RayService, key: &ObjectKey, status: &mut RayServiceStatus, message: &str, now: Timestamp) {
        let known = status.condition(types::condition::READY).map(|ready| ready.message.clone());
        if known.as_deref() != Some(message) {
            let reason =
                if message.contains("metadata") { "InvalidRayServiceMetadata" } else { "InvalidRayServiceSpec" };
            self.event(ray, EventType::Warning, reason, &format!("{key}: {message}"));
        }
        status::refuse(ray, status, message, now);
    }

    /// The Services that the RayService controls.
    fn own_services(&self, ray: &RayService, key: &ObjectKey) -> Vec<Arc<Service>> {
        let uid = ray.uid().unwrap_or_default();
        let mut own = self.services.list_namespace(&key.namespace);
        own.retain(|service| is_controlled_by(service.as_ref(), &uid));
        own
    }

    /// Deletes clusters that the status does not name any more, after the delay.
    async fn delete_replaced(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        spec: &RayServiceSpec,
        status: &RayServiceStatus,
        owned: &[Arc<RayCluster>],
    ) -> Result<Option<Duration>, Error> {
        let now = self.clock.now();
        let named = [&status.active_service_status.ray_cluster_name, &status.pending_service_status.ray_cluster_name];
        let delay = spec.ray_cluster_deletion_delay_seconds.unwrap_or(DELETION_DELAY_DEFAULT);
        let replaced = owned
            .iter()
            .filter(|cluster| cluster.metadata.deletion_timestamp.is_none() && !named.contains(&&cluster.name_any()));
        let mut next = None;
        for cluster in replaced {
            let name = cluster.name_any();
            let since = *self.memory.lock().entry(key.clone()).or_default().replaced.entry(name.clone()).or_insert(now);
            let due = since.checked_add(SignedDuration::from_secs(i64::from(delay))).unwrap_or(since);
            if due > now {
                let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
                next = [next, Some(left)].into_iter().flatten().min();
                continue;
            }
            self.delete_cluster(ray, cluster, "").await?;
            let mut memory = self.memory.lock();
            let known = memory.entry(key.clone()).or_default();
            known.replaced.remove(&name);
            known.configurations.remove(&name);
        }
        Ok(next)
    }

    /// One step of a service that is neither suspended nor given up.
    async fn run(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        spec: &RayServiceSpec,
        status: &mut RayServiceStatus,
    ) -> Result<Option<Duration>, Error> {
        let active = self.cluster(ray, key, spec, status, false).await?;
        let pending = self.cluster(ray, key, spec, status, true).await?;
        let mut again = None;
        for cluster in [&active, &pending].into_iter().flatten() {
            again = [again, self.label_head(ray, spec, cluster).await?].into_iter().flatten().min();
        }
        let (mut on_active, mut on_pending) = (Serving::default(), Serving::default());
        if let Some(cluster) = &pending {
            on_pending = self.applications(ray, key, spec, cluster).await?;
        } else if let Some(cluster) = &active
            && !clusters::needs_new(spec, active.as_deref(), None)
        {
            on_active = self.applications(ray, key, spec, cluster).await?;
        }
        let ready = if on_pending.is_ready { pending.as_ref() } else { active.as_ref().filter(|_| on_active.is_ready) };
        let mut points_to = None;
        if let Some(cluster) = ready
            && self.point_services(ray, key, spec, cluster).await?
        {
            points_to = Some(cluster.name_any());
        }
        let serve = spec.serve_service.as_ref().and_then(|service| service.metadata.name.clone());
        let serve = serve.filter(|name| !name.is_empty()).unwrap_or_else(|| names::serve_service(&key.name));
        let seen = Observed {
            active: active.as_deref(),
            pending: pending.as_deref(),
            on_active: on_active.applications,
            on_pending: on_pending.applications,
            points_to,
            endpoints: self.endpoints(&ObjectKey::namespaced(&key.namespace, serve)),
        };
        let (timeout, until) = status::update(ray, spec, status, seen, self.clock.now());
        if let Some(message) = timeout {
            self.event(ray, EventType::Warning, "RayServiceInitializingTimeout", &message);
        }
        Ok([again, until].into_iter().flatten().min())
    }

    /// The active or the pending cluster. A missing pending cluster is created. An existing cluster
    /// is changed in place if needed.
    async fn cluster(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        spec: &RayServiceSpec,
        status: &RayServiceStatus,
        is_pending: bool,
    ) -> Result<Option<Arc<RayCluster>>, Error> {
        let state = if is_pending { &status.pending_service_status } else { &status.active_service_status };
        let name = &state.ray_cluster_name;
        if name.is_empty() {
            return Ok(None);
        }
        let cluster_key = ObjectKey::namespaced(&key.namespace, name);
        let known = self.clusters.get(&cluster_key);
        let role = if is_pending { "pending" } else { "active" };
        match &known {
            None if is_pending => {
                let made = clusters::cluster(ray, spec, name);
                if let Err(error) = self.write_cluster.create_owned(&made, ray).await {
                    let why = berth_runtime::message(&error);
                    let message = format!("Failed to create the RayCluster {cluster_key}: {why}");
                    self.event(ray, EventType::Warning, "FailedToCreateRayCluster", &message);
                    return Err(error.into());
                }
                let message = format!("Created the RayCluster {cluster_key}");
                self.event(ray, EventType::Normal, "CreatedRayCluster", &message);
            }
            None => return Ok(None),
            Some(existing) => {
                let Some(changed) = clusters::updated(ray, spec, status, existing) else { return Ok(known) };
                if let Err(error) = self.write_cluster.replace(&changed).await {
                    let why = berth_runtime::message(&error);
                    let message = format!("Failed to update the {role} RayCluster {cluster_key}: {why}");
                    self.event(ray, EventType::Warning, "FailedToUpdateRayCluster", &message);
                    return Err(error.into());
                }
                let message = format!("Updated the {role} RayCluster {cluster_key}");
                self.event(ray, EventType::Normal, "UpdatedRayCluster", &message);
            }
        }
        Ok(self.clusters.get(&cluster_key))
    }

    fn head(&self, cluster: &RayCluster) -> Option<Arc<Pod>> {
        self.heads.get(&ObjectKey::of(cluster).to_string()).into_iter().next()
    }

    fn head_service(&self, cluster: &RayCluster, spec: &RayClusterSpec) -> Option<Arc<Service>> {
        let name = names::head_service(&cluster.name_any(), spec);
        self.services.get(&ObjectKey::namespaced(cluster.namespace().unwrap_or_default(), name))
    }

    /// The dashboard of a cluster, and the time after which to ask it again; `None` while no head
    /// runs.
    async fn dashboard(&self, cluster: &RayCluster) -> Result<Option<(Box<dyn Serve>, Option<Duration>)>, Error> {
        let Some(head) = self.head(cluster) else { return Ok(None) };
        match runs(&head) {
            Runs::NotYet => Ok(None),
            Runs::Simulated => {
                let deployed = self.deployed.clone();
                let simulated = SimulatedServe { head: head.uid().unwrap_or_default(), deployed };
                Ok(Some((Box::new(simulated), None)))
            }
            Runs::Real => {
                let spec = RayClusterSpec::read(&cluster.spec).unwrap_or_default();
                let namespace = cluster.namespace().unwrap_or_default();
                let token = match token_secret(&cluster.name_any(), &spec) {
                    Some(secret) => Some(http::token(&self.client, &namespace, &secret).await?),
                    None => None,
                };
                let container = head.spec.as_ref().and_then(|pod| pod.containers.first());
                let port = container.map_or(SERVE_PORT, |ray| port_of(ray, SERVE_PORT_NAME, SERVE_PORT));
                let service = names::head_service(&cluster.name_any(), &spec);
                let head = Some((head.name_any(), port));
                let http = Http { client: self.client.clone(), namespace, service, token, head };
                Ok(Some((Box::new(http), Some(POLL))))
            }
        }
    }

    /// Sets the label of the head pod that says whether it serves requests. Returns the time after
    /// which to check again.
    async fn label_head(
        &self,
        ray: &RayService,
        spec: &RayServiceSpec,
        cluster: &RayCluster,
    ) -> Result<Option<Duration>, Error> {
        let Some(head) = self.head(cluster) else { return Ok(None) };
        let Some((dashboard, again)) = self.dashboard(cluster).await? else { return Ok(None) };
        let serves = !spec.exclude_head_pod_from_serve_svc && dashboard.is_head_serving().await;
        let value = serves.to_string();
        if head.labels().get(SERVE) != Some(&value) {
            let name = format!("{}/{}", head.namespace().unwrap_or_default(), head.name_any());
            self.write_pod.label(&head, SERVE, &value).await?;
            let message = format!("Updated the serve label to {value:?} for the Head Pod {name}");
            self.event(ray, EventType::Normal, "UpdatedHeadPodServeLabel", &message);
        }
        Ok(again)
    }

    /// The applications on a cluster. They are deployed first if there are none or their
    /// configuration has changed.
    async fn applications(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        spec: &RayServiceSpec,
        cluster: &RayCluster,
    ) -> Result<Serving, Error> {
        if !RayClusterStatus::read(cluster.status.as_ref()).is_true(condition::HEAD_POD_READY) {
            return Ok(Serving::default());
        }
        let Some((dashboard, _)) = self.dashboard(cluster).await? else { return Ok(Serving::default()) };
        let mut reported: BTreeMap<String, Application> = dashboard.applications().await?;
        let name = cluster.name_any();
        let known = self.memory.lock().get(key).and_then(|memory| memory.configurations.get(&name).cloned());
        let is_current = known.as_ref() == Some(&spec.serve_config) && !reported.is_empty();
        if !is_current && !spec.serve_config.is_empty() {
            let cluster_key = ObjectKey::of(cluster);
            let configuration = yaml::parse(&spec.serve_config)?;
            if let Err(problem) = dashboard.deploy(&configuration).await {
                let message = format!("Failed to update serve applications to the RayCluster {cluster_key}: {problem}");
                self.event(ray, EventType::Warning, "FailedToUpdateServeApplications", &message);
                return Err(problem.into());
            }
            if known.as_ref() != Some(&spec.serve_config) {
                let message = format!("Updated serve applications to the RayCluster {cluster_key}");
                self.event(ray, EventType::Normal, "UpdatedServeApplications", &message);
            }
            self.remember(key, name, spec.serve_config.clone());
            reported = dashboard.applications().await?;
            // The label of a simulated head is updated at once, because a simulated dashboard is
            // not asked again.
            self.label_head(ray, spec, cluster).await?;
        }
        Ok(Serving::of(reported))
    }

    /// Remembers the applications that were deployed on a cluster.
    fn remember(&self, key: &ObjectKey, cluster: String, configuration: String) {
        self.memory.lock().entry(key.clone()).or_default().configurations.insert(cluster, configuration);
    }

    /// Lets the Services with the RayService's name select the pods of a cluster. Returns false if
    /// the cluster has no head Service yet.
    async fn point_services(
        &self,
        ray: &RayService,
        key: &ObjectKey,
        spec: &RayServiceSpec,
        cluster: &RayCluster,
    ) -> Result<bool, Error> {
        let read = RayClusterSpec::read(&cluster.spec).unwrap_or_default();
        let Some(of_cluster) = self.head_service(cluster, &read) else { return Ok(false) };
        let head = services::head_of_owner(ray, "RayService", &of_cluster);
        let serve = serve::service(ray, spec, &cluster.name_any(), &of_cluster);
        let serve = serve.inspect_err(|problem| {
            self.event(ray, EventType::Warning, "FailedToCreateService", problem);
        })?;
        for wanted in [head, serve] {
            let name = ObjectKey::namespaced(&key.namespace, wanted.name_any());
            let (outcome, done, failed, verb) = match self.services.get(&name) {
                None => {
                    let outcome = self.write_service.create_owned(&wanted, ray).await;
                    (outcome, "CreatedService", "FailedToCreateService", "Created")
                }
                Some(existing) => {
                    let Some(changed) = services::retargeted(&existing, &wanted) else { continue };
                    let outcome = self.write_service.replace(&changed).await.map(drop);
                    (outcome, "UpdatedService", "FailedToUpdateService", "Updated")
                }
            };
            match outcome {
                Ok(()) => self.event(ray, EventType::Normal, done, &format!("{verb} the service {name}")),
                Err(error) => {
                    let why = berth_runtime::message(&error);
                    let message = format!("The service {name} was not {}: {why}", verb.to_lowercase());
                    self.event(ray, EventType::Warning, failed, &message);
                    return Err(error.into());
                }
            }
        }
        Ok(true)
    }

    /// Number of ready pods that a Service selects.
    fn endpoints(&self, service: &ObjectKey) -> usize {
        let slices = self.slices_of.get(&service.to_string());
        let ready = slices
            .iter()
            .flat_map(|slice| &slice.endpoints)
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true));
        let pods: BTreeSet<_> = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.clone()).collect();
        pods.len()
    }
}
