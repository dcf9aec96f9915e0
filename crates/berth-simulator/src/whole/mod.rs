//! Replays a trace with every job as a Job: API server, controllers, pod scheduler and simulated
//! nodes run in virtual time, and the Workloads are watched.
//!
//! ```text
//! Policy ──objects::platform──▶ Kueue's objects and one node per flavor ─┐
//! Trace ──objects::job──▶ a Job at each submission ──────────────────────┼─ Embedded ──watch──▶ Observed ──▶ History
//! ```
//!
//! The nodes have room for everything that the quota admits, so that both depths of a replay decide
//! about the same capacity. What only a whole cluster does takes a little cluster time: pods are
//! bound, started and counted.
//!
//! A cluster runs on one thread. The module [`pieces`] divides a trace at times at which no job
//! runs or waits, so that several clusters replay it at the same time.

mod names;
mod objects;
mod observed;
mod pieces;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_api::kueue::v1beta2::Workload;
use berth_embedded::{Embedded, EmbeddedError, Options};
use berth_engine::model::Time;
use berth_foresight::replay::Replay;
use berth_load::{History, Load};
use berth_runtime::Clock;
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::manifest::{Manifest, ManifestError};
use crate::resource::{ResourceError, Resources};
use names::Names;
use observed::Observed;

