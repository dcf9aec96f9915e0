//! Facts about a node's machine and its resource shortages, which a kubelet reports.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Facts about a machine that change only when it is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Host name in the format of a Node's name: lower-case letters, digits, `-` and `.`.
    pub name: String,
    /// Usable CPUs.
    pub cpus: u64,
    /// Usable memory in bytes.
    pub memory_bytes: u64,
    /// Size in bytes of the disk with the pods' files and the images.
    pub disk_bytes: u64,
    /// CPU architecture with Kubernetes' name, such as `amd64`.
    pub architecture: String,
    /// Release of the kernel.
    pub kernel_version: String,
    /// Name of the operating system, such as `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// Identifier of this start of the system.
    pub boot_id: String,
    /// Identifier of the installation.
    pub machine_id: String,
    /// Identifier of the hardware; if it has none, that of the installation.
    pub system_uuid: String,
    /// Product name of the hardware, as the value of a label.
    pub instance_type: Option<String>,
    /// Addresses at which other machines reach this machine, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Labels that describe the machine's devices, such as `nvidia.com/gpu.product`.
    pub labels: BTreeMap<String, String>,
}

/// Shortages of a machine. Each is a message for users; `None` if there is no shortage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Too little memory is available.
    pub memory: Option<String>,
    /// The disk with the pods' files and the images has too little space or too few inodes.
    pub disk: Option<String>,
    /// Too few process identifiers are free.
    pub pids: Option<String>,
}

/// Amounts that must stay free of pods: the thresholds of [`Machine::pressure`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Margin {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the disk.
    pub disk_bytes: u64,
}

/// The machine of one node.
pub trait Machine: Send + Sync + 'static {
    /// Facts that do not change while this process runs.
    fn facts(&self) -> &MachineFacts;

    /// Amounts that pods cannot request.
    fn margin(&self) -> Margin;

    /// Current shortages.
    ///
    /// # Errors
    /// The values cannot be read.
    fn pressure(&self) -> std::io::Result<Pressure>;
}
