//! `/metrics/resource` of a kubelet: the CPU and memory usage of pods and containers, in the text
//! format of Prometheus. The metrics have the same names as a kubelet's.

use std::fmt::Write;

use serde_json::Value;

/// One metric: the field of a summary that holds its value, and the divisor of that value.
struct Metric {
    suffix: &'static str,
    kind: &'static str,
    help: &'static str,
    section: &'static str,
    field: &'static str,
    divisor: f64,
}

const METRICS: [Metric; 2] = [
    Metric {
        suffix: "cpu_usage_seconds_total",
        kind: "counter",
        help: "Cumulative CPU time used, in core-seconds",
        section: "cpu",
        field: "usageCoreNanoSeconds",
        divisor: 1e9,
    },
    Metric {
        suffix: "memory_working_set_bytes",
        kind: "gauge",
        help: "Memory in use, in bytes",
        section: "memory",
        field: "workingSetBytes",
        divisor: 1.0,
    },
];

/// The metrics of a summary (`/stats/summary`). Nothing is written for a missing value.
pub(super) fn text(summary: &Value) -> String {
    let mut text = String::new();
    let pods = || summary["pods"].as_array().into_iter().flatten();
    for metric in &METRICS {
        write_head(&mut text, "container", metric);
        for pod in pods() {
            for container in pod["containers"].as_array().into_iter().flatten() {
                let name = container["name"].as_str().unwrap_or_default();
                write_sample(
                    &mut text,
                    "container",
                    metric,
                    container,
                    &format!("container=\"{name}\",{}", labels(pod)),
                );
            }
        }
        write_head(&mut text, "pod", metric);
        for pod in pods() {
            write_sample(&mut text, "pod", metric, pod, &labels(pod));
        }
    }
    text
}

/// The labels of a pod's metrics. Names of namespaces, pods and containers need no escaping.
fn labels(pod: &Value) -> String {
    let reference = |field: &str| pod["podRef"][field].as_str().unwrap_or_default();
    format!("namespace=\"{}\",pod=\"{}\"", reference("namespace"), reference("name"))
}

fn write_head(text: &mut String, prefix: &str, metric: &Metric) {
    let Metric { suffix, kind, help, .. } = metric;
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {prefix}_{suffix} {help}\n# TYPE {prefix}_{suffix} {kind}");
}

fn write_sample(text: &mut String, prefix: &str, metric: &Metric, figures: &Value, labels: &str) {
    let figures = &figures[metric.section];
    let Some(value) = figures[metric.field].as_f64() else { return };
    let _ = write!(text, "{prefix}_{}{{{labels}}} {}", metric.suffix, value / metric.divisor);
    let time = figures["time"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    let _ = match time {
        Some(time) => writeln!(text, " {}", time.as_millisecond()),
        None => writeln!(text),
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_have_their_labels_and_units() {
        let time = "2026-01-01T00:00:00Z";
        let figures = json!({"cpu": {"time": time, "usageCoreNanoSeconds": 1_500_000_000_u64},
            "memory": {"time": time, "workingSetBytes": 4096}});
        let mut container = figures.clone();
        container["name"] = "main".into();
        let mut pod = figures;
        pod["podRef"] = json!({"namespace": "a", "name": "p"});
        pod["containers"] = json!([container, {"name": "new"}]);
        let expected = "\
# HELP container_cpu_usage_seconds_total Cumulative CPU time used, in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container=\"main\",namespace=\"a\",pod=\"p\"} 1.5 1767225600000
# HELP pod_cpu_usage_seconds_total Cumulative CPU time used, in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace=\"a\",pod=\"p\"} 1.5 1767225600000
# HELP container_memory_working_set_bytes Memory in use, in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container=\"main\",namespace=\"a\",pod=\"p\"} 4096 1767225600000
# HELP pod_memory_working_set_bytes Memory in use, in bytes
# TYPE pod_memory_working_set_bytes gauge
pod_memory_working_set_bytes{namespace=\"a\",pod=\"p\"} 4096 1767225600000
";
        assert_eq!(text(&json!({"node": {"nodeName": "n"}, "pods": [pod]})), expected);
    }
}
