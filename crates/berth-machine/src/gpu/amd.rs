//! AMD GPUs in the list of the kernel's compute driver (`amdkfd`).

use std::fs;
use std::path::{Path, PathBuf};

use berth_pod_runtime::Device;

use super::{AMD, FoundDevice};
use crate::text::{line, number};

/// Folder of the driver's topology, below the root.
const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// The GPUs of a system. Empty if there is no driver.
pub(super) fn detect(root: &Path) -> Vec<FoundDevice> {
    let Ok(entries) = fs::read_dir(root.join(NODES)) else { return Vec::new() };
    let mut nodes: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    nodes.sort_unstable();
    let mut found = Vec::new();
    for node in nodes {
        // A node for which `gpu` returns `None` is a CPU.
        if let Some(device) = gpu(root, node, found.len()) {
            found.push(device);
        }
    }
    found
}

fn gpu(root: &Path, node: u32, position: usize) -> Option<FoundDevice> {
    let properties = line(root, &format!("{NODES}/{node}/properties"))?;
    let property = |name: &str| {
        let value = properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<u64>().ok()).filter(|value| *value > 0)
    };
    property("simd_count")?;
    let minor = property("drm_render_minor")?;
    let drm = format!("sys/class/drm/renderD{minor}/device");
    let mut paths = vec![PathBuf::from("/dev/kfd"), PathBuf::from(format!("/dev/dri/renderD{minor}"))];
    // The card of the same device, for programs that do not use the render node.
    for entry in fs::read_dir(root.join(&drm).join("drm")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("card") {
            paths.push(Path::new("/dev/dri").join(name));
        }
    }
    // ROCr names a device by its unique ID, or by its position.
    let id = property("unique_id").map_or_else(|| position.to_string(), |id| format!("GPU-{id:016x}"));
    let product = line(root, &format!("{drm}/product_name"));
    let device_id = property("device_id").unwrap_or(0);
    Some(FoundDevice {
        product: product.unwrap_or_else(|| format!("AMD-{device_id:04x}")),
        memory_mib: number(root, &format!("{drm}/mem_info_vram_total")).map(|bytes| bytes >> 20),
        ..FoundDevice::new(Device { resource: AMD.to_owned(), id, paths })
    })
}
