//! What a kubelet reports about the machine of its node.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Facts about a machine that change at a restart only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Host name, as a name of a Node: lower-case letters, digits, `-` and `.`.
    pub name: String,
    /// Usable CPUs.
    pub cpus: u64,
    /// Usable memory in bytes.
    pub memory_bytes: u64,
    /// Size in bytes of the disk that holds pods and images.
    pub disk_bytes: u64,
    /// CPU architecture in Kubernetes' words, such as `amd64`.
    pub architecture: String,
    /// Release of the kernel.
    pub kernel_version: String,
    /// Name of the operating system, such as `Debian GNU/Linux 12 (bookworm)`.
    pub os_image: String,
    /// Identifier of this start of the system.
    pub boot_id: String,
    /// Identifier of the installation.
    pub machine_id: String,
    /// Identifier of the hardware; the installation's if the hardware has none.
    pub system_uuid: String,
    /// Product name of the hardware, as the value of a label.
    pub instance_type: Option<String>,
    /// Addresses by which others reach the machine, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// Labels that describe the machine's devices, such as `nvidia.com/gpu.product`.
    pub labels: BTreeMap<String, String>,
}

/// Shortages of a machine. Each is a message for users, `None` if there is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Too little memory is available.
    pub memory: Option<String>,
    /// The disk of pods and images has too little space or too few inodes.
    pub disk: Option<String>,
    /// Too few process identifiers are free.
    pub pids: Option<String>,
}

/// What a machine keeps for itself when pods have taken their share: the thresholds of
/// [`Machine::pressure`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Margin {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the disk.
    pub disk_bytes: u64,
}

/// The machine of one node.
pub trait Machine: Send + Sync + 'static {
    /// Facts that stay the same while this process runs.
    fn facts(&self) -> &MachineFacts;

    /// Amounts that pods cannot request.
    fn margin(&self) -> Margin;

    /// Present shortages.
    ///
    /// # Errors
    /// The figures cannot be read.
    fn pressure(&self) -> std::io::Result<Pressure>;
}
