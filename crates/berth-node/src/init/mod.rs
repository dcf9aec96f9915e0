//! The entry helper of a container: sets up the view and the privileges of a program, and executes
//! it.
//!
//! The supervisor starts it as the first process of the container's PID namespace, with a control
//! socket as standard input. It receives an [`Entry`], prepares the container, sends
//! [`Report::Ready`], waits for [`Go`], and executes the program. The supervisor records the start
//! before it sends [`Go`].

mod confine;
mod devices;
mod exec;
mod mounts;
mod pause;
mod plain;
mod root;
mod seccomp;
mod secrets;
mod user;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use berth_helper::wire::{receive_blocking, send_blocking};
use nix::sched::{CloneFlags, unshare};
use rustix::process::DumpableBehavior;

use crate::cgroup::{Entrance, Group};
use crate::options::Level;
use crate::protocol::{ContainerEntry, Entry, ExecEntry, Go, Program, Report, WireError};

/// Result of a step of a start.
type Result<T> = std::result::Result<T, WireError>;

/// Runs the entry helper. Returns only if the program was not executed.
pub fn main() -> ExitCode {
    // A process of the pod must not read this process's memory or use its files through `/proc`.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let Ok(control) = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3) else {
        return ExitCode::FAILURE;
    };
    let (entry, fds) = match receive_blocking::<Entry>(control.as_fd()) {
        Ok(Some(message)) => message,
        // The supervisor has ended.
        Ok(None) => return ExitCode::FAILURE,
        Err(error) => return fail(&control, error.into()),
    };
    let failed = match entry {
        Entry::Container(entry) => start(&control, &entry, fds),
        Entry::Exec(entry) => enter(&control, &entry, fds),
        Entry::Pause(group) => return pause::run(&control, group.as_ref()),
    };
    match failed {
        Ok(never) => match never {},
        Err(error) => fail(&control, error),
    }
}

/// Moves this process into a control group.
fn join(group: Option<&Group>) -> Result<()> {
    group.map_or(Ok(()), Group::join).map_err(|error| internal("control group", error))
}

fn fail(control: &OwnedFd, error: WireError) -> ExitCode {
    let _ = send_blocking(control.as_fd(), &Report::Failed(error), &[]);
    ExitCode::FAILURE
}

/// Executes a container's program in this process.
fn start(control: &OwnedFd, entry: &ContainerEntry, fds: Vec<OwnedFd>) -> Result<std::convert::Infallible> {
    let is_isolated = entry.level != Level::Plain;
    let config = &entry.config;
    let terminal;
    let program = if is_isolated {
        let failed = |error| internal("control group", error);
        let entrance = entry.group.as_ref().map(Group::entrance).transpose().map_err(failed)?;
        unshare(CloneFlags::CLONE_NEWNS).map_err(|error| internal("unshare", error))?;
        let root = root::build(entry)?;
        terminal = if config.tty { Some(exec::open_terminal(&root.path.join("dev/ptmx"))?) } else { None };
        root.enter()?;
        // The folders of the root are Berth's. In the container's group, their pages in the file
        // cache would keep the kernel from freeing the group after the container has ended.
        entrance.map_or(Ok(()), Entrance::enter).map_err(failed)?;
        unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|error| internal("unshare", error))?;
        user::resolve(entry)?
    } else {
        join(entry.group.as_ref())?;
        let program = plain::prepare(entry)?;
        terminal = if config.tty { Some(exec::open_terminal(Path::new("/dev/ptmx"))?) } else { None };
        program
    };
    if is_isolated {
        make_working_dir(&program.working_dir)?;
    }
    let (command, env) = (user::argv(config), program.env.clone());
    let command = if is_isolated { command } else { plain::rewrite_all(entry, &command) };
    if command.is_empty() {
        let message = format!("image {}: neither the pod nor the image has a command", config.image.reference);
        return Err(WireError::Config(message));
    }
    ready(control, program.clone(), terminal.as_ref())?;
    // Opened before the privileges are given up, because the device belongs to root.
    exec::attach_streams(terminal, &fds)?;
    drop(fds);
    confine::limit_resources();
    confine::apply(&config.security, &program, is_isolated)?;
    Err(exec::run(&command, &env, &program.working_dir))
}

/// Executes a command in a running container.
fn enter(control: &OwnedFd, entry: &ExecEntry, mut fds: Vec<OwnedFd>) -> Result<std::convert::Infallible> {
    join(entry.group.as_ref())?;
    if entry.isolated {
        if fds.is_empty() {
            return Err(WireError::Internal("the message lacks the container's process handle".to_owned()));
        }
        let process = fds.remove(0);
        exec::join(&process)?;
    }
    let terminal = if entry.tty { Some(exec::open_terminal(Path::new("/dev/ptmx"))?) } else { None };
    ready(control, entry.program.clone(), terminal.as_ref())?;
    exec::attach_streams(terminal, &fds)?;
    drop(fds);
    confine::limit_resources();
    confine::apply(&entry.security, &entry.program, entry.isolated)?;
    Err(exec::run(&entry.command, &entry.program.env, &entry.program.working_dir))
}

/// Reports that the program is ready to be executed, and waits until its start is recorded.
fn ready(control: &OwnedFd, program: Program, terminal: Option<&exec::Terminal>) -> Result<()> {
    let fds: Vec<BorrowedFd<'_>> = terminal.iter().map(|terminal| terminal.master.as_fd()).collect();
    send_blocking(control.as_fd(), &Report::Ready(program), &fds)?;
    match receive_blocking::<Go>(control.as_fd())? {
        Some(_) => Ok(()),
        None => Err(WireError::Internal("the supervisor ended before the start was recorded".to_owned())),
    }
}

fn make_working_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path)
        .map_err(|error| WireError::Config(format!("working directory {}: {error}", path.display())))
}

/// Wraps an error of the operating system with the attempted operation.
fn internal(what: &str, error: impl Into<io::Error>) -> WireError {
    WireError::Internal(format!("{what}: {}", error.into()))
}

/// Like [`internal`], for an operation on a path.
fn at(what: &str, path: impl AsRef<Path>, error: impl Into<io::Error>) -> WireError {
    WireError::Internal(format!("{what} {}: {}", path.as_ref().display(), error.into()))
}

/// Path in `/proc` that refers to an open file, for use as source or target of a mount.
fn fd_path(fd: impl AsFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Creates an empty file if it does not exist.
fn touch(path: &Path, mode: u32) -> Result<()> {
    let opened = std::fs::File::options().create(true).append(true).mode(mode).open(path);
    opened.map(drop).map_err(|error| at("create", path, error))
}

#[cfg(test)]
mod tests {
    use berth_pod_runtime::{ContainerConfig, ContainerId, PodUid};

    /// An empty container configuration.
    pub(super) fn config() -> ContainerConfig {
        let id = ContainerId { pod: PodUid("p".to_owned()), name: "main".to_owned(), attempt: 0 };
        ContainerConfig::new(id, Vec::new())
    }
}
