//! The holder's process: its namespaces and its two threads.
//!
//! The main thread stays in the machine's network namespace and forwards traffic to other networks.
//! The other thread is in the pod network's namespace and serves clients.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use berth_helper::Lock;
use berth_helper::wire::{receive_blocking, send_blocking};
use nix::sched::{CloneFlags, unshare};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::{mpsc, oneshot};

use super::inside::{self, Inside};
use super::{LOCK, Reply, Start, outward};

/// Runs the holder of the network with this folder until it is no longer needed.
pub(crate) fn main(folder: &Path) -> ExitCode {
    berth_helper::close_inherited();
    let Ok(control) = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3) else {
        return ExitCode::FAILURE;
    };
    match run(&control, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The client that started this process may have ended.
            let _ = send_blocking(control.as_fd(), &Reply::Failed(error), &[]);
            ExitCode::FAILURE
        }
    }
}

fn run(control: &OwnedFd, folder: &Path) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    // The terminal of the client must not send signals to this process.
    let _ = rustix::process::setsid();
    raise_limit();
    let null = File::open("/dev/null").map_err(|error| failed("/dev/null", &error))?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| failed("/dev/null", &error))?;
    std::env::set_current_dir(folder).map_err(|error| failed("folder of the pod network", &error))?;
    let lock = Lock::take(Path::new(LOCK)).map_err(|error| failed("lock of the pod network", &error))?;
    let lock = lock.ok_or("another process holds the pod network of this folder")?;
    let received = receive_blocking::<Start>(control.as_fd()).map_err(|error| failed("first message", &error))?;
    let (start, namespaces) = received.ok_or("the client ended")?;
    let mut namespaces = namespaces.into_iter();
    let (user, network) = (namespaces.next(), namespaces.next());
    enter_user_namespace(user.as_ref()).map_err(|error| failed("user namespace", &error))?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("event loop", &error))?;
    let (listeners, received) = oneshot::channel();
    let (requests, sockets) = mpsc::channel(1);
    let control = control.try_clone().map_err(|error| failed("control socket", &error))?;
    let folder = folder.to_owned();
    let (done, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("inside".to_owned()).spawn(move || {
        let result = enter_network_namespace(network.as_ref())
            .map_err(|error| format!("network namespace: {error}"))
            .and_then(|()| inside::run(Inside { start, folder, control, lock, listeners, sockets }));
        let _ = done.send(());
        result
    });
    let thread = thread.map_err(|error| failed("thread", &error))?;
    runtime.block_on(async {
        let forward = async {
            // Without listeners, pods cannot reach other networks.
            if let Ok(listeners) = received.await {
                outward::serve(listeners, start, requests).await;
            }
            std::future::pending().await
        };
        tokio::select! {
            () = forward => {}
            _ = ended => {}
        }
    });
    thread.join().unwrap_or_else(|_| Err("the thread in the pod network panicked".to_owned()))
}

/// Raises the limit of open files: each connection to another network needs two.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Enters the user namespace of an earlier holder, or else a new one that contains only this user.
fn enter_user_namespace(known: Option<&OwnedFd>) -> std::io::Result<()> {
    if let Some(known) = known {
        return Ok(move_into_link_name_space(known.as_fd(), Some(LinkNameSpaceType::User))?);
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Moves this thread into the network namespace of an earlier holder, or else into a new one.
fn enter_network_namespace(known: Option<&OwnedFd>) -> std::io::Result<()> {
    match known {
        Some(known) => Ok(move_into_link_name_space(known.as_fd(), Some(LinkNameSpaceType::Network))?),
        None => Ok(unshare(CloneFlags::CLONE_NEWNET)?),
    }
}
