//! Jobs from creation to completion.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use berth_apiserver::{InProcess, UserInfo};
use berth_cluster::job::facts::finished_condition;
use berth_cluster::{job, replicas};
use berth_runtime::Manager;
use http::{Method, Request};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::Service;

use crate::world::{CutWire, FATE, Loss, World, eventually};

fn manifest(name: &str, fate: &str, spec: Value) -> Job {
    let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec});
    job["spec"]["template"] = json!({
        "metadata": {"annotations": {FATE: fate}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    serde_json::from_value(job).unwrap()
}

fn jobs(client: &Client) -> Api<Job> {
    Api::default_namespaced(client.clone())
}

async fn status(client: &Client, name: &str) -> JobStatus {
    jobs(client).get(name).await.unwrap().status.unwrap_or_default()
}

async fn is_finished(client: &Client, name: &str) -> bool {
    finished_condition(&jobs(client).get(name).await.unwrap()).is_some()
}

async fn pods(client: &Client) -> Vec<Pod> {
    Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await.unwrap().items
}

#[tokio::test(start_paused = true)]
async fn a_job_runs_all_its_indexes_and_completes() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"completions": 5, "parallelism": 2, "completionMode": "Indexed"});
    jobs(&client).create(&PostParams::default(), &manifest("train", "30", spec)).await.unwrap();
    world
        .run(job::install, async {
            eventually("the job finishes", async || is_finished(&client, "train").await).await;
        })
        .await;
    let status = status(&client, "train").await;
    assert_eq!(status.succeeded, Some(5));
    assert_eq!(status.completed_indexes.as_deref(), Some("0-4"));
    assert_eq!((status.active, status.ready, status.failed), (None, Some(0), None));
    let took = status.completion_time.unwrap().0.duration_since(status.start_time.unwrap().0);
    assert!((90..95).contains(&took.as_secs()), "three rounds of 30 s took {took}");
    assert_eq!(world.started.lock().unwrap().len(), 5);
    for pod in pods(&client).await {
        assert!(pod.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty()), "every pod is counted");
        let name = pod.metadata.name.unwrap();
        let index = &pod.metadata.annotations.unwrap()["batch.kubernetes.io/job-completion-index"];
        assert!(name.starts_with(&format!("train-{index}-")), "{name}");
    }
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let mut reasons: Vec<String> =
        events.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|e| e.reason).collect();
    reasons.dedup();
    assert!(reasons.contains(&"SuccessfulCreate".to_owned()), "{reasons:?}");
    assert!(reasons.contains(&"Completed".to_owned()), "{reasons:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_job_backs_off_and_fails() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"backoffLimit": 2});
    jobs(&client).create(&PostParams::default(), &manifest("broken", "fail:1", spec)).await.unwrap();
    world
        .run(job::install, async {
            eventually("the job fails", async || is_finished(&client, "broken").await).await;
        })
        .await;
    let job = jobs(&client).get("broken").await.unwrap();
    assert_eq!(finished_condition(&job).unwrap().reason.as_deref(), Some("BackoffLimitExceeded"));
    let status = job.status.clone().unwrap();
    assert_eq!(status.failed, Some(3));
    assert_eq!(status.completion_time, None);
    let took = world.clock.now().duration_since(status.start_time.unwrap().0).as_secs();
    assert!((33..40).contains(&took), "1 + 10 + 1 + 20 + 1 seconds, took {took}");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_deletes_its_pods_and_starts_again_when_resumed() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"completions": 2, "parallelism": 2});
    jobs(&client).create(&PostParams::default(), &manifest("held", "60", spec)).await.unwrap();
    let suspend = async |suspend: bool| {
        let patch = json!({"spec": {"suspend": suspend}});
        jobs(&client).patch("held", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    };
    world
        .run(job::install, async {
            eventually("both pods run", async || status(&client, "held").await.ready == Some(2)).await;
            suspend(true).await;
            eventually("the pods are deleted", async || pods(&client).await.is_empty()).await;
            eventually("the status shows it", async || status(&client, "held").await.active.is_none()).await;
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert!(pods(&client).await.is_empty(), "a suspended job makes no pods");
            suspend(false).await;
            eventually("the job finishes", async || is_finished(&client, "held").await).await;
        })
        .await;
    let status = status(&client, "held").await;
    assert_eq!((status.succeeded, status.failed), (Some(2), None));
    let took = status.completion_time.unwrap().0.duration_since(status.start_time.unwrap().0).as_secs();
    assert!((60..65).contains(&took), "the start time is the resumption's, took {took}");
}

