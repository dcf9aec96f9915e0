//! A whole cluster in this process: store, API server, Berth's controllers and the simulated
//! nodes.
//!
//! [`crate::api`] starts the API server. The controllers and the simulated cluster run in one
//! manager, so that they share caches.

use std::path::PathBuf;
use std::sync::Arc;

use berth_api::berth::ClusterConfiguration;
use berth_apimachinery::field;
use berth_apiserver::admission::pod_security::PodSecurity;
use berth_apiserver::audit::Log;
use berth_apiserver::auth::tokens::TokenKey;
use berth_apiserver::pki::FrontProxy;
use berth_apiserver::{ApiServer, InProcess, UserInfo};
use berth_cluster::storage::Folders;
use berth_cluster::{MachineNode, ProcessNode};
use berth_controllers::{Decisions, configuration, rights};
use berth_network::Network;
use berth_operators::autopilot::{AutopilotApi, Probe};
use berth_runtime::{Clock, Manager, ManagerError};
use futures::FutureExt;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::{AGENT, ApiOptions, Apiserver, CLUSTER_USER};
use crate::external;
use crate::failure::ApiFailure;
use crate::streams::Streams;
use crate::written_forecasts;

/// Storage of the objects.
#[derive(Clone, Debug)]
pub enum Storage {
    /// In memory, lost with the process. Works in virtual time, because it needs no thread.
    Memory,
    /// In a SQLite file in this folder. A write is acknowledged once it is on disk.
    Durable(PathBuf),
}

/// Options of an embedded cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cluster time.
    pub clock: Clock,
    /// Seed of identifiers and random draws.
    pub seed: u64,
    /// Storage of the objects.
    pub storage: Storage,
    /// Node pools and timing (`ClusterConfiguration`, as read from its file). Default: a small
    /// cluster.
    pub cluster: Option<Value>,
    /// Configuration of Berth's controllers (Kueue's `Configuration`). Default: Kueue's defaults.
    pub configuration: Option<Value>,
    /// Certificate of the certificate authority that clients trust, in PEM. It is published in
    /// every namespace, as in a real cluster.
    pub root_ca: Option<String>,
    /// Key that signs tokens of service accounts. With `None`, no token is issued.
    pub token_key: Option<TokenKey>,
    /// Audit log of requests. With `None`, no request is recorded.
    pub audit: Option<Log>,
    /// Certificate by which aggregated API servers authenticate this one.
    pub front_proxy: Option<FrontProxy>,
    /// True if the controllers run like a separate process: they share no cache with the simulated
    /// cluster, and have only the permissions of an installation.
    pub apart: bool,
    /// Keeps the last decisions about each workload; a journal may store them.
    pub decisions: Decisions,
    /// Forecasts that are written on Workloads. By default there are none.
    pub forecasts: Option<written_forecasts::Options>,
    /// Pod Security policy of namespaces without labels, and exemptions. By default nothing is
    /// enforced.
    pub pod_security: PodSecurity,
    /// This machine as a node that runs processes. All other nodes are simulated.
    pub node: Option<Node>,
    /// True if no client reads Events or `metadata.managedFields`: no Events are written, and only
    /// server-side applies record field owners.
    pub unattended: bool,
    /// True if all pods are of Jobs without volumes, and no node is added or removed: see
    /// [`berth_cluster::Options::jobs_only`].
    pub jobs_only: bool,
}

/// This machine as a node that runs the programs of its pods.
#[derive(Clone)]
pub struct Node {
    /// Runtime, devices and kubelet options.
    pub process: ProcessNode,
    /// Facts of the machine, for its Node object.
    pub machine: MachineNode,
    /// Folders of the volumes of this node.
    pub folders: Folders,
    /// The pod network, with the cluster's names and Services.
    pub network: Arc<Network>,
    /// Measures the health of the machine's GPUs.
    pub health: Arc<dyn Probe>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.process.name).finish_non_exhaustive()
    }
}

