//! The devices of each container. They are recorded in a file before an assignment takes effect. A
//! device is therefore never assigned to two pods, even if the process ends during an assignment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use berth_pod_runtime::{Device, Devices, GpuReading, PodUid, Result, RuntimeError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::gpu::{NVIDIA, usage};
use crate::{FoundDevice, device_env};

/// Identifiers of devices by pod, container and resource.
type Table = BTreeMap<PodUid, BTreeMap<String, BTreeMap<String, Vec<String>>>>;

/// The table of assignments cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}; stop all pods of this node and remove the file", path.display())]
pub struct AssignmentError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: String,
}

#[derive(Default, Serialize, Deserialize)]
struct File {
    assignments: Table,
}

/// The devices of this machine, and their assignment.
#[derive(Debug)]
pub struct AssignedDevices {
    devices: Vec<FoundDevice>,
    path: PathBuf,
    /// Root folder of the system with the drivers' tools.
    root: PathBuf,
    table: Mutex<Table>,
}

impl AssignedDevices {
    /// Reads the table from `devices.json` in the node's folder. The file may not exist yet.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub fn open(folder: &Path, devices: Vec<FoundDevice>) -> std::result::Result<Self, AssignmentError> {
        let path = folder.join("devices.json");
        let fail = |problem: String| AssignmentError { path: path.clone(), problem };
        let file: File = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| fail(error.to_string()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::default(),
            Err(error) => return Err(fail(error.to_string())),
        };
        Ok(Self { devices, path, root: PathBuf::from("/"), table: Mutex::new(file.assignments) })
    }

    /// The devices of the machine.
    pub fn devices(&self) -> &[FoundDevice] {
        &self.devices
    }

    /// Resources of which the machine has devices.
    pub fn resources(&self) -> BTreeSet<String> {
        self.devices.iter().map(|device| device.device.resource.clone()).collect()
    }

    fn find(&self, resource: &str, id: &str) -> Option<&FoundDevice> {
        self.devices.iter().find(|device| device.device.resource == resource && device.device.id == id)
    }

    /// The devices that an earlier call assigned.
    fn known(&self, ids: &[String], pod: &PodUid, container: &str, resource: &str) -> Result<Vec<Device>> {
        let device = |id: &String| {
            let found = self.find(resource, id).filter(|device| device.is_healthy());
            found.map(|device| device.device.clone()).ok_or_else(|| {
                let message = format!(
                    "device {id:?} ({resource}) of container {container:?} of pod {pod} is not on this machine any more: \
                     delete the pod"
                );
                RuntimeError::Config(message)
            })
        };
        ids.iter().map(device).collect()
    }

    /// Changes the table, first in the file and then in memory.
    fn change(&self, table: &mut Table, change: impl FnOnce(&mut Table)) -> io::Result<()> {
        let mut changed = table.clone();
        change(&mut changed);
        if changed == *table {
            return Ok(());
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        let content = File { assignments: changed };
        serde_json::to_writer_pretty(&mut file, &content)?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        fs::File::open(folder)?.sync_all()?;
        *table = content.assignments;
        Ok(())
    }

    fn forget(&self, is_gone: impl Fn(&PodUid) -> bool) {
        let mut table = self.table.lock();
        let changed = self.change(&mut table, |table| table.retain(|pod, _| !is_gone(pod)));
        if let Err(error) = changed {
            // Until the file can be written, the devices stay assigned, which is safe.
            tracing::warn!(path = %self.path.display(), %error, "cannot record the release of devices");
        }
    }
}

impl Devices for AssignedDevices {
    fn capacity(&self) -> BTreeMap<String, usize> {
        let mut capacity: BTreeMap<String, usize> = BTreeMap::new();
        for device in &self.devices {
            // If all devices of a resource are lost, the resource is still listed with 0.
            *capacity.entry(device.device.resource.clone()).or_default() += usize::from(device.is_healthy());
        }
        capacity
    }

