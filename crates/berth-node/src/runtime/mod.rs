//! The process runtime: the pods of a node's folder, each served by its supervisor.

mod changes;
mod etc;
mod leftovers;
mod logs;
mod pod;
mod sandbox;
mod starts;
mod stats;
mod streams;
pub(crate) mod supervisor;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerStatus, Duplex, ExecOutput, ExitStatus, Image, ImageRequest, LogQuery,
    LogStream, PodDisk, PodLimits, PodRuntime, PodState, PodStats, PodUid, Result, RuntimeError, SandboxConfig,
    SandboxNetwork, StreamIo, Volume,
};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use tokio::net::TcpStream;

use crate::folder::NodeFolder;
use crate::isolation::{self, Found};
use crate::options::{Isolation, Options};
use crate::protocol::{Reply, Request};
use crate::tree;
use changes::Changes;
use pod::Pod;
use supervisor::{Connection, is_alive};

/// Maximum number of attempts to take the lock of the node's folder.
const LOCK_ATTEMPTS: u32 = 50;

/// Pause between attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Runs the pods of one node as processes of this machine.
pub struct ProcessRuntime(Arc<Node>);

/// The state that all calls of the runtime share.
struct Node {
    options: Options,
    network: Option<Arc<dyn SandboxNetwork>>,
    folder: NodeFolder,
    found: Found,
    hidden: Vec<std::path::PathBuf>,
    changes: Arc<Changes>,
    starts: starts::Starts,
    pods: Mutex<BTreeMap<PodUid, Arc<Pod>>>,
    /// One lock per pod. Creations, stops and removals of its sandbox run one after another.
    operations: Mutex<BTreeMap<PodUid, Arc<tokio::sync::Mutex<()>>>>,
    /// The lock of the folder. While it is held, no other process uses the folder.
    _lock: File,
}

impl ProcessRuntime {
    /// Prepares and opens a node's folder; see [`Prepared`].
    ///
    /// # Errors
    /// As of [`ProcessRuntime::prepare`] and [`Prepared::open`].
    pub async fn open(options: Options, network: Option<Arc<dyn SandboxNetwork>>) -> Result<(Self, Isolation)> {
        let prepared = Self::prepare(options).await?;
        let isolation = prepared.isolation().clone();
        Ok((prepared.open(network).await?, isolation))
    }

    /// Locks the node's folder and determines the isolation level.
    ///
    /// # Errors
    /// Another process uses the folder, the folder cannot be written, or the requested isolation
    /// level does not work on this machine.
    pub async fn prepare(options: Options) -> Result<Prepared> {
        let failed = |error: std::io::Error| RuntimeError::Internal(format!("{}: {error}", options.folder.display()));
        std::fs::create_dir_all(&options.folder).map_err(failed)?;
        let path = std::fs::canonicalize(&options.folder).map_err(failed)?;
        let folder = NodeFolder(path);
        for path in [folder.pods(), folder.trash()] {
            std::fs::create_dir_all(&path).map_err(failed)?;
        }
        tree::spread(&folder.pods());
        let _ = std::fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o711));
        let lock = File::options().create(true).append(true).open(folder.lock()).map_err(failed)?;
        take_lock(&lock, &folder).await?;
        let options = Options { folder: folder.0.clone(), ..options };
        let found = isolation::probe(&options).await?;
        Ok(Prepared { options, folder, found, lock })
    }
}

/// A node's folder, locked by this process, and the isolation level of its pods. The pod network
/// depends on that level.
pub struct Prepared {
    options: Options,
    folder: NodeFolder,
    found: Found,
    lock: File,
}

impl Prepared {
    /// The isolation of pods.
    pub fn isolation(&self) -> &Isolation {
        &self.found.isolation
    }

    /// Adopts the pods that a former process started. Without a network, pods have only a loopback
    /// interface.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub async fn open(self, network: Option<Arc<dyn SandboxNetwork>>) -> Result<ProcessRuntime> {
        let log = self.folder.clone();
        let starts = blocking(move || starts::open(&log)).await?;
        let node = Arc::new(Node {
            starts,
            hidden: isolation::hidden(&self.options),
            options: self.options,
            network,
            folder: self.folder,
            found: self.found,
            changes: Arc::default(),
            pods: Mutex::default(),
            operations: Mutex::default(),
            _lock: self.lock,
        });
        node.adopt().await?;
        Ok(ProcessRuntime(node))
    }
}

