//! `berth install`: prints or applies the objects that Berth's controllers need in a cluster.

mod chart;
mod check;
mod hold;
mod manifests;
mod pages;
mod stored;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_apimachinery::names::is_dns1123_label;
use berth_controllers::configuration::{BindAddress, Loaded, Process, process as defaults};
use berth_controllers::rights;
use clap::Args;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use kube::discovery;
use serde_json::Value;

use crate::component::connect::{self, ConnectOptions};
use crate::process;
use check::Step;
use hold::Held;
pub use manifests::yaml;
use manifests::{Parts, Settings, Values};

/// Value of `--hold-policy` for an installation without policies.
const NO_HOLD: &str = "none";

/// Field manager of applied objects.
const FIELD_MANAGER: &str = "berth-install";

/// Options of `berth install`.
#[derive(Args)]
pub struct Options {
    /// Namespace of the installation.
    #[arg(long, value_name = "NAME", default_value = rights::NAMESPACE, value_parser = namespace)]
    namespace: String,
    /// Image of the controllers.
    #[arg(long, value_name = "IMAGE", default_value = manifests::IMAGE, value_parser = image)]
    image: String,
    /// Number of replicas. One of them leads.
    #[arg(long, value_name = "N", default_value_t = manifests::REPLICAS)]
    replicas: u32,
    /// Configuration of the queueing controllers: a Kueue Configuration file. Default: Kueue's
    /// defaults with every integration enabled.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave out the CustomResourceDefinitions, because they are installed by other means.
    #[arg(long)]
    without_crds: bool,
    /// API version of the MutatingAdmissionPolicies by which the API server holds queued jobs while
    /// no controller is available. v1 needs Kubernetes 1.36; v1beta1 needs Kubernetes 1.34 with API
    /// version v1beta1 and feature gate MutatingAdmissionPolicy enabled. With `none`, objects that
    /// name a queue are rejected while no controller is available.
    #[arg(long, value_name = "VERSION", default_value = hold::VERSION, value_parser = [hold::VERSIONS[0], hold::VERSIONS[1], NO_HOLD])]
    hold_policy: String,
    /// Apply the objects to the cluster (server-side) instead of printing them. Checks first, as
    /// with --check.
    #[arg(long)]
    apply: bool,
    /// Report, without changing anything, the webhooks that would reject objects of this
    /// installation, and the other controllers that serve its kinds.
    #[arg(long, conflicts_with = "apply")]
    check: bool,
    /// Print or apply only the objects that hold jobs while no controller is available: policies
    /// and webhook configurations. They work without the controllers. This is the first step of a
    /// migration from Kueue.
    #[arg(long)]
    hold_only: bool,
    /// Print or apply the controllers as a standby, without the definitions: they serve webhooks
    /// and conversion, and decide and write nothing. A running Kueue is then no obstacle. A
    /// migration from Kueue or back to it passes through this state.
    #[arg(long, conflicts_with = "hold_only")]
    standby: bool,
    /// Let the controllers run AppWrappers, in place of AppWrapper's own controller: rights,
    /// webhooks and the CustomResourceDefinition.
    #[arg(long)]
    appwrapper: bool,
    /// Let the controllers serve their metrics over HTTPS, to clients that the API server
    /// authenticates and authorizes.
    #[arg(long)]
    metrics_secure: bool,
    /// Let the controllers react to unhealthy nodes: new pods of queued jobs avoid them, and
    /// running pods leave them.
    #[arg(long)]
    node_health: bool,
    /// ClusterQueue whose lending limits follow the capacity that unhealthy nodes take away.
    /// Implies --node-health.
    #[arg(long, value_name = "NAME")]
    slack_queue: Option<String>,
    /// Let the controllers write the forecasts of the first PLACES waiting workloads of each
    /// ClusterQueue on their Workloads, as annotation berth.dev/forecast.
    #[arg(long, value_name = "PLACES")]
    forecast_annotations: Option<usize>,
    /// Namespace of the pods of dcgm-exporter. The web pages and `berth top` then show what GPUs
    /// report. The controllers get the right to reach the pods of this namespace through the API
    /// server (pods/proxy), by a Role in it. The namespace must exist: it belongs to the exporters,
    /// and is not among the printed objects.
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace)]
    gpu_exporters: Option<String>,
    /// Write the Helm chart to this folder instead of printing.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["apply", "check", "hold_only", "standby", "config", "image", "replicas", "namespace", "appwrapper", "metrics_secure", "node_health", "slack_queue", "forecast_annotations", "gpu_exporters", "dashboard"])]
    chart: Option<PathBuf>,
    #[command(flatten)]
    pages: pages::PagesOptions,
    #[command(flatten)]
    connect: ConnectOptions,
}

