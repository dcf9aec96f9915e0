//! Starts entry helpers in a given PID namespace, and reaps processes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::rc::Rc;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open, wait};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use tokio::net::UnixStream;
use tokio::signal::unix::Signal;
use tokio::sync::oneshot;

use super::InitCommand;
use super::pod::Pod;

/// PID namespace of a new process.
pub(super) enum PidNamespace {
    /// The PID namespace of the supervisor.
    Inherited,
    /// A new PID namespace, whose first process is the new process.
    New,
    /// The PID namespace of the process with this handle.
    Of(OwnedFd),
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Exit code, or 128 plus the number of the signal that ended the process.
    pub code: i32,
    pub signal: Option<i32>,
}

impl From<WaitStatus> for Ended {
    fn from(status: WaitStatus) -> Self {
        let signal = status.terminating_signal();
        Self { code: status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0)), signal }
    }
}

/// A started entry helper.
pub(super) struct Helper {
    pub pid: u32,
    pub handle: OwnedFd,
    pub control: UnixStream,
    pub ended: oneshot::Receiver<Ended>,
}

/// The children of the supervisor for whose end a task waits.
#[derive(Default)]
pub(super) struct Children(RefCell<BTreeMap<u32, oneshot::Sender<Ended>>>);

impl Children {
    /// Starts an entry helper. The child cannot be reaped before it is registered, because both
    /// happen on this thread.
    pub fn start(&self, init: &InitCommand, namespace: PidNamespace) -> std::io::Result<Helper> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let control = UnixStream::from_std(own)?;
        let mut command = Command::new(&init.program);
        let (name, value) = berth_helper::ENVIRONMENT;
        command
            .args(&init.args)
            .env_clear()
            .env(name, value)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null());
        let pid = spawn(command, namespace)?;
        let (sender, ended) = oneshot::channel();
        self.0.borrow_mut().insert(pid, sender);
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let raw = raw.ok_or_else(|| std::io::Error::other("a process has no ID"))?;
        let handle = pidfd_open(raw, PidfdFlags::empty())?;
        Ok(Helper { pid, handle, control, ended })
    }
}

/// Starts a process on a thread of its own, which first enters the namespace and then ends.
fn spawn(mut command: Command, namespace: PidNamespace) -> std::io::Result<u32> {
    if matches!(namespace, PidNamespace::Inherited) {
        return Ok(command.spawn()?.id());
    }
    let thread = std::thread::Builder::new().spawn(move || {
        match namespace {
            PidNamespace::Inherited => {}
            PidNamespace::New => unshare(CloneFlags::CLONE_NEWPID)?,
            PidNamespace::Of(process) => {
                move_into_thread_name_spaces(rustix::fd::AsFd::as_fd(&process), ThreadNameSpaceType::PROCESS_ID)?;
            }
        }
        Ok(command.spawn()?.id())
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the starting thread panicked")))
}

/// Reaps children and adopted orphans as long as the supervisor runs.
pub(super) async fn reap(pod: Rc<Pod>, mut signal: Signal) {
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
            if let Some(sender) = pod.children.0.borrow_mut().remove(&pid) {
                let _ = sender.send(status.into());
            }
        }
        signal.recv().await;
    }
}
