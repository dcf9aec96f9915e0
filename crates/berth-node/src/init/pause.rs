//! The first process of a PID namespace that the containers of a pod share. It reaps orphans. A
//! container cannot reach files of the host through it.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use berth_helper::wire::{receive_blocking, send_blocking};
use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

use super::{Result, confine, internal, root};
use crate::cgroup::Group;
use crate::protocol::{Go, Program, Report};

/// Interval at which orphans are reaped.
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// Runs until the supervisor ends or the namespace is killed.
pub(super) fn run(control: &OwnedFd, group: Option<&Group>) -> ExitCode {
    if let Err(error) = super::join(group).and_then(|()| enter_empty_root()) {
        return super::fail(control, error);
    }
    let nothing =
        Program { uid: 0, gid: 0, groups: Vec::new(), env: Vec::new(), working_dir: "/".into(), landlock: None };
    if send_blocking(control.as_fd(), &Report::Ready(nothing), &[]).is_err() {
        return ExitCode::FAILURE;
    }
    if !matches!(receive_blocking::<Go>(control.as_fd()), Ok(Some(_))) {
        return ExitCode::FAILURE;
    }
    let _ = rustix::process::setsid();
    loop {
        // The supervisor sends nothing more. When it ends, the connection closes and the namespace
        // ends.
        let mut connection = [PollFd::new(control, PollFlags::IN)];
        match poll(&mut connection, Some(&REAP_INTERVAL)) {
            Ok(0) | Err(Errno::INTR) => while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {},
            _ => return ExitCode::SUCCESS,
        }
    }
}

/// Changes to an empty root. A process of the pod that opens `/proc/1/root` sees an empty folder.
fn enter_empty_root() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| internal("unshare", error))?;
    root::enter_empty()?;
    confine::drop_all_capabilities()
}
