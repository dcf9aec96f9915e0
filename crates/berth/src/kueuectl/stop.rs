//! `berth stop` and `berth resume`: queues and workloads on hold.

use std::process::ExitCode;

use anyhow::anyhow;
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use clap::{Args, Subcommand};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Resource};
use serde_json::{Value, json};

use super::written::{DryRun, Written};
use crate::batch::Place;
use crate::process;
use crate::team::in_words;

/// The kinds that `berth stop` stops.
#[derive(Subcommand)]
pub enum Stop {
    /// Stop a ClusterQueue: it admits no workloads.
    #[command(name = "clusterqueue", alias = "cq")]
    ClusterQueue(StopOptions),
    /// Stop a LocalQueue: none of its workloads is admitted.
    #[command(name = "localqueue", alias = "lq")]
    LocalQueue(StopOptions),
    /// Stop a Workload, even if it runs. When it is resumed, it is queued again.
    #[command(name = "workload", aliases = ["wl", "kwl", "kueueworkload", "kueueworkloads"])]
    Workload(NameOptions),
}

/// The kinds that `berth resume` resumes.
#[derive(Subcommand)]
pub enum Resume {
    /// Resume a ClusterQueue.
    #[command(name = "clusterqueue", alias = "cq")]
    ClusterQueue(NameOptions),
    /// Resume a LocalQueue.
    #[command(name = "localqueue", alias = "lq")]
    LocalQueue(NameOptions),
    /// Resume a Workload.
    #[command(name = "workload", aliases = ["wl", "kwl", "kueueworkload", "kueueworkloads"])]
    Workload(NameOptions),
}

/// Options of queues to stop.
#[derive(Args)]
pub struct StopOptions {
    /// Let running workloads continue. Without this option, they are evicted.
    #[arg(long)]
    keep_already_running: bool,
    #[command(flatten)]
    of: NameOptions,
}

/// Options of an object to stop or resume.
#[derive(Args)]
pub struct NameOptions {
    name: String,
    #[command(flatten)]
    written: Written,
    #[command(flatten)]
    place: Place,
}

/// Puts an object on hold.
pub fn stop(stop: &Stop) -> anyhow::Result<ExitCode> {
    let policy = |options: &StopOptions| {
        let policy = if options.keep_already_running { "Hold" } else { "HoldAndDrain" };
        json!({"stopPolicy": policy})
    };
    match stop {
        Stop::ClusterQueue(it) => apply::<ClusterQueue>(false, &it.of, &policy(it), "stopped"),
        Stop::LocalQueue(it) => apply::<LocalQueue>(true, &it.of, &policy(it), "stopped"),
        Stop::Workload(options) => apply::<Workload>(true, options, &json!({"active": false}), "stopped"),
    }
}

/// Ends the hold of an object.
pub fn resume(resume: &Resume) -> anyhow::Result<ExitCode> {
    let none = json!({"stopPolicy": "None"});
    match resume {
        Resume::ClusterQueue(options) => apply::<ClusterQueue>(false, options, &none, "resumed"),
        Resume::LocalQueue(options) => apply::<LocalQueue>(true, options, &none, "resumed"),
        Resume::Workload(options) => apply::<Workload>(true, options, &json!({"active": true}), "resumed"),
    }
}

/// Changes fields of the spec of one object. `done` is the word for the change in the output.
fn apply<K>(is_namespaced: bool, options: &NameOptions, spec: &Value, done: &str) -> anyhow::Result<ExitCode>
where
    K: Resource<DynamicType = ()>,
{
    process::run(async {
        options.written.check()?;
        let resource = ApiResource::erase::<K>(&());
        let (client, namespace) = options.place.open().await?;
        let api: Api<DynamicObject> = match is_namespaced {
            true => Api::namespaced_with(client, &namespace, &resource),
            false => Api::all_with(client, &resource),
        };
        let failed = |error| in_words(&resource.plural, error);
        let found = api.get_opt(&options.name).await.map_err(failed)?;
        let place = if is_namespaced { format!(" in namespace {namespace}") } else { String::new() };
        let found = found.ok_or_else(|| anyhow!("{} {} does not exist{place}", resource.kind, options.name))?;
        let object = match options.written.dry_run {
            DryRun::Client => {
                let mut changed = found;
                for (field, value) in spec.as_object().into_iter().flatten() {
                    changed.data["spec"][field] = value.clone();
                }
                changed
            }
            dry_run => {
                let params = PatchParams { dry_run: dry_run == DryRun::Server, ..PatchParams::default() };
                let patch = Patch::Merge(json!({"spec": spec}));
                api.patch(&options.name, &params, &patch).await.map_err(failed)?
            }
        };
        process::print(&options.written.text(&serde_json::to_value(object)?, done)?)?;
        Ok(ExitCode::SUCCESS)
    })
}
