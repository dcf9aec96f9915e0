//! A pod runtime in memory. The first word of a container's command scripts its run:
//! `run SECONDS EXIT_CODE`, `forever`, `stubborn` (ignores its stop signal), `missing` (no such
//! program). Other commands run as those of simulated pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_cluster::kubelet::simulated::run::{RunPlan, plan_of_command};
use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerState, ContainerStats, ContainerStatus, Device, Devices, ExecOutput, Exit,
    ExitStatus, Image, ImageRequest, ImageRoot, LogQuery, LogStream, PodDisk, PodLimits, PodRuntime, PodState,
    PodStats, PodUid, Result, RuntimeError, SandboxConfig, StreamIo, Volume,
};
use berth_runtime::Clock;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Container;
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// Clones share their pods, as restarts of a kubelet do.
#[derive(Clone)]
pub struct FakeRuntime(Arc<Inner>);

struct Inner {
    clock: Clock,
    changes: broadcast::Sender<PodUid>,
    state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub pods: BTreeMap<PodUid, PodState>,
    /// Calls in order, such as `sandbox p`, `start p/c#0`, `stop p/c#0 30s`.
    pub calls: Vec<String>,
    /// Number of calls that remove a sandbox, whether or not it existed.
    pub removals: u32,
    /// Configuration of each started run.
    pub configs: BTreeMap<String, ContainerConfig>,
    pub sandboxes: BTreeMap<PodUid, SandboxConfig>,
    /// Failure of each image, by reference.
    pub broken_images: BTreeMap<String, (&'static str, String)>,
    /// Files of images, by reference; others run on the host's.
    pub image_roots: BTreeMap<String, ImageRoot>,
    /// Exit code and output of commands by their first word; others succeed.
    pub commands: BTreeMap<String, (i32, String)>,
    /// Files of volumes that were replaced.
    pub updates: Vec<(String, Volume)>,
    /// Bytes in volumes that `disk` reports.
    pub volume_bytes: BTreeMap<String, u64>,
    /// Reason for which changes to limits are refused.
    pub limits_refused: Option<String>,
}

impl FakeRuntime {
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Inner { clock, changes: broadcast::channel(1024).0, state: Mutex::default() }))
    }

    /// Reads or changes the runtime.
    pub fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.state.lock())
    }

    pub fn calls(&self) -> Vec<String> {
        self.with(|state| state.calls.clone())
    }

    /// Ends the supervisor of a pod, and with it the pod's containers.
    pub fn lose(&self, uid: &str) {
        let uid = PodUid(uid.to_owned());
        self.with(|state| state.pods.get_mut(&uid).expect("a pod").is_ready = false);
        let _ = self.0.changes.send(uid);
    }

    /// Ends a running container.
    pub fn end(&self, id: &ContainerId, exit_code: i32, oom_killed: bool) {
        let now = self.0.clock.now();
        self.with(|state| {
            let containers = state.pods.get_mut(&id.pod).into_iter().flat_map(|pod| &mut pod.containers);
            for container in containers.filter(|it| it.id == *id) {
                if let ContainerState::Running { started_at } = container.state {
                    let message = if exit_code == 0 { "" } else { "it failed" }.to_owned();
                    container.state = ContainerState::Exited(Exit {
                        started_at,
                        finished_at: now,
                        exit_code,
                        signal: None,
                        oom_killed,
                        message,
                    });
                }
            }
        });
        let _ = self.0.changes.send(id.pod.clone());
    }

    fn end_after(&self, id: ContainerId, seconds: u64, exit_code: i32) {
        let runtime = self.clone();
        tokio::spawn(async move {
            runtime.0.clock.sleep(Duration::from_secs(seconds)).await;
            runtime.end(&id, exit_code, false);
        });
    }

    fn shown(state: &State, id: &ContainerId) -> String {
        let pod = state.pods.get(&id.pod).map_or("?", |pod| pod.name.as_str());
        format!("{pod}/{}#{}", id.name, id.attempt)
    }

    fn start(&self, config: &ContainerConfig) -> Result<ContainerStatus> {
        let now = self.0.clock.now();
        let script: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
        let status = self.with(|state| {
            let shown = Self::shown(state, &config.id);
            state.calls.push(format!("start {shown}"));
            if script.first().is_some_and(|word| word == "missing") {
                let message = "exec: \"missing\": executable file not found in $PATH".to_owned();
                return Err(RuntimeError::Start { exit_code: 127, message });
            }
            state.configs.insert(shown.clone(), config.clone());
            let pod = state.pods.get_mut(&config.id.pod).ok_or_else(|| RuntimeError::NotFound("no sandbox".into()))?;
            assert!(pod.containers.iter().all(|it| it.id != config.id), "{shown} is started twice");
            let status = ContainerStatus {
                id: config.id.clone(),
                image_id: config.image.id.clone(),
                state: ContainerState::Running { started_at: now },
            };
            pod.containers.push(status.clone());
            Ok(status)
        })?;
        if let [word, seconds, code] = script.as_slice()
            && word == "run"
        {
            self.end_after(config.id.clone(), seconds.parse().expect("seconds"), code.parse().expect("a code"));
        } else if let Some(duration) = simulated(&config.command).duration {
            // Commands that simulated pods understand run the same here.
            self.end_after(config.id.clone(), duration.as_secs(), simulated(&config.command).exit_code);
        }
        let _ = self.0.changes.send(config.id.pod.clone());
        Ok(status)
    }
}

