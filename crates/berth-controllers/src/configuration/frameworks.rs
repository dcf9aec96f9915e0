//! Kinds of jobs that a configuration can name, whether Berth integrates them or not.

use crate::gates::Gate;
use crate::jobs;

/// Name of the integration of SparkApplications.
pub const SPARK: &str = "sparkoperator.k8s.io/sparkapplication";

/// A kind of job, by its name in `integrations.frameworks`.
#[derive(Debug, PartialEq, Eq)]
pub struct Framework {
    /// Name in the file.
    pub name: &'static str,
    /// API group, empty for core.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// True for integrations of pods, for which some namespaces must be excluded.
    pub made_of_pods: bool,
}

impl Framework {
    /// Plural name of its resource.
    pub fn resource(&self) -> String {
        format!("{}s", self.kind.to_lowercase())
    }

    /// The feature gate that the integration needs, if it needs one.
    pub fn gate(&self) -> Option<Gate> {
        (self.name == SPARK).then_some(Gate::SparkApplicationIntegration)
    }

    /// `Kind.version.group`, as `integrations.externalFrameworks` spells kinds.
    pub fn kind_argument(&self) -> String {
        format!("{}.{}.{}", self.kind, self.version, self.group)
    }
}

const fn framework(name: &'static str, group: &'static str, version: &'static str, kind: &'static str) -> Framework {
    Framework { name, group, version, kind, made_of_pods: false }
}

const fn of_pods(name: &'static str, group: &'static str, version: &'static str, kind: &'static str) -> Framework {
    Framework { name, group, version, kind, made_of_pods: true }
}

/// All kinds, in name order.
pub const FRAMEWORKS: &[Framework] = &[
    framework("batch/job", "batch", "v1", "Job"),
    of_pods("deployment", "apps", "v1", "Deployment"),
    framework("jobset.x-k8s.io/jobset", "jobset.x-k8s.io", "v1alpha2", "JobSet"),
    framework("kubeflow.org/jaxjob", "kubeflow.org", "v1", "JAXJob"),
    framework("kubeflow.org/mpijob", "kubeflow.org", "v2beta1", "MPIJob"),
    framework("kubeflow.org/mxjob", "kubeflow.org", "v1", "MXJob"),
    framework("kubeflow.org/paddlejob", "kubeflow.org", "v1", "PaddleJob"),
    framework("kubeflow.org/pytorchjob", "kubeflow.org", "v1", "PyTorchJob"),
    framework("kubeflow.org/tfjob", "kubeflow.org", "v1", "TFJob"),
    framework("kubeflow.org/xgboostjob", "kubeflow.org", "v1", "XGBoostJob"),
    of_pods("leaderworkerset.x-k8s.io/leaderworkerset", "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
    of_pods("pod", "", "v1", "Pod"),
    framework("ray.io/raycluster", "ray.io", "v1", "RayCluster"),
    framework("ray.io/rayjob", "ray.io", "v1", "RayJob"),
    framework("ray.io/rayservice", "ray.io", "v1", "RayService"),
    framework(SPARK, "sparkoperator.k8s.io", "v1beta2", "SparkApplication"),
    of_pods("statefulset", "apps", "v1", "StatefulSet"),
    framework("trainer.kubeflow.org/trainjob", "trainer.kubeflow.org", "v1alpha1", "TrainJob"),
    framework("workload.codeflare.dev/appwrapper", "workload.codeflare.dev", "v1beta2", "AppWrapper"),
];

/// Integrations that another integration enables, because its jobs are queued as objects of their
/// kinds.
const BRINGS: &[(&str, &[&str])] =
    &[("deployment", &["pod"]), ("leaderworkerset.x-k8s.io/leaderworkerset", &["pod"]), ("statefulset", &["pod"])];

/// Names of the integrations that the integration `name` enables.
pub fn brought_by(name: &str) -> &'static [&'static str] {
    BRINGS.iter().find(|(framework, _)| *framework == name).map_or(&[], |(_, brought)| brought)
}

/// Integrations that are enabled only by others, in name order.
pub fn implicitly_enabled<'a>(enabled: &[&'a str], brought_by: impl Fn(&str) -> Vec<&'a str>) -> Vec<&'a str> {
    let mut implicit: Vec<&str> = enabled.iter().flat_map(|name| brought_by(name)).collect();
    implicit.retain(|name| !enabled.contains(name));
    implicit.sort_unstable();
    implicit.dedup();
    implicit
}

/// Names of Berth's integrations that are enabled without a configuration file: those that need no
/// feature gate, and those whose gate is on by default.
pub fn on_by_default() -> impl Iterator<Item = &'static str> {
    let is_on = |name: &&str| {
        let gate = find(name).and_then(Framework::gate);
        gate.is_none_or(Gate::default_state)
    };
    jobs::integrated().into_iter().filter(is_on)
}

/// The framework of this name.
pub fn find(name: &str) -> Option<&'static Framework> {
    FRAMEWORKS.iter().find(|framework| framework.name == name)
}

/// The framework of this kind, in any version.
pub fn find_kind(group: &str, kind: &str) -> Option<&'static Framework> {
    FRAMEWORKS.iter().find(|framework| framework.group == group && framework.kind == kind)
}

/// All names that a file can list.
pub fn names() -> Vec<&'static str> {
    FRAMEWORKS.iter().map(|framework| framework.name).collect()
}
