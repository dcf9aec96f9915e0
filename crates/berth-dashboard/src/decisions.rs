//! The decisions about a workload: a line for each, and the details of the last eviction.

use berth_api::berth::decision::{BalanceRecord, DecisionOutcome, DecisionRecord, Lost, PreemptionRecord};
use berth_controllers::decisions::summary;
use jiff::Timestamp;

use crate::explained::{link, search, share};
use crate::html::Html;
use crate::{layout, state};

/// The section of a workload's page; empty without decisions.
pub fn show(html: &mut Html, records: &[DecisionRecord], now: Timestamp) {
    if records.is_empty() {
        return;
    }
    html.line("h2", "", "Decisions");
    layout::table(html, &["Decision", "ClusterQueue", "#Ago"], |html| {
        html.class("tbody", "", |html| {
            for record in records {
                html.class("tr", "", |html| {
                    html.line("td", class(record.outcome), summary(record));
                    html.line("td", "nowrap", &record.cluster_queue);
                    let ago = record.time.as_ref().map(|time| now.as_second().saturating_sub(time.0.as_second()));
                    html.line("td", "number", ago.map(state::duration).unwrap_or_default());
                });
            }
        });
    });
    let is_eviction =
        |record: &&DecisionRecord| matches!(record.outcome, DecisionOutcome::Preempted | DecisionOutcome::Evicted);
    if let Some(record) = records.iter().find(is_eviction) {
        eviction(html, record);
    }
}

fn class(outcome: DecisionOutcome) -> &'static str {
    match outcome {
        DecisionOutcome::Waiting | DecisionOutcome::Preempting | DecisionOutcome::QuotaReserved => "long wait",
        DecisionOutcome::Admitted => "long good",
        DecisionOutcome::Preempted | DecisionOutcome::Evicted => "long bad",
    }
}

fn eviction(html: &mut Html, record: &DecisionRecord) {
    html.line("h3", "", format_args!("The last eviction: {}", record.reason));
    match &record.preemption {
        Some(preemption) => preempted(html, record, preemption),
        None => html.line("p", "message", &record.message),
    }
    if let Some(lost) = &record.lost {
        losses(html, lost);
    }
    let Some(preemption) = &record.preemption else { return };
    balances(html, &preemption.balances);
    if let Some(it) = &preemption.search {
        search(html, it);
    }
}

fn preempted(html: &mut Html, record: &DecisionRecord, preemption: &PreemptionRecord) {
    html.class("p", "", |html| {
        html.text("Preempted by ");
        match &preemption.preemptor {
            Some(preemptor) => link(html, preemptor),
            None => html.text(format_args!("a workload that is not named (UID: {})", preemption.preemptor_uid)),
        }
        html.text(format_args!(" of ClusterQueue {}", preemption.preemptor_cluster_queue));
        if let Some(priority) = preemption.preemptor_priority {
            html.text(format_args!(", priority {priority}"));
        }
        html.text(format_args!(
            ". This workload: ClusterQueue {}, priority {}.",
            record.cluster_queue, preemption.priority
        ));
    });
    html.line("p", "", format_args!("Rule: {}.", preemption.rule));
}

fn losses(html: &mut Html, lost: &Lost) {
    if lost.holds.is_empty() {
        return;
    }
    let holds: Vec<String> = lost
        .holds
        .iter()
        .map(|held| format!("{} {} of flavor {}", held.amount.0, held.resource, held.flavor))
        .collect();
    let time = lost.seconds.map(|seconds| format!(", held for {}", state::duration(seconds))).unwrap_or_default();
    html.line("p", "", format_args!("Lost: {}{time}.", holds.join(", ")));
}

fn balances(html: &mut Html, balances: &[BalanceRecord]) {
    if balances.iter().all(|balance| balance.quotas.is_empty() && balance.share_before.is_none()) {
        return;
    }
    let columns = ["Queue or cohort", "Resource", "Flavor", "#Quota", "#In use before", "#In use after"];
    layout::table(html, &columns, |html| {
        html.class("tbody", "", |html| {
            for balance in balances {
                for quota in &balance.quotas {
                    row(html, balance, [&quota.resource, &quota.flavor, &quota.quota, &quota.before, &quota.after]);
                }
                if let (Some(before), Some(after)) = (balance.share_before, balance.share_after) {
                    row(html, balance, ["weighted share", "", "", &share(before), &share(after)]);
                }
            }
        });
    });
}

fn row(html: &mut Html, balance: &BalanceRecord, cells: [&str; 5]) {
    html.class("tr", "", |html| {
        html.class("td", "name", |html| {
            html.text(&balance.name);
            html.line("span", "kind", format_args!(" {}", balance.kind));
        });
        for (at, cell) in cells.into_iter().enumerate() {
            html.line("td", if at < 2 { "nowrap" } else { "number" }, cell);
        }
    });
}
