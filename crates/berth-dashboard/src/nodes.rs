//! The nodes: a map by topology with the use of GPUs and the health of each node, and a table.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::gpus::{self, GpuUse};
use berth_api::kueue::v1beta2::Topology;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};

use crate::dashboard::Dashboard;
use crate::gpu_use;
use crate::html::{Href, Html};
use crate::layout::{self, cannot, notice};
use crate::node_health::{self, Grade};
use crate::node_pods;
use crate::node_use::{self, Use};
use crate::read::{self, Unread};
use crate::request::{Asked, Parameters};
use crate::state;

/// Maximum number of nodes that are read.
const NODES_MAX: usize = 5_000;
/// Number of rows of the table.
const ROWS: usize = 200;

/// A node with what its pods request.
struct Machine {
    node: Node,
    used: Option<Use>,
    /// What its GPUs report.
    gpus: Vec<GpuUse>,
    state: String,
    reason: String,
}

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked) -> Response<String> {
    let frame = dashboard.frame(asked, "Nodes", &["nodes"]);
    let nodes: Api<Node> = Api::all(dashboard.client.clone());
    let topologies: Api<Topology> = Api::all(dashboard.client.clone());
    let (nodes, uses, reports, topologies, now) = futures::join!(
        read::list(&nodes, NODES_MAX),
        node_pods::uses(&dashboard.client),
        gpu_use::read(&dashboard.client),
        read::list(&topologies, 100),
        dashboard.now()
    );
    let code = nodes.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    layout::page(code, &frame, |html| {
        html.line("h1", "", "Nodes");
        let nodes = match nodes {
            Ok(nodes) => nodes,
            Err(unread) => return cannot(html, &unread),
        };
        if nodes.has_more {
            notice(html, format_args!("Only the first {} nodes are shown.", nodes.items.len()));
        }
        let uses = match uses {
            Ok(Some(uses)) => Some(uses),
            Ok(None) => {
                let most = node_pods::PODS_MAX;
                notice(html, format_args!("The use is not shown, because there are more than {most} pods."));
                None
            }
            Err(unread) => {
                notice(html, format_args!("The use of the nodes is not shown. {unread}"));
                None
            }
        };
        let machine = |node: Node| {
            let gpus = reports.of(&node.name_any()).to_vec();
            let used = uses.as_ref().map(|uses| uses.get(&node.name_any()).cloned().unwrap_or_default());
            let (state, reason) = node_use::state(&node, used.as_ref());
            Machine { node, used, gpus, state, reason }
        };
        let machines: Vec<Machine> = nodes.items.into_iter().map(machine).collect();
        if machines.iter().any(|it| node_use::accelerator(&it.node).is_some_and(|name| name == gpus::GPU)) {
            reports.notes.iter().for_each(|note| notice(html, note));
        }
        let levels = topologies.map(|it| levels(&it.items)).unwrap_or_default();
        show(html, &machines, &levels, &asked.parameters, now);
    })
}

/// The labels of the topologies' levels, except the host name, widest first.
fn levels(topologies: &[Topology]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for level in topologies.iter().flat_map(|it| &it.spec.levels) {
        if level.node_label != "kubernetes.io/hostname" && !found.contains(&level.node_label) {
            found.push(level.node_label.clone());
        }
    }
    found
}

