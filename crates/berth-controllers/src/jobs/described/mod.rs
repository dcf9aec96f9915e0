//! Integrations of other projects' kinds: one description per kind, one implementation for all.
//!
//! Each kind keeps its own schema. Queueing needs to know where its pod templates are, how many
//! pods each template makes, which field suspends the job, and how to read its status. A
//! [`Description`] holds that; everything else is written once, here and in [`super::reconcile`].

pub mod appwrapper;
pub mod kubeflow;
pub mod ray;
pub mod spark;
mod template;

use berth_api::json::Json;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::frameworks as kinds;
use berth_api::kueue::v1beta2::PodSet;
use berth_apimachinery::field::{Error, Path};
use berth_runtime::{Cache, ControllerBuilder, Delta, ObjectKey};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde_json::{Value, json};

use super::topology::{self, Ranks};
use super::{Finished, Job};
use crate::gates::{Gate, Gates};
use crate::podset::{PodSetError, PodSetInfo};
use crate::stores::{Stores, controller_of};

/// Pods that a job makes from one template.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Name of the pod set.
    pub name: String,
    /// Number of pods.
    pub count: i32,
    /// JSON pointer into the spec to the pod template.
    pub template: String,
    /// The template to use if the spec has none.
    pub default: Option<PodTemplateSpec>,
    /// Containers that the kind's operator adds to these pods.
    pub added: Vec<Container>,
    /// Label that holds a pod's index, if it differs from [`Description::pod_index_label`].
    pub pod_index_label: Option<&'static str>,
}

impl Group {
    /// A group whose template is in the spec.
    pub fn new(name: impl Into<String>, count: i32, template: impl Into<String>) -> Self {
        Group {
            name: name.into(),
            count,
            template: template.into(),
            default: None,
            added: Vec::new(),
            pod_index_label: None,
        }
    }
}

/// Where the additions of admission are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Into the pod templates.
    Templates,
    /// Into the fields of the roles from which the kind's operator makes the pods. The default
    /// template of a group has the pods, and its pointer is the role.
    Roles,
    /// Into the field `podSetInfos` next to the templates. The kind's operator applies it.
    Infos,
}

/// Properties of a kind that queueing needs.
#[derive(Debug)]
pub struct Description {
    /// Name of the integration in the configuration.
    pub framework: &'static str,
    /// True if jobs may change their size while they run.
    pub elastic: bool,
    /// The field that suspends the job: steps from the object's root.
    pub suspend: &'static [&'static str],
    /// The field that names the controller that reconciles the job, if the kind has one.
    pub managed_by: Option<&'static [&'static str]>,
    /// JSON pointer into the spec to the job's own priority class.
    pub priority_class: Option<&'static str>,
    /// Label that holds a pod's index in its group.
    pub pod_index_label: Option<&'static str>,
    /// Where the additions of admission are written.
    pub injection: Injection,
    /// Reads the pod groups from the spec, in the order of the pod sets.
    pub groups: fn(&Value) -> Result<Vec<Group>, String>,
    /// Reads from the status how the job ended.
    pub finished: fn(&Value) -> Option<Finished>,
    /// Reads from spec and status whether all pods are ready or have succeeded.
    pub ready: fn(&Value, &Value) -> bool,
    /// Reads from the status whether pods still run.
    pub active: fn(&Value) -> bool,
    /// Reads from the status whether the kind's operator rejected the spec; `None` for kinds
    /// without such a state.
    pub on_hold: fn(&Value) -> Option<bool>,
    /// Sets defaults in the spec of a new job.
    pub set_defaults: fn(&mut Value, &Gates),
    /// Reads from the spec whether the job is queued at all.
    pub queued: fn(&Value) -> bool,
    /// Reads from spec and status the name of the RayCluster that Ray's autoscaler resizes while
    /// the job runs.
    pub resized: fn(&Value, &Value) -> Option<String>,
    /// Reads from spec and annotations whether the kind's operator runs pods that clean up after
    /// the job, once the job is being deleted.
    pub cleans_up: fn(&Value, &BTreeMap<String, String>) -> bool,
    /// Validates the spec of a job to be queued; `elastic`: the job may change its size.
    pub validate: fn(&Value, elastic: bool, path: &Path<'_>) -> Vec<Error>,
}

