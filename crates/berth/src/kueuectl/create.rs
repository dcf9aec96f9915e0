//! `berth create clusterqueue`, `localqueue` and `resourceflavor`.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, ResourceFlavor};
use berth_apimachinery::names::{is_dns1123_subdomain, is_label_value, is_qualified_name};
use clap::{Args, Subcommand, ValueEnum};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::{Value, json};

use super::quota::{self, Amounts};
use super::written::{DryRun, Written};
use crate::batch::Place;
use crate::process;
use crate::team::in_words;

/// The kinds that `berth create` creates.
#[derive(Subcommand)]
pub enum Create {
    /// Create a ClusterQueue with quotas.
    #[command(name = "clusterqueue", alias = "cq")]
    ClusterQueue(ClusterQueueOptions),
    /// Create a LocalQueue.
    #[command(name = "localqueue", alias = "lq")]
    LocalQueue(LocalQueueOptions),
    /// Create a ResourceFlavor.
    #[command(name = "resourceflavor", alias = "rf")]
    ResourceFlavor(ResourceFlavorOptions),
}

/// Options of `berth create clusterqueue`.
#[derive(Args)]
pub struct ClusterQueueOptions {
    name: String,
    /// Cohort of the queue.
    #[arg(long, value_name = "COHORT")]
    cohort: Option<String>,
    /// Order of the workloads.
    #[arg(long, value_enum, default_value_t = Strategy::BestEffortFifo)]
    queuing_strategy: Strategy,
    /// Labels of the namespaces that may use the queue. Default: all namespaces.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    namespace_selector: Vec<(String, String)>,
    /// Workloads of other queues of the cohort that may be preempted to get lent quota back.
    #[arg(long, value_enum, default_value_t = Reclaim::Never)]
    reclaim_within_cohort: Reclaim,
    /// Workloads of the queue that may be preempted.
    #[arg(long, value_enum, default_value_t = Within::Never)]
    preemption_within_cluster_queue: Within,
    /// Nominal quotas, such as "default:cpu=9;memory=36Gi,spot:cpu=18;memory=72Gi".
    #[arg(long, value_name = "FLAVOR:RESOURCE=AMOUNT", value_delimiter = ',')]
    nominal_quota: Vec<Amounts>,
    /// Maximum amounts that the queue may borrow.
    #[arg(long, value_name = "FLAVOR:RESOURCE=AMOUNT", value_delimiter = ',')]
    borrowing_limit: Vec<Amounts>,
    /// Maximum amounts that the queue may lend.
    #[arg(long, value_name = "FLAVOR:RESOURCE=AMOUNT", value_delimiter = ',')]
    lending_limit: Vec<Amounts>,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, ValueEnum)]
enum Strategy {
    #[value(name = "BestEffortFIFO")]
    BestEffortFifo,
    #[value(name = "StrictFIFO")]
    StrictFifo,
}

#[derive(Clone, Copy, ValueEnum)]
enum Reclaim {
    #[value(name = "Never")]
    Never,
    #[value(name = "LowerPriority")]
    LowerPriority,
    #[value(name = "Any")]
    Any,
}

#[derive(Clone, Copy, ValueEnum)]
enum Within {
    #[value(name = "Never")]
    Never,
    #[value(name = "LowerPriority")]
    LowerPriority,
    #[value(name = "LowerOrNewerEqualPriority")]
    LowerOrNewerEqualPriority,
}

/// The value of an option as the API has it.
fn written_as(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Options of `berth create localqueue`.
#[derive(Args)]
pub struct LocalQueueOptions {
    name: String,
    /// ClusterQueue of the queue.
    #[arg(short, long, value_name = "NAME")]
    clusterqueue: String,
    /// Create the queue even if the ClusterQueue does not exist.
    #[arg(short, long)]
    ignore_unknown_cq: bool,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    place: Place,
}

/// Options of `berth create resourceflavor`.
#[derive(Args)]
pub struct ResourceFlavorOptions {
    name: String,
    /// Labels of the nodes of the flavor.
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    node_labels: Vec<(String, String)>,
    /// Taints of the nodes of the flavor.
    #[arg(long, value_name = "KEY[=VALUE]:EFFECT", value_delimiter = ',', value_parser = taint)]
    node_taints: Vec<Value>,
    /// Tolerations that pods of the flavor get.
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]", value_delimiter = ',', value_parser = toleration)]
    tolerations: Vec<Value>,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    place: Place,
}

