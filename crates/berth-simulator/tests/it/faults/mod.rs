//! A week of faults: 64 nodes with eight GPUs break at random, do not report, keep their pods stuck
//! or are taken back, while three teams run AppWrappers, PyTorchJobs and Jobs. The test checks
//! every change that a client of the API sees: no job is lost or runs twice at once, no quota
//! leaks, retry limits are kept, and every failure has a reason. It prints the time from a fault
//! until the pods run again, and checks it against the grace periods.
//!
//! A week takes 75 s of CPU time in a debug build. CI runs 36 hours of three seeds.
//! `BERTH_TEST_SEEDS=20` runs the whole week of twenty seeds, and `BERTH_TEST_SEED=7` the week of
//! seed 7 alone.

mod load;
mod nodes;
mod record;
mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::load::{BACKOFF_LIMIT, FLAVOR, GPU, JOB, Kind, NODES, RETRY_LIMIT, SLACK_QUEUE, Submission, TEAMS};
use self::record::{Record, has_ended, resource};
use crate::objects::{Draw, condition, in_virtual_time, is_true, name, usage};

const HOUR: Duration = Duration::from_secs(3600);
const WEEK: u64 = 7 * 24;
/// Hours with faults of each seed in CI.
const HOURS_IN_CI: u64 = 36;
/// Hours after the faults in which all jobs must end.
const HOURS_AFTER: u64 = 72;
/// One job is created per this many hours.
const HOURS_PER_JOB: u64 = 4;
/// One hour in this many crashes the program of a pod.
const CRASH_EVERY: u64 = 6;
/// Seconds beyond the configured grace, at the 99th percentile.
const BEYOND_GRACE_MAX: i64 = 5;

struct World {
    client: Client,
    seed: u64,
    clock: Clock,
    record: Arc<Mutex<Record>>,
}

impl World {
    async fn create(&self, object: Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let resource = if kind == "Namespace" { resource_of_core(&kind) } else { resource(&kind) };
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("the object is accepted");
    }

    fn context(&self) -> String {
        format!("seed {} at {}", self.seed, self.clock.now())
    }

