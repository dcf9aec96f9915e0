//! A whole cluster in this process: store, API server, Berth's controllers and the simulated rest.
//!
//! The one place where the halves meet: the server knows no batch object, the controllers know no server. [`crate::api`]
//! makes the server; the controllers and the simulated cluster run beside it in one manager, so that they share caches.

use std::path::PathBuf;

use berth_api::berth::ClusterConfiguration;
use berth_apimachinery::field;
use berth_apiserver::audit::Log;
use berth_apiserver::auth::tokens::TokenKey;
use berth_apiserver::pki::FrontProxy;
use berth_apiserver::{ApiServer, InProcess, UserInfo};
use berth_controllers::{configuration, rights};
use berth_runtime::{Clock, Manager, ManagerError};
use futures::FutureExt;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::{AGENT, ApiOptions, Apiserver, CLUSTER_USER};
use crate::failure::ApiFailure;

/// Where objects are kept.
#[derive(Clone, Debug)]
pub enum Storage {
    /// In memory, gone with the process. Needs no thread, so virtual time works.
    Memory,
    /// In a SQLite file in this folder; a write is acknowledged when it is on disk.
    Durable(PathBuf),
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cluster time.
    pub clock: Clock,
    /// Seeds identifiers and random draws.
    pub seed: u64,
    /// Where objects are kept.
    pub storage: Storage,
    /// Node pools and timing (`ClusterConfiguration`, as read from its file); a small default when absent.
    pub cluster: Option<Value>,
    /// Configuration of Berth's controllers (Kueue's `Configuration`), defaults when absent.
    pub configuration: Option<Value>,
    /// Certificate of the authority clients trust, published to every namespace as a real cluster does.
    pub root_ca: Option<String>,
    /// Key that signs tokens of service accounts; `None` issues none.
    pub token_key: Option<TokenKey>,
    /// Where requests are recorded; `None` records none.
    pub audit: Option<Log>,
    /// What aggregated API servers believe this one by.
    pub front_proxy: Option<FrontProxy>,
    /// The controllers share no cache with the simulated cluster and have only the rights of an installation, as when they
    /// run in a process of their own.
    pub apart: bool,
}

impl Options {
    /// A cluster in memory.
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
        }
    }
}

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The data folder or the store in it.
    #[error("{}", path.display())]
    Storage {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The cluster's description.
    #[error("cluster configuration: {0}")]
    Cluster(String),
    /// The controllers' configuration.
    #[error("controller configuration: {0}")]
    Configuration(String),
    /// The API refused something Berth installs at start.
    #[error("cannot install {what}")]
    Install {
        /// What.
        what: String,
        /// Why not.
        #[source]
        source: ApiFailure,
    },
}

/// The description of a cluster, as read from its file; a small default when absent.
///
/// # Errors
/// What is wrong with it.
pub fn cluster_configuration(value: Option<Value>) -> Result<ClusterConfiguration, EmbeddedError> {
    match value {
        Some(value) => {
            ClusterConfiguration::from_value(value).map_err(|error| EmbeddedError::Cluster(error.to_string()))
        }
        None => Ok(ClusterConfiguration::default()),
    }
}

/// The configuration of controllers that run in this process, as read from its file; Kueue's defaults when absent. What the
/// file says about a process of their own is named in the log: it has no effect here.
///
/// # Errors
/// What is wrong with it.
pub fn controller_configuration(value: Option<Value>) -> Result<berth_controllers::Config, EmbeddedError> {
    match value {
        Some(value) => {
            let loaded = configuration::read(value, rights::NAMESPACE)
                .map_err(|errors| EmbeddedError::Configuration(field::aggregate(&errors)))?;
            for field in loaded.of_own_process() {
                tracing::warn!(
                    "controller configuration: {field} is for `berth controller`; it has no effect where the controllers \
                     run inside of the cluster's process"
                );
            }
            Ok(loaded.config)
        }
        None => Ok(berth_controllers::Config::default()),
    }
}

/// A running cluster. Dropping it stops the controllers at their next await point.
pub struct Embedded {
    server: ApiServer,
    clock: Clock,
    stop: Option<oneshot::Sender<()>>,
    manager: JoinHandle<Result<(), ManagerError>>,
}

/// The name the controllers of this process act under.
const CONTROLLER_USER: &str = rights::USER;

impl Embedded {
    /// Starts a cluster on the current tokio runtime; returns when its API answers and the kinds Berth brings are
    /// installed.
    pub async fn start(options: Options) -> Result<Self, EmbeddedError> {
        Self::start_through(options, |connection| Client::new(connection, "default")).await
    }

    /// The same with clients of the controllers and of the simulated cluster that the caller makes of their connections, to see
    /// what goes through.
    pub async fn start_through(options: Options, connect: impl Fn(InProcess) -> Client) -> Result<Self, EmbeddedError> {
        let cluster = cluster_configuration(options.cluster)?;
        let controllers = controller_configuration(options.configuration)?;
        let api = Apiserver::start(ApiOptions {
            clock: options.clock.clone(),
            seed: options.seed,
            storage: options.storage,
            controllers: controllers.clone(),
            token_key: options.token_key,
            audit: options.audit,
            front_proxy: options.front_proxy,
            controllers_elsewhere: false,
            bare: false,
        })
        .await?;
        let server = api.server().clone();
        let (logs, root_ca) = (api.logs(), options.root_ca);
        let cluster = berth_cluster::Options { configuration: cluster, seed: options.seed, logs, root_ca };
        let (client, machines) = if options.apart {
            let user = UserInfo::new(CONTROLLER_USER, &["system:serviceaccounts"]);
            let machines = connect(server.in_process(UserInfo::master(CLUSTER_USER)).agent(AGENT).lean());
            (connect(server.in_process(user).agent(AGENT).lean()), Some(Manager::new(machines, options.clock.clone())))
        } else {
            (connect(server.in_process(UserInfo::master(CONTROLLER_USER)).agent(AGENT).lean()), None)
        };
        let mut manager = Manager::new(client, options.clock.clone());
        api.serve(berth_controllers::install(&mut manager, controllers));
        let machines = match machines {
            Some(mut machines) => {
                berth_cluster::install(&mut machines, cluster);
                Some(machines)
            }
            None => {
                berth_cluster::install(&mut manager, cluster);
                None
            }
        };
        let (stop, stopped) = oneshot::channel::<()>();
        // A dropped sender means the same as a sent signal: nobody holds the cluster any more.
        let stopped = stopped.map(|_| ()).shared();
        let manager = tokio::spawn(async move {
            let (controllers, machines) = (manager.run(stopped.clone()), machines.map(|it| it.run(stopped)));
            match machines {
                Some(machines) => tokio::try_join!(controllers, machines).map(|_| ()),
                None => controllers.await,
            }
        });
        Ok(Self { server, clock: options.clock, stop: Some(stop), manager })
    }

    /// Cluster time.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// The API server, to put a listener in front of.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// A client that may do everything and is not told who set which field.
    pub fn observer(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("berth:admin")).agent(AGENT).lean(), "default")
    }

    /// A client that may do everything.
    pub fn admin_client(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("berth:admin")).agent(AGENT), "default")
    }

    /// Stops the controllers and waits for them.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone only when the manager ended by itself, which the join below reports.
            let _ = stop.send(());
        }
        match (&mut self.manager).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the controllers stopped early"),
            Err(error) => tracing::error!(%error, "the controllers died"),
        }
    }
}
