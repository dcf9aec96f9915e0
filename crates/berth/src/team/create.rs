//! `berth team create`: reads what exists, checks it, and applies the team's objects.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, ResourceFlavor, ResourceGroup, StopPolicy};
use berth_apimachinery::names::is_path_segment_name;
use berth_apimachinery::quantity::Quantity;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::cluster::{Cluster, title};
use super::manifests::{EDIT_ROLE, LOCAL_QUEUE, Subject, Team};
use super::quota::{DEFAULT_FLAVOR, QuotaOptions, beyond_capacity};
use super::{DryRun, TeamLabel, team_name};
use crate::component::connect::{self, ConnectOptions};
use crate::{install, process};

/// Options of `berth team create`.
#[derive(Args)]
pub struct Options {
    /// Name of the team and of its namespace.
    #[arg(value_parser = team_name)]
    name: String,
    /// A user of the team; may be repeated. The user may submit jobs in the team's namespace.
    #[arg(long, value_name = "NAME", value_parser = subject_name)]
    user: Vec<String>,
    /// A group of users of the team; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = subject_name)]
    group: Vec<String>,
    /// ClusterRole of the users. A role mlbatch-edit is created if it does not exist.
    #[arg(long, value_name = "NAME", default_value = EDIT_ROLE)]
    cluster_role: String,
    /// Cohort with which the team lends and borrows quota.
    #[arg(long, value_name = "NAME", default_value = "default-cohort")]
    cohort: String,
    #[command(flatten)]
    quota: QuotaOptions,
    #[command(flatten)]
    label: TeamLabel,
    /// Print the manifests without changing anything. With `server`, the API server validates them.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "client", value_name = "MODE")]
    dry_run: Option<DryRun>,
    /// Overwrite fields that another program or user manages.
    #[arg(long)]
    force_conflicts: bool,
    /// Print the objects in this format. Default: one line per object, or YAML with --dry-run.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Yaml,
    Json,
    Name,
}

/// What exists of a team and of the objects that it needs.
#[derive(Default)]
struct Found {
    namespace: Option<Namespace>,
    cluster_queue: Option<ClusterQueue>,
    local_queue: Option<LocalQueue>,
    bindings: Vec<RoleBinding>,
    role: bool,
    flavors: Vec<String>,
}

