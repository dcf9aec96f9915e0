//! A file that declares devices, either devices of other vendors or devices for tests.
//!
//! ```yaml
//! devices:
//! - resource: nvidia.com/gpu
//!   count: 8
//!   product: NVIDIA-H100-80GB-HBM3
//!   memoryMiB: 81559
//! - resource: example.com/fpga
//!   id: left
//!   paths: [/dev/fpga0]
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use berth_pod_runtime::Device;
use serde::Deserialize;

use super::FoundDevice;

/// Limit on the devices of one entry.
const COUNT_MAX: usize = 1024;

/// Error in a file of devices.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct DeviceFileError {
    /// The file.
    pub path: PathBuf,
    /// The problem, with the path of the field.
    pub problem: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    devices: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    resource: String,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    count: Option<usize>,
    #[serde(default)]
    product: String,
    #[serde(default, rename = "memoryMiB")]
    memory_mib: Option<u64>,
    /// Compute capability, such as `"9.0"`.
    #[serde(default)]
    compute: Option<String>,
    #[serde(default)]
    paths: Vec<PathBuf>,
}

/// Reads a file of devices, YAML or JSON. Declared devices replace the detected devices of the same
/// resource. Returns the declared devices and the detected devices of other resources.
///
/// # Errors
/// The file cannot be read, or an entry is invalid.
pub fn declared(path: &Path, detected: Vec<FoundDevice>) -> Result<Vec<FoundDevice>, DeviceFileError> {
    let fail = |problem: String| DeviceFileError { path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let file: File = serde_saphyr::from_str(&text).map_err(|error| fail(error.to_string()))?;
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for (i, entry) in file.devices.into_iter().enumerate() {
        for device in devices(entry).map_err(|problem| fail(format!("devices[{i}].{problem}")))? {
            let id = (device.device.resource.clone(), device.device.id.clone());
            if !known.insert(id) {
                let name = device.device.id;
                return Err(fail(format!("devices[{i}].id: {name:?} is the ID of an earlier device")));
            }
            found.push(device);
        }
    }
    let is_replaced = |device: &FoundDevice| found.iter().any(|other| other.device.resource == device.device.resource);
    let mut all: Vec<FoundDevice> = detected.into_iter().filter(|device| !is_replaced(device)).collect();
    all.extend(found);
    Ok(all)
}

fn devices(entry: Entry) -> Result<Vec<FoundDevice>, String> {
    if !entry.resource.split_once('/').is_some_and(|(domain, name)| !domain.is_empty() && !name.is_empty()) {
        return Err(format!("resource: {:?} is not an extended resource, expected DOMAIN/NAME", entry.resource));
    }
    let compute = match &entry.compute {
        None => None,
        Some(text) => {
            let parsed = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            Some(parsed.ok_or_else(|| format!("compute: {text:?} is not a compute capability such as \"9.0\""))?)
        }
    };
    let ids: Vec<String> = match (entry.id, entry.count) {
        (Some(_), Some(_)) => return Err("count: cannot be set together with id".into()),
        (Some(id), None) if id.is_empty() || id.contains(',') => {
            return Err(format!("id: {id:?} is empty or has a comma"));
        }
        (Some(id), None) => vec![id],
        (None, count) => {
            let count = count.unwrap_or(1);
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(format!("count: {count} is outside 1 to {COUNT_MAX}"));
            }
            (0..count).map(|number| number.to_string()).collect()
        }
    };
    if let Some(path) = entry.paths.iter().find(|path| !path.is_absolute()) {
        return Err(format!("paths: {} is not an absolute path", path.display()));
    }
    let device = |id: String| FoundDevice {
        product: entry.product.clone(),
        memory_mib: entry.memory_mib,
        compute,
        ..FoundDevice::new(Device { resource: entry.resource.clone(), id, paths: entry.paths.clone() })
    };
    Ok(ids.into_iter().map(device).collect())
}
