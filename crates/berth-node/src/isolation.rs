//! Determines the isolation levels that work on this machine, by running a container at each level.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_pod_runtime::{ContainerConfig, ContainerId, PodUid, Result, RuntimeError, SandboxConfig};

use crate::cgroup::Hierarchies;
use crate::folder::PodFolder;
use crate::options::{Isolation, Level, Options};
use crate::protocol::{HostRoot, Launch, Reply, Request};
use crate::runtime::supervisor::{Connection, lock, spawn};
use crate::time::now;
use crate::tree;

/// Results of the probe.
pub(crate) struct Found {
    pub isolation: Isolation,
    pub host_root: HostRoot,
    pub hierarchies: Option<Hierarchies>,
}

/// Files of the host that contain secrets. They are hidden from containers that run on the host's
/// files.
const SECRETS: [&str; 5] = ["/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers.d"];

/// Files and folders in users' homes that contain secrets.
const HOME_SECRETS: [&str; 10] = [
    ".ssh",
    ".gnupg",
    ".kube",
    ".docker",
    ".aws",
    ".azure",
    ".netrc",
    ".git-credentials",
    ".config/gcloud",
    ".local/share/berth",
];

/// Maximum number of homes whose secrets are hidden. Each of them adds mounts to every container.
const HOMES_MAX: usize = 64;

/// Prefix of the name of a probe's folder; the ID of the probing process follows.
const PROBE: &str = "probe-";

/// Attempts to end a probe of a process that was killed, and the time limit of each attempt.
const PROBE_END_ATTEMPTS: u32 = 5;
const PROBE_END_MAX: Duration = Duration::from_secs(2);

/// Finds the highest level that works, or checks the requested one.
pub(crate) async fn probe(options: &Options) -> Result<Found> {
    end_former_probes(options).await;
    let is_root = rustix::process::geteuid().is_root();
    let mut reasons = Vec::new();
    let candidates = match options.level {
        Some(level) => vec![level],
        None if is_root => vec![Level::Full, Level::Rootless, Level::Plain],
        None => {
            reasons.push("isolation level `full` requires root".to_owned());
            vec![Level::Rootless, Level::Plain]
        }
    };
    for level in candidates {
        if level == Level::Full && !is_root {
            return Err(RuntimeError::Unsupported("isolation level `full` requires root".to_owned()));
        }
        match find_root(options, level).await {
            Ok((host_root, notice)) => {
                reasons.extend(notice);
                let hierarchies = Hierarchies::detect().map_err(|reason| {
                    reasons
                        .push(format!("{reason}, so Berth watches memory itself and limits neither CPU nor processes"));
                });
                let isolation = Isolation { level, reasons };
                return Ok(Found { isolation, host_root, hierarchies: hierarchies.ok() });
            }
            Err(reason) if options.level.is_some() || level == Level::Plain => {
                let message = format!("the isolation level {level} does not work on this machine: {reason}");
                return Err(RuntimeError::Unsupported(message));
            }
            Err(reason) => reasons.push(format!("the level {level} does not work: {reason}")),
        }
    }
    Err(RuntimeError::Unsupported("no isolation level works on this machine".to_owned()))
}

/// Finds the best way to use the host's files as a container's root file system at this level. Also
/// returns a message about the limitation if a less capable way has to be used.
async fn find_root(options: &Options, level: Level) -> std::result::Result<(HostRoot, Option<String>), String> {
    if level == Level::Plain {
        try_level(options, level, HostRoot::Binds).await?;
        return Ok((HostRoot::Binds, shared_memory_notice(&hidden(options))));
    }
    let first = match try_level(options, level, HostRoot::Overlay).await {
        Ok(()) => return Ok((HostRoot::Overlay, None)),
        Err(reason) => reason,
    };
    if try_level(options, level, HostRoot::MemoryOverlay).await.is_ok() {
        let notice = format!("files that containers write outside of volumes are kept in memory: {first}");
        return Ok((HostRoot::MemoryOverlay, Some(notice)));
    }
    try_level(options, level, HostRoot::Binds).await?;
    let notice = format!("containers see the host's files read-only, except /tmp, /var/tmp and /run: {first}");
    Ok((HostRoot::Binds, Some(notice)))
}

/// The message that pods cannot create files in the host's shared memory, if Berth's own files are
/// there. Landlock only supports allowed paths, so the folder around hidden files cannot be
/// allowed.
fn shared_memory_notice(hidden: &[PathBuf]) -> Option<String> {
    const SHARED_MEMORY: &str = "/dev/shm";
    let folder = hidden.iter().find(|folder| folder.starts_with(SHARED_MEMORY))?;
    Some(format!(
        "containers cannot create files in {SHARED_MEMORY}, because Berth's own files are in {}; choose another folder with --data-dir",
        folder.display()
    ))
}

