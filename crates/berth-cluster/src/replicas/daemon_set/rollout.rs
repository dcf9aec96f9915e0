//! Plans the replacement of daemon pods of older templates, within `maxUnavailable` or `maxSurge`.

use std::sync::Arc;

use berth_apimachinery::int_or_string;
use k8s_openapi::api::apps::v1::{DaemonSet, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use super::plan::Snapshot;
use crate::job::facts::is_deleted;

/// Writes of a rollout.
#[derive(Debug, Default)]
pub(super) struct Rollout {
    /// Old pods to delete.
    pub(super) delete: Vec<Arc<Pod>>,
    /// Nodes on which a new pod is created while the old one still runs.
    pub(super) create: Vec<String>,
}

/// The settings of a rolling update; `None` if the strategy is OnDelete.
fn rolling_update(set: &DaemonSet) -> Option<RollingUpdateDaemonSet> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.clone()).unwrap_or_default();
    (strategy.type_.as_deref() != Some("OnDelete")).then(|| strategy.rolling_update.unwrap_or_default())
}

/// A number of pods, or a percentage of `total`, rounded up.
fn resolve(value: Option<&IntOrString>, default: i64, total: usize) -> usize {
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    let number = value.map_or(Ok(default), |value| int_or_string::scaled(&json!(value), total, true));
    usize::try_from(number.unwrap_or(default)).unwrap_or(0)
}

/// True if the set's rollouts create new pods before they delete old ones.
pub(super) fn surges(set: &DaemonSet) -> bool {
    rolling_update(set).is_some_and(|rolling| resolve(rolling.max_surge.as_ref(), 0, 100) > 0)
}

/// The pods of a node that are not deleted.
#[derive(Clone, Copy)]
enum Pods<'a> {
    /// No pod, or several pods of one template. The rollout does not touch such a node.
    Unsettled,
    New(&'a Arc<Pod>),
    Old(&'a Arc<Pod>),
    Both {
        new: &'a Arc<Pod>,
        old: &'a Arc<Pod>,
    },
}

impl<'a> Pods<'a> {
    fn of(snapshot: &'a Snapshot<'_>, node: &str) -> Self {
        let active = snapshot.pods_on(node).iter().filter(|pod| !is_deleted(pod));
        let (new, old): (Vec<_>, Vec<_>) = active.partition(|pod| snapshot.is_updated(pod));
        match (new.as_slice(), old.as_slice()) {
            ([new], []) => Self::New(new),
            ([], [old]) => Self::Old(old),
            ([new], [old]) => Self::Both { new, old },
            _ => Self::Unsettled,
        }
    }
}

/// Plans the next replacements.
pub(super) fn plan(snapshot: &Snapshot<'_>) -> Rollout {
    let Some(rolling) = rolling_update(snapshot.set) else { return Rollout::default() };
    let nodes: Vec<&String> = snapshot.nodes.iter().filter(|(_, it)| it.should_run).map(|(node, _)| node).collect();
    let surge = resolve(rolling.max_surge.as_ref(), 0, nodes.len());
    let unavailable = resolve(rolling.max_unavailable.as_ref(), 1, nodes.len());
    if surge > 0 {
        return with_surge(snapshot, &nodes, surge);
    }
    // With both zero, no pod could ever be replaced.
    without_surge(snapshot, &nodes, unavailable.max(1))
}

/// Deletes old pods as long as few enough nodes are without an available pod. An old pod that is
/// not available is replaced at once.
fn without_surge(snapshot: &Snapshot<'_>, nodes: &[&String], unavailable_max: usize) -> Rollout {
    let (mut unavailable, mut broken, mut candidates) = (0, Vec::new(), Vec::new());
    for node in nodes {
        match Pods::of(snapshot, node) {
            Pods::New(pod) if snapshot.is_available(pod) => {}
            Pods::New(_) | Pods::Unsettled | Pods::Both { .. } => unavailable += 1,
            Pods::Old(pod) if snapshot.is_available(pod) => candidates.push(pod.clone()),
            Pods::Old(pod) => {
                unavailable += 1;
                broken.push(pod.clone());
            }
        }
    }
    candidates.truncate(unavailable_max.saturating_sub(unavailable));
    Rollout { delete: broken.into_iter().chain(candidates).collect(), create: Vec::new() }
}

/// Creates new pods while the old ones still run, at most `surge_max` at a time, and deletes old
/// pods whose new pod is available. An old pod that is not available is replaced at once.
fn with_surge(snapshot: &Snapshot<'_>, nodes: &[&String], surge_max: usize) -> Rollout {
    let (mut rollout, mut surging, mut candidates) = (Rollout::default(), 0, Vec::new());
    for node in nodes {
        match Pods::of(snapshot, node) {
            Pods::New(_) => {}
            Pods::Unsettled => surging += usize::from(!snapshot.pods_on(node).is_empty()),
            Pods::Old(pod) if snapshot.is_available(pod) => candidates.push((*node).clone()),
            Pods::Old(_) => rollout.create.push((*node).clone()),
            Pods::Both { new, old } if snapshot.is_available(new) || !snapshot.is_available(old) => {
                rollout.delete.push(old.clone());
            }
            Pods::Both { .. } => surging += 1,
        }
    }
    candidates.truncate(surge_max.saturating_sub(surging));
    rollout.create.extend(candidates);
    rollout
}
