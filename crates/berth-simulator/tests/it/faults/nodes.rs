//! Which faults each node has had, and when.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use crate::objects::condition;

/// A fault that concerns the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The label says that pods must leave.
    Evict,
    /// The node does not report.
    Silent,
    /// Pods neither start nor end.
    Stuck,
    /// The cloud takes the node, or has taken it.
    Gone,
}

/// A time from its start to its end; without an end it lasts.
pub type Span = (Timestamp, Option<Timestamp>);

/// The faults of all nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    spans: BTreeMap<(String, Fault), Vec<Span>>,
}

impl Nodes {
    /// Records a node's state; `None` if it was deleted.
    pub fn apply(&mut self, name: &str, node: Option<&Value>, now: Timestamp) {
        let annotation = |node: &Value| node["metadata"]["annotations"]["berth.dev/random-faults"].to_string();
        let states = [
            (Fault::Evict, node.is_some_and(|it| it["metadata"]["labels"]["autopilot.ibm.com/gpuhealth"] == "EVICT")),
            (
                Fault::Silent,
                node.is_some_and(|it| condition(it, "Ready").is_some_and(|ready| ready["status"] != "True")),
            ),
            (Fault::Stuck, node.is_some_and(|it| annotation(it).contains("stuckPods"))),
            (
                Fault::Gone,
                node.is_none_or(|it| it["spec"]["taints"].to_string().contains("impending-node-termination")),
            ),
        ];
        for (fault, is_on) in states {
            let spans = self.spans.entry((name.to_owned(), fault)).or_default();
            match spans.last_mut() {
                Some((_, end @ None)) if !is_on => *end = Some(now),
                None | Some((_, Some(_))) if is_on => spans.push((now, None)),
                _ => {}
            }
        }
    }

    /// Start of the fault that the node has now, or had until `within` seconds ago.
    pub fn since(&self, node: &str, fault: Fault, now: Timestamp, within: i64) -> Option<Timestamp> {
        let (start, end) = self.spans.get(&(node.to_owned(), fault))?.last()?;
        end.is_none_or(|end| now.duration_since(end).as_secs() <= within).then_some(*start)
    }

    /// Times within a span in which the node's pods made no progress.
    pub fn without_progress(&self, node: &str, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Timestamp)> {
        let all = [Fault::Silent, Fault::Stuck]
            .into_iter()
            .flat_map(|fault| self.spans.get(&(node.to_owned(), fault)).into_iter().flatten().copied());
        let cut = all.map(|(start, end)| (start.max(from), end.unwrap_or(to).min(to)));
        cut.filter(|(start, end)| start < end).collect()
    }

    /// Number of faults that have begun, by fault.
    pub fn counts(&self) -> BTreeMap<Fault, usize> {
        let mut counts = BTreeMap::new();
        for ((_, fault), spans) in &self.spans {
            *counts.entry(*fault).or_default() += spans.len();
        }
        counts
    }

    /// Nodes with a fault now.
    pub fn faulty(&self) -> Vec<&str> {
        let lasting = self
            .spans
            .iter()
            .filter(|((_, fault), spans)| *fault != Fault::Gone && spans.last().is_some_and(|(_, end)| end.is_none()));
        lasting.map(|((node, _), _)| node.as_str()).collect()
    }
}

/// Seconds that these times cover together.
pub fn covered(mut times: Vec<(Timestamp, Timestamp)>) -> i64 {
    times.sort();
    let mut sum = 0;
    let mut until = Timestamp::MIN;
    for (start, end) in times {
        let start = start.max(until);
        if end > start {
            sum += end.duration_since(start).as_secs();
            until = end;
        }
    }
    sum
}
