//! CronJobs start each of their Jobs once, at its time.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use berth_apiserver::UserInfo;
use berth_cluster::{cron_job, job};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::world::{CutWire, FATE, Loss, World, eventually};

fn report(spec: Value, seconds: u32) -> CronJob {
    let pod = json!({"metadata": {"annotations": {FATE: seconds.to_string()}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}});
    let mut full = json!({"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": pod}}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "report"}, "spec": full})).unwrap()
}

fn install(manager: &mut berth_runtime::Manager) {
    cron_job::install(manager);
    job::install(manager);
}

async fn names(client: &Client) -> Vec<String> {
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    jobs.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect()
}

/// Job names contain the minutes of Unix time at which the clocks of the tests begin.
const MIDNIGHT: i64 = 29_453_760;

fn at_minutes(minutes: &[i64]) -> Vec<String> {
    minutes.iter().map(|minute| format!("report-{}", MIDNIGHT + minute)).collect()
}

#[tokio::test(start_paused = true)]
async fn jobs_start_at_their_times_and_old_ones_are_deleted() {
    let world = World::new().await;
    let cron_jobs: Api<CronJob> = Api::default_namespaced(world.client());
    let until = async {
        cron_jobs.create(&PostParams::default(), &report(json!({"successfulJobsHistoryLimit": 2}), 60)).await.unwrap();
        eventually("four starts", async || names(&world.client()).await == at_minutes(&[10, 15, 20])).await;
        let status = cron_jobs.get("report").await.unwrap().status.unwrap();
        assert_eq!(status.last_schedule_time.unwrap().0, "2026-01-01T00:20:00Z".parse().unwrap());
        assert_eq!(status.active.unwrap()[0].name.as_deref(), Some("report-29453780"));
        assert_eq!(status.last_successful_time.unwrap().0, "2026-01-01T00:16:00Z".parse().unwrap());
        let suspend = json!({"spec": {"suspend": true}});
        cron_jobs.patch("report", &PatchParams::default(), &Patch::Merge(&suspend)).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        assert_eq!(names(&world.client()).await, at_minutes(&[15, 20]), "a suspended CronJob starts nothing");
        let events: Api<Event> = Api::default_namespaced(world.client());
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let of = |reason: &str| {
            let events = events.iter().filter(|it| it.involved_object.kind.as_deref() == Some("CronJob"));
            events.filter(|event| event.reason.as_deref() == Some(reason)).count()
        };
        assert_eq!([of("SuccessfulCreate"), of("SawCompletedJob"), of("SuccessfulDelete")], [4, 4, 2]);
    };
    world.run(install, until).await;
}

#[tokio::test(start_paused = true)]
async fn a_running_job_delays_or_is_replaced_by_the_next() {
    for (policy, expected) in [("Forbid", at_minutes(&[5, 10])), ("Replace", at_minutes(&[10]))] {
        let world = World::new().await;
        let cron_jobs: Api<CronJob> = Api::default_namespaced(world.client());
        let until = async {
            let cron_job = report(json!({"concurrencyPolicy": policy}), 7 * 60);
            cron_jobs.create(&PostParams::default(), &cron_job).await.unwrap();
            eventually("the second start", async || names(&world.client()).await.last() == at_minutes(&[10]).last())
                .await;
            eventually("the Jobs of the policy", async || names(&world.client()).await == expected).await;
            let minute = (world.clock.now().as_second() / 60) - MIDNIGHT;
            assert_eq!(minute, if policy == "Forbid" { 12 } else { 10 }, "{policy}");
        };
        world.run(install, until).await;
    }
}

/// The controller's process ends at each of its writes, before or after the server has seen the
/// write. Another process continues.
#[tokio::test(start_paused = true)]
async fn no_start_is_lost_or_doubled_when_the_controller_is_killed() {
    for loss in [Loss::Request, Loss::Answer] {
        for writes in 0..6 {
            let world = World::new().await;
            let cron_jobs: Api<CronJob> = Api::default_namespaced(world.client());
            let cron_job = report(json!({"concurrencyPolicy": "Forbid"}), 30);
            cron_jobs.create(&PostParams::default(), &cron_job).await.unwrap();
            let dead = Arc::new(Notify::new());
            let wire = CutWire {
                inner: world.server.in_process(UserInfo::master("first")),
                writes_left: Arc::new(AtomicUsize::new(writes)),
                loss,
                dead: dead.clone(),
            };
            world.run_over(Client::new(wire, "default"), install, async { dead.notified().await }).await;
            let until = async {
                eventually("all starts", async || {
                    let status = cron_jobs.get("report").await.unwrap().status.unwrap_or_default();
                    status.last_schedule_time.is_some_and(|at| at.0 >= "2026-01-01T00:10:00Z".parse().unwrap())
                })
                .await;
                assert_eq!(names(&world.client()).await, at_minutes(&[5, 10]), "{loss:?} after {writes} writes");
                eventually("both Jobs' pods", async || world.started.lock().unwrap().len() == 2).await;
            };
            world.run(install, until).await;
        }
    }
}
