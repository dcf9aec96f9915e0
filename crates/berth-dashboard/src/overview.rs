//! The first page: cohorts and queues, their usage, and their waiting workloads.

use berth_api::kueue::v1beta2::{ClusterQueue, Cohort};
use http::{Response, StatusCode};
use kube::{Api, Client};

use crate::html::{Href, Html};
use crate::layout::{self, Frame, notice, usage};
use crate::read::{self, Unread};
use crate::tree::{self, Node, Workloads};

/// Number of cohorts and queues on one page.
const ROWS: usize = 200;
/// Maximum number of queues, and of cohorts, that are read.
const OBJECTS_MAX: usize = 20_000;

/// The page that starts at row `from`.
pub async fn page(client: &Client, from: usize, refresh: bool) -> Response<String> {
    let here = if from > 0 { Href::path(&[]).with("from", from) } else { Href::path(&[]) };
    let frame = Frame { title: "Queues", here, refresh };
    let queues: Api<ClusterQueue> = Api::all(client.clone());
    let cohorts: Api<Cohort> = Api::all(client.clone());
    let (queues, cohorts) = futures::join!(read::list(&queues, OBJECTS_MAX), read::list(&cohorts, OBJECTS_MAX));
    let queues = match queues {
        Ok(queues) => queues,
        Err(unread) => return layout::page(unread.code(), &frame, |html| cannot(html, &unread)),
    };
    layout::page(StatusCode::OK, &frame, |html| {
        let (cohorts, unread) = match cohorts {
            Ok(cohorts) => (cohorts.items, None),
            Err(unread) => (Vec::new(), Some(unread)),
        };
        html.line("h1", "", "Queues");
        if let Some(unread) = unread {
            notice(html, format_args!("Cohorts are shown without their own quota and without their parents. {unread}"));
        }
        if queues.has_more {
            notice(html, format_args!("Only the first {} ClusterQueues are shown.", queues.items.len()));
        }
        let nodes = tree::forest(&queues.items, &cohorts);
        summary(html, &nodes);
        if nodes.is_empty() {
            html.line("p", "quiet", "There is no ClusterQueue yet.");
            return;
        }
        let shown = nodes.iter().skip(from).take(ROWS);
        let count = shown.len();
        let to = |from: usize| if from > 0 { Href::path(&[]).with("from", from) } else { Href::path(&[]) };
        layout::pager(html, from, count, Some(nodes.len()), ROWS, to);
        let columns = ["Name", "Flavor", "Resource", "In use / quota", "#Borrowed", "#Waiting", "#Admitted"];
        layout::table(html, &columns, |html| {
            for node in shown {
                rows(html, node);
            }
        });
        layout::pager(html, from, count, Some(nodes.len()), ROWS, to);
    })
}

/// A page that shows a failure.
pub fn cannot(html: &mut Html, unread: &Unread) {
    html.line("h1", "", "The page cannot be shown");
    notice(html, unread);
}

fn summary(html: &mut Html, nodes: &[Node]) {
    let queues = nodes.iter().filter(|node| !node.is_cohort);
    let (mut count, mut all) = (0, Workloads::default());
    for queue in queues {
        count += 1;
        all.waiting += queue.workloads.waiting;
        all.admitted += queue.workloads.admitted;
    }
    let plural = |count: i64, one: &'static str, many: &'static str| if count == 1 { one } else { many };
    let cohorts = i64::try_from(nodes.iter().filter(|node| node.is_cohort).count()).unwrap_or(i64::MAX);
    let text = format!(
        "{count} {} in {cohorts} {}; {} {} and {} {} admitted.",
        plural(count, "ClusterQueue", "ClusterQueues"),
        plural(cohorts, "cohort", "cohorts"),
        all.waiting,
        plural(all.waiting, "workload waits", "workloads wait"),
        all.admitted,
        plural(all.admitted, "is", "are"),
    );
    html.line("p", "quiet", text);
}

fn rows(html: &mut Html, node: &Node) {
    let height = node.amounts.len().max(1);
    let indent = match node.depth {
        0 => "name",
        1 => "name d1",
        2 => "name d2",
        3 => "name d3",
        _ => "name d4",
    };
    let tall = |html: &mut Html, class: &'static str, inside: &dyn Fn(&mut Html)| {
        html.element("td", &[("class", &class), ("rowspan", &height)], inside);
    };
    html.class("tbody", "", |html| {
        let mut amounts = node.amounts.iter();
        for row in 0..height {
            html.class("tr", if node.is_cohort { "cohort" } else { "queue" }, |html| {
                if row == 0 {
                    tall(html, indent, &|html| name(html, node));
                }
                figures(html, node, amounts.next());
                if row == 0 {
                    let class = if node.workloads.waiting > 0 { "number wait" } else { "number quiet" };
                    tall(html, class, &|html| html.text(node.workloads.waiting));
                    let class = if node.workloads.admitted > 0 { "number" } else { "number quiet" };
                    tall(html, class, &|html| html.text(node.workloads.admitted));
                }
            });
        }
    });
}

fn name(html: &mut Html, node: &Node) {
    if node.is_cohort {
        html.text(&node.name);
        html.line("span", "kind", " cohort");
    } else {
        html.link(&Href::path(&["queues", &node.name]), &node.name);
    }
    if let Some(problem) = &node.problem {
        html.element("span", &[("class", &"bad"), ("title", problem)], |html| html.text(" inactive"));
    }
}

fn figures(html: &mut Html, node: &Node, amounts: Option<(&(String, String), &tree::Figures)>) {
    let Some(((flavor, resource), figures)) = amounts else {
        html.markup("<td class=\"quiet\" colspan=\"4\">no quota</td>");
        return;
    };
    html.line("td", "nowrap", flavor);
    html.line("td", "nowrap", resource);
    html.class("td", "nowrap", |html| usage(html, figures));
    let none = node.is_cohort || figures.borrowed.is_zero();
    html.line("td", "number", if none { String::new() } else { figures.borrowed.to_string() });
}
