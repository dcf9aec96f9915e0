//! The progress line on a terminal.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use berth_load::Probe;

/// Counts the jobs that ended.
pub struct Counted<'a>(pub &'a AtomicUsize);

impl Probe for Counted<'_> {
    fn ended(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Shows how many jobs ended, on a terminal and after the first second, until the work is over.
pub fn show(ended: &AtomicUsize, jobs: usize, is_over: &dyn Fn() -> bool) {
    const EVERY: Duration = Duration::from_millis(20);
    const SHOWN_AFTER: Duration = Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    let mut shown = false;
    while !is_over() {
        std::thread::park_timeout(EVERY);
        waited += EVERY;
        if waited >= SHOWN_AFTER && std::io::stderr().is_terminal() {
            let count = ended.load(Ordering::Relaxed);
            // A terminal that went away is no reason to stop.
            let _ = write!(std::io::stderr(), "\r{count} of {jobs} jobs ended ({} %)", count * 100 / jobs.max(1));
            shown = true;
        }
    }
    if shown {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
