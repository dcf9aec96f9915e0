//! The rest of an embedded cluster: what kube-controller-manager, kube-scheduler, kubelet, the cluster autoscaler and
//! a cloud do.
//!
//! Everything here reaches Kubernetes through a client and time through a clock, as in a real cluster: the same
//! controllers run in `berth up` and in virtual time. Decisions are pure functions over snapshots (`scheduling`,
//! `autoscaler::scale_up`, …); controllers read caches, call them and write the result. What must survive a restart
//! stands in the API: a pod's end is its start plus its duration, a machine that was ordered is in its pool's status.

pub mod autoscaler;
pub mod disruption;
pub mod garbage;
pub mod job;
pub mod jobset;
pub mod kubelet;
pub mod logs;
pub mod pools;
pub mod provisioning;
pub mod replicas;
pub mod roles;
pub mod scheduler;
pub mod scheduling;

mod bootstrap;
mod indexes;
mod random;
mod time;

use std::sync::Arc;

use berth_api::berth::ClusterConfiguration;
use berth_runtime::Manager;

pub use logs::{LogOptions, PodLogs};

/// What [`install`] needs to know.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The cluster to be.
    pub configuration: ClusterConfiguration,
    /// Seeds every draw: node name suffixes, run times from distributions.
    pub seed: u64,
    /// Filled with what simulated containers print; hand a clone to the API server's `pods/log`.
    pub logs: PodLogs,
    /// The cluster's CA certificate in PEM, published as ConfigMap `kube-root-ca.crt` in every namespace.
    pub root_ca: Option<String>,
}

/// Where the cluster is and what it is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Cluster name.
    pub cluster: String,
    /// Region; default zones are in it.
    pub region: String,
    /// What kubelets report as their version.
    pub version: String,
    /// Seeds every draw.
    pub seed: u64,
}

/// Adds everything an embedded cluster runs beside the API server to `manager`.
///
/// The kinds it watches (NodePool, ProvisioningRequest, JobSet among them) must be served before the manager runs.
pub fn install(manager: &mut Manager, options: Options) {
    let configuration = &options.configuration;
    let site = Site {
        cluster: configuration.name.clone(),
        region: configuration.region.clone(),
        version: configuration.kubernetes_version.clone(),
        seed: options.seed,
    };
    options.logs.connect(manager, configuration.pods.clone(), options.seed);
    let shared = Arc::new(configuration.clone());
    pools::install(manager, site.clone());
    autoscaler::install(manager, shared.clone(), site.clone());
    provisioning::install(manager, shared, site);
    scheduler::install(manager, configuration);
    kubelet::install(manager, configuration.pods.clone(), options.seed);
    garbage::install(manager, options.root_ca.clone());
    bootstrap::install(manager, configuration.node_pools.clone());
    job::install(manager);
    replicas::install(manager);
    disruption::install(manager);
    roles::install(manager);
    jobset::install(manager);
}
