//! Selects a part of a trace, and changes how fast its jobs arrive.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_engine::Name;
use berth_engine::model::{ResourceList, Time};

use super::Trace;

/// The part of a trace to replay.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Selection {
    /// Leave out jobs submitted earlier, counted from the start of the trace.
    pub from: Option<Duration>,
    /// Leave out jobs submitted at this time or later, counted from the start of the trace.
    pub until: Option<Duration>,
    /// Maximum number of jobs.
    pub limit: Option<usize>,
    /// Arrivals are this many times as fast; above zero.
    pub scale: Option<f64>,
    /// Maximum number of pods of a job, at least 1. A job with more pods gets fewer and larger
    /// ones, which request as much together.
    pub pods_max: Option<i32>,
}

impl Selection {
    /// Keeps the selected jobs. The first one that is kept is the new start of the trace.
    pub fn apply(&self, trace: &mut Trace) {
        let (from, until) = (self.from.unwrap_or(Duration::ZERO), self.until.unwrap_or(Duration::MAX));
        trace.jobs.retain(|job| job.submitted >= from && job.submitted < until);
        trace.jobs.truncate(self.limit.unwrap_or(usize::MAX));
        let Some(first) = trace.jobs.first().map(|job| job.submitted) else { return };
        trace.start = trace.start.map(|start: Time| start.after(first));
        if let Some(pods_max) = self.pods_max {
            bundle(trace, pods_max.max(1));
        }
        let scale = self.scale.filter(|scale| *scale > 0.0).unwrap_or(1.0);
        for job in &mut trace.jobs {
            job.submitted -= first;
            if scale != 1.0 {
                let seconds = job.submitted.as_secs_f64() / scale;
                job.submitted = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            }
        }
    }
}

/// Gives each job the largest number of pods up to `pods_max` that divides its own.
fn bundle(trace: &mut Trace, pods_max: i32) {
    let mut larger: HashMap<(Arc<ResourceList>, i32), Arc<ResourceList>> = HashMap::new();
    for job in trace.jobs.iter_mut().filter(|job| job.pods > pods_max) {
        let pods = (1..=pods_max).rev().find(|pods| job.pods % pods == 0).unwrap_or(1);
        let factor = job.pods / pods;
        let requests = larger.entry((job.requests.clone(), factor)).or_insert_with(|| {
            let times = |(name, amount): (&Name, &i64)| (name.clone(), amount.saturating_mul(i64::from(factor)));
            Arc::new(job.requests.iter().map(times).collect())
        });
        (job.requests, job.pods) = (requests.clone(), pods);
    }
}
