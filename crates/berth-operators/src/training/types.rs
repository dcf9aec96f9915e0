//! Specs of training jobs, as the engine reads them, with the training operator's defaults.
//!
//! The stored objects stay JSON ([`berth_api::frameworks`]). Defaults are not stored, as with the
//! training operator.

use std::collections::BTreeMap;

use k8s_openapi::api::autoscaling::v2::MetricSpec;
use k8s_openapi::api::core::v1::{ContainerPort, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::framework::Framework;

/// Maximum number of pods of one replica type. Some libraries list all pods in each pod's
/// environment.
const REPLICAS_MAX: i32 = 10_000;

/// Reads null as the default of the field, as Kubernetes' own clients do.
pub(crate) fn lenient<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// Which pods remain when a job has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CleanPodPolicy {
    /// All pods.
    #[default]
    None,
    /// Those that have ended.
    Running,
    /// No pod.
    All,
}

impl CleanPodPolicy {
    /// The accepted values.
    pub const VALUES: [&'static str; 3] = ["All", "None", "Running"];
}

impl<'de> Deserialize<'de> for CleanPodPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("" | "None") => Ok(Self::None),
            Some("Running") => Ok(Self::Running),
            Some("All") => Ok(Self::All),
            Some(other) => Err(serde::de::Error::unknown_variant(other, &Self::VALUES)),
        }
    }
}

/// What happens when a pod of a replica type fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// The kubelet restarts containers that end.
    Always,
    /// The kubelet restarts containers that fail.
    OnFailure,
    /// The job fails.
    Never,
    /// A pod with an exit code of 128 or more is replaced; otherwise the job fails.
    ExitCode,
}

impl RestartPolicy {
    /// The accepted values.
    pub const VALUES: [&'static str; 4] = ["Always", "ExitCode", "Never", "OnFailure"];

    /// The restart policy of the pods.
    pub const fn of_pods(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnFailure => "OnFailure",
            Self::Never | Self::ExitCode => "Never",
        }
    }

    /// The policy of this name; `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "Always" => Some(Self::Always),
            "OnFailure" => Some(Self::OnFailure),
            "Never" => Some(Self::Never),
            "ExitCode" => Some(Self::ExitCode),
            _ => None,
        }
    }
}

/// How a job runs and ends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunPolicy {
    /// Which pods remain after the end.
    pub clean_pod_policy: Option<CleanPodPolicy>,
    /// Seconds from the end to the deletion of the job.
    pub ttl_seconds_after_finished: Option<i32>,
    /// Seconds from the start after which the job fails.
    pub active_deadline_seconds: Option<i64>,
    /// Number of restarts after which the job fails.
    pub backoff_limit: Option<i32>,
    /// Options for starting all pods together.
    pub scheduling_policy: Option<SchedulingPolicy>,
    /// True: no pods.
    pub suspend: Option<bool>,
    /// Controller that reconciles the job. Absent: the operator.
    pub managed_by: Option<String>,
}

/// Options for starting all pods together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingPolicy {
    /// Number of pods that start together. Absent: all.
    pub min_available: Option<i32>,
    /// Their resources. Absent: the sum of their requests.
    pub min_resources: Option<BTreeMap<String, Quantity>>,
    /// Seconds to wait for them.
    pub schedule_timeout_seconds: Option<i32>,
}

/// Bounds and rendezvous of a job whose number of workers changes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticPolicy {
    /// Minimum number of workers.
    pub min_replicas: Option<i32>,
    /// Maximum number of workers.
    pub max_replicas: Option<i32>,
    /// Back end of the rendezvous. Absent: `c10d`.
    pub rdzv_backend: Option<String>,
    /// Port of the rendezvous. Absent: that of the first worker.
    pub rdzv_port: Option<i32>,
    /// Host of the rendezvous. Absent: the first worker.
    pub rdzv_host: Option<String>,
    /// Identifier of the rendezvous.
    pub rdzv_id: Option<String>,
    /// Further options of the rendezvous.
    pub rdzv_conf: Option<Vec<RendezvousOption>>,
    /// True: the rendezvous is within the pod.
    pub standalone: Option<bool>,
    /// Processes per pod.
    pub n_proc_per_node: Option<i32>,
    /// Maximum number of restarts of all processes.
    pub max_restarts: Option<i32>,
    /// Metrics that choose the number of workers.
    pub metrics: Option<Vec<MetricSpec>>,
}

/// An option of the rendezvous.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RendezvousOption {
    /// Name.
    #[serde(deserialize_with = "lenient")]
    pub key: String,
    /// Value.
    #[serde(deserialize_with = "lenient")]
    pub value: String,
}

