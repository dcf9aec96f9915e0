//! A runtime in a folder of its own, and pods for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use berth_node::{Helper, Isolation, Level, Options, ProcessRuntime};
use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerState, ContainerStatus, Exit, Image, ImageRequest, Images, LogQuery,
    PodRuntime, PodUid, Result, SandboxConfig, SandboxNetwork, Security,
};
use futures::StreamExt;
use futures::future::BoxFuture;

/// Provides the host's own files for every image.
struct HostImages;

impl Images for HostImages {
    fn ensure<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image>> {
        let reference = request.reference.clone();
        Box::pin(async move { Ok(Image { reference, id: "host".to_owned(), ..Image::default() }) })
    }

    fn needs_pull<'a>(&'a self, _: &'a ImageRequest) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(false))
    }
}

/// A runtime that is removed when dropped, with its pods and its folder.
pub struct Node {
    pub runtime: Arc<ProcessRuntime>,
    pub isolation: Isolation,
    pub folder: Arc<tempfile::TempDir>,
}

/// Deadline for events that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl Node {
    /// Opens a runtime. If the level does not work, skips the test and returns `None`.
    pub async fn open(level: Level) -> Option<Self> {
        Self::open_in(level, Arc::new(tempfile::tempdir().unwrap())).await
    }

    /// Opens a runtime on the folder of a former one.
    pub async fn open_in(level: Level, folder: Arc<tempfile::TempDir>) -> Option<Self> {
        Self::open_with(level, folder, None).await
    }

    /// Opens a runtime on the folder of a former one, with a pod network.
    pub async fn open_with(
        level: Level,
        folder: Arc<tempfile::TempDir>,
        network: Option<Arc<dyn SandboxNetwork>>,
    ) -> Option<Self> {
        let helper = Helper(PathBuf::from(env!("CARGO_BIN_EXE_berth-node-helper")));
        let mut options = Options::new(folder.path().join("node"), Arc::new(HostImages), helper);
        options.level = Some(level);
        options.pids_max = 64;
        match ProcessRuntime::open(options, network).await {
            Ok((runtime, isolation)) => Some(Self { runtime: Arc::new(runtime), isolation, folder }),
            Err(error) => {
                berth_testing::skip(&error.to_string());
                None
            }
        }
    }

    /// Ends the runtime without its pods, as after `kill -9` of the process, and opens it again.
    pub async fn reopen(self) -> Self {
        let (level, folder) = (self.isolation.level, self.folder.clone());
        drop(self);
        Self::open_in(level, folder).await.expect("the level worked before")
    }

    /// Creates a sandbox.
    pub async fn sandbox(&self) -> PodUid {
        self.sandbox_with(|_| {}).await
    }

    /// Creates a sandbox with a changed configuration.
    pub async fn sandbox_with(&self, change: impl FnOnce(&mut SandboxConfig)) -> PodUid {
        let mut config = sandbox(uid());
        change(&mut config);
        let state = self.runtime.run_sandbox(&config).await.unwrap();
        assert!(state.is_ready);
        config.uid
    }

    /// Starts a shell script in a pod.
    pub async fn start(&self, pod: &PodUid, script: &str) -> ContainerId {
        self.start_with(pod, script, |_| {}).await.unwrap().id
    }

    /// Starts a shell script with a changed configuration.
    pub async fn start_with(
        &self,
        pod: &PodUid,
        script: &str,
        change: impl FnOnce(&mut ContainerConfig),
    ) -> Result<ContainerStatus> {
        let mut config = container(pod, script);
        change(&mut config);
        self.runtime.start_container(&config).await
    }

    /// Waits for the end of a run.
    pub async fn exit(&self, id: &ContainerId) -> Exit {
        let mut changes = self.runtime.changes();
        let wait = async {
            loop {
                match self.container_state(id) {
                    Some(ContainerState::Exited(exit)) => return exit,
                    Some(ContainerState::Unknown { .. }) => panic!("the state of {id} is unknown"),
                    _ => changes.next().await,
                };
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the container ends")
    }

    /// State of a run.
    pub fn container_state(&self, id: &ContainerId) -> Option<ContainerState> {
        let state = self.runtime.pod(&id.pod)?;
        state.containers.iter().find(|container| container.id == *id).map(|container| container.state.clone())
    }

    /// Runs a script in a pod of its own. Returns its exit status and its log.
    pub async fn run(&self, script: &str) -> (Exit, String) {
        self.run_with(script, |_| {}).await
    }

    /// Like [`Node::run`], with a changed configuration of the container.
    pub async fn run_with(&self, script: &str, change: impl FnOnce(&mut ContainerConfig)) -> (Exit, String) {
        let pod = self.sandbox().await;
        let id = self.start_with(&pod, script, change).await.unwrap().id;
        let exit = self.exit(&id).await;
        let log = self.log(&id).await;
        self.runtime.remove_sandbox(&pod).await.unwrap();
        (exit, log)
    }

    /// The whole log of a run.
    pub async fn log(&self, id: &ContainerId) -> String {
        self.log_with(id, LogQuery::default()).await
    }

    /// The selected part of the log of a run.
    pub async fn log_with(&self, id: &ContainerId, query: LogQuery) -> String {
        let mut stream = self.runtime.logs(id.clone(), query).await.unwrap();
        let mut bytes = Vec::new();
        let read = async {
            while let Some(chunk) = stream.next().await {
                bytes.extend_from_slice(&chunk.unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the log ends");
        String::from_utf8(bytes).unwrap()
    }

    /// Waits until the log of a run contains a string.
    pub async fn wait_for_log(&self, id: &ContainerId, text: &str) -> String {
        eventually(|| async {
            let log = self.log(id).await;
            log.contains(text).then_some(log)
        })
        .await
    }

    /// Folder of a pod.
    pub fn pod_folder(&self, pod: &PodUid) -> PathBuf {
        self.folder.path().join("node/pods").join(&pod.0)
    }

    /// Process ID of a pod's supervisor.
    pub fn supervisor(&self, pod: &PodUid) -> u32 {
        let journal = std::fs::read_to_string(self.pod_folder(pod).join("journal")).unwrap();
        let record = journal.lines().rev().find(|line| line.contains("\"supervisor\"")).unwrap();
        let record: serde_json::Value = serde_json::from_str(record).unwrap();
        u32::try_from(record["process"]["pid"].as_u64().unwrap()).unwrap()
    }
}

impl Drop for Node {
    /// Stops the pods, so that a failed test leaves no processes behind. If a test reopens the
    /// runtime, it still owns the folder, and the pods continue.
    fn drop(&mut self) {
        if Arc::strong_count(&self.folder) > 1 {
            return;
        }
        let runtime = self.runtime.clone();
        let stop = async move {
            for pod in runtime.pods() {
                let _ = runtime.remove_sandbox(&pod.uid).await;
            }
        };
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(stop);
        });
        let _ = thread.join();
    }
}

/// A new UID.
pub fn uid() -> PodUid {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    PodUid(format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A pod without volumes.
pub fn sandbox(uid: PodUid) -> SandboxConfig {
    SandboxConfig::new(uid, "default", "pod")
}

/// A container that runs a shell script on the host's files, as root.
pub fn container(pod: &PodUid, script: &str) -> ContainerConfig {
    let id = ContainerId { pod: pod.clone(), name: "main".to_owned(), attempt: 0 };
    ContainerConfig {
        image: Image { reference: "test".to_owned(), id: "host".to_owned(), ..Image::default() },
        security: Security { allow_privilege_escalation: true, ..Security::default() },
        termination_message_path: "/dev/termination-log".to_owned(),
        ..ContainerConfig::new(id, ["/bin/sh", "-c", script].map(str::to_owned).to_vec())
    }
}

/// Waits until `check` returns a value.
pub async fn eventually<T, F: Future<Output = Option<T>>>(mut check: impl FnMut() -> F) -> T {
    let wait = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the condition comes true")
}

/// Waits until `check` is true.
pub async fn until(mut check: impl FnMut() -> bool) {
    eventually(|| std::future::ready(check().then_some(()))).await;
}

/// True if a process exists and is not a zombie.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// Processes whose command line contains a string.
pub fn processes_with(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
        })
        .filter(|pid| is_alive(*pid))
        .collect()
}

/// The levels that are tested on every machine, unless a level does not work there.
pub const LEVELS: [Level; 2] = [Level::Plain, Level::Full];
