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

impl Machine {
    /// How bad its health is. A node that is down is as bad as one that is not fit for pods.
    fn grade(&self) -> Grade {
        if self.state == "down" { Grade::Bad } else { node_health::of(&self.node).grade }
    }

    /// True if it is in this state, or unhealthy.
    fn is(&self, state: &str) -> bool {
        self.state == state || (state == UNHEALTHY && self.grade() > Grade::Good)
    }
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

/// The name of the filter of nodes that are down or whose health is bad or doubtful.
const UNHEALTHY: &str = "unhealthy";

fn show(html: &mut Html, machines: &[Machine], levels: &[String], given: &Parameters, now: Timestamp) {
    totals(html, machines);
    if machines.is_empty() {
        html.line("p", "quiet", "There is no node.");
        return;
    }
    html.line("h2", "", "Map");
    map(html, machines, levels);
    html.line("h2", "", "Table");
    states(html, machines, given);
    let state = given.get("state");
    let chosen: Vec<&Machine> = machines.iter().filter(|it| state.is_none_or(|state| it.is(state))).collect();
    if chosen.is_empty() {
        html.line("p", "quiet", "No node has this state.");
        return;
    }
    let from = given.number("from").min(chosen.len());
    let part = &chosen[from..chosen.len().min(from + ROWS)];
    let page = |from: usize| {
        let from = if from > 0 { from.to_string() } else { String::new() };
        Href::path(&["nodes"]).with_query(&given.without("refresh").with("from", from).query())
    };
    layout::pager(html, from, part.len(), Some(chosen.len()), ROWS, page);
    let columns = ["Node", "State", "Health", "#Accelerators", "#GPU busy", "#CPU", "#Memory", "#Pods", "Pool", "#Age"];
    layout::rows(html, &columns, |html| {
        for machine in part {
            html.class("tr", "", |html| row(html, machine, now));
        }
    });
    layout::pager(html, from, part.len(), Some(chosen.len()), ROWS, page);
}

/// The number of nodes per state and of unhealthy ones, each a filter of the table.
fn states(html: &mut Html, machines: &[Machine], given: &Parameters) {
    let states: BTreeSet<&str> = machines.iter().map(|it| it.state.as_str()).collect();
    let states = states.into_iter().chain([UNHEALTHY]);
    let counts = states.map(|state| (state, machines.iter().filter(|it| it.is(state)).count()));
    layout::state_tabs(html, given, machines.len(), counts, |value| {
        Href::path(&["nodes"]).with_query(&given.without("from").without("refresh").with("state", value).query())
    });
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
            html.text(format_args!(" / {all} {name} requested"));
        });
    }
    let gpus: Vec<GpuUse> = machines.iter().flat_map(|it| it.gpus.iter().copied()).collect();
    if let Some(mean) = gpu_use::mean(&gpus) {
        html.class("p", "", |html| {
            layout::bar(html, mean, 100.0, &format!("GPUs are busy {mean:.0} % on average"));
            html.line("b", "", format_args!("{mean:.0} %"));
            html.text(format_args!(" busy on average ({} GPUs report)", gpus.len()));
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
    let has_level = |machine: &Machine| levels.iter().any(|level| machine.node.labels().contains_key(level));
    if machines.iter().any(has_level) {
        let levels = levels.join(" / ");
        html.line("p", "quiet", format_args!("Nodes by {levels}, and those without these labels by pool."));
    }
    html.class("div", "map", |html| {
        for (domain, machines) in &domains {
            html.class("section", "", |html| {
                html.class("h3", "", |html| {
                    html.text(domain);
                    html.line("span", "kind", requested(machines));
                });
                html.class("div", "cells", |html| machines.iter().for_each(|machine| tile(html, machine)));
            });
        }
    });
    legend(html);
}

/// Requested and allocatable accelerators of some nodes: `12/32`; empty without accelerators or use.
fn requested(machines: &[&Machine]) -> String {
    let amounts = machines.iter().filter(|it| it.used.is_some()).filter_map(|it| {
        let name = node_use::accelerator(&it.node)?;
        node_use::amounts(&it.node, it.used.as_ref(), &name)
    });
    let (used, all) = amounts.fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    if all > 0.0 { format!("{used}/{all}") } else { String::new() }
}

/// The marks of a tile: a cross, a bar with a dot, a line.
const CROSS: &str = "<path d=\"M2 2L8 8M8 2L2 8\"></path>";
const WARNING: &str = "<path d=\"M5 1.8V6M5 7V8.4\"></path>";
const LINE: &str = "<path d=\"M1.5 8.5L8.5 1.5\"></path>";

/// A sample of each kind of tile.
fn legend(html: &mut Html) {
    const FULL: &str = "<rect class=\"own\" y=\"4\" width=\"10\" height=\"6\"></rect>";
    let samples = [
        ("cell", "", " free "),
        ("cell", FULL, " requested "),
        ("cell off", LINE, " cordoned "),
        ("cell warn", WARNING, " warning "),
        ("cell down", CROSS, " down or unhealthy"),
    ];
    html.class("p", "quiet legend", |html| {
        for (class, mark, text) in samples {
            html.element("svg", &[("class", &class), ("viewBox", &"0 0 10 10"), ("aria-hidden", &"true")], |html| {
                html.markup(GROUND);
                html.markup(mark);
            });
            html.text(text);
        }
    });
}

/// The ground of a tile.
const GROUND: &str = "<rect class=\"ground\" width=\"10\" height=\"10\"></rect>";

/// A node of the map: filled from below by the requested share of its accelerators, or of its CPUs.
fn tile(html: &mut Html, machine: &Machine) {
    let resource = node_use::accelerator(&machine.node).unwrap_or_else(|| "cpu".to_owned());
    let (used, all) = node_use::amounts(&machine.node, machine.used.as_ref(), &resource).unwrap_or_default();
    let share = if all > 0.0 { (used / all).clamp(0.0, 1.0) * 10.0 } else { 0.0 };
    let is_off = matches!(machine.state.as_str(), "draining" | "drained");
    let (class, mark) = match machine.grade() {
        Grade::Bad => ("cell down", CROSS),
        Grade::Warning => ("cell warn", WARNING),
        _ if is_off => ("cell off", LINE),
        _ => ("cell", ""),
    };
    let health = node_health::of(&machine.node);
    let mut label = format!("{}: {}, {used} of {all} {resource} requested", machine.node.name_any(), machine.state);
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
            html.markup(GROUND);
            let (y, height) = (format!("{:.1}", 10.0 - share), format!("{share:.1}"));
            html.element("rect", &[("class", &"own"), ("y", &y), ("width", &"10"), ("height", &height)], |_| {});
            html.markup(mark);
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
        "down" => "bad",
        "draining" | "drained" => "wait",
        "idle" => "quiet",
        _ => "good",
    };
    html.class("td", "nowrap", |html| {
        html.line("span", class, &machine.state);
        if !machine.reason.is_empty() {
            html.line("div", "quiet", &machine.reason);
        }
    });
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
    html.class("td", "number", |html| {
        if let Some(name) = node_use::accelerator(node) {
            html.text(node_use::share(node, used, &name));
            html.line("div", "quiet", name);
        }
    });
    let each: Vec<String> = machine.gpus.iter().map(gpu_use::sentence).collect();
    html.element("td", &[("class", &"number nowrap"), ("title", &each.join("\n"))], |html| {
        html.text(gpu_use::text(&machine.gpus));
    });
    html.line("td", "number", node_use::share(node, used, "cpu"));
    html.line("td", "number", memory(node, used));
    html.line("td", "number", used.map(|used| used.pods.to_string()).unwrap_or_default());
    html.line("td", "nowrap", node_use::pool(node).unwrap_or_default());
    html.line("td", "number", state::age(&node.metadata, now));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, rack: Option<&str>, health: &str, used: &str) -> Machine {
        let mut labels = json!({"cloud.google.com/gke-nodepool": "pool", "autopilot.ibm.com/gpuhealth": health});
        if let Some(rack) = rack {
            labels["example.com/rack"] = json!(rack);
        }
        let is_off = used == "off";
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels},
            "spec": {"unschedulable": is_off},
            "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": if used == "down" { "Unknown" } else { "True" }}]}}))
        .expect("a node");
        let gpus = berth_apimachinery::quantity::Quantity::parse(used).ok();
        let used = Use { pods: 1, requests: gpus.map(|it| ("nvidia.com/gpu".to_owned(), it)).into_iter().collect() };
        let (state, reason) = node_use::state(&node, Some(&used));
        Machine { node, used: Some(used), gpus: Vec::new(), state, reason }
    }

    fn machines() -> Vec<Machine> {
        vec![
            machine("full", Some("r1"), "PASS", "8"),
            machine("part", Some("r1"), "PASS", "2"),
            machine("lost", Some("r1"), "PASS", "down"),
            machine("doubt", Some("r2"), "WARN", "0"),
            machine("off", Some("r2"), "PASS", "off"),
            machine("free", None, "", "0"),
        ]
    }

    fn shown(query: &str) -> String {
        let mut html = Html::default();
        let levels = ["example.com/rack".to_owned()];
        show(&mut html, &machines(), &levels, &Parameters::parse(query), Timestamp::UNIX_EPOCH);
        html.into_string()
    }

    /// The names of the nodes in the table.
    fn rows(page: &str) -> Vec<&str> {
        page.split("<td class=\"name host\">").skip(1).filter_map(|row| row.split_once('<')).map(|it| it.0).collect()
    }

    #[test]
    fn the_map_names_the_levels_and_has_the_requests_of_each_domain() {
        let page = shown("");
        assert!(page.contains("Nodes by example.com/rack, and those without these labels by pool."), "{page}");
        assert!(page.contains("<h3>r1<span class=\"kind\">10/24</span></h3>"), "{page}");
        assert!(page.contains("<h3>pool<span class=\"kind\">0/8</span></h3>"), "{page}");
        let tile = |name: &str| {
            let before = page.split_once(&format!("aria-label=\"{name}: ")).expect("a tile").0;
            before.rsplit_once("class=\"").and_then(|it| it.1.split_once('"')).expect("a class").0
        };
        let classes = ["full", "lost", "doubt", "off", "free"].map(tile);
        assert_eq!(classes, ["cell", "cell down", "cell warn", "cell off", "cell"]);
        assert_eq!(page.matches("> cordoned <").count(), 1, "the legend has it: {page}");
    }

    #[test]
    fn the_table_can_be_limited_to_a_state_or_to_unhealthy_nodes() {
        assert_eq!(rows(&shown("")).len(), 6);
        assert_eq!(rows(&shown("state=unhealthy")), ["lost", "doubt"]);
        assert_eq!(rows(&shown("state=allocated")), ["full"]);
        assert!(shown("state=none").contains("No node has this state."));
        let page = shown("state=down");
        assert!(page.contains("href=\"/nodes?state=unhealthy\"") && page.contains("href=\"/nodes\""), "{page}");
    }
}
