//! `berth team list`: what the teams use of their quota, and what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::bail;
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue};
use berth_apimachinery::printed::Table;
use berth_apimachinery::quantity::Quantity;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde::Serialize;

use super::TeamLabel;
use super::cluster::Cluster;
use crate::component::connect::{self, ConnectOptions};
use crate::{install, process};

/// Options of `berth team list`.
#[derive(Args)]
pub struct Options {
    /// Teams to list. Default: all, and the other ClusterQueues of their cohorts.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Output format. `wide` has one row for each flavor and resource.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    #[command(flatten)]
    label: TeamLabel,
    #[command(flatten)]
    connect: ConnectOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Wide,
    Json,
    Yaml,
}

/// A team's use of a ClusterQueue, or a ClusterQueue of no team.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Team {
    /// The namespace; `None` for a ClusterQueue that only lends to the teams of its cohort.
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    /// `None` if the namespace has no LocalQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_queue: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cohort: String,
    admitted_workloads: i32,
    pending_workloads: i32,
    quotas: Vec<Quota>,
}

/// Quota of one resource in one flavor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Quota {
    flavor: String,
    resource: String,
    nominal: Amount,
    /// Amount that the queue's workloads hold.
    used: Amount,
    /// The part of it that belongs to other queues.
    borrowed: Amount,
    #[serde(skip_serializing_if = "Option::is_none")]
    borrowing_limit: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lending_limit: Option<Amount>,
}

/// An amount that is written as its text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Amount(Quantity);

impl Amount {
    /// The amount, or zero if the text is not one. The API server validates the texts.
    fn of(text: &str) -> Self {
        Self(Quantity::parse(text).unwrap_or(Quantity::ZERO))
    }
}

