//! The API server of an embedded cluster: the store, the server with the webhooks' logic as
//! admission plugins, and Berth's kinds and roles. `berth apiserver` runs this alone;
//! [`crate::Embedded`] also runs the controllers in the same process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_api::berth::gpus::GpuUseList;
use berth_api::kueue::constants::GROUP as KUEUE_GROUP;
use berth_api::kueue::conversion;
use berth_apimachinery::exposition::Exposition;
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apiserver::admission::pod_security::PodSecurity;
use berth_apiserver::audit::Log;
use berth_apiserver::auth::tokens::TokenKey;
use berth_apiserver::pki::FrontProxy;
use berth_apiserver::{Answer, ApiServer, Asked, Config, Converter, Extension, LogPart, RequestInfo, UserInfo};
use berth_cluster::kube_state::KubeState;
use berth_cluster::metrics::ClusterMetrics;
use berth_cluster::{LogOptions, PodLogs};
use berth_controllers::gpu_exporters::GpuExporters;
use berth_controllers::metrics::Role;
use berth_controllers::visibility::{self, Page};
use berth_controllers::webhooks::Webhooks;
use berth_controllers::{Installed, aggregated, rights};
use berth_runtime::{Clock, ObjectKey};
pub use berth_store::Recovery;
use berth_store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use parking_lot::RwLock;
use serde_json::Value;

use crate::admission::{
    AppWrapperWebhook, JobSetPodWebhook, JobSetWebhook, KueueWebhook, LeaderWorkerSetWebhook, NodeHealthWebhook,
    TrainerWebhook, TrainingWebhook,
};
use crate::cluster::{EmbeddedError, Storage};
use crate::explanations::Explanations;
use crate::failure::ApiFailure;
use crate::foresight::Foresight;
use crate::metrics::Metrics;
use crate::streams::Streams;

/// User name of the simulated cluster (controllers of built-in kinds, kubelets, node pools).
pub const CLUSTER_USER: &str = "berth-cluster";
/// User agent of clients in this process; Berth's other processes send the same.
pub(crate) const AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

/// Options of an API server.
pub struct ApiOptions {
    /// Cluster time.
    pub clock: Clock,
    /// Seed of identifiers.
    pub seed: u64,
    /// Storage of the objects.
    pub storage: Storage,
    /// Configuration of the queueing controllers, which admission depends on.
    pub controllers: berth_controllers::Config,
    /// Operators of other projects, whose admission and metrics the server has, and the reaction to
    /// unhealthy nodes.
    pub operators: berth_operators::Options,
    /// Key that signs tokens of service accounts. With `None`, no token is issued.
    pub token_key: Option<TokenKey>,
    /// Audit log of requests. With `None`, no request is recorded.
    pub audit: Option<Log>,
    /// Pod Security policy of namespaces without labels, and exemptions.
    pub pod_security: PodSecurity,
    /// Certificate by which aggregated API servers authenticate this one.
    pub front_proxy: Option<FrontProxy>,
    /// True if the controllers run in another process, which serves their API groups as an
    /// aggregated API server.
    pub controllers_elsewhere: bool,
    /// True if Berth's kinds, roles and admission are omitted, because an installation adds them,
    /// as in any other cluster. Kinds and admission of other projects (JobSet) are not omitted.
    pub bare: bool,
    /// False if only server-side applies record field owners in `metadata.managedFields`.
    pub field_owners: bool,
}

/// An API server with Berth's kinds, roles and admission. Cheap to clone.
#[derive(Clone)]
pub struct Apiserver {
    server: ApiServer,
    logs: PodLogs,
    metrics: ClusterMetrics,
    state: KubeState,
    streams: Streams,
    installed: Controllers,
}

