//! The integrations of Ray: a head, groups of workers and, for a RayJob, the pod that submits its
//! program.

use berth_api::kueue::v1beta2::PodSet;
use berth_apimachinery::field::{Error, Path};
use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use serde_json::{Value, json};

use super::{Description, Group, Injection, integer, true_condition};
use crate::jobs::Finished;

/// Name of the head's pod set; worker groups cannot use it.
const HEAD: &str = "head";
/// Annotation that makes the metadata of a cluster survive its head.
const FAULT_TOLERANCE: &str = "ray.io/ft-enabled";
/// Name of the submitter's pod set.
const SUBMITTER: &str = "submitter";

const COMMON: Description = Description {
    framework: "",
    elastic: true,
    suspend: &["spec", "suspend"],
    managed_by: Some(&["spec", "managedBy"]),
    priority_class: None,
    pod_index_label: None,
    injection: Injection::Templates,
    groups: |spec| cluster(spec, ""),
    finished: |_| None,
    ready: |_, status| status["state"] == "ready",
    active: |status| status["state"] == "ready" || true_condition(status, "RayClusterSuspending").is_some(),
    on_hold: |_| None,
    set_defaults: |_, _| {},
    queued: |_| true,
    resized: |_, _| None,
    cleans_up: |_, _| false,
    validate: |spec, elastic, path| validate_cluster(spec, elastic, path),
};

/// Description of RayCluster, which runs until it is deleted.
pub const CLUSTER: Description = Description { framework: "ray.io/raycluster", ..COMMON };

/// Description of RayService, which runs until it is deleted; its cluster is part of its spec.
pub const SERVICE: Description = Description {
    framework: "ray.io/rayservice",
    suspend: &["spec", "rayClusterConfig", "suspend"],
    managed_by: None,
    groups: |spec| cluster(spec, "/rayClusterConfig"),
    ready: |_, status| true_condition(status, "Ready").is_some(),
    active: |status| {
        status["serviceStatus"] == "Running" || status["activeServiceStatus"]["rayClusterStatus"]["state"] == "ready"
    },
    resized: |spec, status| autoscaled(&spec["rayClusterConfig"], &status["activeServiceStatus"]["rayClusterName"]),
    // KubeRay removes the cluster's metadata from Redis by a Job.
    cleans_up: |spec, annotations| {
        let on = annotations.get(FAULT_TOLERANCE).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        on || !spec["rayClusterConfig"]["gcsFaultToleranceOptions"].is_null()
    },
    validate: |spec, elastic, path| {
        validate_cluster(&spec["rayClusterConfig"], elastic, &path.child("rayClusterConfig"))
    },
    ..COMMON
};

/// Description of RayJob, a cluster for one program. A RayJob that selects an existing cluster is
/// not queued, because that cluster is.
pub const JOB: Description = Description {
    framework: "ray.io/rayjob",
    groups: job,
    finished: |status| {
        let ended = ["Complete", "Failed"].iter().any(|end| status["jobDeploymentStatus"] == *end);
        ended.then(|| Finished {
            success: status["jobStatus"] == "SUCCEEDED",
            message: status["message"].as_str().unwrap_or_default().to_owned(),
        })
    },
    ready: |_, status| status["rayClusterStatus"]["state"] == "ready",
    active: |status| !matches!(status["jobDeploymentStatus"].as_str().unwrap_or_default(), "" | "Suspended"),
    on_hold: |status| Some(status["jobDeploymentStatus"] == "ValidationFailed"),
    queued: |spec| spec["clusterSelector"].as_object().is_none_or(serde_json::Map::is_empty),
    resized: |spec, status| autoscaled(&spec["rayClusterSpec"], &status["rayClusterName"]),
    validate: validate_job,
    ..COMMON
};

/// Integrations whose jobs make a RayCluster.
pub const MAKES_CLUSTERS: [&str; 2] = [JOB.framework, SERVICE.framework];

/// Name of the running cluster, if Ray's autoscaler resizes it.
fn autoscaled(cluster: &Value, name: &Value) -> Option<String> {
    let name = name.as_str().filter(|name| !name.is_empty())?;
    (cluster["enableInTreeAutoscaling"] == true).then(|| name.to_owned())
}

/// Sets the counts of worker groups to those in the spec of the running cluster. A group without
/// `replicas` there, and pod sets that are no group, keep theirs.
pub(super) fn resize(pod_sets: &mut [PodSet], cluster: &Value) {
    for worker in cluster["workerGroupSpecs"].as_array().into_iter().flatten() {
        let name = group_name(worker);
        if let Some(pod_set) = pod_sets.iter_mut().find(|set| set.name == name)
            && worker["replicas"].is_i64()
        {
            pod_set.count = pods_of(worker);
        }
    }
}

/// Name of a worker group's pod set.
fn group_name(worker: &Value) -> String {
    worker["groupName"].as_str().unwrap_or_default().to_lowercase()
}

