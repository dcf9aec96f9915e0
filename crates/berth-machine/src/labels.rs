//! Labels that describe devices, under the names of NVIDIA's GPU feature discovery and AMD's node
//! labeller.

use std::collections::BTreeMap;

use crate::gpu::{AMD, FoundDevice, NVIDIA};
use crate::text::label;

/// The labels of a machine with these devices. If it has several kinds of GPU, the labels describe
/// the first, as in GPU feature discovery.
pub(crate) fn of_devices(devices: &[FoundDevice], instance_type: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let of = |resource: &str| -> Vec<&FoundDevice> {
        devices.iter().filter(|device| device.device.resource == resource).collect()
    };
    let mut set = |name: String, value: String| {
        if !value.is_empty() {
            labels.insert(name, value);
        }
    };
    let nvidia = of(NVIDIA);
    if let Some(first) = nvidia.first() {
        let mut gpu = |name: &str, value: String| set(format!("nvidia.com/gpu.{name}"), value);
        gpu("present", "true".into());
        gpu("count", nvidia.len().to_string());
        gpu("replicas", "1".into());
        gpu("product", label(&first.product));
        gpu("memory", first.memory_mib.map_or_else(String::new, |mib| mib.to_string()));
        gpu("machine", instance_type.unwrap_or_default().to_owned());
        if let Some((major, minor)) = first.compute {
            gpu("compute.major", major.to_string());
            gpu("compute.minor", minor.to_string());
            gpu("family", family(major, minor).to_owned());
        }
        let mut driver = first.driver.as_deref().unwrap_or_default().split('.').map(label);
        for part in ["major", "minor", "rev"] {
            set(format!("nvidia.com/cuda.driver.{part}"), driver.next().unwrap_or_default());
        }
    }
    let amd = of(AMD);
    if let Some(first) = amd.first() {
        let mut gpu = |name: &str, value: String| set(format!("amd.com/gpu.{name}"), value);
        gpu("product-name", label(&first.product));
        // The labeller rounds to gibibytes: `192G`.
        gpu("vram", first.memory_mib.map_or_else(String::new, |mib| format!("{}G", (mib + 512) >> 10)));
        gpu("count", amd.len().to_string());
    }
    labels
}

/// Architecture of an NVIDIA GPU by its compute capability.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..5) => "volta",
        (7, _) => "turing",
        (8, 0..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        _ => "undefined",
    }
}
