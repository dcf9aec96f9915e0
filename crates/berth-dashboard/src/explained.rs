//! An explanation as a page: the structure that `berth explain` prints, with tables and links.

use berth_api::berth::explanation::{
    ComparedShares, Finding, FlavorAttempt, ObjectName, Outlook, PodSetConsidered, Shortage, Standing, TopologyFinding,
    VictimSearch, Waiting, WorkloadExplanation,
};

use crate::html::{Href, Html};
use crate::layout::{self, notice};

/// Maximum number of rows of a table. The text has the same limit.
const ROWS: usize = 50;

/// The whole explanation.
pub fn show(html: &mut Html, explained: &WorkloadExplanation) {
    if let Some(problem) = &explained.queue_inactive {
        notice(html, problem);
    }
    match (&explained.standing, explained.text.lines().next()) {
        // The reason why the workload is not in a queue is one sentence of the text.
        (Standing::NotQueued { .. }, Some(said)) => html.line("p", "", said),
        (it, _) => standing(html, it),
    }
    if let Some(it) = &explained.outlook {
        outlook(html, it);
    }
    for variant in &explained.variants {
        html.line("h2", "", format_args!("Variant {} on flavor {}", variant.name, variant.flavor));
        standing(html, &variant.standing);
        if let Some(it) = &variant.outlook {
            outlook(html, it);
        }
    }
    if let Some(withheld) = &explained.withheld {
        html.line("p", "quiet", &withheld.message);
    }
    if !explained.text.is_empty() {
        html.class("details", "", |html| {
            html.line("summary", "quiet", "As berth explain prints it");
            html.class("div", "scroll", |html| html.line("pre", "", &explained.text));
        });
    }
}

fn standing(html: &mut Html, standing: &Standing) {
    match standing {
        Standing::Admitted(holding) | Standing::QuotaReserved(holding) => {
            let admitted = matches!(standing, Standing::Admitted(_));
            html.line("p", "", if admitted { "It is admitted." } else { "It holds quota, but is not admitted yet." });
            if let Some(reason) = &holding.evicted {
                html.line(
                    "p",
                    "bad",
                    format_args!("Evicted: {reason}. Its quota is counted until its pods have stopped."),
                );
            }
            if holding.being_written {
                html.line("p", "quiet", "The decision was just taken and is being written.");
            }
            if !holding.checks_not_ready.is_empty() {
                let checks = holding.checks_not_ready.join(", ");
                html.line("p", "wait", format_args!("Admission checks that are not ready: {checks}."));
            }
        }
        Standing::Waiting(waiting) => {
            let (in_cluster_queue, in_local_queue) =
                (u64::from(waiting.position_in_cluster_queue), u64::from(waiting.position_in_local_queue));
            html.line(
                "p",
                "",
                format_args!(
                    "It waits at position {} of its ClusterQueue and position {} of its LocalQueue, with priority {}.",
                    in_cluster_queue + 1,
                    in_local_queue + 1,
                    waiting.priority
                ),
            );
            if waiting.backing_off {
                html.line("p", "wait", "It is not considered until its back-off expires.");
            } else if waiting.inadmissible {
                html.line(
                    "p",
                    "quiet",
                    "It was inadmissible when last tried. It is retried when quota, queues or nodes change.",
                );
            }
            ahead(html, waiting, in_cluster_queue);
        }
        Standing::NotQueued { reason, message } => {
            let why = if message.is_empty() { reason } else { message };
            html.line("p", "", format_args!("It is not in a queue: {why}."));
        }
    }
}

fn ahead(html: &mut Html, waiting: &Waiting, place: u64) {
    let ahead = &waiting.ahead;
    if ahead.is_empty() {
        if waiting.ahead_withheld > 0 {
            html.line("p", "", format_args!("Ahead of it: {}.", workloads(place)));
        }
        return;
    }
    html.class("details", "", |html| {
        html.line("summary", "", format_args!("Ahead of it: {place}"));
        html.class("ol", "", |html| {
            for name in ahead {
                html.class("li", "", |html| link(html, name));
            }
        });
        let more = place.saturating_sub(ahead.len() as u64);
        if more > 0 {
            html.line("p", "quiet", format_args!("and {more} more"));
        }
    });
}

