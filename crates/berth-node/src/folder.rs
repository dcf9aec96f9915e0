//! The layout of the node's folder and of a pod's folder.
//!
//! ```text
//! lock                      held by the process that has opened the runtime
//! starts                    starts of containers, synced
//! pods/UID/pod.json         launch configuration of the supervisor
//! pods/UID/journal          starts and ends of containers
//! pods/UID/lock             held by the supervisor while it lives
//! pods/UID/socket           commands to the supervisor
//! pods/UID/etc/             hosts, hostname, resolv.conf
//! pods/UID/volumes/NAME     volumes whose files belong to the pod
//! pods/UID/logs/NAME_N.log  log of run N of a container; older parts: NAME_N.log.1 and so on
//! pods/UID/containers/NAME_N/{root,upper,work,termination}
//! trash/                    folders that are being removed
//! ```

use std::path::{Path, PathBuf};

use berth_pod_runtime::{ContainerId, PodUid, Result, RuntimeError};

/// Name of the file in a container's folder to which the container writes its termination message.
pub(crate) const TERMINATION: &str = "termination";

/// The node's folder.
#[derive(Clone, Debug)]
pub(crate) struct NodeFolder(pub PathBuf);

impl NodeFolder {
    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    pub fn trash(&self) -> PathBuf {
        self.0.join("trash")
    }

    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub fn starts(&self) -> PathBuf {
        self.0.join("starts")
    }

    /// The folder of a pod.
    ///
    /// # Errors
    /// The UID cannot be a folder's name.
    pub fn pod(&self, uid: &PodUid) -> Result<PodFolder> {
        let is_valid = !uid.0.is_empty()
            && uid.0.len() <= 128
            && uid.0.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_valid {
            let message = format!("pod UID {:?}: expected 1 to 128 letters, digits and '-'", uid.0);
            return Err(RuntimeError::Config(message));
        }
        Ok(PodFolder(self.pods().join(&uid.0)))
    }
}

/// A pod's folder.
#[derive(Clone, Debug)]
pub(crate) struct PodFolder(pub PathBuf);

impl PodFolder {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn launch(&self) -> PathBuf {
        self.0.join("pod.json")
    }

    pub fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }

    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub fn etc(&self) -> PathBuf {
        self.0.join("etc")
    }

    pub fn supervisor_log(&self) -> PathBuf {
        self.0.join("supervisor.log")
    }

    pub fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    pub fn volume(&self, name: &str) -> PathBuf {
        self.volumes().join(name)
    }

    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    pub fn log(&self, id: &ContainerId) -> PathBuf {
        self.logs().join(format!("{}_{}.log", id.name, id.attempt))
    }

    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    pub fn container(&self, id: &ContainerId) -> PathBuf {
        self.containers().join(format!("{}_{}", id.name, id.attempt))
    }
}

/// Checks the name of a container or volume, because it becomes the name of a file.
///
/// # Errors
/// The name is not a DNS label.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<()> {
    let is_valid = !name.is_empty()
        && name.len() <= 253
        && !name.starts_with(['.', '-'])
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'));
    if is_valid {
        return Ok(());
    }
    Err(RuntimeError::Config(format!("{kind} name {name:?}: expected lower-case letters, digits, '-' and '.'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_rejected() {
        let node = NodeFolder(PathBuf::from("/n"));
        for uid in ["", "..", "a/b", "a.b", "a b"] {
            assert!(node.pod(&PodUid(uid.to_owned())).is_err(), "{uid:?}");
        }
        assert!(node.pod(&PodUid("4f8a24ac-1".to_owned())).is_ok());
        for name in ["", "..", ".x", "a/b", "A", "a_0"] {
            assert!(check_name("container", name).is_err(), "{name:?}");
        }
        check_name("container", "init-1").unwrap();
    }
}
