//! What the metrics of an exporter say about the GPUs of its node. Pure.
//!
//! Source: dcgm-exporter 4, `etc/default-counters.csv` and its renderer. A GPU has the label `gpu`.
//! An instance of a GPU that is divided (MIG) also has `GPU_I_ID`, and no utilization. With time
//! slicing, a GPU has a series for each pod, all of the same value.

use std::collections::BTreeMap;

use berth_api::berth::gpus::GpuUse;
use berth_apimachinery::samples;

const UTILIZATION: &str = "DCGM_FI_DEV_GPU_UTIL";
/// Share of the time in which the graphics engine was active, from 0 to 1.
const ENGINE_ACTIVE: &str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE";
const MEMORY_USED: &str = "DCGM_FI_DEV_FB_USED";
const MEMORY_FREE: &str = "DCGM_FI_DEV_FB_FREE";
const MEMORY_RESERVED: &str = "DCGM_FI_DEV_FB_RESERVED";
const POWER: &str = "DCGM_FI_DEV_POWER_USAGE";
const TEMPERATURE: &str = "DCGM_FI_DEV_GPU_TEMP";
const FAMILIES: [&str; 7] = [UTILIZATION, ENGINE_ACTIVE, MEMORY_USED, MEMORY_FREE, MEMORY_RESERVED, POWER, TEMPERATURE];

/// The values of a GPU by family, and by the instance of the GPU that they are about.
#[derive(Default)]
struct Values(BTreeMap<&'static str, BTreeMap<String, f64>>);

impl Values {
    fn sum(&self, family: &str) -> Option<f64> {
        Some(self.0.get(family)?.values().sum())
    }

    fn mean(&self, family: &str) -> Option<f64> {
        Some(self.sum(family)? / self.0.get(family)?.len() as f64)
    }

    fn max(&self, family: &str) -> Option<f64> {
        self.0.get(family)?.values().copied().reduce(f64::max)
    }

    /// `None` if the exporter states no utilization: there is nothing to show then.
    fn of_gpu(&self, gpu: u32) -> Option<GpuUse> {
        let active = || Some(self.mean(ENGINE_ACTIVE)? * 100.0);
        let utilization = self.max(UTILIZATION).or_else(active)?.clamp(0.0, 100.0);
        let memory_used = self.sum(MEMORY_USED);
        let memory = memory_used.zip(self.sum(MEMORY_FREE));
        Some(GpuUse {
            gpu,
            utilization,
            memory_used,
            memory: memory.map(|(used, free)| used + free + self.sum(MEMORY_RESERVED).unwrap_or(0.0)),
            power: self.max(POWER),
            temperature: self.max(TEMPERATURE),
        })
    }
}

/// The GPUs in the text of an exporter, by number.
pub fn gpus(text: &str) -> Vec<GpuUse> {
    let family = |name: &str| FAMILIES.into_iter().find(|family| *family == name);
    let mut gpus: BTreeMap<u32, Values> = BTreeMap::new();
    for sample in samples::read(text, move |name| family(name).is_some()) {
        let Some(gpu) = sample.labels.get("gpu").and_then(|gpu| gpu.parse().ok()) else { continue };
        let Some(family) = family(sample.name).filter(|_| sample.value.is_finite()) else { continue };
        let instance = sample.labels.get("GPU_I_ID").cloned().unwrap_or_default();
        gpus.entry(gpu).or_default().0.entry(family).or_default().insert(instance, sample.value);
    }
    gpus.into_iter().filter_map(|(gpu, values)| values.of_gpu(gpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_memory_power_and_temperature_are_read_per_gpu() {
        let text = r#"# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",Hostname="h",container="c",namespace="a",pod="b"} 81
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",modelName="NVIDIA L4",Hostname="h"} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a"} 10000
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a"} 12000
DCGM_FI_DEV_FB_RESERVED{gpu="0",UUID="GPU-a"} 512
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 62.5
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 55
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a"} 0
"#;
        let first = GpuUse {
            gpu: 0,
            utilization: 81.0,
            memory_used: Some(10_000.0),
            memory: Some(22_512.0),
            power: Some(62.5),
            temperature: Some(55.0),
        };
        assert_eq!(gpus(text), [first, GpuUse { gpu: 1, ..GpuUse::default() }]);
    }

    #[test]
    fn instances_of_a_divided_gpu_are_one_gpu_and_pods_that_share_one_count_once() {
        let divided = r#"
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"} 0.5
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"} 1
DCGM_FI_DEV_FB_USED{gpu="0",GPU_I_ID="1"} 100
DCGM_FI_DEV_FB_USED{gpu="0",GPU_I_ID="2"} 300
"#;
        let expected = GpuUse { utilization: 75.0, memory_used: Some(400.0), ..GpuUse::default() };
        assert_eq!(gpus(divided), [expected]);
        let shared = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"a\"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"b\"} 40\n\
                      DCGM_FI_DEV_FB_USED{gpu=\"0\",pod=\"a\"} 7\nDCGM_FI_DEV_FB_USED{gpu=\"0\",pod=\"b\"} 7\n";
        assert_eq!(gpus(shared), [GpuUse { utilization: 40.0, memory_used: Some(7.0), ..GpuUse::default() }]);
    }

    #[test]
    fn gpus_without_a_utilization_are_left_out() {
        let text = "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 40\nDCGM_FI_DEV_GPU_UTIL{gpu=\"x\"} 4\n\
                    DCGM_FI_DEV_GPU_UTIL 4\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} NaN\n";
        assert_eq!(gpus(text), []);
    }
}
