//! GKE's machine types with the properties that matter to a scheduler: size, accelerators,
//! allocatable resources, price.
//!
//! Sizes are those of the public machine-type pages; reservations follow GKE's "Plan node sizes"
//! page (CPU: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the rest;
//! memory: 25 % of the first 4 GiB, 20 % of the next 4, 10 % of the next 8, 6 % of the next 112, 2
//! % above, plus 100 MiB). Prices are list prices of us-central1 rounded to the cent; they are used
//! only to rank pools and to estimate costs in reports.

/// One machine type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MachineType {
    /// Name, such as `g2-standard-24`.
    pub name: &'static str,
    /// Virtual CPUs.
    pub cpus: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// GKE's accelerator name and the count attached, for types that come with accelerators.
    pub accelerator: Option<(&'static str, i64)>,
    /// Price of an on-demand machine, US dollars an hour.
    pub price_per_hour: f64,
    /// True if the CPU shares a core with other machines (E2 micro to medium); GKE then reserves
    /// 1,060 milli-CPU.
    pub is_shared_core: bool,
}

const GIB: i64 = 1024;

const fn machine(name: &'static str, cpus: i64, memory_gib: i64, price_per_hour: f64) -> MachineType {
    MachineType { name, cpus, memory_mib: memory_gib * GIB, accelerator: None, price_per_hour, is_shared_core: false }
}

const fn with(machine: MachineType, accelerator: &'static str, count: i64) -> MachineType {
    MachineType { accelerator: Some((accelerator, count)), ..machine }
}

const fn shared(machine: MachineType) -> MachineType {
    MachineType { is_shared_core: true, ..machine }
}

/// The known machine types, sorted by name, so that lists of them are stable.
const MACHINES: &[MachineType] = &[
    with(machine("a2-highgpu-1g", 12, 85, 3.67), "nvidia-tesla-a100", 1),
    with(machine("a2-highgpu-2g", 24, 170, 7.35), "nvidia-tesla-a100", 2),
    with(machine("a2-highgpu-4g", 48, 340, 14.69), "nvidia-tesla-a100", 4),
    with(machine("a2-highgpu-8g", 96, 680, 29.39), "nvidia-tesla-a100", 8),
    with(machine("a2-megagpu-16g", 96, 1360, 55.74), "nvidia-tesla-a100", 16),
    with(machine("a2-ultragpu-1g", 12, 170, 5.07), "nvidia-a100-80gb", 1),
    with(machine("a2-ultragpu-2g", 24, 340, 10.14), "nvidia-a100-80gb", 2),
    with(machine("a2-ultragpu-4g", 48, 680, 20.28), "nvidia-a100-80gb", 4),
    with(machine("a2-ultragpu-8g", 96, 1360, 40.55), "nvidia-a100-80gb", 8),
    with(machine("a3-highgpu-1g", 26, 234, 11.06), "nvidia-h100-80gb", 1),
    with(machine("a3-highgpu-2g", 52, 468, 22.12), "nvidia-h100-80gb", 2),
    with(machine("a3-highgpu-4g", 104, 936, 44.25), "nvidia-h100-80gb", 4),
    with(machine("a3-highgpu-8g", 208, 1872, 88.49), "nvidia-h100-80gb", 8),
    with(machine("ct5lp-hightpu-4t", 112, 192, 4.80), "tpu-v5-lite-podslice", 4),
    with(machine("ct6e-standard-1t", 44, 176, 2.70), "tpu-v6e-slice", 1),
    with(machine("ct6e-standard-4t", 180, 720, 10.80), "tpu-v6e-slice", 4),
    with(machine("ct6e-standard-8t", 180, 1440, 21.60), "tpu-v6e-slice", 8),
    machine("e2-highmem-4", 4, 32, 0.18),
    shared(machine("e2-medium", 2, 4, 0.03)),
    machine("e2-standard-16", 16, 64, 0.54),
    machine("e2-standard-2", 2, 8, 0.07),
    machine("e2-standard-32", 32, 128, 1.07),
    machine("e2-standard-4", 4, 16, 0.13),
    machine("e2-standard-8", 8, 32, 0.27),
    with(machine("g2-standard-12", 12, 48, 1.00), "nvidia-l4", 1),
    with(machine("g2-standard-16", 16, 64, 1.15), "nvidia-l4", 1),
    with(machine("g2-standard-24", 24, 96, 2.00), "nvidia-l4", 2),
    with(machine("g2-standard-32", 32, 128, 1.73), "nvidia-l4", 1),
    with(machine("g2-standard-4", 4, 16, 0.71), "nvidia-l4", 1),
    with(machine("g2-standard-48", 48, 192, 4.00), "nvidia-l4", 4),
    with(machine("g2-standard-8", 8, 32, 0.85), "nvidia-l4", 1),
    with(machine("g2-standard-96", 96, 384, 8.00), "nvidia-l4", 8),
    machine("n1-standard-1", 1, 4, 0.05),
    machine("n1-standard-16", 16, 60, 0.76),
    machine("n1-standard-2", 2, 8, 0.09),
    machine("n1-standard-32", 32, 120, 1.52),
    machine("n1-standard-4", 4, 15, 0.19),
    machine("n1-standard-8", 8, 30, 0.38),
    machine("n2-highmem-16", 16, 128, 1.05),
    machine("n2-standard-16", 16, 64, 0.78),
    machine("n2-standard-2", 2, 8, 0.10),
    machine("n2-standard-32", 32, 128, 1.55),
    machine("n2-standard-4", 4, 16, 0.19),
    machine("n2-standard-64", 64, 256, 3.11),
    machine("n2-standard-8", 8, 32, 0.39),
    machine("n4-standard-16", 16, 64, 0.76),
    machine("n4-standard-2", 2, 8, 0.09),
    machine("n4-standard-32", 32, 128, 1.52),
    machine("n4-standard-4", 4, 16, 0.19),
    machine("n4-standard-8", 8, 32, 0.38),
];