/// Equal pods of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Type, such as `Worker`.
    pub type_: &'static str,
    /// Number of pods.
    pub count: i32,
    /// What happens when one fails.
    pub restart_policy: RestartPolicy,
    /// The pod.
    pub template: PodTemplateSpec,
}

impl Replica {
    /// The type in lower case, as in names and labels.
    pub fn lower(&self) -> String {
        self.type_.to_lowercase()
    }

    /// Number of the named port of a container.
    pub fn port(&self, container: &str, port: &str) -> Option<i32> {
        let spec = self.template.spec.as_ref()?;
        let container = spec.containers.iter().find(|it| it.name == container)?;
        container.ports.iter().flatten().find(|it| it.name.as_deref() == Some(port)).map(|it| it.container_port)
    }
}

/// The spec of a job, with defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// How the job runs and ends.
    pub run_policy: RunPolicy,
    /// The pods, in the order of the kind's types.
    pub replicas: Vec<Replica>,
    /// Bounds of the number of workers.
    pub elastic: Option<ElasticPolicy>,
    /// Processes per pod of PyTorch: a number, `auto`, `cpu` or `gpu`.
    pub processes_per_pod: Option<String>,
    /// True: a TFJob succeeds when all workers have, not only the first.
    pub needs_all_workers: bool,
    /// True: workers of a TFJob know the parameter servers only, and may fail.
    pub has_dynamic_workers: bool,
}

/// The fields of a spec beside the replica specs.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    #[serde(deserialize_with = "lenient")]
    run_policy: RunPolicy,
    elastic_policy: Option<ElasticPolicy>,
    nproc_per_node: Option<String>,
    success_policy: Option<String>,
    enable_dynamic_worker: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenReplica {
    replicas: Option<i32>,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "berth_api::json::field")]
    template: PodTemplateSpec,
}

impl Spec {
    /// Reads the spec of a job of this kind.
    ///
    /// # Errors
    /// A field has another type or an unknown value. The text names the field.
    pub fn read(framework: &Framework, spec: &Value) -> Result<Self, String> {
        let written = Option::<Written>::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
        let written = written.unwrap_or_default();
        let mut replicas = Vec::new();
        for (name, value) in spec[framework.specs].as_object().into_iter().flatten() {
            let field = format!("spec.{}[{name}]", framework.specs);
            let type_ = framework
                .replica_type(name)
                .ok_or_else(|| format!("{field}: not a replica type; expected {}", framework.types.join(", ")))?;
            replicas.push(read_replica(framework, type_, value).map_err(|error| format!("{field}: {error}"))?);
        }
        replicas.sort_by_key(|replica: &Replica| framework.types.iter().position(|type_| *type_ == replica.type_));
        let mut spec = Self {
            run_policy: written.run_policy,
            replicas,
            elastic: written.elastic_policy,
            processes_per_pod: written.nproc_per_node,
            needs_all_workers: written.success_policy.as_deref() == Some("AllWorkers"),
            has_dynamic_workers: written.enable_dynamic_worker == Some(true),
        };
        spec.complete();
        Ok(spec)
    }

    /// Sets defaults that depend on several fields.
    fn complete(&mut self) {
        let workers = self.replica("Worker").map(|worker| worker.count);
        let has_old_field = self.elastic.as_ref().is_some_and(|elastic| elastic.n_proc_per_node.is_some());
        if self.processes_per_pod.is_none() && !has_old_field {
            self.processes_per_pod = Some("auto".to_owned());
        }
        if let Some(elastic) = &mut self.elastic {
            let (least, most) = (elastic.min_replicas, elastic.max_replicas);
            elastic.min_replicas = least.or(most).or(workers);
            elastic.max_replicas = most.or(least).or(workers);
        }
    }

    /// The replicas of this type.
    pub fn replica(&self, type_: &str) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.type_ == type_)
    }

    /// Number of pods.
    pub fn total(&self) -> i32 {
        self.replicas.iter().fold(0, |total, replica| total.saturating_add(replica.count))
    }

    /// True: no pods.
    pub fn is_suspended(&self) -> bool {
        self.run_policy.suspend == Some(true)
    }

    /// Which pods remain after the end.
    pub fn clean_pod_policy(&self) -> CleanPodPolicy {
        self.run_policy.clean_pod_policy.unwrap_or_default()
    }
}

fn read_replica(framework: &Framework, type_: &'static str, value: &Value) -> Result<Replica, String> {
    let written = Option::<WrittenReplica>::deserialize(value).map_err(|error| error.to_string())?;
    let written = written.unwrap_or_default();
    let policy = written.restart_policy.filter(|name| !name.is_empty());
    let restart_policy = policy.map_or(Ok(framework.restart_policy), |name| {
        let values = RestartPolicy::VALUES.join(", ");
        RestartPolicy::named(&name).ok_or_else(|| format!("restartPolicy: {name:?} is not one of {values}"))
    })?;
    let count = written.replicas.unwrap_or(1);
    if !(0..=REPLICAS_MAX).contains(&count) {
        return Err(format!("replicas: {count} is not between 0 and {REPLICAS_MAX}"));
    }
    let mut template = written.template;
    add_port(framework, template.spec.get_or_insert_default());
    Ok(Replica { type_, count, restart_policy, template })
}

