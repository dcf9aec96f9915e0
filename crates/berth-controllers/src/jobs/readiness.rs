//! The condition PodsReady (semantics §20.2).

use berth_api::kueue::reasons::pods_ready;
use berth_api::kueue::v1beta2::Workload;
use jiff::Timestamp;

use crate::conditions;
use crate::workload::status;

/// Updates the condition. `ready` returns whether all pods are ready or have succeeded. Returns
/// true if the condition changed.
pub(crate) fn sync(workload: &mut Workload, ready: impl FnOnce() -> bool, now: Timestamp) -> bool {
    const NOT_READY: &str = "Not all pods are ready or succeeded";
    let known = status::condition(workload, conditions::PODS_READY).cloned();
    let was_ready = known.as_ref().is_some_and(|condition| condition.status == "True");
    let recovering = known.as_ref().is_some_and(|c| c.status == "False" && c.reason == pods_ready::WAIT_FOR_RECOVERY);
    let (ready, reason, message) = if !status::is_admitted(workload) {
        if known.is_none() {
            return false;
        }
        (false, pods_ready::WAIT_FOR_START, NOT_READY)
    } else if ready() {
        let recovered = recovering || known.as_ref().is_some_and(|condition| condition.reason == pods_ready::RECOVERED);
        let reason = if recovered { pods_ready::RECOVERED } else { pods_ready::STARTED };
        (true, reason, "All pods reached readiness and the workload is running")
    } else if was_ready || recovering {
        (false, pods_ready::WAIT_FOR_RECOVERY, "At least one pod has failed, waiting for recovery")
    } else {
        (false, pods_ready::WAIT_FOR_START, NOT_READY)
    };
    status::set(workload, conditions::PODS_READY, ready, reason, message, now)
}
