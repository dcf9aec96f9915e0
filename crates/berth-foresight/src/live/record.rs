//! The record of forecasts of a live cluster: what was forecast, and when the workloads started.
//!
//! It is kept in memory by the controllers, begins anew after a restart, and has at most
//! [`KEPT`](crate::forecast::calibration::KEPT) forecasts. Forecasts elsewhere get it with the
//! [`Memory`](crate::memory::Memory).

use std::collections::{BTreeMap, BTreeSet};

use berth_engine::Name;
use berth_engine::model::{Time, WorkloadKey};

use super::forecast::JobForecast;
use super::run_times::transition;
use crate::forecast::calibration::{Calibration, Made};
use crate::objects::Objects;

/// Adds the starts of workloads since the last call. Forecasts of workloads that were deleted
/// before their start are forgotten.
pub fn settle(record: &mut Calibration, objects: &Objects) {
    record.retain(|made| {
        if made.started.is_some() {
            return true;
        }
        let key = (made.workload.namespace.to_string(), made.workload.name.to_string());
        let Some(workload) = objects.workloads.get(&key).map(|it| &it.object) else { return false };
        // Times of objects have whole seconds.
        let created = workload.metadata.creation_timestamp.as_ref();
        if created.is_some_and(|at| berth_controllers::translate::time(at.0).seconds() > made.at.seconds()) {
            return false;
        }
        made.started = transition(workload, "QuotaReserved").map(|at| at.max(made.at));
        true
    });
}

/// Adds the forecast of the newest waiting job of each cluster queue, unless the record has one of
/// this job. The other jobs of a queue wait for much the same, so their forecasts are no further
/// evidence.
pub fn add(record: &mut Calibration, forecasts: &[JobForecast], at: Time) {
    let newest: BTreeMap<&Name, &JobForecast> =
        forecasts.iter().filter_map(|it| Some((it.cluster_queue.as_ref()?, it))).collect();
    let known: BTreeSet<WorkloadKey> = record.made().map(|made| made.workload.clone()).collect();
    for (queue, it) in newest {
        let (Some(drawn), Some(p90)) = (it.drawn, it.p90) else { continue };
        if known.contains(&it.key) {
            continue;
        }
        record.add(Made {
            workload: it.key.clone(),
            cluster_queue: queue.clone(),
            at,
            drawn: at.until(drawn),
            stated: at.until(p90),
            started: None,
        });
    }
}
