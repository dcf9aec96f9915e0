//! `berth delete workload`: Workloads and the jobs that they belong to.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::process::ExitCode;

use anyhow::bail;
use berth_api::kueue::v1beta2::Workload;
use clap::{Args, Subcommand, ValueEnum};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt, discovery};

use super::kubectl;
use super::written::{DryRun, Written};
use crate::batch::Place;
use crate::process;
use crate::team::in_words;

/// The kinds that `berth delete` deletes.
#[derive(Subcommand)]
pub enum Delete {
    /// Delete Workloads and the jobs that they belong to.
    #[command(name = "workload", aliases = ["wl", "kwl", "kueueworkload", "kueueworkloads"])]
    Workload(Options),
    /// Other kinds are deleted by kubectl.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Options of `berth delete workload`.
#[derive(Args)]
pub struct Options {
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<String>,
    /// Delete every Workload of the namespace.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// With --all: of all namespaces.
    #[arg(short = 'A', long, requires = "all")]
    all_namespaces: bool,
    /// When to delete the objects that a job owns, such as pods: after the job (background), before
    /// it (foreground), or never (orphan).
    #[arg(long, value_enum, default_value_t = Cascade::Background)]
    cascade: Cascade,
    /// Do not ask before jobs are deleted.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    place: Place,
}

/// What a deletion does to the objects that the deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cascade {
    /// They are deleted after it.
    Background,
    /// They are deleted before it.
    Foreground,
    /// They are kept.
    Orphan,
}

impl Cascade {
    fn params(self) -> DeleteParams {
        match self {
            Self::Background => DeleteParams::background(),
            Self::Foreground => DeleteParams::foreground(),
            Self::Orphan => DeleteParams::orphan(),
        }
    }
}

/// An object to delete.
struct Doomed {
    resource: ApiResource,
    namespace: String,
    name: String,
    /// The Workload whose job it is; `None` for a Workload without job.
    of: Option<String>,
}

impl Doomed {
    fn title(&self) -> String {
        let ApiResource { group, kind, .. } = &self.resource;
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        format!("{}{group}/{}", kind.to_lowercase(), self.name)
    }
}

/// Deletes.
pub fn main(delete: &Delete) -> anyhow::Result<ExitCode> {
    match delete {
        Delete::Other(words) => kubectl::exec("delete", words),
        Delete::Workload(options) => process::run(workloads(options)),
    }
}

async fn workloads(options: &Options) -> anyhow::Result<ExitCode> {
    let (client, namespace) = options.place.open().await?;
    let (found, code) = selected(options, &client, &namespace).await?;
    let doomed = doomed(&client, &found).await?;
    let asks = options.written.dry_run == DryRun::None && !options.yes && doomed.iter().any(|it| it.of.is_some());
    if asks && !confirmed(&doomed)? {
        say!("Deletion is canceled");
        return Ok(ExitCode::SUCCESS);
    }
    for object in &doomed {
        if options.written.dry_run != DryRun::Client {
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &object.namespace, &object.resource);
            let params =
                DeleteParams { dry_run: options.written.dry_run == DryRun::Server, ..options.cascade.params() };
            match api.delete(&object.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                deleted => drop(deleted.map_err(|error| in_words(&object.resource.plural, error))?),
            }
        }
        process::print(&options.written.sentence(&object.title(), "deleted"))?;
    }
    Ok(code)
}

/// The Workloads of the options. The exit code is a failure if some do not exist.
async fn selected(options: &Options, client: &Client, namespace: &str) -> anyhow::Result<(Vec<Workload>, ExitCode)> {
    let api: Api<Workload> = match options.all_namespaces {
        true => Api::all(client.clone()),
        false => Api::namespaced(client.clone(), namespace),
    };
    let failed = |error| in_words("workloads", error);
    if options.all {
        return Ok((api.list(&ListParams::default()).await.map_err(failed)?.items, ExitCode::SUCCESS));
    }
    let (mut found, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for name in &options.names {
        match api.get_opt(name).await.map_err(failed)? {
            Some(workload) => found.push(workload),
            None => {
                eprintln!("berth: Workload {name} does not exist in namespace {namespace}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok((found, code))
}

/// The jobs of the Workloads, and the Workloads without a job. Garbage collection deletes the other
/// Workloads.
async fn doomed(client: &Client, workloads: &[Workload]) -> anyhow::Result<Vec<Doomed>> {
    let mut known: BTreeMap<(String, String), ApiResource> = BTreeMap::new();
    let mut doomed = Vec::new();
    for workload in workloads {
        let (namespace, name) = (workload.namespace().unwrap_or_default(), workload.name_any());
        let owners = workload.owner_references();
        if owners.is_empty() {
            let resource = ApiResource::erase::<Workload>(&());
            doomed.push(Doomed { resource, namespace, name, of: None });
            continue;
        }
        for owner in owners {
            let key = (owner.api_version.clone(), owner.kind.clone());
            let resource = match known.get(&key) {
                Some(resource) => resource.clone(),
                None => {
                    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
                    let gvk = GroupVersionKind::gvk(group, version, &owner.kind);
                    let found = discovery::pinned_kind(client, &gvk).await;
                    let (resource, _) = found.map_err(|error| in_words(&owner.kind, error))?;
                    known.insert(key, resource.clone());
                    resource
                }
            };
            let of = Some(format!("{namespace}/{name}"));
            doomed.push(Doomed { resource, namespace: namespace.clone(), name: owner.name.clone(), of });
        }
    }
    Ok(doomed)
}

/// Asks whether the jobs may be deleted.
fn confirmed(doomed: &[Doomed]) -> anyhow::Result<bool> {
    say!("This operation will also delete:");
    for object in doomed {
        if let Some(workload) = &object.of {
            say!("  - {} associated with the {workload} workload", object.title());
        }
    }
    let mut output = std::io::stdout();
    write!(output, "Do you want to proceed (y/n)? ")?;
    output.flush()?;
    let mut answer = String::new();
    if std::io::stdin().lock().read_line(&mut answer)? == 0 {
        bail!("nothing was deleted, because no answer was given; use --yes");
    }
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}