/// Creates the object, or prints it.
pub fn main(create: &Create) -> anyhow::Result<ExitCode> {
    process::run(async {
        match create {
            Create::ClusterQueue(options) => {
                let resource = ApiResource::erase::<ClusterQueue>(&());
                write(&options.place, &options.written, &resource, None, cluster_queue(options)?).await
            }
            Create::ResourceFlavor(options) => {
                let resource = ApiResource::erase::<ResourceFlavor>(&());
                write(&options.place, &options.written, &resource, None, resource_flavor(options)?).await
            }
            Create::LocalQueue(options) => {
                let (client, namespace) = options.place.open().await?;
                if !options.ignore_unknown_cq {
                    let queues: Api<ClusterQueue> = Api::all(client);
                    let found = queues.get_opt(&options.clusterqueue).await;
                    let found = found.map_err(|error| in_words("clusterqueues", error))?;
                    found.ok_or_else(|| {
                        anyhow!("ClusterQueue {} does not exist; -i creates the queue anyway", options.clusterqueue)
                    })?;
                }
                let resource = ApiResource::erase::<LocalQueue>(&());
                let queue = local_queue(options, &namespace)?;
                write(&options.place, &options.written, &resource, Some(&namespace), queue).await
            }
        }
    })
}

async fn write(
    place: &Place,
    written: &Written,
    resource: &ApiResource,
    namespace: Option<&str>,
    object: Value,
) -> anyhow::Result<ExitCode> {
    written.check()?;
    let created = match written.dry_run {
        DryRun::Client => object,
        dry_run => {
            let (client, _) = place.open().await?;
            let api: Api<DynamicObject> = match namespace {
                Some(namespace) => Api::namespaced_with(client, namespace, resource),
                None => Api::all_with(client, resource),
            };
            let params = PostParams { dry_run: dry_run == DryRun::Server, ..PostParams::default() };
            let created = api.create(&params, &serde_json::from_value(object)?).await;
            serde_json::to_value(created.map_err(|error| in_words(&resource.plural, error))?)?
        }
    };
    process::print(&written.text(&created, "created")?)?;
    Ok(ExitCode::SUCCESS)
}

fn metadata(name: &str) -> anyhow::Result<Value> {
    match is_dns1123_subdomain(name).into_iter().next() {
        Some(wrong) => bail!("{name}: {wrong}"),
        None => Ok(json!({"name": name})),
    }
}

fn map(pairs: &[(String, String)]) -> Value {
    Value::Object(pairs.iter().map(|(key, value)| (key.clone(), json!(value))).collect())
}

fn cluster_queue(options: &ClusterQueueOptions) -> anyhow::Result<Value> {
    let mut spec = json!({
        "queueingStrategy": written_as(options.queuing_strategy),
        "namespaceSelector": {},
        "preemption": {
            "reclaimWithinCohort": written_as(options.reclaim_within_cohort),
            "withinClusterQueue": written_as(options.preemption_within_cluster_queue),
        },
    });
    if !options.namespace_selector.is_empty() {
        spec["namespaceSelector"]["matchLabels"] = map(&options.namespace_selector);
    }
    if let Some(cohort) = &options.cohort {
        spec["cohortName"] = json!(cohort);
    }
    let groups = quota::groups(&options.nominal_quota, &options.borrowing_limit, &options.lending_limit)?;
    if !groups.is_empty() {
        spec["resourceGroups"] = json!(groups);
    }
    let (version, kind) = ("kueue.x-k8s.io/v1beta2", "ClusterQueue");
    Ok(json!({"apiVersion": version, "kind": kind, "metadata": metadata(&options.name)?, "spec": spec}))
}

