//! The layer between API objects and the engine: Kueue's controllers, job integrations, admission
//! checks and webhook logic.
//!
//! All decisions are pure functions: they read [`Stores`] (caches of API objects) and one object,
//! and return a plan of writes and events. The reconcilers execute plans through a `kube::Client`;
//! the conformance runner applies them to recorded objects. The engine decides on admission and
//! preemption; see [`translate`].
//!
//! The crate deliberately does not know whether the cluster is real, embedded or simulated.

pub mod aggregated;
pub mod concurrent_admission;
pub mod conditions;
pub mod configuration;
pub mod controllers;
pub mod cool_down;
pub mod decisions;
pub mod devices;
pub mod dump;
pub mod duration;
pub mod execute;
pub mod explain;
pub mod failure_recovery;
pub mod gates;
pub mod gpu_exporters;
pub mod jobs;
mod members;
pub mod metrics;
pub mod plan;
pub mod podset;
pub mod priority;
pub mod provisioning;
pub mod queues;
pub mod rights;
pub mod scheduler;
pub mod selector;
pub mod stores;
pub mod topology;
pub mod translate;
pub mod usage;
pub mod visibility;
pub mod webhooks;
pub mod workload;

pub use configuration::Config;
pub use decisions::Decisions;
pub use devices::Devices;
pub use gates::{Gate, Gates};
pub use stores::Stores;

use std::sync::Arc;

use berth_apimachinery::exposition::Exposition;
use berth_runtime::{Kinds, Manager, Work};

/// The interfaces of installed controllers.
pub struct Installed {
    /// Metrics.
    pub metrics: metrics::Metrics,
    /// Explanations of why a workload is pending.
    pub explain: explain::Explain,
    /// Lists of pending workloads.
    pub visibility: visibility::Visibility,
    /// The state of all queues, for the log.
    pub dump: dump::Dump,
    /// The caches that the controllers read.
    pub stores: Stores,
    /// Which of the optional kinds the cluster serves.
    pub kinds: Kinds,
    /// The last decisions about each workload.
    pub decisions: Decisions,
    /// Figures of the work of all controllers of the manager.
    pub work: Work,
    /// The configuration that decides.
    pub config: Arc<Config>,
    /// The client of the controllers.
    pub client: kube::Client,
}

impl Installed {
    /// Writes all metrics, for a process in this role.
    pub fn write_metrics(&self, role: metrics::Role, exposition: &mut Exposition) {
        self.metrics.write(role, exposition);
        self.kinds.write(exposition);
        self.decisions.write(exposition);
        self.work.write(exposition);
    }
}

/// Registers every controller with the manager; every way to run the controllers uses this
/// function.
pub fn install(manager: &mut Manager, config: Config) -> Installed {
    install_with(manager, config, &Decisions::default())
}

/// Like [`install`], with records of decisions that outlive the controllers: records of an earlier
/// process, or of an earlier term as leader.
pub fn install_with(manager: &mut Manager, config: Config, decisions: &Decisions) -> Installed {
    let config = Arc::new(config);
    configuration::limit_concurrency(&config, manager);
    let job_sets = config.integrations.enabled("jobset.x-k8s.io/jobset");
    let stores = stores(manager, &config, job_sets);
    let state = scheduler::SchedulerState::new(config.engine(), manager.clock());
    let metrics = metrics::Metrics::new(&config, &stores, manager.cache(), &state);
    let fair_sharing = config.fair_sharing.is_some();
    let statuses = scheduler::StatusQueues {
        cluster_queues: queues::cluster_queue::install(manager, &stores, &state, &metrics, fair_sharing),
        local_queues: queues::local_queue::install(manager, &stores, &state, &metrics),
    };
    let scheduler = scheduler::install(manager, &config, &stores, state, statuses, &metrics, decisions);
    if config.fair_sharing.is_some() {
        queues::cohort::install(manager, &stores, &scheduler);
    }
    queues::protect::install(manager, &stores);
    queues::priority_class::install(manager, &stores);
    workload::controller::install(manager, &config, &stores, &metrics, &scheduler);
    if config.gates().on(Gate::ConcurrentAdmission) {
        concurrent_admission::controller::install(manager, &config, &stores, &metrics);
    }
    cool_down::controller::install(manager, &config, &stores);
    topology::install(manager, &config, &stores, &metrics);
    if config.gates().on(Gate::ElasticJobsViaWorkloadSlices) {
        jobs::elastic::install(manager, &stores, &metrics);
    }
    if config.gates().on(Gate::FailureRecoveryPolicy) {
        failure_recovery::controller::install(manager, &config);
    }
    if config.provisioning_requests {
        provisioning::controller::install(manager, &config, &stores);
    }
    if config.integrations.enabled("batch/job") {
        jobs::controller::install(manager, &config, &stores, stores.jobs.clone(), &metrics);
    }
    if job_sets {
        jobs::controller::install(manager, &config, &stores, stores.job_sets.clone(), &metrics);
    }
    if config.integrations.enabled("pod") {
        jobs::pods::controller::install(manager, &config, &stores, &metrics);
    }
    jobs::described::for_each_foreign!(Kind => {
        if config.integrations.enabled(<Kind as jobs::Job>::FRAMEWORK) {
            let objects = manager.cache_if_served::<Kind>();
            jobs::controller::install(manager, &config, &stores, objects, &metrics);
        }
    });
    let explain = explain::Explain::new(scheduler.state.clone(), stores.clone(), decisions.clone(), manager.client());
    let dump = dump::Dump::new(scheduler.state.clone(), stores.clone());
    let visibility = visibility::Visibility::new(scheduler.state, stores.workloads.clone());
    let decisions = decisions.clone();
    let (kinds, work) = (manager.kinds(), manager.work());
    let client = manager.client();
    Installed { metrics, explain, visibility, dump, stores, kinds, decisions, work, config, client }
}

/// The caches of all kinds that the configuration needs. Controllers keep clones of them, so they
/// are complete before the first controller is registered.
fn stores(manager: &mut Manager, config: &Config, job_sets: bool) -> Stores {
    let mut stores = Stores::watched(manager, job_sets);
    // Operators add and remove these kinds at any time; a cluster needs none of them.
    jobs::described::for_each_foreign!(Kind => {
        if config.integrations.enabled(<Kind as jobs::Job>::FRAMEWORK) {
            stores.add_owners(manager.cache_if_served::<Kind>());
        }
    });
    if config.integrations.enabled(<jobs::train_job::TrainJob as jobs::Job>::FRAMEWORK) {
        stores.training_runtimes = manager.cache_if_served();
        stores.cluster_training_runtimes = manager.cache_if_served();
    }
    // Ray's autoscaler changes the size of the cluster that a RayJob or RayService made.
    if jobs::described::ray::MAKES_CLUSTERS.iter().any(|kind| config.integrations.enabled(kind)) {
        stores.ray_clusters = manager.cache_if_served();
    }
    stores.devices =
        Devices::watched(manager, &config.resources.device_class_mappings, &config.gates(), &stores.workloads);
    let reads_sets = [jobs::pods::stateful_set::PARENT, jobs::pods::replica::PARENT];
    if reads_sets.iter().any(|integration| config.integrations.enabled(integration)) {
        stores.stateful_sets = manager.cache();
        stores.add_owners(stores.stateful_sets.clone());
    }
    if config.integrations.enabled(jobs::pods::replica::PARENT) {
        stores.leader_worker_sets = manager.cache_if_served();
    }
    stores
}