/// Number of pods of a worker group.
fn pods_of(worker: &Value) -> i32 {
    integer(&worker["replicas"], 1).saturating_mul(integer(&worker["numOfHosts"], 1))
}

/// Head and workers of the cluster at `at` in the spec.
fn cluster(spec: &Value, at: &str) -> Result<Vec<Group>, String> {
    let cluster = spec.pointer(at).unwrap_or(&Value::Null);
    let mut head = Group::new(HEAD, 1, format!("{at}/headGroupSpec/template"));
    if cluster["enableInTreeAutoscaling"] == true {
        head.added.push(autoscaler(&cluster["autoscalerOptions"]["resources"])?);
    }
    let mut groups = vec![head];
    for (index, worker) in cluster["workerGroupSpecs"].as_array().into_iter().flatten().enumerate() {
        groups.push(Group::new(group_name(worker), pods_of(worker), format!("{at}/workerGroupSpecs/{index}/template")));
    }
    Ok(groups)
}

/// The container that KubeRay adds to the head of a cluster with autoscaling.
fn autoscaler(resources: &Value) -> Result<Container, String> {
    let half_a_core = json!({"cpu": "500m", "memory": "512Mi"});
    let resources = match resources {
        Value::Null => json!({"requests": half_a_core, "limits": half_a_core}),
        given => given.clone(),
    };
    berth_api::json::from_value(json!({"name": "autoscaler", "resources": resources}))
        .map_err(|error| format!("autoscalerOptions.resources: {error}"))
}

/// The container in which KubeRay submits the program.
fn submitter() -> Result<Container, String> {
    let resources = json!({"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    berth_api::json::from_value(json!({"name": "ray-job-submitter", "resources": resources})).map_err(|e| e.to_string())
}

fn job(spec: &Value) -> Result<Vec<Group>, String> {
    let mut groups = cluster(spec, "/rayClusterSpec")?;
    match spec["submissionMode"].as_str().unwrap_or_default() {
        "" | "K8sJobMode" => {
            let mut group = Group::new(SUBMITTER, 1, "/submitterPodTemplate");
            let mut container = submitter()?;
            // Admission writes this template into the spec, so it must be complete: the operator
            // only replaces a template that is absent.
            let head = spec.pointer("/rayClusterSpec/headGroupSpec/template/spec/containers/0/image");
            container.image = head.and_then(Value::as_str).map(str::to_owned);
            let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
            let template: PodTemplateSpec = berth_api::json::from_value(template).map_err(|e| e.to_string())?;
            group.default = Some(template);
            groups.push(group);
        }
        "SidecarMode" => groups[0].added.push(submitter()?),
        // The user submits the program.
        _ => {}
    }
    Ok(groups)
}

fn validate_cluster(cluster: &Value, elastic: bool, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    if cluster["enableInTreeAutoscaling"] == true && !elastic {
        let detail = "a kueue-managed RayCluster can use autoscaling only as an elastic job: enable the \
                      ElasticJobsViaWorkloadSlices feature gate and set the \"kueue.x-k8s.io/elastic-job\": \"true\" \
                      annotation";
        errors.push(Error::invalid(&path.child("enableInTreeAutoscaling"), true, detail));
    }
    let at = path.child("workerGroupSpecs");
    for (index, group) in cluster["workerGroupSpecs"].as_array().into_iter().flatten().enumerate() {
        let name = group["groupName"].as_str().unwrap_or_default();
        if name.eq_ignore_ascii_case(HEAD) {
            let at = at.index(index);
            let detail = "\"head\" is reserved for the head group";
            errors.push(Error::forbidden(&at.child("groupName"), detail));
        }
    }
    errors
}

fn validate_job(spec: &Value, elastic: bool, path: &Path<'_>) -> Vec<Error> {
    let at = path.child("rayClusterSpec");
    let selects = spec["clusterSelector"].as_object().is_some_and(|selector| !selector.is_empty());
    match (selects, spec["rayClusterSpec"].is_null()) {
        // The job uses an existing cluster, so it is not queued.
        (true, true) => return Vec::new(),
        (true, false) => {
            let detail = "a kueue managed job should not use an existing cluster";
            let selector = spec["clusterSelector"].clone();
            return vec![Error::invalid(&path.child("clusterSelector"), selector, detail)];
        }
        (false, true) => {
            let detail = "rayClusterSpec is required for Kueue-managed jobs that don't use clusterSelector";
            return vec![Error::required(&at, detail)];
        }
        (false, false) => {}
    }
    let mut errors = Vec::new();
    if spec["shutdownAfterJobFinishes"] != true {
        let detail = "a kueue managed job should delete the cluster after finishing";
        errors.push(Error::invalid(&path.child("shutdownAfterJobFinishes"), false, detail));
    }
    errors.extend(validate_cluster(&spec["rayClusterSpec"], elastic, &at));
    errors
}
