//! Executes the steps of requests: orders are written to the pools first, then the request's
//! status.

use std::sync::Arc;

use berth_api::autoscaling::v1::{ProvisioningRequest, ProvisioningRequestStatus};
use berth_api::berth::{NodePool, ResizeRequest};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplate};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::classes::{self, Classes};
use super::obstacles::{NO_MATCHING_POOL, UNTOLERATED_TAINT};
use super::promised::Promised;
use super::requested::requested_pods;
use super::step::{ANSWER_GRACE, Order, RESIZE_REQUEST, Step, World, resize_name, step, summary};
use crate::Site;
use crate::autoscaler::View;
use crate::placement::{PodInfo, consumed_request};
use crate::pools::{announced_end, request_of};

/// Adds the provider.
pub fn install(manager: &mut Manager, site: Site) {
    let classes = Classes::of(manager);
    classes::install(manager);
    super::tolerations::install(manager, classes.clone());
    let requests: Cache<ProvisioningRequest> = manager.cache_if_served();
    let pods: Cache<Pod> = manager.cache();
    let nodes = manager.nodes();
    let pools: Cache<NodePool> = manager.cache();
    let templates: Cache<PodTemplate> = manager.cache();
    let provider = Provider {
        promised: Promised::of(manager),
        running: crate::indexes::bound_pods(&pods),
        requests: requests.clone(),
        nodes: nodes.clone(),
        pools: pools.clone(),
        daemon_sets: manager.cache(),
        templates: templates.clone(),
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("cluster-autoscaler"),
        classes: classes.clone(),
        site,
    };
    // A request with ordered machines waits for nodes and pools; a request that waits for capacity
    // also waits for pods to end. Timers cover the rest.
    let waiting = requests.index(|request| {
        let details = request.status.as_ref().map(|status| status.provisioning_class_details.len()).unwrap_or(0);
        if is_open(request) && details > 0 { vec!["ordered".to_owned()] } else { Vec::new() }
    });
    let waiting_for_nodes = waiting.clone();
    // A request that waits for capacity is evaluated again when the pools change.
    let open = requests.index(|request| if is_open(request) { vec!["open".to_owned()] } else { Vec::new() });
    let served = classes.clone();
    let by_class = requests.index(|request| vec![request.spec.provisioning_class_name.clone()]);
    let by_resize = requests.index(|request| {
        let details = request.status.as_ref().map(|status| &status.provisioning_class_details);
        details.and_then(|details| details.get(RESIZE_REQUEST)).cloned().into_iter().collect()
    });
    let keys = |index: &Index<ProvisioningRequest>, key: &str| {
        index.get(key).iter().map(|request| ObjectKey::of(request.as_ref())).collect::<Vec<_>>()
    };
    manager
        .controller("provisioning")
        .watch_self(&requests)
        .watch(&nodes, move |delta| {
            let mut found = keys(&waiting_for_nodes, "ordered");
            // The cloud gave notice of the end of a machine.
            if let Some(resize) = request_of(delta.latest()).filter(|_| announced_end(delta.latest()).is_some()) {
                found.extend(keys(&by_resize, resize));
            }
            found
        })
        .watch(&pools, move |delta| {
            let offer = |pool: &NodePool| (pool.spec.clone(), pool.status.as_ref().and_then(|status| status.stock));
            let is_same = matches!((&delta.old, &delta.new), (Some(old), Some(new)) if offer(old) == offer(new));
            let mut found = keys(&waiting, "ordered");
            if !is_same {
                let open = open.get("open").into_iter();
                let open = open.filter(|request| served.get(&request.spec.provisioning_class_name).is_some());
                found.extend(open.map(|request| ObjectKey::of(request.as_ref())));
            }
            found.extend(delta.latest().spec.resize_requests.iter().filter_map(requester));
            found
        })
        .watch(&pods, |delta| {
            // The first pod that consumes a request ends its wait.
            let pod = delta.new.as_ref().filter(|_| delta.old.is_none());
            pod.and_then(|pod| Some(ObjectKey::namespaced(pod.namespace()?, consumed_request(pod)?)))
        })
        .watch(classes.cache(), move |delta| keys(&by_class, &delta.latest().name_any()))
        .watch(&templates, |delta| {
            let owners = delta.latest().owner_references().iter().filter(|owner| owner.kind == "ProvisioningRequest");
            let namespace = delta.latest().namespace().unwrap_or_default();
            owners.map(|owner| ObjectKey::namespaced(namespace.clone(), owner.name.clone())).collect::<Vec<_>>()
        })
        .concurrency(1)
        .run(provider);
}