impl Options {
    fn step(&self) -> Step {
        match (self.hold_only, self.standby) {
            (true, _) => Step::Hold,
            (_, true) => Step::Standby,
            _ => Step::Whole,
        }
    }
}

/// Prints or applies the objects of the installation, checks the cluster for them, or writes the
/// Helm chart.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &options.chart {
        chart::write(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (configuration, process, read) = match &options.config {
        Some(path) => {
            // A file that the controllers would reject at start is rejected here, where the user
            // sees the error.
            let loaded = crate::controller::configuration(path, &options.namespace)?;
            check(&loaded.process, &options.namespace).with_context(|| path.display().to_string())?;
            (std::fs::read_to_string(path).with_context(|| path.display().to_string())?, loaded.process, loaded.config)
        }
        None => (manifests::configuration(), Process::default(), Loaded::without_file(&options.namespace).config),
    };
    let values = Values {
        namespace: options.namespace.clone(),
        namespace_in_text: options.namespace.clone(),
        image: options.image.clone(),
        replicas: options.replicas.into(),
        configuration,
        settings: Settings::of(&process, &options.namespace),
        held: Held::of(&read, &options.namespace),
    };
    let hold_policy = (options.hold_policy != NO_HOLD).then(|| options.hold_policy.clone());
    let parts = Parts {
        crds: !options.without_crds,
        hold_policy,
        hold_only: options.hold_only,
        standby: options.standby,
        app_wrappers: options.appwrapper,
        metrics_secure: options.metrics_secure,
        node_health: options.node_health,
        slack_queue: options.slack_queue.clone(),
        forecasts: options.forecast_annotations.filter(|places| *places > 0).map(|places| places.to_string()),
        gpu_exporters: options.gpu_exporters.clone(),
        pages: options.pages.pages(),
    };
    check_ports(&values.settings, &parts)?;
    let objects = manifests::objects(&values, &parts);
    if options.check {
        return process::run(checked(options, objects));
    }
    if options.apply {
        return process::run(apply(options, objects));
    }
    let mut text = String::new();
    for object in &objects {
        text.push_str("---\n");
        text.push_str(&manifests::yaml(object)?);
    }
    process::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if the configuration file does not suit the installation. The requirements of the
/// controllers themselves are checked when the file is read.
fn check(file: &Process, namespace: &str) -> anyhow::Result<()> {
    if let Some(other) = file.namespace.as_ref().filter(|other| *other != namespace) {
        bail!(
            "namespace: is {other:?}, but the installation is in {namespace:?}; use --namespace {other}, or remove the field"
        );
    }
    if file.health_address == Some(BindAddress::Off) {
        bail!(
            "health.healthProbeBindAddress: is off, but the Deployment's probes need it; use an address such as :8081"
        );
    }
    let port = |address: Option<BindAddress>, usual| address.map_or(Some(usual), BindAddress::port);
    let used = [
        ("health.healthProbeBindAddress", port(file.health_address, defaults::HEALTH_PORT)),
        ("metrics.bindAddress", port(file.metrics_address, defaults::METRICS_PORT)),
        ("webhook.port", Some(file.webhook_port.unwrap_or(defaults::WEBHOOK_PORT))),
    ];
    for (at, (field, port)) in used.iter().enumerate() {
        let same = used[at + 1..].iter().find(|(_, other)| port.is_some() && other == port);
        if let Some((other, _)) = same {
            bail!("{field}, {other}: both use the same port; change one of them");
        }
    }
    Ok(())
}

/// Fails if the web pages would use the port of another server of the same pod.
fn check_ports(settings: &Settings, parts: &Parts) -> anyhow::Result<()> {
    let Some(pages) = &parts.pages else { return Ok(()) };
    let used = [
        ("webhook.port", &settings.webhook_port),
        ("metrics.bindAddress", &settings.metrics_port),
        ("health.healthProbeBindAddress", &settings.health_port),
    ];
    match used.into_iter().find(|(_, port)| **port == pages.port) {
        Some((field, port)) => bail!("--dashboard-port {port}: {field} uses the same port; choose another one"),
        None => Ok(()),
    }
}

async fn apply(options: &Options, objects: Vec<Value>) -> anyhow::Result<ExitCode> {
    let config = options.connect.config().await?;
    // An unreachable cluster is reported at once.
    let client = connect::asking(config.clone())?;
    check_cluster(&client, &options.hold_policy).await?;
    let found = match check::look(&client, &objects, options.step()).await {
        Ok(found) => found,
        // A user that may install may lack the permissions to read everything that is checked.
        Err(error) if is_forbidden(&error) => check::Report {
            notes: vec![format!(
                "the check for obstacles was skipped because of missing permissions: {}",
                process::in_full(&error)
            )],
            ..check::Report::default()
        },
        Err(error) => return Err(error),
    };
    if !found.obstacles.is_empty() {
        bail!("nothing was changed, because the installation could not be completed:\n{}", found.obstacles.join("\n"));
    }
    found.notes.iter().for_each(|note| say!("{note}"));
    apply_to(config, objects).await?;
    Ok(ExitCode::SUCCESS)
}

fn is_forbidden(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<kube::Error>());
    causes.any(|cause| matches!(cause, kube::Error::Api(status) if status.code == 403))
}

