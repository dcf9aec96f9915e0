//! CPU time and memory of this machine, from `/proc`.

use std::path::Path;

/// Nanoseconds of one unit of CPU time in `/proc/stat`: Linux reports hundredths of a second on all
/// architectures except Alpha.
const TICK_NANOS: u64 = 10_000_000;

/// CPU time since the machine's start, and memory in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Time that all CPUs were busy, in nanoseconds.
    pub cpu_nanos: u64,
    /// Memory that is not available to new programs, in bytes.
    pub memory_bytes: u64,
}

/// Reads the values below `proc`; `None` if this machine has no such files.
pub fn read(proc: &Path) -> Option<Machine> {
    let stat = std::fs::read_to_string(proc.join("stat")).ok()?;
    let memory = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    parse(&stat, &memory)
}

fn parse(stat: &str, memory: &str) -> Option<Machine> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    // The fields are user, nice, system, idle, iowait, irq, softirq and steal. The time of guests
    // is part of user.
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|index| ticks.get(*index)).sum();
    let kibibytes = |name: &str| {
        let rest = memory.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
    };
    let used = kibibytes("MemTotal")?.saturating_sub(kibibytes("MemAvailable")?);
    Some(Machine { cpu_nanos: busy.saturating_mul(TICK_NANOS), memory_bytes: used.saturating_mul(1024) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_and_used_memory_are_read() {
        let stat = "cpu  100 1 50 9000 7 2 3 4 11 0\ncpu0 1 1 1 1\n";
        let memory = "MemTotal:       16384 kB\nMemFree:  100 kB\nMemAvailable:   4096 kB\n";
        let expected = Machine { cpu_nanos: 160 * TICK_NANOS, memory_bytes: 12288 * 1024 };
        assert_eq!(parse(stat, memory), Some(expected));
        assert_eq!(parse("", memory), None);
    }
}
