//! State that a worker keeps about its pod in memory. None of it needs to survive a restart of the
//! process: it is read from the API and the runtime again, or starts from its default.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use berth_pod_runtime::Volume;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::probes::ContainerProbes;
use crate::kubelet::lifecycle::{
    BackOff, Blocked, ERR_IMAGE_PULL, Ending, IMAGE_BACK_OFF, PodEvent, Run, restart_delay,
};
use crate::kubelet::resolve::TokenSource;

/// How long a container shows `ErrImagePull` before it shows `ImagePullBackOff`.
const PULL_SHOWN: SignedDuration = SignedDuration::from_secs(2);
/// Delay before volumes are mounted again after a failure. It doubles up to [`HOLD_MAX`].
const HOLD_BASE: SignedDuration = SignedDuration::from_millis(500);
const HOLD_MAX: SignedDuration = SignedDuration::from_secs(122);
/// Delay before the next start of a container after an error of the runtime.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Why a container could not start.
#[derive(Clone, Debug)]
pub enum Obstacle {
    /// Its configuration cannot be resolved. The start is repeated when an object changes.
    Configuration(String),
    /// Its image cannot be pulled.
    Image {
        /// Reason that the runtime reported.
        reason: String,
        /// Message that the runtime reported.
        message: String,
        /// The image.
        image: String,
        /// Number of failures in a row.
        failures: i32,
        /// When the last attempt failed.
        failed_at: Timestamp,
    },
    /// The runtime reported another error.
    Runtime {
        /// Reason of the waiting state.
        reason: &'static str,
        /// Message.
        message: String,
        /// When the next attempt is due.
        until: Timestamp,
    },
}

impl Obstacle {
    /// An error of the runtime. The start is repeated after a few seconds.
    pub fn runtime(reason: &'static str, message: String, now: Timestamp) -> Self {
        Self::Runtime { reason, message, until: now.checked_add(RETRY).unwrap_or(Timestamp::MAX) }
    }

    /// The reason and message to show at this time, and when they change.
    pub fn at(&self, now: Timestamp) -> (Blocked, Option<Timestamp>) {
        match self {
            Self::Configuration(message) => {
                let reason = crate::kubelet::lifecycle::CONFIG_ERROR.to_owned();
                (Blocked { reason, message: message.clone(), until: None }, None)
            }
            Self::Runtime { reason, message, until } => {
                (Blocked { reason: (*reason).to_owned(), message: message.clone(), until: Some(*until) }, None)
            }
            Self::Image { reason, message, image, failures, failed_at } => {
                let after = |delay| failed_at.checked_add(delay).unwrap_or(Timestamp::MAX);
                let until = Some(after(restart_delay(*failures)));
                let shown_until = after(PULL_SHOWN);
                if reason == ERR_IMAGE_PULL && shown_until <= now {
                    let message = format!("Back-off pulling image {image:?}: {ERR_IMAGE_PULL}: {message}");
                    return (Blocked { reason: IMAGE_BACK_OFF.to_owned(), message, until }, None);
                }
                (Blocked { reason: reason.clone(), message: message.clone(), until }, Some(shown_until))
            }
        }
    }
}

/// Why no container can start.
#[derive(Clone, Debug)]
pub struct Hold {
    /// True if a volume could not be mounted. Mounting is repeated when an object changes.
    pub is_mount: bool,
    /// Number of failures in a row.
    pub failures: i32,
    /// When the next attempt is due.
    pub until: Timestamp,
}

impl Hold {
    /// The hold after another failure.
    pub fn next(before: Option<&Hold>, event: &PodEvent, now: Timestamp) -> Self {
        let failures = before.map_or(0, |hold| hold.failures);
        let delay = HOLD_BASE.checked_mul(1 << failures.clamp(0, 12)).unwrap_or(HOLD_MAX).min(HOLD_MAX);
        Self {
            is_mount: event.reason == "FailedMount",
            failures: failures.saturating_add(1),
            until: now.checked_add(delay).unwrap_or(Timestamp::MAX),
        }
    }
}

/// A service account token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub token: String,
    /// When to request a new one.
    pub refresh_at: Timestamp,
}

/// State of a container's postStart hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// It runs.
    Running,
    /// It failed. The container is stopped.
    Failed,
}

/// A stop that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopping {
    /// Run that stops.
    pub attempt: i32,
    /// When the container is killed.
    pub killed_at: Timestamp,
}

/// The state.
#[derive(Default)]
pub struct Memory {
    /// True while the runtime creates the sandbox or starts a container; `None` if no start is in
    /// progress.
    pub starting: Option<Arc<AtomicBool>>,
    /// Stops in progress by container.
    pub stopping: BTreeMap<String, Stopping>,
    /// Delays of restarts by container.
    pub back_off: BTreeMap<String, BackOff>,
    /// Why containers could not start.
    pub obstacles: BTreeMap<String, Obstacle>,
    /// Why no container can start.
    pub hold: Option<Hold>,
    /// Starts that the runtime rejected, by container.
    pub failed: BTreeMap<String, Run>,
    /// postStart hooks by container, with the number of the run.
    pub hooks: BTreeMap<String, (i32, Hook)>,
    /// Probes by container.
    pub probes: BTreeMap<String, ContainerProbes>,
    /// Service account tokens of volumes.
    pub tokens: BTreeMap<TokenSource, Token>,
    /// Contents of the volumes that the runtime last received, by volume name.
    pub volumes: BTreeMap<String, Volume>,
    /// Resources in force by container, with the number of the run.
    pub resources: BTreeMap<String, (i32, ResourceRequirements)>,
    /// Runs that are being stopped because a resize requires a restart, by container.
    pub restarting: BTreeMap<String, i32>,
    /// Why the pod must end, if not because of its deletion or deadline.
    pub ending: Option<Ending>,
    /// True once the pod has ended and its sandbox was stopped.
    pub is_stopped: bool,
    /// True once the sandbox of a pod that is being deleted was removed. Finalizers may keep the
    /// pod object longer.
    pub is_removed: bool,
    /// When the disk usage is read again.
    pub stats_at: Option<Timestamp>,
    /// Images for which an `ImageNotice` event was recorded.
    pub noticed: BTreeSet<String>,
}
