//! The message of `PodScheduled=False`, as kube-scheduler writes it.

use std::collections::BTreeMap;

use super::Unfit;

/// `0/34 nodes are available: 24 node(s) …, 4 Insufficient nvidia.com/gpu.`, followed by the
/// message of preemption.
pub fn unschedulable_message(node_count: usize, reasons: &BTreeMap<Unfit, usize>, preemption: &str) -> String {
    if node_count == 0 {
        return "no nodes available to schedule pods".into();
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (reason, count) in reasons {
        *counts.entry(reason.to_string()).or_insert(0) += count;
    }
    let mut text = format!("0/{node_count} nodes are available: {}.", join(counts));
    if !preemption.is_empty() {
        text.push(' ');
        text.push_str(preemption);
    }
    text
}

/// `4 Insufficient cpu, 6 node(s) …`: sorted as strings with their counts, like Go's sort.
pub(super) fn join(counts: BTreeMap<String, usize>) -> String {
    let mut parts: Vec<String> = counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}
