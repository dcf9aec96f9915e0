//! `berth import`: takes running pods into queues, with the options of Kueue's importer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::{decode, names};
use berth_controllers::Config;
use berth_controllers::execute::{Part, patch};
use berth_controllers::jobs::pods::import::{Fate, Imported, Match, Rule, View, admitted, import, is_running};
use berth_controllers::jobs::takeover;
use berth_embedded::objects;
use berth_runtime::Clock;
use clap::Args;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::component::connect::{self, ConnectOptions, Requests};
use crate::component::limit::{Limit, Limiter};
use crate::process;
use crate::team::in_words;

/// Repetitions of a write after conflicts.
const ATTEMPTS_MAX: u32 = 10;
/// Pods that the report names per problem.
const NAMED_MAX: usize = 3;

/// Options of `berth import`.
#[derive(Args)]
pub struct ImportOptions {
    /// Namespaces of the pods.
    #[arg(short, long = "namespace", value_name = "NAMESPACE", value_delimiter = ',', required = true)]
    namespaces: Vec<String>,
    /// Label whose values --queuemapping maps to LocalQueues.
    #[arg(long, value_name = "LABEL", requires = "queuemapping", conflicts_with = "queuemapping_file")]
    queuelabel: Option<String>,
    /// LocalQueues by the value of the label.
    #[arg(long, value_name = "VALUE=QUEUE", value_delimiter = ',', value_parser = pair, requires = "queuelabel")]
    queuemapping: Vec<(String, String)>,
    /// A YAML file with rules: lists of `match` (`labels`, `priorityClassName`), and `toLocalQueue`
    /// or `skip: true`. The first rule that matches a pod counts.
    #[arg(long, value_name = "FILE", required_unless_present = "queuelabel")]
    queuemapping_file: Option<PathBuf>,
    /// Labels to add to the pods and their Workloads.
    #[arg(long, value_name = "LABEL=VALUE", value_delimiter = ',', value_parser = pair)]
    add_labels: Vec<(String, String)>,
    /// Prefixes of resources that quota ignores (`resources.excludeResourcePrefixes` of the
    /// configuration).
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    exclude_resource_prefixes: Vec<String>,
    /// Number of pods that are imported at once.
    #[arg(short, long, default_value = "8", value_parser = clap::value_parser!(u8).range(1..))]
    concurrent_workers: u8,
    /// Maximum requests per second, for each kind of object. Default: no limit, or 50 with --burst.
    #[arg(long)]
    qps: Option<f64>,
    /// Maximum burst of requests after a pause. Default: no limit, or 50 with --qps.
    #[arg(long)]
    burst: Option<u32>,
    /// Only check what would be imported.
    #[arg(long, default_value = "true", action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    dry_run: bool,
    #[command(flatten)]
    connect: ConnectOptions,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected NAME=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Checks all pods, and imports them unless it is a dry run. Exit code 1 if a pod cannot be
/// imported; then none is.
pub fn main(options: &ImportOptions) -> anyhow::Result<ExitCode> {
    let rules = options.rules()?;
    let add_labels = options.added()?;
    process::run(run(options, &rules, &add_labels))
}

impl ImportOptions {
    fn rules(&self) -> anyhow::Result<Vec<Rule>> {
        let Some(path) = &self.queuemapping_file else {
            let label = self.queuelabel.clone().unwrap_or_default();
            let rule = |(value, queue): &(String, String)| Rule {
                of: Match { labels: [(label.clone(), value.clone())].into(), ..Match::default() },
                to_local_queue: queue.clone(),
                skip: false,
            };
            return Ok(self.queuemapping.iter().map(rule).collect());
        };
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let value = decode::documents(&text).with_context(|| path.display().to_string())?.into_iter().next();
        let rules: Vec<Rule> = serde_json::from_value(value.unwrap_or(Value::Null)).with_context(|| {
            format!("{}: expected a list of rules with match and toLocalQueue or skip", path.display())
        })?;
        if let Some(number) = rules.iter().position(|rule| !rule.skip && rule.to_local_queue.is_empty()) {
            bail!("{}: [{number}].toLocalQueue: is required unless skip is true", path.display());
        }
        Ok(rules)
    }

    /// The limit of requests; `None` without one.
    fn limit(&self) -> anyhow::Result<Option<Limit>> {
        if self.qps.is_none() && self.burst.is_none() {
            return Ok(None);
        }
        let limit = Limit::new(self.qps.unwrap_or(50.0), self.burst.unwrap_or(50));
        limit.map(Some).context("--qps and --burst must be above 0")
    }