/// True if the request is neither provisioned nor failed.
fn is_open(request: &ProvisioningRequest) -> bool {
    let conditions = request.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    !conditions.iter().any(|c| matches!(c.type_.as_str(), "Provisioned" | "Failed") && c.status == "True")
}

/// Key of the ProvisioningRequest of a resize request.
fn requester(resize: &ResizeRequest) -> Option<ObjectKey> {
    let (namespace, name) = resize.provisioning_request.as_deref()?.split_once('/')?;
    Some(ObjectKey::namespaced(namespace, name))
}

struct Provider {
    promised: Promised,
    running: Index<Pod>,
    requests: Cache<ProvisioningRequest>,
    nodes: Cache<Node>,
    pools: Cache<NodePool>,
    daemon_sets: Cache<DaemonSet>,
    templates: Cache<PodTemplate>,
    client: Client,
    clock: Clock,
    recorder: Recorder,
    classes: Classes,
    site: Site,
}

impl Reconciler for Provider {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let request = self.requests.get(&key).filter(|r| r.metadata.deletion_timestamp.is_none());
        self.withdraw_orphans(&key, request.as_deref()).await?;
        let Some(request) = request else { return Ok(Action::Wait) };
        let now = self.clock.now();
        let bound = self.running.get("bound");
        let view = View::new(self.pools.list(), self.nodes.list(), bound, Vec::new(), self.site.clone())
            .and_daemons(self.daemon_sets.list())
            .and_promised(self.promised.pods(request.metadata.uid.as_deref()));
        let pods = self.pods_of(&request);
        let class = self.classes.get(&request.spec.provisioning_class_name);
        let world =
            World { view: &view, class: class.as_ref(), is_consumed: self.promised.is_consumed(&key), pods, now };
        match step(&request, &world) {
            Step::Until(at) => Ok(at.map_or(Action::Wait, |at| Action::After(self.clock.until(at)))),
            Step::Unserved => {
                self.report_unserved(&request);
                Ok(Action::Wait)
            }
            Step::Write { status, order, withdraw } => {
                if let Some(order) = &order {
                    self.place_order(&request, order).await?;
                    let what = world.pods.as_ref().map(|pods| format!("{:?}", summary(pods))).unwrap_or_default();
                    let message = format!("{} nodes ordered in pool {} for {what}", order.nodes, order.pool);
                    self.recorder.event(request.as_ref(), EventType::Normal, "ResizeRequested", &message);
                }
                if let Some((pool, name)) = &withdraw {
                    self.withdraw(pool, name).await?;
                }
                self.write(&request, &status).await?;
                self.report_obstacle(&request, &status);
                Ok(Action::Wait)
            }
        }
    }
}

impl Provider {
    fn pods_of(&self, request: &ProvisioningRequest) -> Result<Vec<Arc<PodInfo>>, String> {
        let namespace = request.namespace().unwrap_or_default();
        let class = request.spec.provisioning_class_name.as_str();
        let adds_toleration =
            class == super::QUEUED && self.classes.get(class).is_some_and(|class| class.adds_toleration);
        requested_pods(request, adds_toleration, |name| {
            self.templates.get(&ObjectKey::namespaced(namespace.clone(), name))
        })
    }

    /// Reports a request of a class that no provider serves.
    fn report_unserved(&self, request: &ProvisioningRequest) {
        let classes = self.classes.names();
        let message = format!(
            "No provider has answered for {} s, so no capacity is provisioned. This cluster does not serve \
             provisioning class {}; it serves: {}. Name one of these classes (in a ProvisioningRequestConfig), or run \
             a provider of the class.",
            ANSWER_GRACE.as_secs(),
            request.spec.provisioning_class_name,
            if classes.is_empty() { "none".to_owned() } else { classes.join(", ") },
        );
        self.recorder.event(request, EventType::Warning, "NoProvider", &message);
    }

