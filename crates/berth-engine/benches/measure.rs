//! Time as the processor spends it on this thread. A machine that does other work as well
//! stretches wall time at will; this it stretches only by what the others take of the caches.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Runs something and says how long the processor worked on it.
pub fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let start = spent();
    let result = run();
    (spent().saturating_sub(start), result)
}

/// What the processor has spent on this thread.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