/// Ends the probes of processes that were killed while they probed, and removes their folders. The
/// caller holds the lock of the node's folder, so none of the probes is in use.
async fn end_former_probes(options: &Options) {
    let entries = std::fs::read_dir(&options.folder).into_iter().flatten().flatten();
    let probes = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(PROBE)));
    for folder in probes.map(|entry| PodFolder(entry.path())) {
        let mut ended = Ok(());
        // A supervisor that is still starting will soon serve its socket or fail because its folder
        // is gone.
        for _ in 0..PROBE_END_ATTEMPTS {
            let _ = tokio::time::timeout(PROBE_END_MAX, Connection::call(&folder, &Request::Shutdown)).await;
            let removed = folder.clone();
            let removed = tokio::task::spawn_blocking(move || {
                let _lock = lock(&removed).map_err(|error| error.to_string())?;
                tree::remove(removed.path()).map_err(|error| error.to_string())
            });
            ended = removed.await.unwrap_or_else(|error| Err(error.to_string()));
            if ended.is_ok() {
                break;
            }
        }
        if let Err(error) = ended {
            tracing::warn!(folder = %folder.path().display(), %error, "cannot remove the folder of an earlier isolation probe");
        }
    }
}

/// Runs a container at a level.
async fn try_level(options: &Options, level: Level, host_root: HostRoot) -> std::result::Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let uid = PodUid(format!("{PROBE}{}", std::process::id()));
    let folder = PodFolder(options.folder.join(&uid.0));
    tree::remove(folder.path()).map_err(|error| text(&error))?;
    for path in [folder.logs(), folder.containers(), folder.volumes(), folder.etc()] {
        std::fs::create_dir_all(path).map_err(|error| text(&error))?;
    }
    let launch = Launch {
        config: SandboxConfig::new(uid.clone(), "berth", "probe"),
        created_at: now(),
        ips: Vec::new(),
        shared_network: false,
        user_namespace: false,
        level,
        group: None,
        init: options.helper.init(),
        hidden: Vec::new(),
        host_root,
        pids_max: options.pids_max,
        machine_memory_bytes: machine_memory_bytes(),
    };
    let result = run_probe(options, &folder, &launch).await;
    let _ = tree::remove(folder.path());
    result
}

async fn run_probe(options: &Options, folder: &PodFolder, launch: &Launch) -> std::result::Result<(), String> {
    let json = serde_json::to_vec(launch).map_err(|error| error.to_string())?;
    std::fs::write(folder.launch(), json).map_err(|error| error.to_string())?;
    let mut child = spawn(&options.helper, folder, None).await.map_err(|error| error.to_string())?;
    let id = ContainerId { pod: launch.config.uid.clone(), name: "probe".to_owned(), attempt: 0 };
    let config = ContainerConfig::new(id, vec!["true".to_owned()]);
    let started = Connection::call(folder, &Request::Start(Box::new(config))).await;
    let _ = Connection::call(folder, &Request::Shutdown).await;
    let _ = tokio::task::spawn_blocking(move || child.wait()).await;
    match started {
        Ok(Reply::Error(crate::protocol::WireError::Start { exit_code: 127, .. })) | Ok(Reply::Container(_)) => Ok(()),
        Ok(Reply::Error(error)) => Err(error.to_string()),
        Ok(_) => Err("the supervisor sent an unexpected response to the start of a container".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Memory of the machine in bytes.
pub(crate) fn machine_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit).saturating_mul(info.totalram)
}

/// Folders and files that are hidden from containers: Berth's own and the host's secrets.
pub(crate) fn hidden(options: &Options) -> Vec<PathBuf> {
    let homes = std::fs::read_dir("/home").into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = homes.take(HOMES_MAX).chain([PathBuf::from("/root")]);
    let secrets = SECRETS.iter().map(PathBuf::from).chain(host_keys());
    let secrets = secrets.chain(homes.flat_map(|home| HOME_SECRETS.map(|name| home.join(name))));
    let own = options.hidden.iter().chain([&options.folder]).filter_map(|path| std::fs::canonicalize(path).ok());
    own.chain(secrets.filter(|path| path.exists())).collect()
}

/// Private keys of the host's SSH server.
fn host_keys() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(Path::new("/etc/ssh")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_str().is_some_and(|path| path.ends_with("_key"))).collect()
}