    /// Reports a request that no pool can ever serve, once per reason.
    fn report_obstacle(&self, request: &ProvisioningRequest, status: &ProvisioningRequestStatus) {
        let provisioned = |status: &ProvisioningRequestStatus| {
            let found = status.conditions.iter().find(|condition| condition.type_ == "Provisioned");
            found.map(|condition| (condition.reason.clone(), condition.message.clone()))
        };
        let before = request.status.as_ref().and_then(provisioned);
        if let Some((reason, message)) = provisioned(status).filter(|new| Some(new) != before.as_ref())
            && [UNTOLERATED_TAINT, NO_MATCHING_POOL].contains(&reason.as_str())
        {
            self.recorder.event(request, EventType::Warning, &reason, &message);
        }
    }

    async fn place_order(&self, request: &ProvisioningRequest, order: &Order) -> Result<(), Error> {
        let Some(pool) = self.pools.get(&ObjectKey::cluster(&order.pool)) else { return Ok(()) };
        let mut spec = pool.spec.clone();
        match &order.resize_request {
            // Ordered in an earlier step that could not write the request's status.
            Some(name) if spec.resize_requests.iter().any(|known| known.name == *name) => return Ok(()),
            Some(name) => spec.resize_requests.push(ResizeRequest {
                name: name.clone(),
                nodes: order.nodes,
                zone: order.zone.clone(),
                provisioning_request: Some(ObjectKey::of(request).to_string()),
            }),
            None => spec.nodes = Some(spec.nodes_own().saturating_add(order.nodes)),
        }
        self.write_pool(&pool, json!({ "nodes": spec.nodes, "resizeRequests": spec.resize_requests })).await
    }

    /// Withdraws orders of requests that no longer exist, if none of their machines has registered.
    /// Registered machines are removed by the autoscaler once they are idle.
    async fn withdraw_orphans(&self, key: &ObjectKey, request: Option<&ProvisioningRequest>) -> Result<(), Error> {
        let current = request.map(resize_name);
        for pool in self.pools.list() {
            for resize in &pool.spec.resize_requests {
                let is_orphan = requester(resize).as_ref() == Some(key) && current.as_ref() != Some(&resize.name);
                if is_orphan && !self.nodes.list().iter().any(|node| request_of(node) == Some(resize.name.as_str())) {
                    self.withdraw(&pool.name_any(), &resize.name).await?;
                }
            }
        }
        Ok(())
    }

    async fn withdraw(&self, pool: &str, name: &str) -> Result<(), Error> {
        let Some(pool) = self.pools.get(&ObjectKey::cluster(pool)) else { return Ok(()) };
        let kept: Vec<_> = pool.spec.resize_requests.iter().filter(|known| known.name != name).cloned().collect();
        self.write_pool(&pool, json!({ "resizeRequests": kept })).await
    }

    async fn write_pool(&self, pool: &NodePool, spec: serde_json::Value) -> Result<(), Error> {
        let patch = json!({ "metadata": { "resourceVersion": pool.metadata.resource_version }, "spec": spec });
        let api: Api<NodePool> = Api::all(self.client.clone());
        self.pools.observe(
            berth_runtime::write::patch(&api, &pool.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await?,
        );
        Ok(())
    }

    async fn write(&self, request: &ProvisioningRequest, status: &ProvisioningRequestStatus) -> Result<(), Error> {
        let mut patch = json!({
            "metadata": { "resourceVersion": request.metadata.resource_version },
            "status": status,
        });
        if status.provisioning_class_details.is_empty() {
            // A merge patch keeps what it does not mention.
            patch["status"]["provisioningClassDetails"] = serde_json::Value::Null;
        }
        let namespace = request.namespace().unwrap_or_default();
        let api: Api<ProvisioningRequest> = Api::namespaced(self.client.clone(), &namespace);
        let written = berth_runtime::write::patch_status(
            &api,
            &request.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
        match written {
            Ok(request) => self.requests.observe(request),
            Err(error) if berth_runtime::is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
