//! The integration of Kubeflow Trainer's TrainJob, whose pods depend on the runtime that it refers
//! to.
//!
//! Trainer creates one JobSet for a TrainJob: the runtime's template with the TrainJob's own
//! settings and patches applied. This file does the same computation as far as quota needs it. Each
//! replicated job becomes a pod set. What admission adds to the pod templates (such as node
//! selectors) is written to a separate patch (`spec.runtimePatches`, manager
//! `kueue.x-k8s.io/manager`), which Trainer applies to the JobSet. Each manager owns one patch, so
//! the patch never conflicts with another manager's.

use std::sync::Arc;

use berth_api::frameworks as kinds;
use berth_api::jobset::constants::JOB_INDEX;
use berth_api::kueue::v1beta2::{PodSet, ReclaimablePod};
use berth_apimachinery::well_known::COMPLETION_INDEX;
use berth_runtime::{Cache, ControllerBuilder, Delta, ObjectKey};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::described::{integer, set_at, true_condition};
use super::topology::{self, Ranks};
use super::{Finished, Job};
use crate::gates::Gates;
use crate::podset::{PodSetError, PodSetInfo};
use crate::stores::Stores;

/// Manager name of our patch.
const MANAGER: &str = "kueue.x-k8s.io/manager";
/// Kind of cluster-scoped runtimes; the default of a reference without kind.
const CLUSTER_RUNTIME: &str = "ClusterTrainingRuntime";
/// Label on a runtime's replicated jobs that names their step.
const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
const TRAINER: &str = "trainer";
/// Name of the replicated job that trains, and of its container. The TrainJob's own settings apply
/// to that container.
const NODE: &str = "node";
/// Name of the replicated job that launches the others under MPI.
const LAUNCHER: &str = "launcher";

/// A TrainJob with the spec of its runtime, which [`Job::resolve`] reads from the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TrainJob {
    object: kinds::TrainJob,
    #[serde(skip)]
    runtime: Option<Arc<Value>>,
}

berth_api::implement_json!(TrainJob);

impl Resource for TrainJob {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> std::borrow::Cow<'_, str> {
        kinds::TrainJob::kind(&())
    }

    fn group(_: &()) -> std::borrow::Cow<'_, str> {
        kinds::TrainJob::group(&())
    }

    fn version(_: &()) -> std::borrow::Cow<'_, str> {
        kinds::TrainJob::version(&())
    }

    fn plural(_: &()) -> std::borrow::Cow<'_, str> {
        kinds::TrainJob::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

/// A replicated job.
struct Part {
    name: String,
    /// Number of child Jobs.
    replicas: i32,
    /// Pods that each child Job runs at once.
    pods: i32,
    template: Value,
}

/// Key of the runtime that a TrainJob refers to; the namespace is empty for cluster-scoped
/// runtimes.
fn runtime_key(job: &TrainJob) -> String {
    let reference = &job.object.spec["runtimeRef"];
    let name = reference["name"].as_str().unwrap_or_default();
    match reference["kind"].as_str().unwrap_or(CLUSTER_RUNTIME) {
        CLUSTER_RUNTIME => format!("/{name}"),
        _ => format!("{}/{name}", job.meta().namespace.as_deref().unwrap_or_default()),
    }
}

impl TrainJob {
    fn spec(&self) -> &Value {
        &self.object.spec
    }

    fn status(&self) -> &Value {
        self.object.status.as_ref().unwrap_or(&Value::Null)
    }

    /// Sets the runtime's spec.
    pub fn with_runtime(mut self, spec: Option<Value>) -> Self {
        self.runtime = spec.map(Arc::new);
        self
    }

    /// Kind and name of the referenced runtime.
    pub fn runtime(&self) -> (&str, &str) {
        let reference = &self.spec()["runtimeRef"];
        (reference["kind"].as_str().unwrap_or(CLUSTER_RUNTIME), reference["name"].as_str().unwrap_or_default())
    }