/// A client on a connection on which pods have succeeded by the time their finalizers are removed.
fn ends_first(connection: InProcess, pods: Api<Pod>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let name = request.uri().path().strip_prefix("/api/v1/namespaces/default/pods/").map(str::to_owned);
        let name = name.filter(|_| request.method() == Method::PATCH);
        let (mut connection, pods) = (connection.clone(), pods.clone());
        async move {
            if let Some(name) = name {
                let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
                pods.patch_status(&name, &PatchParams::default(), &ended).await.expect("the pod is there");
            }
            connection.call(request).await
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn pods_that_end_as_their_job_is_suspended_count() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"completions": 2, "parallelism": 2});
    jobs(&client).create(&PostParams::default(), &manifest("held", "3000", spec)).await.unwrap();
    let connection = world.server.in_process(UserInfo::master("job-controller"));
    world
        .run_over(ends_first(connection, Api::default_namespaced(client.clone())), job::install, async {
            eventually("both pods run", async || status(&client, "held").await.ready == Some(2)).await;
            for suspend in [true, false] {
                let patch = json!({"spec": {"suspend": suspend}});
                jobs(&client).patch("held", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            eventually("the job finishes", async || is_finished(&client, "held").await).await;
        })
        .await;
    assert_eq!(status(&client, "held").await.succeeded, Some(2));
    assert_eq!(world.started.lock().unwrap().len(), 2, "no pod is run again");
}

#[tokio::test(start_paused = true)]
async fn a_finished_job_is_deleted_after_its_time_to_live() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"ttlSecondsAfterFinished": 100});
    jobs(&client).create(&PostParams::default(), &manifest("brief", "5", spec)).await.unwrap();
    world
        .run(job::install, async {
            eventually("the job is going", async || {
                let job = jobs(&client).get_opt("brief").await.unwrap();
                job.is_none_or(|job| job.metadata.deletion_timestamp.is_some())
            })
            .await;
        })
        .await;
    let age = world.clock.now().duration_since("2026-01-01T00:00:00Z".parse().unwrap()).as_secs();
    assert!((105..110).contains(&age), "5 s of work and 100 s of rest, took {age}");
}

