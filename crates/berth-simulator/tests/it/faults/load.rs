//! The cluster, the teams and the jobs of the week of faults.

use serde_json::{Value, json};

use crate::objects::Draw;

/// Namespaces of the teams, each with a ClusterQueue of the same name.
pub const TEAMS: [&str; 3] = ["blue", "green", "red"];
pub const SLACK_QUEUE: &str = "slack";
pub const FLAVOR: &str = "default-flavor";
pub const GPU: &str = "nvidia.com/gpu";
/// Label of all pods of a job, with the job's name.
pub const JOB: &str = "berth.test/job";
pub const NODES: [(&str, u64); 2] = [("reserved", 48), ("spot", 16)];
/// Maximum number of counted resets of an AppWrapper.
pub const RETRY_LIMIT: i64 = 3;
/// `backoffLimit` of Jobs.
pub const BACKOFF_LIMIT: i64 = 3;
/// GPUs that a team owns, and those that the slack queue lends.
const GPUS_OF_TEAM: u64 = 120;
const GPUS_OF_SLACK: u64 = 64;

/// Kinds of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An AppWrapper with a Job whose failed pods are not replaced.
    WrappedJob,
    /// An AppWrapper with a PyTorchJob.
    WrappedPyTorchJob,
    PyTorchJob,
    /// A Job that replaces disrupted pods, and failed ones up to its limit.
    Job,
}

/// A job of the load.
#[derive(Clone, Debug)]
pub struct Submission {
    pub hour: u64,
    pub name: String,
    pub namespace: &'static str,
    pub kind: Kind,
    pub pods: usize,
    /// True if its program fails.
    pub fails: bool,
    pub manifest: Value,
}

impl Submission {
    /// True for an AppWrapper.
    pub fn is_wrapper(&self) -> bool {
        matches!(self.kind, Kind::WrappedJob | Kind::WrappedPyTorchJob)
    }

    /// Kind of the queued object.
    pub fn object_kind(&self) -> &'static str {
        match self.kind {
            Kind::WrappedJob | Kind::WrappedPyTorchJob => "AppWrapper",
            Kind::PyTorchJob => "PyTorchJob",
            Kind::Job => "Job",
        }
    }
}

/// 64 nodes with eight GPUs and random faults. The cloud takes spot nodes back.
pub fn cluster(draw: &mut Draw) -> Value {
    let hours = |draw: &mut Draw, min, max| format!("{}h", draw.between(min, max));
    let faults = json!({
        "gpu": { "every": hours(draw, 100, 300), "duration": "6h" },
        "evict": { "every": hours(draw, 100, 200), "duration": "3h" },
        "notReady": { "every": hours(draw, 60, 120), "duration": format!("{}m", draw.between(3, 10)) },
        "stuckPods": { "every": hours(draw, 150, 300), "duration": format!("{}m", draw.between(10, 40)) },
    });
    let pools = NODES.map(|(pool, nodes)| {
        let mut pool = json!({
            "name": pool, "initialNodes": nodes, "maxNodes": nodes, "static": true, "faults": faults,
            "labels": { "nvidia.com/gpu.present": "true" },
            "machine": { "cpu": "224", "memory": "2000Gi", "accelerator": { "type": "nvidia-h100-80gb", "count": 8 } },
        });
        if pool["name"] == "spot" {
            let lifetime = hours(draw, 40, 120);
            pool["provisioning"] = json!("spot");
            pool["supply"] = json!({ "reclaim": { "meanLifetime": lifetime, "notice": "30s" } });
        }
        pool
    });
    json!({
        "nodePools": pools,
        "operators": {
            "slackQueue": SLACK_QUEUE,
            "autopilot": { "repeat": "2h", "invasive": "84h" },
            "appWrapperConfiguration": { "defaultQueueName": "default-queue" },
        },
    })
}

/// Kueue's configuration.
pub fn configuration() -> Value {
    json!({ "integrations": { "frameworks":
        ["batch/job", "kubeflow.org/pytorchjob", "workload.codeflare.dev/appwrapper"] } })
}

