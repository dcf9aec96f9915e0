//! Lower bounds of any schedule, derived from the plan alone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::Plan;

/// The minimum time to complete a plan. A cohort never uses more than its quota, and a workload
/// never starts before it is created.
///
/// The bound treats workloads as divisible. It is `Duration::MAX` if a workload's cohort has no
/// quota.
pub fn lower_bound(plan: &Plan) -> Duration {
    let mut capacity: BTreeMap<&str, i128> = BTreeMap::new();
    for queue in &plan.queues {
        *capacity.entry(&queue.cohort).or_default() += i128::from(queue.nominal);
    }
    // Work of the arrivals so far (the latest arrivals come first), by cohort, in thousandths of a
    // CPU times nanoseconds.
    let mut left: BTreeMap<&str, i128> = BTreeMap::new();
    let mut bound = Duration::ZERO;
    for arrival in plan.arrivals.iter().rev() {
        let class = &plan.classes[arrival.class];
        let cohort = &*plan.queues[arrival.queue].cohort;
        let work = left.entry(cohort).or_default();
        *work += i128::from(class.demand()) * nanos(class.runtime);
        let capacity = capacity[cohort];
        if capacity <= 0 {
            if *work > 0 {
                return Duration::MAX;
            }
            continue;
        }
        let drained = u64::try_from(*work / capacity).map_or(Duration::MAX, Duration::from_nanos);
        bound = bound.max(arrival.at.saturating_add(drained)).max(arrival.at + class.runtime);
    }
    bound
}

/// The minimum time in which the controllers' client can write one admission per workload, at `qps`
/// writes per second after a burst of `burst`.
pub fn limited_bound(workloads: usize, qps: f64, burst: u32) -> Duration {
    let waiting = (workloads as f64 - f64::from(burst)).max(0.0);
    Duration::try_from_secs_f64(waiting / qps).unwrap_or(Duration::MAX)
}

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)
}