    fn added(&self) -> anyhow::Result<BTreeMap<String, String>> {
        for (key, value) in &self.add_labels {
            let wrong = names::is_qualified_name(key).into_iter().chain(names::is_label_value(value)).next();
            if let Some(problem) = wrong {
                bail!("--add-labels {key}={value}: {problem}");
            }
        }
        Ok(self.add_labels.iter().cloned().collect())
    }
}

async fn run(
    options: &ImportOptions,
    rules: &[Rule],
    add_labels: &BTreeMap<String, String>,
) -> anyhow::Result<ExitCode> {
    let mut config = options.connect.config().await?;
    config.default_retry &= !options.dry_run;
    let client = connect::client(config, &Requests::default(), &Limiter::per_kind(options.limit()?))?;
    let listed = objects::list(&client, false).await.map_err(|unlisted| in_words(&unlisted.plural, unlisted.source))?;
    if let Some(missing) = listed.missing.first() {
        bail!("{missing}");
    }
    let mut settings = Config::default();
    settings.resources.exclude_resource_prefixes.clone_from(&options.exclude_resource_prefixes);
    let values: Vec<Value> = listed.documents.into_iter().map(|document| document.value).collect();
    let (stores, _) = takeover::stores(&values, &settings);
    let classes = values.iter().filter(|value| value["kind"] == "RuntimeClass");
    let runtime_classes: BTreeMap<String, RuntimeClass> = classes
        .filter_map(|value| serde_json::from_value::<RuntimeClass>(value.clone()).ok())
        .map(|class| (class.name_any(), class))
        .collect();
    let now = Clock::system().now();
    let view = View { stores: &stores, runtime_classes: &runtime_classes, config: &settings, rules, add_labels, now };

    let mut outcome = Outcome::default();
    for namespace in &options.namespaces {
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pods = api.list(&ListParams::default()).await.map_err(|error| in_words("pods", error))?;
        for pod in pods.items.iter().filter(|pod| is_running(pod)) {
            outcome.add(pod, import(pod, &view));
        }
    }
    if let Some(first) = outcome.imported.first()
        && let Err(problem) = try_labels(&client, &first.pod).await
    {
        let pod = first.pod.clone();
        outcome.add_refused(&pod, problem);
    }
    outcome.print();
    if !outcome.refused.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    if options.dry_run {
        say!("Nothing was written; --dry-run=false imports the pods");
        return Ok(ExitCode::SUCCESS);
    }
    let workers = usize::from(options.concurrent_workers);
    let client = &client;
    let writes = stream::iter(outcome.imported).map(|it| async move {
        let name = format!("{}/{}", it.pod.namespace().unwrap_or_default(), it.pod.name_any());
        write(client, it, now).await.map_err(|error| format!("pod {name}: {}", berth_runtime::message(&error)))
    });
    let results: Vec<Result<(), String>> = writes.buffer_unordered(workers).collect().await;
    let failed = results.iter().filter(|result| result.is_err()).count();
    say!("{} pods imported, {failed} failed", results.len() - failed);
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        eprintln!("berth: {error}");
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the check found.
#[derive(Default)]
struct Outcome {
    checked: usize,
    skipped: usize,
    done: usize,
    imported: Vec<Imported>,
    /// Names of pods by problem.
    refused: BTreeMap<String, Vec<String>>,
}

impl Outcome {
    fn add(&mut self, pod: &Pod, fate: Fate) {
        self.checked += 1;
        match fate {
            Fate::Skipped => self.skipped += 1,
            Fate::Done => self.done += 1,
            Fate::Imported(imported) => self.imported.push(*imported),
            Fate::Refused(problem) => self.add_refused(pod, problem),
        }
    }

    fn add_refused(&mut self, pod: &Pod, problem: String) {
        let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        self.refused.entry(problem).or_default().push(name);
    }

    fn print(&self) {
        let refused: usize = self.refused.values().map(Vec::len).sum();
        say!(
            "{} running pods checked: {} to import, {} imported before, {} skipped, {refused} cannot be imported",
            self.checked,
            self.imported.len(),
            self.done,
            self.skipped
        );
        for (problem, pods) in &self.refused {
            let more = pods.len().saturating_sub(NAMED_MAX);
            let named = pods.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            say!("  {problem}: pod {named}{more}");
        }
    }
}

/// The labels of an imported pod as a patch, for this pod alone and no later one of its name.
fn labels(pod: &Pod) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"labels": pod.labels(), "uid": pod.uid()}}))
}

/// Asks the API server whether it would accept the labels, without writing them. While the
/// integration of pods runs, its webhook rejects them.
async fn try_labels(client: &Client, pod: &Pod) -> Result<(), String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    match pods.patch(&pod.name_any(), &params, &labels(pod)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "the API server rejects the labels of queued pods: {}; import before the controllers run, or while the \
             integration `pod` is off",
            berth_runtime::message(&error)
        )),
    }
}

/// Writes the pod's labels, its Workload, and the admission. Running controllers also write the new
/// Workload, so conflicts are retried.
async fn write(client: &Client, imported: Imported, now: Timestamp) -> Result<(), kube::Error> {
    let Imported { workload, admission, pod } = imported;
    let (name, namespace) = (workload.name_any(), pod.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    pods.patch(&pod.name_any(), &PatchParams::default(), &labels(&pod)).await?;
    let workloads: Api<Workload> = Api::namespaced(client.clone(), &namespace);
    let mut stored = match workloads.create(&PostParams::default(), &workload).await {
        Err(error) if berth_runtime::is_already_exists(&error) => workloads.get(&name).await?,
        other => other?,
    };
    let mut attempts = 0;
    while let Some(after) = admitted(&stored, &admission, now) {
        let version = stored.resource_version();
        match patch(&workloads, &stored, &after, Part::Status, version.as_deref()).await {
            Ok(_) => break,
            Err(error) if berth_runtime::is_conflict(&error) && attempts < ATTEMPTS_MAX => attempts += 1,
            Err(error) => return Err(error),
        }
        stored = workloads.get(&name).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Options on a command line.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        import: ImportOptions,
    }

    fn limit(words: &[&str]) -> anyhow::Result<Option<Limit>> {
        let line = ["berth", "-n", "team", "--queuemapping-file", "rules.yaml"].iter().chain(words);
        Line::try_parse_from(line)?.import.limit()
    }

    #[test]
    fn requests_are_limited_by_the_options_of_kueues_importer() {
        assert_eq!(limit(&[]).expect("no limit"), None);
        assert_eq!(limit(&["--qps", "20.5"]).expect("a limit"), Limit::new(20.5, 50));
        assert_eq!(limit(&["--burst=10"]).expect("a limit"), Limit::new(50.0, 10));
        assert!(limit(&["--qps", "0"]).is_err());
    }
}
