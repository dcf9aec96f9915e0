//! A whole cluster in this process: store, API server, Berth's controllers and the simulated rest.
//!
//! The one place where the halves meet: the server knows no batch object, the controllers know no server. The
//! webhooks' logic of controllers and JobSet is plugged into the server's admission here, and pod logs are fetched
//! from the simulated kubelet.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use berth_api::berth::ClusterConfiguration;
use berth_api::kueue::constants::GROUP as KUEUE_GROUP;
use berth_api::kueue::conversion;

use berth_apimachinery::field;
use berth_apiserver::{ApiServer, Config, Converter, UserInfo};
use berth_cluster::{LogOptions, PodLogs};
use berth_controllers::configuration;
use berth_controllers::webhooks::Webhooks;
use berth_runtime::{Clock, Manager, ManagerError};
use berth_store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::admission::{JobSetPodWebhook, JobSetWebhook, KueueWebhook};
use crate::resource::ApiFailure;

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
}

impl Options {
    /// A cluster in memory.
    pub fn in_memory(clock: Clock, seed: u64, cluster: Option<Value>, configuration: Option<Value>) -> Self {
        Self { clock, seed, storage: Storage::Memory, cluster, configuration, root_ca: None }
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

/// A running cluster. Dropping it stops the controllers at their next await point.
pub struct Embedded {
    server: ApiServer,
    clock: Clock,
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
        let cluster = match options.cluster {
            Some(value) => {
                ClusterConfiguration::from_value(value).map_err(|error| EmbeddedError::Cluster(error.to_string()))?
            }
            None => ClusterConfiguration::default(),
        };
        let controllers = match options.configuration {
            Some(value) => {
                let loaded = configuration::read(value)
                    .map_err(|errors| EmbeddedError::Configuration(field::aggregate(&errors)))?;
                for notice in &loaded.notices {
                    tracing::info!("controller configuration: {notice}");
                }
                loaded.config
            }
            None => berth_controllers::Config::default(),
        };
        let clock = options.clock.clone();
        let logs = PodLogs::default();
        let mut config = Config::new(store, Arc::new(move || clock.now()));
        config.seed = options.seed;
        config.admission.push(Arc::new(KueueWebhook(Webhooks::new(controllers.clone()))));
        config.admission.push(Arc::new(JobSetWebhook));
        config.admission.push(Arc::new(JobSetPodWebhook));
        let figures = Figures::default();
        config.metrics = Some(Arc::new(figures.clone()));
        config.pod_logs = Some(Arc::new(Logs(logs.clone())));
        for kind in conversion::KINDS {
            config.converters.insert((KUEUE_GROUP.to_owned(), (*kind).to_owned()), Arc::new(KueueConverter));
        }
        let server = ApiServer::new(config);
        let client = Client::new(server.in_process(UserInfo::master(CONTROLLER_USER)), "default");
        install_definitions(&client).await?;
        install_namespaces(&client).await?;
        let mut manager = Manager::new(client, options.clock.clone());
        figures.fill(berth_controllers::install(&mut manager, controllers));
        let options_of_cluster =
            berth_cluster::Options { configuration: cluster, seed: options.seed, logs, root_ca: options.root_ca };
        berth_cluster::install(&mut manager, options_of_cluster);
        let (stop, stopped) = oneshot::channel::<()>();
        let manager = tokio::spawn(manager.run(async move {
            // A dropped sender means the same as a sent signal: nobody holds the cluster any more.
            let _ = stopped.await;
        }));
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

struct KueueConverter;

impl Converter for KueueConverter {
    fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, String> {
        conversion::convert(object, to_api_version).map_err(|error| error.to_string())
    }
}

/// The controllers' figures, which exist only after the server whose client the controllers use.
#[derive(Clone, Default)]
struct Figures(Arc<OnceLock<berth_controllers::metrics::Metrics>>);

impl Figures {
    fn fill(&self, metrics: berth_controllers::metrics::Metrics) {
        // Filled once: there is one set of controllers to a server.
        let _ = self.0.set(metrics);
    }
}

impl berth_apiserver::Metrics for Figures {
    fn text(&self) -> String {
        self.0.get().map(berth_controllers::metrics::Metrics::text).unwrap_or_default()
    }
}

/// The simulated kubelet's logs, as the API server asks for them.
struct Logs(PodLogs);

impl berth_apiserver::PodLogs for Logs {
    fn read(&self, namespace: &str, pod: &str, container: &str) -> Result<String, String> {
        let container = Some(container).filter(|name| !name.is_empty());
        self.0
            .read(namespace, pod, container, &LogOptions::default())
            .ok_or_else(|| format!("container {:?} in pod {pod:?} is not available", container.unwrap_or_default()))
    }
}

/// Namespaces a cluster with Berth has: its own, and the one manifests written for Kueue refer to (a ServiceMonitor for
/// the controller's metrics, say).
const NAMESPACES: [&str; 2] = ["berth-system", "kueue-system"];

async fn install_namespaces(client: &Client) -> Result<(), EmbeddedError> {
    let api: Api<Namespace> = Api::all(client.clone());
    for name in NAMESPACES {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        match api.create(&PostParams::default(), &Namespace { metadata, ..Default::default() }).await {
            Ok(_) => {}
            Err(error) if berth_runtime::is_already_exists(&error) => {}
            Err(error) => {
                let what = format!("Namespace {name}");
                return Err(EmbeddedError::Install { what, source: ApiFailure(error) });
            }
        }
    }
    Ok(())
}

/// Makes the API serve the kinds Berth brings; brings definitions of an earlier version up to date.
async fn install_definitions(client: &Client) -> Result<(), EmbeddedError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let monitoring = berth_api::monitoring::crds();
    for definition in berth_api::crds().iter().chain(&monitoring) {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        let failed = |error| EmbeddedError::Install {
            what: format!("CustomResourceDefinition {name}"),
            source: ApiFailure(error),
        };
        let typed: CustomResourceDefinition =
            serde_json::from_value(definition.clone()).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        match api.create(&PostParams::default(), &typed).await {
            Ok(_) => {}
            Err(error) if berth_runtime::is_already_exists(&error) => {
                let params = PatchParams::default();
                api.patch(name, &params, &Patch::Merge(definition)).await.map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}