fn local_queue(options: &LocalQueueOptions, namespace: &str) -> anyhow::Result<Value> {
    let mut metadata = metadata(&options.name)?;
    metadata["namespace"] = json!(namespace);
    let spec = json!({"clusterQueue": options.clusterqueue});
    Ok(json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": metadata, "spec": spec}))
}

fn resource_flavor(options: &ResourceFlavorOptions) -> anyhow::Result<Value> {
    let mut spec = json!({});
    if !options.node_labels.is_empty() {
        spec["nodeLabels"] = map(&options.node_labels);
    }
    for (at, taint) in options.node_taints.iter().enumerate() {
        let is_same = |other: &&Value| other["key"] == taint["key"] && other["effect"] == taint["effect"];
        if options.node_taints[..at].iter().any(|other| is_same(&other)) {
            bail!("--node-taints: {} with effect {} is given twice", taint["key"], taint["effect"]);
        }
    }
    for (field, values) in [("nodeTaints", &options.node_taints), ("tolerations", &options.tolerations)] {
        if !values.is_empty() {
            spec[field] = json!(values);
        }
    }
    let (version, kind) = ("kueue.x-k8s.io/v1beta2", "ResourceFlavor");
    Ok(json!({"apiVersion": version, "kind": kind, "metadata": metadata(&options.name)?, "spec": spec}))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?}: expected KEY=VALUE"))?;
    check(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The names of labels and taints have the same rules.
fn check(key: &str, value: &str) -> Result<(), String> {
    let wrong = is_qualified_name(key).into_iter().next().map(|wrong| format!("{key:?}: {wrong}"));
    let wrong = wrong.or_else(|| is_label_value(value).into_iter().next().map(|wrong| format!("{value:?}: {wrong}")));
    wrong.map_or(Ok(()), Err)
}

/// Key, value and effect of `KEY[=VALUE][:EFFECT]`.
fn parts(text: &str) -> Result<(&str, Option<&str>, Option<&str>), String> {
    let (name, effect) = text.split_once(':').map_or((text, None), |(name, effect)| (name, Some(effect)));
    let (key, value) = name.split_once('=').map_or((name, None), |(key, value)| (key, Some(value)));
    if let Some(effect) = effect
        && !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect)
    {
        return Err(format!("{text:?}: expected the effect NoSchedule, PreferNoSchedule or NoExecute"));
    }
    if !key.is_empty() {
        check(key, value.unwrap_or_default())?;
    }
    Ok((key, value, effect))
}

fn taint(text: &str) -> Result<Value, String> {
    let (key, value, effect) = parts(text)?;
    let Some(effect) = effect.filter(|_| !key.is_empty()) else {
        return Err(format!("{text:?}: expected KEY=VALUE:EFFECT or KEY:EFFECT"));
    };
    let mut taint = json!({"key": key, "effect": effect});
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        taint["value"] = json!(value);
    }
    Ok(taint)
}

