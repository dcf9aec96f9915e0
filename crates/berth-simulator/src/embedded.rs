//! A whole cluster in this process: store, API server, Berth's controllers and the simulated rest.
//!
//! The one place where the halves meet: the server knows no batch object, the controllers know no server. The
//! webhooks' logic of controllers and JobSet is plugged into the server's admission here, and pod logs are fetched
//! from the simulated kubelet.

use std::path::PathBuf;
use std::sync::Arc;

use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_runtime::{Clock, Manager, ManagerError};
use berth_store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

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
}

impl Options {
    /// A cluster in memory.
    pub fn in_memory(clock: Clock, seed: u64, cluster: Option<Value>, configuration: Option<Value>) -> Self {
        Self { clock, seed, storage: Storage::Memory, cluster, configuration }
    }
}

/// Why a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The data folder or the store in it.
    #[error("{}: {source}", path.display())]
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
    #[error("cannot install {what}: {source}")]
    Install {
        /// What.
        what: String,
        /// Why not.
        #[source]
        source: kube::Error,
    },
}

/// A running cluster. Dropping it stops the controllers at their next await point.
pub struct Embedded {
    server: ApiServer,
    stop: Option<oneshot::Sender<()>>,
    manager: JoinHandle<Result<(), ManagerError>>,
}

/// The name Berth's controllers act under.
const CONTROLLER_USER: &str = "system:serviceaccount:berth-system:berth-controller";

impl Embedded {
    /// Starts a cluster on the current tokio runtime; returns when its API answers and the kinds Berth brings are
    /// installed.
    pub async fn start(options: Options) -> Result<Self, EmbeddedError> {
        let store: Arc<dyn Store> = match &options.storage {
            Storage::Memory => Arc::new(MemoryStore::new()),
            Storage::Durable(path) => {
                let failed = |source| EmbeddedError::Storage { path: path.clone(), source };
                std::fs::create_dir_all(path).map_err(|error| failed(error.into()))?;
                let file = path.join("store.sqlite");
                Arc::new(SqliteStore::open(&file, SqliteOptions::default()).map_err(|error| failed(error.into()))?)
            }
        };
        let clock = options.clock.clone();
        let server = ApiServer::new(Config {
            store,
            clock: Arc::new(move || clock.now()),
            seed: options.seed,
            admission: Vec::new(),
            pod_logs: None,
        });
        let client = Client::new(server.in_process(UserInfo::master(CONTROLLER_USER)), "default");
        let manager = Manager::new(client, options.clock.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let manager = tokio::spawn(manager.run(async move {
            // A dropped sender means the same as a sent signal: nobody holds the cluster any more.
            let _ = stopped.await;
        }));
        Ok(Self { server, stop: Some(stop), manager })
    }

    /// The API server, to put a listener in front of.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// A client that may do everything.
    pub fn admin_client(&self) -> Client {
        Client::new(self.server.in_process(UserInfo::master("berth:admin")), "default")
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
