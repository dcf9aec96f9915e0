//! Kinds of other projects: queued while the cluster serves them, regardless of the other fields of
//! their specs.

use berth_apimachinery::exposition::Exposition;
use berth_controllers::{Config, Gate, Gates};
use berth_runtime::Manager;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PostParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, condition};

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";
/// Time in which a new kind is watched.
const UNTIL_SEEN: u64 = 2;

async fn with_queue(cluster: &Cluster) {
    cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    let flavor = json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "spot"},
        "spec": {"nodeLabels": {"pool": "spot"}}});
    cluster.create(flavor).await;
    let queue = json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": {
        "namespaceSelector": {}, "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [
            {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]}]}});
    cluster.create(queue).await;
    let local = json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "team"},
        "spec": {"clusterQueue": "cq"}});
    cluster.create(local).await;
}

async fn define(cluster: &Cluster, kind: &str) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut all = berth_api::frameworks::crds().into_iter().chain(berth_api::crds().iter().cloned());
    let definition = all.find(|definition| definition["spec"]["names"]["kind"] == kind).unwrap();
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    definitions.create(&PostParams::default(), &definition).await.unwrap();
    cluster.pass(UNTIL_SEEN).await;
}

async fn undefine(cluster: &Cluster, name: &str) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
    cluster.pass(UNTIL_SEEN).await;
}

fn template() -> Value {
    json!({"spec": {"containers": [
        {"name": "pytorch", "image": "train", "resources": {"requests": {"cpu": "1"}}, "aFieldOfTomorrow": 1}]}})
}

#[tokio::test(start_paused = true)]
async fn a_training_job_is_queued_once_its_kind_appears() {
    let cluster = Cluster::start(Config::default()).await;
    with_queue(&cluster).await;
    cluster.pass(1).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    assert_eq!(condition(&queue, "Active"), "True/Ready", "queues work in a cluster without any of these kinds");
    define(&cluster, "PyTorchJob").await;
    let job = json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": "train", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"runPolicy": {"suspend": true}, "nprocPerNode": "auto", "pytorchReplicaSpecs": {
            "Master": {"template": template()}, "Worker": {"replicas": 3, "template": template()}}}});
    let job = cluster.create(job).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted", "{workload:#}");
    let sets = workload["spec"]["podSets"].as_array().unwrap();
    let sizes: Vec<_> = sets.iter().map(|set| (set["name"].as_str().unwrap(), set["count"].clone())).collect();
    assert_eq!(sizes, [("master", json!(1)), ("worker", json!(3))]);
    let running = cluster.get("kubeflow.org/v1", "PyTorchJob", Some("team"), "train").await;
    assert_eq!(running["spec"]["runPolicy"]["suspend"], false, "{running:#}");
    let worker = &running["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"];
    assert_eq!(worker["nodeSelector"], json!({"pool": "spot"}));
    assert_eq!(worker["containers"][0]["aFieldOfTomorrow"], 1, "unknown fields are kept");
    let succeeded = json!([{"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done",
        "lastTransitionTime": "2026-01-01T00:10:00Z"}]);
    cluster.patch_status(&job, json!({"status": {"conditions": succeeded}})).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "train").await;
    assert_eq!(condition(&workload, "Finished"), "True/Succeeded");
}

