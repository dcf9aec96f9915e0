//! `berth controller`: the queueing controllers against any cluster, with the permissions of their
//! service account.

mod aggregated;
pub mod webhook;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use berth_apimachinery::field;
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_controllers::configuration::{self, Config, Loaded, Process, process as defaults};
use berth_controllers::explain::{self, Unexplained};
use berth_controllers::gpu_exporters::GpuExporters;
use berth_controllers::metrics::Role;
use berth_controllers::rights;
use berth_controllers::{Decisions, controllers};
use berth_embedded::api::{Controllers, extensions};
use berth_embedded::written_forecasts;
use berth_operators::appwrapper::{self, config::ConfigurationFile, metrics::Transitions};
use berth_runtime::{CacheState, Manager, Selection};
use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::component::candidate::Candidate;
use crate::component::certificate::Certificate;
use crate::component::connect::{self, Requests};
use crate::component::election;
use crate::component::endpoints::{Endpoints, Places};
use crate::component::limit::{Limit, Limiter};
use crate::component::{self, ComponentOptions, Leading, listen::BindAddress};
use crate::forecast_options::ForecastOptions;
use crate::journal::JournalOptions;
use crate::log::LogOptions;
use crate::node_health::{NodeHealth, NodeHealthOptions};
use crate::page::options::ControllerPages;
use crate::process;
use aggregated::Aggregated;
pub use aggregated::AnyCertificate;
use webhook::app_wrappers::AppWrappers;
use webhook::{Further, WebhookOptions};

/// Controllers that other options of `berth controller` add: `--appwrapper`, and the slack queue.
const OF_OPERATORS: &[&str] = &["appwrapper", "node-health-quota"];

/// Period in which objects that were not used are packed. A Job of some seconds stays unpacked from
/// its creation to its end.
const PACK_PERIOD: Duration = Duration::from_secs(10);

/// Options of `berth controller`.
#[derive(Args)]
pub struct Options {
    /// Configuration of the queueing controllers: a Kueue Configuration file. Default: Kueue's
    /// defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Feature gates, as `NAME=true,NAME=false`, instead of featureGates of the configuration.
    /// AllAlpha and AllBeta stand for all gates of a stage that are not named.
    #[arg(long, value_name = "GATES", value_parser = gates)]
    feature_gates: Option<FeatureGates>,
    /// Controllers to run: * for all, NAME for one, -NAME to exclude one; an empty list for none.
    /// Excluded controllers keep their state up to date and write nothing. Webhooks are served in
    /// any case. docs/configuration.md lists the names.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    controllers: Selection,
    /// Also run AppWrappers, and serve their webhooks. FILE is AppWrapper's configuration file.
    /// Default: AppWrapper's defaults. AppWrapper's own controller must not be installed.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    appwrapper: Option<Option<PathBuf>>,
    /// Maximum requests per second. Events use at most a tenth of it while decisions are written.
    /// Default: clientConnection.qps of the configuration, else no limit.
    #[arg(long, value_name = "QPS", requires = "kube_api_burst")]
    kube_api_qps: Option<f64>,
    /// Maximum burst of requests after a pause. Default: clientConnection.burst of the
    /// configuration.
    #[arg(long, value_name = "BURST", requires = "kube_api_qps")]
    kube_api_burst: Option<u32>,
    /// Apply the limit to each kind of object separately, as controller-runtime does by default.
    #[arg(long)]
    kube_api_limit_per_kind: bool,
    /// Address at which the API server reaches this replica's webhook port, for requests that it
    /// forwards to the controllers (pending workloads, explanations). Default: the bound address,
    /// else the address from which this machine connects to the API server.
    #[arg(long, value_name = "IP", env = "POD_IP")]
    advertise_address: Option<IpAddr>,
    /// Namespace of the pods of dcgm-exporter. The web pages and `berth top` then show what GPUs
    /// report. The controllers read the exporters through the API server, which needs the right to
    /// `get` pods/proxy in this namespace: berth install --gpu-exporters NAMESPACE adds it.
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    gpu_exporters: String,
    #[command(flatten)]
    component: ComponentOptions,
    #[command(flatten)]
    journal: JournalOptions,
    #[command(flatten)]
    forecasts: ForecastOptions,
    #[command(flatten)]
    webhooks: WebhookOptions,
    #[command(flatten)]
    node_health: NodeHealthOptions,
    #[command(flatten)]
    pages: ControllerPages,
    #[command(flatten)]
    pub log: LogOptions,
}

/// Feature gates of the command line.
type FeatureGates = BTreeMap<String, bool>;

/// Parses feature gates as components of Kubernetes do.
fn gates(text: &str) -> Result<FeatureGates, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let gate = |word: &str| {
        let (name, on) = word.split_once('=').ok_or_else(|| format!("missing bool value for {word}"))?;
        let on = match on.trim() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            other => return Err(format!("invalid value of {name}={other}: must be true or false")),
        };
        Ok((name.trim().to_owned(), on))
    };
    words.map(gate).collect()
}

