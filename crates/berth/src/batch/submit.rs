//! `berth submit`: a queued Job in one line.

use std::process::ExitCode;

use anyhow::bail;
use berth_api::kueue::labels;
use berth_api::kueue::v1beta2::LocalQueue;
use berth_apimachinery::names::is_dns1123_label;
use berth_apimachinery::quantity::Quantity;
use berth_foresight::command::duration;
use clap::{Args, ValueEnum};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

use super::Place;
use crate::team::in_words;
use crate::{install, process};

/// Options of `berth submit`.
#[derive(Args)]
pub struct Options {
    /// Name of the Job. Default: a generated name that begins with that of the program.
    #[arg(long)]
    name: Option<String>,
    /// LocalQueue of the namespace. Default: the only one, or the one named `default`.
    #[arg(short, long)]
    queue: Option<String>,
    /// Number of pods. With more than one, each finds its number in JOB_COMPLETION_INDEX.
    #[arg(short = 'N', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pods: u32,
    /// CPUs of each pod.
    #[arg(short, long, value_name = "QUANTITY", default_value = "1", value_parser = quantity)]
    cpu: String,
    /// Memory of each pod, such as 4Gi.
    #[arg(short, long, value_name = "QUANTITY", value_parser = quantity)]
    memory: Option<String>,
    /// GPUs (nvidia.com/gpu) of each pod.
    #[arg(short, long, value_name = "COUNT", value_parser = quantity)]
    gpus: Option<String>,
    /// Another resource of each pod; may be repeated.
    #[arg(long = "resource", value_name = "NAME=QUANTITY", value_parser = resource)]
    resources: Vec<(String, String)>,
    /// Image of the container.
    #[arg(short, long, default_value = "busybox")]
    image: String,
    /// Maximum run time, such as 90m, 36h or 10d. The job is stopped afterwards; forecasts use it.
    #[arg(short, long, value_parser = duration)]
    time: Option<std::time::Duration>,
    /// WorkloadPriorityClass.
    #[arg(short, long, value_name = "CLASS")]
    priority: Option<String>,
    /// Create nothing: `client` prints the Job, `server` lets the API server validate it.
    #[arg(long, value_enum)]
    dry_run: Option<DryRun>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Name)]
    output: Output,
    #[command(flatten)]
    place: Place,
    /// Command and arguments of the container, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DryRun {
    Client,
    Server,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Name,
    Json,
    Yaml,
}

fn quantity(text: &str) -> Result<String, String> {
    let parsed = Quantity::parse(text).map_err(|_| "expected a quantity such as 2, 500m or 4Gi".to_owned())?;
    if parsed.sign() > 0 { Ok(text.to_owned()) } else { Err("expected a quantity above 0".to_owned()) }
}

fn resource(text: &str) -> Result<(String, String), String> {
    let (name, amount) = text.split_once('=').ok_or("expected NAME=QUANTITY, such as google.com/tpu=4")?;
    Ok((name.to_owned(), quantity(amount)?))
}

