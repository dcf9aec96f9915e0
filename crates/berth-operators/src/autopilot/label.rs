//! The labels of a node by the results of its checks, as pure functions.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::dcgm_test_name;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::probe::Measurement;

/// Label: result and time of the last invasive check.
pub use berth_api::berth::DCGM_LEVEL_3_LABEL as LEVEL_3;
/// Annotation: failed tests and GPUs of the last invasive check.
pub use berth_api::berth::DCGM_LEVEL_3_OUTPUT_ANNOTATION as LEVEL_3_OUTPUT;
/// Label: health of the node's GPUs.
pub use berth_api::berth::GPU_HEALTH_LABEL as GPU_HEALTH;

/// All checks passed.
pub const PASS: &str = "PASS";
/// A check failed.
pub const WARN: &str = "WARN";
/// The invasive check runs.
pub const TESTING: &str = "TESTING";
/// A fatal test failed.
pub const EVICT: &str = "EVICT";

/// The label after periodic checks. It replaces every other value.
pub fn after_periodic(failed: bool) -> &'static str {
    if failed { WARN } else { PASS }
}

/// The label after checks on request. `None` if it stays: a node that is tested or evicted keeps
/// its label.
pub fn after_request(present: Option<&str>, failed: bool) -> Option<&'static str> {
    (!matches!(present, Some(TESTING | EVICT))).then(|| after_periodic(failed))
}

/// Labels and annotation after an invasive check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invasive {
    /// Value of [`GPU_HEALTH`].
    pub health: &'static str,
    /// Value of [`LEVEL_3`].
    pub level_3: String,
    /// Value of [`LEVEL_3_OUTPUT`].
    pub output: String,
}

/// The result of an invasive check that ended at `now`. `present` is the value of [`GPU_HEALTH`] at
/// that time, `fatal` the tests whose failure evicts.
pub fn after_invasive(
    present: Option<&str>,
    measurements: &[Measurement],
    fatal: &BTreeSet<String>,
    now: Timestamp,
) -> Invasive {
    let mut failed: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for measurement in measurements.iter().filter(|measurement| measurement.value != 0.0) {
        failed.entry(dcgm_test_name(&measurement.detail)).or_default().push(&measurement.device);
    }
    let time = now.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d_%H.%M.%SUTC").to_string();
    if failed.is_empty() {
        // A label that changed during the check means that its result is not wanted any more.
        let is_expected = matches!(present, Some(PASS | TESTING));
        let level_3 = if is_expected { format!("PASS_{time}") } else { String::new() };
        return Invasive { health: PASS, level_3, output: String::new() };
    }
    let health = if failed.keys().any(|test| fatal.contains(test)) { EVICT } else { WARN };
    let output: Vec<String> = failed.iter().map(|(test, gpus)| format!("{test}.{}", gpus.join("."))).collect();
    Invasive { health, level_3: format!("ERR_{time}"), output: output.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_checks_replace_every_label() {
        assert_eq!((after_periodic(false), after_periodic(true)), ("PASS", "WARN"));
    }

    #[test]
    fn checks_on_request_keep_testing_and_evict() {
        let after = |present: Option<&str>| [after_request(present, false), after_request(present, true)];
        for present in [None, Some(""), Some("PASS"), Some("WARN"), Some("ERR")] {
            assert_eq!(after(present), [Some("PASS"), Some("WARN")], "{present:?}");
        }
        assert_eq!(after(Some("TESTING")), [None, None]);
        assert_eq!(after(Some("EVICT")), [None, None]);
    }

    #[track_caller]
    fn check(present: Option<&str>, failed: &[(&str, u32)], expected: (&str, &str, &str)) {
        let fatal = berth_api::berth::AutopilotConfiguration::default().fatal_tests();
        let measurements: Vec<_> = failed.iter().map(|(test, gpu)| Measurement::verdict(gpu, true, test)).collect();
        let now = "2026-01-05T09:07:03Z".parse().expect("a time");
        let found = after_invasive(present, &measurements, &fatal, now);
        assert_eq!((found.health, found.level_3.as_str(), found.output.as_str()), expected);
    }

    #[test]
    fn an_invasive_check_passes_warns_or_evicts() {
        check(Some("TESTING"), &[], ("PASS", "PASS_2026-01-05_09.07.03UTC", ""));
        check(Some("PASS"), &[], ("PASS", "PASS_2026-01-05_09.07.03UTC", ""));
        check(Some("WARN"), &[], ("PASS", "", ""));
        check(None, &[], ("PASS", "", ""));
        let error = "ERR_2026-01-05_09.07.03UTC";
        check(Some("TESTING"), &[("Memory Bandwidth", 1)], ("WARN", error, "memory_bandwidth.1"));
        check(Some("TESTING"), &[("PCIe", 0)], ("EVICT", error, "pcie.0"));
        let several = [("Memory Bandwidth", 1), ("GPU Memory", 2), ("Memory Bandwidth", 3)];
        check(Some("TESTING"), &several, ("EVICT", error, "gpu_memory.2,memory_bandwidth.1.3"));
    }
}