/// Runs until Ctrl-C (or SIGTERM).
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::use_small_pages();
    process::run(control(options))
}

/// Reads a configuration file, for controllers in this namespace unless the file names another.
///
/// # Errors
/// The file has errors or settings that Berth does not support; all are listed by field.
pub fn configuration(file: &Path, own_namespace: &str) -> anyhow::Result<Loaded> {
    configuration::read(process::read(file)?, own_namespace)
        .map_err(|errors| anyhow!("{}: {}", file.display(), field::aggregate(&errors)))
}

impl Options {
    /// The limit of requests that the command line sets.
    fn client_limit(&self) -> anyhow::Result<Option<Limit>> {
        let limit = self.kube_api_qps.zip(self.kube_api_burst).map(|(qps, burst)| Limit::new(qps, burst));
        limit.map(|limit| limit.context("--kube-api-qps and --kube-api-burst must be above 0")).transpose()
    }

    /// The configuration, for controllers in this namespace unless the file names another.
    fn configuration(&self, own_namespace: &str) -> anyhow::Result<Loaded> {
        match (&self.config, &self.feature_gates) {
            (Some(file), None) => configuration(file, own_namespace),
            (None, None) => Ok(Loaded::without_file(own_namespace)),
            (file, Some(gates)) => {
                let written = file.as_deref().map(process::read).transpose()?;
                let of = file.as_deref().unwrap_or(Path::new("--feature-gates")).display();
                with_gates(written, gates, own_namespace).map_err(|errors| anyhow!("{of}: {errors}"))
            }
        }
    }
}

/// The configuration in a file, if there is one, with feature gates of the command line. The error
/// lists all problems by field.
fn with_gates(written: Option<Value>, gates: &FeatureGates, own_namespace: &str) -> Result<Loaded, String> {
    let mut written = match written {
        Some(Value::Null) => json!({}),
        Some(file) => file,
        // Without a file, more integrations are on than with an empty one.
        None => {
            let usual = Loaded::without_file(own_namespace).config.integrations.frameworks;
            json!({"integrations": {"frameworks": usual}})
        }
    };
    if !written["featureGates"].is_null() {
        return Err(
            "featureGates must not be set beside --feature-gates; set all feature gates in one place".to_owned()
        );
    }
    if let Some(fields) = written.as_object_mut() {
        fields.insert("featureGates".to_owned(), json!(gates));
    }
    configuration::read(written, own_namespace).map_err(|errors| field::aggregate(&errors))
}

/// Reads AppWrapper's configuration file. Fields that have no effect here are logged.
fn app_wrappers(file: Option<&Path>) -> anyhow::Result<ConfigurationFile> {
    let Some(file) = file else { return Ok(ConfigurationFile::default()) };
    let read = ConfigurationFile::read(process::read(file)?).map_err(|error| anyhow!("{}: {error}", file.display()))?;
    for (field, place) in read.without_effect() {
        tracing::warn!("{}: {field} has no effect; Berth reads it from {place}", file.display());
    }
    Ok(read)
}

/// Addresses of health checks and metrics in the configuration file.
fn places(file: &Process) -> Places {
    let usual = Places::at(BindAddress::Any(defaults::HEALTH_PORT), BindAddress::Any(defaults::METRICS_PORT));
    Places {
        health: file.health_address.unwrap_or(usual.health),
        metrics: file.metrics_address.unwrap_or(usual.metrics),
        readiness: file.readiness_path.clone().unwrap_or(usual.readiness),
        liveness: file.liveness_path.clone().unwrap_or(usual.liveness),
    }
}

/// Logs the state of the queues at each SIGUSR2, as Kueue's manager does.
async fn dump_on_signal(controllers: Controllers) {
    let mut signals = match signal(SignalKind::user_defined2()) {
        Ok(signals) => signals,
        Err(error) => return tracing::warn!("cannot listen for SIGUSR2: {error}"),
    };
    while signals.recv().await.is_some() {
        match controllers.installed() {
            Some(installed) => installed.dump.log(),
            None => tracing::info!("SIGUSR2: the controllers are starting"),
        }
    }
}

/// What each term of leadership installs: the controllers, written forecasts, the AppWrapper
/// operator and the health of nodes.
fn install_of(
    controllers: Controllers,
    config: Config,
    decisions: Decisions,
    forecasts: Option<written_forecasts::Options>,
    operator: Option<appwrapper::Options>,
    node_health: Option<NodeHealth>,
) -> component::Install {
    Box::new(move |manager| {
        controllers.set(berth_controllers::install_with(manager, config.clone(), &decisions));
        if let Some(options) = forecasts {
            written_forecasts::install(manager, &controllers, options);
        }
        if let Some(options) = &operator {
            appwrapper::install(manager, options);
        }
        if let Some(node_health) = &node_health {
            node_health.install(manager);
        }
    })
}

