//! LeaderWorkerSets (leaderworkerset.x-k8s.io/v1): replicas that are groups of pods, a leader and
//! its workers.
//!
//! The leaders of a set are the pods of one StatefulSet ([`set`]). The workers of each leader are
//! those of another, which the leader owns ([`pod`]). The deletion of a leader therefore deletes
//! its group, and the leaders' StatefulSet makes a new one. [`rollout`] plans updates. [`webhook`]
//! has the defaults and rules, and completes the pods.
//!
//! Not implemented: PodGroups of Volcano, and DisaggregatedSet.

pub mod constants;
mod facts;
pub mod objects;
pub mod pod;
pub mod revisions;
pub mod rollout;
pub mod set;
pub mod status;
pub mod types;
pub mod webhook;

use berth_runtime::Manager;

/// Adds the controllers of LeaderWorkerSets to the manager.
pub fn install(manager: &mut Manager) {
    set::install(manager);
    pod::install(manager);
}