impl Serialize for Amount {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Prints the teams.
pub async fn list(options: &Options) -> anyhow::Result<ExitCode> {
    let cluster = Cluster { client: connect::asking(options.connect.config().await?)? };
    let namespaces: Vec<Namespace> = cluster.list_cluster(&options.label.selector()).await?;
    let local_queues: Vec<LocalQueue> = cluster.list(None).await?;
    let cluster_queues: Vec<ClusterQueue> = cluster.list_cluster("").await?;
    let names: Vec<String> = namespaces.iter().map(ResourceExt::name_any).collect();
    let mut teams = teams(&names, &local_queues, &cluster_queues);
    if !options.names.is_empty() {
        let unknown: Vec<&str> =
            options.names.iter().map(String::as_str).filter(|it| !names.iter().any(|n| n == it)).collect();
        if !unknown.is_empty() {
            bail!(
                "no team {}: no namespace of this name has the label {}",
                unknown.join(", "),
                options.label.selector()
            );
        }
        teams.retain(|team| team.team.as_ref().is_some_and(|name| options.names.contains(name)));
    }
    match options.output {
        Some(Output::Json) => say!("{:#}", serde_json::to_value(&teams)?),
        Some(Output::Yaml) => process::print(&install::yaml(&serde_json::to_value(&teams)?)?)?,
        _ if teams.is_empty() => {
            eprintln!("No teams: no namespace has the label {}", options.label.selector());
        }
        Some(Output::Wide) => process::print(&wide(&teams).render())?,
        None => process::print(&narrow(&teams).render())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The teams in name order, then the other ClusterQueues of their cohorts.
fn teams(namespaces: &[String], local_queues: &[LocalQueue], cluster_queues: &[ClusterQueue]) -> Vec<Team> {
    let queues: BTreeMap<String, &ClusterQueue> = cluster_queues.iter().map(|it| (it.name_any(), it)).collect();
    let mut uses: BTreeMap<&str, BTreeMap<&str, (i32, i32)>> =
        namespaces.iter().map(|name| (name.as_str(), BTreeMap::new())).collect();
    for queue in local_queues {
        let Some(of_team) = queue.metadata.namespace.as_deref().and_then(|namespace| uses.get_mut(namespace)) else {
            continue;
        };
        let status = queue.status.as_ref();
        let (admitted, pending) = of_team.entry(queue.spec.cluster_queue.as_str()).or_default();
        *admitted += status.map_or(0, |status| status.admitted_workloads);
        *pending += status.map_or(0, |status| status.pending_workloads);
    }
    let mut teams = Vec::new();
    for (name, of_team) in &uses {
        let team = |cluster_queue: Option<&str>, (admitted, pending): (i32, i32)| {
            let queue = cluster_queue.and_then(|name| queues.get(name));
            Team {
                team: Some((*name).to_owned()),
                cluster_queue: cluster_queue.map(str::to_owned),
                cohort: queue.map(|queue| queue.spec.cohort_name.clone()).unwrap_or_default(),
                admitted_workloads: admitted,
                pending_workloads: pending,
                quotas: queue.map(|queue| quotas(queue)).unwrap_or_default(),
            }
        };
        teams.extend(of_team.iter().map(|(queue, counts)| team(Some(*queue), *counts)));
        if of_team.is_empty() {
            teams.push(team(None, (0, 0)));
        }
    }
    let used: BTreeSet<&str> = uses.values().flat_map(BTreeMap::keys).copied().collect();
    let cohorts: BTreeSet<String> =
        teams.iter().map(|team| team.cohort.clone()).filter(|cohort| !cohort.is_empty()).collect();
    let others = queues
        .iter()
        .filter(|(name, queue)| !used.contains(name.as_str()) && cohorts.contains(&queue.spec.cohort_name));
    teams.extend(others.map(|(name, queue)| {
        let status = queue.status.as_ref();
        Team {
            team: None,
            cluster_queue: Some(name.clone()),
            cohort: queue.spec.cohort_name.clone(),
            admitted_workloads: status.map_or(0, |status| status.admitted_workloads),
            pending_workloads: status.map_or(0, |status| status.pending_workloads),
            quotas: quotas(queue),
        }
    }));
    teams
}

fn quotas(queue: &ClusterQueue) -> Vec<Quota> {
    let reservations = queue.status.as_ref().map(|status| status.flavors_reservation.as_slice()).unwrap_or_default();
    let mut quotas = Vec::new();
    for flavor in queue.spec.resource_groups.iter().flat_map(|group| &group.flavors) {
        let held = reservations.iter().find(|it| it.name == flavor.name);
        for resource in &flavor.resources {
            let held = held.and_then(|held| held.resources.iter().find(|it| it.name == resource.name));
            quotas.push(Quota {
                flavor: flavor.name.clone(),
                resource: resource.name.clone(),
                nominal: Amount::of(&resource.nominal_quota.0),
                used: Amount::of(held.map_or("0", |held| &held.total.0)),
                borrowed: Amount::of(held.map_or("0", |held| &held.borrowed.0)),
                borrowing_limit: resource.borrowing_limit.as_ref().map(|limit| Amount::of(&limit.0)),
                lending_limit: resource.lending_limit.as_ref().map(|limit| Amount::of(&limit.0)),
            });
        }
    }
    quotas
}

const ABSENT: &str = "<none>";

/// The columns that both tables begin with.
fn identity(team: &Team) -> Vec<String> {
    let or_absent =
        |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned().unwrap_or_else(|| ABSENT.to_owned());
    vec![or_absent(team.team.as_ref()), or_absent(team.cluster_queue.as_ref()), or_absent(Some(&team.cohort))]
}

/// One row per team. The cell of a resource is `used/quota`, summed over the flavors.
fn narrow(teams: &[Team]) -> Table {
    let resources: BTreeSet<&str> =
        teams.iter().flat_map(|team| &team.quotas).map(|quota| quota.resource.as_str()).collect();
    let mut columns: Vec<String> =
        ["TEAM", "CLUSTER QUEUE", "COHORT", "PENDING", "ADMITTED"].iter().map(|it| (*it).to_owned()).collect();
    columns.extend(resources.iter().map(|resource| resource.to_uppercase()));
    let row = |team: &Team| {
        let mut cells = identity(team);
        cells.extend([team.pending_workloads.to_string(), team.admitted_workloads.to_string()]);
        cells.extend(resources.iter().map(|resource| {
            let (mut used, mut nominal, mut covered) = (Quantity::ZERO, Quantity::ZERO, false);
            for quota in team.quotas.iter().filter(|quota| quota.resource == *resource) {
                used.add(quota.used.0);
                nominal.add(quota.nominal.0);
                covered = true;
            }
            if covered { format!("{used}/{nominal}") } else { "-".to_owned() }
        }));
        cells
    };
    Table { rows: teams.iter().map(row).collect(), columns }
}

/// One row per team, flavor and resource.
fn wide(teams: &[Team]) -> Table {
    let columns = [
        "TEAM",
        "CLUSTER QUEUE",
        "COHORT",
        "FLAVOR",
        "RESOURCE",
        "QUOTA",
        "USED",
        "BORROWED",
        "BORROWING LIMIT",
        "LENDING LIMIT",
    ];
    let mut rows = Vec::new();
    for team in teams {
        for quota in &team.quotas {
            let limit = |limit: Option<Amount>| limit.map_or_else(|| "-".to_owned(), |limit| limit.0.to_string());
            let mut cells = identity(team);
            cells.extend([quota.flavor.clone(), quota.resource.clone()]);
            cells.extend([quota.nominal, quota.used, quota.borrowed].map(|amount| amount.0.to_string()));
            cells.extend([limit(quota.borrowing_limit), limit(quota.lending_limit)]);
            rows.push(cells);
        }
    }
    Table { columns: columns.iter().map(|it| (*it).to_owned()).collect(), rows }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("a valid object")
    }

    fn cluster_queue(name: &str, cohort: &str, used: &str, borrowed: &str) -> ClusterQueue {
        let resource = json!({"name": "nvidia.com/gpu", "nominalQuota": "8", "lendingLimit": "4"});
        object(json!({
            "metadata": {"name": name},
            "spec": {"cohortName": cohort, "resourceGroups": [{
                "coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "default-flavor", "resources": [resource]}]}]},
            "status": {"admittedWorkloads": 3, "pendingWorkloads": 1, "flavorsReservation": [{
                "name": "default-flavor",
                "resources": [{"name": "nvidia.com/gpu", "total": used, "borrowed": borrowed}]}]},
        }))
    }

    fn local_queue(namespace: &str, cluster_queue: &str) -> LocalQueue {
        object(json!({
            "metadata": {"name": "default-queue", "namespace": namespace},
            "spec": {"clusterQueue": cluster_queue},
            "status": {"admittedWorkloads": 3, "pendingWorkloads": 1},
        }))
    }

    fn example() -> Vec<Team> {
        teams(
            &["blue".into(), "new".into()],
            &[local_queue("blue", "blue-cluster-queue"), local_queue("elsewhere", "other")],
            &[
                cluster_queue("blue-cluster-queue", "all", "24", "16"),
                cluster_queue("other", "another-cohort", "0", "0"),
                cluster_queue("slack", "all", "0", "0"),
            ],
        )
    }

    #[test]
    fn a_row_has_the_use_of_each_resource_against_the_quota() {
        assert_eq!(
            narrow(&example()).render(),
            "TEAM     CLUSTER QUEUE        COHORT   PENDING   ADMITTED   NVIDIA.COM/GPU\n\
             blue     blue-cluster-queue   all      1         3          24/8\n\
             new      <none>               <none>   0         0          -\n\
             <none>   slack                all      1         3          0/8\n"
        );
    }

    #[test]
    fn wide_rows_have_what_is_borrowed_and_the_limits() {
        let table = wide(&example()).render();
        let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        let expected =
            ["blue", "blue-cluster-queue", "all", "default-flavor", "nvidia.com/gpu", "8", "24", "16", "-", "4"];
        assert_eq!(row, expected);
    }

    #[test]
    fn json_has_amounts_as_text() {
        let value = serde_json::to_value(example()).expect("JSON");
        assert_eq!(value[0]["quotas"][0]["used"], "24");
        assert_eq!(value[1], json!({"team": "new", "admittedWorkloads": 0, "pendingWorkloads": 0, "quotas": []}));
        assert!(value[2].get("team").is_none());
    }
}
