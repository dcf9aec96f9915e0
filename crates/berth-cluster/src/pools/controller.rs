//! Applies the pools' plans: Nodes are created, patched and deleted, and the pool's status is
//! written.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{ENDS_AT_ANNOTATION, ENDS_BECAUSE_ANNOTATION, NodePool, NodePoolStatus};
use berth_apimachinery::well_known;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, is_already_exists,
    is_not_found, stamp,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::faults::{Draws, FaultPlan};
use super::plan::{PoolPlan, plan};
use super::supply::{TERMINATION_TAINT, announced_end};
use super::template::{POOL_LABEL, conditions, resources_with_accelerators, taints};
use crate::Site;
use crate::indexes::pods_by_node;
use crate::machine::lifecycle;

/// Adds the node pool controller.
pub fn install(manager: &mut Manager, site: Site) {
    let pools: Cache<NodePool> = manager.cache();
    let nodes = manager.nodes();
    let pods: Cache<Pod> = manager.cache();
    let pool_of = |node: &Node| node.labels().get(POOL_LABEL).cloned();
    let reconciler = PoolReconciler {
        pools: pools.clone(),
        nodes_by_pool: nodes.index(move |node| pool_of(node).into_iter().collect()),
        nodes: nodes.clone(),
        pods_by_node: pods_by_node(&pods),
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("node-pools"),
        site,
        draws: Draws::default(),
    };
    manager
        .controller("node-pools")
        .watch_self(&pools)
        .watch(&nodes, move |delta| pool_of(delta.latest()).map(ObjectKey::cluster))
        .run(reconciler);
}

struct PoolReconciler {
    pools: Cache<NodePool>,
    nodes: Cache<Node>,
    nodes_by_pool: Index<Node>,
    pods_by_node: Index<Pod>,
    client: Client,
    clock: Clock,
    recorder: Recorder,
    site: Site,
    /// The random faults of the nodes.
    draws: Draws,
}

impl Reconciler for PoolReconciler {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let now = self.clock.now();
        let nodes = self.nodes_by_pool.get(&key.name);
        let pool = self.pools.get(&key).filter(|pool| pool.metadata.deletion_timestamp.is_none());
        let Some(pool) = pool else {
            // The pool's machines are deleted with it.
            for node in nodes {
                self.delete(&node).await?;
            }
            return Ok(Action::Wait);
        };
        let problems = pool.spec.problems("spec");
        if !problems.is_empty() {
            // An invalid pool is ignored until it changes.
            tracing::warn!(pool = key.name, problem = %problems[0], "node pool is invalid");
            let message = format!("The pool is ignored until it is valid: {}", problems[0]);
            self.recorder.event(pool.as_ref(), EventType::Warning, "InvalidNodePool", &message);
            return Ok(Action::Wait);
        }
        let mut pod_counts = BTreeMap::new();
        if nodes.len() > usize::try_from(pool.spec.nodes_wanted()).unwrap_or(0) {
            for node in &nodes {
                let name = node.name_any();
                let count = self.pods_by_node.count(&name);
                pod_counts.insert(name, count);
            }
        }
        let plan = plan(&pool, &nodes, &pod_counts, &self.site, &self.draws, now);
        self.carry_out(&pool, &nodes, &plan).await?;
        Ok(plan.due.map_or(Action::Wait, |due| Action::After(self.clock.until(due))))
    }
}