/// Prints the obstacles and notes.
async fn checked(options: &Options, objects: Vec<Value>) -> anyhow::Result<ExitCode> {
    let client = connect::asking(options.connect.config().await?)?;
    let mut found = check::look(&client, &objects, options.step()).await?;
    match check_cluster(&client, &options.hold_policy).await {
        Ok(()) => found.notes.push(check::held(&client, &objects).await?),
        Err(error) => found.obstacles.push(process::in_full(&error)),
    }
    for obstacle in &found.obstacles {
        say!("obstacle: {obstacle}");
    }
    for note in &found.notes {
        say!("{note}");
    }
    if found.obstacles.is_empty() {
        say!("no obstacle found");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

async fn apply_to(config: kube::Config, objects: Vec<Value>) -> anyhow::Result<()> {
    // A busy API server is retried, so that no installation stops halfway.
    let client = connect::persistent(config)?;
    for object in objects {
        let typed: DynamicObject = serde_json::from_value(object)?;
        let (api_version, kind) = match &typed.types {
            Some(types) => (types.api_version.clone(), types.kind.clone()),
            None => bail!("an object without a kind"),
        };
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let gvk = GroupVersionKind::gvk(group, version, &kind);
        let (resource, capabilities): (ApiResource, _) = discovery::pinned_kind(&client, &gvk)
            .await
            .with_context(|| format!("the cluster does not serve {kind} of {api_version}"))?;
        let api: Api<DynamicObject> = match (&capabilities.scope, &typed.metadata.namespace) {
            (discovery::Scope::Namespaced, Some(namespace)) => {
                Api::namespaced_with(client.clone(), namespace, &resource)
            }
            _ => Api::all_with(client.clone(), &resource),
        };
        let name = typed.metadata.name.clone().unwrap_or_default();
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = api.patch(&name, &params, &Patch::Apply(&typed)).await;
        applied.with_context(|| {
            format!("{kind} {name}: the objects before it were applied; fix the problem and run the command again")
        })?;
        say!("{}/{name} applied", resource.plural);
    }
    Ok(())
}

/// True if the error means that the cluster does not serve a kind.
fn is_missing(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 404,
        kube::Error::Discovery(_) => true,
        _ => false,
    }
}

/// The name of a namespace.
fn namespace(text: &str) -> Result<String, String> {
    match is_dns1123_label(text).into_iter().next() {
        None => Ok(text.to_owned()),
        Some(wrong) => Err(wrong),
    }
}

/// Name of an image. It is only checked for blanks, because registries differ in their rules.
fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("expected an image name without spaces, such as registry.example/berth:1".to_owned());
    }
    Ok(text.to_owned())
}

