//! What drivers report about GPUs.

use crate::PodUid;

/// A GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// Number on its node, from 0.
    pub index: u32,
    /// UUID, such as `GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52`.
    pub uuid: String,
    /// Address on the PCI bus, such as `00000000:17:00.0`.
    pub pci_bus_id: String,
    /// Product name, such as `NVIDIA L4`.
    pub model: String,
    /// Version of the driver; empty if unknown.
    pub driver: String,
    /// Pod and name of the container to which it is assigned.
    pub holder: Option<(PodUid, String)>,
    /// Measured values.
    pub values: GpuValues,
}

/// Measured values of a GPU; `None` if the driver does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuValues {
    /// Time in which a kernel ran, in percent.
    pub utilization: Option<f64>,
    /// Time in which memory was read or written, in percent.
    pub memory_utilization: Option<f64>,
    /// Memory in use in MiB.
    pub memory_used: Option<f64>,
    /// Free memory in MiB.
    pub memory_free: Option<f64>,
    /// Memory that the driver reserves in MiB.
    pub memory_reserved: Option<f64>,
    /// Power in watts.
    pub power: Option<f64>,
    /// Energy since the driver's start, in millijoules.
    pub energy: Option<f64>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<f64>,
    /// Temperature of the memory in degrees Celsius.
    pub memory_temperature: Option<f64>,
    /// Clock of the multiprocessors in MHz.
    pub sm_clock: Option<f64>,
    /// Clock of the memory in MHz.
    pub memory_clock: Option<f64>,
    /// Share of the time in which the tensor cores were busy, from 0 to 1.
    pub tensor_active: Option<f64>,
    /// Share of the time in which the memory interface was busy, from 0 to 1.
    pub dram_active: Option<f64>,
    /// Number of the last XID error; 0 if there was none.
    pub xid: Option<f64>,
    /// Rows of memory that were replaced after uncorrectable errors.
    pub remapped_rows: Option<f64>,
    /// 1 if a row could not be replaced.
    pub remap_failure: Option<f64>,
}
