//! The load: pods of several kinds and Jobs, how each must end, and what their programs wrote.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(120);
/// Number of objects created after each start of the cluster.
const OBJECTS_PER_START: usize = 8;
/// Number of pods of a Job.
const COMPLETIONS: usize = 2;

/// The next pseudorandom number (Knuth's linear congruential generator).
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// The kind of an object, and the required end of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Runs for some hundredths of a second or some seconds, and ends with this code.
    Once { hundredths: u64, exit_code: i32 },
    /// Has a device, runs for a moment and succeeds.
    Device,
    /// Fails once, and succeeds when it is restarted.
    Retried,
    /// Runs until it is deleted.
    Deleted,
    /// A Job of two pods, none of which may fail.
    Job,
}

/// The load, and what is known about its objects.
pub struct Load {
    /// Folder in which the programs write.
    records: PathBuf,
    /// Variable in the environment of each program.
    pub mark: String,
    number: u64,
    /// Objects whose creation was requested without a response.
    unsure: VecDeque<String>,
    /// Objects that were created. Some of them may have been deleted since.
    created: BTreeMap<String, Kind>,
    /// Pods whose deletion was requested.
    deleted: BTreeSet<String>,
}

impl Load {
    /// A load that has not been started. Creates its files in `home`.
    pub fn new(home: &Path) -> Self {
        let records = home.join("records");
        std::fs::create_dir(&records).expect("a new folder");
        let device = |number: u32| {
            let path = home.join(format!("device{number}"));
            std::fs::write(&path, number.to_string()).expect("a file");
            json!({"resource": "example.com/device", "id": format!("device-{number}"), "paths": [path]})
        };
        let devices = json!({"devices": [device(0), device(1)]}).to_string();
        std::fs::write(home.join("devices.yaml"), devices).expect("a file");
        let mark = format!("BERTH_TEST_MARK=kills-{}", std::process::id());
        Self { records, mark, number: 0, unsure: VecDeque::new(), created: BTreeMap::new(), deleted: BTreeSet::new() }
    }

    /// Creates objects, and deletes pods that run forever. Never returns.
    pub async fn run(&mut self, client: &Client) {
        // Creations whose response was lost are repeated.
        for _ in 0..self.unsure.len() {
            self.create(client, None).await;
        }
        let old: Vec<String> =
            self.of_kind(&Kind::Deleted).filter(|name| !self.deleted.contains(*name)).cloned().collect();
        for count in 0.. {
            if count < OBJECTS_PER_START {
                let name = self.next_name();
                self.create(client, Some(name)).await;
            }
            if let Some(name) = old.get(count) {
                self.delete_pod(client, name).await;
            }
            sleep(PAUSE).await;
        }
    }

    fn of_kind(&self, kind: &Kind) -> impl Iterator<Item = &String> {
        self.created.iter().filter(move |(_, other)| *other == kind).map(|(name, _)| name)
    }

    fn next_name(&mut self) -> String {
        self.number += 1;
        format!("p{}", self.number)
    }

    fn kind(name: &str) -> Kind {
        let number: u64 = name[1..].parse().expect("a number");
        let exit_code = i32::try_from(number % 5).expect("small");
        match number % 8 {
            0 => Kind::Job,
            1 => Kind::Retried,
            2 => Kind::Device,
            3 => Kind::Deleted,
            4 | 5 => Kind::Once { hundredths: 100 + number % 7 * 60, exit_code },
            _ => Kind::Once { hundredths: number % 10, exit_code },
        }
    }

    /// Creates the object with this name. Without a name, creates the first object of which it is
    /// unknown whether it exists.
    async fn create(&mut self, client: &Client, name: Option<String>) {
        // The object stays in the list if this future is dropped.
        match name {
            Some(name) => self.unsure.push_front(name),
            None if self.unsure.is_empty() => return,
            None => {}
        }
        let name = self.unsure.front().expect("not empty").clone();
        let kind = Self::kind(&name);
        let is_created = if kind == Kind::Job {
            let job = serde_json::from_value(self.job(&name)).expect("a Job");
            Api::<Job>::default_namespaced(client.clone()).create(&PostParams::default(), &job).await.map(drop)
        } else {
            let pod = serde_json::from_value(self.pod(&name, &kind)).expect("a pod");
            Api::<Pod>::default_namespaced(client.clone()).create(&PostParams::default(), &pod).await.map(drop)
        };
        match is_created {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            // The namespace is new, and its service account does not exist yet.
            Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("serviceaccount") => {
                return self.unsure.rotate_left(1);
            }
            Err(error) => panic!("{name}: {error}"),
        }
        self.unsure.pop_front();
        self.created.insert(name, kind);
    }

