//! The views of nodes, their accelerators and pods. Nodes have the rows of `berth nodes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::gpus::GPU;
use berth_api::pod::node_of;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::table;
use berth_dashboard::node_health::{self, Grade};
use berth_dashboard::{gpu_use, node_use, tree};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::{Scope, all_pods, bar, finish};
use crate::batch::nodes;
use crate::listing::{Column, or_none};
use crate::top::sheet::{Cell, Row, Sheet, Target, Tone};
use crate::top::state::State;

/// Why the use of nodes is not shown.
fn no_use(state: &State) -> Option<String> {
    let is_unknown = all_pods(state).is_none() && !state.pods.is_loading();
    is_unknown.then(|| "The use of nodes is not shown, because you may not list the pods of all namespaces.".to_owned())
}

pub(super) fn node_list(state: &State) -> Sheet {
    let nodes = &state.nodes.objects;
    let listing = nodes::listing(nodes, all_pods(state), state.now);
    let tone = |(node, row): (&Arc<Node>, &Vec<String>)| match node_health::of(node).grade {
        Grade::Bad => Tone::Bad,
        Grade::Warning => Tone::Wait,
        _ => node_tone(row.get(1).map_or("", String::as_str)),
    };
    let states: Vec<Tone> = nodes.iter().zip(&listing.rows).map(tone).collect();
    let sheet = Sheet::of(listing, |at| (Target::Node(nodes[at].name_any()), states[at]));
    finish(sheet, [state.nodes.limits("nodes"), no_use(state)], state.nodes.is_loading(), "There is no node.")
}

/// Tone of a node in this state, in the words of `berth nodes`.
fn node_tone(state: &str) -> Tone {
    match state {
        "down" => Tone::Bad,
        "drained" | "draining" => Tone::Wait,
        "idle" => Tone::Quiet,
        _ => Tone::Good,
    }
}

/// Labels with the model of a node's accelerators.
const MODEL_LABELS: [&str; 5] = [
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "amd.com/gpu.product-name",
];

pub(super) fn gpus(state: &State) -> Sheet {
    let uses = all_pods(state).map(node_use::uses);
    let mut holders: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let running = state.pods.objects.iter().filter(|pod| !node_use::has_ended(pod));
    let accelerators: BTreeMap<String, String> =
        state.nodes.objects.iter().filter_map(|node| Some((node.name_any(), node_use::accelerator(node)?))).collect();
    for pod in running {
        let node = node_of(pod).unwrap_or_default();
        let Some(resource) = accelerators.get(node) else { continue };
        if let Some(held) = node_use::requests(pod).get(resource).filter(|held| !held.is_zero()) {
            let holder = format!("{}/{}: {held}", pod.namespace().unwrap_or_default(), pod.name_any());
            holders.entry((node, resource)).or_default().push(holder);
        }
    }
    // Without health agents, the column would only take room from the pods.
    let has_health = state.nodes.objects.iter().any(|node| node_health::of(node).grade != Grade::Unknown);
    let row = |node: &Arc<Node>| {
        let name = node.name_any();
        let resource = accelerators.get(&name)?;
        let allocatable = node.status.as_ref()?.allocatable.as_ref()?.get(resource).map(tree::amount)?;
        let used = uses.as_ref().map(|uses| {
            let requests = uses.get(&name).and_then(|used| used.requests.get(resource)).copied();
            requests.unwrap_or(Quantity::ZERO)
        });
        let model = MODEL_LABELS.iter().find_map(|label| node.labels().get(*label)).cloned();
        let held = holders.get(&(name.as_str(), resource.as_str())).map(|held| held.join(", ")).unwrap_or_default();
        let health = node_health::of(node);
        let is_free = used.is_some_and(|used| used.is_zero());
        let busy = gpu_use::text(state.gpu_use.of(&name)).replace(" %", "%");
        let mut cells = vec![
            Cell::Text(name.clone()),
            Cell::Text(or_none(&model.unwrap_or_default())),
            Cell::Bar(bar(&used.unwrap_or(Quantity::ZERO), &allocatable)),
            Cell::Text(format!("{}/{allocatable}", used.map_or_else(|| "-".to_owned(), |used| used.to_string()))),
            Cell::Text(or_none(&busy)),
        ];
        cells.extend(has_health.then(|| Cell::Text(or_none(&health.to_string()))));
        cells.extend([held, or_none(node_use::pool(node).unwrap_or_default()), resource.clone()].map(Cell::Text));
        let tone = match health.grade {
            Grade::Bad => Tone::Bad,
            Grade::Warning => Tone::Wait,
            _ if is_free => Tone::Quiet,
            _ => Tone::Plain,
        };
        Some(Row { cells, target: Target::Node(name.clone()), id: name, tone })
    };
    let rows: Vec<Row> = state.nodes.objects.iter().filter_map(row).collect();
    let can_report = accelerators.values().any(|resource| resource == GPU);
    let notices = if can_report { state.gpu_use.notes.clone() } else { Vec::new() };
    let mut columns = ["NODE", "MODEL", "USE", "USED/ALL", "BUSY"].map(Column::Usual).to_vec();
    columns.extend(has_health.then_some(Column::Usual("HEALTH")));
    columns.extend([Column::Usual("PODS"), Column::Wide("POOL"), Column::Wide("RESOURCE")]);
    let limits = [state.nodes.limits("nodes"), no_use(state)];
    let loading = state.nodes.is_loading();
    finish(Sheet { columns, rows, notices, ..Sheet::default() }, limits, loading, "No node has accelerators.")
}

pub(super) fn pods(state: &State, scope: &Scope) -> Sheet {
    let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let in_scope = |pod: &&Arc<Pod>| match scope {
        Scope::Node(name) => node_of(pod) == *name,
        _ => true,
    };
    let row = |pod: &Arc<Pod>| {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let requests = node_use::requests(pod);
        let of = |name: &str| requests.get(name).map_or_else(|| "-".to_owned(), ToString::to_string);
        let accelerators = requests.iter().filter(|(name, _)| name.contains('/'));
        let accelerators: Vec<String> = accelerators.map(|(name, amount)| format!("{amount} {name}")).collect();
        let tone = match phase.as_str() {
            "Running" => Tone::Good,
            "Pending" => Tone::Wait,
            "Failed" => Tone::Bad,
            _ => Tone::Quiet,
        };
        let texts = [
            namespace.clone(),
            name.clone(),
            phase,
            or_none(&node_of(pod)),
            of("cpu"),
            of("memory"),
            or_none(&accelerators.join(", ")),
            pod.creation_timestamp().map(|at| table::age(at.0, state.now)).unwrap_or_default(),
        ];
        let id = format!("{namespace}/{name}");
        Row { cells: texts.map(Cell::Text).to_vec(), target: Target::Pod { namespace, name }, id, tone }
    };
    let rows = state.pods.objects.iter().filter(in_scope).map(row).collect();
    let columns =
        ["NAMESPACE", "POD", "PHASE", "NODE", "CPU", "MEMORY", "ACCELERATORS", "AGE"].map(Column::Usual).to_vec();
    let limits = [state.pods.limits("pods")];
    finish(Sheet { columns, rows, ..Sheet::default() }, limits, state.pods.is_loading(), "There is no pod.")
}