/// Every known machine type, by name.
pub fn machine_types() -> &'static [MachineType] {
    MACHINES
}

/// The machine type with this name.
pub fn machine_type(name: &str) -> Option<&'static MachineType> {
    MACHINES.iter().find(|machine| machine.name == name)
}

impl MachineType {
    /// The family label of GKE's nodes: the part of the name before the first dash.
    pub fn family(&self) -> &'static str {
        self.name.split_once('-').map_or(self.name, |(family, _)| family)
    }
}

/// CPU of a machine that is allocatable to pods, in milli-CPU.
pub fn allocatable_cpu_milli(cpus: i64, is_shared_core: bool) -> i64 {
    let capacity = cpus.saturating_mul(1000);
    if is_shared_core {
        return (capacity - 1060).max(0);
    }
    // In hundredths of a milli-CPU, so that 0.25 % of a core is an integer.
    let cores = |from: i64, to: i64| (cpus.min(to) - from).max(0);
    let reserved_hundredths =
        cores(0, 1) * 6_000 + cores(1, 2) * 1_000 + cores(2, 4) * 500 + cores(4, i64::MAX).saturating_mul(250);
    (capacity - reserved_hundredths / 100).max(0)
}

/// Memory of a machine that is allocatable to pods, in bytes.
pub fn allocatable_memory_bytes(memory_bytes: i64) -> i64 {
    const MIB: i64 = 1 << 20;
    const GIB: i64 = 1 << 30;
    if memory_bytes < GIB {
        return (memory_bytes - 255 * MIB).max(0);
    }
    let part = |from: i64, to: i64| (memory_bytes.min(to) - from).max(0);
    let reserved = part(0, 4 * GIB) / 4
        + part(4 * GIB, 8 * GIB) / 5
        + part(8 * GIB, 16 * GIB) / 10
        + part(16 * GIB, 128 * GIB) / 100 * 6
        + part(128 * GIB, i64::MAX) / 50;
    // Kubelets report memory in whole KiB.
    (memory_bytes - reserved - 100 * MIB).max(0) / 1024 * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocatable_cpu_follows_gkes_table() {
        for (cpus, expected) in [(4, 3_920), (12, 11_900), (16, 15_890), (24, 23_870), (180, 179_480), (208, 207_410)] {
            assert_eq!(allocatable_cpu_milli(cpus, false), expected, "{cpus} CPUs");
        }
        assert_eq!(allocatable_cpu_milli(2, true), 940);
    }

    #[test]
    fn allocatable_memory_of_96_gib_is_about_88_and_a_half() {
        let gib = allocatable_memory_bytes(96 << 30) as f64 / f64::from(1 << 30);
        assert!((88.4..88.6).contains(&gib), "{gib}");
    }

    #[test]
    fn machine_names_are_unique_and_sorted() {
        assert!(MACHINES.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
