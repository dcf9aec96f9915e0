//! The GKE batch reference architecture on three separate processes, while the leading controllers
//! are killed at random moments.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use berth_apimachinery::quantity::{Format, Quantity};
use berth_testing::{has_kubectl, shared};
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::{Cluster, file, pause};
use crate::history::{History, is_true, key};
use crate::process::Process;
use crate::refarch::{complete, submit};

/// Environment variable: if it is set, only the jobs of low and high priority are submitted.
const FIRST: &str = "BERTH_TEST_FIRST_STEPS";
/// Environment variable: the random seed of the times of the kills, as a run prints it. The default
/// differs in each run.
const SEED: &str = "BERTH_TEST_SEED";

/// Two replicas of the controllers. The leading replica is killed repeatedly.
struct Victims {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Victims {
    fn start(kubeconfig: &Path, time: &[String], seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, kubeconfig, time) = (stop.clone(), kubeconfig.to_owned(), time.to_owned());
        let thread = std::thread::spawn(move || {
            let arguments: Vec<&str> = time.iter().map(String::as_str).collect();
            let start = || Process::controller_with(&kubeconfig, &arguments);
            let mut replicas = vec![start(), start()];
            let (mut random, mut kills, mut led) = (seed, 0, None::<Duration>);
            while !stopped.load(Ordering::Relaxed) {
                const TICK: Duration = Duration::from_millis(100);
                pause(TICK);
                // A replica that has ended is started again, as a Deployment would do.
                for replica in &mut replicas {
                    if replica.ended() {
                        *replica = start();
                    }
                }
                let Some(leader) = replicas.iter().position(Process::leads) else { continue };
                // The delay ranges from just after the election, while the new leader fills its
                // queues, to some cluster minutes later.
                let left = *led.get_or_insert_with(|| Duration::from_millis(next(&mut random) % 10_000));
                led = left.checked_sub(TICK);
                if led.is_none() {
                    replicas.remove(leader).kill();
                    replicas.push(start());
                    kills += 1;
                }
            }
            kills
        });
        Self { stop, thread }
    }

    /// Ends the replicas. Returns the number of killed leaders.
    fn stop(self) -> u32 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the replicas can be ended")
    }
}

/// The next number of a sequence that depends only on its seed (SplitMix64).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn the_reference_architecture_survives_leaders_that_are_killed() {
    let Some(root) = shared("scenarios/gke-batch-refarch") else { return };
    if !has_kubectl() {
        return;
    }
    let whole = std::env::var_os(FIRST).is_none();
    if !whole {
        println!("without compact placement, JobSets and queued capacity, because {FIRST} is set");
    }
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().unwrap_or_else(|error| panic!("{SEED}={seed}: {error}")),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("{SEED}={seed} selects the times of the kills in this run");
    let work = tempfile::tempdir().expect("a temporary folder");
    let configuration = file("examples/gke-batch-refarch/cluster.yaml");
    let cluster = Cluster::apiserver(&["--time-scale", "60"]);
    let time: Vec<&str> = cluster.time.iter().map(String::as_str).collect();
    let machines = Process::cluster(&cluster, &[&["--config", &configuration][..], &time].concat());
    for folder in ["platform/priorityclass", "platform/teams", "platform/kueue"] {
        cluster.run(&["apply", "-f", &root.join(folder).display().to_string()]);
    }
    let (mut workloads, mut jobs, mut pods) =
        (History::of(&cluster, "workloads"), History::of(&cluster, "jobs"), History::of(&cluster, "pods"));
    let began = Instant::now();
    let victims = Victims::start(&cluster.kubeconfig.with_file_name("controller.kubeconfig"), &cluster.time, seed);

    submit(&cluster, &root, "low_priority", "low-priority-job", work.path());
    submit(&cluster, &root, "high_priority", "high-priority-job", work.path());
    let limit = if whole { 600 } else { 240 };
    let mut said = String::new();
    let mut wait_for = |expected: usize, name: &str| {
        cluster.wait_until(&format!("{expected} jobs to complete"), limit, |c| {
            let done = complete(c, name);
            let text = format!("{done} of {expected} jobs {name} complete");
            if text != said {
                println!("{:>6.1} s: {text}", began.elapsed().as_secs_f64());
                said = text;
            }
            done == expected
        });
    };
    let mut expected = 32;
    if whole {
        submit(&cluster, &root, "compact_placement", "compact-job", work.path());
        wait_for(expected, "-priority-job-");
        submit(&cluster, &root, "jobset", "jobset", work.path());
        for team in ["team-a", "team-b"] {
            cluster.run(&["create", "secret", "generic", "hf-secret", "--from-literal=hf_api_token=token", "-n", team]);
        }
        cluster.run(&["apply", "-f", &root.join("dws/kueue-dws-config.yaml").display().to_string()]);
        for team in ["team-a", "team-b"] {
            let path = root.join(format!("dws/workloads/{team}/{team}-dws-job-0.yaml"));
            cluster.run(&["apply", "-f", &path.display().to_string()]);
        }
        expected = 66;
    }
    wait_for(expected, "");
    cluster.wait_until("every workload to be finished and every queue empty", 60, |c| {
        let queues = c.get(&["clusterqueues"]);
        let idle = |queue: &Value| {
            let status = &queue["status"];
            [&status["pendingWorkloads"], &status["reservingWorkloads"]].iter().all(|n| n.as_i64().unwrap_or(0) == 0)
        };
        queues["items"].as_array().is_some_and(|queues| queues.iter().all(idle))
    });
    let kills = victims.stop();
    println!("{expected} jobs in {:.1} s; {kills} leaders killed, seed {seed}", began.elapsed().as_secs_f64());
    assert!(kills >= 3, "only {kills} leaders were killed");

    let queues = cluster.get(&["clusterqueues"]);
    let workloads = workloads.states();
    assert_eq!(
        one_workload_each(&workloads),
        expected_workloads(&cluster),
        "the number of jobs that have had a workload is wrong"
    );
    never_beyond_quota(&workloads, &queues);
    admitted_once_per_eviction(&workloads);
    run_once(&jobs.states(), &pods.states());
    drop(machines);
}