/// Creates the Job, or prints it.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    process::run(async {
        let created = match (options.dry_run, &options.queue) {
            // The Job depends on no cluster, so none is needed.
            (Some(DryRun::Client), Some(queue)) => job(options, options.place.namespace.as_deref(), queue)?,
            _ => {
                let (client, namespace) = options.place.open().await?;
                let queue = queue_of(&client, &namespace, options.queue.as_deref()).await?;
                let job = job(options, Some(&namespace), &queue)?;
                match options.dry_run {
                    Some(DryRun::Client) => job,
                    other => create(&client, &namespace, job, other == Some(DryRun::Server)).await?,
                }
            }
        };
        let name = created["metadata"]["name"].as_str().or(created["metadata"]["generateName"].as_str());
        let suffix = match options.dry_run {
            Some(DryRun::Client) => " (dry run)",
            Some(DryRun::Server) => " (server dry run)",
            None => "",
        };
        match options.output {
            Output::Json => say!("{created:#}"),
            Output::Yaml => process::print(&install::yaml(&created)?)?,
            Output::Name => say!("job.batch/{} created{suffix}", name.unwrap_or_default()),
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn create(client: &Client, namespace: &str, job: Value, dry_run: bool) -> anyhow::Result<Value> {
    let api: Api<Job> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { dry_run, ..PostParams::default() };
    let created = api.create(&params, &serde_json::from_value(job)?).await;
    let mut created = created.map_err(|error| in_words("jobs", error))?;
    created.metadata.managed_fields = None;
    Ok(serde_json::to_value(created)?)
}

/// The LocalQueue to use: an unknown one would let the job wait forever.
async fn queue_of(client: &Client, namespace: &str, given: Option<&str>) -> anyhow::Result<String> {
    let api: Api<LocalQueue> = Api::namespaced(client.clone(), namespace);
    let listed = api.list(&ListParams::default()).await;
    let names: Vec<String> = match (listed, given) {
        (Ok(listed), _) => listed.items.iter().map(ResourceExt::name_any).collect(),
        // A user that may not list queues may still submit.
        (Err(kube::Error::Api(status)), Some(given)) if status.code == 403 => return Ok(given.to_owned()),
        (Err(error), _) => return Err(in_words("localqueues", error)),
    };
    choose(namespace, &names, given)
}

fn choose(namespace: &str, names: &[String], given: Option<&str>) -> anyhow::Result<String> {
    let listed = if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
    match (given, names) {
        (Some(given), names) if names.iter().any(|name| name == given) => Ok(given.to_owned()),
        (Some(given), _) => bail!("namespace {namespace} has no LocalQueue {given}; {listed}"),
        (None, [only]) => Ok(only.clone()),
        (None, names) if names.iter().any(|name| name == "default") => Ok("default".to_owned()),
        (None, _) => bail!("choose a LocalQueue of namespace {namespace} with --queue; {listed}"),
    }
}

/// The Job of the options.
fn job(options: &Options, namespace: Option<&str>, queue: &str) -> anyhow::Result<Value> {
    let mut metadata = Map::new();
    match &options.name {
        Some(name) => {
            if let Some(wrong) = is_dns1123_label(name).into_iter().next() {
                bail!("--name {name}: {wrong}");
            }
            metadata.insert("name".to_owned(), json!(name));
        }
        None => drop(metadata.insert("generateName".to_owned(), json!(prefix(&options.command)))),
    }
    if let Some(namespace) = namespace {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    let mut labelled = Map::from_iter([(labels::QUEUE_NAME.to_owned(), json!(queue))]);
    if let Some(class) = &options.priority {
        labelled.insert(labels::PRIORITY_CLASS.to_owned(), json!(class));
    }
    if let Some(time) = options.time {
        labelled.insert(labels::MAX_EXEC_TIME_SECONDS.to_owned(), json!(time.as_secs().max(1).to_string()));
    }
    metadata.insert("labels".to_owned(), Value::Object(labelled));
    let (mut requests, mut limits) = (Map::from_iter([("cpu".to_owned(), json!(options.cpu))]), Map::new());
    requests.extend(options.memory.iter().map(|memory| ("memory".to_owned(), json!(memory))));
    let gpus = options.gpus.iter().map(|gpus| ("nvidia.com/gpu".to_owned(), gpus.clone()));
    for (name, amount) in gpus.chain(options.resources.iter().cloned()) {
        // Kubernetes requires the limit of an extended resource.
        if name.contains('/') {
            limits.insert(name.clone(), json!(amount));
        }
        requests.insert(name, json!(amount));
    }
    let mut resources = json!({ "requests": requests });
    if !limits.is_empty() {
        resources["limits"] = Value::Object(limits);
    }
    let container = json!({"name": "main", "image": options.image, "command": options.command, "resources": resources});
    let mut spec = json!({
        "suspend": true,
        "parallelism": options.pods,
        "completions": options.pods,
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    });
    if options.pods > 1 {
        spec["completionMode"] = json!("Indexed");
    }
    Ok(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}))
}

/// Prefix of a generated name: that of the program, as far as it is allowed in names.
fn prefix(command: &[String]) -> String {
    let program = command.first().map_or("", |program| program.rsplit('/').next().unwrap_or_default());
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = program.chars().map(allowed).take(40).collect();
    let name = name.trim_matches('-');
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { format!("{name}-") } else { format!("job-{name}") }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn made(line: &[&str]) -> anyhow::Result<Value> {
        let line = Line::try_parse_from(["submit"].iter().chain(line)).context("the options")?;
        job(&line.options, Some("team"), "main")
    }

    #[test]
    fn a_line_makes_a_queued_job() {
        let line = [
            "-N",
            "2",
            "-c",
            "500m",
            "-m",
            "4Gi",
            "-g",
            "1",
            "-t",
            "2h",
            "-p",
            "high",
            "--",
            "/usr/bin/Train.py",
            "-v",
        ];
        let container = json!({"name": "main", "image": "busybox", "command": ["/usr/bin/Train.py", "-v"], "resources": {
            "requests": {"cpu": "500m", "memory": "4Gi", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}});
        let expected = json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"generateName": "train-py-", "namespace": "team", "labels": {
                "kueue.x-k8s.io/queue-name": "main", "kueue.x-k8s.io/priority-class": "high",
                "kueue.x-k8s.io/max-exec-time-seconds": "7200"}},
            "spec": {"suspend": true, "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0,
                "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}});
        assert_eq!(made(&line).expect("a job"), expected);
        assert_eq!(made(&["--name", "x", "--", "true"]).expect("a job")["metadata"]["name"], "x");
    }

    #[test]
    fn errors_name_the_option_and_the_accepted_values() {
        let error = |line: &[&str]| format!("{:#}", made(line).expect_err("an error"));
        assert!(error(&["--name", "A b", "--", "true"]).starts_with("--name A b: "));
        assert!(error(&["-c", "two", "--", "true"]).contains("expected a quantity such as 2, 500m or 4Gi"));
        assert!(error(&["-g", "0", "--", "true"]).contains("above 0"));
        assert!(error(&["-c", "1"]).contains("<COMMAND>"));
    }

    #[test]
    fn the_only_queue_of_a_namespace_is_the_default() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let chosen =
            |all: &[&str], given: Option<&str>| choose("team", &names(all), given).map_err(|it| it.to_string());
        assert_eq!(chosen(&["main"], None), Ok("main".to_owned()));
        assert_eq!(chosen(&["a", "default"], None), Ok("default".to_owned()));
        assert_eq!(chosen(&["a", "b"], Some("b")), Ok("b".to_owned()));
        assert!(chosen(&["a", "b"], None).expect_err("two").contains("--queue; it has a, b"));
        assert!(chosen(&["a"], Some("c")).expect_err("unknown").contains("no LocalQueue c; it has a"));
    }
}