/// A kind with a description.
pub trait Described:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + Json
    + PartialEq
    + Send
    + Sync
    + 'static
{
    /// The description.
    const DESCRIPTION: &'static Description;

    /// Its spec as written.
    fn spec(&self) -> &Value;

    /// Its spec, mutable.
    fn spec_mut(&mut self) -> &mut Value;

    /// Its status as written.
    fn status(&self) -> &Value;
}

macro_rules! described {
    ($($kind:ident: $description:expr;)*) => {
        $(impl Described for kinds::$kind {
            const DESCRIPTION: &'static Description = &$description;

            fn spec(&self) -> &Value {
                &self.spec
            }

            fn spec_mut(&mut self) -> &mut Value {
                &mut self.spec
            }

            fn status(&self) -> &Value {
                self.status.as_ref().unwrap_or(&Value::Null)
            }
        })*
    };
}

described! {
    PyTorchJob: kubeflow::PYTORCH;
    TFJob: kubeflow::TENSORFLOW;
    XGBoostJob: kubeflow::XGBOOST;
    PaddleJob: kubeflow::PADDLE;
    JAXJob: kubeflow::JAX;
    MXJob: kubeflow::MXNET;
    MPIJob: kubeflow::MPI;
    RayJob: ray::JOB;
    RayCluster: ray::CLUSTER;
    RayService: ray::SERVICE;
    SparkApplication: spark::APPLICATION;
    AppWrapper: appwrapper::APP_WRAPPER;
}

/// Runs a block for each kind that has a description, with `$kind` as its type.
macro_rules! for_each_described {
    ($kind:ident => $body:block) => {{
        {
            type $kind = berth_api::frameworks::PyTorchJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::TFJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::XGBoostJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::PaddleJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::JAXJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::MXJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::MPIJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::RayJob;
            $body
        }
        {
            type $kind = berth_api::frameworks::RayCluster;
            $body
        }
        {
            type $kind = berth_api::frameworks::RayService;
            $body
        }
        {
            type $kind = berth_api::frameworks::SparkApplication;
            $body
        }
        {
            type $kind = berth_api::frameworks::AppWrapper;
            $body
        }
    }};
}
pub(crate) use for_each_described;

/// Runs a block for each kind of another project, those with a description and TrainJob, with
/// `$kind` as its type.
macro_rules! for_each_foreign {
    ($kind:ident => $body:block) => {{
        $crate::jobs::described::for_each_described!($kind => $body);
        {
            type $kind = $crate::jobs::train_job::TrainJob;
            $body
        }
    }};
}
pub(crate) use for_each_foreign;

/// Names of the integrations with a description.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for_each_described!(Kind => {
        names.push(<Kind as Described>::DESCRIPTION.framework);
    });
    names
}

/// The value at a path; null if it is missing.
fn at<'a>(value: &'a Value, steps: &[&str]) -> &'a Value {
    steps.iter().fold(value, |value, step| &value[*step])
}

/// Sets the value at a path and creates missing objects on the way.
pub(crate) fn set_at(value: &mut Value, steps: &[&str], new: Value) {
    let mut at = value;
    for step in steps {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[*step];
    }
    *at = new;
}

/// The part of a path that follows `spec`.
fn below_spec(steps: &'static [&'static str]) -> &'static [&'static str] {
    &steps[1..]
}

/// The running RayCluster of a job whose size Ray's autoscaler changes.
fn resized_cluster<K: Described>(job: &K, stores: &Stores) -> Option<Arc<kinds::RayCluster>> {
    let name = (K::DESCRIPTION.resized)(job.spec(), job.status())?;
    stores.ray_clusters.get(&ObjectKey::namespaced(job.meta().namespace.clone().unwrap_or_default(), name))
}