    /// The replicated jobs that Trainer creates for this TrainJob, in the runtime's order.
    fn parts(&self) -> Result<Vec<Part>, String> {
        let Some(runtime) = self.runtime.as_deref() else {
            let (kind, name) = self.runtime();
            return Err(format!("spec.runtimeRef: {kind} {name:?} not found; create it to queue the job"));
        };
        let jobs = runtime.pointer("/template/spec/replicatedJobs").and_then(Value::as_array);
        let jobs = jobs.map(Vec::as_slice).unwrap_or_default();
        let has_node = jobs.iter().any(|job| job["name"] == NODE);
        let mut parts = Vec::with_capacity(jobs.len());
        for job in jobs {
            let name = job["name"].as_str().unwrap_or_default();
            let step = job["template"]["metadata"]["labels"][STEP].as_str();
            // Under MPI the launcher carries the trainer's label, while another replicated job runs
            // the nodes.
            let trains = name == NODE || (step == Some(TRAINER) && !has_node);
            let spec = &job["template"]["spec"];
            let mut template = spec["template"].clone();
            // The steps of a TrainJob have one child Job each.
            let replicas = if step.is_some() { 1 } else { integer(&job["replicas"], 1) };
            let pods = self.pods_of(name, step, spec, &runtime["mlPolicy"]);
            let mpi = &runtime["mlPolicy"]["mpi"];
            if step == Some(TRAINER) || (trains && (mpi.is_null() || mpi["runLauncherAsNode"] == true)) {
                self.apply_trainer(&mut template);
            }
            self.override_pod(name, &mut template);
            self.patch(name, &mut template);
            parts.push(Part { name: name.to_owned(), replicas, pods, template });
        }
        Ok(parts)
    }

    /// Number of pods of each Job of a replicated job. The trainer has the nodes of the TrainJob,
    /// or of the policy, if there is one. Any other job has its own parallelism, but Trainer runs
    /// one pod at least.
    fn pods_of(&self, name: &str, step: Option<&str>, spec: &Value, policy: &Value) -> i32 {
        let number = |value: &Value| value.as_i64().and_then(|number| i32::try_from(number).ok());
        let own = integer(&spec["parallelism"], 1).max(1);
        let nodes = number(&self.spec()["trainer"]["numNodes"]);
        let of_policy = policy.is_object().then(|| integer(&policy["numNodes"], 1).max(1));
        match (policy["mpi"].is_object(), name) {
            // One launcher starts the processes on all nodes.
            (true, LAUNCHER) => own,
            (true, NODE) => {
                // A launcher that trains replaces a node, but one node is always there.
                let launchers = i32::from(policy["mpi"]["runLauncherAsNode"] == true);
                nodes.or(of_policy.filter(|nodes| *nodes > 1)).map_or(own, |nodes| (nodes - launchers).max(1))
            }
            _ if step == Some(TRAINER) => nodes.or(of_policy).unwrap_or(own),
            _ => own,
        }
    }

    /// Applies the TrainJob's own settings to the container that trains.
    fn apply_trainer(&self, template: &mut Value) {
        let own = &self.spec()["trainer"];
        let containers = template.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|container| container["name"] == NODE) {
            for field in ["image", "command", "args"] {
                if !own[field].is_null() {
                    container[field] = own[field].clone();
                }
            }
            if !own["resourcesPerNode"].is_null() {
                strategic_merge(&mut container["resources"], &own["resourcesPerNode"]);
            }
            if !own["env"].is_null() {
                strategic_merge(&mut container["env"], &own["env"]);
            }
        }
    }

    /// Applies the overrides for one replicated job, of Trainer 2.0 and 2.1, to its pod template.
    fn override_pod(&self, name: &str, template: &mut Value) {
        for patch in self.spec()["podTemplateOverrides"].as_array().into_iter().flatten() {
            let mut targets = patch["targetJobs"].as_array().into_iter().flatten();
            if targets.any(|target| target["name"] == name) {
                for field in ["metadata", "spec"] {
                    if patch[field].is_object() {
                        strategic_merge(&mut template[field], &patch[field]);
                    }
                }
            }
        }
    }

    /// Applies the patches for one replicated job to its pod template, in order.
    fn patch(&self, name: &str, template: &mut Value) {
        for patch in self.spec()["runtimePatches"].as_array().into_iter().flatten() {
            let jobs = patch.pointer("/trainingRuntimeSpec/template/spec/replicatedJobs").and_then(Value::as_array);
            for job in jobs.into_iter().flatten().filter(|job| job["name"] == name) {
                if let Some(wanted) = job.pointer("/template/spec/template") {
                    strategic_merge(template, wanted);
                }
            }
        }
    }

    /// Our patch. If it is missing, it is appended to the list.
    fn own_patch(&mut self) -> &mut Value {
        let patches = &mut self.object.spec["runtimePatches"];
        if !patches.is_array() {
            *patches = json!([]);
        }
        let list = patches.as_array_mut().expect("just set to a list");
        let at = list.iter().position(|patch| patch["manager"] == MANAGER).unwrap_or_else(|| {
            list.push(json!({"manager": MANAGER}));
            list.len() - 1
        });
        &mut list[at]
    }
}

