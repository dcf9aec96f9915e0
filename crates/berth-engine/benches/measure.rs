//! CPU time of this thread. Other work on the machine stretches wall time, but CPU time only
//! through the shared caches.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Runs something and returns the CPU time that it took.
pub fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = spent();
    let result = run();
    (spent().saturating_sub(start), result)
}

/// CPU time of this thread so far.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