impl PoolReconciler {
    async fn carry_out(&self, pool: &NodePool, nodes: &[Arc<Node>], plan: &PoolPlan) -> Result<(), Error> {
        let now = self.clock.now();
        let api: Api<Node> = Api::all(self.client.clone());
        for node in &plan.register {
            match berth_runtime::write::create(&api, &PostParams::default(), node).await {
                Ok(created) => {
                    let has_status = created.status.as_ref().is_some_and(|status| status.capacity.is_some());
                    self.nodes.observe(created);
                    // Kubelets register with their status. If a server drops it, it is written
                    // again.
                    if !has_status {
                        self.patch_status(&node.name_any(), json!({ "status": node.status })).await?;
                    }
                }
                Err(error) if is_already_exists(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (name, since) in &plan.become_ready {
            self.patch_status(name, json!({ "status": { "conditions": conditions(true, *since, now) } })).await?;
            let known = nodes.iter().find(|node| node.name_any() == *name);
            // Taints of other controllers and users (a removal, a cordon) are kept.
            let others = known.and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default();
            let kept: Vec<_> = others.into_iter().filter(|taint| taint.key != well_known::NOT_READY).collect();
            let kept = if kept.is_empty() { taints(pool, &self.site, true) } else { kept };
            self.patch_taints(name, None, &kept).await?;
        }
        for (name, taints) in &plan.retaint {
            let version = nodes.iter().find(|node| node.name_any() == *name).and_then(|node| node.resource_version());
            self.patch_taints(name, version, taints).await?;
        }
        if !plan.show_accelerators.is_empty() {
            let (capacity, allocatable) = resources_with_accelerators(pool);
            for name in &plan.show_accelerators {
                let patch = json!({ "status": { "capacity": capacity, "allocatable": allocatable } });
                self.patch_status(name, patch).await?;
            }
        }
        for (name, end, why) in &plan.announce {
            if let Some(node) = nodes.iter().find(|node| node.name_any() == *name) {
                self.announce(node, *end, why).await?;
            }
        }
        for (name, fault) in &plan.faults {
            if let Some(node) = nodes.iter().find(|node| node.name_any() == *name) {
                self.break_or_mend(node, fault).await?;
            }
        }
        for name in &plan.remove {
            if let Some(node) = nodes.iter().find(|node| node.name_any() == *name) {
                self.terminate_pods(node).await?;
                self.delete(node).await?;
            }
        }
        if let Some(missing) = plan.out_of_stock {
            let message = format!(
                "ZONE_RESOURCE_POOL_EXHAUSTED: the cloud has no {missing} more machines for pool {}",
                pool.name_any()
            );
            self.recorder.event(pool, EventType::Warning, "OutOfStock", &message);
        }
        if pool.status.as_ref() != Some(&plan.status) {
            self.write_status(pool, &plan.status).await?;
        }
        Ok(())
    }

    /// Shows the faults of a machine in its Node.
    async fn break_or_mend(&self, node: &Node, fault: &FaultPlan) -> Result<(), Error> {
        if let Some(problem) = &fault.problem {
            let message = format!("The faults of the node are ignored until they are valid: {problem}");
            self.recorder.event(node, EventType::Warning, "InvalidFaults", &message);
        }
        let name = node.name_any();
        if let Some(metadata) = &fault.metadata {
            let api: Api<Node> = Api::all(self.client.clone());
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            match berth_runtime::write::patch(&api, &name, &PatchParams::default(), &patch).await {
                Ok(written) => self.nodes.observe(written),
                Err(error) if is_not_found(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let now = self.clock.now();
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        match fault.silent {
            Some(true) => {
                let known = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
                if let Some(unknown) = lifecycle::unknown(&known, now) {
                    self.patch_status(&name, json!({ "status": { "conditions": unknown } })).await?;
                }
                let mut all = taints;
                all.retain(|taint| taint.key != well_known::UNREACHABLE);
                for (effect, time_added) in [("NoSchedule", None), ("NoExecute", Some(stamp(now)))] {
                    let key = well_known::UNREACHABLE.to_owned();
                    all.push(Taint { key, effect: effect.into(), time_added, value: None });
                }
                self.patch_taints(&name, None, &all).await?;
                let message = format!("Node {name} status is now: NodeNotReady");
                self.recorder.event(node, EventType::Normal, "NodeNotReady", &message);
            }
            Some(false) => {
                let kept: Vec<Taint> =
                    taints.into_iter().filter(|taint| taint.key != well_known::UNREACHABLE).collect();
                self.patch_taints(&name, None, &kept).await?;
                self.patch_status(&name, json!({ "status": { "conditions": conditions(true, now, now) } })).await?;
                let message = format!("Node {name} status is now: NodeReady");
                self.recorder.event(node, EventType::Normal, "NodeReady", &message);
            }
            None => {}
        }
        Ok(())
    }

    /// Gives notice that the cloud takes a machine away.
    async fn announce(&self, node: &Node, end: Timestamp, why: &str) -> Result<(), Error> {
        let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        taints.retain(|taint| taint.key != TERMINATION_TAINT);
        taints.push(Taint { key: TERMINATION_TAINT.into(), effect: "NoSchedule".into(), ..Taint::default() });
        let patch = json!({
            "metadata": {
                "resourceVersion": node.metadata.resource_version,
                "annotations": { ENDS_AT_ANNOTATION: end.to_string(), ENDS_BECAUSE_ANNOTATION: why },
            },
            "spec": { "taints": taints },
        });
        let api: Api<Node> = Api::all(self.client.clone());
        let name = node.name_any();
        match berth_runtime::write::patch(&api, &name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(written) => self.nodes.observe(written),
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let message = format!("The cloud takes the machine of node {name} away at {end}");
        self.recorder.event(node, EventType::Warning, why, &message);
        Ok(())
    }

    /// Ends the pods of a machine of which the cloud gave notice, as a kubelet does when its
    /// machine shuts down. Without notice the pods are lost with the node.
    async fn terminate_pods(&self, node: &Node) -> Result<(), Error> {
        if announced_end(node).is_none() {
            return Ok(());
        }
        for pod in self.pods_by_node.get(&node.name_any()) {
            let patch = json!({
                "metadata": { "uid": pod.metadata.uid },
                "status": {
                    "phase": "Failed",
                    "reason": "Terminated",
                    "message": "Pod was terminated in response to imminent node shutdown.",
                    "conditions": [{
                        "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                        "message": "Pod was terminated in response to imminent node shutdown.",
                        "lastTransitionTime": stamp(self.clock.now()),
                    }],
                },
            });
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let written = berth_runtime::write::patch_status(
                &api,
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(&patch),
            )
            .await;
            match written {
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn write_status(&self, pool: &NodePool, status: &NodePoolStatus) -> Result<(), Error> {
        // A replace with the version of the plan, because a machine must not be ordered twice.
        let mut new = pool.clone();
        new.status = Some(status.clone());
        let api: Api<NodePool> = Api::all(self.client.clone());
        let written =
            berth_runtime::write::replace_status(&api, &pool.name_any(), &PostParams::default(), &new).await?;
        self.pools.observe(written);
        Ok(())
    }

    async fn patch_status(&self, name: &str, patch: serde_json::Value) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        match berth_runtime::write::patch_status(&api, name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(node) => self.nodes.observe(node),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Sets all taints of a node; at this version only, if a version is given.
    async fn patch_taints(&self, name: &str, version: Option<String>, taints: &[Taint]) -> Result<(), Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        match berth_runtime::write::patch(&api, name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(node) => self.nodes.observe(node),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn delete(&self, node: &Node) -> Result<(), Error> {
        self.draws.forget(&node.name_any());
        let api: Api<Node> = Api::all(self.client.clone());
        match berth_runtime::write::delete(&api, &node.name_any(), &DeleteParams::default()).await {
            Ok(going) => {
                if going.is_none() {
                    self.nodes.observe_deleted(node);
                }
            }
            Err(error) if is_not_found(&error) => self.nodes.observe_deleted(node),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
