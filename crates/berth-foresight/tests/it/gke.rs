//! Forecasts and comparisons on the GKE scenario after its second step, beside what the embedded
//! cluster then does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_controllers::explain::ask;
use berth_embedded::{Embedded, Options};
use berth_foresight::command::check::documents;
use berth_foresight::live::State;
use berth_foresight::live::forecast::{JobForecast, Plan, Prospect, forecast};
use berth_foresight::live::future::Until;
use berth_foresight::live::run_times::RunTimes;
use berth_foresight::objects::Objects;
use berth_foresight::snapshot::{Changes, Snapshot};
use berth_runtime::Clock;
use berth_testing::shared;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::template;

/// Run time of the scenario's jobs.
const RUN_TIME: Duration = Duration::from_secs(480);

/// Kinds of the objects that are applied and listed: group, version, kind, plural, namespaced.
const KINDS: [(&str, &str, &str, &str, bool); 17] = [
    ("", "v1", "Namespace", "namespaces", false),
    ("", "v1", "ServiceAccount", "serviceaccounts", true),
    ("", "v1", "ConfigMap", "configmaps", true),
    ("", "v1", "Service", "services", true),
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "Pod", "pods", true),
    ("batch", "v1", "Job", "jobs", true),
    ("berth.dev", "v1alpha1", "NodePool", "nodepools", false),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", false),
    ("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", false),
    ("kueue.x-k8s.io", "v1beta2", "Topology", "topologies", false),
    ("kueue.x-k8s.io", "v1beta2", "Cohort", "cohorts", false),
    ("kueue.x-k8s.io", "v1beta2", "ClusterQueue", "clusterqueues", false),
    ("kueue.x-k8s.io", "v1beta2", "LocalQueue", "localqueues", true),
    ("kueue.x-k8s.io", "v1beta2", "AdmissionCheck", "admissionchecks", false),
    ("kueue.x-k8s.io", "v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", false),
    ("kueue.x-k8s.io", "v1beta2", "Workload", "workloads", true),
];

fn resource(kind: &str, version: Option<&str>) -> (ApiResource, bool) {
    let (group, newest, kind, plural, namespaced) =
        KINDS.into_iter().find(|it| it.2 == kind).unwrap_or_else(|| panic!("{kind} is not part of the test"));
    let version = version.and_then(|it| it.rsplit('/').next()).unwrap_or(newest);
    (ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural), namespaced)
}

/// The scenario's cluster.
struct Cluster {
    embedded: Embedded,
    client: Client,
    clock: Clock,
    scenario: PathBuf,
}

impl Cluster {
    /// A cluster after the second step of the scenario.
    async fn start(scenario: PathBuf) -> Cluster {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gke-batch-refarch/cluster.yaml");
        let (mut configuration, _) = documents(&[file]).expect("the cluster of the example");
        let clock = Clock::scaled("2024-11-06T09:00:00Z".parse().expect("a time"), 1.0);
        let options = Options::in_memory(clock.clone(), 1, configuration.pop().map(|it| it.value), None);
        let embedded = Embedded::start(options).await.expect("the cluster starts");
        let client = embedded.observer();
        let cluster = Cluster { embedded, client, clock, scenario };
        for folder in ["platform/priorityclass", "platform/teams", "platform/kueue"] {
            cluster.apply_files(folder).await;
        }
        cluster.submit("low").await;
        // As in the scenario: the spot nodes have come, and their pods run.
        cluster.clock.sleep(Duration::from_secs(240)).await;
        cluster.submit("high").await;
        cluster.clock.sleep(Duration::from_secs(5)).await;
        cluster
    }

    async fn apply_files(&self, path: &str) {
        let (found, invalid) =
            documents(&[self.scenario.join(path)]).unwrap_or_else(|error| panic!("{path}: {error:#}"));
        assert_eq!(invalid, []);
        for document in found {
            self.apply(&document.value).await;
        }
    }