#[tokio::test(start_paused = true)]
async fn a_job_adopts_a_pod_without_a_controller_and_releases_one_with_other_labels() {
    let world = World::new().await;
    let client = world.client();
    let spec = json!({"completions": 2, "parallelism": 2});
    jobs(&client).create(&PostParams::default(), &manifest("left", "1000", spec)).await.unwrap();
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    world
        .run(job::install, async {
            eventually("both pods run", async || status(&client, "left").await.ready == Some(2)).await;
            let loose = pods(&client).await[0].metadata.name.clone().unwrap();
            let patch = json!({"metadata": {"ownerReferences": null}});
            api.patch(&loose, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            let metadata = async || api.get(&loose).await.unwrap().metadata;
            eventually("it is adopted", async || {
                let metadata = metadata().await;
                metadata.owner_references.is_some_and(|owners| owners[0].name == "left")
                    && metadata.finalizers.is_some_and(|finalizers| !finalizers.is_empty())
            })
            .await;
            assert_eq!(pods(&client).await.len(), 2, "no pod takes its place");
            let patch = json!({"metadata": {"labels": null}});
            api.patch(&loose, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
            eventually("another pod takes its place", async || pods(&client).await.len() == 3).await;
            let released = metadata().await;
            assert!(released.owner_references.is_none_or(|owners| owners.is_empty()));
            assert!(released.finalizers.is_none_or(|finalizers| finalizers.is_empty()));
            jobs(&client).delete("left", &DeleteParams::background()).await.unwrap();
            eventually("the pods have no finalizer", async || {
                let pods = pods(&client).await;
                pods.iter().all(|pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty))
            })
            .await;
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_job_with_hundreds_of_pods_is_not_written_for_each_of_them() {
    let world = World::new().await;
    let client = world.client();
    let writes_left = Arc::new(AtomicUsize::new(usize::MAX));
    let wire = CutWire {
        inner: world.server.in_process(UserInfo::master("test")),
        writes_left: writes_left.clone(),
        loss: Loss::Request,
        dead: Arc::default(),
    };
    let spec = json!({"completions": 300, "parallelism": 300, "completionMode": "Indexed"});
    jobs(&client).create(&PostParams::default(), &manifest("wide", "60", spec)).await.unwrap();
    world
        .run_over(Client::new(wire, "default"), job::install, async {
            eventually("the job finishes", async || is_finished(&client, "wide").await).await;
        })
        .await;
    let writes = usize::MAX - writes_left.load(std::sync::atomic::Ordering::SeqCst);
    let status_writes = writes - 300 - 300;
    assert!(status_writes < 40, "in addition to creating and counting each pod: {status_writes} writes");
    let job = jobs(&client).get("wide").await.unwrap();
    assert_eq!(job.status.unwrap().completed_indexes.as_deref(), Some("0-299"));
    assert_eq!(world.started.lock().unwrap().len(), 300);
}

/// The controller is killed at each of its writes in turn, with the request or only the response
/// lost, and starts again: every pod runs once and counts once.
#[tokio::test(start_paused = true)]
async fn a_controller_that_is_killed_at_any_write_neither_reruns_nor_recounts_a_pod() {
    for mode in ["NonIndexed", "Indexed"] {
        for loss in [Loss::Request, Loss::Answer] {
            let mut writes = 0;
            loop {
                let world = World::new().await;
                let client = world.client();
                let spec = json!({"completions": 3, "parallelism": 2, "completionMode": mode});
                jobs(&client).create(&PostParams::default(), &manifest("j", "10", spec)).await.unwrap();
                let dead = Arc::new(Notify::new());
                let wire = CutWire {
                    inner: world.server.in_process(UserInfo::master("test")),
                    writes_left: Arc::new(AtomicUsize::new(writes)),
                    loss,
                    dead: dead.clone(),
                };
                let died = Arc::new(AtomicUsize::new(0));
                world
                    .run_over(Client::new(wire, "default"), job::install, async {
                        tokio::select! {
                            biased;
                            () = dead.notified() => { died.store(1, std::sync::atomic::Ordering::SeqCst); }
                            () = eventually("the job finishes", async || is_finished(&client, "j").await) => {}
                        }
                    })
                    .await;
                let survived = died.load(std::sync::atomic::Ordering::SeqCst) == 0;
                world
                    .run(job::install, async {
                        eventually("the job finishes", async || is_finished(&client, "j").await).await;
                    })
                    .await;
                let status = status(&client, "j").await;
                assert_eq!((status.succeeded, status.failed), (Some(3), None), "{mode} {loss:?} {writes}");
                assert_eq!(world.started.lock().unwrap().len(), 3, "{mode} {loss:?} {writes}: a pod ran twice");
                if survived {
                    break;
                }
                writes += 1;
            }
            assert!(writes > 10, "the controller wrote {writes} times only");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn events_contain_the_apis_reason_for_rejecting_a_pod() {
    let world = World::new().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
        "restartPolicy": "Never", "priorityClassName": "none", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    let mut template = template;
    template["spec"]["restartPolicy"] = json!("Always");
    let selector = json!({"matchLabels": {"a": "b"}});
    let set = |name: &str| json!({"metadata": {"name": name}, "spec": {"selector": selector, "template": template}});
    let mut stateful = set("s");
    stateful["spec"]["serviceName"] = json!("s");
    let jobs: Api<Job> = Api::namespaced(world.client(), "default");
    let sets: Api<ReplicaSet> = Api::namespaced(world.client(), "default");
    let stateful_sets: Api<StatefulSet> = Api::namespaced(world.client(), "default");
    let events: Api<Event> = Api::namespaced(world.client(), "default");
    let until = async {
        jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
        sets.create(&PostParams::default(), &serde_json::from_value(set("r")).unwrap()).await.unwrap();
        stateful_sets.create(&PostParams::default(), &serde_json::from_value(stateful).unwrap()).await.unwrap();
        for name in ["j", "r", "s"] {
            let said = async || {
                let all = events.list(&ListParams::default()).await.unwrap();
                let of = |event: &&Event| event.involved_object.name.as_deref() == Some(name);
                let refused = |event: &&Event| event.reason.as_deref() == Some("FailedCreate");
                all.iter().filter(of).find(refused).and_then(|event| event.message.clone())
            };
            eventually("an event", async || said().await.is_some()).await;
            let message = said().await.unwrap();
            assert!(message.contains("is forbidden: no PriorityClass with name none was found"), "{message}");
            assert!(!message.contains("ApiError") && !message.contains("Status {"), "{message}");
        }
    };
    let install = |manager: &mut Manager| {
        job::install(manager);
        replicas::install(manager);
    };
    world.run(install, until).await;
}
