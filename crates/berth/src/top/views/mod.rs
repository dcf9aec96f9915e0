//! The views of `berth top`: which there are, and the sheet of each from the state of the cluster.
//! Jobs and nodes have the rows of `berth queue` and `berth nodes`; queues have the figures of the
//! dashboard.

mod events;
mod jobs;
mod nodes;
mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use berth_dashboard::{node_use, tree};
use clap::ValueEnum;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::sheet::{Bar, Sheet};
use super::state::State;

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum View {
    /// Cohorts and ClusterQueues as a tree, with quota and use.
    #[value(aliases = ["q", "queue", "cq", "clusterqueues", "cohorts"])]
    Queues,
    /// LocalQueues, with their use.
    #[value(aliases = ["lq", "localqueue"])]
    LocalQueues,
    /// Jobs that wait and run.
    #[value(aliases = ["j", "job", "wl", "workloads"])]
    Jobs,
    /// Nodes, with the requests of their pods.
    #[value(aliases = ["no", "node"])]
    Nodes,
    /// GPUs and other accelerators of each node.
    #[value(aliases = ["g", "gpu", "accelerators"])]
    Gpus,
    /// Pods.
    #[value(aliases = ["po", "pod"])]
    Pods,
    /// Events, newest first.
    #[value(aliases = ["ev", "event"])]
    Events,
}

impl View {
    /// The view of a name or alias, or of the only view whose name begins with it.
    pub fn of(name: &str) -> Option<Self> {
        let name = name.trim().to_lowercase();
        if name.is_empty() {
            return None;
        }
        let values = Self::value_variants().iter().filter_map(|view| Some((*view, view.to_possible_value()?)));
        let values: Vec<_> = values.collect();
        let exact = values.iter().find(|(_, value)| value.matches(&name, true));
        let mut begins = values.iter().filter(|(_, value)| value.get_name().starts_with(&name));
        exact.or_else(|| begins.next().filter(|_| begins.next().is_none())).map(|(view, _)| *view)
    }

    /// The name of the view.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::LocalQueues => "local-queues",
            Self::Jobs => "jobs",
            Self::Nodes => "nodes",
            Self::Gpus => "gpus",
            Self::Pods => "pods",
            Self::Events => "events",
        }
    }
}

/// The objects to which a view is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All.
    #[default]
    All,
    /// Jobs of these ClusterQueues.
    Queues { names: Vec<String>, title: String },
    /// Jobs of a LocalQueue.
    LocalQueue { namespace: String, name: String },
    /// Pods of a node.
    Node(String),
}

impl Scope {
    /// The scope as part of a title.
    pub fn title(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Queues { title, .. } => title.clone(),
            Self::LocalQueue { namespace, name } => format!("{namespace}/{name}"),
            Self::Node(name) => name.clone(),
        }
    }
}

/// The sheet of a view.
pub fn sheet(view: View, scope: &Scope, state: &State) -> Sheet {
    match view {
        View::Queues => queues::tree_of(state),
        View::LocalQueues => queues::local_queues(state),
        View::Jobs => jobs::jobs(state, scope),
        View::Nodes => nodes::node_list(state),
        View::Gpus => nodes::gpus(state),
        View::Pods => nodes::pods(state, scope),
        View::Events => events::events(state),
    }
}

/// Adds the limits of the kinds, and the text without rows.
fn finish<const N: usize>(mut sheet: Sheet, limits: [Option<String>; N], loading: bool, none: &str) -> Sheet {
    sheet.notices.extend(limits.into_iter().flatten());
    sheet.if_empty = if loading { "Loading…".to_owned() } else { none.to_owned() };
    sheet
}

fn bar(used: &Quantity, own: &Quantity) -> Bar {
    let is_unlimited = own.value() == i64::MAX;
    let own = if is_unlimited { f64::INFINITY } else { own.as_approximate_f64() };
    Bar { used: used.as_approximate_f64(), own }
}

/// The pods of all namespaces, if they are known.
fn all_pods(state: &State) -> Option<&[Arc<Pod>]> {
    state.pods.is_whole().then_some(state.pods.objects.as_slice())
}

/// Counts for the head of the screen, of the kinds that are known.
pub fn summary(state: &State) -> String {
    let mut parts = Vec::new();
    if state.queues.sight.is_some() && !state.queues.objects.is_empty() {
        let counts = state.queues.objects.iter().filter_map(|queue| queue.status.as_ref());
        let (mut waiting, mut admitted) = (0_i64, 0_i64);
        for status in counts {
            waiting += i64::from(status.pending_workloads);
            admitted += i64::from(status.admitted_workloads);
        }
        parts.push(format!("{} queues: {waiting} waiting, {admitted} running", state.queues.objects.len()));
    }
    if !state.nodes.objects.is_empty() {
        let is_ready = |node: &Node| {
            let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True")
        };
        let ready = state.nodes.objects.iter().filter(|node| is_ready(node)).count();
        parts.push(format!("{ready} of {} nodes ready", state.nodes.objects.len()));
        parts.extend(accelerators(state));
    }
    parts.join("   ")
}

/// Requested and existing accelerators of all nodes, by resource.
fn accelerators(state: &State) -> Vec<String> {
    let mut sums: BTreeMap<String, (Quantity, Quantity)> = BTreeMap::new();
    let uses = all_pods(state).map(node_use::uses);
    for node in &state.nodes.objects {
        let Some(resource) = node_use::accelerator(node) else { continue };
        let status = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let Some(allocatable) = status.and_then(|all| all.get(&resource)).map(tree::amount) else { continue };
        let sum = sums.entry(resource.clone()).or_insert((Quantity::ZERO, Quantity::ZERO));
        sum.1.add(allocatable);
        let used = uses.as_ref().and_then(|uses| uses.get(&node.name_any())?.requests.get(&resource).copied());
        sum.0.add(used.unwrap_or(Quantity::ZERO));
    }
    let is_known = uses.is_some();
    let text = |(resource, (used, all)): (String, (Quantity, Quantity))| match is_known {
        true => format!("{used} of {all} {resource}"),
        false => format!("{all} {resource}"),
    };
    sums.into_iter().map(text).collect()
}
