//! The state of a pod in its supervisor.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use berth_pod_runtime::{ContainerConfig, ContainerId, ContainerState, ContainerStatus, Limits};
use rustix::process::Signal;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, watch};

use super::InitCommand;
use super::output::Output;
use super::spawn::Children;
use crate::cgroup::Group;
use crate::folder::PodFolder;
use crate::journal::{Journal, Record, runs};
use crate::protocol::{Launch, Program, WireError};

/// Time limit for a shutdown to wait for the end of containers after SIGKILL.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);

/// Pause between attempts to write a record while the disk is full.
const RECORD_RETRY: Duration = Duration::from_secs(1);

/// A pod.
pub(super) struct Pod {
    pub folder: PodFolder,
    pub launch: Launch,
    pub init: InitCommand,
    pub children: Children,
    journal: RefCell<Journal>,
    /// Records that are not written yet because the disk is full.
    unwritten: RefCell<VecDeque<Record>>,
    containers: RefCell<Vec<Rc<Container>>>,
    changes: watch::Sender<u64>,
    /// Held during a start, because containers start one after another.
    pub starting: Mutex<()>,
    pub pause: RefCell<Option<Pause>>,
    is_stopping: Cell<bool>,
    is_stopped: watch::Sender<bool>,
    is_released: watch::Sender<bool>,
}

/// The first process of the PID namespace that the containers share.
pub(super) struct Pause {
    pub handle: OwnedFd,
    /// Connection to the process, which ends when the connection is closed.
    pub _control: UnixStream,
}

/// One run of a container.
pub(super) struct Container {
    status: RefCell<ContainerStatus>,
    /// Error of the start, if it failed.
    pub error: Option<WireError>,
    /// The running program; `None` once it has ended.
    live: RefCell<Option<Rc<Live>>>,
    ended: watch::Sender<Option<i32>>,
}

/// A running program.
pub(super) struct Live {
    pub config: ContainerConfig,
    pub pid: u32,
    pub handle: OwnedFd,
    pub group: Option<Group>,
    pub program: Program,
    pub output: Rc<Output>,
    /// The current limits. They may differ from those at the start.
    pub limits: Cell<Limits>,
    /// True if the supervisor's own memory watch killed it.
    pub is_over_limit: Cell<bool>,
}

impl Container {
    pub fn new(status: ContainerStatus, error: Option<WireError>, live: Option<Rc<Live>>) -> Self {
        let ended = match &status.state {
            ContainerState::Exited(exit) => Some(exit.exit_code),
            ContainerState::Running { .. } => None,
            ContainerState::Unknown { .. } => Some(137),
        };
        Self { status: RefCell::new(status), error, live: RefCell::new(live), ended: watch::Sender::new(ended) }
    }

    pub fn status(&self) -> ContainerStatus {
        self.status.borrow().clone()
    }

    pub fn live(&self) -> Option<Rc<Live>> {
        self.live.borrow().clone()
    }

    /// Waits for the end of the container and returns its exit code.
    pub async fn ended(&self) -> i32 {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(code) => code.unwrap_or(0),
            Err(_) => 137,
        }
    }
}

impl Pod {
    pub fn new(folder: PodFolder, launch: Launch, init: InitCommand, journal: Journal, records: &[Record]) -> Self {
        let past = runs(records).into_iter().map(|run| Rc::new(Container::new(run.status, run.error, None)));
        Self {
            folder,
            launch,
            init,
            children: Children::default(),
            journal: RefCell::new(journal),
            unwritten: RefCell::default(),
            containers: RefCell::new(past.collect()),
            changes: watch::Sender::new(0),
            starting: Mutex::new(()),
            pause: RefCell::new(None),
            is_stopping: Cell::new(false),
            is_stopped: watch::Sender::new(false),
            is_released: watch::Sender::new(false),
        }
    }

    /// Appends a record that must be written before the supervisor continues.
    pub fn record(&self, record: &Record) -> std::io::Result<()> {
        self.write_unwritten()?;
        self.journal.borrow_mut().append_unsynced(record)
    }

    /// Appends a record about a past event. If the disk is full, it is written later.
    pub fn record_later(self: &Rc<Self>, record: Record) {
        let is_first = self.unwritten.borrow().is_empty();
        self.unwritten.borrow_mut().push_back(record);
        if self.write_unwritten().is_ok() || !is_first {
            return;
        }
        let pod = self.clone();
        tokio::task::spawn_local(async move {
            while pod.write_unwritten().is_err() {
                tokio::time::sleep(RECORD_RETRY).await;
            }
        });
    }

    fn write_unwritten(&self) -> std::io::Result<()> {
        let mut unwritten = self.unwritten.borrow_mut();
        while let Some(record) = unwritten.front() {
            self.journal.borrow_mut().append_unsynced(record)?;
            unwritten.pop_front();
        }
        Ok(())
    }

    pub fn containers(&self) -> Vec<ContainerStatus> {
        self.containers.borrow().iter().map(|container| container.status()).collect()
    }

    pub fn find(&self, id: &ContainerId) -> Option<Rc<Container>> {
        self.containers.borrow().iter().find(|container| container.status.borrow().id == *id).cloned()
    }

    /// The running container with this name.
    pub fn live_by_name(&self, name: &str) -> Option<Rc<Live>> {
        let containers = self.containers.borrow();
        containers.iter().rev().find(|container| container.status.borrow().id.name == name)?.live()
    }

    pub fn all_live(&self) -> Vec<Rc<Live>> {
        self.containers.borrow().iter().filter_map(|container| container.live()).collect()
    }

    pub fn add(&self, container: Rc<Container>) {
        self.containers.borrow_mut().push(container);
        self.changed();
    }

    /// Sets the final state of a container.
    pub fn end(&self, container: &Container, state: ContainerState, code: i32) {
        container.status.borrow_mut().state = state;
        container.live.borrow_mut().take();
        container.ended.send_replace(Some(code));
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// Receives a notification whenever the state of a container changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }

    /// Waits until all processes of the pod have ended.
    pub async fn stopped(&self) {
        let mut stopped = self.is_stopped.subscribe();
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }

    /// Allows the supervisor of a stopped pod to end, because the response to the stop was sent.
    pub fn release(&self) {
        self.is_released.send_replace(true);
    }

    /// Waits until the supervisor is allowed to end.
    pub async fn released(&self) {
        let mut released = self.is_released.subscribe();
        let _ = released.wait_for(|released| *released).await;
    }

    /// Kills all processes of the pod. A repeated call waits for the same end.
    pub async fn shut_down(self: Rc<Self>) {
        if self.is_stopping.replace(true) {
            return self.stopped().await;
        }
        // A start in progress finishes first, so that its process is killed as well.
        let _starting = self.starting.lock().await;
        for live in self.all_live() {
            live.signal(Signal::KILL);
            tokio::task::spawn_local(super::kill::kill_all(live));
        }
        let containers = self.containers.borrow().clone();
        let ends = futures::future::join_all(containers.iter().map(|container| container.ended()));
        let _ = tokio::time::timeout(SHUTDOWN_MAX, ends).await;
        self.pause.borrow_mut().take();
        super::kill::kill_rest(&self).await;
        self.is_stopped.send_replace(true);
    }
}

impl Live {
    /// Signals the container's first process.
    pub fn signal(&self, signal: Signal) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, signal);
    }
}