impl Options {
    /// Options of a cluster in memory.
    pub fn in_memory(clock: Clock, seed: u64, cluster: Option<Value>, configuration: Option<Value>) -> Self {
        Self {
            clock,
            seed,
            storage: Storage::Memory,
            cluster,
            configuration,
            root_ca: None,
            token_key: None,
            audit: None,
            front_proxy: None,
            apart: false,
            decisions: Decisions::default(),
            forecasts: None,
            pod_security: PodSecurity::default(),
            node: None,
            unattended: false,
            jobs_only: false,
        }
    }
}

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The data folder or the store in it cannot be used.
    #[error("{}", path.display())]
    Storage {
        /// The folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The description of the cluster is invalid.
    #[error("cluster configuration: {0}")]
    Cluster(String),
    /// The configuration of the controllers is invalid.
    #[error("controller configuration: {0}")]
    Configuration(String),
    /// The API rejected an object that Berth installs at start.
    #[error("cannot install {what}")]
    Install {
        /// Kind and name of the object.
        what: String,
        /// The API's error.
        #[source]
        source: ApiFailure,
    },
}

/// Parses the description of a cluster, as read from its file. `None` gives a small default
/// cluster.
///
/// # Errors
/// The description is invalid.
pub fn cluster_configuration(value: Option<Value>) -> Result<ClusterConfiguration, EmbeddedError> {
    match value {
        Some(value) => {
            ClusterConfiguration::from_value(value).map_err(|error| EmbeddedError::Cluster(error.to_string()))
        }
        None => Ok(ClusterConfiguration::default()),
    }
}

/// Parses the configuration of controllers that run in this process, as read from its file. `None`
/// gives Kueue's defaults. Fields that only `berth controller` uses have no effect here; a warning
/// lists them.
///
/// # Errors
/// The configuration is invalid.
pub fn controller_configuration(value: Option<Value>) -> Result<berth_controllers::Config, EmbeddedError> {
    match value {
        Some(value) => {
            let loaded = configuration::read(value, rights::NAMESPACE)
                .map_err(|errors| EmbeddedError::Configuration(field::aggregate(&errors)))?;
            for field in loaded.of_own_process() {
                tracing::warn!("controller configuration: {field} has no effect here; only `berth controller` uses it");
            }
            Ok(loaded.config)
        }
        None => Ok(berth_controllers::Config::default()),
    }
}

/// A running cluster. Dropping it stops the controllers at their next await point.
pub struct Embedded {
    server: ApiServer,
    streams: Streams,
    autopilot: AutopilotApi,
    clock: Clock,
    stop: Option<oneshot::Sender<()>>,
    manager: JoinHandle<Result<(), ManagerError>>,
}

/// User name of the controllers of this process.
const CONTROLLER_USER: &str = rights::USER;

/// A connection of controllers in this process.
fn own_connection(server: &ApiServer, user: UserInfo) -> InProcess {
    server.in_process(user).agent(AGENT).lean().long_watches()
}

/// Runs the managers until the returned sender is used or dropped. `machines` is the manager of the
/// simulated cluster, if it has one of its own.
fn spawn(
    controllers: Manager,
    machines: Option<Manager>,
) -> (oneshot::Sender<()>, JoinHandle<Result<(), ManagerError>>) {
    let (stop, stopped) = oneshot::channel::<()>();
    // A dropped sender stops the controllers like a sent signal: the cluster has been dropped.
    let stopped = stopped.map(|_| ()).shared();
    let running = tokio::spawn(async move {
        let (controllers, machines) = (controllers.run(stopped.clone()), machines.map(|it| it.run(stopped)));
        match machines {
            Some(machines) => tokio::try_join!(controllers, machines).map(|_| ()),
            None => controllers.await,
        }
    });
    (stop, running)
}

impl Embedded {
    /// Starts a cluster on the current tokio runtime. Returns once the API responds and Berth's
    /// kinds are installed.
    pub async fn start(options: Options) -> Result<Self, EmbeddedError> {
        Self::start_through(options, |connection| Client::new(connection, "default")).await
    }

