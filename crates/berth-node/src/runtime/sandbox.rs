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

/// Time limit for a supervisor to stop its pod. After that it is killed.
const STOP_MAX: Duration = Duration::from_secs(20);

/// Interval of checks whether a supervisor has ended.
const STOP_POLL: Duration = Duration::from_millis(5);

/// True if this process may change the group of files.
pub(super) fn may_chown() -> bool {
    rustix::process::geteuid().is_root()
}

impl Node {
    /// Creates a pod's sandbox, or returns the existing one.
    pub(super) async fn run_sandbox(&self, config: &SandboxConfig) -> Result<Arc<Pod>> {
        let operation = self.operation(&config.uid);
        let _operation = operation.lock().await;
        let known = self.pods.lock().get(&config.uid).cloned();
        if let Some(pod) = known.filter(|pod| pod.state().is_ready && is_alive(&pod.folder)) {
            // A former call may have ended after the start and before the connection to the
            // network.
            self.connect(&pod).await?;
            return Ok(pod);
        }
        let folder = self.folder.pod(&config.uid)?;
        self.check(config)?;
        let mut ips = Vec::new();
        if !config.host_network
            && let Some(network) = &self.network
        {
            ips.push(network.allocate(&config.uid).await?.to_string());
        } else if self.found.isolation.level == Level::Plain {
            ips.push("127.0.0.1".to_owned());
        }
        let user_namespace = match &self.network {
            Some(network) if self.found.isolation.level == Level::Rootless && !config.host_network => {
                network.user_namespace()?
            }
            _ => None,
        };
        let launch = Launch { user_namespace: user_namespace.is_some(), ..self.launch(config, ips) };
        let pod = Pod::new(folder.clone(), launch.clone(), self.changes.clone());
        blocking(move || prepare(&folder, &launch)).await?;
        // The folder exists durably from now on, so the pod must be known even if a later step
        // fails.
        self.pods.lock().insert(config.uid.clone(), pod.clone());
        let child = match spawn(&self.options.helper, &pod.folder, user_namespace).await {
            Ok(child) => Some(child),
            // A supervisor that a former process started became ready after that process had ended.
            Err(_) if is_alive(&pod.folder) => None,
            Err(error) => return Err(error),
        };
        pod.follow(child).await;
        let connected = self.connect(&pod).await;
        if connected.is_err() {
            // No container may start without the network. The next attempt creates the sandbox
            // again.
            pod.set_unready();
        }
        connected.map(|()| pod)
    }

    /// The lock that allows only one operation at a time on the sandbox of a pod.
    fn operation(&self, uid: &PodUid) -> Arc<tokio::sync::Mutex<()>> {
        self.operations.lock().entry(uid.clone()).or_default().clone()
    }

    /// Rejects configurations that the isolation level does not support.
    fn check(&self, config: &SandboxConfig) -> Result<()> {
        let level = self.found.isolation.level;
        let unsupported = |what: &str| {
            Err(RuntimeError::Unsupported(format!(
                "{what} requires isolation level `full`; this node has level `{level}`"
            )))
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
            shared_network: self.network.as_ref().is_some_and(|network| network.is_shared()),
            user_namespace: false,
            level: self.found.isolation.level,
            group: self.found.hierarchies.as_ref().map(|hierarchies| hierarchies.pod(&config.uid.0)),
            init: self.options.helper.init(),
            hidden: self.hidden.clone(),
            host_root: self.found.host_root,
            pids_max: self.options.pids_max,
            machine_memory_bytes: isolation::machine_memory_bytes(),
        }
    }

    /// Follows the supervisor of a pod that a former process started. That process may have ended
    /// before it had connected the pod to the network, or the network may have ended with it.
    pub(super) async fn resume(&self, pod: &Arc<Pod>) {
        pod.follow(None).await;
        let is_new = self.network.as_ref().is_some_and(|network| network.is_new());
        if (is_new || pod.state().containers.is_empty())
            && let Err(error) = self.connect(pod).await
        {
            tracing::warn!(pod = %pod.uid(), %error, "cannot connect a pod to the network; the sandbox of the pod will be started again");
            pod.set_unready();
        }
    }

