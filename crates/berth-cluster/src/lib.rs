//! The controllers of an embedded cluster: counterparts of kube-controller-manager, kube-scheduler,
//! kubelet, the cluster autoscaler and a cloud's node pools.
//!
//! All access to Kubernetes goes through a client, and all time through a clock, so that the same
//! controllers run in `berth up` and in virtual time. Decisions are pure functions of snapshots
//! (`placement`, `autoscaler::scale_up`, …); the controllers read caches, call these functions and
//! write the result. State that must survive a restart is in the API: a pod ends at its start time
//! plus its duration, and an ordered machine is listed in its pool's status.

pub mod autoscaler;
pub mod cron_job;
pub mod devices;
pub mod disruption;
pub mod endpoints;
pub mod gangs;
pub mod garbage;
pub mod gpus;
pub mod job;
pub mod jobset;
pub mod kube_state;
pub mod kubelet;
pub mod logs;
pub mod machine;
pub mod metrics;
pub mod placement;
pub mod pod_autoscaler;
pub mod pod_groups;
pub mod pools;
pub mod provisioning;
pub mod replicas;
pub mod roles;
pub mod scheduler;

pub mod storage;
pub mod taint_eviction;

mod bootstrap;
mod indexes;
mod random;

use std::sync::Arc;

use berth_api::berth::ClusterConfiguration;
use berth_runtime::Manager;

pub use kubelet::options::{ClusterIps, KubeletOptions, ServiceAddresses};
pub use kubelet::process::ProcessNode;
pub use logs::{LogOptions, PodLogs};
pub use machine::MachineNode;

/// Options of [`install`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Configuration of the cluster.
    pub configuration: ClusterConfiguration,
    /// Seed of all random values, such as node name suffixes and run times.
    pub seed: u64,
    /// The logs of simulated containers; a clone serves the API server's `pods/log`.
    pub logs: PodLogs,
    /// The nodes that run containers. All other nodes are simulated, and the first runs the pods of
    /// the hosted ones.
    pub process_nodes: Vec<ProcessNode>,
    /// Nodes of this process that keep volumes in folders; the volumes of other nodes are
    /// simulated.
    pub folders: storage::Folders,
    /// Sources of the usage in `metrics.k8s.io`; nodes without a source are simulated. The API
    /// server of this process has a clone.
    pub metrics: metrics::ClusterMetrics,
    /// Writes the metrics of nodes, pods, Jobs and GPUs. The API server of this process has a
    /// clone.
    pub state: kube_state::KubeState,
    /// The cluster's CA certificate in PEM, published as ConfigMap `kube-root-ca.crt` in every
    /// namespace.
    pub root_ca: Option<String>,
    /// This machine as a node. Simulated nodes then have a taint.
    pub machine: Option<MachineNode>,
    /// True if all pods are of Jobs without volumes, and no node is added or removed: the
    /// controllers of other workloads, of Services, of volumes and of node pools are left out. Each
    /// of them would look at every change of every pod.
    pub jobs_only: bool,
}

/// The cluster's name, region and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Cluster name.
    pub cluster: String,
    /// Region; the default zones are in this region.
    pub region: String,
    /// Kubernetes version that the kubelets report.
    pub version: String,
    /// Seed of all random values.
    pub seed: u64,
    /// True if simulated nodes have the taint [`pools::SIMULATED_TAINT`], because there is a real
    /// node.
    pub taints_simulated: bool,
}

/// Adds all controllers of an embedded cluster to `manager`.
///
/// The API server must serve the kinds that they watch (among them NodePool,
/// ProvisioningClass, ProvisioningRequest and JobSet) before the manager runs.
pub fn install(manager: &mut Manager, options: Options) {
    let configuration = &options.configuration;
    let site = Site {
        cluster: configuration.name.clone(),
        region: configuration.region.clone(),
        version: configuration.kubernetes_version.clone(),
        seed: options.seed,
        taints_simulated: options.machine.is_some(),
    };
    options.logs.connect(manager, configuration.pods.clone(), options.seed);
    let shared = Arc::new(configuration.clone());
    if !options.jobs_only {
        pools::install(manager, site.clone());
        autoscaler::install(manager, shared, site.clone());
        provisioning::install(manager, site);
    }
    scheduler::install(manager, configuration);
    if scheduler::forms_gangs(configuration) {
        pod_groups::install(manager);
    }
    let process_nodes = options.process_nodes.iter().map(|node| node.name.clone()).collect();
    if let Some(node) = &options.machine {
        machine::install(manager, node.clone(), &configuration.kubernetes_version);
    }
    machine::install_lifecycle(manager);
    taint_eviction::install(manager);
    kubelet::simulated::install(manager, configuration.pods.clone(), options.seed, process_nodes);
    metrics::install(manager, &options.metrics, options.state.gpus(), &options.process_nodes);
    options.state.connect(manager);
    kubelet::process::install(manager, options.process_nodes.clone());
    garbage::install(manager, options.root_ca.clone());
    if !options.jobs_only {
        storage::install(manager, options.folders.clone());
    }
    devices::install(manager);
    bootstrap::install(manager, configuration);
    job::install(manager);
    if options.jobs_only {
        return;
    }
    cron_job::install(manager);
    replicas::install(manager);
    pod_autoscaler::install(manager);
    disruption::install(manager);
    endpoints::install(manager);
    roles::install(manager);
    jobset::install(manager);
}
