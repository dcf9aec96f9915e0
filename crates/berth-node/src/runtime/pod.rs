//! One pod of the runtime: its folder, its last known state, and the task that follows its
//! supervisor.

use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{ContainerId, ContainerState, ContainerStatus, PodState, PodUid};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::changes::Changes;
use super::supervisor::{Connection, is_alive};
use crate::folder::PodFolder;
use crate::journal;
use crate::protocol::{Launch, Reply, Request};

/// Pause before the next attempt to connect to a living supervisor.
const RECONNECT: Duration = Duration::from_millis(50);

/// A pod.
pub(super) struct Pod {
    pub folder: PodFolder,
    pub launch: Launch,
    state: watch::Sender<Arc<PodState>>,
    changes: Arc<Changes>,
    /// The supervisor, if this process started it.
    child: Mutex<Option<Child>>,
    follower: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.lock().take() {
            follower.abort();
        }
    }
}

impl Pod {
    /// A pod whose supervisor is not connected yet. Its state is read from the journal.
    pub fn new(folder: PodFolder, launch: Launch, changes: Arc<Changes>) -> Arc<Self> {
        let containers = journaled(&folder);
        let state = PodState {
            uid: launch.config.uid.clone(),
            namespace: launch.config.namespace.clone(),
            name: launch.config.name.clone(),
            ips: launch.ips.clone(),
            is_ready: false,
            created_at: launch.created_at,
            containers,
        };
        Arc::new(Self {
            folder,
            launch,
            state: watch::Sender::new(Arc::new(state)),
            changes,
            child: Mutex::default(),
            follower: Mutex::default(),
        })
    }

    pub fn uid(&self) -> &PodUid {
        &self.launch.config.uid
    }

    pub fn state(&self) -> Arc<PodState> {
        self.state.borrow().clone()
    }

    /// The state of a run; `None` if the run is unknown.
    pub fn container(&self, id: &ContainerId) -> Option<ContainerStatus> {
        self.state.borrow().containers.iter().find(|container| container.id == *id).cloned()
    }

    /// Waits until a run has ended.
    pub async fn container_ended(&self, id: &ContainerId) {
        let is_running = |state: &Arc<PodState>| {
            let found = state.containers.iter().find(|container| container.id == *id);
            found.is_some_and(|container| matches!(container.state, ContainerState::Running { .. }))
        };
        let _ = self.state.subscribe().wait_for(|state| !is_running(state)).await;
    }

    /// Records a state that a call returned, in case the follower has not received it yet.
    pub fn add(&self, status: &ContainerStatus) {
        if self.container(&status.id).is_none() {
            self.update(|state| state.containers.push(status.clone()));
        }
    }

    fn update(&self, change: impl FnOnce(&mut PodState)) {
        let is_changed = self.state.send_if_modified(|state| {
            let mut next = PodState::clone(state);
            change(&mut next);
            let is_changed = next != **state;
            *state = Arc::new(next);
            is_changed
        });
        if is_changed {
            self.changes.notify(self.uid());
        }
    }

    /// Starts to follow the supervisor. Returns once its current state is known.
    pub async fn follow(self: &Arc<Self>, child: Option<Child>) {
        *self.child.lock() = child;
        let (known, is_known) = tokio::sync::oneshot::channel();
        let follower = tokio::spawn(follow(Arc::downgrade(self), self.folder.clone(), known));
        if let Some(former) = self.follower.lock().replace(follower) {
            former.abort();
        }
        let _ = is_known.await;
    }

    /// Marks the sandbox as incomplete. No container can be started in it.
    pub fn set_unready(&self) {
        self.update(|state| state.is_ready = false);
    }

    /// If this process started the supervisor, waits for its end, so that it does not remain a
    /// zombie.
    pub async fn reap(&self) {
        let child = self.child.lock().take();
        if let Some(mut child) = child {
            let _ = tokio::task::spawn_blocking(move || child.wait()).await;
        }
    }

    /// Cleans up after the supervisor has ended: kills the processes that it left behind, and reads
    /// the final states from the journal.
    pub async fn clean_up(&self) {
        self.reap().await;
        let (folder, launch) = (self.folder.clone(), self.launch.clone());
        let _ = tokio::task::spawn_blocking(move || super::leftovers::kill(&folder, &launch)).await;
        let containers = journaled(&self.folder);
        self.update(|state| {
            state.is_ready = false;
            state.containers = containers;
        });
    }
}

/// The runs in the journal. If it cannot be read, there are none.
fn journaled(folder: &PodFolder) -> Vec<ContainerStatus> {
    let records = journal::read(&folder.journal()).unwrap_or_else(|error| {
        tracing::error!(journal = %folder.journal().display(), %error, "cannot read a pod's journal");
        Vec::new()
    });
    journal::runs(&records).into_iter().map(|run| run.status).collect()
}

/// Copies the supervisor's reports into the pod's state until the supervisor ends. The task holds
/// the pod only during a change, and ends when the pod is dropped.
async fn follow(pod: std::sync::Weak<Pod>, folder: PodFolder, known: tokio::sync::oneshot::Sender<()>) {
    let mut known = Some(known);
    loop {
        if let Ok(connection) = Connection::open(&folder, &Request::Watch, &[]).await {
            while let Some((Reply::Containers(containers), _)) = connection.next().await {
                let Some(pod) = pod.upgrade() else { return };
                pod.update(|state| {
                    state.is_ready = true;
                    state.containers = containers;
                });
                if let Some(known) = known.take() {
                    let _ = known.send(());
                }
            }
        }
        let alive = folder.clone();
        let is_alive = tokio::task::spawn_blocking(move || is_alive(&alive)).await.unwrap_or(false);
        let Some(pod) = pod.upgrade() else { return };
        if !is_alive {
            pod.clean_up().await;
            return;
        }
        drop(pod);
        tokio::time::sleep(RECONNECT).await;
    }
}
