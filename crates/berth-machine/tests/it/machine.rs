//! Tests of the facts of described machines and of this machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use berth_machine::{Figures, ThisMachine, detect};
use berth_pod_runtime::Machine;

/// A system's files in a temporary folder.
struct System(tempfile::TempDir);

impl System {
    fn new() -> Self {
        let system = Self(tempfile::tempdir().expect("a folder"));
        system
            .file("proc/meminfo", "MemTotal:       16384 kB\nMemFree:        100 kB\nMemAvailable:    8192 kB\n")
            .file("proc/sys/kernel/hostname", "Node_7\n")
            .file("proc/sys/kernel/osrelease", "6.12.0\n")
            .file("proc/sys/kernel/random/boot_id", "boot\n")
            .file("proc/sys/kernel/pid_max", "1000\n")
            .file("proc/sys/kernel/threads-max", "500\n")
            .file("proc/loadavg", "0.1 0.2 0.3 2/480 77\n")
            .file("etc/machine-id", "machine\n")
            .file("etc/os-release", "NAME=x\nPRETTY_NAME=\"Test Linux 1\"\n")
            .file("sys/class/dmi/id/product_name", "Super Server (X13)\n");
        system
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, text).expect("written");
        self
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn machine(&self) -> ThisMachine {
        ThisMachine::read_at(self.root(), self.root(), &detect(self.root())).expect("read")
    }
}

#[test]
fn facts_come_from_the_system_files() {
    let system = System::new();
    let machine = system.machine();
    let facts = machine.facts();
    assert_eq!((facts.name.as_str(), facts.memory_bytes), ("node-7", 16 << 20));
    assert_eq!((facts.kernel_version.as_str(), facts.os_image.as_str()), ("6.12.0", "Test Linux 1"));
    assert_eq!(
        (facts.boot_id.as_str(), facts.machine_id.as_str(), facts.system_uuid.as_str()),
        ("boot", "machine", "machine")
    );
    assert_eq!(facts.instance_type.as_deref(), Some("Super-Server--X13"));
    assert!(facts.labels.is_empty() && facts.cpus > 0 && facts.disk_bytes > 0 && !facts.addresses.is_empty());
    assert_eq!(machine.margin().memory_bytes, 100 << 20);
    let pressure = machine.pressure().expect("read");
    assert!(pressure.memory.expect("short of memory").starts_with("8Mi of memory is available"));
    assert_eq!(pressure.pids.as_deref(), Some("20 process IDs are free, at least 50 (10 %) are required"));
}

#[test]
fn the_memory_limit_of_the_control_group_counts() {
    // Version 2, with the limit of a parent.
    let system = System::new();
    system
        .file("proc/self/cgroup", "0::/ci/job\n")
        .file("sys/fs/cgroup/ci/memory.max", "8388608\n")
        .file("sys/fs/cgroup/ci/memory.current", "7340032\n")
        .file("sys/fs/cgroup/ci/memory.stat", "anon 1\ninactive_file 1048576\n")
        .file("sys/fs/cgroup/ci/job/memory.max", "max\n");
    let figures = Figures::read(system.root(), system.root()).expect("read");
    assert_eq!((figures.memory_bytes, figures.memory_available_bytes), (8 << 20, 2 << 20));
    assert_eq!(system.machine().facts().memory_bytes, 8 << 20);
    // Version 1, unlimited.
    let system = System::new();
    system
        .file("proc/self/cgroup", "4:memory:/a\n0::/\n")
        .file("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n")
        .file("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1\n");
    let figures = Figures::read(system.root(), system.root()).expect("read");
    assert_eq!((figures.memory_bytes, figures.memory_available_bytes), (16 << 20, 8 << 20));
}

