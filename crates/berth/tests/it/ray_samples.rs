//! A test of KubeRay's RayJob and RayCronJob samples (`../shared`): all except those marked
//! `Refused` are accepted and reach the state that their names promise. `behaviours.yaml` in the
//! same folder says how long their programs run.
//!
//! All samples run side by side in one cluster, each in a namespace of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use berth_testing::shared;
use serde_json::{Value, json};

/// Run time in seconds of a program that `behaviours.yaml` does not list.
const SECONDS_DEFAULT: u64 = 30;

/// What is expected of a sample.
enum Promise {
    /// The program succeeds.
    Succeeds,
    /// The program succeeds, and the cluster is then deleted.
    SucceedsAndShutsDown,
    /// The RayJob and all its objects are deleted in stages.
    DeletesItself,
    /// The user has to submit the program.
    Waits,
    /// The program succeeds on the cluster that the test creates.
    SucceedsOnExistingCluster,
    /// A RayJob starts every minute, and the first ones succeed.
    SucceedsEveryMinute,
    /// A RayJob starts once a day, and none starts during the test.
    IsScheduled,
    /// The sample cannot be applied, for this reason.
    Refused(&'static str),
}

use Promise::*;

/// Samples with a promise of their own. The programs of all others succeed.
const PROMISES: &[(&str, Promise)] = &[
    ("ray-job.deletion-rules.yaml", DeletesItself),
    ("ray-job.interactive-mode.yaml", Waits),
    ("ray-job.kueue-toy-sample.yaml", SucceedsAndShutsDown),
    ("ray-job.shutdown.yaml", SucceedsAndShutsDown),
    ("ray-job.use-existing-raycluster.yaml", SucceedsOnExistingCluster),
    ("ray-job.volcano-scheduler-queue.yaml", Refused("its Queue is a kind of Volcano")),
    ("pytorch-resnet-image-classifier/ray-job.pytorch-image-classifier.yaml", SucceedsAndShutsDown),
    ("pytorch-text-classifier/ray-job.pytorch-distributed-training.yaml", SucceedsAndShutsDown),
    ("ray-cronjob.sample.yaml", SucceedsEveryMinute),
    ("ray-cronjob-timezone.sample.yaml", IsScheduled),
];

fn promise(sample: &str) -> &'static Promise {
    PROMISES.iter().find(|(name, _)| *name == sample).map_or(&Succeeds, |(_, promise)| promise)
}

/// The samples of RayJobs and RayCronJobs, relative to `folder`.
fn samples(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).expect("a folder of samples") {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with("ray-job") || name.starts_with("ray-cronjob") {
                found.push(path.strip_prefix(folder).expect("below the folder").display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// Namespace of a sample.
fn namespace(sample: &str) -> String {
    let file = Path::new(sample).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    file.replace('.', "-").to_lowercase()
}

/// Seconds for which the program of a sample runs according to `behaviours.yaml`.
fn seconds(sample: &str, text: &str, behaviours: &Value) -> u64 {
    let path = format!("ray-operator/config/samples/{sample}");
    let behaviour = match &behaviours[&path] {
        Value::Null if text.contains("sample_code.py") => {
            let common = behaviours.as_object().into_iter().flatten();
            common.filter(|(name, _)| name.contains("sample_code.py")).map(|(_, it)| it).next().unwrap_or(&Value::Null)
        }
        known => known,
    };
    if behaviour.is_object() {
        assert_eq!(behaviour["rayJob"], "SUCCEEDED", "{sample}");
    }
    behaviour["afterSeconds"].as_u64().unwrap_or(SECONDS_DEFAULT)
}

/// The cluster: machines for all samples, and the run time of each program.
fn cluster(samples: &[(String, u64)]) -> Value {
    let pool = |name: &str, nodes: i32, rest: Value| {
        let mut pool = json!({"name": name, "initialNodes": nodes, "static": true});
        pool.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
        pool
    };
    let tpu = |name: &str, kind: &str, topology: &str, nodes: i32| {
        let accelerator = json!({"type": kind, "count": 4, "topology": topology});
        pool(name, nodes, json!({"machine": {"cpu": "180", "memory": "720Gi", "accelerator": accelerator}}))
    };
    let gpu = |name: &str, kind: &str, nodes: i32| {
        let accelerator = json!({"type": kind, "count": 4});
        pool(name, nodes, json!({"machine": {"cpu": "64", "memory": "256Gi", "accelerator": accelerator}}))
    };
    let pools = [
        pool("default-pool", 6, json!({"machine": {"cpu": "64", "memory": "256Gi"}})),
        gpu("t4-pool", "nvidia-tesla-t4", 2),
        gpu("l4-pool", "nvidia-l4", 4),
        tpu("v4-pool", "tpu-v4-podslice", "2x2x1", 1),
        tpu("v6e-1-pool", "tpu-v6e-slice", "2x2", 1),
        tpu("v6e-16-pool", "tpu-v6e-slice", "4x4", 4),
        tpu("v6e-256-pool", "tpu-v6e-slice", "16x16", 64),
    ];
    let of_jobs = json!({"matchExpressions": [{"key": "batch.kubernetes.io/job-name", "operator": "Exists"}]});
    let rules: Vec<Value> = samples
        .iter()
        .map(|(sample, seconds)| {
            json!({"namespaces": [namespace(sample)], "selector": of_jobs, "duration": format!("{seconds}s")})
        })
        .collect();
    json!({"nodePools": pools, "pods": {"rules": rules, "defaultDuration": "30s"}})
}

/// Objects that the samples need: their namespaces, a queue for the Kueue sample, and the service
/// account and the RayCluster that two other samples use.
fn surroundings(samples: &[String], folder: &Path) -> Vec<Value> {
    let mut objects: Vec<Value> = samples
        .iter()
        .map(|sample| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(sample)}}))
        .collect();
    let queueing = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec});
    let resources = json!([{"name": "cpu", "nominalQuota": 9}, {"name": "memory", "nominalQuota": "36Gi"}]);
    let flavors = json!([{"name": "default-flavor", "resources": resources}]);
    let groups = json!([{"coveredResources": ["cpu", "memory"], "flavors": flavors}]);
    let toy = namespace("ray-job.kueue-toy-sample.yaml");
    objects.push(queueing("ResourceFlavor", json!({"name": "default-flavor"}), json!({})));
    objects.push(queueing(
        "ClusterQueue",
        json!({"name": "cluster-queue"}),
        json!({"namespaceSelector": {}, "resourceGroups": groups}),
    ));
    objects.push(queueing(
        "LocalQueue",
        json!({"name": "user-queue", "namespace": toy}),
        json!({"clusterQueue": "cluster-queue"}),
    ));
    objects.push(json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "pytorch-distributed-training", "namespace": "ray-job-pytorch-image-classifier"},
    }));
    let text = std::fs::read_to_string(folder.join("ray-cluster.sample.yaml")).expect("the sample of a RayCluster");
    let mut cluster: Value = serde_saphyr::from_str(&text).expect("YAML");
    cluster["metadata"] =
        json!({"name": "ray-cluster-kuberay", "namespace": namespace("ray-job.use-existing-raycluster.yaml")});
    objects.push(cluster);
    objects
}