impl Apiserver {
    /// Opens the store and installs Berth's objects. The server accepts requests once this returns.
    ///
    /// # Errors
    /// The store cannot be opened, or an object cannot be installed.
    pub async fn start(options: ApiOptions) -> Result<Self, EmbeddedError> {
        let store = open(&options.storage)?;
        let clock = options.clock.clone();
        let mut config = Config::new(store, Arc::new(move || clock.now()));
        config.seed = options.seed;
        config.token_key = options.token_key;
        config.audit = options.audit;
        config.pod_security = options.pod_security;
        config.field_owners = options.field_owners;
        if let Some(app_wrappers) = &options.operators.app_wrappers {
            config.admission.push(Arc::new(AppWrapperWebhook::new(app_wrappers.configuration.clone())));
        }
        if !options.bare {
            config.admission.push(Arc::new(KueueWebhook(Webhooks::new(options.controllers))));
            for kind in conversion::KINDS {
                config.converters.insert((KUEUE_GROUP.to_owned(), (*kind).to_owned()), Arc::new(KueueConverter));
            }
        }
        config.admission.push(Arc::new(JobSetWebhook));
        config.admission.push(Arc::new(JobSetPodWebhook));
        if options.operators.leader_worker_sets {
            config.admission.push(Arc::new(LeaderWorkerSetWebhook));
        }
        if options.operators.trainer {
            config.admission.push(Arc::new(TrainerWebhook(options.clock.clone())));
        }
        config.admission.push(Arc::new(NodeHealthWebhook(options.operators.node_health.clone())));
        if options.operators.training {
            config.admission.push(Arc::new(TrainingWebhook));
        }
        config.controllers = [rights::USER, CLUSTER_USER].map(str::to_owned).into();
        let installed = Controllers::default();
        let state = KubeState::default();
        let figures = Figures { controllers: installed.clone(), operators: options.operators, state: state.clone() };
        config.metrics = Some(Arc::new(figures));
        config.front_proxy = options.front_proxy;
        if !options.controllers_elsewhere {
            config.extensions = extensions(&installed);
        }
        let metrics = Metrics::new(options.clock.clone(), state.gpus().clone());
        config.extensions.push(Arc::new(metrics.clone()));
        let logs = PodLogs::default();
        config.pod_logs = Some(Arc::new(Logs(logs.clone())));
        let streams = Streams::default();
        config.pod_streams = Some(Arc::new(streams.clone()));
        config.dial = Some(streams.dialer());
        let server = ApiServer::new(config);
        server.ready().await.map_err(|source| EmbeddedError::Storage {
            path: match &options.storage {
                Storage::Memory => PathBuf::new(),
                Storage::Durable(path) => path.clone(),
            },
            source: source.into(),
        })?;
        metrics.connect(Client::new(server.in_process(UserInfo::master(CLUSTER_USER)).agent(AGENT).lean(), "default"));
        berth_apiserver::forget_history(&server);
        let client = Client::new(server.in_process(UserInfo::master("berth:bootstrap")).agent(AGENT), "default");
        install_definitions(&client, options.bare).await?;
        install_objects(&client, vec![crate::metrics::reader_role()]).await?;
        if !options.bare {
            install_namespaces(&client).await?;
            install_objects(&client, rights::objects(rights::NAMESPACE)).await?;
        }
        if options.controllers_elsewhere && !options.bare {
            install_objects(&client, aggregated::objects(rights::NAMESPACE)).await?;
        }
        Ok(Self { server, logs, metrics: metrics.source(), state, streams, installed })
    }

    /// The server, for a listener.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// The logs that `pods/log` serves; empty until they are connected to a cluster's pods.
    pub fn logs(&self) -> PodLogs {
        self.logs.clone()
    }

    /// Sources of the measurements that `metrics.k8s.io` serves. Nodes without a source are
    /// simulated.
    pub fn metrics(&self) -> ClusterMetrics {
        self.metrics.clone()
    }

    /// Writes the metrics of the cluster's objects that `/metrics` serves; none until it is
    /// connected to a cluster.
    pub fn state(&self) -> KubeState {
        self.state.clone()
    }

    /// The runtimes whose pods `pods/exec` and similar subresources reach; none until nodes are
    /// connected.
    pub fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// An in-process client with all permissions. The objects that it reads have no
    /// `managedFields`.
    pub fn client(&self, user: &str) -> Client {
        Client::new(self.server.in_process(UserInfo::master(user)).agent(AGENT).lean(), "default")
    }

    /// Serves the metrics of these controllers under `/metrics`, and their API groups.
    pub fn serve(&self, installed: Installed) {
        self.installed.set(installed);
    }

    /// The controllers that it serves.
    pub fn controllers(&self) -> &Controllers {
        &self.installed
    }
}

fn open(storage: &Storage) -> Result<Arc<dyn Store>, EmbeddedError> {
    let path = match storage {
        Storage::Memory => return Ok(Arc::new(MemoryStore::new())),
        Storage::Durable(path) => path,
    };
    let failed = |source| EmbeddedError::Storage { path: PathBuf::from(path), source };
    std::fs::create_dir_all(path).map_err(|error| failed(error.into()))?;
    Ok(Arc::new(SqliteStore::open(&path.join(FILE), SqliteOptions::default()).map_err(|error| failed(error.into()))?))
}