    async fn apply(&self, object: &Value) {
        let kind = object["kind"].as_str().expect("a kind");
        let (resource, namespaced) = resource(kind, object["apiVersion"].as_str());
        let typed: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        let namespace = typed.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<DynamicObject> = match namespaced {
            true => Api::namespaced_with(self.client.clone(), &namespace, &resource),
            false => Api::all_with(self.client.clone(), &resource),
        };
        let name = typed.metadata.name.clone().expect("a name");
        let done = if api.get_opt(&name).await.expect("the API responds").is_some() {
            api.patch(&name, &PatchParams::default(), &Patch::Merge(object)).await
        } else {
            api.create(&PostParams::default(), &typed).await
        };
        done.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    async fn submit(&self, priority: &str) {
        for index in 0..4 {
            for team in ["team-a", "team-b", "team-c", "team-d"] {
                let file = format!("{priority}_priority/workloads/{team}/{team}-{priority}-priority-job-{index}.yaml");
                self.apply_files(&file).await;
                self.clock.sleep(Duration::from_millis(500)).await;
            }
            self.clock.sleep(Duration::from_secs(1)).await;
        }
    }

    async fn list(&self, kind: &str) -> Vec<Value> {
        let (resource, _) = resource(kind, None);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let found = api.list(&ListParams::default()).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        let with_kind = |object: DynamicObject| {
            let mut value = serde_json::to_value(object).expect("JSON");
            value["kind"] = json!(kind);
            value["apiVersion"] = json!(resource.api_version);
            value
        };
        found.items.into_iter().map(with_kind).collect()
    }

    async fn snapshot(&self) -> Snapshot {
        let mut objects = Vec::new();
        for (_, _, kind, ..) in KINDS {
            if !matches!(kind, "ServiceAccount" | "ConfigMap" | "Service" | "Job") {
                objects.extend(self.list(kind).await);
            }
        }
        // A file of a snapshot is the same snapshot.
        let snapshot = Snapshot::of(objects, self.clock.now());
        let read = Snapshot::parse(&snapshot.text()).expect("a snapshot");
        assert_eq!(read, snapshot);
        read
    }

    /// Which workloads hold quota: their jobs, when they got it, and the flavors.
    async fn holding(&self) -> BTreeMap<String, (Timestamp, String)> {
        let holds = |workload: &Value| {
            let conditions = workload["status"]["conditions"].as_array()?;
            let of = |type_: &str| conditions.iter().find(|it| it["type"] == type_ && it["status"] == "True");
            // A workload that has finished keeps the condition.
            if of("Finished").is_some() {
                return None;
            }
            let reserved = of("QuotaReserved")?["lastTransitionTime"].as_str()?.parse().ok()?;
            let flavor =
                workload["status"]["admission"]["podSetAssignments"][0]["flavors"]["nvidia.com/gpu"].as_str()?;
            let metadata = &workload["metadata"];
            let owner = metadata["ownerReferences"][0]["name"].as_str()?;
            Some((format!("{}/{owner}", metadata["namespace"].as_str()?), (reserved, flavor.to_owned())))
        };
        self.list("Workload").await.iter().filter_map(holds).collect()
    }

    /// When each of these jobs gets quota after now, and with which flavor.
    async fn watch(&self, mut jobs: Vec<String>, within: Duration) -> BTreeMap<String, (Timestamp, String)> {
        let start = self.clock.now();
        let mut found = BTreeMap::new();
        while !jobs.is_empty() {
            let spent = Duration::try_from(self.clock.now().duration_since(start)).expect("time goes forward");
            assert!(spent < within, "these jobs still wait after {within:?}: {jobs:?}");
            for (job, got) in self.holding().await {
                if let Some(at) = jobs.iter().position(|it| *it == job) {
                    jobs.remove(at);
                    found.insert(job, got);
                }
            }
            self.clock.sleep(Duration::from_secs(2)).await;
        }
        found
    }
}

fn in_virtual_time(test: impl AsyncFnOnce(PathBuf)) {
    let Some(scenario) = shared("scenarios/gke-batch-refarch") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(test(scenario));
}

struct Known {
    state: State,
    prospect: Prospect,
}

fn known(snapshot: &Snapshot) -> Known {
    let objects: Objects = snapshot.read();
    assert_eq!(objects.invalid, []);
    let state = State::of(&objects, snapshot.at);
    let prospect = Prospect::new(&objects, &state, &RunTimes::of(&objects, Some(RUN_TIME)), &template);
    Known { state, prospect }
}

fn title(forecast: &JobForecast) -> String {
    format!("{}/{}", forecast.key.namespace, forecast.owner.as_ref().expect("a job").name)
}

/// Differences of predicted and true times of more than a tenth of the true wait.
fn off(predicted: &BTreeMap<String, i64>, truth: &BTreeMap<String, (Timestamp, String)>, at: Timestamp) -> Vec<String> {
    let mut wrong = Vec::new();
    for (job, (got, _)) in truth {
        let wait = got.duration_since(at).as_millis();
        let predicted = i128::from(predicted[job]) / 1_000_000 - i128::from(at.as_millisecond());
        if (predicted - wait).abs() * 10 > wait.max(10_000) {
            wrong.push(format!("{job}: predicted {} s, true {} s", predicted / 1000, wait / 1000));
        }
    }
    wrong
}

#[test]
fn forecasts_after_the_second_step_come_true_within_a_tenth() {
    in_virtual_time(async |scenario| {
        let cluster = Cluster::start(scenario).await;
        let snapshot = cluster.snapshot().await;
        let Known { state, prospect } = known(&snapshot);
        let forecasts = forecast(&state, &prospect, Plan { draws: 20, only: None });
        assert_eq!(forecasts.len(), 12, "two urgent jobs of each team wait, and its first everyday job");
        assert_eq!(
            forecasts,
            forecast(&state, &prospect, Plan { draws: 20, only: None }),
            "the same file, the same forecast"
        );
        let predicted: BTreeMap<String, i64> =
            forecasts.iter().map(|it| (title(it), it.median.unwrap_or_else(|| panic!("{it:?}")).0)).collect();
        for forecast in &forecasts {
            assert!(!forecast.waits_for.is_empty(), "{forecast:?}");
        }
        let truth = cluster.watch(predicted.keys().cloned().collect(), Duration::from_secs(7200)).await;
        let wrong = off(&predicted, &truth, snapshot.at);
        assert!(wrong.is_empty(), "{wrong:#?}");
        for forecast in &forecasts {
            assert_eq!(forecast.flavors.len(), 1, "one flavor for all resources");
            assert_eq!(&*forecast.flavors[0], truth[&title(forecast)].1, "{}", title(forecast));
        }
        cluster.embedded.stop().await;
    });
}

#[test]
fn what_if_with_more_reserved_gpus_predicts_what_applying_it_does() {
    in_virtual_time(async |scenario| {
        let cluster = Cluster::start(scenario).await;
        let snapshot = cluster.snapshot().await;
        let held = cluster.holding().await;
        let more = ["cpu=+8", "memory=+40Gi", "nvidia.com/gpu=+8"];
        let quotas = more.iter().map(|it| format!("cq-team-a-hp/gpu-l4-reserved/{it}")).collect();
        let changed = Changes { quotas, ..Changes::default() }.apply(&snapshot).expect("the queue is there");
        let Known { state, prospect } = known(&changed);
        let future = prospect.run(|_, time| time.median(), Until::TheEnd);
        let is_now = |at: Option<berth_engine::model::Time>| at == Some(state.at);
        let jobs = || state.jobs.iter().zip(&future.jobs);
        // A job that starts and is preempted at once does not hold quota afterwards.
        let predicted: BTreeMap<String, String> = jobs()
            .filter(|(job, future)| !job.holds() && is_now(future.admitted) && !is_now(future.evicted))
            .map(|(job, future)| (job.title(), future.flavors[0].to_string()))
            .collect();
        assert!(predicted.len() >= 2, "8 GPUs are two jobs: {predicted:?}");

        let queue =
            changed.objects.iter().find(|it| it["kind"] == "ClusterQueue" && it["metadata"]["name"] == "cq-team-a-hp");
        let groups = &queue.expect("the queue")["spec"]["resourceGroups"];
        let patch = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "cq-team-a-hp"},
                           "spec": {"resourceGroups": groups}});
        cluster.apply(&patch).await;
        cluster.clock.sleep(Duration::from_secs(20)).await;
        let now = cluster.holding().await;
        let started: BTreeMap<String, String> = now
            .iter()
            .filter(|(job, _)| !held.contains_key(*job))
            .map(|(job, (_, flavor))| (job.clone(), flavor.clone()))
            .collect();
        assert_eq!(started, predicted);
        let evicted = |job: &String| !now.contains_key(job);
        let predicted_victims: Vec<String> =
            jobs().filter(|(job, future)| job.holds() && is_now(future.evicted)).map(|(job, _)| job.title()).collect();
        assert_eq!(held.keys().filter(|job| evicted(job)).cloned().collect::<Vec<_>>(), predicted_victims);

