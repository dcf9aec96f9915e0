//! Devices of the machine: detected GPUs, and devices that a file declares.

mod amd;
mod file;
mod nvidia;
pub(crate) mod usage;

use std::collections::BTreeSet;
use std::path::Path;

use berth_pod_runtime::Device;

pub use file::{DeviceFileError, declared};

/// Resource of NVIDIA GPUs.
pub(crate) const NVIDIA: &str = "nvidia.com/gpu";
/// Resource of AMD GPUs.
pub(crate) const AMD: &str = "amd.com/gpu";

/// A device and its known properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Resource, identifier and device files.
    pub device: Device,
    /// Product name; empty if unknown.
    pub product: String,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Compute capability of an NVIDIA GPU.
    pub compute: Option<(u32, u32)>,
    /// Version of the driver.
    pub driver: Option<String>,
}

impl FoundDevice {
    fn new(device: Device) -> Self {
        Self { device, product: String::new(), memory_mib: None, compute: None, driver: None }
    }

    /// True if all device files exist: a driver removes the files of a device that it has lost.
    pub(crate) fn is_healthy(&self) -> bool {
        self.device.paths.iter().all(|path| path.exists())
    }
}

/// The GPUs of a system whose root folder is `root`, normally `/`.
pub fn detect(root: &Path) -> Vec<FoundDevice> {
    let mut found = nvidia::detect(root);
    found.extend(amd::detect(root));
    found
}

/// The environment variables that limit a container to the devices allocated to it. `resources` are
/// the resources of all devices of the machine. If a container has no device of one of them, the
/// variables hide all devices of that resource.
///
/// Devices are named by UUID if they have one. Their numbers differ between a container that has
/// only its own device files and a container with the files of all devices.
pub fn device_env(devices: &[Device], resources: &BTreeSet<String>) -> Vec<(String, String)> {
    let ids = |resource: &str| -> Vec<&str> {
        devices.iter().filter(|device| device.resource == resource).map(|device| device.id.as_str()).collect()
    };
    let mut env = Vec::new();
    let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
    if resources.contains(NVIDIA) {
        let ids = ids(NVIDIA);
        set("CUDA_VISIBLE_DEVICES", ids.join(","));
        // `void` means no device for the container toolkit.
        set("NVIDIA_VISIBLE_DEVICES", if ids.is_empty() { "void".into() } else { ids.join(",") });
    }
    if resources.contains(AMD) {
        let ids = ids(AMD);
        // HIP counts the devices that ROCr shows, and treats an empty list as no restriction.
        let numbers: Vec<String> = (0..ids.len()).map(|number| number.to_string()).collect();
        set("ROCR_VISIBLE_DEVICES", if ids.is_empty() { "-1".into() } else { ids.join(",") });
        set("HIP_VISIBLE_DEVICES", if ids.is_empty() { "-1".into() } else { numbers.join(",") });
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(resource: &str, id: &str) -> Device {
        Device { resource: resource.into(), id: id.into(), paths: Vec::new() }
    }

    #[track_caller]
    fn check(devices: &[Device], resources: &[&str], expected: &[(&str, &str)]) {
        let resources = resources.iter().map(|name| (*name).to_owned()).collect();
        let found = device_env(devices, &resources);
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_container_sees_its_own_devices_only() {
        let two = [device(NVIDIA, "GPU-a"), device(NVIDIA, "GPU-b"), device("example.com/fpga", "0")];
        check(&two, &[NVIDIA], &[("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"), ("NVIDIA_VISIBLE_DEVICES", "GPU-a,GPU-b")]);
        check(&[], &[NVIDIA], &[("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void")]);
        let amd = [device(AMD, "GPU-1"), device(AMD, "GPU-2")];
        check(&amd, &[AMD], &[("ROCR_VISIBLE_DEVICES", "GPU-1,GPU-2"), ("HIP_VISIBLE_DEVICES", "0,1")]);
        check(&[], &[AMD], &[("ROCR_VISIBLE_DEVICES", "-1"), ("HIP_VISIBLE_DEVICES", "-1")]);
        check(&[], &[], &[]);
    }
}
