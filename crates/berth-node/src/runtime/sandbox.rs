//! Creating, stopping and removing sandboxes.

use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{PodUid, Result, RuntimeError, SandboxConfig};

use super::pod::Pod;
use super::supervisor::{self, Connection, is_alive, spawn};
use super::{Node, blocking, etc, leftovers, tree};
use crate::folder::{NodeFolder, PodFolder};
use crate::isolation;
use crate::options::Level;
use crate::protocol::{Launch, Request};
use crate::time::now;
use crate::volumes;

/// How long a supervisor may take to stop its pod before it is killed.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Interval of checks for the end of a supervisor.
const STOP_POLL: Duration = Duration::from_millis(5);

/// Whether this process may give files to another group.
pub(super) fn may_chown() -> bool {
    rustix::process::geteuid().is_root()
}

impl Node {
    /// Creates a pod's sandbox, or returns the one it has.
    pub(super) async fn run_sandbox(&self, config: &SandboxConfig) -> Result<Arc<Pod>> {
        let operation = self.operation(&config.uid);
        let _operation = operation.lock().await;
        let known = self.pods.lock().get(&config.uid).cloned();
        if let Some(pod) = known.filter(|pod| pod.state().is_ready && is_alive(&pod.folder)) {
            // A former call may have ended between the start and the connection.
            self.connect(&pod).await?;
            return Ok(pod);
        }
        let folder = self.folder.pod(&config.uid)?;
        self.check(config)?;
        let mut ips = Vec::new();
        if !config.host_network
            && let Some(network) = &self.options.network
        {
            ips.push(network.allocate(&config.uid).await?.to_string());
        } else if self.found.isolation.level == Level::Plain {
            ips.push("127.0.0.1".to_owned());
        }
        let launch = self.launch(config, ips);
        let pod = Pod::new(folder.clone(), launch.clone(), self.changes.clone());
        blocking(move || prepare(&folder, &launch)).await?;
        // The folder exists durably from here: the pod is known, whatever fails.
        self.pods.lock().insert(config.uid.clone(), pod.clone());
        let child = match spawn(&self.options.helper, &pod.folder).await {
            Ok(child) => Some(child),
            // A supervisor that a former process started came up after it.
            Err(_) if is_alive(&pod.folder) => None,
            Err(error) => return Err(error),
        };
        pod.follow(child).await;
        let connected = self.connect(&pod).await;
        if connected.is_err() {
            // No container may start without the network. The next attempt begins afresh.
            pod.set_unready();
        }
        connected.map(|()| pod)
    }

    /// One operation on the sandbox of a pod at a time.
    fn operation(&self, uid: &PodUid) -> Arc<tokio::sync::Mutex<()>> {
        self.operations.lock().entry(uid.clone()).or_default().clone()
    }

    /// Refuses what the isolation level cannot do.
    fn check(&self, config: &SandboxConfig) -> Result<()> {
        let level = self.found.isolation.level;
        let unsupported = |what: &str| {
            Err(RuntimeError::Unsupported(format!("{what} needs the isolation level full; it is {level}")))
        };
        if level == Level::Plain && !config.sysctls.is_empty() {
            return unsupported("securityContext.sysctls");
        }
        if level != Level::Full && config.host_pid && level == Level::Rootless {
            return unsupported("hostPID");
        }
        if level == Level::Plain && config.share_process_namespace {
            return unsupported("shareProcessNamespace");
        }
        Ok(())
    }

    fn launch(&self, config: &SandboxConfig, ips: Vec<String>) -> Launch {
        Launch {
            config: config.clone(),
            created_at: now(),
            ips,
            level: self.found.isolation.level,
            group: self.found.hierarchies.as_ref().map(|hierarchies| hierarchies.pod(&config.uid.0)),
            init: isolation::init_command(&self.options),
            hidden: self.hidden.clone(),
            host_root: self.found.host_root,
            pids_max: self.options.pids_max,
            machine_memory_bytes: isolation::machine_memory_bytes(),
        }
    }

    /// Follows the supervisor of a pod that a former process started. That process may have ended
    /// before it had connected the pod to the network.
    pub(super) async fn resume(&self, pod: &Arc<Pod>) {
        pod.follow(None).await;
        if pod.state().containers.is_empty()
            && let Err(error) = self.connect(pod).await
        {
            tracing::warn!(pod = %pod.uid(), %error, "cannot connect a pod to the network: it is started again");
            pod.set_unready();
        }
    }