fn workloads(count: u64) -> String {
    if count == 1 { "1 workload".to_owned() } else { format!("{count} workloads") }
}

/// Workloads of which only the number is shown.
fn unnamed(count: u32) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} that {verb} not named", workloads(u64::from(count)))
}

pub(crate) fn link(html: &mut Html, name: &ObjectName) {
    html.link(
        &Href::path(&["workloads", &name.namespace, &name.name]),
        format_args!("{}/{}", name.namespace, name.name),
    );
}

/// A share in thousandths. The largest number means an unlimited share.
pub(crate) fn share(share: i64) -> String {
    if share == i64::MAX { "infinite".to_owned() } else { share.to_string() }
}

fn outlook(html: &mut Html, outlook: &Outlook) {
    html.line("h2", "", "If it were tried now");
    match &outlook.reason {
        None => html.line("p", "good", "It would be admitted."),
        Some(_) if !(outlook.victims.is_empty() && outlook.victims_withheld.is_empty()) => {
            html.line("p", "wait", "It would preempt:");
            html.class("ul", "", |html| {
                for victim in &outlook.victims {
                    html.class("li", "", |html| {
                        link(html, &victim.workload);
                        html.line("span", "quiet", format_args!(" {}", victim.reason));
                    });
                }
                for group in &outlook.victims_withheld {
                    html.class("li", "", |html| {
                        html.text(unnamed(group.workloads));
                        html.line("span", "quiet", format_args!(" {}", group.reason));
                    });
                }
            });
        }
        Some(reason) => {
            html.class("p", "", |html| {
                html.text("It would still wait: ");
                html.line("b", "wait", reason);
            });
        }
    }
    if !outlook.message.is_empty() {
        html.line("p", "quiet message", &outlook.message);
    }
    unready(html, outlook);
    shares(html, &outlook.shares);
    flavors(html, &outlook.pod_sets);
    for it in &outlook.shortages {
        shortage(html, it);
    }
    for it in &outlook.victim_searches {
        search(html, it);
    }
}

/// The workloads whose pods must become ready first.
fn unready(html: &mut Html, outlook: &Outlook) {
    if !outlook.unready.is_empty() || outlook.unready_withheld > 0 {
        html.line("p", "", "Admission waits until the pods of these workloads are ready:");
        html.class("ul", "", |html| {
            for workload in &outlook.unready {
                html.class("li", "", |html| link(html, workload));
            }
            if outlook.unready_withheld > 0 {
                html.line("li", "", unnamed(outlook.unready_withheld));
            }
        });
        if outlook.unready_unlisted > 0 {
            html.line("p", "quiet", format_args!("and {} more", outlook.unready_unlisted));
        }
    }
}

/// The shares that fair sharing compares.
fn shares(html: &mut Html, shares: &[ComparedShares]) {
    if shares.is_empty() {
        return;
    }
    html.line("h3", "", "Compared shares, as if this workload were admitted");
    layout::table(html, &["Its side", "#Share", "Holder of the quota", "#Share"], |html| {
        html.class("tbody", "", |html| {
            for compared in shares.iter().take(ROWS) {
                html.class("tr", "", |html| {
                    html.line("td", "name", &compared.own);
                    html.line("td", "number", share(compared.own_share));
                    html.line("td", "name", &compared.other);
                    html.line("td", "number", share(compared.other_share));
                });
            }
        });
    });
}

