//! The namespaces and mounts that the containers of a pod share. The supervisor enters them first,
//! so that its children inherit them and the kernel removes them with the pod's last process.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use berth_pod_runtime::Volume;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::InitCommand;
use crate::folder::PodFolder;
use crate::options::Level;
use crate::overlay;
use crate::protocol::Launch;
use crate::volumes;

/// Size of a pod's shared memory, as in other container runtimes.
const SHARED_MEMORY: &std::ffi::CStr = c"mode=1777,size=64m";

/// Score of the supervisor in the kernel's choice of a process to kill when memory runs out. It is
/// among the last.
const OOM_SCORE: &str = "-998";

/// Sets up the pod's namespaces. Returns how to start the entry helper.
pub(super) fn prepare(folder: &PodFolder, launch: &Launch) -> Result<InitCommand, String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1))
        .map_err(|error| failed("reaper")(error.into()))?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    let (program, args) = launch.init.split_first().ok_or("pod.json: the init command (`init`) is empty")?;
    let init = InitCommand { program: PathBuf::from(program), args: args.to_vec() };
    if launch.level == Level::Plain {
        return Ok(init);
    }
    if launch.level == Level::Rootless {
        if launch.user_namespace {
            join_user_namespace().map_err(failed("user namespace of the pod network"))?;
        }
        enter_user_namespace().map_err(failed("user namespace"))?;
    }
    let config = &launch.config;
    let mut namespaces = CloneFlags::CLONE_NEWNS;
    if !config.host_network {
        namespaces |= CloneFlags::CLONE_NEWUTS;
    }
    if launch.has_network_namespace() {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    if !config.host_ipc {
        namespaces |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(namespaces).map_err(|error| failed("namespaces")(error.into()))?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).map_err(|error| failed("mount propagation")(error.into()))?;
    if !config.host_network {
        rustix::system::sethostname(config.hostname.as_bytes()).map_err(|error| failed("host name")(error.into()))?;
    }
    // The pod network brings up the loopback interface of a pod with an address.
    if launch.has_network_namespace() && launch.ips.is_empty() {
        enable_loopback(folder).map_err(failed("loopback interface"))?;
    }
    write_sysctls(launch)?;
    mount_shared(folder, launch).map_err(failed("pod's mounts"))?;
    let program = protect_program(folder, &init.program).map_err(failed("entry helper"))?;
    Ok(InitCommand { program, ..init })
}

/// The ID of this process in the PID namespace of the host.
pub(super) fn host_pid() -> u32 {
    std::process::id()
}

/// Enters the user namespace of the pod network, which is this process's standard input. Pods keep
/// user namespaces of their own below it.
fn join_user_namespace() -> std::io::Result<()> {
    move_into_link_name_space(std::io::stdin().as_fd(), Some(LinkNameSpaceType::User))?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(())
}

/// Makes this process root of a new user namespace that contains only its own user.
fn enter_user_namespace() -> std::io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))
}

/// Brings up the loopback interface of the network namespace. A new sysfs mount shows this
/// namespace, and its file with the interface's flags can be written.
fn enable_loopback(folder: &PodFolder) -> std::io::Result<()> {
    /// `IFF_UP | IFF_LOOPBACK`
    const UP: &str = "0x9";
    let path = folder.path().join("sys");
    std::fs::create_dir_all(&path)?;
    mount("sysfs", &path, "sysfs", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    let written = std::fs::write(path.join("class/net/lo/flags"), UP);
    unmount(&path, UnmountFlags::DETACH)?;
    written
}

fn write_sysctls(launch: &Launch) -> Result<(), String> {
    for (name, value) in &launch.config.sysctls {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        if name.contains("..") || name.starts_with('/') {
            return Err(format!("sysctl {name:?}: expected a name such as net.ipv4.ip_local_port_range"));
        }
        std::fs::write(&path, value).map_err(|error| format!("sysctl {name}: {error}"))?;
    }
    Ok(())
}

/// Mounts the shared memory, the volumes in memory and those of layered images.
fn mount_shared(folder: &PodFolder, launch: &Launch) -> std::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let path = shared_memory(folder);
    std::fs::create_dir_all(&path)?;
    if launch.config.host_ipc {
        mount_bind("/dev/shm", &path)?;
    } else {
        mount("tmpfs", &path, "tmpfs", flags | MountFlags::NOEXEC, SHARED_MEMORY)?;
    }
    for (name, volume) in &launch.config.volumes {
        let path = folder.volume(name);
        match volume {
            Volume::EmptyDir { memory: true, size_limit_bytes } => {
                let options = memory_options(launch, *size_limit_bytes)?;
                mount("tmpfs", path, "tmpfs", flags, options.as_c_str())?;
            }
            Volume::Image { root } => {
                let Some(layers) = volumes::overlaid(root) else { continue };
                let options = overlay::options(layers, None, launch.level == Level::Rootless);
                let options = CString::new(options.map_err(std::io::Error::other)?)?;
                mount("overlay", path, "overlay", flags | MountFlags::RDONLY, options.as_c_str())?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Options of a volume in memory.
fn memory_options(launch: &Launch, size_limit_bytes: Option<u64>) -> std::io::Result<CString> {
    let group = launch.config.fs_group.filter(|_| launch.level == Level::Full);
    // New files inherit the volume's group.
    let mut options = if group.is_some() { "mode=2777" } else { "mode=777" }.to_owned();
    if let Some(size) = size_limit_bytes.or(launch.config.limits.memory_bytes) {
        options += &format!(",size={size}");
    }
    if let Some(group) = group {
        options += &format!(",gid={group}");
    }
    Ok(CString::new(options)?)
}

/// Folder of the pod's shared memory.
pub(super) fn shared_memory(folder: &PodFolder) -> PathBuf {
    folder.path().join("shm")
}

/// Bind-mounts the executable read-only and returns the path of the mount. A process of the pod
/// that opens it through `/proc/PID/exe` cannot write to it.
fn protect_program(folder: &PodFolder, program: &Path) -> std::io::Result<PathBuf> {
    let path = folder.path().join("helper");
    std::fs::File::options().create(true).append(true).open(&path)?;
    mount_bind(program, &path)?;
    let mounted = rustix::fs::statvfs(&path)?;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
    if mounted.f_flag.contains(rustix::fs::StatVfsMountFlags::NODEV) {
        flags |= MountFlags::NODEV;
    }
    mount_remount(&path, flags, c"")?;
    Ok(path)
}