fn toleration(text: &str) -> Result<Value, String> {
    let (key, value, effect) = parts(text)?;
    let value = value.filter(|value| !value.is_empty());
    if key.is_empty() && (value.is_some() || effect.is_none()) {
        return Err(format!("{text:?}: expected KEY, KEY=VALUE, KEY:EFFECT, KEY=VALUE:EFFECT or :EFFECT"));
    }
    let mut toleration = json!({"operator": if value.is_some() { "Equal" } else { "Exists" }});
    for (field, text) in [("key", Some(key).filter(|key| !key.is_empty())), ("value", value), ("effect", effect)] {
        if let Some(text) = text {
            toleration[field] = json!(text);
        }
    }
    Ok(toleration)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        create: Create,
    }

    /// The object of a command line, or its error.
    fn object(line: &str) -> Result<Value, String> {
        let words = std::iter::once("create").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let made = match &line.create {
            Create::ClusterQueue(options) => cluster_queue(options),
            Create::LocalQueue(options) => local_queue(options, "team"),
            Create::ResourceFlavor(options) => resource_flavor(options),
        };
        made.map_err(|error| error.to_string())
    }

    #[test]
    fn a_cluster_queue_has_the_fields_of_its_options() {
        let line = "clusterqueue cq --cohort all --queuing-strategy StrictFIFO --namespace-selector fooX=barX,fooY=barY \
                    --reclaim-within-cohort Any --preemption-within-cluster-queue LowerPriority \
                    --nominal-quota alpha:cpu=9;memory=36Gi,beta:cpu=18;memory=72Gi";
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let made = object(&line).expect("a queue");
        let flavor = |name: &str, cpu: &str, memory: &str| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]});
        let expected = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "cq"},
            "spec": {"cohortName": "all", "queueingStrategy": "StrictFIFO",
                "namespaceSelector": {"matchLabels": {"fooX": "barX", "fooY": "barY"}},
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                "resourceGroups": [{"coveredResources": ["cpu", "memory"],
                    "flavors": [flavor("alpha", "9", "36Gi"), flavor("beta", "18", "72Gi")]}]}});
        assert_eq!(made, expected);
        let plain = object("cq plain").expect("a queue");
        assert_eq!(plain["spec"]["namespaceSelector"], json!({}), "all namespaces");
        assert_eq!(plain["spec"]["queueingStrategy"], "BestEffortFIFO");
    }

    #[test]
    fn a_flavor_has_labels_taints_and_tolerations() {
        let line = "rf f --node-labels kubernetes.io/arch=arm64,kubernetes.io/os=linux \
                    --node-taints key1=value:NoSchedule,key2:NoExecute \
                    --tolerations key1=value:NoSchedule,key2:NoExecute,key3=value,key4,:PreferNoSchedule";
        let spec = object(&line.split_whitespace().collect::<Vec<_>>().join(" ")).expect("a flavor")["spec"].clone();
        let expected = json!({
            "nodeLabels": {"kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux"},
            "nodeTaints": [{"key": "key1", "value": "value", "effect": "NoSchedule"}, {"key": "key2", "effect": "NoExecute"}],
            "tolerations": [
                {"key": "key1", "operator": "Equal", "value": "value", "effect": "NoSchedule"},
                {"key": "key2", "operator": "Exists", "effect": "NoExecute"},
                {"key": "key3", "operator": "Equal", "value": "value"},
                {"key": "key4", "operator": "Exists"},
                {"operator": "Exists", "effect": "PreferNoSchedule"}]});
        assert_eq!(spec, expected);
    }

    #[test]
    fn errors_name_the_value_and_what_is_expected() {
        let cases = [
            ("cq Bad_Name", "Bad_Name: "),
            ("cq q --queuing-strategy Fifo", "[possible values: BestEffortFIFO, StrictFIFO]"),
            ("cq q --nominal-quota alpha", "expected FLAVOR:RESOURCE=AMOUNT"),
            ("lq q", "--clusterqueue <NAME>"),
            ("rf f --node-taints key", "expected KEY=VALUE:EFFECT or KEY:EFFECT"),
            ("rf f --node-taints key:Never", "expected the effect NoSchedule, PreferNoSchedule or NoExecute"),
            ("rf f --node-taints k=a:NoSchedule,k=b:NoSchedule", "is given twice"),
            ("rf f --tolerations =v", "expected KEY, KEY=VALUE"),
            ("rf f --node-labels a", "expected KEY=VALUE"),
        ];
        for (line, expected) in cases {
            let error = object(line).expect_err(line);
            assert!(error.contains(expected), "{line}: {error}");
        }
        let queue = object("lq q -c shared").expect("a queue");
        assert_eq!(
            (&queue["spec"]["clusterQueue"], &queue["metadata"]["namespace"]),
            (&json!("shared"), &json!("team"))
        );
    }
}
