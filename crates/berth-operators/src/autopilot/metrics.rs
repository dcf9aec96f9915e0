//! The agents' metric, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::results::OfNode;

/// Name of the metric.
pub const NAME: &str = "autopilot_health_checks";

/// The last measurements of all nodes. GB/s for `pciebw`; for other checks 1 if the device failed.
pub fn text(results: &BTreeMap<String, OfNode>) -> String {
    let mut text = String::new();
    if results.values().all(|of_node| of_node.reports.is_empty()) {
        return text;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {NAME} Last result of a health check of a node, by device");
    let _ = writeln!(text, "# TYPE {NAME} gauge");
    for (node, of_node) in results {
        for report in of_node.reports.values() {
            let mut values: BTreeMap<&str, f64> = BTreeMap::new();
            for (measurement, _) in report.result.iter().flatten() {
                let known = values.entry(&measurement.device).or_insert(measurement.value);
                // A device with several tests failed if one test failed.
                *known = known.max(measurement.value);
            }
            for (device, value) in values {
                let (cpu, gpu) = (escaped(&of_node.models.cpu), escaped(&of_node.models.gpu));
                let _ = writeln!(
                    text,
                    "{NAME}{{health=\"{}\",node=\"{node}\",cpumodel=\"{cpu}\",gpumodel=\"{gpu}\",deviceid=\"{}\"}} {value}",
                    report.metric,
                    escaped(device)
                );
            }
        }
    }
    text
}

/// A label value, escaped as the format requires.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::checks::Report;
    use super::super::probe::{Measurement, Unavailable};
    use super::super::results::Models;
    use super::*;

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
            "# HELP autopilot_health_checks Last result of a health check of a node, by device\n\
             # TYPE autopilot_health_checks gauge\n{} 1\n{} 2.1\n{} 24.5\n",
            labels("dcgm", "0"),
            labels("pciebw", "3"),
            labels("pciebw", "4")
        );
        assert_eq!(text(&all), expected);
        assert_eq!(text(&BTreeMap::new()), "");
    }
}