#[test]
fn nvidia_gpus_are_found_with_their_files_and_labels() {
    let system = System::new();
    for (bus, minor, uuid) in [("0000:17:00.0", 1, "GPU-b"), ("0000:03:00.0", 0, "GPU-a")] {
        let text = format!("Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
        system.file(&format!("proc/driver/nvidia/gpus/{bus}/information"), &text);
    }
    system.file("dev/nvidiactl", "").file("dev/nvidia-uvm", "");
    let answer = "0, GPU-a, NVIDIA H100 80GB HBM3, 81559, 550.54.15, 00000000:03:00.0, 9.0\n\
                  1, GPU-b, NVIDIA H100 80GB HBM3, 81559, 550.54.15, 00000000:17:00.0, 9.0\n";
    system.file("usr/bin/nvidia-smi", &format!("#!/bin/sh\ncat <<'END'\n{answer}END\n"));
    let program = system.root().join("usr/bin/nvidia-smi");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");

    let found = detect(system.root());
    let shown: Vec<_> = found.iter().map(|gpu| (gpu.device.id.as_str(), gpu.memory_mib, gpu.compute)).collect();
    assert_eq!(shown, [("GPU-a", Some(81559), Some((9, 0))), ("GPU-b", Some(81559), Some((9, 0)))]);
    let paths: Vec<_> = found[1].device.paths.iter().map(|path| path.display().to_string()).collect();
    assert_eq!(paths, ["/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]);
    let machine = system.machine();
    let labels: Vec<_> = machine.facts().labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        labels,
        [
            "nvidia.com/cuda.driver.major=550",
            "nvidia.com/cuda.driver.minor=54",
            "nvidia.com/cuda.driver.rev=15",
            "nvidia.com/gpu.compute.major=9",
            "nvidia.com/gpu.compute.minor=0",
            "nvidia.com/gpu.count=2",
            "nvidia.com/gpu.family=hopper",
            "nvidia.com/gpu.machine=Super-Server--X13",
            "nvidia.com/gpu.memory=81559",
            "nvidia.com/gpu.present=true",
            "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.replicas=1",
        ]
    );

    // If the program fails, the devices of the driver's list remain.
    system.file("usr/bin/nvidia-smi", "#!/bin/sh\necho 'no such field'; exit 2\n");
    let found = detect(system.root());
    let shown: Vec<_> =
        found.iter().map(|gpu| (gpu.device.id.as_str(), gpu.product.as_str(), gpu.memory_mib)).collect();
    assert_eq!(shown, [("GPU-a", "NVIDIA H100 80GB HBM3", None), ("GPU-b", "NVIDIA H100 80GB HBM3", None)]);
}

#[test]
fn amd_gpus_are_found_in_sysfs() {
    let system = System::new();
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    system
        .file(&format!("{nodes}/0/properties"), "cpu_cores_count 64\nsimd_count 0\n")
        .file(
            &format!("{nodes}/1/properties"),
            "cpu_cores_count 0\nsimd_count 1216\nvendor_id 4098\ndevice_id 29857\ndrm_render_minor 128\nunique_id 255\n",
        )
        .file(&format!("{nodes}/2/properties"), "simd_count 1216\ndevice_id 29857\ndrm_render_minor 129\n")
        .file("sys/class/drm/renderD128/device/mem_info_vram_total", "206141652992\n")
        .file("sys/class/drm/renderD128/device/product_name", "AMD Instinct MI300X\n")
        .file("sys/class/drm/renderD128/device/drm/card1/dev", "226:1\n");
    let found = detect(system.root());
    let shown: Vec<_> = found.iter().map(|gpu| (gpu.device.id.as_str(), gpu.product.as_str())).collect();
    assert_eq!(shown, [("GPU-00000000000000ff", "AMD Instinct MI300X"), ("1", "AMD-74a1")]);
    let paths: Vec<_> = found[0].device.paths.iter().map(|path| path.display().to_string()).collect();
    assert_eq!(paths, ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/card1"]);
    let labels = system.machine().facts().labels.clone();
    let expected = [("count", "2"), ("product-name", "AMD-Instinct-MI300X"), ("vram", "192G")];
    let expected = expected.map(|(key, value)| (format!("amd.com/gpu.{key}"), value.to_owned()));
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn this_machine_is_described() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = detect(Path::new("/"));
    let machine = ThisMachine::read(folder.path(), &devices).expect("read");
    let (facts, figures) = (machine.facts(), machine.figures().expect("read"));
    assert!(!facts.name.is_empty() && !facts.kernel_version.is_empty() && !facts.boot_id.is_empty());
    assert!(facts.memory_bytes > 64 << 20, "{facts:?}");
    assert!(figures.memory_available_bytes <= figures.memory_bytes && figures.disk_free_bytes <= figures.disk_bytes);
    assert!(figures.pids_used > 0 && figures.pids_used < figures.pids, "{figures:?}");
    if devices.is_empty() {
        berth_testing::skip("this machine has no GPU; only described GPUs were tested");
    } else {
        assert!(devices.iter().all(|gpu| gpu.device.paths.iter().all(|path| path.exists())), "{devices:?}");
    }
}
