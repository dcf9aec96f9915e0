//! The process runtime: pods that run as processes of this machine.
//!
//! [`ProcessRuntime`] implements `berth_pod_runtime::PodRuntime`. It keeps one folder per pod and
//! starts one supervisor process per pod. The supervisor ([`supervisor`]) starts the pod's
//! containers, keeps their logs and exit codes, and outlives the process that started it. A
//! container begins as the entry helper ([`init`]), which sets up namespaces, root file system and
//! user, and then executes the container's program.
//!
//! The crate works on Linux. On other systems its functions return an error.
//!
//! The crate does not make decisions about pods (the kubelet does), pull images (`Images`) or
//! configure the network (`SandboxNetwork`).

#[cfg(target_os = "linux")]
mod cgroup;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
pub mod init;
#[cfg(target_os = "linux")]
mod isolation;
#[cfg(target_os = "linux")]
mod journal;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod overlay;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod protocol;
#[cfg(target_os = "linux")]
mod runtime;
#[cfg(target_os = "linux")]
pub mod supervisor;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod time;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod volumes;

pub mod helper;
mod options;
#[cfg(not(target_os = "linux"))]
mod unsupported;

pub use helper::Helper;
pub use options::{Isolation, Level, Options};
#[cfg(target_os = "linux")]
pub use runtime::{Prepared, ProcessRuntime};
#[cfg(not(target_os = "linux"))]
pub use unsupported::{Prepared, ProcessRuntime, init, supervisor};