#[tokio::test(start_paused = true)]
async fn a_spark_application_runs_on_its_flavors_and_is_restored_when_it_is_stopped() {
    let mut config =
        Config { feature_gates: Gates::default().with(Gate::SparkApplicationIntegration, true), ..Config::default() };
    config.integrations.frameworks.push("sparkoperator.k8s.io/sparkapplication".to_owned());
    let cluster = Cluster::start(config).await;
    with_queue(&cluster).await;
    define(&cluster, "SparkApplication").await;
    let spec = json!({"type": "Scala", "mode": "cluster", "sparkVersion": "4.0.0", "suspend": true,
        "driver": {"coreRequest": "1"}, "executor": {"instances": 2, "coreRequest": "1", "cores": 1}});
    let application = json!({"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": {"name": "pi", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": spec.clone()});
    let application = cluster.create(application).await;
    cluster.pass(2).await;
    let now = async || cluster.get("sparkoperator.k8s.io/v1beta2", "SparkApplication", Some("team"), "pi").await;
    let workload = cluster.workload_of("team", "pi").await;
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted", "{workload:#}");
    assert_eq!(workload["status"]["admission"]["podSetAssignments"][1]["resourceUsage"]["cpu"], "2");
    let running = now().await;
    assert_eq!(running["spec"]["suspend"], false, "{running:#}");
    for role in ["driver", "executor"] {
        assert_eq!(running["spec"][role]["nodeSelector"], json!({"pool": "spot"}), "{role}");
        assert_eq!(running["spec"][role]["labels"]["kueue.x-k8s.io/podset"], role);
    }
    assert_eq!(running["spec"]["executor"]["cores"], 1, "other fields are kept");
    cluster.pass(30).await;
    assert_eq!(now().await["spec"]["suspend"], false, "the running application matches its Workload");

    cluster.patch(&workload, json!({"spec": {"active": false}})).await;
    cluster.pass(2).await;
    assert_eq!(now().await["spec"], spec, "only what admission added was removed");

    let workload = cluster.workload_of("team", "pi").await;
    cluster.patch(&workload, json!({"spec": {"active": true}})).await;
    cluster.pass(2).await;
    let ended = json!({"status": {"applicationState": {"state": "FAILED", "errorMessage": "driver failed"}}});
    cluster.patch_status(&application, ended).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "pi").await;
    assert_eq!(condition(&workload, "Finished"), "True/Failed", "{workload:#}");
}

const JOB_SETS: &str = "jobsets.jobset.x-k8s.io";

async fn job_set(cluster: &Cluster, name: &str) -> Value {
    let set = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "replicatedJobs": [{"name": "a", "template": {"spec": {"parallelism": 3,
            "template": {"spec": {"restartPolicy": "Never", "containers": [
                {"name": "c", "image": "train", "resources": {"requests": {"cpu": "1"}}}]}}}}}]}});
    let set = cluster.create(set).await;
    cluster.pass(2).await;
    set
}

/// `spec.suspend` of a JobSet, and its workload's condition Admitted.
async fn of_job_set(cluster: &Cluster, name: &str) -> (Value, String) {
    let set = cluster.get("jobset.x-k8s.io/v1alpha2", "JobSet", Some("team"), name).await;
    (set["spec"]["suspend"].clone(), condition(&cluster.workload_of("team", name).await, "Admitted"))
}