fn show(html: &mut Html, machines: &[Machine], levels: &[String], given: &Parameters, now: Timestamp) {
    let count = |state: &str| machines.iter().filter(|it| it.state == state).count();
    let states: BTreeSet<&str> = machines.iter().map(|it| it.state.as_str()).collect();
    let shares: Vec<String> = states.into_iter().map(|state| format!("{} {state}", count(state))).collect();
    let noun = if machines.len() == 1 { "node" } else { "nodes" };
    let shares = if shares.is_empty() { String::new() } else { format!(": {}", shares.join(", ")) };
    html.line("p", "quiet", format_args!("{} {noun}{shares}.", machines.len()));
    totals(html, machines);
    if machines.is_empty() {
        return;
    }
    html.line("h2", "", "Map");
    map(html, machines, levels);
    html.line("h2", "", "Table");
    let from = given.number("from").min(machines.len());
    let part = &machines[from..machines.len().min(from + ROWS)];
    let page = |from: usize| {
        let from = if from > 0 { from.to_string() } else { String::new() };
        Href::path(&["nodes"]).with_query(&given.without("refresh").with("from", from).query())
    };
    layout::pager(html, from, part.len(), Some(machines.len()), ROWS, page);
    let columns = [
        "Node",
        "State",
        "Pool",
        "#CPU",
        "#Memory",
        "Accelerator",
        "#In use",
        "#GPU busy",
        "#Pods",
        "Health",
        "Reason",
        "#Age",
    ];
    layout::rows(html, &columns, |html| {
        for machine in part {
            html.class("tr", "", |html| row(html, machine, now));
        }
    });
    layout::pager(html, from, part.len(), Some(machines.len()), ROWS, page);
}

/// Requested and allocatable accelerators of all nodes.
fn totals(html: &mut Html, machines: &[Machine]) {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for machine in machines {
        let Some(name) = node_use::accelerator(&machine.node) else { continue };
        let amounts = node_use::amounts(&machine.node, machine.used.as_ref(), &name);
        let sum = sums.entry(name).or_default();
        sum.0 += amounts.map_or(0.0, |it| it.0);
        sum.1 += amounts.map_or(0.0, |it| it.1);
    }
    let is_known = machines.iter().any(|it| it.used.is_some());
    for (name, (used, all)) in sums.iter().filter(|_| is_known) {
        html.class("p", "", |html| {
            layout::bar(html, *used, *all, &format!("{used} of {all} {name} requested"));
            html.line("b", "", used);
            html.text(format_args!(" / {all} {name}"));
        });
    }
    let gpus: Vec<GpuUse> = machines.iter().flat_map(|it| it.gpus.iter().copied()).collect();
    if let Some(mean) = gpu_use::mean(&gpus) {
        html.class("p", "", |html| {
            layout::bar(html, mean, 100.0, &format!("GPUs are busy {mean:.0} % of the time"));
            html.line("b", "", format_args!("{mean:.0} %"));
            html.text(format_args!(" of {} GPUs busy", gpus.len()));
        });
    }
}

/// The domain of a node: the values of the levels, or its pool.
fn domain(node: &Node, levels: &[String]) -> String {
    let values: Vec<&str> = levels.iter().filter_map(|level| node.labels().get(level)).map(String::as_str).collect();
    if values.is_empty() {
        return node_use::pool(node).unwrap_or("other nodes").to_owned();
    }
    values.join(" / ")
}

fn map(html: &mut Html, machines: &[Machine], levels: &[String]) {
    let mut domains: BTreeMap<String, Vec<&Machine>> = BTreeMap::new();
    for machine in machines {
        domains.entry(domain(&machine.node, levels)).or_default().push(machine);
    }
    html.class("div", "map", |html| {
        for (domain, machines) in &domains {
            html.class("section", "", |html| {
                html.line("h3", "", domain);
                html.class("div", "cells", |html| machines.iter().for_each(|machine| tile(html, machine)));
            });
        }
    });
    html.markup("<p class=\"quiet legend\"><svg class=\"cell idle\" viewBox=\"0 0 10 10\" aria-hidden=\"true\">");
    html.markup("<rect class=\"ground\" width=\"10\" height=\"10\"></rect></svg> free ");
    html.markup("<svg class=\"cell\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"ground\" width=\"10\" ");
    html.markup("height=\"10\"></rect><rect class=\"own\" y=\"4\" width=\"10\" height=\"6\"></rect></svg> in use ");
    html.markup("<svg class=\"cell down\" viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect class=\"ground\" ");
    html.markup("width=\"10\" height=\"10\"></rect><path d=\"M2 2L8 8M8 2L2 8\"></path></svg> down or unhealthy</p>");
}

