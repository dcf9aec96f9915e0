//! A whole cluster in this process, durable and in real time, for benches of real Jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_embedded::{Embedded, Options as EmbeddedOptions, Storage};
use berth_process::connect::Requests;
use berth_process::process;
use berth_runtime::Clock;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::Layer;

use crate::objects::create;
use crate::target::{Folder, Writes, writes};

/// A run without any progress for this long fails.
pub const STALLED: Duration = Duration::from_secs(60);
/// Maximum number of submissions in flight.
pub const SUBMISSIONS_MAX: usize = 64;
const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

/// A running cluster.
pub struct Simulated {
    /// Request counts of the cluster's own controllers.
    requests: Requests,
    /// The bench's own client.
    pub client: Client,
    embedded: Embedded,
    nodes: u32,
    _folder: Folder,
}

/// A namespace with a LocalQueue, and a ClusterQueue of its own. All three have the same name.
pub struct Team<'a> {
    /// Name of the three objects.
    pub name: &'a str,
    /// Nominal quota, in CPUs.
    pub cpus: u64,
    /// The cohort of its ClusterQueue.
    pub cohort: Option<&'a str>,
}

impl Simulated {
    /// Starts a cluster of nodes with 32 CPUs each. Pods run for `runtime`, and take no time to
    /// start or stop.
    pub async fn start(data_dir: Option<&Path>, nodes: u32, runtime: Duration) -> anyhow::Result<Self> {
        let folder = Folder::of(data_dir)?;
        let cluster = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration", "metadata": {"name": "bench"},
            "spec": {
                "nodePools": [{"name": "bench", "machineType": "e2-standard-32", "zones": ["us-central1-a"],
                               "initialNodes": nodes, "static": true}],
                "pods": {"startDelay": "0s", "stopDelay": "0s",
                         "defaultDuration": format!("{}ms", runtime.as_millis())},
            },
        });
        let requests = Requests::default();
        let connect = |connection| Client::new(requests.layer(connection), "default");
        let options = EmbeddedOptions {
            clock: Clock::system(),
            seed: process::entropy()?,
            storage: Storage::Durable(folder.path().to_owned()),
            cluster: Some(cluster),
            configuration: None,
            root_ca: None,
            token_key: None,
            front_proxy: None,
            audit: None,
            pod_security: Default::default(),
            node: None,
            unattended: false,
            jobs_only: false,
            apart: false,
            forecasts: None,
            decisions: berth_controllers::Decisions::default(),
        };
        let embedded = Embedded::start_through(options, connect).await?;
        let client = embedded.observer();
        Ok(Simulated { requests, client, embedded, nodes, _folder: folder })
    }

    /// Creates the teams' objects, and waits until their queues are active and the nodes ready.
    pub async fn prepare(&self, teams: &[Team<'_>]) -> anyhow::Result<()> {
        let flavor = json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "bench"}});
        self.create(&format!("/apis/{KUEUE}/resourceflavors"), &flavor).await?;
        for team in teams {
            for (path, object) in team.objects() {
                self.create(&path, &object).await?;
            }
        }
        let deadline = Instant::now() + STALLED;
        loop {
            let nodes = self.get("/api/v1/nodes").await?;
            let ready = nodes["items"].as_array().into_iter().flatten().filter(|node| is(node, "Ready")).count();
            let mut inactive = Vec::new();
            for team in teams {
                let queue = self.get(&format!("/apis/{KUEUE}/clusterqueues/{}", team.name)).await?;
                inactive.extend((!is(&queue, "Active")).then_some(queue));
            }
            if ready >= self.nodes as usize && inactive.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{ready} of {} nodes are ready; ClusterQueues that are not active: {inactive:?}", self.nodes);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Writes of the controllers and of the simulated cluster so far.
    pub fn controller_writes(&self) -> Writes {
        writes(&self.requests.text())
    }

    /// Reads an object or a list.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(self.client.request(http::Request::get(path).body(Vec::new())?).await?)
    }

    /// Stops everything.
    pub async fn stop(self) {
        self.embedded.stop().await;
    }

    async fn create(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        create(&self.client, path, object.to_string().into_bytes()).await.with_context(|| path.to_owned())
    }
}

/// True if a condition of the object is true.
pub fn is(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == condition && it["status"] == "True")
}

impl Team<'_> {
    fn objects(&self) -> Vec<(String, Value)> {
        let name = self.name;
        let quota = json!({"name": "cpu", "nominalQuota": self.cpus.to_string()});
        let mut queue = json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name},
                               "spec": {"namespaceSelector": {},
                                        "resourceGroups": [{"coveredResources": ["cpu"],
                                                            "flavors": [{"name": "bench", "resources": [quota]}]}]}});
        if let Some(cohort) = self.cohort {
            queue["spec"]["cohortName"] = cohort.into();
        }
        vec![
            (
                "/api/v1/namespaces".to_owned(),
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            ),
            (format!("/apis/{KUEUE}/clusterqueues"), queue),
            (
                format!("/apis/{KUEUE}/namespaces/{name}/localqueues"),
                json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name, "namespace": name},
                       "spec": {"clusterQueue": name}}),
            ),
        ]
    }
}

/// API path of a team's Jobs.
pub fn jobs_path(team: &str) -> String {
    format!("/apis/batch/v1/namespaces/{team}/jobs")
}

/// Submits a Job of one pod with one CPU to its team's queue.
pub async fn submit(client: &Client, team: &str, name: &str) -> Result<(), kube::Error> {
    let object = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": team}},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "load", "resources": {"requests": {"cpu": "1"}}}],
        }}},
    });
    create(client, &jobs_path(team), object.to_string().into_bytes()).await
}

/// Submits Jobs `job-0`, `job-1` and so on as fast as the API accepts them. Returns the time of
/// each submission by name.
pub async fn submit_many(client: &Client, team: &str, count: usize) -> anyhow::Result<BTreeMap<String, Instant>> {
    let slots = Arc::new(Semaphore::new(SUBMISSIONS_MAX));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        let (client, slot, team) = (client.clone(), slots.clone().acquire_owned().await?, team.to_owned());
        tasks.spawn(async move {
            let name = format!("job-{number}");
            let at = Instant::now();
            let created = submit(&client, &team, &name).await;
            drop(slot);
            created.map(|()| (name, at))
        });
    }
    let mut all = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        let (name, at) = done?.context("submitting a job")?;
        all.insert(name, at);
    }
    Ok(all)
}
