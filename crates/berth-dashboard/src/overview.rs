//! The first page: cohorts and queues, their usage, and their waiting workloads.

use berth_api::berth::current_jobs::CurrentJobs;
use berth_api::berth::usage::Stays;
use berth_api::kueue::v1beta2::{ClusterQueue, Cohort};
use http::{Response, StatusCode};
use kube::Api;

use crate::dashboard::Dashboard;
use crate::forecast::{Forecasts, from_now};
use crate::html::{Href, Html};
use crate::jobs;
use crate::layout::{self, cannot, notice, usage};
use crate::preemptions;
use crate::read;
use crate::request::{Asked, Parameters};
use crate::tree::{self, Node, Workloads};

/// Number of cohorts and queues on one page.
const ROWS: usize = 200;
/// Period of the preemptions that are counted.
const RECENT: &str = "1h";
/// Maximum number of queues, and of cohorts, that are read.
const OBJECTS_MAX: usize = 20_000;

/// The page that starts at row `from`.
pub async fn page(dashboard: &Dashboard, asked: &Asked, from: usize) -> Response<String> {
    let frame = dashboard.frame(asked, "Queues", &[]);
    let client = &dashboard.client;
    let queues: Api<ClusterQueue> = Api::all(client.clone());
    let cohorts: Api<Cohort> = Api::all(client.clone());
    let all = Parameters::default();
    let (queues, cohorts, forecasts, jobs, (preempted, now)) = futures::join!(
        read::list(&queues, OBJECTS_MAX),
        read::list(&cohorts, OBJECTS_MAX),
        read::promptly(Forecasts::summary(client)),
        read::promptly(jobs::list(dashboard, &all, 0)),
        async {
            let now = dashboard.now().await;
            (read::promptly(preemptions::stays(dashboard, &all, now, RECENT)).await, now)
        }
    );
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
        // A reader without the right to these sees the queues only.
        activity(html, jobs.ok().as_ref(), preempted.ok().as_ref());
        if nodes.is_empty() {
            html.line("p", "quiet", "There is no ClusterQueue yet.");
            return;
        }
        let forecasts = forecasts.unwrap_or_default();
        let count = nodes.len().saturating_sub(from).min(ROWS);
        let to = |from: usize| if from > 0 { Href::path(&[]).with("from", from) } else { Href::path(&[]) };
        layout::pager(html, from, count, Some(nodes.len()), ROWS, to);
        let columns = [
            "Name",
            "Flavor",
            "Resource",
            "In use / quota",
            "#Borrowed",
            "#Lent",
            "Next start",
            "#Waiting",
            "#Running",
        ];
        layout::table(html, &columns, |html| {
            for at in from..from + count {
                let queues = tree::queues_of(&nodes, at);
                let next = |flavor: &str| forecasts.next(&|queue| queues.contains(queue), flavor);
                rows(html, &nodes[at], &|flavor| next(flavor).map(|(at, jobs)| (from_now(at, now), jobs)));
            }
        });
        html.line("p", "quiet", LEGEND);
        layout::pager(html, from, count, Some(nodes.len()), ROWS, to);
    })
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
        "{count} {} in {cohorts} {}; {} {} and {} {}.",
        plural(count, "ClusterQueue", "ClusterQueues"),
        plural(cohorts, "cohort", "cohorts"),
        all.waiting,
        plural(all.waiting, "workload waits", "workloads wait"),
        all.admitted,
        plural(all.admitted, "runs", "run"),
    );
    html.line("p", "quiet", text);
}

/// Links to the jobs of each state, and to the last preemptions.
fn activity(html: &mut Html, jobs: Option<&CurrentJobs>, preempted: Option<&Stays>) {
    if jobs.is_none() && preempted.is_none() {
        return;
    }
    html.element("p", &[("class", &"tabs"), ("role", &"group"), ("aria-label", &"Jobs")], |html| {
        let mut link = |to: Href, text: &str, count: usize| {
            html.element("a", &[("href", &to)], |html| {
                html.text(text);
                html.line("b", "", format_args!(" {count}"));
            });
        };
        for (state, count) in jobs.iter().flat_map(|jobs| jobs::by_state(jobs)).filter(|(_, count)| *count > 0) {
            link(Href::path(&["jobs"]).with("state", state.name()), state.name(), count);
        }
        if let Some(stays) = preempted {
            let to = Href::path(&["preemptions"]).with("since", RECENT);
            link(to, "Preempted in the last hour", stays.items.len());
        }
    });
}

/// What the columns mean.
const LEGEND: &str = "Lent: own quota that is not in use and that other queues of the cohort may be using now, up to \
                      what they borrow. Next start: the forecast of the next admission of a waiting job in the flavor \
                      at the median, and the number of jobs with a forecast in it.";

/// The next start of a job in a flavor, and the number of jobs that start in it.
type Next<'a> = dyn Fn(&str) -> Option<(String, usize)> + 'a;

fn rows(html: &mut Html, node: &Node, next: &Next<'_>) {
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
                figures(html, node, amounts.next(), next);
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

fn figures(html: &mut Html, node: &Node, amounts: Option<(&(String, String), &tree::Figures)>, next: &Next<'_>) {
    let Some(((flavor, resource), figures)) = amounts else {
        html.markup("<td class=\"quiet\" colspan=\"6\">no quota</td>");
        return;
    };
    html.line("td", "nowrap", flavor);
    html.line("td", "nowrap", resource);
    html.class("td", "nowrap", |html| usage(html, figures));
    for amount in [figures.borrowed, figures.lent] {
        html.line("td", "number", if amount.is_zero() { String::new() } else { amount.to_string() });
    }
    html.class("td", "nowrap quiet", |html| {
        if let Some((start, jobs)) = next(flavor).filter(|_| node.workloads.waiting > 0) {
            html.text(format_args!("{start} ({jobs})"));
        }
    });
}
