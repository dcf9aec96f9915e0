//! NVIDIA GPUs in the lists of the driver and of `nvidia-smi`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_pod_runtime::Device;

use super::{FoundDevice, NVIDIA};
use crate::tool::{self, ToolError};

/// Fields to request from `nvidia-smi`, in the order of [`parse`].
const FIELDS: &str = "index,uuid,name,memory.total,driver_version,pci.bus_id,compute_cap";
/// Fields for old drivers, which do not have `compute_cap`.
const OLD_FIELDS: &str = "index,uuid,name,memory.total,driver_version,pci.bus_id";
/// Time limit of `nvidia-smi`. It waits for the driver to start, and on broken hardware forever.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Device files that every CUDA program needs, if they exist.
const SHARED: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
/// Folder of the driver's list of GPUs, below the root.
const GPUS: &str = "proc/driver/nvidia/gpus";

/// The GPUs of a system. Empty if there is no driver.
pub(super) fn detect(root: &Path) -> Vec<FoundDevice> {
    // Without a driver, nvidia-smi would only report its absence.
    let Some(listed) = listed(root) else { return Vec::new() };
    let answer = ask(root, FIELDS).or_else(|| ask(root, OLD_FIELDS));
    let found = answer.map(|text| parse(&text)).unwrap_or_default();
    if found.is_empty() && !listed.is_empty() {
        tracing::warn!(gpus = listed.len(), "nvidia-smi reports no GPU: their memory and family are unknown");
    }
    combine(root, listed, found)
}

/// A GPU in the driver's list.
#[derive(Debug)]
struct Listed {
    /// Address on the PCI bus: `0000:17:00.0`.
    bus: String,
    model: String,
    uuid: String,
    minor: String,
}

/// The driver's list of GPUs. `None` if there is no driver.
fn listed(root: &Path) -> Option<Vec<Listed>> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root.join(GPUS)).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    let read = |folder: &PathBuf| {
        let text = fs::read_to_string(folder.join("information")).ok()?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
            value.map(|value| value.trim().to_owned())
        };
        Some(Listed {
            bus: folder.file_name()?.to_str()?.to_lowercase(),
            model: field("Model").unwrap_or_default(),
            uuid: field("GPU UUID").unwrap_or_default(),
            minor: field("Device Minor")?,
        })
    };
    Some(folders.iter().filter_map(read).collect())
}

/// A GPU in the output of `nvidia-smi`.
struct Reported {
    bus: String,
    uuid: String,
    name: String,
    memory_mib: Option<u64>,
    driver: Option<String>,
    compute: Option<(u32, u32)>,
}

/// Runs `nvidia-smi`. Returns `None` if it fails or exceeds [`TIMEOUT`].
fn ask(root: &Path, fields: &str) -> Option<String> {
    let arguments = [&format!("--query-gpu={fields}"), "--format=csv,noheader,nounits"];
    match tool::run(root, "nvidia-smi", &arguments, TIMEOUT) {
        Ok(text) => Some(text),
        Err(error @ ToolError::TimedOut { .. }) => {
            tracing::warn!("{error}");
            None
        }
        Err(_) => None,
    }
}

/// Parses the output of `nvidia-smi`. Unknown fields are `[N/A]` or similar.
fn parse(text: &str) -> Vec<Reported> {
    let gpu = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [_, uuid, name, memory, driver, bus, rest @ ..] = fields.as_slice() else { return None };
        // `00000000:17:00.0`: the domain has eight digits here, and four in the driver's list.
        let bus = bus.to_lowercase();
        let bus = if bus.len() > 12 { bus[bus.len() - 12..].to_owned() } else { bus };
        Some(Reported {
            bus,
            uuid: (*uuid).to_owned(),
            name: (*name).to_owned(),
            memory_mib: memory.parse().ok(),
            driver: Some((*driver).to_owned()).filter(|driver| driver.starts_with(|c: char| c.is_ascii_digit())),
            compute: rest.first().and_then(|text| {
                let (major, minor) = text.split_once('.')?;
                Some((major.parse().ok()?, minor.parse().ok()?))
            }),
        })
    };
    text.lines().filter_map(gpu).collect()
}

fn combine(root: &Path, listed: Vec<Listed>, reported: Vec<Reported>) -> Vec<FoundDevice> {
    let shared = SHARED
        .iter()
        .map(|name| Path::new("/dev").join(name))
        .filter(|path| path.strip_prefix("/").is_ok_and(|path| root.join(path).exists()));
    let shared: Vec<PathBuf> = shared.collect();
    let device = |gpu: Listed| {
        let report = reported.iter().find(|report| report.bus == gpu.bus);
        let uuid = report.map_or(gpu.uuid.clone(), |report| report.uuid.clone());
        let mut paths = vec![PathBuf::from(format!("/dev/nvidia{}", gpu.minor))];
        paths.extend(shared.iter().cloned());
        // Without a UUID, as before the driver has started, the number is used.
        let id = if uuid.starts_with("GPU-") && !uuid.contains('?') { uuid } else { gpu.minor };
        FoundDevice {
            product: report.map_or(gpu.model, |report| report.name.clone()),
            memory_mib: report.and_then(|report| report.memory_mib),
            compute: report.and_then(|report| report.compute),
            driver: report.and_then(|report| report.driver.clone()),
            ..FoundDevice::new(Device { resource: NVIDIA.to_owned(), id, paths })
        }
    };
    listed.into_iter().map(device).collect()
}