/// Takes the lock of the node's folder. A child of the former process may still hold it for a
/// moment, until it executes its program.
async fn take_lock(lock: &File, folder: &NodeFolder) -> Result<()> {
    for _ in 0..LOCK_ATTEMPTS {
        if rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(());
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    let message = format!("{}: another process runs the pods of this folder", folder.0.display());
    Err(RuntimeError::Internal(message))
}

impl Node {
    /// Adopts the pods in the folder.
    async fn adopt(self: &Arc<Self>) -> Result<()> {
        let trash = self.folder.trash();
        let entries = std::fs::read_dir(self.folder.pods())
            .map_err(|error| RuntimeError::Internal(format!("{}: {error}", self.folder.pods().display())))?;
        let mut adopted = Vec::new();
        for entry in entries.flatten() {
            let Some(uid) = entry.file_name().to_str().map(|name| PodUid(name.to_owned())) else { continue };
            let Ok(folder) = self.folder.pod(&uid) else { continue };
            let Some(launch) = sandbox::launch_of(&folder) else {
                // The former process ended before it had started anything.
                tracing::warn!(pod = %uid, "removing the folder of a pod that was never started");
                if let Some(hierarchies) = &self.found.hierarchies
                    && let Err(error) = hierarchies.pod(&uid.0).remove()
                {
                    tracing::error!(pod = %uid, %error, "cannot remove the control group of a pod");
                }
                sandbox::discard(&self.folder, &folder, &uid);
                continue;
            };
            let pod = Pod::new(folder, launch, self.changes.clone());
            self.pods.lock().insert(uid, pod.clone());
            let node = self.clone();
            adopted.push(async move {
                if is_alive(&pod.folder) {
                    node.resume(&pod).await;
                } else {
                    pod.clean_up().await;
                }
            });
        }
        futures::future::join_all(adopted).await;
        let _ = tokio::task::spawn_blocking(move || sandbox::empty_trash(&trash)).await;
        Ok(())
    }

    fn find(&self, uid: &PodUid) -> Result<Arc<Pod>> {
        let found = self.pods.lock().get(uid).cloned();
        found.ok_or_else(|| RuntimeError::NotFound(format!("pod {uid} has no sandbox")))
    }

    async fn start(&self, config: &ContainerConfig) -> Result<ContainerStatus> {
        let pod = self.find(&config.id.pod)?;
        if pod.container(&config.id).is_none() {
            self.starts.record(&pod.launch, config).await?;
        }
        let request = Request::Start(Box::new(config.clone()));
        match Connection::call(&pod.folder, &request).await? {
            Reply::Container(status) => {
                pod.add(&status);
                Ok(status)
            }
            Reply::Error(error) => {
                self.starts.not_started(&config.id);
                Err(error.into())
            }
            _ => Err(unexpected()),
        }
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<()> {
        let pod = self.find(&id.pod)?;
        if !pod.state().is_ready {
            // No process of the pod runs.
            return Ok(());
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        match Connection::call(&pod.folder, &Request::Stop { id: id.clone(), grace_ms }).await? {
            Reply::Done => Ok(()),
            Reply::Error(error) => Err(error.into()),
            _ => Err(unexpected()),
        }
    }

    async fn update_limits(&self, uid: &PodUid, limits: &PodLimits) -> Result<()> {
        let pod = self.find(uid)?;
        match Connection::call(&pod.folder, &Request::Limit(Box::new(limits.clone()))).await? {
            Reply::Done => Ok(()),
            Reply::Error(error) => Err(error.into()),
            _ => Err(unexpected()),
        }
    }

    async fn update_files(&self, uid: &PodUid, name: &str, volume: &Volume) -> Result<()> {
        let pod = self.find(uid)?;
        let Volume::Files { files } = volume.clone() else {
            return Err(RuntimeError::Config(format!(
                "volume {name}: only a volume with given file contents (such as configMap or secret) can be updated"
            )));
        };
        if !matches!(pod.launch.config.volumes.get(name), Some(Volume::Files { .. })) {
            return Err(RuntimeError::NotFound(format!(
                "pod {uid} has no volume {name} with given file contents (such as configMap or secret)"
            )));
        }
        let group = pod.launch.config.fs_group.filter(|_| sandbox::may_chown());
        let (path, name) = (pod.folder.volume(name), name.to_owned());
        blocking(move || crate::volumes::write_files(&name, &path, &files, group)).await
    }
}

fn unexpected() -> RuntimeError {
    RuntimeError::Internal("the supervisor sent an unexpected response".to_owned())
}

/// Runs work that waits for the disk on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(RuntimeError::Internal(error.to_string())))
}

impl PodRuntime for ProcessRuntime {
    fn version(&self) -> String {
        format!("berth://{}", env!("CARGO_PKG_VERSION"))
    }

    fn ensure_image<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image>> {
        self.0.options.images.ensure(request)
    }

    fn needs_pull<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, bool> {
        self.0.options.images.needs_pull(request)
    }

    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> BoxFuture<'a, Result<PodState>> {
        Box::pin(async move { self.0.run_sandbox(config).await.map(|pod| PodState::clone(&pod.state())) })
    }

    fn update_files<'a>(&'a self, pod: &'a PodUid, volume: &'a str, files: &'a Volume) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.update_files(pod, volume, files))
    }

    fn start_container<'a>(&'a self, config: &'a ContainerConfig) -> BoxFuture<'a, Result<ContainerStatus>> {
        Box::pin(self.0.start(config))
    }

    fn stop_container<'a>(&'a self, container: &'a ContainerId, grace: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.stop_container(container, grace))
    }

    fn stop_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.stop_sandbox(pod))
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.remove_sandbox(pod))
    }

    fn pod(&self, pod: &PodUid) -> Option<Arc<PodState>> {
        self.0.pods.lock().get(pod).map(|pod| pod.state())
    }

    fn pods(&self) -> Vec<Arc<PodState>> {
        self.0.pods.lock().values().map(|pod| pod.state()).collect()
    }

    fn changes(&self) -> BoxStream<'static, PodUid> {
        self.0.changes.subscribe()
    }

    fn exec_sync<'a>(
        &'a self,
        container: &'a ContainerId,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>> {
        Box::pin(async move {
            let pod = self.0.find(&container.pod)?;
            let run = streams::exec_sync(pod.folder.clone(), container.clone(), command.to_vec());
            tokio::time::timeout(timeout, run).await.unwrap_or_else(|_| {
                let message = format!("command {:?} timed out after {}s", command.join(" "), timeout.as_secs_f64());
                Err(RuntimeError::TimedOut(message))
            })
        })
    }

    fn exec(
        &self,
        container: ContainerId,
        command: Vec<String>,
        io: StreamIo,
    ) -> BoxFuture<'static, Result<ExitStatus>> {
        let pod = self.0.find(&container.pod);
        Box::pin(async move { streams::exec(pod?.folder.clone(), container, command, io).await })
    }

    fn attach(&self, container: ContainerId, io: StreamIo) -> BoxFuture<'static, Result<ExitStatus>> {
        let pod = self.0.find(&container.pod);
        Box::pin(async move { streams::attach(pod?.folder.clone(), container, io).await })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, std::io::Result<TcpStream>> {
        match &self.0.network {
            Some(network) => network.dial(address),
            None => Box::pin(TcpStream::connect(address)),
        }
    }

    fn port_forward(&self, pod: PodUid, port: u16, stream: Box<dyn Duplex>) -> BoxFuture<'static, Result<()>> {
        let pod = self.0.find(&pod);
        Box::pin(async move { streams::port_forward(pod?.folder.clone(), port, stream).await })
    }

    fn logs(&self, container: ContainerId, query: LogQuery) -> BoxFuture<'static, Result<LogStream>> {
        let pod = self.0.find(&container.pod);
        Box::pin(async move { logs::open(pod?, container, query).await })
    }

    fn update_limits<'a>(&'a self, pod: &'a PodUid, limits: &'a PodLimits) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.update_limits(pod, limits))
    }

    fn stats<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Option<PodStats>> {
        Box::pin(async move {
            let pod = self.0.find(pod).ok()?;
            let state = pod.state();
            if !state.is_ready {
                return None;
            }
            blocking(move || Ok(stats::read(&pod.folder, &pod.launch, &state))).await.ok()
        })
    }

    fn disk<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Option<PodDisk>> {
        Box::pin(async move {
            let pod = self.0.find(pod).ok()?;
            let state = pod.state();
            if !state.is_ready {
                return None;
            }
            blocking(move || Ok(stats::disk(&pod.folder, &pod.launch, &state))).await.ok()
        })
    }
}