/// The flavors that were tried for each pod set.
fn flavors(html: &mut Html, pod_sets: &[PodSetConsidered]) {
    for set in pod_sets {
        if set.flavors.is_empty() && set.findings.is_empty() {
            continue;
        }
        html.line("h3", "", format_args!("Flavors tried for pod set {}", set.name));
        for it in &set.findings {
            html.line("p", "message", &it.message);
        }
        if set.flavors.is_empty() {
            continue;
        }
        layout::table(html, &["Flavor", "Outcome", "Findings"], |html| {
            html.class("tbody", "", |html| {
                for attempt in &set.flavors {
                    html.class("tr", "", |html| {
                        html.line("td", "name", &attempt.flavor);
                        html.line("td", if attempt.mode == "Fit" { "good" } else { "wait" }, how_well(attempt));
                        html.class("td", "long", |html| {
                            for it in &attempt.findings {
                                finding(html, it);
                            }
                        });
                    });
                }
            });
        });
    }
}

fn how_well(attempt: &FlavorAttempt) -> String {
    let borrowing = match attempt.borrowing_level {
        _ if attempt.mode == "NoFit" => String::new(),
        0 => String::new(),
        1 => ", borrowing from its cohort".to_owned(),
        level => format!(", borrowing {level} levels up"),
    };
    let how = match (attempt.mode.as_str(), attempt.preemption_mode.as_str()) {
        ("NoFit", _) => "does not fit",
        (_, "Preempt") => "fits if workloads of its own ClusterQueue are preempted",
        (_, "Reclaim") => "fits if quota is reclaimed from other ClusterQueues",
        (_, "NoCandidates") => "would fit, but there are no preemption candidates",
        _ => "fits",
    };
    format!("{how}{borrowing}")
}

fn finding(html: &mut Html, finding: &Finding) {
    html.line("div", "message", &finding.message);
    if let Some(quota) = &finding.quota {
        let bound = match (&quota.available, &quota.maximum) {
            (Some(available), _) => format!("{available} available; quota is short in {}", quota.short_at),
            (None, Some(maximum)) => format!("{} never allows more than {maximum}", quota.short_at),
            (None, None) => String::new(),
        };
        html.line("div", "quiet", format_args!("{}: {} requested, {bound}", quota.resource, quota.asked.0));
        if let Some(policy) = &quota.preemption_forbidden_by {
            let text = format!("Preemption is not tried: the workload would borrow, and {policy} is Never.");
            html.line("div", "quiet", text);
        }
    }
    if let Some(it) = &finding.topology {
        topology(html, it);
    }
}

fn topology(html: &mut Html, topology: &TopologyFinding) {
    let what =
        if topology.slice_size > 1 { format!("slices of {} pods", topology.slice_size) } else { "pods".to_owned() };
    html.class("ul", "quiet", |html| {
        let whole = format!("{} of {} {what} fit together in {}", topology.fits, topology.needed, topology.topology);
        html.line("li", "", whole);
        for layer in &topology.layers {
            html.line("li", "", format_args!("layer {}: {} of {} slices fit", layer.level, layer.fits, layer.needed));
        }
        for level in &topology.levels {
            let text = format!(
                "{}: {} domains; the largest fits {}, all together fit {}",
                level.level, level.domains, level.best, level.total
            );
            html.line("li", "", text);
        }
        for excluded in &topology.excluded {
            let text = format!("nodes excluded: {} of {}, {}", excluded.nodes, topology.nodes, excluded.reason);
            html.line("li", "", text);
        }
    });
}