/// Creates the team.
pub async fn create(options: &Options) -> anyhow::Result<ExitCode> {
    let is_client = options.dry_run == Some(DryRun::Client);
    let cluster = match is_client && !options.quota.needs_nodes() {
        true => None,
        false => Some(Cluster { client: connect::asking(options.connect.config().await?)? }),
    };
    let nodes = match &cluster {
        Some(cluster) if options.quota.needs_nodes() => cluster.nodes().await?,
        _ => Vec::new(),
    };
    let team = team(options, &nodes)?;
    let cluster = match cluster {
        Some(cluster) if !is_client => cluster,
        _ => {
            if team.groups.is_empty() {
                bail!("team {}: no quota; add --gpus, --cpus, --memory or --quota", team.name);
            }
            // The cluster is not asked what exists: everything that a team needs is printed.
            let objects = team.objects(team.role == EDIT_ROLE, &default_flavor(options));
            print(&objects, options.output.unwrap_or(Output::Yaml))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let found = found(&cluster, &team).await?;
    let problems = problems(&team, &found, &options.quota.flavors());
    if !problems.is_empty() {
        bail!("nothing was changed:\n{}", problems.join("\n"));
    }
    let flavors: Vec<String> =
        default_flavor(options).into_iter().filter(|flavor| !found.flavors.contains(flavor)).collect();
    let objects = team.objects(!found.role && team.role == EDIT_ROLE, &flavors);
    apply(options, &cluster, &objects, found.namespace.is_some()).await?;
    notes(&cluster, &team, &found).await;
    Ok(ExitCode::SUCCESS)
}

fn team(options: &Options, nodes: &[BTreeMap<String, Quantity>]) -> anyhow::Result<Team> {
    let groups = match options.quota.is_empty() {
        true => Vec::new(),
        false => options.quota.groups(nodes).map_err(|error| anyhow!("team {}: {error}", options.name))?,
    };
    let users = options.user.iter().cloned().map(Subject::User);
    Ok(Team {
        name: options.name.clone(),
        label: options.label.namespace_label.clone(),
        cohort: options.cohort.clone(),
        groups,
        subjects: users.chain(options.group.iter().cloned().map(Subject::Group)).collect(),
        role: options.cluster_role.clone(),
    })
}

/// The default flavor, if the quota uses it.
fn default_flavor(options: &Options) -> Vec<String> {
    options.quota.flavors().into_iter().filter(|flavor| flavor == DEFAULT_FLAVOR).collect()
}

async fn found(cluster: &Cluster, team: &Team) -> anyhow::Result<Found> {
    let namespace: Option<Namespace> = cluster.get(&team.name).await?;
    let (mut local_queue, mut bindings) = (None, Vec::new());
    if namespace.is_some() {
        let queues: Vec<LocalQueue> = cluster.list(Some(&team.name)).await?;
        local_queue = queues.into_iter().find(|queue| queue.name_any() == LOCAL_QUEUE);
        bindings = cluster.list(Some(&team.name)).await?;
    }
    let flavors: Vec<ResourceFlavor> = cluster.list_cluster("").await?;
    Ok(Found {
        namespace,
        cluster_queue: cluster.get(&team.cluster_queue()).await?,
        local_queue,
        bindings,
        role: cluster.get::<ClusterRole>(&team.role).await?.is_some(),
        flavors: flavors.iter().map(ResourceExt::name_any).collect(),
    })
}

/// Why the team cannot be created as described. Each line names an object, its field, and what to
/// do.
fn problems(team: &Team, found: &Found, flavors: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    let name = &team.name;
    if found.namespace.as_ref().is_some_and(|it| it.metadata.deletion_timestamp.is_some()) {
        problems.push(format!("Namespace {name}: it is being deleted; run the command again once it is gone"));
    }
    let queue_name = team.cluster_queue();
    match &found.cluster_queue {
        Some(queue) if queue.metadata.deletion_timestamp.is_some() => problems.push(format!(
            "ClusterQueue {queue_name}: it is being deleted, once its workloads have ended; run the command again then"
        )),
        None if team.groups.is_empty() => problems.push(format!(
            "ClusterQueue {queue_name}: it does not exist, and no quota is given; add --gpus, --cpus, --memory or --quota"
        )),
        _ => {}
    }
    if let Some(queue) = &found.local_queue
        && queue.spec.cluster_queue != queue_name
    {
        problems.push(format!(
            "LocalQueue {name}/{LOCAL_QUEUE}: spec.clusterQueue is {:?}, and cannot change to {queue_name:?}; delete \
             the LocalQueue, or choose another team name",
            queue.spec.cluster_queue
        ));
    }
    for flavor in flavors {
        if flavor != DEFAULT_FLAVOR && !found.flavors.contains(flavor) {
            let known = match found.flavors.is_empty() {
                true => "there is none".to_owned(),
                false => format!("there are {}", found.flavors.join(", ")),
            };
            problems.push(format!(
                "ResourceFlavor {flavor}: it does not exist ({known}); create it, or name another one with --flavor"
            ));
        }
    }
    if !team.subjects.is_empty() && team.role != EDIT_ROLE && !found.role {
        problems.push(format!(
            "ClusterRole {}: it does not exist; create it, or name another one with --cluster-role",
            team.role
        ));
    }
    for binding in &found.bindings {
        let is_ours = team.subjects.iter().any(|subject| subject.binding_name() == binding.name_any());
        if is_ours && (binding.role_ref.kind != "ClusterRole" || binding.role_ref.name != team.role) {
            problems.push(format!(
                "RoleBinding {name}/{}: roleRef.name is {:?}, and cannot change to {:?}; delete the RoleBinding, or \
                 use --cluster-role {}",
                binding.name_any(),
                binding.role_ref.name,
                team.role,
                binding.role_ref.name
            ));
        }
    }
    problems
}

async fn apply(options: &Options, cluster: &Cluster, objects: &[Value], has_namespace: bool) -> anyhow::Result<()> {
    let mut stored = Vec::new();
    for object in objects {
        // The server cannot validate objects of a namespace that does not exist.
        if options.dry_run.is_some() && !has_namespace && object["metadata"]["namespace"].is_string() {
            eprintln!("note: {} was not validated, because its namespace does not exist yet", title(object));
            stored.push(object.clone());
            continue;
        }
        let (effect, after) = cluster.apply(object, options.dry_run, options.force_conflicts).await?;
        if options.output.is_none() && options.dry_run.is_none() {
            say!("{} {}", title(object), effect.text());
        }
        let mut after = serde_json::to_value(after)?;
        if let Some(meta) = after["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        stored.push(after);
    }
    match (options.output, options.dry_run) {
        (Some(output), _) => print(&stored, output),
        (None, Some(_)) => print(&stored, Output::Yaml),
        (None, None) => Ok(()),
    }
}

fn print(objects: &[Value], output: Output) -> anyhow::Result<()> {
    match output {
        Output::Name => objects.iter().for_each(|object| say!("{}", title(object))),
        Output::Json => say!("{:#}", json!({"apiVersion": "v1", "kind": "List", "items": objects})),
        Output::Yaml => {
            let mut text = String::new();
            for object in objects {
                text.push_str("---\n");
                text.push_str(&install::yaml(object)?);
            }
            process::print(&text)?;
        }
    }
    Ok(())
}

/// Prints what keeps the team's jobs from running, if anything does. A failed request only omits
/// the notes, because the team exists.
async fn notes(cluster: &Cluster, team: &Team, found: &Found) {
    let stopped = found.cluster_queue.as_ref().and_then(|queue| queue.spec.stop_policy);
    if let Some(policy) = stopped.filter(|policy| *policy != StopPolicy::None) {
        eprintln!(
            "note: ClusterQueue {}: spec.stopPolicy is {}, so no job is admitted until it is None",
            team.cluster_queue(),
            json!(policy).as_str().unwrap_or_default()
        );
    }
    let (Ok(queues), Ok(nodes)) = (cluster.list_cluster::<ClusterQueue>("").await, cluster.nodes().await) else {
        return;
    };
    let quotas: Vec<ResourceGroup> = queues
        .into_iter()
        .filter(|queue| queue.spec.cohort_name == team.cohort)
        .flat_map(|queue| queue.spec.resource_groups)
        .collect();
    for note in beyond_capacity(&team.cohort, &quotas, &nodes) {
        eprintln!("note: {note}");
    }
}

fn subject_name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("must not be empty".to_owned());
    }
    // The name is also the name of the RoleBinding.
    is_path_segment_name(text).into_iter().next().map_or_else(|| Ok(text.to_owned()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team_of(subjects: Vec<Subject>) -> Team {
        Team {
            name: "blue".into(),
            label: ("team".into(), "yes".into()),
            cohort: "all".into(),
            groups: vec![ResourceGroup::default()],
            subjects,
            role: EDIT_ROLE.into(),
        }
    }

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a valid object")
    }

    #[test]
    fn nothing_stands_in_the_way_of_a_new_team() {
        let team = team_of(vec![Subject::User("alice".into())]);
        assert!(problems(&team, &Found::default(), &["default-flavor".into()]).is_empty());
    }

    #[test]
    fn each_obstacle_names_object_field_and_remedy() {
        let found = Found {
            local_queue: Some(object(json!({
                "metadata": {"name": "default-queue", "namespace": "blue"}, "spec": {"clusterQueue": "other"}}))),
            bindings: vec![object(json!({
                "metadata": {"name": "alice", "namespace": "blue"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}}))],
            flavors: vec!["spot".into()],
            ..Found::default()
        };
        let problems = problems(&team_of(vec![Subject::User("alice".into())]), &found, &["a100".into()]);
        assert_eq!(
            problems,
            [
                "LocalQueue blue/default-queue: spec.clusterQueue is \"other\", and cannot change to \
                 \"blue-cluster-queue\"; delete the LocalQueue, or choose another team name",
                "ResourceFlavor a100: it does not exist (there are spot); create it, or name another one with --flavor",
                "RoleBinding blue/alice: roleRef.name is \"view\", and cannot change to \"mlbatch-edit\"; delete the \
                 RoleBinding, or use --cluster-role view",
            ]
        );
    }

    #[test]
    fn a_new_team_needs_quota_and_an_existing_one_does_not() {
        let mut team = team_of(Vec::new());
        team.groups = Vec::new();
        let without = problems(&team, &Found::default(), &[]);
        assert!(without[0].contains("no quota is given; add --gpus"), "{without:?}");
        let found = Found {
            cluster_queue: Some(object(json!({"metadata": {"name": "blue-cluster-queue"}, "spec": {}}))),
            ..Found::default()
        };
        assert!(problems(&team, &found, &[]).is_empty());
    }

    #[test]
    fn a_team_that_is_being_deleted_is_not_created_again() {
        let deleted = json!({"name": "blue", "deletionTimestamp": "2026-01-05T09:00:00Z"});
        let found = Found { namespace: Some(object(json!({"metadata": deleted}))), ..Found::default() };
        let problems = problems(&team_of(Vec::new()), &found, &[]);
        assert_eq!(problems, ["Namespace blue: it is being deleted; run the command again once it is gone"]);
    }
}
