//! JobSets from creation to completion, over real Jobs and pods.

use berth_api::jobset::v1alpha2::{JobSet, JobSetStatus};
use berth_cluster::jobset::webhook::default_jobset;
use berth_cluster::{job, jobset};
use berth_runtime::Manager;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::world::{FATE, World, eventually};

fn install(manager: &mut Manager) {
    job::install(manager);
    jobset::install(manager);
}

/// A set of one driver and two workers of two pods each. The annotations of the replicated jobs
/// determine the fate of their pods.
async fn create(client: &Client, driver: &str, worker: &str, more: Value) {
    let entry = |name: &str, replicas: i32, pods: i32, fate: &str| {
        json!({"name": name, "replicas": replicas, "template": {"spec": {
            "parallelism": pods, "completions": pods, "backoffLimit": 0,
            "template": {
                "metadata": {"annotations": {FATE: fate}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}})
    };
    let mut set = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"},
        "spec": {"replicatedJobs": [entry("driver", 1, 1, driver), entry("worker", 2, 2, worker)]}});
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    default_jobset(&mut set);
    let set: JobSet = serde_json::from_value(set).unwrap();
    sets(client).create(&PostParams::default(), &set).await.unwrap();
}

fn sets(client: &Client) -> Api<JobSet> {
    Api::default_namespaced(client.clone())
}

async fn status(client: &Client) -> JobSetStatus {
    sets(client).get("s").await.unwrap().status.unwrap_or_default()
}

async fn has_ended(client: &Client) -> bool {
    !status(client).await.terminal_state.is_empty()
}

async fn job_list(client: &Client) -> Vec<Job> {
    Api::<Job>::default_namespaced(client.clone()).list(&ListParams::default()).await.unwrap().items
}

#[tokio::test(start_paused = true)]
async fn a_set_runs_its_jobs_and_completes() {
    let world = World::with_our_kinds().await;
    let client = world.client();
    create(&client, "20", "30", json!({})).await;
    world.run(install, async { eventually("the set ends", async || has_ended(&client).await).await }).await;
    let status = status(&client).await;
    assert_eq!(status.terminal_state, "Completed");
    let counts: Vec<_> =
        status.replicated_jobs_status.iter().map(|s| (s.name.as_str(), s.succeeded, s.active)).collect();
    assert_eq!(counts, [("driver", 1, 0), ("worker", 2, 0)]);
    assert_eq!(world.started.lock().unwrap().len(), 5);
    let service = Api::<Service>::default_namespaced(client.clone()).get("s").await.unwrap().spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let labels = pod.metadata.labels.unwrap();
        let key = |key: &str| labels[&format!("jobset.sigs.k8s.io/{key}")].clone();
        let stem = format!("s-{}-{}", key("replicatedjob-name"), key("job-index"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.subdomain.as_deref(), Some("s"));
        assert_eq!(spec.hostname.unwrap(), format!("{stem}-{}", labels["batch.kubernetes.io/job-completion-index"]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_set_restarts_as_often_as_it_may() {
    let world = World::with_our_kinds().await;
    let client = world.client();
    create(&client, "1000", "fail:10", json!({"failurePolicy": {"maxRestarts": 2}})).await;
    world.run(install, async { eventually("the set ends", async || has_ended(&client).await).await }).await;
    let status = status(&client).await;
    assert_eq!(status.terminal_state, "Failed");
    assert_eq!((status.restarts, status.restarts_count_towards_max), (2, 2));
    let failed = status.conditions.iter().find(|condition| condition.type_ == "Failed").unwrap();
    assert_eq!(failed.reason, "ReachedMaxRestarts");
    for job in job_list(&client).await {
        assert_eq!(job.metadata.labels.unwrap()["jobset.sigs.k8s.io/restart-attempt"], "2");
    }
    assert_eq!(world.started.lock().unwrap().len(), 3 * 5, "every attempt ran every pod once");
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_suspended_and_resumed_on_other_nodes_runs_its_pods_there() {
    let world = World::with_our_kinds().await;
    let client = world.client();
    create(&client, "60", "60", json!({"suspend": true})).await;
    let place = async |pool: Option<&str>| {
        let mut set = sets(&client).get("s").await.unwrap();
        set.spec.suspend = Some(pool.is_none());
        for entry in &mut set.spec.replicated_jobs {
            let pod = entry.template.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
            pod.node_selector = pool.map(|pool| [(format!("pool/{pool}"), "yes".to_owned())].into());
        }
        sets(&client).replace("s", &PostParams::default(), &set).await.unwrap();
    };
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let all_run_in = async |pool: &str| {
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        let there = |pod: &Pod| {
            let selector = pod.spec.as_ref().unwrap().node_selector.clone().unwrap_or_default();
            selector.into_keys().collect::<Vec<_>>() == [format!("pool/{pool}")]
        };
        pods.len() == 5 && pods.iter().all(there)
    };
    world
        .run(install, async {
            eventually("the jobs exist", async || job_list(&client).await.len() == 3).await;
            tokio::time::sleep(std::time::Duration::from_secs(10)).await;
            assert!(pods.list(&ListParams::default()).await.unwrap().items.is_empty());
            place(Some("spot")).await;
            eventually("all pods run in spot", async || all_run_in("spot").await).await;
            place(None).await;
            eventually("all pods are deleted", async || {
                pods.list(&ListParams::default()).await.unwrap().items.is_empty()
            })
            .await;
            place(Some("reserved")).await;
            eventually("all pods run in reserved", async || all_run_in("reserved").await).await;
            eventually("the set ends", async || has_ended(&client).await).await;
        })
        .await;
    assert_eq!(status(&client).await.terminal_state, "Completed");
}

#[tokio::test(start_paused = true)]
async fn a_finished_set_is_deleted_after_its_time_to_live() {
    let world = World::with_our_kinds().await;
    let client = world.client();
    create(&client, "5", "5", json!({"ttlSecondsAfterFinished": 60})).await;
    world
        .run(install, async {
            eventually("the set is going", async || {
                let set = sets(&client).get_opt("s").await.unwrap();
                set.is_none_or(|set| set.metadata.deletion_timestamp.is_some())
            })
            .await;
        })
        .await;
    let age = world.clock.now().duration_since("2026-01-01T00:00:00Z".parse().unwrap()).as_secs();
    assert!((65..70).contains(&age), "expected 5 s of work and 60 s of time to live, but it took {age} s");
}

#[tokio::test(start_paused = true)]
async fn a_set_of_another_controller_is_ignored() {
    let world = World::with_our_kinds().await;
    let client = world.client();
    create(&client, "5", "5", json!({"managedBy": "example.com/other"})).await;
    world.run(install, tokio::time::sleep(std::time::Duration::from_secs(60))).await;
    assert!(job_list(&client).await.is_empty());
    let patch = json!({"spec": {"managedBy": null}});
    sets(&client).patch("s", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    world.run(install, async { eventually("the set ends", async || has_ended(&client).await).await }).await;
}