/// The expectations of a sample.
fn expectations(sample: &str) -> Vec<Value> {
    let namespace = namespace(sample);
    let count = |that: &str, within: &str, of: &str, fields: Value, is: Value| {
        let mut conditions = json!({"metadata.namespace": namespace});
        conditions.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        let title = format!("{sample}: {that}");
        json!({"that": title, "within": within, "count": {"of": of, "where": conditions, "is": is}})
    };
    let succeeds = || {
        let fields = json!({"status.jobStatus": "SUCCEEDED", "status.jobDeploymentStatus": "Complete"});
        count("its program succeeds", "30m", "rayjobs", fields, json!(1))
    };
    match promise(sample) {
        Succeeds | SucceedsOnExistingCluster => vec![succeeds()],
        SucceedsAndShutsDown => {
            vec![succeeds(), count("its cluster is deleted", "2m", "rayclusters", json!({}), json!(0))]
        }
        DeletesItself => vec![
            count("it is deleted in the end", "5m", "rayjobs", json!({}), json!(0)),
            count("its cluster is deleted", "1m", "rayclusters", json!({}), json!(0)),
        ],
        Waits => {
            let fields = json!({"status.jobDeploymentStatus": "Waiting"});
            vec![count("it waits for the user", "5m", "rayjobs", fields, json!(1))]
        }
        SucceedsEveryMinute => {
            let fields = json!({"status.jobStatus": "SUCCEEDED"});
            vec![count("three of its RayJobs succeed", "10m", "rayjobs", fields, json!({"atLeast": 3}))]
        }
        IsScheduled => vec![count("no RayJob is due", "1m", "rayjobs", json!({}), json!(0))],
        Refused(_) => Vec::new(),
    }
}

fn write_scenario(folder: &Path, samples: &[String], behaviours: &Value) -> (tempfile::TempDir, PathBuf) {
    let timed: Vec<(String, u64)> = samples
        .iter()
        .map(|sample| {
            let text = std::fs::read_to_string(folder.join(sample)).expect("a sample");
            (sample.clone(), seconds(sample, &text, behaviours))
        })
        .collect();
    let creates = samples.iter().map(|sample| json!({"create": {"files": [sample], "namespace": namespace(sample)}}));
    let mut actions = vec![json!({"create": {"objects": surroundings(samples, folder)}})];
    actions.extend(creates);
    let expected: Vec<Value> = samples.iter().flat_map(|sample| expectations(sample)).collect();
    let scenario = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "kuberay-samples"},
        "spec": {
            "seed": 1, "start": "2026-01-05T09:00:00Z", "manifests": folder, "cluster": cluster(&timed),
            "steps": [{"name": "samples", "do": actions, "expect": expected}],
        },
    });
    let target = tempfile::tempdir().expect("a temporary folder");
    let path = target.path().join("scenario.yaml");
    std::fs::write(&path, scenario.to_string()).expect("the scenario can be written");
    (target, path)
}

#[test]
fn the_samples_of_kuberay_reach_the_state_their_names_promise() {
    let Some(root) = shared("scenarios/upstream-samples/kuberay") else { return };
    let folder = root.join("ray-operator/config/samples");
    let behaviours = std::fs::read_to_string(root.join("behaviours.yaml")).expect("behaviours.yaml");
    let behaviours: Value = serde_saphyr::from_str(&behaviours).expect("YAML");
    let mut all = samples(&folder);
    assert!(all.len() > 20, "{all:?}");
    all.retain(|sample| match promise(sample) {
        Refused(reason) => {
            println!("not applied: {sample}: {reason}");
            false
        }
        _ => true,
    });
    let (_kept, path) = write_scenario(&folder, &all, &behaviours);
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("run").arg(&path).output().expect("berth runs");
    let report = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{report}");
}