async fn control(options: &Options) -> anyhow::Result<ExitCode> {
    // Configuration, from options and file.
    let own_namespace = election::own_namespace();
    let loaded = options.configuration(&own_namespace)?;
    let Loaded { mut config, process: file } = loaded;
    let app_wrappers = options.appwrapper.as_ref().map(|file| app_wrappers(file.as_deref())).transpose()?;
    let namespace = file.namespace.clone().unwrap_or(own_namespace);
    let component = &options.component;
    let node_health = options.node_health.load(app_wrappers.as_ref().map(|file| &file.appwrapper))?;
    let pods_avoid = node_health.as_ref().map(NodeHealth::configuration);
    let clock = component.time.joining_clock()?;
    let election = component.election.election(rights::NAME, &namespace, &file.election)?;
    let elects = election.is_some();
    check_names(&options.controllers)?;
    // Sockets and the client, before anything runs.
    let connection = component.connect.config().await?;
    let api_server = connection.cluster_url.clone();
    let bound = component.endpoints.bind(places(&file)).await?;
    let hooks = options.webhooks.bind(&file).await?;
    let pages = options.pages.bind().await?;
    let own = connection.clone();
    let requests = Requests::default();
    config.client_limit = options.client_limit()?.map(Limit::of_controllers).or(config.client_limit);
    let limit = config.client_limit.map(Limit::from);
    let limiter = if options.kube_api_limit_per_kind { Limiter::per_kind(limit) } else { Limiter::of_client(limit) };
    let candidate = election.map(|election| Candidate::new(connection.clone(), election)).transpose()?;
    let client = connect::client(connection, &requests, &limiter)?;
    for endpoint in bound.describe().into_iter().chain(hooks.as_ref().and_then(|hooks| hooks.describe())) {
        tracing::info!("serving {endpoint}");
    }
    connect::wait_for_groups(&client, &clock, &["kueue.x-k8s.io"]).await?;

    // The controllers.
    let reviewer = client.clone();
    let mut manager = Manager::new(client.clone(), clock);
    manager.select(options.controllers.clone());
    let controllers = Controllers::with_gpu_exporters(GpuExporters::new(client.clone(), &options.gpu_exporters));
    // All terms of leadership share it, so that decisions of earlier terms stay known.
    let decisions = Decisions::default();
    let journal = options.journal.open(&decisions)?;
    let operator = app_wrappers.as_ref().map(|file| appwrapper::Options::new(file.appwrapper.clone()));
    let transitions = operator.as_ref().map(|options| options.transitions.clone());
    let forecasts = options.forecasts.written();
    let install = install_of(controllers.clone(), config.clone(), decisions, forecasts, operator, node_health);
    install(&mut manager);
    if !manager.idle().is_empty() {
        tracing::info!("controllers that do not run, by --controllers: {}", manager.idle().join(", "));
    }
    let mut tasks = JoinSet::new();
    tasks.spawn(dump_on_signal(controllers.clone()));
    tasks.spawn(manager.packers().run(PACK_PERIOD));
    let leading = Leading::default();
    // Webhooks and aggregated APIs.
    let certificate = match hooks {
        Some(hooks) => {
            let address = aggregated::advertised(options.advertise_address, hooks.address()?, &api_server).await;
            let aggregated = Aggregated::new(extensions(&controllers), leading.clone());
            tasks.spawn(aggregated.clone().follow_front_proxy(client.clone()));
            tasks.spawn(aggregated::advertise(client.clone(), namespace.clone(), address, leading.clone()));
            let app_wrappers = app_wrappers
                .filter(|file| file.webhooks_enabled != Some(false))
                .map(|file| AppWrappers { configuration: file.appwrapper, client: client.clone() });
            let further = Further { app_wrappers, node_health: pods_avoid };
            Some(hooks.serve(client, namespace, config, controllers.clone(), aggregated, further, &mut tasks)?)
        }
        None => None,
    };
    let of_metrics = certificate.clone();
    if let Some(pages) = pages {
        options.pages.serve(pages, &own, reviewer.clone(), certificate.clone(), &mut tasks)?;
    }
    let caches = manager.cache_state();
    let served = Served { controllers, elects, leading: leading.clone(), transitions, requests };
    let endpoints = served.endpoints(caches, certificate);
    bound.serve(&endpoints, reviewer, of_metrics, &mut tasks)?;
    // Run until signalled, or until the caches are late.
    let caches = manager.cache_state();
    let late = late(&caches, file.cache_sync_timeout);
    let ended = tokio::select! {
        ended = component::run(manager, candidate, &leading, install) => ended,
        kinds = late => Err(anyhow!("controller.cacheSyncTimeout expired before these caches were filled: {kinds}")),
    };
    if let Some(journal) = journal {
        journal.close();
    }
    ended
}

