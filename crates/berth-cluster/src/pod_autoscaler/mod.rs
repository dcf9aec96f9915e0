//! The HorizontalPodAutoscaler controller (autoscaling/v2): sets the replicas of any object with
//! the subresource `scale` so that its pods' usage of a resource stays near a target.
//!
//! Usage comes from the resource metrics API (`metrics.k8s.io`), as in Kubernetes. Every
//! [`SYNC_PERIOD`], and when an autoscaler changes, [`plan::plan`] decides on the number of
//! replicas.

mod figures;
mod limits;
mod plan;
mod replicas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::percent::component;
use berth_apimachinery::selector::LabelSelector;
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder, Writer, stamp};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::metrics::{GROUP, VERSION};
use figures::PodFigures;
use limits::History;
use plan::{Observed, Plan, blank, plan};

/// Time between two evaluations of an autoscaler.
pub const SYNC_PERIOD: Duration = Duration::from_secs(15);

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let autoscalers = manager.cache::<HorizontalPodAutoscaler>();
    let controller = Controller {
        client: manager.client(),
        clock: manager.clock(),
        recorder: manager.recorder("horizontal-pod-autoscaler"),
        pods: manager.cache(),
        writer: Writer::new(manager, &autoscalers),
        autoscalers: autoscalers.clone(),
        histories: Mutex::default(),
        selectors: Mutex::default(),
        resources: Mutex::default(),
    };
    manager
        .controller("horizontalpodautoscaler")
        .watch(&autoscalers, |delta| {
            // Only this controller writes the status.
            let generation = |it: &HorizontalPodAutoscaler| it.spec.clone();
            let changed = delta.old.as_deref().map(generation) != delta.new.as_deref().map(generation);
            changed.then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .run(controller);
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    autoscalers: Cache<HorizontalPodAutoscaler>,
    pods: Cache<Pod>,
    writer: Writer<HorizontalPodAutoscaler>,
    /// History of each autoscaler, by UID. It is empty after a restart, as in Kubernetes.
    histories: Mutex<BTreeMap<String, History>>,
    /// Selector of each autoscaler's target, as last seen.
    selectors: Mutex<BTreeMap<ObjectKey, String>>,
    /// Resources of the scale targets' kinds.
    resources: Mutex<BTreeMap<(String, String), ApiResource>>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(autoscaler) = self.autoscalers.get(&key) else {
            let known: Vec<String> = self.autoscalers.iter().filter_map(|it| it.uid()).collect();
            self.histories.lock().retain(|uid, _| known.contains(uid));
            self.selectors.lock().remove(&key);
            return Ok(Action::Wait);
        };
        if autoscaler.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let uid = autoscaler.uid().unwrap_or_default();
        let plan = match self.scale(&autoscaler).await {
            Ok((api, scale)) => self.step(&autoscaler, &uid, &api, &scale).await?,
            Err(why) => {
                let mut plan = blank(&autoscaler);
                let message = format!("the HPA controller was unable to get the target's current scale: {why}");
                plan.condition("AbleToScale", false, "FailedGetScale", &message, self.clock.now());
                plan.warn("FailedGetScale", &why);
                plan
            }
        };
        plan.events.iter().for_each(|event| event.record(&self.recorder, autoscaler.as_ref()));
        if autoscaler.status.as_ref() != Some(&plan.status) {
            let changed = HorizontalPodAutoscaler { status: Some(plan.status), ..(*autoscaler).clone() };
            self.writer.replace_status(&changed).await?;
        }
        Ok(Action::After(SYNC_PERIOD))
    }
}

