//! The supervisor of a pod: a process that starts the pod's containers, keeps their logs and
//! records how they end.
//!
//! It runs in a session of its own. It does not depend on the process that started it and continues
//! when that process ends. It is the parent of the containers' programs and adopts their orphans.
//! It receives commands over a socket in the pod's folder ([`crate::protocol`]).
//!
//! It runs on one thread, so that its state needs no locks. Additional threads only enter a PID
//! namespace to start one process there.

mod container;
mod exec;
mod kill;
mod limits;
mod output;
mod pod;
mod serve;
mod setup;
mod spawn;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use berth_pod_runtime::SandboxConfig;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::folder::PodFolder;
use crate::journal::{Journal, Record};
use crate::processes::ProcessId;
use crate::protocol::Launch;
use crate::time::now;

/// Name of the socket in the pod's folder.
pub(crate) const SOCKET: &str = "socket";

/// Line that the supervisor writes to its standard output when it accepts commands. Any other line
/// is the error because of which it ends.
pub(crate) const READY: &str = "ready";

/// Serves the pod of a folder until the pod is stopped.
pub fn main(folder: &Path) -> ExitCode {
    berth_helper::close_inherited();
    match run(folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The process that started this one reads the line. The log keeps it for later.
            let _ = writeln!(std::io::stdout(), "{error}");
            eprintln!("{} supervisor of {}: {error}", now(), folder.display());
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    // The terminal of the process that started this one must not send signals to it.
    let _ = rustix::process::setsid();
    let path = std::fs::canonicalize(folder).map_err(|error| failed("pod's folder", &error))?;
    let folder = PodFolder(path);
    std::env::set_current_dir(folder.path()).map_err(|error| failed("pod's folder", &error))?;
    let launch = std::fs::read(folder.launch()).map_err(|error| failed("pod.json", &error))?;
    let launch: Launch = serde_json::from_slice(&launch).map_err(|error| failed("pod.json", &error))?;
    let lock = berth_helper::Lock::take(&folder.lock()).map_err(|error| failed("lock", &error))?;
    let lock = lock.ok_or("another supervisor serves the pod")?;
    if !lock.is_at(&folder.lock()) {
        return Err("the pod was removed".to_owned());
    }
    let init = setup::prepare(&folder, &launch)?;
    let mut journal = Journal::open(&folder.journal()).map_err(|error| failed("journal", &error))?;
    let records = crate::journal::read(&folder.journal()).map_err(|error| failed("journal", &error))?;
    let process = ProcessId::of(setup::host_pid()).ok_or("this process is not in /proc")?;
    journal.append_unsynced(&Record::Supervisor { process, at: now() }).map_err(|error| failed("journal", &error))?;
    // The contents of volumes are large and may be secret. A new sandbox gets them from the API.
    let config = SandboxConfig { volumes: BTreeMap::new(), ..launch.config.clone() };
    let recorded = Record::Launch { launch: Box::new(Launch { config, ..launch.clone() }) };
    journal.append_unsynced(&recorded).map_err(|error| failed("journal", &error))?;
    let pod = Rc::new(pod::Pod::new(folder, launch, init, journal, &records));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("runtime", &error))?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, serve(pod));
    drop(lock);
    // Threads that wait for a process in an uninterruptible state must not delay the end of this
    // one.
    runtime.shutdown_background();
    result
}

async fn serve(pod: Rc<pod::Pod>) -> Result<(), String> {
    let _ = std::fs::remove_file(SOCKET);
    // The path is relative, because the path of a socket is limited to 107 bytes.
    let listener = UnixListener::bind(SOCKET).map_err(|error| format!("socket: {error}"))?;
    let children = signal(SignalKind::child()).map_err(|error| format!("signals: {error}"))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| format!("signals: {error}"))?;
    tokio::task::spawn_local(spawn::reap(pod.clone(), children));
    tokio::task::spawn_local(kill::watch_memory(pod.clone()));
    // The process that started this one may have been killed in the meantime.
    let _ = writeln!(std::io::stdout(), "{READY}");
    let null = std::fs::File::options().write(true).open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdout(null.as_fd()).map_err(|error| format!("/dev/null: {error}"))?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tokio::task::spawn_local(serve::connection(pod.clone(), stream));
                }
                // No descriptor is available. Commands that end release theirs.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            },
            _ = terminate.recv() => {
                pod.clone().shut_down().await;
                pod.release();
            }
            () = pod.released() => {
                let _ = std::fs::remove_file(SOCKET);
                return Ok(());
            }
        }
    }
}

/// Executable and arguments with which the supervisor starts the entry helper.
pub(crate) struct InitCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
}