    /// Connects the pod's network namespace to the pod network.
    async fn connect(&self, pod: &Pod) -> Result<()> {
        let config = &pod.launch.config;
        if !pod.launch.has_network_namespace() || self.found.isolation.level == Level::Plain {
            return Ok(());
        }
        let Some(network) = &self.network else { return Ok(()) };
        let records = crate::journal::read(&pod.folder.journal());
        let records =
            records.map_err(|error| RuntimeError::Internal(format!("journal of pod {}: {error}", config.uid)))?;
        let process = crate::journal::supervisor(&records).filter(|process| process.is_alive());
        let process = process.ok_or_else(|| super::supervisor::gone(&pod.folder))?;
        network.connect(&config.uid, process.pid).await
    }

    /// Kills the remaining processes of a pod and removes its control groups. Its network is
    /// released in the background, because that waits for other pods that end. Later operations on
    /// the pod wait for it. If this process ends before that, the next one stops the sandbox again.
    pub(super) async fn stop_sandbox(self: &Arc<Self>, uid: &PodUid) -> Result<()> {
        let operation = self.operation(uid).lock_owned().await;
        self.end(uid).await;
        let (node, uid) = (self.clone(), uid.clone());
        tokio::spawn(async move {
            if let Err(error) = node.release(&uid).await {
                tracing::warn!(pod = %uid, %error, "cannot disconnect a pod from the network; this is repeated when the pod is removed");
            }
            drop(operation);
        });
        Ok(())
    }

    /// Ends the supervisor of a pod and everything that it started.
    async fn end(&self, uid: &PodUid) {
        let known = self.pods.lock().get(uid).cloned();
        let Some(pod) = known else { return };
        let stop = async {
            let _ = Connection::call(&pod.folder, &Request::Shutdown).await;
            while is_alive(&pod.folder) {
                tokio::time::sleep(STOP_POLL).await;
            }
        };
        if is_alive(&pod.folder) && tokio::time::timeout(STOP_MAX, stop).await.is_err() {
            tracing::error!(pod = %uid, "killing the supervisor of a pod, which does not respond");
            leftovers::kill_supervisor(&pod.folder);
        }
        pod.clean_up().await;
    }

    async fn release(&self, uid: &PodUid) -> Result<()> {
        match &self.network {
            Some(network) => network.release(uid).await,
            None => Ok(()),
        }
    }

    /// Removes a pod's folder.
    pub(super) async fn remove_sandbox(&self, uid: &PodUid) -> Result<()> {
        let folder = self.folder.pod(uid)?;
        let operation = self.operation(uid);
        let _operation = operation.lock().await;
        if self.pods.lock().contains_key(uid) {
            self.end(uid).await;
            self.release(uid).await?;
        }
        let was_known = self.pods.lock().remove(uid).is_some();
        let (node, removed) = (self.folder.clone(), uid.clone());
        blocking(move || {
            // A supervisor that a former process started may become ready late. It must not serve a
            // removed folder.
            let _lock = supervisor::lock(&folder)?;
            discard(&node, &folder, &removed);
            Ok(())
        })
        .await?;
        self.starts.removed(uid);
        self.operations.lock().remove(uid);
        if was_known {
            self.changes.notify(uid);
        }
        Ok(())
    }
}

/// Writes the pod's folder. A repeated call changes nothing but `pod.json`.
fn prepare(folder: &PodFolder, launch: &Launch) -> Result<()> {
    let failed = |error: io::Error| RuntimeError::Internal(format!("{}: {error}", folder.path().display()));
    for path in [folder.path().to_owned(), folder.volumes(), folder.logs(), folder.containers(), folder.etc()] {
        // At the plain level, containers that run as other users reach their volumes through these
        // folders.
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
    replace(&folder.launch(), &serde_json::to_vec(launch).map_err(|error| failed(error.into()))?).map_err(failed)
}

/// Replaces a file. If this process is killed, the file has either the old or the new content. A
/// crash of the machine may lose it: see [`launch_of`].
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = std::fs::File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    io::Write::write_all(&mut file, bytes)?;
    std::fs::rename(&temporary, path)
}

/// The launch configuration of a pod, from `pod.json` or else from the journal. `None` if nothing
/// of the pod has ever been started.
pub(super) fn launch_of(folder: &PodFolder) -> Option<Launch> {
    let written = std::fs::read(folder.launch()).ok();
    written.and_then(|bytes| serde_json::from_slice(&bytes).ok()).or_else(|| {
        let records = crate::journal::read(&folder.journal()).unwrap_or_default();
        crate::journal::launch(&records).cloned()
    })
}

/// Moves a pod's folder to the trash and removes it. If that fails, it is removed at the next
/// start.
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

/// Removes the folders that a former process left in the trash.
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