impl PodRuntime for FakeRuntime {
    fn version(&self) -> String {
        "fake://1".into()
    }

    fn ensure_image<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, Result<Image>> {
        let result = self.with(|state| {
            state.calls.push(format!("image {}", request.reference));
            match state.broken_images.get(&request.reference) {
                Some((reason, message)) => Err(RuntimeError::Image { reason, message: message.clone() }),
                None => Ok(Image {
                    reference: request.reference.clone(),
                    id: "host".into(),
                    root: state.image_roots.get(&request.reference).cloned(),
                    notice: Some("no image was imported: runs on the host's files".into()),
                    ..Image::default()
                }),
            }
        });
        Box::pin(std::future::ready(result))
    }

    fn needs_pull<'a>(&'a self, request: &'a ImageRequest) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(request.reference.starts_with("registry.example/")))
    }

    fn run_sandbox<'a>(&'a self, config: &'a SandboxConfig) -> BoxFuture<'a, Result<PodState>> {
        let now = self.0.clock.now();
        let state = self.with(|state| {
            state.calls.push(format!("sandbox {}", config.name));
            state.sandboxes.insert(config.uid.clone(), config.clone());
            let number = state.pods.len() + 2;
            let pod = PodState {
                uid: config.uid.clone(),
                namespace: config.namespace.clone(),
                name: config.name.clone(),
                ips: vec![format!("10.1.0.{number}")],
                is_ready: true,
                created_at: now,
                containers: Vec::new(),
            };
            state.pods.entry(config.uid.clone()).or_insert(pod).clone()
        });
        Box::pin(std::future::ready(Ok(state)))
    }

    fn update_files<'a>(&'a self, _: &'a PodUid, volume: &'a str, files: &'a Volume) -> BoxFuture<'a, Result<()>> {
        self.with(|state| state.updates.push((volume.to_owned(), files.clone())));
        Box::pin(std::future::ready(Ok(())))
    }

    fn start_container<'a>(&'a self, config: &'a ContainerConfig) -> BoxFuture<'a, Result<ContainerStatus>> {
        let result = self.start(config);
        Box::pin(std::future::ready(result))
    }

    fn stop_container<'a>(&'a self, container: &'a ContainerId, grace: Duration) -> BoxFuture<'a, Result<()>> {
        let is_stubborn = self.with(|state| {
            let shown = Self::shown(state, container);
            state.calls.push(format!("stop {shown} {}s", grace.as_secs()));
            state.configs.get(&shown).is_some_and(|config| config.command.first().is_some_and(|it| it == "stubborn"))
        });
        if is_stubborn {
            self.end_after(container.clone(), grace.as_secs(), 137);
        } else {
            self.end(container, 143, false);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn stop_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>> {
        self.with(|state| {
            if let Some(known) = state.pods.get_mut(pod) {
                known.is_ready = false;
                state.calls.push(format!("stop sandbox {}", known.name));
            }
        });
        Box::pin(std::future::ready(Ok(())))
    }

    fn remove_sandbox<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Result<()>> {
        let was_known = self.with(|state| {
            state.removals += 1;
            let removed = state.pods.remove(pod);
            state.calls.extend(removed.iter().map(|removed| format!("remove {}", removed.name)));
            removed.is_some()
        });
        if was_known {
            let _ = self.0.changes.send(pod.clone());
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn pod(&self, pod: &PodUid) -> Option<Arc<PodState>> {
        self.with(|state| state.pods.get(pod).cloned().map(Arc::new))
    }

    fn pods(&self) -> Vec<Arc<PodState>> {
        self.with(|state| state.pods.values().cloned().map(Arc::new).collect())
    }

    fn changes(&self) -> BoxStream<'static, PodUid> {
        let receiver = self.0.changes.subscribe();
        futures::stream::unfold(receiver, |mut receiver| async move {
            let uid = receiver.recv().await.ok()?;
            Some((uid, receiver))
        })
        .boxed()
    }

    fn exec_sync<'a>(
        &'a self,
        container: &'a ContainerId,
        command: &'a [String],
        _: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>> {
        let output = self.with(|state| {
            let shown = Self::shown(state, container);
            let word = command.first().cloned().unwrap_or_default();
            state.calls.push(format!("exec {shown} {word}"));
            let (exit_code, output) = state.commands.get(&word).cloned().unwrap_or_default();
            ExecOutput { exit_code, output: output.into_bytes() }
        });
        Box::pin(std::future::ready(Ok(output)))
    }

    fn exec(&self, _: ContainerId, _: Vec<String>, _: StreamIo) -> BoxFuture<'static, Result<ExitStatus>> {
        unsupported()
    }

    fn attach(&self, _: ContainerId, _: StreamIo) -> BoxFuture<'static, Result<ExitStatus>> {
        unsupported()
    }

    fn port_forward(&self, _: PodUid, _: u16, _: Box<dyn berth_pod_runtime::Duplex>) -> BoxFuture<'static, Result<()>> {
        unsupported()
    }

    fn logs(&self, _: ContainerId, _: LogQuery) -> BoxFuture<'static, Result<LogStream>> {
        unsupported()
    }

    fn update_limits<'a>(&'a self, pod: &'a PodUid, limits: &'a PodLimits) -> BoxFuture<'a, Result<()>> {
        let result = self.with(|state| {
            if let Some(reason) = &state.limits_refused {
                return Err(RuntimeError::Config(reason.clone()));
            }
            for (id, limits) in &limits.containers {
                let call = format!(
                    "limit {} cpu {:?} memory {:?}",
                    Self::shown(state, id),
                    limits.cpu_milli.unwrap_or(0),
                    limits.memory_bytes.unwrap_or(0)
                );
                state.calls.push(call);
            }
            state.pods.contains_key(pod).then_some(()).ok_or_else(|| RuntimeError::NotFound("no sandbox".into()))
        });
        Box::pin(std::future::ready(result))
    }

    fn stats<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, Option<PodStats>> {
        let at = self.0.clock.now();
        let stats = self.with(|state| {
            let containers = state.pods.get(pod).into_iter().flat_map(|pod| &pod.containers);
            let used = |status: &ContainerStatus| match status.state {
                ContainerState::Running { started_at } => Some(ContainerStats {
                    name: status.id.name.clone(),
                    started_at,
                    // A quarter of a core since the start.
                    cpu_nanos: u64::try_from(at.duration_since(started_at).as_nanos() / 4).unwrap(),
                    memory_bytes: 64 << 20,
                }),
                _ => None,
            };
            let containers = containers.filter_map(used).collect();
            PodStats { uid: pod.clone(), at, containers }
        });
        Box::pin(std::future::ready(Some(stats)))
    }

    fn disk<'a>(&'a self, _: &'a PodUid) -> BoxFuture<'a, Option<PodDisk>> {
        let volumes = self.with(|state| state.volume_bytes.clone());
        Box::pin(std::future::ready(Some(PodDisk { containers: BTreeMap::new(), volumes })))
    }
}

