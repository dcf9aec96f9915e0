//! The last result of each check of each node, for metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::checks::Report;

/// Model names of a node, labels of its metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// Processor.
    pub cpu: String,
    /// GPU.
    pub gpu: String,
}

/// Results of one node.
#[derive(Clone, Debug, Default)]
pub struct OfNode {
    /// Model names.
    pub models: Models,
    /// The last result of each check, by name of the check.
    pub reports: BTreeMap<&'static str, Report>,
}

/// Results by node; clones share them.
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<BTreeMap<String, OfNode>>>);

impl Results {
    /// Stores results of a node.
    pub fn store(&self, node: &str, models: Models, reports: &[Report]) {
        let mut all = self.0.lock();
        let of_node = all.entry(node.to_owned()).or_default();
        of_node.models = models;
        of_node.reports.extend(reports.iter().map(|report| (report.check, report.clone())));
    }

    /// Forgets a node.
    pub fn forget(&self, node: &str) {
        self.0.lock().remove(node);
    }

    /// All results.
    pub fn all(&self) -> BTreeMap<String, OfNode> {
        self.0.lock().clone()
    }
}
