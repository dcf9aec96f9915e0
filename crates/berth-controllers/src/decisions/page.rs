//! Records of decisions as text, for the page of an explanation.

use std::fmt::Write as _;

use berth_api::berth::decision::{BalanceRecord, DecisionOutcome, DecisionRecord, Lost, PreemptionRecord};
use berth_api::berth::explanation::{ObjectName, VictimSearch};
use berth_apimachinery::times;
use jiff::SignedDuration;

use super::is_eviction;

/// Maximum number of candidates that an explanation lists.
pub(crate) const CANDIDATES_MAX: usize = 10;

/// The decisions about a workload, newest first: the last eviction with everything that is known
/// about it, and one line for each of the other decisions. Empty without decisions.
pub(crate) fn page(records: &[DecisionRecord]) -> String {
    let mut text = String::new();
    let detailed = records.iter().position(is_eviction);
    if let Some(record) = detailed.map(|at| &records[at]) {
        text.push_str(&eviction(record, CANDIDATES_MAX));
    }
    let others = records.iter().enumerate().filter(|(at, _)| Some(*at) != detailed);
    let lines: Vec<String> = others.map(|(_, record)| line(record)).collect();
    if !lines.is_empty() {
        let _ = write!(text, "\nEarlier decisions, newest first:\n{}", lines.concat());
    }
    text
}

fn at(record: &DecisionRecord) -> String {
    record.time.as_ref().map(|time| times::time(time.0)).unwrap_or_default()
}

fn line(record: &DecisionRecord) -> String {
    format!("  {}  {}\n", at(record), summary(record))
}

/// Short description of a decision.
pub fn summary(record: &DecisionRecord) -> String {
    match record.outcome {
        DecisionOutcome::Waiting => format!("kept waiting: {}", record.reason),
        DecisionOutcome::Preempting => "preempted other workloads".to_owned(),
        DecisionOutcome::QuotaReserved => format!("reserved quota of ClusterQueue {}", record.cluster_queue),
        DecisionOutcome::Admitted => format!("admitted by ClusterQueue {}", record.cluster_queue),
        DecisionOutcome::Preempted => format!("preempted{}: {}", by(record), record.reason),
        DecisionOutcome::Evicted => format!("evicted: {}", record.reason),
    }
}

/// ` by NAMESPACE/NAME` of the preemptor, if it is known and may be named.
fn by(record: &DecisionRecord) -> String {
    let preemptor = record.preemption.as_ref().and_then(|preemption| preemption.preemptor.as_ref());
    preemptor.map(|it| format!(" by {}", name(it))).unwrap_or_default()
}

fn name(of: &ObjectName) -> String {
    format!("{}/{}", of.namespace, of.name)
}

/// An eviction with everything that is known about it. Lists at most `candidates_max` candidates.
pub fn eviction(record: &DecisionRecord, candidates_max: usize) -> String {
    let mut text = String::new();
    let what = if record.outcome == DecisionOutcome::Preempted { "Preempted" } else { "Evicted" };
    let _ = writeln!(text, "\n{what} at {} ({})", at(record), record.reason);
    match &record.preemption {
        Some(preemption) => preempted(&mut text, record, preemption),
        None => drop(writeln!(text, "  {}", record.message)),
    }
    if let Some(lost) = &record.lost {
        lost_line(&mut text, lost);
    }
    if let Some(preemption) = &record.preemption {
        for balance in &preemption.balances {
            balance_line(&mut text, balance);
        }
        if let Some(search) = &preemption.search {
            candidates(&mut text, search, candidates_max);
        }
    }
    text
}

fn preempted(text: &mut String, record: &DecisionRecord, preemption: &PreemptionRecord) {
    let preemptor = match &preemption.preemptor {
        Some(preemptor) => format!("Workload {}", name(preemptor)),
        None => format!("a workload not named here (UID: {})", preemption.preemptor_uid),
    };
    let priority = preemption.preemptor_priority.map(|it| format!(", priority {it}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "  By {preemptor} of ClusterQueue {}{priority}. This workload: ClusterQueue {}, priority {}.",
        preemption.preemptor_cluster_queue, record.cluster_queue, preemption.priority
    );
    let _ = writeln!(text, "  Rule: {}.", preemption.rule);
}

fn lost_line(text: &mut String, lost: &Lost) {
    let holds: Vec<String> =
        lost.holds.iter().map(|it| format!("{} {} of flavor {}", it.amount.0, it.resource, it.flavor)).collect();
    let held = lost.seconds.map(|seconds| times::duration(SignedDuration::from_secs(seconds)));
    let held = held.map(|held| format!(", held for {held}")).unwrap_or_default();
    if !holds.is_empty() {
        let _ = writeln!(text, "  Lost: {}{held}.", holds.join(", "));
    }
}

fn balance_line(text: &mut String, balance: &BalanceRecord) {
    let mut parts: Vec<String> = balance
        .quotas
        .iter()
        .map(|it| {
            format!("{} of flavor {}: {} -> {} in use, quota {}", it.resource, it.flavor, it.before, it.after, it.quota)
        })
        .collect();
    if let (Some(before), Some(after)) = (balance.share_before, balance.share_after) {
        parts.push(format!("weighted share {} -> {}", share(before), share(after)));
    }
    let _ = writeln!(text, "  {} {}: {}", balance.kind, balance.name, parts.join("; "));
}

fn share(share: i64) -> String {
    if share == i64::MAX { "infinite, because its weight is 0".to_owned() } else { share.to_string() }
}

fn candidates(text: &mut String, search: &VictimSearch, max: usize) {
    let _ = writeln!(text, "  Candidates: {}", search.message);
    for it in search.candidates.iter().take(max) {
        let name = name(&it.workload);
        let _ =
            writeln!(text, "    {name} in ClusterQueue {}, priority {}: {}", it.cluster_queue, it.priority, it.message);
    }
    for group in search.candidates_withheld.iter().take(max) {
        let count = group.workloads;
        let workloads = if count == 1 { "workload" } else { "workloads" };
        let _ = writeln!(
            text,
            "    {count} {workloads} not named here in ClusterQueue {}: {}",
            group.cluster_queue, group.message
        );
    }
    let groups = search.candidates_withheld.iter().skip(max).map(|group| group.workloads);
    let more = search.candidates.len().saturating_sub(max);
    let more = u32::try_from(more).unwrap_or(u32::MAX).saturating_add(groups.sum()).saturating_add(search.unlisted);
    if more > 0 {
        let _ = writeln!(text, "    and {more} more");
    }
}