fn simulated(command: &[String]) -> RunPlan {
    plan_of_command(&Container { command: Some(command.to_vec()), ..Container::default() })
}

fn unsupported<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(RuntimeError::Unsupported("the fake runtime has no streams".into()))))
}

/// Two GPUs.
#[derive(Clone, Default)]
pub struct FakeDevices(pub Arc<Mutex<BTreeMap<PodUid, usize>>>);

impl Devices for FakeDevices {
    fn capacity(&self) -> BTreeMap<String, usize> {
        BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)])
    }

    fn assign(&self, pod: &PodUid, _: &str, resource: &str, count: usize) -> Result<Vec<Device>> {
        let mut assigned = self.0.lock();
        if assigned.iter().filter(|(other, _)| *other != pod).map(|(_, count)| count).sum::<usize>() + count > 2 {
            return Err(RuntimeError::Internal(format!("{resource}: too few free devices")));
        }
        assigned.insert(pod.clone(), count);
        Ok((0..count).map(|at| Device { resource: resource.into(), id: at.to_string(), paths: Vec::new() }).collect())
    }

    fn environment(&self, devices: &[Device]) -> Vec<(String, String)> {
        let ids: Vec<&str> = devices.iter().map(|device| device.id.as_str()).collect();
        vec![("CUDA_VISIBLE_DEVICES".to_owned(), ids.join(","))]
    }

    fn release(&self, pod: &PodUid) {
        self.0.lock().remove(pod);
    }

    fn retain(&self, pods: &BTreeSet<PodUid>) {
        self.0.lock().retain(|pod, _| pods.contains(pod));
    }
}
