//! Keeps the files of volumes equal to the objects from which they come, and tokens valid.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::start::{request_tokens, texts};
use super::worker::Worker;
use crate::kubelet::resolve::{is_refreshed, volume};

/// Delay before the next attempt to refresh files or tokens after a failure.
const RETRY: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

impl Worker {
    /// Writes the volumes whose content has changed. Returns when to check again.
    pub(super) async fn refresh(&mut self, pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<Timestamp> {
        let specs: Vec<_> =
            pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter(|it| is_refreshed(it)).collect();
        if specs.is_empty() {
            return None;
        }
        let retry = now.checked_add(RETRY).unwrap_or(Timestamp::MAX);
        let mut due = None;
        let mut tokens = std::mem::take(&mut self.memory.tokens);
        if let Err(error) = request_tokens(&self.node, pod, &mut tokens).await {
            tracing::debug!(pod = %self.uid, %error, "cannot refresh a service account token, retrying");
            due = Some(retry);
        }
        due = due.or_else(|| tokens.values().map(|token| token.refresh_at).min());
        self.memory.tokens = tokens;
        let allocatable = self.node.allocatable();
        let context = self.node.context(pod, status, &allocatable);
        let tokens = texts(&self.memory.tokens);
        let mut changed = Vec::new();
        for spec in specs {
            match volume(&context, spec, &tokens) {
                Ok(content) if self.memory.volumes.get(&spec.name) == Some(&content) => {}
                Ok(content) => changed.push((spec.name.clone(), content)),
                // The object was deleted. The files are kept.
                Err(error) => tracing::debug!(pod = %self.uid, volume = spec.name, %error, "cannot refresh a volume"),
            }
        }
        for (name, content) in changed {
            match self.node.runtime.update_files(&self.uid, &name, &content).await {
                Ok(()) => {
                    self.memory.volumes.insert(name, content);
                }
                Err(error) => {
                    tracing::warn!(pod = %self.uid, volume = name, %error, "cannot update a volume's files, retrying");
                    due = Some(due.map_or(retry, |due| due.min(retry)));
                }
            }
        }
        due
    }
}