    fn assign(&self, pod: &PodUid, container: &str, resource: &str, count: usize) -> Result<Vec<Device>> {
        let mut table = self.table.lock();
        let earlier = table.get(pod).and_then(|containers| containers.get(container)?.get(resource));
        if let Some(ids) = earlier {
            if ids.len() != count {
                let message = format!(
                    "container {container:?} of pod {pod} has {} devices of {resource}, and cannot have {count}",
                    ids.len()
                );
                return Err(RuntimeError::Config(message));
            }
            return self.known(ids, pod, container, resource);
        }
        let taken: BTreeSet<&String> = table
            .values()
            .flat_map(BTreeMap::values)
            .filter_map(|resources| resources.get(resource))
            .flatten()
            .collect();
        let free: Vec<&FoundDevice> = self
            .devices
            .iter()
            .filter(|device| device.device.resource == resource && device.is_healthy())
            .filter(|device| !taken.contains(&device.device.id))
            .collect();
        if free.len() < count {
            let message = format!(
                "container {container:?} of pod {pod} needs {count} devices of {resource}, {} are free",
                free.len()
            );
            return Err(RuntimeError::Config(message));
        }
        let chosen: Vec<Device> = free[..count].iter().map(|device| device.device.clone()).collect();
        let ids = chosen.iter().map(|device| device.id.clone()).collect();
        let changed = self.change(&mut table, |table| {
            let containers = table.entry(pod.clone()).or_default();
            containers.entry(container.to_owned()).or_default().insert(resource.to_owned(), ids);
        });
        changed.map_err(|error| RuntimeError::Internal(format!("{}: {error}", self.path.display())))?;
        Ok(chosen)
    }

    fn environment(&self, devices: &[Device]) -> Vec<(String, String)> {
        device_env(devices, &self.resources())
    }

    fn readings(&self) -> Vec<GpuReading> {
        // Other devices of the resource, such as those of a file, have no driver to ask.
        if !self.devices.iter().any(|device| device.device.resource == NVIDIA) {
            return Vec::new();
        }
        let mut readings = usage::readings(&self.root);
        let table = self.table.lock();
        let holds = |resources: &BTreeMap<String, Vec<String>>, reading: &GpuReading| {
            let number = reading.index.to_string();
            resources.get(NVIDIA).is_some_and(|ids| ids.iter().any(|id| *id == reading.uuid || *id == number))
        };
        for reading in &mut readings {
            let containers = table.iter().flat_map(|(pod, containers)| containers.iter().map(move |it| (pod, it)));
            let holder = containers.into_iter().find(|(_, (_, resources))| holds(resources, reading));
            reading.holder = holder.map(|(pod, (container, _))| (pod.clone(), container.clone()));
        }
        readings
    }

    fn release(&self, pod: &PodUid) {
        self.forget(|known| known == pod);
    }

    fn retain(&self, pods: &BTreeSet<PodUid>) {
        self.forget(|known| !pods.contains(known));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn readings_name_the_container_that_holds_a_gpu() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let tool = root.path().join("usr/bin/nvidia-smi");
        fs::create_dir_all(tool.parent().expect("a folder")).expect("a folder");
        let lines = "0, GPU-a, 00000000:17:00.0, NVIDIA L4, 580.1, 42, 9\\n1, GPU-b, 00000000:65:00.0, NVIDIA L4, 580.1, 0, 0\\n";
        fs::write(&tool, format!("#!/bin/sh\nprintf '{lines}'\n")).expect("written");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("executable");
        let device = |id: &str| FoundDevice {
            device: Device { resource: NVIDIA.to_owned(), id: id.to_owned(), paths: Vec::new() },
            product: String::new(),
            memory_mib: None,
            compute: None,
            driver: None,
        };
        let opened = AssignedDevices::open(root.path(), vec![device("GPU-a"), device("GPU-b")]).expect("a table");
        let devices = AssignedDevices { root: root.path().to_owned(), ..opened };
        let pod = PodUid("u".to_owned());
        devices.assign(&pod, "c", NVIDIA, 1).expect("a free GPU");
        let readings = devices.readings();
        assert_eq!(readings[0].holder, Some((pod, "c".to_owned())));
        assert_eq!((readings[0].values.utilization, &readings[1].holder), (Some(42.0), &None));
    }
}
