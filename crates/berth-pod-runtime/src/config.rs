//! The configuration of pods and containers that a kubelet passes to a runtime.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// UID of a pod. It becomes the name of the pod's folder, so a runtime accepts only letters, digits
/// and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodUid(pub String);

impl std::fmt::Display for PodUid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerId {
    /// UID of the pod.
    pub pod: PodUid,
    /// Name of the container within the pod.
    pub name: String,
    /// Number of the run: 0 for the first run, then the restart count.
    pub attempt: u32,
}

impl std::fmt::Display for ContainerId {
    /// The ID that a pod's status shows, without the runtime's scheme.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}_{}", self.pod, self.name, self.attempt)
    }
}

/// The common configuration of a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxConfig {
    /// UID of the pod.
    pub uid: PodUid,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Host name inside the pod.
    pub hostname: String,
    /// Fully qualified name for `/etc/hosts`: `hostname.subdomain.namespace.svc.cluster.local`.
    pub fqdn: Option<String>,
    /// Additional lines of `/etc/hosts`.
    pub host_aliases: Vec<HostAlias>,
    /// Resolver configuration; `None` to use the host's.
    pub dns: Option<DnsConfig>,
    /// True to use the host's network namespace.
    pub host_network: bool,
    /// True to use the host's PID namespace.
    pub host_pid: bool,
    /// True to use the host's IPC namespace.
    pub host_ipc: bool,
    /// True for one PID namespace that all containers of the pod share.
    pub share_process_namespace: bool,
    /// Ports of the host that are forwarded to the pod.
    pub host_ports: Vec<HostPort>,
    /// Limits of the pod as a whole, for its control group.
    pub limits: Limits,
    /// Group that owns the pod's volumes (`fsGroup`).
    pub fs_group: Option<u32>,
    /// Kernel parameters of the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Volumes, by name.
    pub volumes: BTreeMap<String, Volume>,
}

impl SandboxConfig {
    /// A pod with namespaces of its own, without volumes, ports and limits. Its host name is its
    /// name.
    pub fn new(uid: PodUid, namespace: &str, name: &str) -> Self {
        Self {
            uid,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            hostname: name.to_owned(),
            fqdn: None,
            host_aliases: Vec::new(),
            dns: None,
            host_network: false,
            host_pid: false,
            host_ipc: false,
            share_process_namespace: false,
            host_ports: Vec::new(),
            limits: Limits::default(),
            fs_group: None,
            sysctls: BTreeMap::new(),
            volumes: BTreeMap::new(),
        }
    }
}

/// Host names of one address in `/etc/hosts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAlias {
    /// Address.
    pub ip: String,
    /// Host names of the address.
    pub hostnames: Vec<String>,
}

/// Content of `/etc/resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DnsConfig {
    /// Addresses of name servers.
    pub nameservers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options such as `ndots:5`.
    pub options: Vec<String>,
}

/// A port of the host that is forwarded to a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPort {
    /// Address of the host; if empty, all addresses.
    pub host_ip: String,
    /// Port of the host.
    pub host_port: u16,
    /// Port of the pod.
    pub container_port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

/// Limits of a container or pod. `None` means unlimited. A limit is never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// CPU time in thousandths of a CPU.
    pub cpu_milli: Option<u64>,
    /// Requested CPU in thousandths of a CPU. It is the weight in the competition for CPU time.
    pub cpu_request_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Requested memory in bytes. When the machine runs out of memory, containers above their
    /// request are killed first.
    pub memory_request_bytes: u64,
    /// Size of files written outside of volumes, in bytes.
    pub ephemeral_storage_bytes: Option<u64>,
}

/// Limits of a pod and of some of its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLimits {
    /// Limits of the pod as a whole.
    pub pod: Limits,
    /// Limits of running containers.
    pub containers: Vec<(ContainerId, Limits)>,
}

/// A volume of a pod, with its content if the kubelet computes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum Volume {
    /// A folder that is empty at first and removed with the pod.
    EmptyDir {
        /// True for a tmpfs instead of a folder on disk.
        memory: bool,
        /// Limit in bytes. A pod that exceeds it is evicted.
        size_limit_bytes: Option<u64>,
    },
    /// Files whose content comes from the API: ConfigMaps, Secrets, projected volumes, fields.
    Files {
        /// Files by path relative to the volume.
        files: BTreeMap<String, FileContent>,
    },
    /// A path of the host.
    HostPath {
        /// Path on the host.
        path: PathBuf,
        /// Required kind of the path, and whether to create it.
        kind: HostPathType,
    },
    /// A folder that outlives the pod, for a bound claim. It exists already.
    Folder {
        /// Path on the host.
        path: PathBuf,
    },
    /// The files of an image, read-only.
    Image {
        /// Root file system that [`crate::PodRuntime::ensure_image`] returned.
        root: crate::ImageRoot,
    },
}

/// A file of a [`Volume::Files`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    /// Bytes of the file.
    pub data: Vec<u8>,
    /// Permission bits, such as `0o644`.
    pub mode: u32,
}

/// Requirement of a `hostPath` volume on its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostPathType {
    /// No check.
    #[default]
    Unchecked,
    /// Create a folder if the path does not exist.
    DirectoryOrCreate,
    /// An existing folder.
    Directory,
    /// Create an empty file if the path does not exist.
    FileOrCreate,
    /// An existing file.
    File,
    /// An existing Unix socket.
    Socket,
    /// An existing character device.
    CharDevice,
    /// An existing block device.
    BlockDevice,
}

