//! Metrics of this process, under the names that Prometheus' client libraries share: CPU time,
//! memory, open files and start.
//!
//! They are read from `/proc` at each request. A system without `/proc` has none.

use std::path::Path;

use berth_apimachinery::exposition::{Exposition, Family};

/// Ticks of CPU time per second in `/proc`: Linux reports hundredths on all architectures but
/// Alpha.
const TICKS: f64 = 100.0;

/// Figures of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    cpu_seconds: f64,
    /// Start, in seconds since 1970.
    started: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    files: f64,
    files_max: f64,
}

/// Writes the metrics of this process.
pub fn write(exposition: &mut Exposition) {
    const CPU: Family = Family::counter("process_cpu_seconds_total", "CPU time of this process, in seconds");
    const STARTED: Family =
        Family::gauge("process_start_time_seconds", "Start time of this process, in seconds since 1970");
    const RESIDENT: Family =
        Family::gauge("process_resident_memory_bytes", "Resident memory of this process, in bytes");
    const VIRTUAL: Family = Family::gauge("process_virtual_memory_bytes", "Virtual memory of this process, in bytes");
    const FILES: Family = Family::gauge("process_open_fds", "Open file descriptors of this process");
    const FILES_MAX: Family =
        Family::gauge("process_max_fds", "Maximum number of open file descriptors of this process");
    let Some(it) = read(Path::new("/proc")) else { return };
    for (family, value) in [
        (CPU, it.cpu_seconds),
        (STARTED, it.started),
        (RESIDENT, it.resident_bytes),
        (VIRTUAL, it.virtual_bytes),
        (FILES, it.files),
        (FILES_MAX, it.files_max),
    ] {
        exposition.add(&family, &[], value);
    }
}

fn read(proc: &Path) -> Option<Figures> {
    let text = |path: &str| std::fs::read_to_string(proc.join(path)).ok();
    let files = std::fs::read_dir(proc.join("self/fd")).ok()?.count();
    parse(&text("self/stat")?, &text("self/status")?, &text("self/limits")?, &text("stat")?, files)
}

fn parse(stat: &str, status: &str, limits: &str, system: &str, files: usize) -> Option<Figures> {
    // The name, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let first = |text: &str, name: &str| -> Option<f64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let booted = first(system, "btime ")?;
    Some(Figures {
        // User and system time, and the start after the machine's.
        cpu_seconds: (ticks(11)? + ticks(12)?) / TICKS,
        started: booted + ticks(19)? / TICKS,
        resident_bytes: first(status, "VmRSS:")? * 1024.0,
        virtual_bytes: first(status, "VmSize:")? * 1024.0,
        files: files as f64,
        // `unlimited` is not a number.
        files_max: first(limits, "Max open files").unwrap_or(f64::INFINITY),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_spaces_in_its_name_is_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 9 0 12345 1000 20 18446744073709551615";
        let status = "Name:\ta b) c\nVmSize:\t   2048 kB\nVmRSS:\t    512 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024        4096     files\n";
        let expected = Figures {
            cpu_seconds: 4.0,
            started: 1_700_000_123.45,
            resident_bytes: 524_288.0,
            virtual_bytes: 2_097_152.0,
            files: 12.0,
            files_max: 1024.0,
        };
        assert_eq!(parse(stat, status, limits, "cpu 1\nbtime 1700000000\n", 12), Some(expected));
    }

    #[test]
    fn this_process_has_figures() {
        if !Path::new("/proc/self/stat").exists() {
            return;
        }
        let text = Exposition::text(write);
        assert!(text.contains("process_cpu_seconds_total ") && text.contains("process_open_fds "), "{text}");
    }
}