    async fn delete_pod(&mut self, client: &Client, name: &str) {
        self.deleted.insert(name.to_owned());
        match Api::<Pod>::default_namespaced(client.clone()).delete(name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }

    fn pod(&self, name: &str, kind: &Kind) -> Value {
        let retried = "if [ -e /state/done ]; then echo end >> $f; exit 0; fi; touch /state/done; exit 3";
        let (rest, policy) = match kind {
            Kind::Once { hundredths, exit_code } => {
                let seconds = format!("{}.{:02}", hundredths / 100, hundredths % 100);
                (format!("sleep {seconds}; echo end >> $f; exit {exit_code}"), "Never")
            }
            Kind::Device => ("sleep 0.3; echo end >> $f; exit 0".to_owned(), "Never"),
            Kind::Retried => (retried.to_owned(), "OnFailure"),
            Kind::Deleted => ("sleep 10000".to_owned(), "Never"),
            Kind::Job => ("sleep 0.5; echo end >> $f".to_owned(), "Never"),
        };
        let (variable, value) = self.mark.split_once('=').expect("a variable");
        let limits = if *kind == Kind::Device { json!({"example.com/device": "1"}) } else { json!({}) };
        json!({
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": policy,
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": "host",
                    "command": ["sh", "-c", format!("f=/records/{name}.$UID_OF_POD; echo start >> $f; {rest}")],
                    "env": [
                        {"name": "UID_OF_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                        {"name": variable, "value": value},
                    ],
                    "resources": {"limits": limits},
                    "volumeMounts": [{"name": "records", "mountPath": "/records"},
                                     {"name": "state", "mountPath": "/state"}],
                }],
                "volumes": [{"name": "records", "hostPath": {"path": self.records, "type": "Directory"}},
                            {"name": "state", "emptyDir": {}}],
            },
        })
    }

    fn job(&self, name: &str) -> Value {
        let pod = self.pod(name, &Kind::Job);
        json!({
            "metadata": {"name": name},
            "spec": {"completions": COMPLETIONS, "parallelism": COMPLETIONS, "backoffLimit": 0,
                     "template": {"spec": pod["spec"]}},
        })
    }

    /// Repeats the creations whose effect is unknown, deletes all pods that run forever, and waits
    /// until all others have ended.
    pub async fn settle(&mut self, client: &Client, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.unsure.is_empty() {
            assert!(Instant::now() < deadline, "not created after {limit:?}: {:?}", self.unsure);
            self.create(client, None).await;
        }
        // The response to a deletion may have been lost, so all are repeated.
        let endless: Vec<String> = self.of_kind(&Kind::Deleted).cloned().collect();
        for name in endless {
            self.delete_pod(client, &name).await;
        }
        loop {
            let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("pods");
            let jobs = Api::<Job>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("Jobs");
            let mut open: Vec<String> = pods.iter().filter(|pod| !is_ended(pod)).map(shown).collect();
            open.extend(jobs.iter().filter(|job| !is_finished(job)).map(|job| format!("Job {}", job.name_any())));
            if open.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "not ended after {limit:?}:\n{}", open.join("\n"));
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Compares all pods and Jobs with the expected results. Returns the number of objects of each
    /// kind.
    pub async fn verify(&self, client: &Client) -> String {
        let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("pods");
        let jobs = Api::<Job>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("Jobs");
        let mut wrong = String::new();
        let mut check = |name: &str, what: &str, found: &dyn std::fmt::Debug, is_right: bool| {
            if !is_right {
                let _ = writeln!(wrong, "{name}: {what}: {found:?}");
            }
        };
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, kind) in &self.created {
            let records = self.records_of(name);
            let lines = |word: &str| records.iter().map(|text| text.matches(word).count()).collect::<Vec<_>>();
            let (starts, ends) = (lines("start"), lines("end"));
            let pod = pods.iter().find(|pod| pod.name_any() == *name);
            let end = pod.map(|pod| (ended(pod), restarts(pod)));
            let (label, wanted, start_count) = match kind {
                Kind::Once { hundredths: 0..100, exit_code } => ("short", Some((vec![*exit_code], 0)), vec![1]),
                Kind::Once { exit_code, .. } => ("long", Some((vec![*exit_code], 0)), vec![1]),
                Kind::Device => ("with a device", Some((vec![0], 0)), vec![1]),
                Kind::Retried => ("restarted once", Some((vec![0], 1)), vec![2]),
                Kind::Deleted => ("deleted", None, vec![1]),
                Kind::Job => ("Jobs", None, vec![1; COMPLETIONS]),
            };
            *counts.entry(label).or_default() += 1;
            check(name, "exit codes and restarts", &end, end == wanted);
            if *kind == Kind::Deleted {
                // It may have been deleted before it started, or between the creation of the file
                // and the first line.
                let is_right = starts.is_empty() || starts == [0] || starts == start_count;
                check(name, "starts", &starts, is_right);
                continue;
            }
            check(name, "starts", &starts, starts == start_count);
            check(name, "ends", &ends, ends == vec![1; start_count.len()]);
            if *kind == Kind::Job {
                let job = jobs.iter().find(|job| job.name_any() == *name);
                let succeeded = job.and_then(|job| job.status.as_ref()?.succeeded);
                check(name, "succeeded", &succeeded, succeeded == i32::try_from(COMPLETIONS).ok());
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
        format!("{counts:?}")
    }

    /// The files of a pod or Job, one per UID.
    fn records_of(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(&self.records).expect("a folder").flatten();
        let files = entries.filter(|entry| {
            let file = entry.file_name().into_string().unwrap_or_default();
            file.split_once('.').is_some_and(|(owner, _)| owner == name)
        });
        files.map(|file| std::fs::read_to_string(file.path()).expect("a text")).collect()
    }

    /// The UIDs of all pods that exist or wrote a file.
    pub async fn uids(&self, client: &Client) -> BTreeSet<String> {
        let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await.expect("pods");
        let entries = std::fs::read_dir(&self.records).expect("a folder").flatten();
        let files = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let of_files = files.filter_map(|file| file.split_once('.').map(|(_, uid)| uid.to_owned()));
        pods.iter().filter_map(ResourceExt::uid).chain(of_files).collect()
    }

    /// Starts a pod that runs until it is deleted, and waits until it runs.
    pub async fn run_one(&mut self, client: &Client, limit: Duration) {
        let name = loop {
            let name = self.next_name();
            if Self::kind(&name) == Kind::Deleted {
                break name;
            }
        };
        self.create(client, Some(name.clone())).await;
        let deadline = Instant::now() + limit;
        loop {
            let pod = Api::<Pod>::default_namespaced(client.clone()).get(&name).await.expect("the pod exists");
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Running") && self.records_of(&name) == ["start\n"] {
                return;
            }
            assert!(Instant::now() < deadline, "not running after {limit:?}: {}", shown(&pod));
            sleep(PAUSE).await;
        }
    }

    /// Deletes everything, and waits until no pod exists.
    pub async fn delete(&self, client: &Client, limit: Duration) {
        let all = ListParams::default();
        let background = DeleteParams::background();
        Api::<Job>::default_namespaced(client.clone()).delete_collection(&background, &all).await.expect("deleted");
        let pods = Api::<Pod>::default_namespaced(client.clone());
        pods.delete_collection(&DeleteParams::default(), &all).await.expect("deleted");
        let deadline = Instant::now() + limit;
        loop {
            let left: Vec<String> = pods.list(&all).await.expect("pods").iter().map(shown).collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "not deleted after {limit:?}:\n{}", left.join("\n"));
            sleep(Duration::from_millis(250)).await;
        }
    }
}

fn is_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")) && pod.metadata.deletion_timestamp.is_none()
}

fn is_finished(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|it| matches!(it.type_.as_str(), "Complete" | "Failed") && it.status == "True")
}

fn ended(pod: &Pod) -> Vec<i32> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter_map(|status| Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)).collect()
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

fn shown(pod: &Pod) -> String {
    let status = serde_json::to_string(&pod.status).unwrap_or_default();
    format!("pod {} deleted {:?}: {status}", pod.name_any(), pod.metadata.deletion_timestamp)
}