/// File of a data folder with the objects.
const FILE: &str = "store.sqlite";

/// Recovers the readable objects of a damaged data folder; see [`berth_store::recover()`].
///
/// # Errors
/// No object can be read, or the folder cannot be written.
pub fn recover(folder: &Path) -> Result<Option<Recovery>, EmbeddedError> {
    berth_store::recover(&folder.join(FILE))
        .map_err(|error| EmbeddedError::Storage { path: folder.to_owned(), source: error.into() })
}

struct KueueConverter;

impl Converter for KueueConverter {
    fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, String> {
        conversion::convert(object, to_api_version).map_err(|error| error.to_string())
    }
}

/// The controllers of this process, as a source of metrics and explanations. Empty until they are
/// installed, because their client needs the server, and always empty if they run in another
/// process. When a replica loses the lead, they are replaced. Clones share them.
#[derive(Clone, Default)]
pub struct Controllers {
    installed: Arc<RwLock<Option<Arc<Installed>>>>,
    /// Computes futures, for readers and for [`crate::written_forecasts`].
    foresight: Foresight,
    /// The GPU exporters of a cluster that is not embedded.
    gpu_exporters: Option<GpuExporters>,
}

impl Controllers {
    /// Controllers whose readers see what these exporters report. In an embedded cluster,
    /// NodeMetrics have it.
    pub fn with_gpu_exporters(exporters: GpuExporters) -> Self {
        Self { gpu_exporters: Some(exporters), ..Self::default() }
    }

    /// Replaces the controllers of this process.
    pub fn set(&self, installed: Installed) {
        *self.installed.write() = Some(Arc::new(installed));
    }

    /// The controllers of this process, if they run here.
    pub fn installed(&self) -> Option<Arc<Installed>> {
        self.installed.read().clone()
    }

    pub(crate) fn foresight(&self) -> &Foresight {
        &self.foresight
    }

    /// What the GPUs of the nodes report to exporters; nothing in an embedded cluster.
    pub(crate) async fn gpus(&self) -> GpuUseList {
        match &self.gpu_exporters {
            Some(exporters) => exporters.gpus().await,
            None => GpuUseList::of(Vec::new(), Vec::new()),
        }
    }
}

/// The metrics of the controllers and operators of this process.
struct Figures {
    controllers: Controllers,
    operators: berth_operators::Options,
    state: KubeState,
}

impl berth_apiserver::Metrics for Figures {
    fn write(&self, exposition: &mut Exposition) {
        if let Some(installed) = self.controllers.installed() {
            installed.write_metrics(Role::Standalone, exposition);
        }
        self.operators.write_metrics(exposition);
        self.state.write(exposition);
        berth_runtime::process::write(exposition);
    }
}

/// The API groups that the controllers serve. `berth controller` also serves them, as an aggregated
/// API server.
pub fn extensions(controllers: &Controllers) -> Vec<Arc<dyn Extension>> {
    vec![Arc::new(Explanations::new(controllers.clone())), Arc::new(PendingWorkloads(controllers.clone()))]
}

/// The API group `visibility.kueue.x-k8s.io`, which Kueue serves as an aggregated API server.
struct PendingWorkloads(Controllers);

impl Extension for PendingWorkloads {
    fn group(&self) -> &str {
        visibility::GROUP
    }

    fn versions(&self) -> &[&str] {
        &visibility::VERSIONS
    }

    fn resources(&self) -> Vec<Value> {
        let resource = |plural: &str, kind: &str, namespaced: bool| {
            serde_json::json!([
                {"name": plural, "singularName": kind.to_lowercase(), "namespaced": namespaced, "kind": kind, "verbs": []},
                {"name": format!("{plural}/pendingworkloads"), "singularName": "", "namespaced": namespaced,
                 "kind": "PendingWorkloadsSummary", "verbs": ["get"]},
            ])
        };
        let lists = [resource("clusterqueues", "ClusterQueue", false), resource("localqueues", "LocalQueue", true)];
        lists.into_iter().filter_map(|list| list.as_array().cloned()).flatten().collect()
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(std::future::ready(self.waiting(asked.info, asked.query)))
    }
}

