//! `berth hold`, `release`, `requeue` and `cancel`: changes of jobs in a queue.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::Clock;
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt, discovery};
use serde_json::json;

use super::Place;
use crate::job_name::JobName;
use crate::process;
use crate::team::in_words;

/// Time for which `requeue` waits until the pods of a job have stopped.
const STOP_MAX: Duration = Duration::from_secs(300);
/// Interval of the reads meanwhile.
const INTERVAL: Duration = Duration::from_millis(500);

/// Options of each of these commands.
#[derive(Args)]
pub struct Options {
    /// The jobs or their Workloads: NAME, or NAMESPACE/NAME.
    #[arg(value_name = "[NAMESPACE/]NAME", required = true)]
    jobs: Vec<JobName>,
    #[command(flatten)]
    place: Place,
}

/// A change of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Take it out of the queue; stop it if it runs.
    Hold,
    /// Put it back into the queue.
    Release,
    /// Stop it and put it back into the queue.
    Requeue,
    /// Delete it.
    Cancel,
}

/// Makes the change for each job. All jobs are tried, and the first error is returned.
pub fn main(options: &Options, change: Change) -> anyhow::Result<ExitCode> {
    process::run(async {
        let (client, of_context) = options.place.open().await?;
        let mut failed = Ok(ExitCode::SUCCESS);
        for job in &options.jobs {
            let namespace = job.namespace_or(None, &of_context);
            match apply(&client, &namespace, &job.name, change).await {
                Ok(done) => say!("{done}"),
                Err(error) if failed.is_ok() => failed = Err(error),
                Err(error) => eprintln!("berth: {}", process::in_full(&error)),
            }
        }
        failed
    })
}

async fn apply(client: &Client, namespace: &str, name: &str, change: Change) -> anyhow::Result<String> {
    let api: Api<Workload> = Api::namespaced(client.clone(), namespace);
    let workload = find(&api, namespace, name).await?;
    let title = format!("{namespace}/{name}");
    match change {
        Change::Cancel => return cancel(client, namespace, &workload).await,
        _ if is_true(&workload, "Finished") => bail!("{title} has finished; submit it again under another name"),
        Change::Hold if !is_active(&workload) => return Ok(format!("{title} is held already")),
        Change::Hold => activate(&api, &workload, false).await?,
        Change::Release if is_active(&workload) => return Ok(format!("{title} is not held")),
        Change::Release => activate(&api, &workload, true).await?,
        Change::Requeue if !is_active(&workload) => bail!("{title} is held; use berth release"),
        Change::Requeue if !is_true(&workload, "QuotaReserved") => return Ok(format!("{title} waits in its queue")),
        Change::Requeue => {
            activate(&api, &workload, false).await?;
            let stopped = stopped(&api, &workload).await;
            activate(&api, &workload, true).await?;
            stopped.with_context(|| format!("{title} was released again"))?;
        }
    }
    Ok(match change {
        Change::Hold => format!("{title} held"),
        Change::Release => format!("{title} released"),
        Change::Requeue | Change::Cancel => format!("{title} requeued"),
    })
}

/// The Workload of this name, or the newest one of a job of this name that has not finished.
async fn find(api: &Api<Workload>, namespace: &str, name: &str) -> anyhow::Result<Workload> {
    let failed = |error| in_words("workloads", error);
    if let Some(found) = api.get_opt(name).await.map_err(failed)? {
        return Ok(found);
    }
    let listed = api.list(&ListParams::default()).await.map_err(failed)?;
    let of_job = listed.items.into_iter().filter(|it| owner(it).is_some_and(|owner| owner.name == name));
    let newest = of_job.max_by_key(|it| (!is_true(it, "Finished"), it.creation_timestamp().map(|at| at.0)));
    newest.ok_or_else(|| {
        anyhow!("no job or Workload {namespace}/{name} is queued; `berth queue -n {namespace}` lists those that are")
    })
}

fn owner(workload: &Workload) -> Option<&OwnerReference> {
    workload.owner_references().iter().find(|owner| owner.controller == Some(true))
}

fn is_true(workload: &Workload, condition: &str) -> bool {
    let conditions = workload.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|it| it.type_ == condition && it.status == "True")
}

fn is_active(workload: &Workload) -> bool {
    workload.spec.active.unwrap_or(true)
}

async fn activate(api: &Api<Workload>, workload: &Workload, active: bool) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({"spec": {"active": active}}));
    let patched = api.patch(&workload.name_any(), &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| in_words("workloads", error))
}

/// Waits until the workload has released its quota.
async fn stopped(api: &Api<Workload>, workload: &Workload) -> anyhow::Result<()> {
    let clock = Clock::system();
    let until = clock.now() + STOP_MAX;
    while clock.now() < until {
        let found = api.get(&workload.name_any()).await.map_err(|error| in_words("workloads", error))?;
        if !is_true(&found, "QuotaReserved") {
            return Ok(());
        }
        clock.sleep(INTERVAL).await;
    }
    bail!("its pods did not stop within {} seconds; `kubectl get pods` shows them", STOP_MAX.as_secs())
}

/// Deletes the job of a workload, or a Workload without a job. Garbage collection deletes its pods.
async fn cancel(client: &Client, namespace: &str, workload: &Workload) -> anyhow::Result<String> {
    let (group, version, kind, name) = match owner(workload) {
        Some(owner) => {
            let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
            (group.to_owned(), version.to_owned(), owner.kind.clone(), owner.name.clone())
        }
        None => ("kueue.x-k8s.io".to_owned(), "v1beta2".to_owned(), "Workload".to_owned(), workload.name_any()),
    };
    let gvk = GroupVersionKind::gvk(&group, &version, &kind);
    let (resource, _) = discovery::pinned_kind(client, &gvk).await.map_err(|error| in_words(&kind, error))?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let deleted = api.delete(&name, &DeleteParams::background()).await;
    deleted.map_err(|error| in_words(&resource.plural, error))?;
    Ok(format!("{namespace}/{name} cancelled: {kind} deleted"))
}