/// Gives the container that trains its port, unless it has one of this name.
fn add_port(framework: &Framework, pod: &mut PodSpec) {
    let trains = pod.containers.iter().position(|container| container.name == framework.container);
    let Some(container) = pod.containers.get_mut(trains.unwrap_or(0)) else { return };
    let ports = container.ports.get_or_insert_default();
    if !ports.iter().any(|port| port.name.as_deref() == Some(framework.port_name)) {
        ports.push(ContainerPort {
            name: Some(framework.port_name.to_owned()),
            container_port: framework.port,
            ..ContainerPort::default()
        });
    }
}

/// A job: its kind, metadata and spec.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The kind.
    pub framework: &'static Framework,
    /// Name, namespace, UID and annotations.
    pub metadata: &'a ObjectMeta,
    /// The spec.
    pub spec: &'a Spec,
}

impl<'a> Job<'a> {
    /// Name.
    pub fn name(&self) -> &'a str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Namespace.
    pub fn namespace(&self) -> &'a str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Name of the pod of this type and index, and of its Service.
    pub fn replica_name(&self, type_: &str, index: i32) -> String {
        format!("{}-{}-{index}", self.name(), type_.to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::training::framework::{JAX, PYTORCH, TENSORFLOW};

    fn replica(container: &str) -> Value {
        json!({"template": {"spec": {"containers": [{"name": container, "image": "train"}]}}})
    }

    #[test]
    fn defaults_are_those_of_the_training_operator() {
        let spec = json!({"pytorchReplicaSpecs": {"worker": replica("pytorch"), "Master": replica("pytorch")}});
        let spec = Spec::read(&PYTORCH, &spec).expect("a spec");
        let types: Vec<_> = spec.replicas.iter().map(|replica| (replica.type_, replica.count)).collect();
        assert_eq!(types, [("Master", 1), ("Worker", 1)], "names in any case, in the order of the kind");
        let master = spec.replica("Master").expect("a master");
        assert_eq!(master.port("pytorch", "pytorchjob-port"), Some(23456));
        assert_eq!(master.restart_policy, RestartPolicy::OnFailure);
        assert_eq!(spec.processes_per_pod.as_deref(), Some("auto"));
        assert_eq!(spec.clean_pod_policy(), CleanPodPolicy::None);
        let spec = Spec::read(&TENSORFLOW, &json!({"tfReplicaSpecs": {"PS": replica("tensorflow")}})).expect("a spec");
        assert_eq!(spec.replicas[0].restart_policy, RestartPolicy::Never);
    }

    #[test]
    fn a_bound_of_the_workers_that_is_missing_equals_the_other_or_their_number() {
        let bounds = |policy: Value| {
            let mut worker = replica("pytorch");
            worker["replicas"] = json!(3);
            let spec = json!({"pytorchReplicaSpecs": {"Worker": worker}, "elasticPolicy": policy});
            let elastic = Spec::read(&PYTORCH, &spec).expect("a spec").elastic.expect("a policy");
            (elastic.min_replicas, elastic.max_replicas)
        };
        assert_eq!(bounds(json!({})), (Some(3), Some(3)));
        assert_eq!(bounds(json!({"minReplicas": 1})), (Some(1), Some(1)));
        assert_eq!(bounds(json!({"maxReplicas": 5})), (Some(5), Some(5)));
        assert_eq!(bounds(json!({"minReplicas": 1, "maxReplicas": 5})), (Some(1), Some(5)));
    }

    #[test]
    fn errors_name_the_field_and_the_accepted_values() {
        let read = |spec: Value| Spec::read(&JAX, &spec).expect_err("an error");
        let error = read(json!({"jaxReplicaSpecs": {"Master": replica("jax")}}));
        assert_eq!(error, "spec.jaxReplicaSpecs[Master]: not a replica type; expected Worker");
        let error = read(json!({"jaxReplicaSpecs": {"Worker": {"restartPolicy": "Sometimes"}}}));
        assert!(error.ends_with("restartPolicy: \"Sometimes\" is not one of Always, ExitCode, Never, OnFailure"));
        assert!(read(json!({"runPolicy": {"cleanPodPolicy": "Some"}})).contains("`All`, `None`, `Running`"));
        assert!(Spec::read(&JAX, &Value::Null).expect("an empty spec").replicas.is_empty());
    }
}