/// Fails if an item of the selection names no controller.
fn check_names(selection: &Selection) -> anyhow::Result<()> {
    let unknown = controllers::unknown(selection, OF_OPERATORS);
    anyhow::ensure!(
        unknown.is_empty(),
        "--controllers: no controller is named {}; the controllers are {}, {}",
        unknown.join(", "),
        controllers::names().join(", "),
        OF_OPERATORS.join(", ")
    );
    Ok(())
}

/// Returns the kinds whose caches are not filled after this time. Never returns without a time, or
/// if all are filled.
async fn late(caches: &CacheState, timeout: Option<Duration>) -> String {
    match timeout {
        Some(timeout) => tokio::time::sleep(timeout).await,
        None => std::future::pending().await,
    }
    match caches.pending().join(", ") {
        kinds if kinds.is_empty() => std::future::pending().await,
        kinds => kinds,
    }
}

/// What the endpoints for health, metrics and explanations serve.
struct Served {
    controllers: Controllers,
    /// True if replicas elect a leader.
    elects: bool,
    leading: Leading,
    transitions: Option<Transitions>,
    requests: Requests,
}

impl Served {
    fn endpoints(self, caches: CacheState, certificate: Option<Certificate>) -> Endpoints {
        let Self { controllers, elects, leading, transitions, requests } = self;
        let figures = controllers.clone();
        Endpoints {
            pending: Arc::new(move || {
                let kinds = caches.pending();
                let mut pending: Vec<_> = kinds.iter().map(|kind| format!("caches: waiting for {kind}")).collect();
                if certificate.as_ref().is_some_and(|certificate| !certificate.is_there()) {
                    pending.push("webhooks: no certificate yet".to_owned());
                }
                pending
            }),
            metrics: Arc::new(move |exposition| {
                let role = match (elects, leading.is()) {
                    (false, _) => Role::Standalone,
                    (true, true) => Role::Leader,
                    (true, false) => Role::Follower,
                };
                if let Some(installed) = figures.installed() {
                    installed.write_metrics(role, exposition);
                }
                if let Some(transitions) = &transitions {
                    transitions.write(exposition);
                }
                leading.write(rights::NAME, exposition);
                requests.write(exposition);
                berth_runtime::process::write(exposition);
            }),
            explain: Some(Arc::new(move |namespace: &str, name: &str| {
                let starting = || Status::service_unavailable("the controllers are starting");
                let installed = controllers.installed().ok_or_else(starting)?;
                installed.explain.whole(namespace, name).map_err(|error| match error {
                    Unexplained::NotFound(_) => {
                        Status::not_found(&GroupResource::new(explain::GROUP, "workloads"), name)
                    }
                    Unexplained::Ambiguous { .. } => Status::bad_request(error.to_string()),
                })
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_controllers::gates::Gate;

    use super::*;

    fn of(text: &str) -> FeatureGates {
        gates(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn feature_gates_are_written_as_for_components_of_kubernetes() {
        let expected = [("PartialAdmission".to_owned(), false), ("PriorityBoost".to_owned(), true)];
        assert_eq!(of("PriorityBoost=true, PartialAdmission=F,"), expected.into());
        assert_eq!(of(""), FeatureGates::new());
        assert_eq!(gates("PriorityBoost").unwrap_err(), "missing bool value for PriorityBoost");
        assert!(gates("PriorityBoost=on").unwrap_err().contains("PriorityBoost=on"));
    }

    #[test]
    fn feature_gates_of_the_command_line_join_the_configuration() {
        let read = |file, text| with_gates(file, &of(text), "berth-system");
        assert_eq!(read(None, "").expect("no gates"), Loaded::without_file("berth-system"));
        let empty = configuration::read(json!({}), "berth-system").expect("an empty file");
        assert_eq!(read(Some(Value::Null), "").expect("an empty file"), empty);
        let file = json!({"namespace": "queues"});
        let loaded = read(Some(file), "PriorityBoost=true").expect("a gate and a file");
        assert_eq!(loaded.process.namespace.as_deref(), Some("queues"));
        assert!(loaded.config.gates().on(Gate::PriorityBoost));
        let errors = read(None, "NoSuchGate=true").unwrap_err();
        assert!(errors.contains("unrecognized feature gate: NoSuchGate"), "{errors}");
        let errors = read(None, "AllAlpha=true").unwrap_err();
        assert!(errors.contains("SchedulerLibraryIntegration"), "{errors}");
        let both = read(Some(json!({"featureGates": {"PartialAdmission": true}})), "PriorityBoost=true");
        assert!(both.unwrap_err().contains("--feature-gates"));
    }
}
