//! An API server in memory, a node agent that runs pods for the time in their annotations, and a
//! connection to the server that can be cut after a number of writes.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_apiserver::{ApiServer, Body, Config, InProcess, UserInfo};
use berth_runtime::{Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler};
use berth_store::MemoryStore;
use http::{Method, Request, Response};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::Notify;

/// Annotation: `<seconds>` after which the pod succeeds, or `fail:<seconds>` after which it fails
/// with exit code 1.
pub const FATE: &str = "test/fate";

/// A cluster without nodes; the agent reports every pod as running at once.
pub struct World {
    pub server: ApiServer,
    pub clock: Clock,
    /// Names of the pods that were started, in order.
    pub started: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub async fn new() -> Self {
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let of_server = clock.clone();
        let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || of_server.now())));
        server.ready().await.unwrap();
        Self { server, clock, started: Arc::default() }
    }

    /// Creates a cluster that also serves Berth's own kinds.
    pub async fn with_our_kinds() -> Self {
        let world = Self::new().await;
        let definitions: Api<CustomResourceDefinition> = Api::all(world.client());
        for definition in berth_api::crds() {
            let definition: CustomResourceDefinition = serde_json::from_value(definition.clone()).unwrap();
            definitions.create(&PostParams::default(), &definition).await.unwrap();
        }
        world
    }

    pub fn client(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("test")), "default")
    }

    /// Runs these controllers and the node agent until `until` resolves.
    pub async fn run(&self, install: impl FnOnce(&mut Manager), until: impl Future<Output = ()>) {
        self.run_over(self.client(), install, until).await;
    }

    /// Like [`World::run`], with this client for the controllers; the agent has its own.
    pub async fn run_over(&self, client: Client, install: impl FnOnce(&mut Manager), until: impl Future<Output = ()>) {
        let mut manager = Manager::new(client, self.clock.clone());
        install(&mut manager);
        let mut agents = Manager::new(self.client(), self.clock.clone());
        let pods = agents.cache::<Pod>();
        agents.controller("agent").watch_self(&pods).run(Agent {
            client: self.client(),
            clock: self.clock.clone(),
            pods: pods.clone(),
            started: self.started.clone(),
        });
        let jobs = agents.cache::<Job>();
        agents.controller("collector").watch_self(&jobs).watch_owned::<Job, Pod>(&pods).run(Collector {
            client: self.client(),
            jobs,
            pods,
        });
        tokio::select! {
            biased;
            () = until => {}
            ended = manager.run(std::future::pending()) => ended.unwrap(),
            ended = agents.run(std::future::pending()) => ended.unwrap(),
        }
    }
}

/// Waits until `done` returns true, in steps of a second, for an hour at most.
pub async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..3600 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("never: {what}");
}

struct Agent {
    client: Client,
    clock: Clock,
    pods: Cache<Pod>,
    started: Arc<Mutex<Vec<String>>>,
}

impl Reconciler for Agent {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Action::Wait) };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let status = pod.status.clone().unwrap_or_default();
        let phase = status.phase.as_deref().unwrap_or("Pending");
        if pod.metadata.deletion_timestamp.is_some() {
            if pod.metadata.deletion_grace_period_seconds != Some(0) {
                let answer = api.delete(&key.name, &DeleteParams::default().grace_period(0)).await;
                if !answer.as_ref().is_err_and(berth_runtime::is_not_found) {
                    answer?;
                }
            }
            return Ok(Action::Wait);
        }
        let fate = pod.metadata.annotations.as_ref().and_then(|a| a.get(FATE)).map_or("", String::as_str);
        let (fails, seconds) = match fate.strip_prefix("fail:") {
            Some(seconds) => (true, seconds),
            None => (false, fate),
        };
        let Ok(seconds) = seconds.parse::<u64>() else { return Ok(Action::Wait) };
        match phase {
            "Pending" => {
                self.started.lock().unwrap().push(key.name.clone());
                let status = json!({"phase": "Running", "startTime": at(&self.clock),
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(&self.clock)}]});
                self.pods.observe(patch(&api, &key.name, status).await?);
                Ok(Action::After(Duration::from_secs(seconds)))
            }
            "Running" => {
                let end = status.start_time.unwrap().0.checked_add(Duration::from_secs(seconds))?;
                let left = self.clock.until(end);
                if !left.is_zero() {
                    return Ok(Action::After(left));
                }
                let (phase, code) = if fails { ("Failed", 1) } else { ("Succeeded", 0) };
                let status = json!({"phase": phase,
                    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": at(&self.clock)}],
                    "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"terminated": {"exitCode": code, "finishedAt": at(&self.clock)}}}]});
                self.pods.observe(patch(&api, &key.name, status).await?);
                Ok(Action::Wait)
            }
            _ => Ok(Action::Wait),
        }
    }
}

/// The garbage collection that Jobs need: with foreground deletion a Job waits for its pods.
struct Collector {
    client: Client,
    jobs: Cache<Job>,
    pods: Cache<Pod>,
}

impl Reconciler for Collector {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(job) = self.jobs.get(&key).filter(|job| job.metadata.deletion_timestamp.is_some()) else {
            return Ok(Action::Wait);
        };
        let mut owned = self.pods.list_namespace(&key.namespace);
        owned.retain(|pod| {
            pod.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for pod in owned.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            pods.delete(pod.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await?;
        }
        if owned.is_empty() {
            let jobs: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
            let patch = json!({"metadata": {"finalizers": null}});
            let answer = jobs.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            if !answer.as_ref().is_err_and(berth_runtime::is_not_found) {
                answer?;
            }
        }
        Ok(Action::Wait)
    }
}

fn at(clock: &Clock) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    clock.now().into()
}

async fn patch(api: &Api<Pod>, name: &str, status: serde_json::Value) -> kube::Result<Pod> {
    let patch = json!({"status": status});
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// When a cut connection loses a write: before the server has seen it, or after, so that only the
/// response is lost.
#[derive(Clone, Copy, Debug)]
pub enum Loss {
    Request,
    Answer,
}

/// A connection that carries a number of writes and then fails.
#[derive(Clone)]
pub struct CutWire {
    pub inner: InProcess,
    pub writes_left: Arc<AtomicUsize>,
    pub loss: Loss,
    pub dead: Arc<Notify>,
}

impl tower::Service<Request<kube::client::Body>> for CutWire {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let is_write = request.method() != Method::GET && !request.uri().path().contains("/events");
        let left = if is_write {
            self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
        } else {
            Ok(1)
        };
        let answer = tower::Service::call(&mut self.inner, request);
        let (loss, dead) = (self.loss, self.dead.clone());
        Box::pin(async move {
            if left.is_err() {
                if matches!(loss, Loss::Answer) {
                    let _ = answer.await;
                }
                dead.notify_one();
                return std::future::pending().await;
            }
            answer.await
        })
    }
}
