//! `berth populate`: LocalQueues for the namespaces that ClusterQueues select.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue};
use berth_apimachinery::names;
use berth_controllers::queues::populate::{Naming, population};
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};

use crate::component::connect::{self, ConnectOptions};
use crate::process;
use crate::team::in_words;

/// Options of `berth populate`.
#[derive(Args)]
pub struct PopulateOptions {
    /// Name of the LocalQueues, with --local-queue-name-mode Static.
    #[arg(long, value_name = "NAME", default_value = "default")]
    local_queue_name: String,
    /// How LocalQueues are named.
    #[arg(long, value_enum, default_value = "Static", value_name = "MODE")]
    local_queue_name_mode: Mode,
    /// Only namespaces with these labels. Default: all except kube-system.
    #[arg(long, value_name = "LABEL=VALUE", value_delimiter = ',', value_parser = pair)]
    namespace_labels: Vec<(String, String)>,
    /// Only print what is missing.
    #[arg(long)]
    dry_run: bool,
    /// Repeat after this time, such as 30s, until stopped.
    #[arg(long, value_name = "TIME", value_parser = berth_foresight::command::duration)]
    every: Option<Duration>,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// How LocalQueues are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// All have the same name.
    #[value(name = "Static")]
    Static,
    /// Each has the name of its ClusterQueue.
    #[value(name = "AsClusterQueue")]
    AsClusterQueue,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected LABEL=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Creates the LocalQueues that are missing. Exit code 1 if one cannot be created.
pub fn main(options: &PopulateOptions) -> anyhow::Result<ExitCode> {
    let naming = match options.local_queue_name_mode {
        Mode::AsClusterQueue => Naming::AsClusterQueue,
        Mode::Static => match names::is_dns1123_subdomain(&options.local_queue_name).into_iter().next() {
            Some(problem) => bail!("--local-queue-name {}: {problem}", options.local_queue_name),
            None => Naming::Static(options.local_queue_name.clone()),
        },
    };
    process::run(async {
        let client = connect::persistent(options.connect.config().await?)?;
        loop {
            let complete = populate(&client, options, &naming).await?;
            match options.every {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
            }
        }
    })
}

impl PopulateOptions {
    fn selector(&self) -> LabelSelector {
        if self.namespace_labels.is_empty() {
            let outside = LabelSelectorRequirement {
                key: "kubernetes.io/metadata.name".to_owned(),
                operator: "NotIn".to_owned(),
                values: Some(vec!["kube-system".to_owned()]),
            };
            return LabelSelector { match_expressions: Some(vec![outside]), ..LabelSelector::default() };
        }
        LabelSelector {
            match_labels: Some(self.namespace_labels.iter().cloned().collect()),
            ..LabelSelector::default()
        }
    }
}

/// Creates what is missing once. Returns false if a LocalQueue could not be created.
async fn populate(client: &Client, options: &PopulateOptions, naming: &Naming) -> anyhow::Result<bool> {
    let all = ListParams::default();
    let queues = Api::<ClusterQueue>::all(client.clone()).list(&all).await;
    let queues = queues.map_err(|error| in_words("clusterqueues", error))?.items;
    let namespaces = Api::<Namespace>::all(client.clone()).list(&all).await;
    let namespaces = namespaces.map_err(|error| in_words("namespaces", error))?.items;
    let existing = Api::<LocalQueue>::all(client.clone()).list(&all).await;
    let existing = existing.map_err(|error| in_words("localqueues", error))?.items;
    let found = population(&queues, &namespaces, &existing, naming, &options.selector());
    for conflict in &found.conflicts {
        eprintln!("berth: {conflict}");
    }
    let mut complete = true;
    for queue in &found.missing {
        let namespace = queue.namespace().unwrap_or_default();
        let text = format!("LocalQueue {namespace}/{} for ClusterQueue {}", queue.name_any(), queue.spec.cluster_queue);
        if options.dry_run {
            say!("missing: {text}");
            continue;
        }
        let api: Api<LocalQueue> = Api::namespaced(client.clone(), &namespace);
        match api.create(&PostParams::default(), queue).await {
            Ok(_) => say!("created: {text}"),
            // Another program was faster.
            Err(error) if berth_runtime::is_already_exists(&error) => {}
            Err(error) => {
                complete = false;
                eprintln!("berth: {text}: {}", berth_runtime::message(&error));
            }
        }
    }
    if found.missing.is_empty() && options.every.is_none() {
        say!("no LocalQueue is missing");
    }
    Ok(complete)
}