/// Sets whether the watched version of JobSets is served.
async fn serve_job_sets(cluster: &Cluster, served: bool) {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut definition = berth_api::crds().iter().find(|it| it["metadata"]["name"] == JOB_SETS).unwrap().clone();
    definition["spec"]["versions"][0]["served"] = json!(served);
    let patch = json!({"spec": {"versions": definition["spec"]["versions"]}});
    definitions.patch(JOB_SETS, &Default::default(), &Patch::Merge(&patch)).await.unwrap();
    cluster.pass(UNTIL_SEEN).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_listed_at_the_start_do_not_count_as_deleted() {
    let (cluster, manager) = Cluster::without_controllers(Config::default()).await;
    let first = tokio::spawn(manager.run(std::future::pending()));
    with_queue(&cluster).await;
    let set = job_set(&cluster, "runs").await;
    assert_eq!(of_job_set(&cluster, "runs").await, (json!(false), "True/Admitted".to_owned()));
    first.abort();
    serve_job_sets(&cluster, false).await;

    let mut manager = Manager::new(cluster.client.clone(), cluster.clock.clone());
    berth_controllers::install(&mut manager, Config::default());
    tokio::spawn(manager.run(std::future::pending()));
    cluster.pass(30).await;
    let workload = cluster.workload_of("team", "runs").await;
    assert_eq!((&*condition(&workload, "Admitted"), &*condition(&workload, "Finished")), ("True/Admitted", "absent"));

    serve_job_sets(&cluster, true).await;
    cluster.delete(&set).await;
    cluster.pass(15).await;
    let workload = cluster.workload_of("team", "runs").await;
    let ended = workload.is_null() || condition(&workload, "Finished").starts_with("True/");
    assert!(ended, "{workload:#}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_removed_and_added_again_is_queued_whenever_it_is_served() {
    let (cluster, manager) = Cluster::without_controllers(Config::default()).await;
    undefine(&cluster, JOB_SETS).await;
    let kinds = manager.kinds();
    let text = || Exposition::text(|exposition| kinds.write(exposition));
    let served = || text().contains("berth_kind_served{group=\"jobset.x-k8s.io\",resource=\"jobsets\"} 1\n");
    let caches = manager.cache_state();
    tokio::spawn(manager.run(std::future::pending()));
    with_queue(&cluster).await;
    cluster.pass(2).await;
    assert!(!served() && caches.pending().is_empty(), "{:?}", caches.pending());

    let admitted = (json!(false), "True/Admitted".to_owned());
    define(&cluster, "JobSet").await;
    assert!(served());
    job_set(&cluster, "first").await;
    assert_eq!(of_job_set(&cluster, "first").await, admitted);

    // Deleting the definition deletes its objects and releases their quota, even if a watch is
    // interrupted at that time.
    undefine(&cluster, JOB_SETS).await;
    assert!(!served() && caches.pending().is_empty());
    cluster.pass(5).await;
    let queue = cluster.get(KUEUE, "ClusterQueue", None, "cq").await;
    let used = &queue["status"]["flavorsUsage"][0]["resources"][0]["total"];
    assert!(used == "0" || used.is_null(), "{queue:#}");

    // An object created before the controllers watch the kind again is queued.
    define(&cluster, "JobSet").await;
    let second = job_set(&cluster, "second").await;
    assert_eq!(of_job_set(&cluster, "second").await, admitted);

    // A definition that stops serving the version does not affect running objects.
    serve_job_sets(&cluster, false).await;
    assert!(!served());
    let kept = cluster.workload_of("team", "second").await;
    assert_eq!(condition(&kept, "Admitted"), "True/Admitted", "{kept:#}");
    serve_job_sets(&cluster, true).await;
    assert!(served());
    assert_eq!(cluster.workload_of("team", "second").await["metadata"]["uid"], kept["metadata"]["uid"]);
    cluster.delete(&second).await;
    cluster.pass(2).await;
    let third = job_set(&cluster, "third").await;
    assert_eq!(of_job_set(&cluster, "third").await, admitted, "{third:#}");
}

#[tokio::test(start_paused = true)]
async fn a_wrapper_that_does_not_fit_is_pending_and_its_job_stays_suspended() {
    let cluster = Cluster::start(Config::default()).await;
    with_queue(&cluster).await;
    define(&cluster, "AppWrapper").await;
    let wrapped = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inner"},
        "spec": {"parallelism": 8, "template": template()}});
    let wrapper = json!({"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
        "metadata": {"name": "big", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "components": [{"template": wrapped}]}});
    let wrapper = cluster.create(wrapper).await;
    // A child job that was created too early is suspended with the wrapper.
    let inner = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "inner", "namespace": "team",
        "ownerReferences": [{"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "big",
            "uid": wrapper["metadata"]["uid"], "controller": true}]},
        "spec": {"parallelism": 8, "template": {"spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "train"}]}}}});
    cluster.create(inner).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "big").await;
    assert_eq!(workload["spec"]["podSets"][0]["name"], "big-0");
    assert_eq!(workload["spec"]["podSets"][0]["count"], 8);
    assert!(condition(&workload, "QuotaReserved").starts_with("False/"), "{workload:#}");
    let inner = cluster.get("batch/v1", "Job", Some("team"), "inner").await;
    assert_eq!(inner["spec"]["suspend"], true);
    let wrapper = cluster.get("workload.codeflare.dev/v1beta2", "AppWrapper", Some("team"), "big").await;
    assert_eq!(wrapper["spec"]["suspend"], true);
}

const TRAINER: &str = "trainer.kubeflow.org/v1alpha1";

