//! Usage of NVIDIA GPUs, as `nvidia-smi` reports it.

use std::path::Path;
use std::time::Duration;

use berth_pod_runtime::{GpuReading, GpuValues};

use crate::tool::{self, ToolError};

/// Fields to request, in the order of [`parse`]. Drivers report unknown ones as `[N/A]`.
const FIELDS: &str = "index,uuid,pci.bus_id,name,driver_version,utilization.gpu,utilization.memory,memory.used,\
                      memory.free,memory.reserved,power.draw,temperature.gpu,temperature.memory,clocks.sm,clocks.mem";
/// Time limit.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The GPUs of the system whose root folder is `root`, without their holders. Empty if the tool is
/// missing or fails.
pub(crate) fn readings(root: &Path) -> Vec<GpuReading> {
    let arguments = [&format!("--query-gpu={FIELDS}"), "--format=csv,noheader,nounits"];
    match tool::run(root, "nvidia-smi", &arguments, TIMEOUT) {
        Ok(text) => parse(&text),
        Err(ToolError::Missing { .. }) => Vec::new(),
        Err(error) => {
            tracing::debug!("usage of GPUs: {error}");
            Vec::new()
        }
    }
}

fn parse(text: &str) -> Vec<GpuReading> {
    text.lines().filter_map(gpu).collect()
}

fn gpu(line: &str) -> Option<GpuReading> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, bus, name, driver, values @ ..] = fields.as_slice() else { return None };
    let value = |at: usize| values.get(at)?.parse::<f64>().ok();
    Some(GpuReading {
        index: index.parse().ok()?,
        uuid: (*uuid).to_owned(),
        pci_bus_id: (*bus).to_owned(),
        model: (*name).to_owned(),
        driver: if driver.starts_with('[') { String::new() } else { (*driver).to_owned() },
        holder: None,
        values: GpuValues {
            utilization: value(0),
            memory_utilization: value(1),
            memory_used: value(2),
            memory_free: value(3),
            memory_reserved: value(4),
            power: value(5),
            temperature: value(6),
            memory_temperature: value(7),
            sm_clock: value(8),
            memory_clock: value(9),
            ..GpuValues::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_the_driver_does_not_know_are_left_out() {
        let text = "0, GPU-ab, 00000000:17:00.0, NVIDIA H100 80GB HBM3, 580.95.05, 97, 41, 70000, 11000, 559, 512.25, \
                    61, 70, 1980, 2619\n1, GPU-cd, 00000000:65:00.0, Tesla T4, [N/A], 0, 0, 1, 15000, 450, 9.1, 30, \
                    N/A, 300, 405\nNo devices were found\n";
        let found = parse(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].values.utilization, found[0].values.power), (Some(97.0), Some(512.25)));
        assert_eq!((found[1].values.memory_temperature, found[1].driver.as_str()), (None, ""));
        assert_eq!(found[1].values.memory_clock, Some(405.0));
    }
}