/// Adds our empty patch to a new TrainJob: Trainer accepts changes to existing patches only.
pub fn reserve_patch(object: &mut Value) {
    let patches = &mut object["spec"]["runtimePatches"];
    if !patches.is_array() {
        *patches = json!([]);
    }
    if let Some(list) = patches.as_array_mut()
        && !list.iter().any(|patch| patch["manager"] == MANAGER)
    {
        list.push(json!({"manager": MANAGER}));
    }
}

/// Applies one value to another as Trainer applies patches, by strategic merge: objects by member,
/// lists of named items by name; anything else, lists of tolerations included, is replaced.
fn strategic_merge(base: &mut Value, over: &Value) {
    match (&mut *base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                match base.get_mut(key) {
                    Some(known) => strategic_merge(known, value),
                    None => {
                        base.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(base), Value::Array(over)) if over.iter().all(|item| item["name"].is_string()) => {
            for item in over {
                match base.iter_mut().find(|known| known["name"] == item["name"]) {
                    Some(known) => strategic_merge(known, item),
                    None => base.push(item.clone()),
                }
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// The template as a typed object, with the defaults that matter when pods are compared.
fn read(part: &Part) -> Result<PodTemplateSpec, String> {
    let mut template = part.template.clone();
    if !template["spec"]["containers"].is_array() {
        set_at(&mut template, &["spec", "containers"], json!([]));
    }
    for list in ["containers", "initContainers"] {
        let containers = template["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let ports = container.get_mut("ports").and_then(Value::as_array_mut);
            for port in ports.into_iter().flatten().filter(|port| port["protocol"].is_null()) {
                port["protocol"] = json!("TCP");
            }
        }
    }
    berth_api::json::from_value(template).map_err(|error| {
        format!(
            "the pod template of job {:?}: {error}. Adjust either the \"TrainJob.spec.runtimePatches\" or the \
             \"TrainingRuntime.Template\" for the corresponding Job",
            part.name
        )
    })
}

/// The patch of a replicated job for `info`. A patch replaces the list of tolerations, so the list
/// includes those of the template; maps and gates are merged by Trainer.
fn patch_of(part: &Part, info: &PodSetInfo, gates: &Gates) -> Result<Value, PodSetError> {
    let mut metadata = Map::new();
    for (field, map) in [("labels", &info.labels), ("annotations", &info.annotations)] {
        if !map.is_empty() {
            metadata.insert(field.to_owned(), json!(map));
        }
    }
    let mut spec = Map::new();
    if !info.node_selector.is_empty() {
        spec.insert("nodeSelector".to_owned(), json!(info.node_selector));
    }
    if !info.tolerations.is_empty() {
        let own = part.template["spec"].get("tolerations").cloned().unwrap_or_else(|| json!([]));
        // A list that does not parse was rejected when the pod sets were computed.
        let tolerations = serde_json::from_value(own).unwrap_or_default();
        let mut all = PodSetInfo { tolerations, ..PodSetInfo::default() };
        all.merge(&PodSetInfo { tolerations: info.tolerations.clone(), ..PodSetInfo::default() }, gates)?;
        spec.insert("tolerations".to_owned(), json!(all.tolerations));
    }
    if !info.scheduling_gates.is_empty() {
        spec.insert("schedulingGates".to_owned(), json!(info.scheduling_gates));
    }
    Ok(json!({"name": part.name, "template": {"spec": {"template": {"metadata": metadata, "spec": spec}}}}))
}

impl Job for TrainJob {
    const FRAMEWORK: &'static str = "trainer.kubeflow.org/trainjob";
    // Trainer creates a running job's pods once, so changes to the runtime affect later runs only.
    const PODS_ARE_SET_WHILE_RUNNING: bool = true;
    /// Trainer rejects a write that changes patches and also unsuspends the job.
    const STARTS_IN_TWO_STEPS: bool = true;
    /// Trainer accepts changed patches only for a job that is already suspended.
    const STOPS_IN_TWO_STEPS: bool = true;

    fn resolve(&mut self, stores: &Stores) {
        let (kind, name) = self.runtime();
        let namespace = self.meta().namespace.as_deref().unwrap_or_default();
        let spec = match kind {
            CLUSTER_RUNTIME => {
                let runtimes = &stores.cluster_training_runtimes;
                runtimes.get(&ObjectKey::cluster(name)).map(|runtime| runtime.spec.clone())
            }
            "TrainingRuntime" => {
                let key = ObjectKey::namespaced(namespace, name);
                stores.training_runtimes.get(&key).map(|runtime| runtime.spec.clone())
            }
            _ => None,
        };
        self.runtime = spec.map(Arc::new);
    }

    fn watch<'a>(builder: ControllerBuilder<'a>, stores: &Stores, jobs: &Cache<Self>) -> ControllerBuilder<'a> {
        // A runtime that is created or changed changes the pod sets of its jobs.
        let by_runtime = jobs.index(|job: &TrainJob| vec![runtime_key(job)]);
        let of_cluster = by_runtime.clone();
        builder
            .watch(&stores.training_runtimes, move |delta: &Delta<kinds::TrainingRuntime>| {
                by_runtime.keys(&ObjectKey::of(delta.latest().as_ref()).to_string())
            })
            .watch(&stores.cluster_training_runtimes, move |delta: &Delta<kinds::ClusterTrainingRuntime>| {
                of_cluster.keys(&format!("/{}", delta.latest().metadata.name.as_deref().unwrap_or_default()))
            })
    }

    fn is_suspended(&self) -> bool {
        self.spec()["suspend"] == true
    }

    fn suspend(&mut self) {
        self.object.spec["suspend"] = json!(true);
    }

    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let mut pod_sets = Vec::new();
        for part in self.parts()? {
            let template = read(&part)?;
            let ranks = Ranks {
                pod_index_label: Some(COMPLETION_INDEX),
                sub_group_index_label: Some(JOB_INDEX),
                sub_group_count: Some(part.replicas),
            };
            let topology_request = topology::of_template(&template, ranks, gates).map_err(|error| {
                format!(
                    "job {:?}: {error}. Adjust either the \"TrainJob.spec.runtimePatches\" or the \
                     \"TrainingRuntime.Template\" annotations for the corresponding Job",
                    part.name
                )
            })?;
            pod_sets.push(PodSet {
                name: part.name,
                count: part.replicas.saturating_mul(part.pods),
                min_count: None,
                template,
                topology_request,
            });
        }
        Ok(pod_sets)
    }

    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError> {
        // Additions of an earlier run are replaced, not merged.
        if let Some(patch) = self.own_patch().as_object_mut() {
            patch.remove("trainingRuntimeSpec");
        }
        let parts = self.parts().unwrap_or_default();
        if infos.len() != parts.len() {
            return Err(PodSetError::Count { expected: parts.len(), got: infos.len() });
        }
        let jobs = parts.iter().zip(infos).map(|(part, info)| patch_of(part, info, gates));
        let jobs: Vec<Value> = jobs.collect::<Result<_, _>>()?;
        let patch = self.own_patch();
        patch["trainingRuntimeSpec"] = json!({"template": {"spec": {"replicatedJobs": jobs}}});
        self.object.spec["suspend"] = json!(false);
        Ok(())
    }

    fn restore(&mut self, _infos: &[PodSetInfo]) -> bool {
        // Trainer rejects changes to patches while child Jobs run.
        if self.is_active() {
            return false;
        }
        let patches = self.object.spec["runtimePatches"].as_array_mut();
        let own = patches.into_iter().flatten().find(|patch| patch["manager"] == MANAGER);
        own.and_then(Value::as_object_mut).is_some_and(|patch| patch.remove("trainingRuntimeSpec").is_some())
    }

    fn finished(&self) -> Option<Finished> {
        [("Complete", true), ("Failed", false)].into_iter().find_map(|(type_, success)| {
            let message = true_condition(self.status(), type_)?.to_owned();
            Some(Finished { success, message })
        })
    }

    fn pods_ready(&self) -> bool {
        let Ok(parts) = self.parts() else { return false };
        let wanted: i64 = parts.iter().map(|part| i64::from(part.replicas)).sum();
        let statuses = self.status()["jobsStatus"].as_array().into_iter().flatten();
        let up = statuses.map(|job| i64::from(integer(&job["ready"], 0)) + i64::from(integer(&job["succeeded"], 0)));
        wanted == up.sum::<i64>()
    }

    fn is_active(&self) -> bool {
        let statuses = self.status()["jobsStatus"].as_array();
        statuses.into_iter().flatten().any(|job| integer(&job["active"], 0) > 0)
    }

    fn reclaimable_pods(&self) -> Option<Vec<ReclaimablePod>> {
        let parts = self.parts().ok()?;
        let statuses = self.status()["jobsStatus"].as_array().map(Vec::as_slice).unwrap_or_default();
        let reclaimable = parts.iter().filter_map(|part| {
            let status = statuses.iter().find(|status| status["name"] == part.name.as_str())?;
            let done = integer(&status["succeeded"], 0).min(part.replicas);
            (done > 0).then(|| ReclaimablePod { name: part.name.clone(), count: done.saturating_mul(part.pods) })
        });
        Some(reclaimable.collect())
    }

    fn managed_by(&self) -> Option<&str> {
        self.spec()["managedBy"].as_str()
    }

    fn set_managed_by(&mut self, controller: &str) {
        self.object.spec["managedBy"] = json!(controller);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn replicated(name: &str, step: Option<&str>, cpu: &str) -> Value {
        let container = json!({"name": if step == Some(TRAINER) || name == NODE { NODE } else { name },
            "image": "runtime", "ports": [{"containerPort": 29500}], "resources": {"requests": {"cpu": cpu}}});
        let mut job = json!({"name": name, "replicas": 3,
            "template": {"metadata": {}, "spec": {"template": {"spec": {"containers": [container]}}}}});
        if let Some(step) = step {
            job["template"]["metadata"]["labels"] = json!({STEP: step});
        }
        job
    }

    fn torch() -> Value {
        json!({"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": {"replicatedJobs": [
            replicated("dataset-initializer", Some("dataset-initializer"), "1"),
            replicated("node", Some(TRAINER), "4"),
            replicated("aside", None, "2")]}}})
    }

    fn job(spec: Value, status: Value) -> TrainJob {
        let object = json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": "train", "namespace": "ns"}, "spec": spec, "status": status});
        serde_json::from_value(object).expect("a TrainJob")
    }

    fn sizes(job: &TrainJob) -> Vec<(String, i32, String)> {
        let sets = job.pod_sets(&Gates::default()).expect("pod sets");
        let cpu = |set: &PodSet| {
            let container = &set.template.spec.as_ref().expect("a spec").containers[0];
            container.resources.as_ref().expect("resources").requests.as_ref().expect("requests")["cpu"].0.clone()
        };
        sets.iter().map(|set| (set.name.clone(), set.count, cpu(set))).collect()
    }

    fn size(name: &str, count: i32, cpu: &str) -> (String, i32, String) {
        (name.to_owned(), count, cpu.to_owned())
    }

    #[test]
    fn pod_sets_come_from_the_runtime_with_the_jobs_own_settings() {
        let plain = job(json!({"runtimeRef": {"name": "torch"}}), Value::Null).with_runtime(Some(torch()));
        let steps = [size("dataset-initializer", 1, "1"), size("node", 2, "4"), size("aside", 3, "2")];
        assert_eq!(sizes(&plain), steps);
        let resources = json!({"requests": {"cpu": "16"}});
        let selector = json!({"name": "node", "template": {"spec": {"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"nodeSelector": {"zone": "z"}, "containers": [{"name": "node", "env": [{"name": "X", "value": "1"}]}]}}}}});
        let own = job(
            json!({"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 8, "resourcesPerNode": resources},
                "runtimePatches": [{"manager": "me",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [selector]}}}}]}),
            Value::Null,
        )
        .with_runtime(Some(torch()));
        assert_eq!(sizes(&own)[1], size("node", 8, "16"));
        let node = &own.pod_sets(&Gates::default()).expect("pod sets")[1].template;
        let spec = node.spec.as_ref().expect("a spec");
        assert_eq!(spec.node_selector.as_ref().expect("a selector")["zone"], "z");
        let container = &spec.containers[0];
        assert_eq!(container.image.as_deref(), Some("runtime"), "what the patch does not name stays");
        assert_eq!(container.env.as_ref().expect("variables")[0].name, "X");
        assert_eq!(container.ports.as_ref().expect("ports")[0].protocol.as_deref(), Some("TCP"));
    }

    #[test]
    fn under_mpi_nodes_and_the_launcher_are_counted() {
        let mpi = |as_node: bool| {
            let mut node = replicated("node", None, "8");
            node["replicas"] = json!(1);
            json!({"mlPolicy": {"numNodes": 4, "mpi": {"runLauncherAsNode": as_node}}, "template": {"spec": {
                "replicatedJobs": [replicated("launcher", Some(TRAINER), "1"), node]}}})
        };
        let of =
            |as_node| sizes(&job(json!({"runtimeRef": {"name": "mpi"}}), Value::Null).with_runtime(Some(mpi(as_node))));
        assert_eq!(of(false), [size("launcher", 1, "1"), size("node", 4, "8")]);
        assert_eq!(of(true), [size("launcher", 1, "1"), size("node", 3, "8")]);
        let own = json!({"runtimeRef": {"name": "mpi"}, "trainer": {"numNodes": 1,
            "resourcesPerNode": {"requests": {"cpu": "16"}}}});
        let of = |as_node| sizes(&job(own.clone(), Value::Null).with_runtime(Some(mpi(as_node))));
        assert_eq!(of(true), [size("launcher", 1, "16"), size("node", 1, "16")], "one node is always there");
        assert_eq!(of(false), [size("launcher", 1, "16"), size("node", 1, "8")], "only the launcher trains");
    }

    #[test]
    fn overrides_of_older_versions_apply_to_their_jobs() {
        let overriding = json!([{"targetJobs": [{"name": "node"}], "spec": {"nodeSelector": {"zone": "z"}}}]);
        let job = job(json!({"runtimeRef": {"name": "torch"}, "podTemplateOverrides": overriding}), Value::Null);
        let sets = job.with_runtime(Some(torch())).pod_sets(&Gates::default()).expect("pod sets");
        let selector = |set: &PodSet| set.template.spec.as_ref().and_then(|spec| spec.node_selector.clone());
        assert_eq!(selector(&sets[1]).expect("a selector")["zone"], "z");
        assert_eq!(selector(&sets[0]), None);
    }

    #[test]
    fn additions_of_admission_go_into_our_patch_and_are_removed_with_it() {
        let mut job = job(
            json!({"runtimeRef": {"name": "torch"}, "suspend": true, "runtimePatches": [{"manager": "me"}]}),
            Value::Null,
        )
        .with_runtime(Some(torch()));
        let before = job.pod_sets(&Gates::default()).expect("pod sets");
        let info = |set: &PodSet| PodSetInfo {
            name: set.name.clone(),
            count: set.count,
            node_selector: BTreeMap::from([("pool".to_owned(), "spot".to_owned())]),
            labels: BTreeMap::from([("kueue.x-k8s.io/podset".to_owned(), set.name.clone())]),
            ..PodSetInfo::default()
        };
        let infos: Vec<PodSetInfo> = before.iter().map(info).collect();
        assert!(job.run_with(&infos[..1], &Gates::default()).is_err(), "each replicated job needs its own PodSetInfo");
        job.run_with(&infos, &Gates::default()).expect("it starts");
        assert!(!job.is_suspended());
        let patches = job.spec()["runtimePatches"].as_array().expect("patches");
        assert_eq!((&patches[0]["manager"], &patches[1]["manager"]), (&json!("me"), &json!(MANAGER)));
        let of_node =
            "/trainingRuntimeSpec/template/spec/replicatedJobs/1/template/spec/template/spec/nodeSelector/pool";
        assert_eq!(patches[1].pointer(of_node), Some(&json!("spot")));
        let running = job.pod_sets(&Gates::default()).expect("pod sets");
        let selector = running[1].template.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        assert_eq!(selector.expect("a selector")["pool"], "spot");
        job.suspend();
        job.object.status = Some(json!({"jobsStatus": [{"name": "node", "active": 1}]}));
        assert!(!job.restore(&[]), "its jobs still run");
        job.object.status = Some(json!({"jobsStatus": [{"name": "node", "active": 0}]}));
        assert!(job.restore(&[]) && !job.restore(&[]));
        assert_eq!(job.spec()["runtimePatches"], json!([{"manager": "me"}, {"manager": MANAGER}]));
        assert_eq!(job.pod_sets(&Gates::default()).expect("pod sets"), before);
    }

    #[test]
    fn tolerations_of_the_template_stay_beside_those_of_the_flavor() {
        let toleration = |key: &str| json!({"key": key, "operator": "Exists"});
        let mut runtime = torch();
        let at = "/template/spec/replicatedJobs/1/template/spec/template/spec";
        runtime.pointer_mut(at).expect("a spec")["tolerations"] = json!([toleration("own"), toleration("both")]);
        let mut job =
            job(json!({"runtimeRef": {"name": "torch"}, "suspend": true}), Value::Null).with_runtime(Some(runtime));
        let info = |set: &PodSet| PodSetInfo {
            name: set.name.clone(),
            count: set.count,
            tolerations: serde_json::from_value(json!([toleration("both"), toleration("spot")])).expect("tolerations"),
            ..PodSetInfo::default()
        };
        let infos: Vec<PodSetInfo> = job.pod_sets(&Gates::default()).expect("pod sets").iter().map(info).collect();
        let patched = "/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/1/template/spec/template/spec/tolerations";
        let all = json!([toleration("own"), toleration("both"), toleration("spot")]);
        // A second start, without a restore in between, has the same result.
        for _ in 0..2 {
            job.run_with(&infos, &Gates::default()).expect("it starts");
            assert_eq!(job.spec().pointer(patched), Some(&all));
            let node = &job.pod_sets(&Gates::default()).expect("pod sets")[1].template;
            let tolerations = node.spec.as_ref().and_then(|spec| spec.tolerations.as_ref()).expect("tolerations");
            assert_eq!(json!(tolerations), all, "the list after Trainer's merge");
        }
    }

    #[test]
    fn a_replicated_job_has_one_pod_at_least() {
        let spec = json!({"parallelism": 0, "completions": 0, "template": {"spec": {"containers": []}}});
        let jobs = json!([{"name": "aside", "replicas": 1, "template": {"spec": spec}}]);
        let runtime = json!({"template": {"spec": {"replicatedJobs": jobs}}});
        let job = job(json!({"runtimeRef": {"name": "r"}}), Value::Null).with_runtime(Some(runtime));
        let sets = job.pod_sets(&Gates::default()).expect("pod sets");
        assert_eq!(sets.iter().map(|set| set.count).collect::<Vec<_>>(), [1], "as Trainer counts");
    }

    #[test]
    fn a_runtime_without_a_policy_has_the_pods_of_its_replicated_jobs() {
        let of = |labels: Value| {
            let template = json!({"metadata": {"labels": labels},
                "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {"containers": []}}}});
            let jobs = json!([{"name": "node", "replicas": 3, "template": template}]);
            let runtime = json!({"template": {"spec": {"replicatedJobs": jobs}}});
            let job = job(json!({"runtimeRef": {"name": "r"}}), Value::Null).with_runtime(Some(runtime));
            job.pod_sets(&Gates::default()).expect("pod sets")[0].count
        };
        assert_eq!(of(json!({})), 6, "three Jobs of two pods");
        assert_eq!(of(json!({STEP: TRAINER})), 2, "a step has one Job");
    }

    #[test]
    fn readiness_reclaimable_pods_and_the_end_are_read_from_the_status() {
        let with = |status: Value| job(json!({"runtimeRef": {"name": "torch"}}), status).with_runtime(Some(torch()));
        let jobs = json!({"jobsStatus": [{"name": "dataset-initializer", "succeeded": 1, "ready": 0, "active": 0},
            {"name": "node", "succeeded": 0, "ready": 1, "active": 1}, {"name": "aside", "ready": 3, "succeeded": 0, "active": 3}]});
        let running = with(jobs);
        assert!(running.pods_ready() && running.is_active() && running.finished().is_none());
        let done = ReclaimablePod { name: "dataset-initializer".to_owned(), count: 1 };
        assert_eq!(running.reclaimable_pods(), Some(vec![done]));
        let failed = with(json!({"conditions": [{"type": "Failed", "status": "True", "message": "deadline"}]}));
        assert_eq!(failed.finished(), Some(Finished { success: false, message: "deadline".to_owned() }));
        let lost = job(json!({"runtimeRef": {"name": "gone", "kind": "TrainingRuntime"}}), Value::Null);
        let error = lost.pod_sets(&Gates::default()).expect_err("there is no runtime");
        assert!(error.contains("TrainingRuntime \"gone\" not found"), "{error}");
        assert_eq!((lost.reclaimable_pods(), lost.pods_ready()), (None, false));
    }
}