/// A node of the map: filled from below by the requested share of its accelerators, or of its CPUs.
fn tile(html: &mut Html, machine: &Machine) {
    let resource = node_use::accelerator(&machine.node).unwrap_or_else(|| "cpu".to_owned());
    let (used, all) = node_use::amounts(&machine.node, machine.used.as_ref(), &resource).unwrap_or_default();
    let share = if all > 0.0 { (used / all).clamp(0.0, 1.0) * 10.0 } else { 0.0 };
    let health = node_health::of(&machine.node);
    let is_bad = machine.state == "down" || health.grade > Grade::Good;
    let class = if is_bad { "cell down" } else { "cell" };
    let mut label = format!("{}: {}, {used} of {all} {resource}", machine.node.name_any(), machine.state);
    if let Some(mean) = gpu_use::mean(&machine.gpus) {
        label.push_str(&format!(", GPUs {mean:.0} % busy"));
    }
    if health.grade > Grade::Good {
        label.push_str(&format!(", {health}"));
    }
    html.element(
        "svg",
        &[("class", &class), ("viewBox", &"0 0 10 10"), ("role", &"img"), ("aria-label", &label)],
        |html| {
            html.line("title", "", &label);
            html.markup("<rect class=\"ground\" width=\"10\" height=\"10\"></rect>");
            let (y, height) = (format!("{:.1}", 10.0 - share), format!("{share:.1}"));
            html.element("rect", &[("class", &"own"), ("y", &y), ("width", &"10"), ("height", &height)], |_| {});
            if is_bad {
                html.markup("<path d=\"M2 2L8 8M8 2L2 8\"></path>");
            }
        },
    );
}

/// Requested and allocatable memory in GiB.
fn memory(node: &Node, used: Option<&Use>) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    let Some((requested, all)) = node_use::amounts(node, used, "memory") else { return "-".to_owned() };
    let requested = used.map_or_else(|| "-".to_owned(), |_| format!("{:.0}", requested / GIB));
    format!("{requested}/{:.0} GiB", all / GIB)
}

fn row(html: &mut Html, machine: &Machine, now: Timestamp) {
    let (node, used) = (&machine.node, machine.used.as_ref());
    html.line("td", "name host", node.name_any());
    let class = match machine.state.as_str() {
        "down" => "nowrap bad",
        "draining" | "drained" => "nowrap wait",
        "idle" => "nowrap quiet",
        _ => "nowrap good",
    };
    html.line("td", class, &machine.state);
    html.line("td", "nowrap", node_use::pool(node).unwrap_or_default());
    html.line("td", "number", node_use::share(node, used, "cpu"));
    html.line("td", "number", memory(node, used));
    let accelerator = node_use::accelerator(node);
    html.line("td", "nowrap", accelerator.as_deref().unwrap_or_default());
    html.line("td", "number", accelerator.map(|name| node_use::share(node, used, &name)).unwrap_or_default());
    let each: Vec<String> = machine.gpus.iter().map(gpu_use::sentence).collect();
    html.element("td", &[("class", &"number nowrap"), ("title", &each.join("\n"))], |html| {
        html.text(gpu_use::text(&machine.gpus));
    });
    html.line("td", "number", used.map(|used| used.pods.to_string()).unwrap_or_default());
    let health = node_health::of(node);
    let has_health = !(health.verdict.is_empty() && health.detail.is_empty());
    html.class("td", if has_health { "health" } else { "" }, |html| {
        let class = match health.grade {
            Grade::Unknown | Grade::Good => "quiet",
            Grade::Warning => "wait",
            Grade::Bad => "bad",
        };
        html.line("span", class, &health.verdict);
        if !health.detail.is_empty() {
            html.line("div", "quiet message", state::shortened(&health.detail));
        }
    });
    html.line("td", "nowrap", &machine.reason);
    html.line("td", "number", state::age(&node.metadata, now));
}