    /// Like [`Embedded::start`], but `connect` makes the clients of the controllers and of the
    /// simulated cluster from their connections, so that the caller can observe requests.
    pub async fn start_through(options: Options, connect: impl Fn(InProcess) -> Client) -> Result<Self, EmbeddedError> {
        let cluster = cluster_configuration(options.cluster)?;
        let mut controllers = controller_configuration(options.configuration)?;
        external::take_over(&mut controllers, &cluster.operators);
        let mut operators = berth_operators::Options::from(&cluster.operators);
        let api = Apiserver::start(ApiOptions {
            operators: operators.clone(),
            clock: options.clock.clone(),
            seed: options.seed,
            storage: options.storage,
            controllers: controllers.clone(),
            token_key: options.token_key,
            audit: options.audit,
            front_proxy: options.front_proxy,
            controllers_elsewhere: false,
            bare: false,
            pod_security: options.pod_security,
            field_owners: !options.unattended,
        })
        .await?;
        let (server, streams) = (api.server().clone(), api.streams());
        let (logs, metrics, root_ca) = (api.logs(), api.metrics(), options.root_ca);
        let mut cluster = berth_cluster::Options {
            configuration: cluster,
            seed: options.seed,
            logs,
            metrics,
            state: api.state(),
            root_ca,
            jobs_only: options.jobs_only,
            ..berth_cluster::Options::default()
        };
        let autopilot = operators.autopilot.api.clone();
        let network = options.node.map(|node| {
            operators.autopilot.probes.insert(node.machine.name.clone(), node.health);
            streams.add_node(&node.process.name, node.process.runtime.clone());
            cluster.process_nodes.push(node.process);
            cluster.machine = Some(node.machine);
            cluster.folders = node.folders;
            node.network
        });
        let clock = options.clock.clone();
        let manager_of = move |client: Client| {
            let manager = Manager::in_process(client, clock.clone());
            if options.unattended { manager.without_events() } else { manager }
        };
        let (client, mut machines) = if options.apart {
            let user = UserInfo::new(CONTROLLER_USER, &["system:serviceaccounts"]);
            let machines = connect(own_connection(&server, UserInfo::master(CLUSTER_USER)));
            (connect(own_connection(&server, user)), Some(manager_of(machines)))
        } else {
            (connect(own_connection(&server, UserInfo::master(CONTROLLER_USER))), None)
        };
        let mut manager = manager_of(client);
        api.serve(berth_controllers::install_with(&mut manager, controllers, &options.decisions));
        if let Some(options) = options.forecasts {
            written_forecasts::install(&mut manager, api.controllers(), options);
        }
        let install = |manager: &mut Manager| {
            berth_cluster::install(manager, cluster);
            berth_operators::install(manager, operators);
            if let Some(network) = network {
                berth_network::install(manager, network);
            }
        };
        install(machines.as_mut().unwrap_or(&mut manager));
        let (stop, manager) = spawn(manager, machines);
        Ok(Self { server, streams, autopilot, clock: options.clock, stop: Some(stop), manager })
    }

    /// Cluster time.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The API server, for a listener.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The runtimes whose pods `pods/exec` and similar subresources reach. Nodes without one are
    /// simulated.
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// The HTTP API and the metrics of the nodes' health agents.
    pub fn autopilot(&self) -> AutopilotApi {
        self.autopilot.clone()
    }

    /// A client with all permissions whose objects have no `managedFields`, and whose watches last
    /// for a day.
    pub fn observer(&self) -> Client {
        let connection = self.server.in_process(UserInfo::master("berth:admin"));
        Client::new(connection.agent(AGENT).lean().long_watches(), "default")
    }

    /// A client with all permissions.
    pub fn admin_client(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("berth:admin")).agent(AGENT), "default")
    }

    /// Stops the controllers and waits for them.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            // The receiver is dropped only if the manager ended by itself, which the join below
            // reports.
            let _ = stop.send(());
        }
        match (&mut self.manager).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the controllers stopped early"),
            Err(error) => tracing::error!(%error, "the controllers panicked"),
        }
    }
}
