//! What processes cost: CPU time and memory as the operating system counts them.

use std::time::Duration;

/// Ticks of `/proc/PID/stat` a second: the same on every Linux that Rust runs on.
const TICKS_PER_SECOND: u64 = 100;

/// What a process has cost so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Time on processors, in the program and in the system for it.
    pub cpu: Duration,
    /// Most memory resident at once, in bytes.
    pub peak: u64,
    /// Memory resident now, in bytes.
    pub resident: u64,
}

impl Cost {
    /// Of a process; zero where the operating system does not say.
    pub fn of(pid: u32) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may hold anything; times are the 12th and 13th field after it.
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

    /// Of this process.
    pub fn own() -> Self {
        Self::of(std::process::id())
    }

    /// What was spent since an earlier look.
    pub fn since(self, earlier: Cost) -> Cost {
        Cost { cpu: self.cpu.saturating_sub(earlier.cpu), ..self }
    }
}

/// Bytes as MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
