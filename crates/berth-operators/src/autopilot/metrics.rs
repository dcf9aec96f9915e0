//! The agents' metric.

use std::collections::BTreeMap;

use berth_apimachinery::exposition::{Exposition, Family};

use super::results::OfNode;

/// The metric.
const CHECKS: Family = Family::gauge(
    "autopilot_health_checks",
    "Last result of a health check of a node, by device: GB/s for pciebw, else 1 for a failure",
);

/// Writes the last measurements of all nodes. GB/s for `pciebw`; for other checks 1 if the device
/// failed.
pub fn write(results: &BTreeMap<String, OfNode>, exposition: &mut Exposition) {
    for (node, of_node) in results {
        for report in of_node.reports.values() {
            let mut values: BTreeMap<&str, f64> = BTreeMap::new();
            for (measurement, _) in report.result.iter().flatten() {
                let known = values.entry(&measurement.device).or_insert(measurement.value);
                // A device with several tests failed if one test failed.
                *known = known.max(measurement.value);
            }
            for (device, value) in values {
                let labels = [
                    ("health", report.metric),
                    ("node", node),
                    ("cpumodel", &of_node.models.cpu),
                    ("gpumodel", &of_node.models.gpu),
                    ("deviceid", device),
                ];
                exposition.add(&CHECKS, &labels, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checks::Report;
    use super::super::probe::{Measurement, Unavailable};
    use super::super::results::Models;
    use super::*;

    fn text(results: &BTreeMap<String, OfNode>) -> String {
        Exposition::text(|exposition| write(results, exposition))
    }

    #[test]
    fn each_device_has_a_value_and_a_check_without_result_has_none() {
        let report = |check, metric, result| Report { check, metric, failure: "", result };
        let passed = |device: &str, value: f64| (Measurement::new(device, value, ""), None);
        let reports = [
            report("gpupower", "power-slowdown", Err(Unavailable("nvidia-smi was not found".into()))),
            report("pciebw", "pciebw", Ok(vec![passed("3", 2.1), passed("4", 24.5)])),
            report("dcgm", "dcgm", Ok(vec![passed("0", 0.0), passed("0", 1.0)])),
        ];
        let models = Models { cpu: "amd64".into(), gpu: "H100 \"SXM\"".into() };
        let reports = reports.into_iter().map(|report| (report.check, report)).collect();
        let all = BTreeMap::from([("n1".to_owned(), OfNode { models, reports })]);
        let labels = |health: &str, device: &str| {
            format!(
                r#"autopilot_health_checks{{health="{health}",node="n1",cpumodel="amd64",gpumodel="H100 \"SXM\"",deviceid="{device}"}}"#
            )
        };
        let expected = format!(
            "# HELP autopilot_health_checks Last result of a health check of a node, by device: GB/s for pciebw, \
             else 1 for a failure\n\
             # TYPE autopilot_health_checks gauge\n{} 1\n{} 2.1\n{} 24.5\n",
            labels("dcgm", "0"),
            labels("pciebw", "3"),
            labels("pciebw", "4")
        );
        assert_eq!(text(&all), expected);
        assert_eq!(text(&BTreeMap::new()), "");
    }
}