/// Cluster time before the first submission: the queues become active, and the nodes ready.
const BEFORE: Duration = Duration::from_secs(60);
/// Time between two jobs of one instant, so that their order is that of the trace.
const BETWEEN: Duration = Duration::from_millis(1);
/// Once all jobs are submitted and none holds quota, a run ends if none is admitted for this long.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Why a whole replay could not be made.
#[derive(Debug, thiserror::Error)]
pub enum WholeError {
    /// The policy has an object that needs a controller which a replay does not have.
    #[error("{0}")]
    Policy(String),
    /// The cluster did not start.
    #[error(transparent)]
    Embedded(#[from] EmbeddedError),
    /// The API rejected an object of the policy.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A request to the API failed.
    #[error(transparent)]
    Api(#[from] ResourceError),
    /// The async runtime could not be created.
    #[error("cannot create the async runtime")]
    Runtime(#[source] std::io::Error),
}

/// How a trace is divided among clusters. The division does not depend on the number of threads,
/// and so the history does not either.
#[derive(Clone, Copy, Debug)]
pub struct Division {
    /// Number of clusters that run at the same time, each on a thread of its own.
    pub threads: usize,
    /// A cluster replays at least this much before the trace goes on in a new one: the number of
    /// pods, and four per job. With `u64::MAX`, one cluster replays everything.
    pub cost_min: u64,
}

impl Default for Division {
    /// One thread per CPU. A cluster replays so much that its start is a fiftieth of its work.
    fn default() -> Self {
        Self { threads: std::thread::available_parallelism().map_or(1, usize::from), cost_min: 12_000 }
    }
}

/// Replays a trace under a policy through whole clusters, with the default [`Division`]. `ended` is
/// increased by one for each job that ended. The history has no cycles and no restless instants,
/// which only the engine knows. Blocks the calling thread. Must not be called from within a tokio
/// runtime.
///
/// # Errors
/// The policy cannot be part of a cluster, or a request to the API failed.
pub fn replay(replay: &Replay<'_>, ended: &AtomicUsize) -> Result<History, WholeError> {
    replay_divided(replay, &Division::default(), ended)
}

/// Like [`replay`], with this division.
///
/// # Errors
/// The policy cannot be part of a cluster, or a request to the API failed.
pub fn replay_divided(replay: &Replay<'_>, division: &Division, ended: &AtomicUsize) -> Result<History, WholeError> {
    if let Some(problem) = objects::unsupported(replay.policy()) {
        return Err(WholeError::Policy(problem));
    }
    pieces::replay(replay, division, ended, &|jobs| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(WholeError::Runtime)?;
        runtime.block_on(run(replay, jobs, ended))
    })
}

/// Replays consecutive jobs through a cluster that is new at the first of them.
async fn run(replay: &Replay<'_>, jobs: Range<usize>, ended: &AtomicUsize) -> Result<History, WholeError> {
    let mut names = Names::default();
    let before = if jobs.start == 0 { Duration::ZERO } else { replay.trace().jobs[jobs.start].submitted };
    let start = timestamp(replay.start().after(before));
    let clock = Clock::scaled(start.checked_sub(signed(BEFORE)).unwrap_or(start), 1.0);
    let configuration = Some(objects::configuration(replay.policy()));
    let options = Options {
        // Events would be half of the writes. Nothing can read them during the replay.
        unattended: true,
        jobs_only: true,
        ..Options::in_memory(clock.clone(), 1, Some(objects::cluster()), configuration)
    };
    let embedded = Embedded::start(options).await?;
    let client = embedded.observer();
    let resources = Resources::new(client.clone());
    for object in objects::platform(replay, &mut names) {
        let manifest = Manifest { origin: format!("policy {}", replay.policy().name), object };
        manifest.create(&resources, None).await?;
    }
    let observed = Arc::new(Mutex::new(Observed::new(replay, jobs.clone(), &names)));
    let watch = Watch { client: client.clone(), clock: clock.clone(), observed: observed.clone() };
    let submit = submit(replay, jobs, &names, &client, &clock, &observed);
    let history = tokio::select! {
        failed = watch.run() => Err(failed),
        submitted = async { submit.await?; wait(&clock, &observed, ended).await } => submitted,
    };
    embedded.stop().await;
    history.map(|()| observed.lock().take())
}

/// Creates each job at its time.
async fn submit(
    replay: &Replay<'_>,
    jobs: Range<usize>,
    names: &Names,
    client: &Client,
    clock: &Clock,
    observed: &Mutex<Observed>,
) -> Result<(), WholeError> {
    let start = timestamp(replay.start());
    let mut last = Timestamp::MIN;
    for number in jobs {
        let job = &replay.trace().jobs[number];
        let at = start.checked_add(signed(job.submitted)).unwrap_or(Timestamp::MAX);
        let at = at.max(last.checked_add(signed(BETWEEN)).unwrap_or(Timestamp::MAX));
        last = at;
        clock.sleep_until(at).await;
        observed.lock().created();
        let object = objects::job(replay, number, names);
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let jobs: Api<Job> = Api::namespaced(client.clone(), &namespace);
        let created = jobs.create(&PostParams::default(), &object).await;
        created.map_err(|error| ResourceError::api(format!("the Job of job {}", job.name), error))?;
    }
    Ok(())
}

/// Waits until every job has ended, or nothing happens any more.
async fn wait(clock: &Clock, observed: &Mutex<Observed>, ended: &AtomicUsize) -> Result<(), WholeError> {
    let (mut seen, mut counted) = ((0, clock.now()), 0);
    loop {
        let (open, holding, changes, done) = {
            let observed = observed.lock();
            (observed.open(), observed.holding(), observed.changes(), observed.ended())
        };
        ended.fetch_add(done - counted, Ordering::Relaxed);
        counted = done;
        if changes != seen.0 {
            seen = (changes, clock.now());
        }
        let idle = clock.now().duration_since(seen.1) > signed(PATIENCE);
        if open == 0 || (holding == 0 && idle) {
            return Ok(());
        }
        clock.sleep(Duration::from_secs(10)).await;
    }
}

/// The watch of the Workloads.
struct Watch {
    client: Client,
    clock: Clock,
    observed: Arc<Mutex<Observed>>,
}

impl Watch {
    /// Watches until a request fails.
    async fn run(self) -> WholeError {
        match self.follow().await {
            Ok(never) => match never {},
            Err(error) => WholeError::Api(ResourceError::api("the watch of Workloads", error)),
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, kube::Error> {
        let workloads: Api<Workload> = Api::all(self.client.clone());
        let list = workloads.list(&ListParams::default()).await?;
        let mut revision = list.metadata.resource_version.unwrap_or_default();
        loop {
            let mut events = std::pin::pin!(workloads.watch(&WatchParams::default(), &revision).await?);
            while let Some(event) = events.try_next().await? {
                let workload = match event {
                    WatchEvent::Added(workload) | WatchEvent::Modified(workload) => workload,
                    WatchEvent::Deleted(_) => continue,
                    WatchEvent::Bookmark(bookmark) => {
                        revision = bookmark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                };
                self.observed.lock().workload(&workload, berth_controllers::translate::time(self.clock.now()));
                revision = workload.metadata.resource_version.unwrap_or_default();
            }
        }
    }
}

fn timestamp(at: Time) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}

/// The distinct priorities of the jobs, which become WorkloadPriorityClasses.
fn priorities(replay: &Replay<'_>) -> BTreeSet<i64> {
    (0..replay.trace().jobs.len()).map(|number| replay.priority(number)).filter(|priority| *priority != 0).collect()
}