/// Namespaces and queues of the teams.
pub fn platform() -> Vec<Value> {
    let api = "kueue.x-k8s.io/v1beta2";
    let queue = |name: &str, gpus: u64| {
        let resources = json!([{ "name": "cpu", "nominalQuota": 5000 }, { "name": GPU, "nominalQuota": gpus }]);
        json!({
            "apiVersion": api, "kind": "ClusterQueue", "metadata": { "name": name },
            "spec": {
                "cohortName": "default-cohort", "namespaceSelector": {},
                "preemption": { "reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority" },
                "resourceGroups": [{ "coveredResources": ["cpu", GPU],
                    "flavors": [{ "name": FLAVOR, "resources": resources }] }],
            },
        })
    };
    let mut objects = vec![
        json!({ "apiVersion": api, "kind": "ResourceFlavor", "metadata": { "name": FLAVOR } }),
        queue(SLACK_QUEUE, GPUS_OF_SLACK),
    ];
    for team in TEAMS {
        objects.push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": team } }));
        objects.push(queue(team, GPUS_OF_TEAM));
        objects.push(json!({ "apiVersion": api, "kind": "LocalQueue",
            "metadata": { "name": "default-queue", "namespace": team }, "spec": { "clusterQueue": team } }));
    }
    objects
}

/// A job of random kind, team and size.
pub fn submission(number: u64, hours: u64, draw: &mut Draw) -> Submission {
    let kind = match draw.below(10) {
        0..=2 => Kind::WrappedJob,
        3..=6 => Kind::WrappedPyTorchJob,
        7 => Kind::PyTorchJob,
        _ => Kind::Job,
    };
    let (name, namespace) = (format!("job-{number}"), TEAMS[usize::try_from(draw.below(3)).unwrap_or(0)]);
    let (pods, gpus) = (draw.between(1, 6), [8, 8, 4][usize::try_from(draw.below(3)).unwrap_or(0)]);
    let fails = draw.below(12) == 0;
    let minutes = if fails { draw.between(2, 30) } else { draw.between(2 * 60, 24 * 60) };
    let mut annotations = json!({ "berth.dev/run-duration": format!("{minutes}m") });
    if fails {
        annotations["berth.dev/exit-code"] = json!("3");
    }
    // With OnFailure the kubelet would restart a failing program without an end.
    let restart = if fails { "Never" } else { "OnFailure" };
    let container = |name: &str| {
        json!({ "name": name, "image": "program",
            "resources": { "requests": { "cpu": "4" }, "limits": { GPU: gpus } } })
    };
    // The scheduler fills nodes one by one, and would leave those of the spot pool empty.
    let affinity = match draw.below(2) {
        0 => json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100,
            "preference": { "matchExpressions": [{ "key": "cloud.google.com/gke-spot", "operator": "Exists" }] } }] } }),
        _ => Value::Null,
    };
    let template = |container: Value| {
        json!({ "metadata": { "labels": { JOB: name }, "annotations": annotations },
            "spec": { "containers": [container], "affinity": affinity } })
    };
    let job = |limit: i64| {
        let mut template = template(container("main"));
        template["spec"]["restartPolicy"] = json!("Never");
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name },
            "spec": { "parallelism": pods, "completions": pods, "completionMode": "Indexed", "backoffLimit": limit,
                "podReplacementPolicy": "Failed", "template": template },
        })
    };
    let torch_job = || {
        let replicas = |count: u64| json!({ "replicas": count, "restartPolicy": restart, "template": template(container("pytorch")) });
        let mut replicas_of = json!({ "Master": replicas(1) });
        if pods > 1 {
            replicas_of["Worker"] = replicas(pods - 1);
        }
        json!({ "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": { "name": name },
            // By default, the other pods of a job that failed go on, without quota.
            "spec": { "runPolicy": { "cleanPodPolicy": "Running" }, "pytorchReplicaSpecs": replicas_of } })
    };
    let wrapper = |component: Value| {
        json!({ "apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": { "name": name },
            "spec": { "components": [{ "template": component }] } })
    };
    let mut manifest = match kind {
        Kind::WrappedJob => wrapper(job(0)),
        Kind::WrappedPyTorchJob => wrapper(torch_job()),
        Kind::PyTorchJob => torch_job(),
        Kind::Job => {
            let mut job = job(BACKOFF_LIMIT);
            job["spec"]["podFailurePolicy"] = json!({ "rules": [
                { "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }] });
            job
        }
    };
    manifest["metadata"]["namespace"] = json!(namespace);
    manifest["metadata"]["labels"] = json!({ "kueue.x-k8s.io/queue-name": "default-queue" });
    let pods = usize::try_from(pods).unwrap_or(1);
    Submission { hour: draw.below(hours), name, namespace, kind, pods, fails, manifest }
}
