//! Logs of simulated containers.
//!
//! Logs are not stored: a container's log is computed from its pod and the time. After a restart it
//! is therefore the same.

use std::sync::{Arc, OnceLock};

use berth_api::berth::SimulatedPods;
use berth_api::pod::node_of;
use berth_apimachinery::well_known;
use berth_runtime::{Cache, Clock, Manager, ObjectKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerState, Pod};
use kube::ResourceExt;

use crate::kubelet::simulated::run;

/// Number of parts of a run; a progress line ends each part but the last.
const PROGRESS_PARTS: u32 = 10;

/// Returns the logs of simulated pods. Clones share their state. There are no logs before
/// [`PodLogs::connect`] is called.
#[derive(Clone, Default)]
pub struct PodLogs {
    source: Arc<OnceLock<Source>>,
}

struct Source {
    pods: Cache<Pod>,
    clock: Clock,
    runtime: SimulatedPods,
    seed: u64,
}

impl std::fmt::Debug for PodLogs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodLogs").field("connected", &self.source.get().is_some()).finish()
    }
}

/// The requested part of a log: the fields of Kubernetes' `PodLogOptions`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// True for the log of the container's previous run.
    pub previous: bool,
    /// Only lines that are at most this many seconds old.
    pub since_seconds: Option<i64>,
    /// Only lines at or after this time.
    pub since_time: Option<Timestamp>,
    /// True if each line starts with its time.
    pub timestamps: bool,
    /// Only this many lines at the end of the log.
    pub tail_lines: Option<i64>,
    /// Only this many bytes at the beginning of the selected lines.
    pub limit_bytes: Option<i64>,
}

impl PodLogs {
    /// Connects the logs to the pods of this manager's API server. [`crate::install`] calls this. A
    /// process that serves logs without running the cluster's controllers calls it itself.
    pub fn connect(&self, manager: &mut Manager, runtime: SimulatedPods, seed: u64) {
        let source = Source { pods: manager.cache::<Pod>(), clock: manager.clock(), runtime, seed };
        // A second call connects to the same API server, so the first connection stays.
        let _ = self.source.set(source);
    }

    /// The log of a container as text. If `container` is `None`, the pod's default container is
    /// used, or else its first one. Returns `None` if the pod or container does not exist, and an
    /// empty string before the container runs.
    pub fn read(&self, namespace: &str, pod: &str, container: Option<&str>, options: &LogOptions) -> Option<String> {
        let source = self.source.get()?;
        let pod = source.pods.get(&ObjectKey::namespaced(namespace, pod))?;
        let containers: Vec<&Container> = pod
            .spec
            .iter()
            .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
            .collect();
        let default = pod.annotations().get(well_known::DEFAULT_CONTAINER).map(String::as_str);
        let wanted = container.or(default);
        let container = match wanted {
            Some(name) => containers.into_iter().find(|container| container.name == name)?,
            None => containers.into_iter().next()?,
        };
        let now = source.clock.now();
        let lines = lines(&pod, container, options.previous, &source.runtime, source.seed, now);
        Some(cut(lines, options, now))
    }
}

type Line = (Timestamp, String);

/// All lines that the container has printed until `now`.
fn lines(
    pod: &Pod,
    container: &Container,
    previous: bool,
    runtime: &SimulatedPods,
    seed: u64,
    now: Timestamp,
) -> Vec<Line> {
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let Some(known) = statuses.into_iter().find(|known| known.name == container.name) else { return Vec::new() };
    let state = match (&known.state, &known.last_state) {
        (_, Some(last)) if previous => last,
        (Some(ContainerState { waiting: Some(_), .. }), Some(last)) => last,
        (Some(state), _) if !previous => state,
        _ => return Vec::new(),
    };
    let (started, ended) = match (&state.running, &state.terminated) {
        (Some(running), _) => (running.started_at.as_ref(), None),
        (None, Some(terminated)) => {
            (terminated.started_at.as_ref(), terminated.finished_at.as_ref().map(|at| (at.0, terminated.exit_code)))
        }
        _ => (None, None),
    };
    let Some(started) = started.map(|time| time.0) else { return Vec::new() };
    let node = node_of(pod).unwrap_or_default();
    let image = container.image.as_deref().unwrap_or("(no image)");
    let mut lines =
        vec![(started, format!("simulated container {} of image {image} started on {node}", container.name))];
    let words: Vec<&str> =
        container.command.iter().flatten().chain(container.args.iter().flatten()).map(String::as_str).collect();
    if let Some(first) = words.join(" ").lines().next() {
        lines.push((started, format!("+ {first}")));
    }
    let last = ended.map_or(now, |(at, _)| at);
    if let Some(duration) = run::plan(pod, container, runtime, seed).duration.filter(|duration| !duration.is_zero()) {
        let step = SignedDuration::try_from(duration / PROGRESS_PARTS).unwrap_or(SignedDuration::MAX);
        let mut at = started;
        for part in 1..PROGRESS_PARTS {
            let Ok(next) = at.checked_add(step) else { break };
            at = next;
            if at >= last {
                break;
            }
            lines.push((at, format!("progress {} %", part * 100 / PROGRESS_PARTS)));
        }
    }
    if let Some((at, code)) = ended {
        lines.push((at, format!("exited with code {code}")));
    }
    lines
}

/// The requested part of the lines, as text.
fn cut(lines: Vec<Line>, options: &LogOptions, now: Timestamp) -> String {
    let since_seconds =
        options.since_seconds.and_then(|seconds| now.checked_sub(SignedDuration::from_secs(seconds)).ok());
    let since = since_seconds.max(options.since_time);
    let mut kept: Vec<&Line> = lines.iter().filter(|(at, _)| since.is_none_or(|since| *at >= since)).collect();
    if let Some(tail) = options.tail_lines.and_then(|tail| usize::try_from(tail).ok()) {
        kept.drain(..kept.len().saturating_sub(tail));
    }
    let mut text = String::new();
    for (at, line) in kept {
        if options.timestamps {
            text.push_str(&format!("{at} "));
        }
        text.push_str(line);
        text.push('\n');
    }
    if let Some(limit) = options.limit_bytes.and_then(|limit| usize::try_from(limit).ok())
        && text.len() > limit
    {
        let mut end = limit;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}