/// Fails if the cluster is unreachable, or does not serve the policies that hold jobs. Runs before
/// anything is applied: with these policies, webhooks of queued jobs have `failurePolicy: Ignore`.
async fn check_cluster(client: &kube::Client, hold_policy: &str) -> anyhow::Result<()> {
    if hold_policy == NO_HOLD {
        let namespaces = discovery::pinned_kind(client, &GroupVersionKind::gvk("", "v1", "Namespace")).await;
        return namespaces.map(drop).context("cannot read which kinds the cluster serves");
    }
    let version = hold_policy;
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", version, "MutatingAdmissionPolicy");
    match discovery::pinned_kind(client, &gvk).await {
        Ok(_) => Ok(()),
        // The cluster did not report the kinds that it serves.
        Err(error) if !is_missing(&error) => Err(error).context("cannot read which kinds the cluster serves"),
        Err(error) => Err(error).with_context(|| {
            let (newest, older) = (hold::VERSIONS[0], hold::VERSIONS[1]);
            format!(
                "the cluster does not serve MutatingAdmissionPolicy in admissionregistration.k8s.io/{version}. These policies \
                 hold jobs while no controller is available. Kubernetes 1.36 serves {newest}; 1.34 can serve {older} if it is \
                 enabled (--hold-policy {older}). With --hold-policy {NO_HOLD}, queued jobs are rejected meanwhile"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// An API server that serves namespaces, and responds to `times` requests with 503, starting
    /// with request `from`. Returns the requests.
    async fn busy(from: usize, times: usize) -> (kube::Config, Arc<Mutex<Vec<String>>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 16 * 1024];
                // One read returns the whole request, because it is small.
                let length = stream.read(&mut request).await.unwrap_or_default();
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                let verb = request.split(' ').next().unwrap_or_default().to_owned();
                let number = {
                    let mut log = log.lock();
                    log.push(verb.clone());
                    log.len() - 1
                };
                let resource = json!({"name": "namespaces", "singularName": "namespace", "namespaced": false,
                    "kind": "Namespace", "verbs": ["patch"]});
                let (status, body) = match verb.as_str() {
                    _ if number >= from && number - from < times => ("503 Service Unavailable", json!({})),
                    "GET" => (
                        "200 OK",
                        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [resource]}),
                    ),
                    _ => ("200 OK", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "queues"}})),
                };
                let body = body.to_string();
                let answer = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        (kube::Config::new(url.parse().expect("an address")), asked)
    }

    async fn installed(from: usize, times: usize) -> (anyhow::Result<()>, Vec<String>) {
        let (config, asked) = busy(from, times).await;
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "queues"}});
        let all = async {
            check_cluster(&connect::asking(config.clone())?, NO_HOLD).await?;
            apply_to(config, vec![object]).await
        };
        let applied = tokio::time::timeout(Duration::from_secs(60), all);
        let applied = applied.await.expect("the installation ends in time");
        let asked = asked.lock().clone();
        (applied, asked)
    }

    #[tokio::test]
    async fn a_cluster_that_is_briefly_busy_does_not_stop_an_installation() {
        let (applied, asked) = installed(2, 2).await;
        applied.expect("the object is applied");
        assert_eq!(asked, ["GET", "GET", "PATCH", "PATCH", "PATCH"]);
    }

    #[tokio::test]
    async fn a_cluster_that_does_not_answer_is_reported_at_once() {
        let (applied, asked) = installed(0, usize::MAX).await;
        let error = applied.expect_err("nothing is applied").to_string();
        assert_eq!((error.as_str(), asked.len()), ("cannot read which kinds the cluster serves", 1));
    }
}
