//! Describes this machine as a node. [`ThisMachine`] contains its facts and its current usage,
//! [`AssignedDevices`] its devices and the containers to which they are assigned.
//!
//! Facts and usage are read from `/proc`, `/sys` and `/etc`; GPUs from NVIDIA's `nvidia-smi` and
//! from AMD's entries in `/sys`. A machine may have no GPU. A file can declare devices that these
//! sources do not report, or devices for tests.
//!
//! All functions that read files take the root folder of the system as an argument, so that tests
//! can describe other machines. This crate does not use Kubernetes types.

mod assigned;
mod facts;
mod figures;
mod gpu;
pub mod health;
mod labels;
mod text;
mod tool;

use std::io;
use std::path::{Path, PathBuf};

use berth_pod_runtime::{Machine, MachineFacts, Margin, Pressure};

pub use assigned::{AssignedDevices, AssignmentError};
pub use figures::Figures;
pub use gpu::{DeviceFileError, FoundDevice, declared, detect, device_env};
pub use health::HealthTools;
pub use tool::ToolError;

/// The machine on which this process runs.
#[derive(Clone, Debug)]
pub struct ThisMachine {
    root: PathBuf,
    folder: PathBuf,
    facts: MachineFacts,
}

impl ThisMachine {
    /// Reads the facts. `folder` is the folder of pods and images; `devices` are the result of
    /// [`detect`] and [`declared`].
    ///
    /// # Errors
    /// The size of the memory or of the disk cannot be read.
    pub fn read(folder: &Path, devices: &[FoundDevice]) -> io::Result<Self> {
        Self::read_at(Path::new("/"), folder, devices)
    }

    /// Reads the facts of a system whose root folder is `root`.
    ///
    /// # Errors
    /// The size of the memory or of the disk cannot be read.
    pub fn read_at(root: &Path, folder: &Path, devices: &[FoundDevice]) -> io::Result<Self> {
        let mut facts = facts::read(root)?;
        facts.disk_bytes = Figures::read(root, folder)?.disk_bytes;
        facts.labels = labels::of_devices(devices, facts.instance_type.as_deref());
        Ok(Self { root: root.to_owned(), folder: folder.to_owned(), facts })
    }

    /// The current size and usage of memory, disk and process IDs.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn figures(&self) -> io::Result<Figures> {
        Figures::read(&self.root, &self.folder)
    }
}

impl Machine for ThisMachine {
    fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    fn margin(&self) -> Margin {
        Margin { memory_bytes: figures::MEMORY_FREE_MIN, disk_bytes: figures::disk_free_min(self.facts.disk_bytes) }
    }

    fn pressure(&self) -> io::Result<Pressure> {
        self.figures().map(|figures| figures.pressure())
    }
}