fn shortage(html: &mut Html, shortage: &Shortage) {
    html.line("h3", "", format_args!("{} of flavor {}", shortage.resource, shortage.flavor));
    let text =
        format!("{} requested for pod set {}, {} available.", shortage.asked.0, shortage.pod_set, shortage.available);
    html.line("p", "", text);
    let columns = ["Level", "", "#Nominal", "#With lent quota", "#In use", "#Available", "#May borrow", "#Lends"];
    layout::table(html, &columns, |html| {
        html.class("tbody", "", |html| {
            for (at, level) in shortage.levels.iter().enumerate() {
                // A root can neither borrow nor lend.
                let root = at + 1 == shortage.levels.len();
                let short = level.name == shortage.short_at;
                html.class("tr", if short { "short" } else { "level" }, |html| {
                    html.class("td", "name", |html| {
                        html.text(&level.name);
                        html.line("span", "kind", format_args!(" {}", level.kind));
                    });
                    html.line("td", "nowrap", if short { "short here" } else { "" });
                    for amount in [&level.nominal, &level.subtree, &level.in_use, &level.available] {
                        html.line("td", "number", amount);
                    }
                    for limit in [&level.borrowing_limit, &level.lending_limit] {
                        html.line("td", "number", limit.as_deref().unwrap_or(if root { "–" } else { "any" }));
                    }
                });
            }
        });
    });
    if shortage.holders.is_empty() && shortage.holders_withheld.is_empty() {
        html.line("p", "quiet", "No workload holds this quota.");
        return;
    }
    html.line("p", "quiet", "Held by:");
    layout::table(html, &["Workload", "ClusterQueue", "#Holds", "#Priority", "Preemption"], |html| {
        html.class("tbody", "", |html| {
            for holder in shortage.holders.iter().take(ROWS) {
                html.class("tr", "", |html| {
                    html.class("td", "nowrap", |html| link(html, &holder.workload));
                    html.line("td", "nowrap", &holder.cluster_queue);
                    html.line("td", "number", &holder.amount.0);
                    html.line("td", "number", holder.priority);
                    let class = if holder.preemptible == "Yes" { "wait" } else { "quiet" };
                    html.line("td", class, &holder.why);
                });
            }
            for group in shortage.holders_withheld.iter().take(ROWS) {
                html.class("tr", "", |html| {
                    html.line("td", "nowrap", unnamed(group.workloads));
                    html.line("td", "nowrap", &group.cluster_queue);
                    html.line("td", "number", &group.amount.0);
                    html.line("td", "number", "");
                    html.line("td", if group.preemptible == "Yes" { "wait" } else { "quiet" }, &group.why);
                });
            }
        });
    });
    let groups: usize = shortage.holders_withheld.iter().skip(ROWS).map(|group| group.workloads as usize).sum();
    let left_out = shortage.holders.len().saturating_sub(ROWS) + groups + shortage.holders_unlisted as usize;
    if left_out > 0 {
        html.line("p", "quiet", format_args!("and {left_out} more"));
    }
}

pub(crate) fn search(html: &mut Html, search: &VictimSearch) {
    let what = match (&search.resource, &search.flavor) {
        (Some(resource), Some(flavor)) => format!("{resource} of flavor {flavor}"),
        _ => "all resources that are short".to_owned(),
    };
    html.line("h3", "", format_args!("Preemption for {what}"));
    html.line("p", "sentence", format_args!("{}.", search.message));
    if search.candidates.is_empty() && search.candidates_withheld.is_empty() {
        return;
    }
    layout::table(html, &["Candidate", "ClusterQueue", "#Priority", "Outcome"], |html| {
        html.class("tbody", "", |html| {
            for candidate in search.candidates.iter().take(ROWS) {
                html.class("tr", "", |html| {
                    html.class("td", "nowrap", |html| link(html, &candidate.workload));
                    html.line("td", "nowrap", &candidate.cluster_queue);
                    html.line("td", "number", candidate.priority);
                    html.line("td", if candidate.fate == "Victim" { "bad" } else { "quiet" }, &candidate.message);
                });
            }
            for group in search.candidates_withheld.iter().take(ROWS) {
                html.class("tr", "", |html| {
                    html.line("td", "nowrap", unnamed(group.workloads));
                    html.line("td", "nowrap", &group.cluster_queue);
                    html.line("td", "number", "");
                    html.line("td", if group.fate == "Victim" { "bad" } else { "quiet" }, &group.message);
                });
            }
        });
    });
    let groups: usize = search.candidates_withheld.iter().skip(ROWS).map(|group| group.workloads as usize).sum();
    let left_out = search.candidates.len().saturating_sub(ROWS) + groups + search.unlisted as usize;
    if left_out > 0 {
        html.line("p", "quiet", format_args!("and {left_out} more"));
    }
}
