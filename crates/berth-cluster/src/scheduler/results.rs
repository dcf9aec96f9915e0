//! Writes the results of a gang: labels of its pods, the group's ConfigMap, and the decisions for
//! its pods.
//!
//! Ranks are written before the pods are bound, so that their containers can read them. A crash
//! between these writes leaves pods without a node, which are placed again.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::scheduling::SAKKARA_STATUS_LABEL;
use berth_runtime::{is_conflict, is_not_found};
use futures::StreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::state::{Decision, Results};
use super::{BINDINGS_IN_FLIGHT, Scheduler, lock};
use crate::gangs::group::BOUND;
use crate::placement::PodInfo;

impl Scheduler {
    /// Writes the results of a gang and the decisions for its pods. Returns false if a pod must be
    /// tried again soon.
    pub(super) async fn write_gang(
        &self,
        results: Option<Results>,
        members: Vec<Decision>,
        solver_time: SignedDuration,
    ) -> bool {
        if let Some(results) = &results
            && let Err(error) = self.write_results(results).await
        {
            let error = berth_runtime::brief(&error);
            tracing::warn!(config_map = results.config_map.name_any(), %error, "cannot write the results of a group");
            self.revert(&members);
            return members.is_empty();
        }
        let bound: Vec<Arc<PodInfo>> = members.iter().filter_map(bound_pod).collect();
        let writes = futures::stream::iter(members).map(|member| self.write_single(member));
        let written: Vec<bool> = writes.buffered(BINDINGS_IN_FLIGHT).collect().await;
        let all = written.into_iter().all(|written| written);
        if let Some(results) = results.filter(|it| all && it.completes.is_some())
            && let Err(error) = self.complete(&results, &bound, solver_time).await
        {
            let error = berth_runtime::brief(&error);
            tracing::warn!(config_map = results.config_map.name_any(), %error, "cannot write the status of a group");
        }
        all
    }

    /// No pod of the gang is bound: all of them are decided again.
    fn revert(&self, members: &[Decision]) {
        let mut state = lock(&self.state);
        for member in members {
            if let Decision::Bind { pod, .. } | Decision::Prepare { pod, .. } = member {
                state.binding_failed(&pod.key);
            }
        }
    }

    async fn write_results(&self, results: &Results) -> Result<(), kube::Error> {
        self.label_all(results.labels.clone()).await?;
        self.write_data(&results.config_map, &results.data).await
    }

    /// Writes that all pods of a group are bound, and how long that took.
    async fn complete(
        &self,
        results: &Results,
        bound: &[Arc<PodInfo>],
        solver_time: SignedDuration,
    ) -> Result<(), kube::Error> {
        let labels = BTreeMap::from([(SAKKARA_STATUS_LABEL.to_owned(), BOUND.to_owned())]);
        self.label_all(bound.iter().map(|pod| (pod.clone(), labels.clone())).collect()).await?;
        let now = self.clock.now();
        let total = results.completes.map_or(SignedDuration::ZERO, |began| now.duration_since(began));
        let data = [
            ("status", BOUND.to_owned()),
            ("schedEndTime", now.to_string()),
            ("schedTotalTimeMilli", total.as_millis().to_string()),
            ("schedSolverTimeMilli", solver_time.as_millis().to_string()),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), Some(value))).into();
        self.write_data(&results.config_map, &data).await
    }

    async fn label_all(&self, labels: Vec<(Arc<PodInfo>, BTreeMap<String, String>)>) -> Result<(), kube::Error> {
        let writes = labels.into_iter().map(|(pod, labels)| async move { self.label(&pod, &labels).await });
        let mut writes = futures::stream::iter(writes).buffered(BINDINGS_IN_FLIGHT);
        while let Some(written) = writes.next().await {
            written?;
        }
        Ok(())
    }

    async fn label(&self, pod: &PodInfo, labels: &BTreeMap<String, String>) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.key.namespace);
        let patch = Patch::Merge(json!({"metadata": {"uid": pod.pod.metadata.uid, "labels": labels}}));
        match berth_runtime::write::patch(&api, &pod.key.name, &PatchParams::default(), &patch).await {
            Ok(pod) => self.pods.observe(pod),
            // The pod was deleted. Its binding fails, and the pod that replaces it is placed.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn write_data(
        &self,
        config_map: &ConfigMap,
        data: &BTreeMap<String, Option<String>>,
    ) -> Result<(), kube::Error> {
        if data.is_empty() {
            return Ok(());
        }
        let namespace = config_map.namespace().unwrap_or_default();
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
        let patch = Patch::Merge(json!({"metadata": {"uid": config_map.uid()}, "data": data}));
        match berth_runtime::write::patch(&api, &config_map.name_any(), &PatchParams::default(), &patch).await {
            Ok(written) => self.config_maps.observe(written),
            // The group's ConfigMap was deleted: there is nowhere to write the results.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn bound_pod(decision: &Decision) -> Option<Arc<PodInfo>> {
    match decision {
        Decision::Bind { pod, .. } => Some(pod.clone()),
        _ => None,
    }
}