impl<K: Described> Job for K {
    const FRAMEWORK: &'static str = K::DESCRIPTION.framework;
    const CAN_BE_ELASTIC: bool = K::DESCRIPTION.elastic;
    const SUSPEND: &'static [&'static str] = K::DESCRIPTION.suspend;
    const MANAGED_BY: Option<&'static [&'static str]> = K::DESCRIPTION.managed_by;

    fn templates(&self) -> Vec<String> {
        let groups = (K::DESCRIPTION.groups)(self.spec()).unwrap_or_default();
        let written =
            groups.into_iter().filter(|group| self.spec().pointer(&group.template).is_some_and(Value::is_object));
        written.map(|group| format!("/spec{}", group.template)).collect()
    }

    fn is_suspended(&self) -> bool {
        at(self.spec(), below_spec(K::DESCRIPTION.suspend)).as_bool().unwrap_or(false)
    }

    fn suspend(&mut self) {
        set_at(self.spec_mut(), below_spec(K::DESCRIPTION.suspend), json!(true));
    }

    fn pod_sets(&self, gates: &Gates) -> Result<Vec<PodSet>, String> {
        let mut groups = (K::DESCRIPTION.groups)(self.spec())?;
        if K::DESCRIPTION.injection == Injection::Infos {
            // Components have no names, so pod sets are numbered.
            let name = self.meta().name.clone().unwrap_or_default();
            groups.iter_mut().enumerate().for_each(|(index, group)| group.name = format!("{name}-{index}"));
        }
        let mut pod_sets = Vec::with_capacity(groups.len());
        for group in &groups {
            let mut template = match K::DESCRIPTION.injection {
                Injection::Roles => group.default.clone().unwrap_or_default(),
                Injection::Templates | Injection::Infos => template::read(self.spec(), group)?,
            };
            let pod_index_label = group.pod_index_label.or(K::DESCRIPTION.pod_index_label);
            let ranks = Ranks { pod_index_label, ..Ranks::default() };
            let topology_request = topology::of_template(&template, ranks, gates)
                .map_err(|error| format!("spec{}: {error}", group.template.replace('/', ".")))?;
            template.spec.get_or_insert_default().containers.extend(group.added.iter().cloned());
            pod_sets.push(PodSet {
                name: group.name.clone(),
                count: group.count,
                min_count: None,
                template,
                topology_request,
            });
        }
        Ok(pod_sets)
    }

    fn resize(&self, pod_sets: &mut [PodSet], stores: &Stores) {
        if let Some(cluster) = resized_cluster(self, stores) {
            ray::resize(pod_sets, &cluster.spec);
        }
    }

    fn resized_generation(&self, stores: &Stores) -> Option<i64> {
        resized_cluster(self, stores)?.metadata.generation
    }

    fn watch<'a>(builder: ControllerBuilder<'a>, stores: &Stores, _jobs: &Cache<Self>) -> ControllerBuilder<'a> {
        if !ray::MAKES_CLUSTERS.contains(&K::DESCRIPTION.framework) {
            return builder;
        }
        builder.watch(&stores.ray_clusters, |delta: &Delta<kinds::RayCluster>| {
            let cluster = delta.latest();
            let owner = controller_of(cluster.meta()).filter(|owner| owner.kind == K::kind(&()))?;
            Some(ObjectKey::namespaced(cluster.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()))
        })
    }

    fn run_with(&mut self, infos: &[PodSetInfo], gates: &Gates) -> Result<(), PodSetError> {
        let groups = (K::DESCRIPTION.groups)(self.spec()).unwrap_or_default();
        if infos.len() != groups.len() {
            return Err(PodSetError::Count { expected: groups.len(), got: infos.len() });
        }
        match K::DESCRIPTION.injection {
            Injection::Templates => {
                for (group, info) in groups.iter().zip(infos) {
                    template::merge(self.spec_mut(), group, info, gates)?;
                }
            }
            Injection::Roles => {
                for (group, info) in groups.iter().zip(infos) {
                    spark::merge(self.spec_mut(), group, info, gates)?;
                }
                spark::clear_shared_selector(self.spec_mut());
            }
            Injection::Infos => appwrapper::set_infos(self.spec_mut(), infos),
        }
        set_at(self.spec_mut(), below_spec(K::DESCRIPTION.suspend), json!(false));
        Ok(())
    }

    fn restore(&mut self, infos: &[PodSetInfo]) -> bool {
        if K::DESCRIPTION.injection == Injection::Infos {
            return appwrapper::clear_infos(self.spec_mut());
        }
        let groups = (K::DESCRIPTION.groups)(self.spec()).unwrap_or_default();
        if infos.len() != groups.len() {
            return false;
        }
        let mut changed = false;
        for (group, info) in groups.iter().zip(infos) {
            changed |= match K::DESCRIPTION.injection {
                Injection::Roles => spark::restore(self.spec_mut(), group, info),
                Injection::Templates | Injection::Infos => template::restore(self.spec_mut(), group, info),
            };
        }
        changed
    }

    fn finished(&self) -> Option<Finished> {
        (K::DESCRIPTION.finished)(self.status())
    }

    fn pods_ready(&self) -> bool {
        (K::DESCRIPTION.ready)(self.spec(), self.status())
    }

    fn is_active(&self) -> bool {
        (K::DESCRIPTION.active)(self.status())
    }

    fn is_on_hold(&self) -> Option<bool> {
        (K::DESCRIPTION.on_hold)(self.status())
    }

    fn set_defaults(object: &mut Value, gates: &Gates) {
        if let Some(spec) = object.get_mut("spec") {
            (K::DESCRIPTION.set_defaults)(spec, gates);
        }
    }

    fn priority_class(&self) -> Option<String> {
        let class = self.spec().pointer(K::DESCRIPTION.priority_class?)?.as_str()?;
        (!class.is_empty()).then(|| class.to_owned())
    }

    fn is_needed_until_gone(&self, gates: &Gates) -> bool {
        gates.on(Gate::DeferRayServiceFinalizationForRedisCleanup)
            && (K::DESCRIPTION.cleans_up)(self.spec(), self.meta().annotations.as_ref().unwrap_or(&BTreeMap::new()))
    }

    fn is_queued(&self) -> bool {
        (K::DESCRIPTION.queued)(self.spec())
    }

    fn managed_by(&self) -> Option<&str> {
        at(self.spec(), below_spec(K::DESCRIPTION.managed_by?)).as_str()
    }

    fn set_managed_by(&mut self, controller: &str) {
        if let Some(steps) = K::DESCRIPTION.managed_by {
            set_at(self.spec_mut(), below_spec(steps), json!(controller));
        }
    }
}

