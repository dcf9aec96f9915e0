//! Selects a part of a trace, and changes how fast its jobs arrive.

use std::time::Duration;

use berth_engine::model::Time;

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
}

impl Selection {
    /// Keeps the selected jobs. The first one that is kept is the new start of the trace.
    pub fn apply(&self, trace: &mut Trace) {
        let (from, until) = (self.from.unwrap_or(Duration::ZERO), self.until.unwrap_or(Duration::MAX));
        trace.jobs.retain(|job| job.submitted >= from && job.submitted < until);
        trace.jobs.truncate(self.limit.unwrap_or(usize::MAX));
        let Some(first) = trace.jobs.first().map(|job| job.submitted) else { return };
        trace.start = trace.start.map(|start: Time| start.after(first));
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