#[tokio::test(start_paused = true)]
async fn a_train_job_requests_what_its_runtime_defines_and_its_job_set_is_not_queued() {
    let cluster = Cluster::start(Config::default()).await;
    with_queue(&cluster).await;
    define(&cluster, "TrainJob").await;
    define(&cluster, "ClusterTrainingRuntime").await;
    let job = json!({"apiVersion": TRAINER, "kind": "TrainJob",
        "metadata": {"name": "tune", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2},
            "runtimePatches": [{"manager": "kueue.x-k8s.io/manager"}]}});
    let job = cluster.create(job).await;
    cluster.pass(2).await;
    let all = cluster.list("kueue.x-k8s.io/v1beta2", "Workload", "team").await;
    assert!(all.is_empty(), "its pod sets are unknown without the runtime: {all:#?}");
    let container = json!({"name": "node", "image": "torch", "resources": {"requests": {"cpu": "1"}}});
    let node = json!({"name": "node", "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}});
    let runtime = json!({"apiVersion": TRAINER, "kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}});
    let runtime = cluster.create(runtime).await;
    cluster.pass(2).await;
    let workload = cluster.workload_of("team", "tune").await;
    assert_eq!(
        (&workload["spec"]["podSets"][0]["name"], &workload["spec"]["podSets"][0]["count"]),
        (&json!("node"), &json!(2))
    );
    assert_eq!(condition(&workload, "Admitted"), "True/Admitted", "{workload:#}");
    let running = cluster.get(TRAINER, "TrainJob", Some("team"), "tune").await;
    assert_eq!(running["spec"]["suspend"], false);
    let selector = "/spec/runtimePatches/0/trainingRuntimeSpec/template/spec/replicatedJobs/0/template/spec/template/spec/nodeSelector";
    assert_eq!(running.pointer(selector), Some(&json!({"pool": "spot"})));
    // The JobSet that Trainer creates is part of the TrainJob.
    let owner = json!({"apiVersion": TRAINER, "kind": "TrainJob", "name": "tune", "uid": job["metadata"]["uid"], "controller": true});
    let child = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "tune", "namespace": "team", "ownerReferences": [owner]},
        "spec": {"suspend": false, "replicatedJobs": [{"name": "node", "template": {"spec": {"parallelism": 2,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}}]}});
    cluster.create(child).await;
    cluster.pass(2).await;
    assert_eq!(cluster.list("kueue.x-k8s.io/v1beta2", "Workload", "team").await.len(), 1);
    // The job's pods exist, so a change to the runtime affects later jobs only.
    let more = json!({"name": "node", "image": "other", "resources": {"requests": {"cpu": "2"}}});
    let mut edited = runtime["spec"].clone();
    *edited.pointer_mut("/template/spec/replicatedJobs/0/template/spec/template/spec/containers/0").unwrap() = more;
    cluster.patch(&runtime, json!({"spec": edited})).await;
    cluster.pass(2).await;
    let unmoved = cluster.get(TRAINER, "TrainJob", Some("team"), "tune").await;
    assert_eq!(unmoved["spec"]["suspend"], false, "it keeps running");
    let kept = cluster.workload_of("team", "tune").await;
    assert_eq!((&kept["metadata"]["uid"], &kept["spec"]), (&workload["metadata"]["uid"], &workload["spec"]));
    assert_eq!(condition(&kept, "Admitted"), "True/Admitted");
    // Completion does not need the runtime either.
    cluster.delete(&runtime).await;
    cluster.pass(2).await;
    // After an eviction the job is suspended at once; its patch is removed when no pod runs any
    // more.
    let active = |count: i32| json!({"status": {"jobsStatus": [{"name": "node", "active": count, "ready": count, "succeeded": 0, "failed": 0, "suspended": 0}]}});
    cluster.patch_status(&job, active(1)).await;
    cluster.patch(&workload, json!({"spec": {"active": false}})).await;
    cluster.pass(2).await;
    let stopping = cluster.get(TRAINER, "TrainJob", Some("team"), "tune").await;
    assert_eq!(stopping["spec"]["suspend"], true);
    assert!(stopping.pointer(selector).is_some());
    assert_eq!(condition(&cluster.workload_of("team", "tune").await, "QuotaReserved"), "True/QuotaReserved");
    cluster.patch_status(&job, active(0)).await;
    cluster.pass(2).await;
    let stopped = cluster.get(TRAINER, "TrainJob", Some("team"), "tune").await;
    assert_eq!(stopped["spec"]["runtimePatches"], json!([{"manager": "kueue.x-k8s.io/manager"}]));
    assert!(condition(&cluster.workload_of("team", "tune").await, "QuotaReserved").starts_with("False/"));
}

#[tokio::test(start_paused = true)]
async fn a_train_job_ends_without_its_runtime() {
    let cluster = Cluster::start(Config::default()).await;
    with_queue(&cluster).await;
    define(&cluster, "TrainJob").await;
    define(&cluster, "ClusterTrainingRuntime").await;
    let container = json!({"name": "node", "image": "torch", "resources": {"requests": {"cpu": "1"}}});
    let node = json!({"name": "node", "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}}});
    let runtime = json!({"apiVersion": TRAINER, "kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"},
        "spec": {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}});
    let runtime = cluster.create(runtime).await;
    let job = json!({"apiVersion": TRAINER, "kind": "TrainJob",
        "metadata": {"name": "tune", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "runtimeRef": {"name": "torch"},
            "runtimePatches": [{"manager": "kueue.x-k8s.io/manager"}]}});
    let job = cluster.create(job).await;
    cluster.pass(2).await;
    assert_eq!(condition(&cluster.workload_of("team", "tune").await, "Admitted"), "True/Admitted");
    cluster.delete(&runtime).await;
    cluster.pass(2).await;
    assert_eq!(condition(&cluster.workload_of("team", "tune").await, "Admitted"), "True/Admitted", "it keeps running");
    let complete = json!({"type": "Complete", "status": "True", "reason": "JobsCompleted", "message": "done",
        "lastTransitionTime": "2026-01-01T00:00:10Z"});
    cluster.patch_status(&job, json!({"status": {"conditions": [complete]}})).await;
    cluster.pass(2).await;
    assert_eq!(condition(&cluster.workload_of("team", "tune").await, "Finished"), "True/Succeeded");
}
