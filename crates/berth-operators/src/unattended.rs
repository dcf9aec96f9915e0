//! Events about objects that no operator reconciles: an object of a kind that none of Berth's
//! operators reconciles gets an event if it has no status after half a minute. An operator that a
//! user installs writes a status, so its objects get no event.

use berth_api::json::Json;
use std::fmt::Debug;
use std::time::Duration;

use berth_api::frameworks::{
    AppWrapper, JAXJob, LeaderWorkerSet, MPIJob, MXJob, PaddleJob, PyTorchJob, RayCluster, RayCronJob, RayJob,
    RayService, SparkApplication, TFJob, TrainJob, XGBoostJob,
};
use berth_runtime::{Action, Cache, Clock, Error, EventType, Manager, ObjectKey, Reconciler, Recorder};
use kube::Resource;
use serde_json::Value;

use crate::Options;

/// Time that an operator has to write the first status.
const GRACE: Duration = Duration::from_secs(30);
/// Reason of the event.
const REASON: &str = "NoOperator";

/// A kind with its status as JSON.
trait Kind: Resource<DynamicType = ()> + Json + Clone + Debug + Send + Sync + 'static {
    /// The status, if there is one.
    fn status(&self) -> Option<&Value>;
}

macro_rules! kinds {
    ($($kind:ty),*) => {
        $(impl Kind for $kind {
            fn status(&self) -> Option<&Value> {
                self.status.as_ref()
            }
        })*
    };
}

kinds!(
    AppWrapper,
    JAXJob,
    LeaderWorkerSet,
    MPIJob,
    MXJob,
    PaddleJob,
    PyTorchJob,
    RayCluster,
    RayCronJob,
    RayJob,
    RayService,
    SparkApplication,
    TFJob,
    TrainJob,
    XGBoostJob
);

/// Watches the kinds that none of Berth's running operators reconciles.
pub fn install(manager: &mut Manager, options: &Options) {
    if !options.ray {
        let what = "Berth's own operator for Ray is off (operators.ray of the ClusterConfiguration); turn it on, or \
                    install KubeRay";
        watch::<RayCluster>(manager, what);
        watch::<RayJob>(manager, what);
        watch::<RayService>(manager, what);
        watch::<RayCronJob>(manager, what);
    }
    if !options.leader_worker_sets {
        watch::<LeaderWorkerSet>(
            manager,
            "Berth's own operator for LeaderWorkerSets is off (operators.leaderWorkerSets of the \
             ClusterConfiguration); turn it on, or install LeaderWorkerSet",
        );
    }
    if !options.trainer {
        watch::<TrainJob>(
            manager,
            "Berth's own operator for TrainJobs is off (operators.trainer of the ClusterConfiguration); turn it on, or \
             install Kubeflow Trainer",
        );
    }
    watch::<SparkApplication>(manager, "Berth has no operator for it; install the Spark operator");
    watch::<MXJob>(manager, "Kubeflow has no operator for it any more; use another kind of training job");
    if !options.training {
        let what = "Berth's own training operator is off (operators.training of the ClusterConfiguration); turn it \
                    on, or install Kubeflow's training operator";
        watch::<PyTorchJob>(manager, what);
        watch::<TFJob>(manager, what);
        watch::<XGBoostJob>(manager, what);
        watch::<PaddleJob>(manager, what);
        watch::<JAXJob>(manager, what);
    }
    if !options.mpi {
        let what = "Berth's own MPI operator is off (operators.mpi of the ClusterConfiguration); turn it on, or \
                    install Kubeflow's MPI operator";
        watch::<MPIJob>(manager, what);
    }
    if options.app_wrappers.is_none() {
        let what = "Berth's own operator for AppWrappers is off (operators.appWrappers of the ClusterConfiguration); \
                    turn it on, or install the AppWrapper operator";
        watch::<AppWrapper>(manager, what);
    }
}

fn watch<K: Kind>(manager: &mut Manager, what: &'static str) {
    let objects = manager.cache_if_served::<K>();
    let recorder = manager.recorder("operators");
    let reporter = Reporter { clock: manager.clock(), recorder, objects: objects.clone(), what };
    manager.controller(&format!("unattended-{}", K::plural(&()))).watch_self(&objects).run(reporter);
}

struct Reporter<K> {
    clock: Clock,
    recorder: Recorder,
    objects: Cache<K>,
    what: &'static str,
}

impl<K: Kind> Reconciler for Reporter<K> {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(object) = self.objects.get(&key) else { return Ok(Action::Wait) };
        let has_status = object.status().and_then(Value::as_object).is_some_and(|status| !status.is_empty());
        let Some(created) = object.meta().creation_timestamp.as_ref().filter(|_| !has_status) else {
            return Ok(Action::Wait);
        };
        let left = self.clock.until(created.0.checked_add(GRACE)?);
        if !left.is_zero() {
            return Ok(Action::After(left));
        }
        let message = format!(
            "No operator has acted on {} {} for {} s, so it does not run. {}.",
            K::kind(&()),
            key.name,
            GRACE.as_secs(),
            self.what
        );
        self.recorder.event(object.as_ref(), EventType::Warning, REASON, &message);
        Ok(Action::Wait)
    }
}