        let later: BTreeMap<String, i64> = jobs()
            .filter(|(job, future)| !job.holds() && !is_now(future.admitted))
            .map(|(job, future)| (job.title(), future.admitted.unwrap_or_else(|| panic!("{}", job.title())).0))
            .collect();
        let truth = cluster.watch(later.keys().cloned().collect(), Duration::from_secs(7200)).await;
        let wrong = off(&later, &truth, snapshot.at);
        assert!(wrong.is_empty(), "{wrong:#?}");
        cluster.embedded.stop().await;
    });
}

/// The jobs whose quota the explanation of a job names as what it lacks, as `namespace/job`. Of
/// many holders, an explanation names some and counts the others: then the other holders of the
/// same flavor are among them.
async fn blockers(
    cluster: &Cluster,
    job: &str,
    owners: &BTreeMap<String, String>,
    held: &BTreeMap<String, (Timestamp, String)>,
) -> Vec<String> {
    let (namespace, name) = job.split_once('/').expect("a namespace and a name");
    let explanation = ask::api_server(&cluster.client, namespace, name).await;
    let explanation = explanation.unwrap_or_else(|error| panic!("{job}: {error}"));
    let shortages = explanation["outlook"]["shortages"].as_array().into_iter().flatten();
    let is_cut = shortages.clone().any(|shortage| shortage["holdersUnlisted"].as_u64().unwrap_or(0) > 0);
    let holders = shortages.flat_map(|shortage| shortage["holders"].as_array().into_iter().flatten());
    let mut names: Vec<String> = holders
        .filter_map(|holder| {
            let text = |field: &str| holder["workload"][field].as_str().unwrap_or_default();
            owners.get(&format!("{}/{}", text("namespace"), text("name"))).cloned()
        })
        .collect();
    assert!(!names.is_empty(), "no job holds what {job} lacks: {}", explanation["text"]);
    assert!(names.iter().all(|it| held.contains_key(it)), "{job} waits for jobs that hold quota: {names:?}");
    if is_cut {
        let flavors: BTreeSet<&String> = names.iter().map(|it| &held[it].1).collect();
        let others: Vec<String> =
            held.iter().filter(|(_, (_, flavor))| flavors.contains(flavor)).map(|(job, _)| job.clone()).collect();
        names.extend(others);
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn explanations_after_the_second_step_name_the_true_blockers_of_each_waiting_job() {
    in_virtual_time(async |scenario| {
        let cluster = Cluster::start(scenario).await;
        let workloads = cluster.list("Workload").await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let owners: BTreeMap<String, String> = workloads
            .iter()
            .map(|workload| {
                let metadata = &workload["metadata"];
                let namespace = text(&metadata["namespace"]);
                let owner = text(&metadata["ownerReferences"][0]["name"]);
                (format!("{namespace}/{}", text(&metadata["name"])), format!("{namespace}/{owner}"))
            })
            .collect();
        let held = cluster.holding().await;
        let mut waiting: Vec<&String> = owners.values().filter(|job| !held.contains_key(*job)).collect();
        assert_eq!(waiting.len(), 12, "two urgent jobs of each team wait, and its first everyday job");
        let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for job in &waiting {
            named.insert((*job).clone(), blockers(&cluster, job, &owners, &held).await);
        }
        // No job starts before a job that it was said to wait for has given up its quota.
        let start = cluster.clock.now();
        let mut released: BTreeSet<String> = BTreeSet::new();
        while !waiting.is_empty() {
            let spent = Duration::try_from(cluster.clock.now().duration_since(start)).expect("time goes forward");
            assert!(spent < Duration::from_secs(7200), "these jobs still wait: {waiting:?}");
            cluster.clock.sleep(Duration::from_secs(1)).await;
            let now = cluster.holding().await;
            released.extend(held.keys().filter(|job| !now.contains_key(*job)).cloned());
            waiting.retain(|job| {
                let starts = now.contains_key(*job);
                let is_free = named[*job].iter().any(|blocker| released.contains(blocker));
                assert!(
                    !starts || is_free,
                    "{job} holds quota of {:?}, and so do all of {:?}",
                    now[*job].1,
                    named[*job]
                );
                !starts
            });
        }
        cluster.embedded.stop().await;
    });
}