    /// Connects the pod's network namespace to the pod network.
    async fn connect(&self, pod: &Pod) -> Result<()> {
        let config = &pod.launch.config;
        if config.host_network || self.found.isolation.level == Level::Plain {
            return Ok(());
        }
        let Some(network) = &self.options.network else { return Ok(()) };
        let records = crate::journal::read(&pod.folder.journal());
        let records =
            records.map_err(|error| RuntimeError::Internal(format!("journal of pod {}: {error}", config.uid)))?;
        let process = crate::journal::supervisor(&records).filter(|process| process.is_alive());
        let process = process.ok_or_else(|| super::supervisor::gone(&pod.folder))?;
        network.connect(&config.uid, process.pid).await
    }

    /// Kills what is left of a pod and releases what it holds.
    pub(super) async fn stop_sandbox(&self, uid: &PodUid) -> Result<()> {
        let operation = self.operation(uid);
        let _operation = operation.lock().await;
        let known = self.pods.lock().get(uid).cloned();
        let Some(pod) = known else { return self.release(uid).await };
        let stop = async {
            let _ = Connection::ask(&pod.folder, &Request::Shutdown).await;
            while is_alive(&pod.folder) {
                tokio::time::sleep(STOP_POLL).await;
            }
        };
        if is_alive(&pod.folder) && tokio::time::timeout(STOP_MAX, stop).await.is_err() {
            tracing::error!(pod = %uid, "killing the supervisor of a pod, which does not answer");
            leftovers::kill_supervisor(&pod.folder);
        }
        pod.clean_up().await;
        self.release(uid).await
    }

    async fn release(&self, uid: &PodUid) -> Result<()> {
        match &self.options.network {
            Some(network) => network.release(uid).await,
            None => Ok(()),
        }
    }

    /// Removes a pod's folder.
    pub(super) async fn remove_sandbox(&self, uid: &PodUid) -> Result<()> {
        let folder = self.folder.pod(uid)?;
        if self.pods.lock().contains_key(uid) {
            self.stop_sandbox(uid).await?;
        }
        let operation = self.operation(uid);
        let _operation = operation.lock().await;
        self.pods.lock().remove(uid);
        let (node, removed) = (self.folder.clone(), uid.clone());
        blocking(move || {
            // A supervisor that a former process started late must not serve a removed folder.
            let _lock = supervisor::lock(&folder)?;
            discard(&node, &folder, &removed);
            Ok(())
        })
        .await?;
        self.operations.lock().remove(uid);
        self.changes.notify(uid);
        Ok(())
    }
}

/// Writes the pod's folder. Repeating it changes nothing but `pod.json`.
fn prepare(folder: &PodFolder, launch: &Launch) -> Result<()> {
    let failed = |error: io::Error| RuntimeError::Internal(format!("{}: {error}", folder.path().display()));
    for path in [folder.path().to_owned(), folder.volumes(), folder.logs(), folder.containers(), folder.etc()] {
        // At the plain level containers of other users reach their volumes through these folders.
        std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&path).map_err(failed)?;
    }
    volumes::create(folder, &launch.config, may_chown())?;
    let etc = folder.etc();
    let files = [
        ("hosts", etc::hosts(&launch.config, &launch.ips)),
        ("hostname", format!("{}\n", launch.config.hostname)),
        ("resolv.conf", etc::resolv_conf(launch.config.dns.as_ref())),
    ];
    for (name, text) in files {
        std::fs::write(etc.join(name), text).map_err(failed)?;
    }
    if let Some(group) = &launch.group {
        group.create().and_then(|()| group.limit(&launch.config.limits, Some(launch.pids_max))).map_err(failed)?;
    }
    write_durably(&folder.launch(), &serde_json::to_vec(launch).map_err(|error| failed(error.into()))?).map_err(failed)
}

/// Replaces a file so that a crash leaves the old or the new content.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = std::fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_data()?;
    // The names of new files become durable with the first record of a start, which is synced after.
    std::fs::rename(&temporary, path)
}

/// Moves a pod's folder away and removes it. What cannot be removed now is removed at the next start.
pub(super) fn discard(node: &NodeFolder, folder: &PodFolder, uid: &PodUid) {
    let trash = node.trash();
    for number in 0u32.. {
        let target = trash.join(format!("{uid}-{number}"));
        if target.exists() {
            continue;
        }
        match std::fs::rename(folder.path(), &target) {
            Ok(()) => return empty(&target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::error!(folder = %folder.path().display(), %error, "cannot remove the folder of a pod");
                return;
            }
        }
    }
}

/// Removes what a former process left in the trash.
pub(super) fn empty_trash(trash: &Path) {
    for entry in std::fs::read_dir(trash).into_iter().flatten().flatten() {
        empty(&entry.path());
    }
}

fn empty(folder: &Path) {
    if let Err(error) = tree::remove(folder) {
        tracing::warn!(folder = %folder.display(), %error, "cannot remove the folder of a former pod yet");
    }
}
