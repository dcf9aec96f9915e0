//! Number of writes of the controllers by kind, over the life of a workload. On an API server that
//! many programs share, each of them counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_controllers::execute::{Part, patch};
use berth_controllers::workload::status;
use berth_controllers::{Config, Gates};
use berth_runtime::{Clock, ObjectKey};
use futures::StreamExt;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::{Cluster, Write, condition};
use crate::queueing::{KUEUE, cluster_queue, job, local_queue, team};

/// A queue with two CPUs, whose jobs of high priority preempt others.
async fn queue(cluster: &Cluster) {
    team(cluster).await;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    cluster.create(cluster_queue("cq", "2", preemption)).await;
    cluster.create(local_queue("lq", "cq")).await;
    let class =
        json!({"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100});
    cluster.create(class).await;
    cluster.pass(2).await;
    cluster.writes.lock().unwrap().clear();
}

fn urgent(name: &str) -> Value {
    let mut job = job(name, "lq", "2");
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("high");
    job
}

/// Sets the number of active pods of a job.
async fn run_pods(cluster: &Cluster, job: &Value, active: u32) {
    let mut status = json!({"active": active, "ready": active});
    if active > 0 {
        status["startTime"] = json!("2026-01-01T00:00:01Z");
    }
    cluster.patch_status(job, json!({"status": status})).await;
}

async fn complete(cluster: &Cluster, job: &Value) {
    let done = json!([{"type": "Complete", "status": "True", "message": "done"}]);
    cluster.patch_status(job, json!({"status": {"active": 0, "ready": 0, "succeeded": 1, "conditions": done}})).await;
}

/// `PATCH workloads/status` for a write of the status of a workload. An event is named by its
/// reason.
fn kind(write: &Write) -> String {
    let parts: Vec<&str> = write.path.split('/').skip_while(|part| !part.starts_with('v')).skip(1).collect();
    let parts = if parts[0] == "namespaces" && parts.len() > 2 { &parts[2..] } else { &parts[..] };
    let kind = [Some(&parts[0]), parts.get(2)].into_iter().flatten().copied().collect::<Vec<_>>().join("/");
    match kind.as_str() {
        "events" => format!("event {}", write.body["reason"].as_str().unwrap_or("repeated")),
        _ => format!("{} {kind}", write.method),
    }
}

/// The writes about a job and its workload by kind, without those about queues.
async fn of_job(cluster: &Cluster, name: &str) -> BTreeMap<String, usize> {
    let workload = cluster.workload_of("team", name).await["metadata"]["name"].clone();
    let names: BTreeSet<&str> = [Some(name), workload.as_str()].into_iter().flatten().collect();
    let mut counts = BTreeMap::new();
    for write in cluster.writes.lock().unwrap().iter() {
        // The name of an event starts with that of its object.
        let object = write.path.split(['/', '.']).find(|part| names.contains(part));
        let created = write.body["metadata"]["name"].as_str().filter(|it| names.contains(it));
        let involved = write.body["involvedObject"]["name"].as_str().filter(|it| names.contains(it));
        if object.or(created).or(involved).is_some() {
            assert!(write.code < 300, "{write:?}");
            *counts.entry(kind(write)).or_default() += 1;
        }
    }
    counts
}

fn counts<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect()
}

/// The conditions of the workload of a job after each write of its status, as far as they changed.
async fn story(cluster: &Cluster, name: &str) -> Vec<String> {
    let workload = cluster.workload_of("team", name).await["metadata"]["name"].clone();
    let path = format!("/workloads/{}/status", workload.as_str().unwrap());
    let mut known = BTreeMap::new();
    let mut story = Vec::new();
    for write in cluster.writes.lock().unwrap().iter().filter(|write| write.path.ends_with(&path)) {
        let mut changed = Vec::new();
        for it in write.body["status"]["conditions"].as_array().into_iter().flatten() {
            let [kind, status, reason] = ["type", "status", "reason"].map(|key| it[key].as_str().unwrap().to_owned());
            let state = format!("{status}/{reason}");
            if known.insert(kind.clone(), state.clone()) != Some(state.clone()) {
                changed.push(format!("{kind} {state}"));
            }
        }
        story.push(changed.join(", "));
    }
    story
}

#[tokio::test(start_paused = true)]
async fn a_job_that_starts_at_once_costs_a_status_write_per_admission_start_and_end() {
    let cluster = Cluster::start(Config::default()).await;
    queue(&cluster).await;
    let first = cluster.create(job("first", "lq", "2")).await;
    cluster.pass(3).await;
    run_pods(&cluster, &first, 1).await;
    cluster.pass(10).await;
    complete(&cluster, &first).await;
    cluster.pass(10).await;
    let expected = counts([
        ("POST workloads", 1),
        ("PATCH workloads/status", 3),
        ("PATCH jobs", 1),
        ("event CreatedWorkload", 1),
        ("event QuotaReserved", 1),
        ("event Admitted", 1),
        ("event Started", 1),
        ("event FinishedWorkload", 1),
    ]);
    assert_eq!(of_job(&cluster, "first").await, expected, "{:#?}", story(&cluster, "first").await);
    // Per queue: it is reserved and admitted, and free again.
    let queues = cluster.writes.lock().unwrap().iter().filter(|write| write.path.contains("queues")).count();
    assert_eq!(queues, 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_costs_one_status_write_per_wait_admission_eviction_and_end() {
    let cluster = Cluster::start(Config::default()).await;
    queue(&cluster).await;
    let first = cluster.create(job("first", "lq", "2")).await;
    cluster.pass(3).await;
    run_pods(&cluster, &first, 1).await;
    let second = cluster.create(job("second", "lq", "2")).await;
    cluster.pass(60).await;
    complete(&cluster, &first).await;
    cluster.pass(3).await;
    run_pods(&cluster, &second, 1).await;
    let high = cluster.create(urgent("high")).await;
    cluster.pass(3).await;
    run_pods(&cluster, &second, 0).await;
    cluster.pass(3).await;
    run_pods(&cluster, &high, 1).await;
    cluster.pass(60).await;
    complete(&cluster, &high).await;
    cluster.pass(3).await;
    run_pods(&cluster, &second, 1).await;
    cluster.pass(10).await;
    complete(&cluster, &second).await;
    cluster.pass(10).await;
    let expected = [
        "QuotaReserved False/WaitingForQuota, Admitted False/NoReservation",
        "QuotaReserved True/QuotaReserved, Admitted True/Admitted, PodsReady False/WaitForStart",
        "PodsReady True/Started",
        "Evicted True/Preempted, Preempted True/InClusterQueue",
        "QuotaReserved False/PendingEvaluation, Admitted False/NoReservation, PodsReady False/WaitForStart, \
         Requeued True/Preempted",
        "QuotaReserved False/WaitingForQuota",
        "QuotaReserved True/QuotaReserved, Admitted True/Admitted, Evicted False/QuotaReserved, \
         Preempted False/QuotaReserved",
        "PodsReady True/Started",
        "Finished True/Succeeded",
    ];
    assert_eq!(story(&cluster, "second").await, expected);
    let expected = counts([
        ("POST workloads", 1),
        ("PATCH workloads/status", 9),
        // Released, suspended, its template restored, released again.
        ("PATCH jobs", 4),
        // The results of the run that was stopped.
        ("PATCH jobs/status", 1),
        ("event CreatedWorkload", 1),
        ("event WaitingForQuota", 1),
        ("event QuotaReserved", 2),
        ("event Admitted", 1),
        ("event Started", 1),
        // The wait, the admission and the start of the second run.
        ("event repeated", 3),
        ("event EvictedDueToPreempted", 1),
        ("event Preempted", 1),
        ("event Stopped", 1),
        ("event FinishedWorkload", 1),
    ]);
    assert_eq!(of_job(&cluster, "second").await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_readiness_is_not_tracked_costs_two_status_writes() {
    let cluster = Cluster::start(Config { wait_for_pods_ready: None, ..Config::default() }).await;
    queue(&cluster).await;
    let first = cluster.create(job("first", "lq", "2")).await;
    cluster.pass(3).await;
    run_pods(&cluster, &first, 1).await;
    cluster.pass(10).await;
    complete(&cluster, &first).await;
    cluster.pass(10).await;
    let expected = ["QuotaReserved True/QuotaReserved, Admitted True/Admitted", "Finished True/Succeeded"];
    assert_eq!(story(&cluster, "first").await, expected);
}

/// Does the work of jobs: an admitted workload ends after its time, and an evicted one stops.
struct Jobs {
    client: Client,
    clock: Clock,
    /// Number of admissions and evictions of each workload.
    lives: Mutex<BTreeMap<ObjectKey, u32>>,
    finished: Mutex<BTreeSet<ObjectKey>>,
}

impl Jobs {
    async fn run(self: Arc<Self>) {
        let all: Api<Workload> = Api::all(self.client.clone());
        let mut changes = std::pin::pin!(all.watch(&WatchParams::default(), "0").await.unwrap());
        while let Some(change) = changes.next().await {
            let Ok(WatchEvent::Added(workload) | WatchEvent::Modified(workload)) = change else { continue };
            let key = ObjectKey::of(&workload);
            if status::is_finished(&workload) {
                self.finished.lock().unwrap().insert(key);
                continue;
            }
            let (stops, life) = {
                let mut lives = self.lives.lock().unwrap();
                let life = lives.entry(key.clone()).or_default();
                // Odd: it runs.
                let runs = status::is_admitted(&workload) && !status::is_evicted(&workload);
                if runs == (*life % 2 == 1) {
                    continue;
                }
                *life += 1;
                (!runs, *life)
            };
            let ends = key.name.split_once('-').and_then(|(class, _)| class.strip_prefix("ms")?.parse().ok());
            let pause = if stops { Some(0) } else { ends };
            let Some(pause) = pause else { continue };
            let jobs = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                jobs.end(&key, stops, life).await;
            });
        }
    }

    async fn end(&self, key: &ObjectKey, stops: bool, life: u32) {
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &key.namespace);
        while self.lives.lock().unwrap()[key] == life {
            let before = api.get(&key.name).await.unwrap();
            let mut after = before.clone();
            let now = self.clock.now();
            match stops {
                true => status::release_after_eviction(&mut after, &Gates::default(), now),
                false => status::finish(&mut after, "Succeeded", "done", now),
            };
            if patch(&api, &before, &after, Part::Status, before.resource_version().as_deref()).await.is_ok() {
                return;
            }
        }
    }
}

/// A workload without a job, whose name starts with its run time in milliseconds.
fn workload(namespace: &str, name: &str, cpu: u32, priority: i32) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu.to_string()}}});
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    json!({
        "apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": name, "namespace": namespace},
        "spec": {"queueName": "lq", "priority": priority, "podSets": [{"name": "main", "count": 1, "template": template}]},
    })
}

