//! `berth install`: what a cluster needs to run Berth's controllers, printed or applied.

mod chart;
mod hold;
mod manifests;

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
use hold::Held;
use manifests::{Parts, Settings, Values};

/// Instead of a version of policies: there are none.
const NO_HOLD: &str = "none";

/// Who objects are applied as.
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
    /// How many replicas run; one of them acts.
    #[arg(long, value_name = "N", default_value_t = manifests::REPLICAS)]
    replicas: u32,
    /// Configuration of the queueing controllers: a Kueue Configuration file. Default: every integration, else Kueue's
    /// defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave the CustomResourceDefinitions out, because they are installed by other means.
    #[arg(long)]
    without_crds: bool,
    /// Hold what queues manage in the API server itself while no controller answers: the version of
    /// admissionregistration.k8s.io to write the MutatingAdmissionPolicies in. v1 needs Kubernetes 1.36, v1beta1 needs 1.34 with
    /// that version and the feature MutatingAdmissionPolicy enabled. With none, creating what names a queue fails meanwhile.
    #[arg(long, value_name = "VERSION", default_value = hold::VERSION, value_parser = [hold::VERSIONS[0], hold::VERSIONS[1], NO_HOLD])]
    hold_policy: String,
    /// Apply to the cluster (server-side) instead of printing.
    #[arg(long)]
    apply: bool,
    /// Write the Helm chart to this folder instead of printing.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["apply", "config", "image", "replicas", "namespace"])]
    chart: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints, writes or applies.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &options.chart {
        chart::write(folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (configuration, process, read) = match &options.config {
        Some(path) => {
            // What the controllers would refuse at start is refused here, where somebody reads it.
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
    let parts = Parts { crds: !options.without_crds, hold_policy };
    let objects = manifests::objects(&values, parts);
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

/// What an installation needs of the file beyond what the controllers need.
fn check(file: &Process, namespace: &str) -> anyhow::Result<()> {
    if let Some(other) = file.namespace.as_ref().filter(|other| *other != namespace) {
        bail!(
            "namespace: is {other:?}, and the installation is in {namespace:?}: use --namespace {other}, or leave it out"
        );
    }
    if file.health_address == Some(BindAddress::Off) {
        bail!(
            "health.healthProbeBindAddress: is off, and the Deployment's probes need it: use an address such as :8081"
        );
    }
    let port = |address: Option<BindAddress>, usual| address.map_or(Some(usual), BindAddress::port);
    let health = port(file.health_address, defaults::HEALTH_PORT);
    if health == port(file.metrics_address, defaults::METRICS_PORT) {
        bail!("health.healthProbeBindAddress, metrics.bindAddress: cannot both be on one port: change one of them");
    }
    Ok(())
}

async fn apply(options: &Options, objects: Vec<Value>) -> anyhow::Result<ExitCode> {
    let client = connect::asking(options.connect.config().await?)?;
    check_policies(&client, options).await?;
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
        api.patch(&name, &params, &Patch::Apply(&typed)).await.with_context(|| format!("{kind} {name}"))?;
        say!("{}/{name} applied", resource.plural);
    }
    Ok(ExitCode::SUCCESS)
}

/// Is that the answer of a cluster that does not serve a kind?
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

/// The name of an image; registries have their own mind about what is in it.
fn image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("expected an image's name without spaces, as registry.example/berth:1".to_owned());
    }
    Ok(text.to_owned())
}

/// Refuses a cluster that would not hold anything, before its webhooks are told that they may be skipped.
async fn check_policies(client: &kube::Client, options: &Options) -> anyhow::Result<()> {
    if options.hold_policy == NO_HOLD {
        return Ok(());
    }
    let version = &options.hold_policy;
    let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", version, "MutatingAdmissionPolicy");
    match discovery::pinned_kind(client, &gvk).await {
        Ok(_) => Ok(()),
        // It did not say which kinds it serves.
        Err(error) if !is_missing(&error) => Err(error).context("the cluster cannot be asked what it serves"),
        Err(error) => Err(error).with_context(|| {
            let (newest, older) = (hold::VERSIONS[0], hold::VERSIONS[1]);
            format!(
                "the cluster does not serve MutatingAdmissionPolicy of admissionregistration.k8s.io/{version}, which holds \
                 jobs while no controller answers: {newest} comes with Kubernetes 1.36, {older} with 1.34 where it is \
                 enabled (--hold-policy {older}); --hold-policy {NO_HOLD} has queued jobs refused meanwhile instead"
            )
        }),
    }
}