/// Number of Jobs and JobSets that name a queue, without the Jobs that JobSets own.
fn expected_workloads(cluster: &Cluster) -> usize {
    let count = |resource: &str| {
        let list = cluster.get(&[resource, "-A"]);
        let managed = |object: &&Value| object["metadata"]["labels"]["kueue.x-k8s.io/queue-name"].is_string();
        let owned = |object: &&Value| object["metadata"]["ownerReferences"].is_array();
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter(managed).filter(|object| !owned(object)).count()
    };
    count("jobs") + count("jobsets")
}

/// Number of jobs that have had a workload. Each must have had only one workload.
fn one_workload_each(states: &[(Value, bool)]) -> usize {
    let mut of_job: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (workload, _) in states {
        let owner = workload["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let uid = workload["metadata"]["uid"].as_str().unwrap_or_default();
        of_job.entry(owner.to_owned()).or_default().insert(uid.to_owned());
    }
    assert!(of_job.values().all(|workloads| workloads.len() == 1), "two workloads for one job: {of_job:?}");
    of_job.len()
}

/// At every moment, the usage of a cohort's workloads is within the cohort's quota, for each flavor
/// and resource.
pub fn never_beyond_quota(states: &[(Value, bool)], queues: &Value) {
    type Amounts = BTreeMap<(String, String, String), Quantity>;
    let quantity = |value: &Value| Quantity::from_json(value).expect("a quantity");
    let count = |value: &Value| value.as_i64().expect("a number");
    let (mut cohort_of, mut quota) = (BTreeMap::new(), Amounts::new());
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for queue in list(&queues["items"]) {
        let name = queue["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let cohort = queue["spec"]["cohortName"].as_str().map_or_else(|| format!("alone:{name}"), str::to_owned);
        for group in list(&queue["spec"]["resourceGroups"]) {
            for flavor in list(&group["flavors"]) {
                for resource in list(&flavor["resources"]) {
                    let text = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
                    let total = quota.entry((cohort.clone(), text(&flavor), text(&resource))).or_insert(Quantity::ZERO);
                    total.add(quantity(&resource["nominalQuota"]));
                }
            }
        }
        cohort_of.insert(name, cohort);
    }
    let (mut held, mut latest): (BTreeMap<String, Amounts>, BTreeMap<String, &Value>) = Default::default();
    for (workload, gone) in states {
        let mut amounts = Amounts::new();
        let admission = &workload["status"]["admission"];
        if !gone && !is_true(workload, "Finished") && admission.is_object() {
            let cohort = &cohort_of[admission["clusterQueue"].as_str().unwrap_or_default()];
            for set in list(&admission["podSetAssignments"]) {
                // Finished pods return their share before the others finish.
                let done = list(&workload["status"]["reclaimablePods"]);
                let done = done.iter().find(|done| done["name"] == set["name"]).map_or(0, |done| count(&done["count"]));
                let pods = count(&set["count"]);
                for (resource, flavor) in set["flavors"].as_object().into_iter().flatten() {
                    let flavor = flavor.as_str().unwrap_or_default().to_owned();
                    let total = amounts.entry((cohort.clone(), flavor, resource.clone())).or_insert(Quantity::ZERO);
                    let milli = quantity(&set["resourceUsage"][resource]).milli_value() * (pods - done) / pods;
                    total.add(Quantity::from_milli(milli, Format::DecimalSi));
                }
            }
        }
        latest.insert(key(workload), workload);
        held.insert(key(workload), amounts);
        let mut total = Amounts::new();
        for (key, amount) in held.values().flatten() {
            total.entry(key.clone()).or_insert(Quantity::ZERO).add(*amount);
        }
        for (what, amount) in total {
            let quota = quota.get(&what).copied().unwrap_or(Quantity::ZERO);
            let holders: Vec<&Value> = held
                .iter()
                .filter(|(_, amounts)| amounts.contains_key(&what))
                .map(|(holder, _)| &latest[holder]["status"])
                .collect();
            assert!(amount <= quota, "{what:?}: {amount} held of {quota} when {workload} was stored; {holders:#?}");
        }
    }
}

/// A workload is evicted between two admissions, and its assignment does not change while it is
/// admitted.
fn admitted_once_per_eviction(states: &[(Value, bool)]) {
    let mut before: BTreeMap<String, Value> = BTreeMap::new();
    let mut admissions: BTreeMap<String, u32> = BTreeMap::new();
    let mut evictions: BTreeMap<String, u32> = BTreeMap::new();
    for (workload, _) in states {
        let key = key(workload);
        let last = before.insert(key.clone(), workload.clone()).unwrap_or_default();
        match (is_true(&last, "Admitted"), is_true(workload, "Admitted")) {
            (false, true) => *admissions.entry(key).or_default() += 1,
            (true, false) => {
                assert!(
                    is_true(workload, "Evicted") || is_true(workload, "Finished"),
                    "{key} lost its admission: {workload}"
                );
                *evictions.entry(key).or_default() += u32::from(!is_true(workload, "Finished"));
            }
            (true, true) => {
                assert_eq!(
                    last["status"]["admission"], workload["status"]["admission"],
                    "the assignment of {key} changed while it was admitted"
                );
                assert!(!is_true(&last, "Finished") || is_true(workload, "Finished"), "{key} is not finished any more");
            }
            (false, false) => {}
        }
    }
    for (key, admissions) in admissions {
        assert_eq!(admissions, 1 + evictions.get(&key).copied().unwrap_or(0), "admissions of {key}");
    }
}

/// Every job completes exactly once: no more pods succeed than its completions, and a complete job
/// never runs again. A pod that succeeds while it is being deleted is replaced before its success
/// is known, as in Kubernetes, so it does not count.
fn run_once(jobs: &[(Value, bool)], pods: &[(Value, bool)]) {
    let mut succeeded: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut deleted: BTreeSet<&str> = BTreeSet::new();
    for (pod, _) in pods {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        if pod["status"]["phase"] != "Succeeded" {
            if pod["metadata"]["deletionTimestamp"].is_string() {
                deleted.insert(uid);
            }
        } else if !deleted.contains(uid) {
            let job = pod["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
            succeeded.entry(job.to_owned()).or_default().insert(uid.to_owned());
        }
    }
    let mut done: BTreeMap<String, Value> = BTreeMap::new();
    for (job, _) in jobs.iter().filter(|(job, _)| is_true(job, "Complete")) {
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let runs = succeeded.get(&uid).map_or(0, BTreeSet::len);
        let wanted = job["spec"]["completions"].as_u64().unwrap_or(1);
        assert!(runs as u64 <= wanted, "{}: {runs} pods succeeded, {wanted} were requested", key(job));
        let first = done.entry(uid).or_insert_with(|| job["status"].clone());
        for field in ["startTime", "completionTime", "succeeded"] {
            assert_eq!(first[field], job["status"][field], "{field} of {} changed after its end", key(job));
        }
        assert_eq!(job["status"]["active"].as_u64().unwrap_or(0), 0, "{} runs after its end", key(job));
    }
    let failed: Vec<String> = jobs.iter().filter(|(job, _)| is_true(job, "Failed")).map(|(job, _)| key(job)).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
