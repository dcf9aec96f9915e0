//! `berth team delete`: first nothing new may start, then the team's jobs and namespace go, and in
//! the end the ClusterQueue, which waits until its quota is no longer used.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, Workload};
use berth_runtime::{Clock, is_not_found};
use clap::Args;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::cluster::{Cluster, in_words, is_unfinished};
use super::manifests::{EDIT_ROLE, TEAM_LABEL};
use super::{TeamLabel, team_name};
use crate::component::connect::{self, ConnectOptions};

/// Interval at which deletions are observed.
const POLL: Duration = Duration::from_millis(250);
/// Maximum number of objects that a message names.
const NAMED_MAX: usize = 5;

/// Options of `berth team delete`.
#[derive(Args)]
pub struct Options {
    /// Name of the team.
    #[arg(value_parser = team_name)]
    name: String,
    /// Delete the team although it has workloads that have not finished, or PersistentVolumeClaims.
    /// Their data is lost.
    #[arg(long)]
    force: bool,
    /// Succeed if the team does not exist.
    #[arg(long)]
    ignore_not_found: bool,
    /// Print what would be deleted, without deleting it.
    #[arg(long)]
    dry_run: bool,
    /// Maximum time to wait until the objects are deleted, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u32,
    /// ClusterRole of the team's users.
    #[arg(long, value_name = "NAME", default_value = EDIT_ROLE)]
    cluster_role: String,
    #[command(flatten)]
    label: TeamLabel,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// What exists of a team.
#[derive(Default)]
struct Found {
    namespace: Option<Namespace>,
    /// Bindings of the users.
    bindings: Vec<RoleBinding>,
    /// Its ClusterQueues that no other namespace uses.
    cluster_queues: Vec<String>,
    /// Its ClusterQueues that other namespaces use, and one of these.
    shared: Vec<(String, String)>,
    /// Names of workloads that have not finished.
    unfinished: Vec<String>,
    /// Names of claims.
    claims: Vec<String>,
}

/// Deletes the team.
pub async fn delete(options: &Options) -> anyhow::Result<ExitCode> {
    let cluster = Cluster { client: connect::asking(options.connect.config().await?)? };
    let found = find(&cluster, options).await?;
    let name = &options.name;
    if found.namespace.is_none() && found.cluster_queues.is_empty() {
        if options.ignore_not_found {
            return Ok(ExitCode::SUCCESS);
        }
        bail!("team {name}: there is no namespace and no ClusterQueue of this team");
    }
    if let Some(obstacle) = obstacle(name, &found, &options.label).filter(|_| !options.force) {
        bail!("team {name}: nothing was changed: {obstacle}");
    }
    if let Some(namespace) = &found.namespace {
        require_label(namespace, &options.label)?;
    }
    for (queue, namespace) in &found.shared {
        eprintln!("note: ClusterQueue {queue} is kept: a LocalQueue of namespace {namespace} uses it");
    }
    let suffix = if options.dry_run { " (dry run)" } else { "" };
    for binding in &found.bindings {
        remove(Api::<RoleBinding>::namespaced(cluster.client.clone(), name), &binding.name_any(), options).await?;
        say!("rolebinding.rbac.authorization.k8s.io/{} deleted{suffix}", binding.name_any());
    }
    let queues: Api<ClusterQueue> = Api::all(cluster.client.clone());
    if !options.dry_run {
        for queue in &found.cluster_queues {
            drain(&queues, queue, name).await?;
        }
    }
    if found.namespace.is_some() {
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        remove(namespaces.clone(), name, options).await?;
        gone(&namespaces, name, "Namespace", options).await?;
        say!("namespace/{name} deleted{suffix}");
    }
    for queue in &found.cluster_queues {
        remove(queues.clone(), queue, options).await?;
        gone(&queues, queue, "ClusterQueue", options).await?;
        say!("clusterqueue.kueue.x-k8s.io/{queue} deleted{suffix}");
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(cluster: &Cluster, options: &Options) -> anyhow::Result<Found> {
    let name = &options.name;
    let all: Vec<LocalQueue> = cluster.list(None).await?;
    let used_by = |queue: &str, own: bool| {
        let mut users = all.iter().filter(|it| it.spec.cluster_queue == queue);
        users.find_map(|it| it.namespace().filter(|namespace| (namespace == name) == own))
    };
    let existing: Vec<ClusterQueue> = cluster.list_cluster("").await?;
    let is_of_team = |queue: &ClusterQueue| {
        // A deletion that was interrupted leaves the ClusterQueue without its namespace.
        let labelled = queue.labels().get(TEAM_LABEL).is_some_and(|team| team == name);
        labelled || used_by(&queue.name_any(), true).is_some()
    };
    let mut found = Found { namespace: cluster.get(name).await?, ..Found::default() };
    for queue in existing.iter().filter(|queue| is_of_team(queue)).map(ResourceExt::name_any) {
        match used_by(&queue, false) {
            Some(other) => found.shared.push((queue, other)),
            None => found.cluster_queues.push(queue),
        }
    }
    if found.namespace.is_some() {
        let bindings: Vec<RoleBinding> = cluster.list(Some(name)).await?;
        found.bindings = bindings.into_iter().filter(|it| it.role_ref.name == options.cluster_role).collect();
        let workloads: Vec<Workload> = cluster.list(Some(name)).await?;
        found.unfinished = workloads.iter().filter(|it| is_unfinished(it)).map(ResourceExt::name_any).collect();
        let claims: Vec<PersistentVolumeClaim> = cluster.list(Some(name)).await?;
        found.claims = claims.iter().map(ResourceExt::name_any).collect();
    }
    Ok(found)
}

/// What would be lost with the team.
fn obstacle(name: &str, found: &Found, label: &TeamLabel) -> Option<String> {
    let listed = |kind: &str, names: &[String]| {
        let more = if names.len() > NAMED_MAX { ", ..." } else { "" };
        let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let plural = if names.len() == 1 { "" } else { "s" };
        (!names.is_empty()).then(|| format!("{} {kind}{plural} ({shown}{more})", names.len()))
    };
    let parts = [listed("unfinished workload", &found.unfinished), listed("PersistentVolumeClaim", &found.claims)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    // A namespace without the label is reported by its own message.
    let is_team = found.namespace.as_ref().is_some_and(|namespace| has_label(namespace, label));
    (is_team && !parts.is_empty()).then(|| {
        format!(
            "namespace {name} has {}; delete them first, or use --force to delete them with it",
            parts.join(" and ")
        )
    })
}

fn has_label(namespace: &Namespace, label: &TeamLabel) -> bool {
    let (key, value) = &label.namespace_label;
    namespace.labels().get(key) == Some(value)
}

fn require_label(namespace: &Namespace, label: &TeamLabel) -> anyhow::Result<()> {
    if has_label(namespace, label) {
        return Ok(());
    }
    let name = namespace.name_any();
    Err(anyhow!(
        "Namespace {name}: metadata.labels has no {}, so it is not the namespace of a team; nothing was changed",
        label.selector()
    ))
}

/// Stops admissions and evicts the queue's workloads. The label lets a repeated command find the
/// queue once its namespace is gone.
async fn drain(queues: &Api<ClusterQueue>, name: &str, team: &str) -> anyhow::Result<()> {
    let patch = json!({"metadata": {"labels": {TEAM_LABEL: team}}, "spec": {"stopPolicy": "HoldAndDrain"}});
    let patched = queues.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    patched.map(|_| ()).or_else(|error| match is_not_found(&error) {
        true => Ok(()),
        false => Err(in_words(&format!("ClusterQueue {name}"), error)),
    })
}

async fn remove<K>(api: Api<K>, name: &str, options: &Options) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    if options.dry_run {
        return Ok(());
    }
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(in_words(&format!("{} {name}", K::kind(&())), error)),
    }
}

/// Waits until the object is gone.
async fn gone<K>(api: &Api<K>, name: &str, kind: &str, options: &Options) -> anyhow::Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    if options.dry_run {
        return Ok(());
    }
    let clock = Clock::system();
    let tries = u64::from(options.timeout) * 1000 / u64::try_from(POLL.as_millis()).unwrap_or(1) + 1;
    for _ in 0..tries {
        let left = api.get_opt(name).await.map_err(|error| in_words(&format!("{kind} {name}"), error))?;
        if left.is_none() {
            return Ok(());
        }
        clock.sleep(POLL).await;
    }
    bail!(
        "{kind} {name}: still exists after {} s, because a finalizer waits for objects in it; `kubectl get {} {name} -o yaml` \
         shows which; run the command again to continue",
        options.timeout,
        kind.to_lowercase()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> TeamLabel {
        TeamLabel { namespace_label: ("team".into(), "yes".into()) }
    }

    fn namespace(labels: serde_json::Value) -> Option<Namespace> {
        serde_json::from_value(json!({"metadata": {"name": "blue", "labels": labels}})).ok()
    }

    #[test]
    fn unfinished_workloads_and_claims_are_named() {
        let unfinished = (0..7).map(|index| format!("w{index}")).collect();
        let namespace = namespace(json!({"team": "yes"}));
        let found = Found { namespace, unfinished, claims: vec!["data".into()], ..Found::default() };
        assert_eq!(
            obstacle("blue", &found, &label()).expect("an obstacle"),
            "namespace blue has 7 unfinished workloads (w0, w1, w2, w3, w4, ...) and 1 PersistentVolumeClaim (data); \
             delete them first, or use --force to delete them with it"
        );
    }

    #[test]
    fn an_empty_team_may_be_deleted() {
        let found = Found { namespace: namespace(json!({"team": "yes"})), ..Found::default() };
        assert_eq!(obstacle("blue", &found, &label()), None);
    }

    #[test]
    fn a_namespace_without_the_label_is_no_team() {
        let other = namespace(json!({"team": "no"})).expect("a namespace");
        let error = require_label(&other, &label()).expect_err("an error");
        assert!(error.to_string().contains("metadata.labels has no team=yes"), "{error}");
    }
}