impl Controller {
    /// Plans a step, and changes the scale.
    async fn step(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        uid: &str,
        api: &Api<DynamicObject>,
        scale: &Scale,
    ) -> Result<Plan, Error> {
        let now = self.clock.now();
        let observed = self.observe(autoscaler, scale).await;
        let mut history = self.histories.lock().get(uid).cloned().unwrap_or_default();
        history.begin(now, observed.replicas);
        let mut plan = plan(autoscaler, &observed, &history, now);
        if let Some(recommended) = plan.recommended {
            history.recommend(now, recommended);
        }
        if let Some((replicas, reason)) = plan.rescale.clone() {
            match self.rescale(api, scale, replicas).await {
                Ok(()) => {
                    let message = format!("New size: {replicas}; reason: {reason}");
                    self.recorder.event(autoscaler, EventType::Normal, "SuccessfulRescale", &message);
                    let message = format!("the HPA controller was able to update the target scale to {replicas}");
                    plan.condition("AbleToScale", true, "SucceededRescale", &message, now);
                    plan.status.last_scale_time = Some(stamp(now));
                    history.changed(now, replicas - observed.replicas);
                }
                Err(error) => {
                    let why = berth_runtime::message(&error);
                    plan.warn("FailedRescale", &format!("New size: {replicas}; reason: {reason}; error: {why}"));
                    let message = format!("the HPA controller was unable to update the target scale: {why}");
                    plan.condition("AbleToScale", false, "FailedUpdateScale", &message, now);
                    plan.status.desired_replicas = observed.replicas;
                }
            }
        }
        self.histories.lock().insert(uid.to_owned(), history);
        Ok(plan)
    }

    /// The subresource `scale` of the target.
    async fn scale(&self, autoscaler: &HorizontalPodAutoscaler) -> Result<(Api<DynamicObject>, Scale), String> {
        let target = autoscaler.spec.as_ref().map(|spec| spec.scale_target_ref.clone()).unwrap_or_default();
        let version = target.api_version.unwrap_or_default();
        let resource = self.resource(&version, &target.kind).await?;
        let namespace = autoscaler.namespace().unwrap_or_default();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &resource);
        match api.get_scale(&target.name).await {
            Ok(scale) => Ok((api, scale)),
            Err(error) => {
                // The kind may be served as another resource at the next attempt.
                self.resources.lock().remove(&(version, target.kind));
                Err(berth_runtime::message(&error))
            }
        }
    }

    async fn resource(&self, api_version: &str, kind: &str) -> Result<ApiResource, String> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.resources.lock().get(&key) {
            return Ok(known.clone());
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = GroupVersionKind::gvk(group, version, kind);
        let found = kube::discovery::pinned_kind(&self.client, &kind).await;
        let (resource, _) = found.map_err(|error| berth_runtime::message(&error))?;
        self.resources.lock().insert(key, resource.clone());
        Ok(resource)
    }

    /// The target's pods and their usage.
    async fn observe(&self, autoscaler: &HorizontalPodAutoscaler, scale: &Scale) -> Observed {
        let namespace = autoscaler.namespace().unwrap_or_default();
        let replicas = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
        let selector = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
        self.selectors.lock().insert(ObjectKey::of(autoscaler), selector.clone());
        let mut observed =
            Observed { replicas, selector, pods: Vec::new(), rivals: Vec::new(), figures: Ok(Vec::new()) };
        let Ok(parsed) = LabelSelector::parse(&observed.selector) else { return observed };
        if observed.selector.is_empty() || replicas == 0 {
            return observed;
        }
        let selected = self.pods.iter_namespace(&namespace).filter(|pod| parsed.matches(pod.labels()));
        observed.pods = selected.collect();
        observed.rivals = self.rivals(&namespace, &observed.pods);
        observed.figures = self.figures(&namespace, &observed.selector).await;
        observed
    }

    /// Autoscalers of the namespace that select one of the pods, if there are several.
    fn rivals(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<String> {
        let selectors = self.selectors.lock();
        let of_namespace =
            selectors.iter().filter(|(key, selector)| key.namespace == namespace && !selector.is_empty());
        let selecting = of_namespace.filter(|(_, selector)| {
            LabelSelector::parse(selector).is_ok_and(|selector| pods.iter().any(|pod| selector.matches(pod.labels())))
        });
        let names: Vec<String> = selecting.map(|(key, _)| key.to_string()).collect();
        if names.len() > 1 { names } else { Vec::new() }
    }

    async fn figures(&self, namespace: &str, selector: &str) -> Result<Vec<PodFigures>, String> {
        let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/pods?labelSelector={}", component(selector));
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        let list: Result<Value, kube::Error> = self.client.request(request).await;
        list.map(|list| figures::read(&list)).map_err(|error| berth_runtime::message(&error))
    }

    async fn rescale(&self, api: &Api<DynamicObject>, scale: &Scale, replicas: i32) -> Result<(), kube::Error> {
        let version = scale.metadata.resource_version.clone();
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}});
        let name = scale.metadata.name.clone().unwrap_or_default();
        api.patch_scale(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    }
}