impl PendingWorkloads {
    fn waiting(&self, info: &RequestInfo, query: &str) -> Result<Value, Status> {
        if info.subresource != "pendingworkloads" {
            return Err(Status::no_such_path());
        }
        let resource = GroupResource::new(visibility::GROUP, &info.resource);
        let missing = || Status::not_found(&resource, &info.name);
        let Some(installed) = self.0.installed() else {
            return Err(Status::service_unavailable("the controllers are starting"));
        };
        let page = Page::parse(query).map_err(Status::bad_request)?;
        let (visibility, version) = (&installed.visibility, info.api_version.as_str());
        match (info.resource.as_str(), info.namespace.as_str()) {
            ("clusterqueues", "") => visibility.of_cluster_queue(&info.name, version, page).ok_or_else(missing),
            ("localqueues", namespace) if !namespace.is_empty() => {
                let queue = installed.stores.local_queues.get(&ObjectKey::namespaced(namespace, &info.name));
                let queue = queue.ok_or_else(missing)?;
                let cluster_queue = queue.spec.cluster_queue.as_str();
                visibility.of_local_queue(namespace, &info.name, cluster_queue, version, page).ok_or_else(missing)
            }
            _ => Err(Status::no_such_path()),
        }
    }
}

/// Serves the simulated kubelet's logs to the API server.
struct Logs(PodLogs);

impl berth_apiserver::PodLogs for Logs {
    fn read(&self, namespace: &str, pod: &str, container: &str, part: &LogPart) -> Result<String, String> {
        let container = Some(container).filter(|name| !name.is_empty());
        let options = LogOptions {
            previous: part.previous,
            since_seconds: part.since_seconds,
            since_time: part.since_time,
            timestamps: part.timestamps,
            ..LogOptions::default()
        };
        self.0
            .read(namespace, pod, container, &options)
            .ok_or_else(|| format!("container {:?} in pod {pod:?} is not available", container.unwrap_or_default()))
    }
}

/// Namespaces of a cluster with Berth: its own, and the one that manifests written for Kueue refer
/// to, such as a ServiceMonitor for the controllers' metrics.
const NAMESPACES: [&str; 2] = [rights::NAMESPACE, "kueue-system"];

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

/// Creates the objects of an installation: the controllers' service account and roles, and the
/// roles for users. Existing objects are not changed, except that their rules are updated to those
/// of this version.
async fn install_objects(client: &Client, objects: Vec<Value>) -> Result<(), EmbeddedError> {
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let failed = |error| EmbeddedError::Install { what: format!("{kind} {name}"), source: ApiFailure(error) };
        let (group, version) = match object["apiVersion"].as_str().unwrap_or_default().split_once('/') {
            Some((group, version)) => (group, version),
            None => ("", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let typed: DynamicObject =
            serde_json::from_value(object.clone()).map_err(|error| failed(kube::Error::SerdeError(error)))?;
        match api.create(&PostParams::default(), &typed).await {
            Ok(_) => {}
            Err(error) if berth_runtime::is_already_exists(&error) => {
                if let Some(rules) = object.get("rules") {
                    let patch = serde_json::json!({ "rules": rules });
                    api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(failed)?;
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Installs the CustomResourceDefinitions of Berth and updates those of an earlier version. `bare`
/// omits those that an installation adds.
async fn install_definitions(client: &Client, bare: bool) -> Result<(), EmbeddedError> {
    // The definitions stay untyped, because the typed schemas of one definition are some megabytes
    // of optional fields.
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<CustomResourceDefinition>(&()));
    let failed = |name: &str, error| EmbeddedError::Install {
        what: format!("CustomResourceDefinition {name}"),
        source: ApiFailure(error),
    };
    let known = api.list_metadata(&ListParams::default()).await.map_err(|error| failed("", error))?;
    let known: BTreeSet<String> = known.items.into_iter().filter_map(|item| item.metadata.name).collect();
    let frameworks = berth_api::frameworks::crds();
    let ours = berth_api::crds().iter().map(|definition| (definition, true));
    let ours = ours.filter(|(definition, _)| !bare || definition["spec"]["group"] != KUEUE_GROUP);
    for (definition, is_ours) in ours.chain(frameworks.iter().map(|definition| (definition, false))) {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        if !known.contains(name) {
            let object: DynamicObject = serde_json::from_value(definition.clone())
                .map_err(|error| failed(name, kube::Error::SerdeError(error)))?;
            let created = berth_runtime::write::create_unread(&api, &PostParams::default(), &object).await;
            created.map_err(|error| failed(name, error))?;
        } else if is_ours {
            let params = PatchParams::default();
            api.patch(name, &params, &Patch::Merge(definition)).await.map_err(|error| failed(name, error))?;
        }
        // Otherwise the definition belongs to another project: an existing one may be the full
        // definition, for which ours is a substitute.
    }
    Ok(())
}