/// The number of pods or hosts in a field; `default` if it holds no such number.
pub(super) fn integer(value: &Value, default: i32) -> i32 {
    value.as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(default)
}

/// Message of the condition of this type, if the condition is True.
pub(super) fn true_condition<'a>(status: &'a Value, type_: &str) -> Option<&'a str> {
    let conditions = status["conditions"].as_array()?;
    let condition = conditions.iter().find(|it| it["type"] == type_ && it["status"] == "True")?;
    Some(condition["message"].as_str().unwrap_or_default())
}

/// Validates the pod sets of a job to be queued: they must be readable, and not too many.
pub(crate) fn validate_pod_sets<K: Job>(job: &K, gates: &Gates) -> Vec<Error> {
    /// Maximum number of pod sets of a workload.
    const POD_SETS_MAX: usize = 18;
    let path = Path::new("spec");
    match job.pod_sets(gates) {
        Err(message) => vec![Error::invalid(&path, Value::Null, message)],
        Ok(sets) if sets.len() > POD_SETS_MAX => {
            vec![Error::too_many(&path, sets.len() as i64, POD_SETS_MAX as i64)]
        }
        Ok(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::frameworks::{AppWrapper, MPIJob, PyTorchJob, RayCluster, RayJob, RayService};
    use berth_api::kueue::v1beta2::Workload;

    use super::*;
    use crate::gates::Gate;

    fn template(cpu: &str) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn read<K: Described>(spec: Value, status: Value) -> K {
        let object = json!({"metadata": {"name": "job", "namespace": "ns"}, "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn sizes<K: Described>(job: &K) -> Vec<(String, i32)> {
        let sets = job.pod_sets(&Gates::default()).unwrap();
        sets.into_iter().map(|set| (set.name, set.count)).collect()
    }

    fn info(name: &str) -> PodSetInfo {
        PodSetInfo {
            name: name.to_owned(),
            count: 1,
            node_selector: BTreeMap::from([("pool".to_owned(), "spot".to_owned())]),
            ..PodSetInfo::default()
        }
    }

    #[test]
    fn replica_types_are_pod_sets_in_their_fixed_order() {
        let spec = json!({"runPolicy": {"suspend": true, "schedulingPolicy": {"priorityClass": "high"}},
            "pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template("1")},
                "Master": {"template": template("2")}}});
        let mut job: PyTorchJob = read(spec.clone(), Value::Null);
        assert_eq!(sizes(&job), [("master".to_owned(), 1), ("worker".to_owned(), 3)]);
        assert_eq!(job.priority_class().as_deref(), Some("high"));
        assert!(job.is_suspended());
        job.run_with(&[info("master"), info("worker")], &Gates::default()).unwrap();
        assert!(!job.is_suspended());
        let selector = "/pytorchReplicaSpecs/Worker/template/spec/nodeSelector/pool";
        assert_eq!(job.spec.pointer(selector), Some(&json!("spot")));
        let none = |name: &str| PodSetInfo { name: name.to_owned(), ..PodSetInfo::default() };
        job.suspend();
        assert!(job.restore(&[none("master"), none("worker")]));
        assert_eq!(job.spec, spec, "only what admission added was removed");
    }

    #[test]
    fn the_workers_of_an_mpi_job_are_counted_after_a_launcher_that_works() {
        let object = |works: bool, annotations: Value| {
            let launcher = json!({"template": {"metadata": {"annotations": annotations}, "spec": {"containers": []}}});
            json!({"spec": {"runLauncherAsWorker": works,
                "mpiReplicaSpecs": {"Launcher": launcher, "Worker": {"template": template("1")}}}})
        };
        let offset = |mut object: Value, gates: &Gates| {
            MPIJob::set_defaults(&mut object, gates);
            let annotations = object.pointer("/spec/mpiReplicaSpecs/Worker/template/metadata/annotations");
            annotations.map(|annotations| annotations["kueue.x-k8s.io/pod-index-offset"].clone())
        };
        let gates = Gates::default();
        assert_eq!(offset(object(true, json!({})), &gates), Some(json!("1")));
        assert_eq!(offset(object(false, json!({})), &gates), None);
        let grouped = json!({"kueue.x-k8s.io/podset-group-name": "all"});
        assert_eq!(offset(object(true, grouped), &gates), None, "the ranks of a group count the launcher");
        let mut off = Gates::default();
        off.set(Gate::TopologyAwareScheduling, false);
        assert_eq!(offset(object(true, json!({})), &off), None);
        assert_eq!(offset(json!({"spec": {"runLauncherAsWorker": true}}), &gates), None);
        assert_eq!(offset(json!({}), &gates), None);
    }

    #[test]
    fn a_training_job_ends_with_its_condition() {
        let condition = json!([{"type": "Failed", "status": "True", "message": "worker 1 failed"}]);
        let job: PyTorchJob = read(json!({}), json!({"conditions": condition}));
        assert_eq!(job.finished(), Some(Finished { success: false, message: "worker 1 failed".to_owned() }));
    }

    #[test]
    fn a_ray_job_has_head_worker_and_submitter_pod_sets() {
        let cluster = json!({"headGroupSpec": {"template": template("1")}, "workerGroupSpecs": [
            {"groupName": "TPU", "replicas": 2, "numOfHosts": 4, "template": template("8")}]});
        let job: RayJob = read(json!({"shutdownAfterJobFinishes": true, "rayClusterSpec": cluster}), Value::Null);
        let expected = [("head".to_owned(), 1), ("tpu".to_owned(), 8), ("submitter".to_owned(), 1)];
        assert_eq!(sizes(&job), expected);
        let submitter = &job.pod_sets(&Gates::default()).unwrap()[2];
        let requests =
            submitter.template.spec.as_ref().unwrap().containers[0].resources.clone().unwrap().requests.unwrap();
        assert_eq!(requests["cpu"].0, "500m");
        let cluster: RayCluster = read(cluster, json!({"state": "ready"}));
        assert_eq!(sizes(&cluster), [("head".to_owned(), 1), ("tpu".to_owned(), 8)]);
        assert!(cluster.pods_ready() && cluster.finished().is_none());
    }

    #[test]
    fn a_ray_service_whose_metadata_is_in_redis_keeps_its_quota_until_it_is_gone() {
        let on = Gates::default();
        let off = Gates::default().with(Gate::DeferRayServiceFinalizationForRedisCleanup, false);
        let mut plain: RayService = read(json!({"rayClusterConfig": {}}), Value::Null);
        let options = json!({"rayClusterConfig": {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}});
        let stored: RayService = read(options, Value::Null);
        assert!(stored.is_needed_until_gone(&on) && !stored.is_needed_until_gone(&off));
        assert!(!plain.is_needed_until_gone(&on));
        plain.metadata.annotations = Some([("ray.io/ft-enabled".to_owned(), "True".to_owned())].into());
        assert!(plain.is_needed_until_gone(&on));

        let stores = Stores::by_hand();
        let owner =
            json!({"apiVersion": "ray.io/v1", "kind": "RayService", "name": "job", "uid": "u", "controller": true});
        let workload = json!({"metadata": {"name": "w", "namespace": "ns", "ownerReferences": [owner],
            "finalizers": ["kueue.x-k8s.io/resource-in-use"]}, "spec": {"podSets": []}});
        stores.workloads.observe(serde_json::from_value::<Workload>(workload).unwrap());
        let config = crate::Config::default();
        let mut deleting = stored;
        deleting.metadata.uid = Some("u".to_owned());
        deleting.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let key = ObjectKey::namespaced("ns", "job");
        let steps = |gates: &Gates, job: Option<&RayService>| {
            let now = "2026-01-01T00:00:00Z".parse().unwrap();
            let context = crate::jobs::reconcile::Context { stores: &stores, config: &config, gates, now };
            crate::jobs::reconcile::reconcile(context, &key, job).steps.len()
        };
        assert_eq!(steps(&on, Some(&deleting)), 0);
        assert_eq!((steps(&off, Some(&deleting)), steps(&on, None)), (2, 2), "finished, and without finalizer");
    }

    #[test]
    fn an_existing_ray_cluster_is_not_queued_again() {
        let job: RayJob = read(json!({"clusterSelector": {"ray.io/cluster": "c"}}), Value::Null);
        assert!(!job.is_queued());
        let wrong = |spec: Value| -> Vec<String> {
            let errors = (ray::JOB.validate)(&spec, false, &Path::new("spec"));
            errors.into_iter().map(|error| error.field).collect()
        };
        assert_eq!(wrong(json!(job.spec)), [""; 0]);
        let both = json!({"clusterSelector": {"ray.io/cluster": "c"}, "rayClusterSpec": {}});
        assert_eq!(wrong(both), ["spec.clusterSelector"]);
        assert_eq!(wrong(json!({})), ["spec.rayClusterSpec"]);
        assert_eq!(wrong(json!({"rayClusterSpec": {}})), ["spec.shutdownAfterJobFinishes"]);
    }

    #[test]
    fn a_job_without_pods_is_left_to_its_operator() {
        let rules: [(&Description, Value); 2] =
            [(&appwrapper::APP_WRAPPER, json!({"components": []})), (&kubeflow::MPI, json!({"mpiReplicaSpecs": {}}))];
        for (description, spec) in rules {
            let errors = (description.validate)(&spec, false, &Path::new("spec"));
            assert!(errors.is_empty(), "{}: {errors:?}", description.framework);
        }
    }

    #[test]
    fn admission_additions_of_a_wrapper_are_written_beside_its_components() {
        let pods =
            json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 2, "template": template("1")}});
        let spec = json!({"suspend": true, "components": [{"template": {"apiVersion": "v1", "kind": "Service"}},
            {"template": pods}]});
        let mut wrapper: AppWrapper = read(spec, json!({"phase": "Suspended"}));
        assert_eq!(sizes(&wrapper), [("job-0".to_owned(), 2)]);
        wrapper.run_with(&[info("job-0")], &Gates::default()).unwrap();
        let infos = &wrapper.spec["components"][1]["podSetInfos"];
        assert_eq!(infos[0]["nodeSelector"], json!({"pool": "spot"}));
        assert!(wrapper.spec["components"][0]["podSetInfos"].is_null());
        assert!(wrapper.restore(&[]));
        assert!(wrapper.spec["components"][1]["podSetInfos"].is_null());
        assert!(!wrapper.restore(&[]));
    }
}