/// Three queues of a cohort, each in a namespace of its own.
async fn cohort(cluster: &Cluster) -> [&'static str; 3] {
    let namespaces = ["a", "b", "c"];
    cluster.create(json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "spot"}})).await;
    for name in namespaces {
        cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        let policy = json!({"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"});
        cluster.create(cluster_queue(name, "20", json!({"cohortName": "all", "preemption": policy}))).await;
        let mut queue = local_queue("lq", name);
        queue["metadata"]["namespace"] = json!(name);
        cluster.create(queue).await;
    }
    cluster.pass(2).await;
    cluster.writes.lock().unwrap().clear();
    namespaces
}

/// Numbers of written reports of a wait, admissions, evictions.
fn decisions(writes: &[Write]) -> [usize; 3] {
    let status = |write: &Write, kind: &str| {
        let conditions = write.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|it| it["type"] == kind && it["status"] == "True")
    };
    let written = writes.iter().filter(|write| kind(write) == "PATCH workloads/status" && write.code < 300);
    let mut counts = [0; 3];
    for write in written {
        // A workload keeps its quota until its job has stopped.
        let kind = match (status(write, "QuotaReserved"), status(write, "Evicted")) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        counts[kind] += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn in_a_busy_cluster_most_workloads_are_written_once() {
    let cluster = Cluster::start(Config::default()).await;
    let namespaces = cohort(&cluster).await;
    let (client, clock) = (cluster.client.clone(), cluster.clock.clone());
    let jobs = Arc::new(Jobs { client, clock, lives: Mutex::default(), finished: Mutex::default() });
    tokio::spawn(jobs.clone().run());
    let started = Instant::now();
    for number in 0..40 {
        for namespace in namespaces {
            cluster.create(workload(namespace, &format!("ms400-small-{number}"), 5, 50)).await;
            if number % 8 == 0 {
                cluster.create(workload(namespace, &format!("ms1000-large-{number}"), 20, 200)).await;
            }
        }
        cluster.clock.sleep(Duration::from_millis(50)).await;
    }
    let total = namespaces.len() * (40 + 5);
    while jobs.finished.lock().unwrap().len() < total {
        cluster.clock.sleep(Duration::from_millis(100)).await;
    }
    let seconds = started.elapsed().as_secs() as usize + 1;
    cluster.pass(3).await;
    let [reports, admissions, evictions] = decisions(&cluster.writes.lock().unwrap());
    assert_eq!(admissions, total + evictions);
    let most = namespaces.len() * (5 + seconds / 2);
    assert!((1..=most).contains(&reports), "{reports} reports in {seconds} s, {admissions} admissions");
    assert!(reports * 2 < total, "{reports} reports in {seconds} s, {admissions} admissions");

    // Once no more decisions are written, the objects state why workloads wait.
    cluster.writes.lock().unwrap().clear();
    for (namespace, name) in namespaces.into_iter().zip(["forever", "forever", "ms2000-ends"]) {
        cluster.create(workload(namespace, name, 20, 1000)).await;
    }
    cluster.pass(1).await;
    for number in 0..20 {
        cluster.create(workload("a", &format!("waits-{number}"), 5, 50)).await;
    }
    cluster.pass(6).await;
    let waiting = cluster.list(KUEUE, "Workload", "a").await;
    let reasons = waiting.iter().filter(|it| condition(it, "QuotaReserved") == "False/WaitingForQuota").count();
    let [reports, admissions, evictions] = decisions(&cluster.writes.lock().unwrap());
    assert_eq!((reasons, admissions, evictions), (16, 3 + 4, 0));
    // Each of the 20 waits at least until `ms2000-ends` ends, and has its reason meanwhile.
    assert!((16..=20).contains(&reports), "{reports} reports");
}
