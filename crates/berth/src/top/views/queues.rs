//! The views of queues: cohorts and ClusterQueues as a tree, and LocalQueues.

use std::sync::Arc;

use berth_api::kueue::v1beta2::LocalQueue;
use berth_apimachinery::quantity::Quantity;
use berth_dashboard::tree::{self, Figures};
use kube::ResourceExt;

use super::{bar, finish};
use crate::listing::{Column, or_none};
use crate::top::sheet::{Cell, Row, Sheet, Target, Tone};
use crate::top::state::State;

/// Cohorts and ClusterQueues with a row for each flavor and resource.
pub(super) fn tree_of(state: &State) -> Sheet {
    let cloned: Vec<_> = state.queues.objects.iter().map(|queue| (**queue).clone()).collect();
    let cohorts: Vec<_> = state.cohorts.objects.iter().map(|cohort| (**cohort).clone()).collect();
    let forest = tree::forest(&cloned, &cohorts);
    let mut rows = Vec::new();
    for (at, node) in forest.iter().enumerate() {
        let below = forest[at + 1..].iter().take_while(|it| it.depth > node.depth);
        let names = match node.is_cohort {
            true => below.filter(|it| !it.is_cohort).map(|it| it.name.clone()).collect(),
            false => vec![node.name.clone()],
        };
        let title = if node.is_cohort { format!("cohort {}", node.name) } else { node.name.clone() };
        let target = Target::Queues { names, title, is_cohort: node.is_cohort };
        rows.extend(queue_rows(node, &target));
    }
    let columns = vec![
        Column::Usual("NAME"),
        Column::Usual("FLAVOR"),
        Column::Usual("RESOURCE"),
        Column::Usual("USE"),
        Column::Usual("USED/QUOTA"),
        Column::Usual("BORROW"),
        Column::Usual("WAIT"),
        Column::Usual("RUN"),
        Column::Wide("MAY BORROW"),
        Column::Wide("MAY LEND"),
        Column::Wide("PROBLEM"),
    ];
    let limits = [state.queues.limits("clusterqueues"), state.cohorts.limits("cohorts")];
    finish(Sheet { columns, rows, ..Sheet::default() }, limits, state.queues.is_loading(), "There is no ClusterQueue.")
}

/// A row for each flavor and resource of a cohort or ClusterQueue. The first one has its name.
fn queue_rows(node: &tree::Node, target: &Target) -> Vec<Row> {
    let mark = if node.problem.is_some() { " (inactive)" } else { "" };
    let name = format!("{}{}{mark}", "  ".repeat(node.depth.min(16)), node.name);
    let tone = match node {
        _ if node.problem.is_some() => Tone::Bad,
        _ if node.is_cohort => Tone::Group,
        _ if node.workloads.waiting > 0 => Tone::Wait,
        _ => Tone::Plain,
    };
    let kind = if node.is_cohort { "cohort" } else { "queue" };
    let row = |place: usize, cells: [Cell; 7], id: String| {
        let only_first = |text: String| Cell::Text(if place == 0 { text } else { String::new() });
        let [flavor, resource, bar, use_, borrowed, may_borrow, may_lend] = cells;
        let counts = &node.workloads;
        let cells = vec![
            only_first(name.clone()),
            flavor,
            resource,
            bar,
            use_,
            borrowed,
            only_first(counts.waiting.to_string()),
            only_first(counts.admitted.to_string()),
            may_borrow,
            may_lend,
            only_first(node.problem.clone().unwrap_or_default()),
        ];
        Row { cells, target: target.clone(), id, tone }
    };
    if node.amounts.is_empty() {
        let none = || Cell::Text(String::new());
        let cells = [Cell::Text("no quota".to_owned()), none(), none(), none(), none(), none(), none()];
        return vec![row(0, cells, format!("{kind}/{}", node.name))];
    }
    let amounts = node.amounts.iter().enumerate();
    let rows = amounts.map(|(place, ((flavor, resource), figures))| {
        let [use_, borrowed, may_borrow, may_lend] = quota_cells(figures, node.is_cohort).map(Cell::Text);
        let bar = Cell::Bar(bar(&figures.used, &figures.nominal));
        let cells = [flavor.clone().into(), resource.clone().into(), bar, use_, borrowed, may_borrow, may_lend];
        row(place, cells, format!("{kind}/{}/{flavor}/{resource}", node.name))
    });
    rows.collect()
}

/// Use and quota, the borrowed amount, and the limits of borrowing and lending.
fn quota_cells(figures: &Figures, is_cohort: bool) -> [String; 4] {
    let limit = |limit: &Option<Quantity>| limit.as_ref().map_or_else(|| "any".to_owned(), amount);
    let borrowed = if is_cohort || figures.borrowed.is_zero() { String::new() } else { figures.borrowed.to_string() };
    let limits = match is_cohort {
        true => [String::new(), String::new()],
        false => [limit(&figures.borrowing_limit), limit(&figures.lending_limit)],
    };
    let [may_borrow, may_lend] = limits;
    [format!("{}/{}", figures.used, amount(&figures.nominal)), borrowed, may_borrow, may_lend]
}

/// An amount of quota. Beyond the integers of the engine, it is unlimited.
fn amount(quantity: &Quantity) -> String {
    if quantity.value() == i64::MAX { "unlimited".to_owned() } else { quantity.to_string() }
}

/// LocalQueues with their use.
pub(super) fn local_queues(state: &State) -> Sheet {
    let row = |queue: &Arc<LocalQueue>| {
        let status = queue.status.clone().unwrap_or_default();
        let used = status.flavors_reservation.iter().flat_map(|flavor| {
            let resources = flavor.resources.iter().filter(|it| !tree::amount(&it.total).is_zero());
            resources.map(|it| format!("{} {} of {}", it.total.0, it.name, flavor.name))
        });
        let used = used.collect::<Vec<_>>().join(", ");
        let (namespace, name) = (queue.namespace().unwrap_or_default(), queue.name_any());
        let texts = [
            namespace.clone(),
            name.clone(),
            queue.spec.cluster_queue.clone(),
            status.pending_workloads.to_string(),
            status.reserving_workloads.to_string(),
            status.admitted_workloads.to_string(),
            or_none(&used),
        ];
        let tone = if status.pending_workloads > 0 { Tone::Wait } else { Tone::Plain };
        let id = format!("{namespace}/{name}");
        Row { cells: texts.map(Cell::Text).to_vec(), target: Target::LocalQueue { namespace, name }, id, tone }
    };
    let columns =
        ["NAMESPACE", "NAME", "CLUSTER QUEUE", "WAIT", "RESERVING", "RUN", "USED"].map(Column::Usual).to_vec();
    let rows = state.local_queues.objects.iter().map(row).collect();
    let limits = [state.local_queues.limits("localqueues")];
    let loading = state.local_queues.is_loading();
    finish(Sheet { columns, rows, ..Sheet::default() }, limits, loading, "There is no LocalQueue.")
}
