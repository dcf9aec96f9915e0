//! The cluster queue of each local queue, kept up to date with each change.

use std::collections::HashMap;
use std::sync::Arc;

use berth_runtime::{ObjectKey, Rows};

/// Cluster queues by namespace and name of local queues.
#[derive(Default)]
pub(super) struct Queues {
    version: u64,
    of: HashMap<String, HashMap<String, String>>,
}

impl Rows<String> for Queues {
    fn put(&mut self, key: &Arc<ObjectKey>, cluster_queue: String) {
        self.version += 1;
        self.of.entry(key.namespace.clone()).or_default().insert(key.name.clone(), cluster_queue);
    }

    fn take(&mut self, key: &Arc<ObjectKey>) {
        self.version += 1;
        if let Some(queues) = self.of.get_mut(&key.namespace) {
            queues.remove(&key.name);
        }
    }
}

impl Queues {
    /// A number that every change increases.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The cluster queue of a local queue; empty if there is no such local queue.
    pub(super) fn of(&self, namespace: &str, name: &str) -> &str {
        self.of.get(namespace).and_then(|queues| queues.get(name)).map_or("", String::as_str)
    }
}
