//! CPU time and memory of processes, as the operating system counts them.

use std::time::Duration;

use berth_load::drive::Spread;
use serde_json::{Value, json};

/// Clock ticks per second in `/proc/PID/stat`: the same on every Linux that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// Resources that a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// CPU time, of the program and of the system on its behalf.
    pub cpu: Duration,
    /// Peak of resident memory, in bytes.
    pub peak: u64,
    /// Current resident memory, in bytes.
    pub resident: u64,
}

impl Cost {
    /// The cost of a process; zero if the operating system does not report it.
    pub fn of(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may contain any character. The CPU times are the 12th and 13th
        // field after it.
        let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kibibytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Cost {
            cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
            peak: kibibytes("VmHWM:").unwrap_or(0) * 1024,
            resident: kibibytes("VmRSS:").unwrap_or(0) * 1024,
        }
    }

    /// The cost of this process.
    pub fn own() -> Self {
        Self::of(std::process::id())
    }

    /// The cost with the CPU time since an earlier measurement.
    pub fn since(self, earlier: Cost) -> Cost {
        Cost { cpu: self.cpu.saturating_sub(earlier.cpu), ..self }
    }
}

/// Converts bytes to MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Converts a duration to milliseconds, rounded to microseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1000.0
}

/// Statistics of times by name, for a report in JSON.
pub fn spreads_json(spreads: impl IntoIterator<Item = (&'static str, Spread)>) -> Value {
    let entry = |(name, spread): (&str, Spread)| {
        let [mean, median, p99] = [spread.mean, spread.median, spread.p99].map(milliseconds);
        (name.to_owned(), json!({"meanMs": mean, "medianMs": median, "p99Ms": p99}))
    };
    spreads.into_iter().map(entry).collect()
}
