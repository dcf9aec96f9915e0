//! Stops a container: its preStop hook, then its stop signal, then SIGKILL.

use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{ContainerId, RuntimeError};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodStatus};

use super::hooks::run_hook;
use super::node::Node;
use crate::kubelet::lifecycle::PodEvent;

/// Minimum time between a container's stop signal and SIGKILL, even if its preStop hook used up the
/// grace period.
const GRACE_MIN: Duration = Duration::from_secs(2);

/// Input of a stop.
pub struct StopJob {
    /// The node.
    pub node: Arc<Node>,
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its status, with its addresses.
    pub status: PodStatus,
    /// The container.
    pub container: Container,
    /// The run.
    pub id: ContainerId,
    /// Time between now and SIGKILL.
    pub grace: Duration,
    /// Skip the preStop hook, because it ran before.
    pub skip_hook: bool,
}

impl StopJob {
    /// Stops the container. Returns an error if the runtime could not be reached.
    pub async fn run(self) -> Result<(), RuntimeError> {
        let started = self.node.clock.now();
        let hook = self.container.lifecycle.as_ref().and_then(|it| it.pre_stop.as_ref()).filter(|_| !self.skip_hook);
        let mut left = self.grace;
        if let Some(hook) = hook.filter(|_| !self.grace.is_zero()) {
            self.hook(hook).await;
            let used = Duration::try_from(self.node.clock.now().duration_since(started)).unwrap_or_default();
            left = self.grace.saturating_sub(used).max(GRACE_MIN);
        }
        match self.node.runtime.stop_container(&self.id, left).await {
            Err(RuntimeError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    async fn hook(&self, hook: &LifecycleHandler) {
        let run = run_hook(&self.node, &self.status, &self.container, &self.id, hook);
        let result = tokio::select! {
            result = run => result,
            () = self.node.clock.sleep(self.grace) => {
                Err(format!("the hook ran longer than the grace period of {} s", self.grace.as_secs()))
            }
        };
        if let Err(error) = result {
            let message = format!("PreStopHook failed: {error}");
            self.node.record(&self.pod, &PodEvent::warning("FailedPreStopHook", message).about(&self.container.name));
        }
    }
}