/// The position of a container in the order of starts, and its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerKind {
    /// Runs to its end before the next container starts.
    Init,
    /// An init container with restart policy Always.
    Sidecar,
    /// One of `spec.containers`.
    Main,
    /// Added to a running pod, for example by `kubectl debug`.
    Ephemeral,
}

/// Configuration of one run of a container. References to ConfigMaps, Secrets, fields and variables
/// are replaced with their values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerConfig {
    /// ID of the run.
    pub id: ContainerId,
    /// Kind of the container.
    pub kind: ContainerKind,
    /// The image that [`crate::PodRuntime::ensure_image`] returned.
    pub image: crate::Image,
    /// Program and first arguments; if empty, the image's entrypoint.
    pub command: Vec<String>,
    /// Arguments; if both this and `command` are empty, the image's.
    pub args: Vec<String>,
    /// Environment, in order. It is added to the image's.
    pub env: Vec<(String, String)>,
    /// Working directory; if empty, the image's.
    pub working_dir: String,
    /// Mounted volumes.
    pub mounts: Vec<Mount>,
    /// Devices of this container: GPUs and others.
    pub devices: Vec<Device>,
    /// Users and privileges.
    pub security: Security,
    /// CPU and memory limits.
    pub limits: Limits,
    /// True to keep an input stream open for `attach`.
    pub stdin: bool,
    /// True to close the input stream when the first `attach` ends.
    pub stdin_once: bool,
    /// True to run on a terminal.
    pub tty: bool,
    /// Path of the container's termination message.
    pub termination_message_path: String,
    /// Source of the termination message.
    pub termination_message_policy: TerminationMessagePolicy,
    /// Container whose PID namespace an ephemeral container joins.
    pub target: Option<String>,
}

impl ContainerConfig {
    /// A main container that runs this command, without image, environment, mounts and limits.
    pub fn new(id: ContainerId, command: Vec<String>) -> Self {
        Self {
            id,
            kind: ContainerKind::Main,
            image: crate::Image::default(),
            command,
            args: Vec::new(),
            env: Vec::new(),
            working_dir: String::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            security: Security::default(),
            limits: Limits::default(),
            stdin: false,
            stdin_once: false,
            tty: false,
            termination_message_path: String::new(),
            termination_message_policy: TerminationMessagePolicy::default(),
            target: None,
        }
    }
}

/// Source of a termination message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TerminationMessagePolicy {
    /// The file at `terminationMessagePath`.
    #[default]
    File,
    /// That file, or the end of the log of a failed container if the file is empty.
    FallbackToLogsOnError,
}

/// A volume mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Name of the volume in [`SandboxConfig::volumes`].
    pub volume: String,
    /// Absolute path in the container.
    pub path: String,
    /// Path within the volume, relative; empty for the whole volume.
    pub sub_path: String,
    /// True to mount read-only.
    pub read_only: bool,
    /// Propagation of later mounts.
    pub propagation: Propagation,
}

/// Propagation of mounts between host and container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// Mounts of the host appear in the container.
    HostToContainer,
    /// In both directions.
    Bidirectional,
}

/// A device that is visible in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Extended resource, such as `nvidia.com/gpu`.
    pub resource: String,
    /// Identifier within the resource: a GPU's UUID or index.
    pub id: String,
    /// Device files on the host, which have the same path in the container.
    pub paths: Vec<PathBuf>,
}

/// Users and privileges of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Security {
    /// User; `None` for the image's.
    pub user: Option<u32>,
    /// Primary group; `None` for the group of the user in the image.
    pub group: Option<u32>,
    /// Supplementary groups, `fsGroup` included.
    pub supplemental_groups: Vec<u32>,
    /// True to reject user 0.
    pub run_as_non_root: bool,
    /// True to grant all capabilities and devices of the host.
    pub privileged: bool,
    /// True to mount the root file system read-only.
    pub read_only_root_filesystem: bool,
    /// True if `setuid` programs and file capabilities take effect.
    pub allow_privilege_escalation: bool,
    /// Changes to the default set of capabilities.
    pub capabilities: Capabilities,
    /// True to use no system-call filter (`seccompProfile: Unconfined`).
    pub seccomp_unconfined: bool,
    /// True to show the whole of `/proc` (`procMount: Unmasked`).
    pub unmasked_proc: bool,
}

/// Changes to the default set of capabilities. Names have no prefix `CAP_`. `ALL` stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Added capabilities.
    pub add: Vec<String>,
    /// Dropped capabilities.
    pub drop: Vec<String>,
}

/// User of an image: `user[:group]`, by number or name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserSpec(pub String);

/// Policy that determines when an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImagePullPolicy {
    /// Resolve the tag in the registry at each start.
    Always,
    /// Pull only if the image does not exist locally.
    #[default]
    IfNotPresent,
    /// Never pull.
    Never,
}

/// An image that a container needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// Reference as in the pod's spec.
    pub reference: String,
    /// Pull policy.
    pub policy: ImagePullPolicy,
    /// Credentials from the pod's pull secrets, in order.
    pub credentials: Vec<RegistryCredential>,
}

/// Credentials of a registry. Not printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryCredential {
    /// Registry, with an optional path prefix: `registry.example.com/team`.
    pub registry: String,
    /// User name.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl std::fmt::Debug for RegistryCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryCredential").field("registry", &self.registry).finish_non_exhaustive()
    }
}