    /// Makes the program of a running pod fail.
    async fn crash(&self, draw: &mut Draw) {
        let pods: Vec<(String, String)> = {
            let record = self.record.lock();
            let running = record.all("Pod").filter(|pod| {
                // A kubelet would restart the others, which would fail again.
                pod["status"]["phase"] == "Running"
                    && pod["spec"]["restartPolicy"] == "Never"
                    && pod["metadata"]["labels"][JOB].is_string()
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            running
                .map(|pod| (pod["metadata"]["namespace"].as_str().unwrap_or_default().into(), name(pod).into()))
                .collect()
        };
        if pods.is_empty() {
            return;
        }
        let (namespace, name) = &pods[usize::try_from(draw.below(pods.len() as u64)).unwrap_or(0)];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource("Pod"));
        let patch = json!({ "metadata": { "annotations": { "berth.dev/fail-now": "true" } } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("the pod is patched");
    }

    /// Checks what must hold at any time. Quota in the status of queues may lag by some seconds.
    async fn check(&self) {
        let mut difference = None;
        for _ in 0..10 {
            difference = quota_difference(&self.record.lock());
            if difference.is_none() {
                break;
            }
            self.clock.sleep(Duration::from_secs(1)).await;
        }
        let context = self.context();
        assert_eq!(difference, None, "{context}: quota leaks");
        let record = self.record.lock();
        assert!(record.violations.is_empty(), "{context}:\n{}", record.violations.join("\n"));
        for job in record.jobs.values() {
            let object = record.job(job).unwrap_or_else(|| panic!("{context}: {} is lost", job.name));
            let failed = object["status"]["failed"].as_i64().unwrap_or(0);
            assert!(job.kind != Kind::Job || failed <= BACKOFF_LIMIT + job.pods as i64, "{context}: {object:#}");
        }
    }

    /// True if all jobs have ended.
    fn have_ended(&self) -> bool {
        let record = self.record.lock();
        record.jobs.values().all(|job| record.job(job).is_some_and(|object| has_ended_by(job, object)))
    }

    /// Checks what must hold when the faults are over: every job has succeeded, or failed with a
    /// reason.
    async fn check_end(&self) {
        // Idle nodes are tested for some minutes, and their GPUs are not lent meanwhile.
        for _ in 0..120 {
            let lends_all = lending_limits(&self.record.lock()).is_empty();
            if lends_all {
                break;
            }
            self.clock.sleep(Duration::from_secs(60)).await;
        }
        let context = self.context();
        let record = self.record.lock();
        for job in record.jobs.values() {
            let object = record.job(job).expect("checked");
            assert!(has_ended_by(job, object), "{context}: {} has not ended: {:#}", job.name, object["status"]);
            check_outcome(&record, job, object, &context);
        }
        let has_ended = |pod: &Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        let of_jobs = record.all("Pod").filter(|pod| pod["metadata"]["labels"][JOB].is_string());
        let running: Vec<&Value> = of_jobs.filter(|pod| !has_ended(pod)).collect();
        assert!(running.is_empty(), "{context}: pods are left: {running:#?}");
        for workload in record.all("Workload") {
            assert!(is_true(workload, "Finished"), "{context}: {workload:#}");
        }
        let nodes = record.all("Node").count() as u64;
        assert_eq!(nodes, NODES.iter().map(|(_, nodes)| nodes).sum::<u64>(), "{context}");
        assert_eq!(record.nodes.faulty(), [""; 0], "{context}");
        assert_eq!(lending_limits(&record), [""; 0], "{context}: limits of the slack queue");
    }

    /// Prints the week, and checks the time to recover.
    fn report(&self) {
        let record = self.record.lock();
        let faults = record.nodes.counts();
        let ended = |phase: &str| {
            let is = |job: &&Submission| {
                let object = record.job(job).cloned().unwrap_or_default();
                object["status"]["phase"] == phase
                    || is_true(&object, phase)
                    || phase == "Succeeded" && is_true(&object, "Complete")
            };
            record.jobs.values().filter(is).count()
        };
        let resets = record.resets.values().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        println!(
            "seed {}: faults {faults:?}; pods {:?}; {} jobs succeeded, {} failed; {} resets, {} of them counted; \
             evictions {:?}",
            self.seed,
            record.starts,
            ended("Succeeded"),
            ended("Failed"),
            resets.0,
            resets.1,
            record.evictions
        );
        let beyond = recovery::report(self.seed, &record.recoveries);
        for slow in record.recoveries.iter().filter(|it| it.took - it.allowed > BEYOND_GRACE_MAX) {
            println!("{} at {}: {}: {} s of {} s", slow.job, slow.at, slow.cause, slow.took, slow.allowed);
        }
        assert!(beyond <= BEYOND_GRACE_MAX, "seed {}: {beyond} s beyond the configured grace", self.seed);
    }
}

/// The resources that the slack queue does not lend as a whole, with their limits.
fn lending_limits(record: &Record) -> Vec<String> {
    let slack = record.get("ClusterQueue", "", SLACK_QUEUE).expect("the slack queue");
    let quotas = slack["spec"]["resourceGroups"][0]["flavors"][0]["resources"].as_array().expect("quotas");
    let limited = quotas.iter().filter(|quota| !quota["lendingLimit"].is_null());
    limited.map(|quota| format!("{}: {}", quota["name"], quota["lendingLimit"])).collect()
}

fn resource_of_core(kind: &str) -> kube::api::ApiResource {
    kube::api::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("", "v1", kind))
}

/// True if a job has ended, by its queued object.
fn has_ended_by(job: &Submission, object: &Value) -> bool {
    match job.is_wrapper() {
        true => ["Succeeded", "Failed"].iter().any(|phase| object["status"]["phase"] == *phase),
        false => has_ended(object),
    }
}

/// A job that failed says why, did not exceed its retries, and has an event.
fn check_outcome(record: &Record, job: &Submission, object: &Value, context: &str) {
    let failure = if job.is_wrapper() {
        let counted = object["status"]["resettingCount"].as_i64().unwrap_or(0);
        assert!(counted <= RETRY_LIMIT, "{context}: {object:#}");
        (object["status"]["phase"] == "Failed").then(|| condition(object, "Unhealthy").cloned().unwrap_or_default())
    } else {
        condition(object, "Failed").filter(|failed| failed["status"] == "True").cloned()
    };
    let Some(failure) = failure else {
        assert!(!job.fails, "{context}: the program of {} fails", job.name);
        return;
    };
    let has_reason = failure["reason"].as_str().is_some_and(|reason| !reason.is_empty());
    let events = record.events.get(&(job.object_kind().to_owned(), job.name.clone()));
    let has_event = events.is_some_and(|reasons| {
        reasons
            .iter()
            .any(|reason| ["Unhealthy", "BackoffLimitExceeded", "PyTorchJobFailed"].contains(&reason.as_str()))
    });
    assert!(has_reason && has_event, "{context}: {} failed without a reason: {failure}, events {events:?}", job.name);
}

/// The first ClusterQueue whose status differs from the sum of its Workloads.
fn quota_difference(record: &Record) -> Option<String> {
    TEAMS.into_iter().chain([SLACK_QUEUE]).find_map(|queue| {
        let object = record.get("ClusterQueue", "", queue)?;
        let is_of_queue = |it: &&Value| it["status"]["admission"]["clusterQueue"] == queue;
        let of_queue: Vec<&Value> = record.all("Workload").filter(is_of_queue).collect();
        let reserved = usage(of_queue.iter().copied());
        let admitted = usage(of_queue.into_iter().filter(|workload| is_true(workload, "Admitted")));
        for (field, expected) in [("flavorsReservation", reserved), ("flavorsUsage", admitted)] {
            let resources = object["status"][field][0]["resources"].as_array().into_iter().flatten();
            let total =
                resources.filter(|it| it["name"] == GPU).find_map(|it| it["total"].as_str()?.parse::<i64>().ok());
            let expected = expected.get(&(FLAVOR.to_owned(), GPU.to_owned())).copied().unwrap_or(0);
            if total.unwrap_or(0) != expected {
                return Some(format!("{queue}: {field} is {total:?}, but its Workloads have {expected}"));
            }
        }
        None
    })
}

async fn faults(seed: u64, hours: u64) {
    let mut draw = Draw(seed);
    let clock = Clock::scaled("2026-01-05T00:00:00Z".parse().expect("a time"), 1.0);
    let options = Options::in_memory(clock.clone(), seed, Some(load::cluster(&mut draw)), Some(load::configuration()));
    let embedded = Embedded::start(options).await.expect("the cluster starts");
    let client = embedded.observer();
    let record = Record::start(&client, &clock);
    let world = World { client, seed, clock: clock.clone(), record };
    for object in load::platform() {
        world.create(object).await;
    }
    let mut jobs: BTreeMap<u64, Vec<Submission>> = BTreeMap::new();
    for number in 0..hours / HOURS_PER_JOB {
        let job = load::submission(number, hours - 6, &mut draw);
        jobs.entry(job.hour).or_default().push(job);
    }
    clock.sleep(Duration::from_secs(433)).await;
    for hour in 0..hours {
        for job in jobs.remove(&hour).unwrap_or_default() {
            let manifest = job.manifest.clone();
            world.record.lock().jobs.insert(job.name.clone(), job);
            world.create(manifest).await;
        }
        clock.sleep(HOUR / 2).await;
        if draw.below(CRASH_EVERY) == 0 {
            world.crash(&mut draw).await;
        }
        clock.sleep(HOUR / 2).await;
        world.check().await;
    }
    // From now on nothing breaks.
    for (pool, _) in NODES {
        let api: Api<DynamicObject> = Api::all_with(
            world.client.clone(),
            &kube::api::ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("berth.dev", "v1alpha1", "NodePool")),
        );
        let patch = json!({ "spec": { "faults": null, "supply": null } });
        api.patch(pool, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("the pool is patched");
    }
    for _ in 0..HOURS_AFTER {
        clock.sleep(HOUR).await;
        world.check().await;
        if world.have_ended() {
            break;
        }
    }
    world.check_end().await;
    world.report();
    embedded.stop().await;
}

#[test]
fn a_week_of_faults_loses_no_job_and_no_quota_and_recovers_within_the_grace_periods() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seeds, hours) = match (number("BERTH_TEST_SEED"), number("BERTH_TEST_SEEDS")) {
        (Some(seed), _) => (seed..=seed, WEEK),
        (None, Some(seeds)) => (1..=seeds, WEEK),
        (None, None) => (1..=3, HOURS_IN_CI),
    };
    for seed in seeds {
        in_virtual_time(faults(seed, hours));
    }
}
