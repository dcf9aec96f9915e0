//! Folders of volumes on the disk of this machine.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

/// Creates and deletes the storage of a node's volumes. Both calls may block and can be repeated.
pub trait VolumeFolders: Debug + Send + Sync + 'static {
    /// Creates the folder of a volume that is about to be created, and returns its absolute path.
    /// An existing folder is kept.
    ///
    /// # Errors
    /// The folder cannot be created.
    fn create(&self, volume: &PersistentVolume) -> Result<PathBuf, FolderError>;

    /// Deletes the folder of a volume with its content. A missing folder is not an error.
    ///
    /// # Errors
    /// The folder cannot be deleted, or [`VolumeFolders::create`] did not create it.
    fn delete(&self, volume: &PersistentVolume) -> Result<(), FolderError>;
}

/// Why a volume's folder was not created or deleted.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The volume's name is not a valid file name.
    #[error("the name \"{0}\" of the volume is not a valid file name")]
    Name(String),
    /// The volume's path differs from that of its folder.
    #[error("the volume's path is {path}, but its folder must be {folder}")]
    Foreign {
        /// Path in the volume.
        path: String,
        /// The folder of a volume of this name.
        folder: String,
    },
    /// The path exists and is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The file system reported an error.
    #[error("{action} {}", path.display())]
    Io {
        /// The attempted operation.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// Permission bits of a volume's folder: pods of any user may write, as with upstream's local
/// provisioners. Pods cannot reach the folders of volumes that they do not mount.
const FOLDER_MODE: u32 = 0o777;
/// Permission bits of the folder with all volumes: other users can enter but not list it.
const ROOT_MODE: u32 = 0o711;

/// Volumes as folders in one root folder, named after the volumes.
#[derive(Clone, Debug)]
pub struct DiskFolders {
    root: PathBuf,
}

impl DiskFolders {
    /// Volumes in `root`, an absolute path, which is created with the first volume.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the volume of this name.
    fn folder(&self, volume: &PersistentVolume) -> Result<PathBuf, FolderError> {
        let name = volume.name_any();
        let mut components = Path::new(&name).components();
        let is_one_name = matches!(
            (components.next(), components.next()),
            (Some(Component::Normal(only)), None) if only == OsStr::new(&name)
        );
        if !is_one_name {
            return Err(FolderError::Name(name));
        }
        Ok(self.root.join(name))
    }

    fn make_root(&self) -> Result<(), FolderError> {
        if self.root.is_dir() {
            return Ok(());
        }
        let failed = io_error("cannot create", &self.root);
        if let Some(parent) = self.root.parent() {
            std::fs::create_dir_all(parent).map_err(&failed)?;
        }
        match std::fs::DirBuilder::new().mode(ROOT_MODE).create(&self.root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(()),
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> FolderError + use<> {
    let path = path.to_owned();
    move |source| FolderError::Io { action, path: path.clone(), source }
}

impl VolumeFolders for DiskFolders {
    fn create(&self, volume: &PersistentVolume) -> Result<PathBuf, FolderError> {
        let folder = self.folder(volume)?;
        self.make_root()?;
        match std::fs::create_dir(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = std::fs::symlink_metadata(&folder).map_err(io_error("cannot read", &folder))?;
                if !found.is_dir() {
                    return Err(FolderError::NotAFolder(folder));
                }
            }
            Err(error) => return Err(io_error("cannot create", &folder)(error)),
        }
        // The umask does not apply to `set_permissions`.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(FOLDER_MODE))
            .map_err(io_error("cannot set the mode of", &folder))?;
        Ok(folder)
    }

    fn delete(&self, volume: &PersistentVolume) -> Result<(), FolderError> {
        let folder = self.folder(volume)?;
        let local = volume.spec.as_ref().and_then(|spec| spec.local.as_ref());
        let path = local.map(|local| local.path.as_str()).unwrap_or_default();
        // Clients of the API may write any path into a volume.
        if Path::new(path) != folder {
            return Err(FolderError::Foreign { path: path.to_owned(), folder: folder.display().to_string() });
        }
        match std::fs::symlink_metadata(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("cannot read", &folder)(error)),
            Ok(found) if !found.is_dir() => Err(FolderError::NotAFolder(folder)),
            // `remove_dir_all` removes symbolic links and never follows them.
            Ok(_) => std::fs::remove_dir_all(&folder).map_err(io_error("cannot delete", &folder)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn volume(name: &str, path: &Path) -> PersistentVolume {
        super::super::samples::volume(name, "1Gi", json!({"spec": {"hostPath": null, "local": {"path": path}}}))
    }

    fn root() -> (tempfile::TempDir, DiskFolders) {
        let folder = tempfile::tempdir().unwrap();
        let disk = DiskFolders::new(folder.path().join("volumes"));
        (folder, disk)
    }

    #[test]
    fn a_folder_is_created_writable_for_all_and_deleted_with_its_content() {
        let (_folder, disk) = root();
        let own = disk.root().join("pvc-1");
        let volume = volume("pvc-1", &own);
        assert_eq!(disk.create(&volume).unwrap(), own);
        assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o7777, 0o777);
        std::fs::create_dir(own.join("d")).unwrap();
        std::fs::write(own.join("d/file"), "kept").unwrap();
        assert_eq!(disk.create(&volume).unwrap(), own, "it can be repeated");
        assert_eq!(std::fs::read_to_string(own.join("d/file")).unwrap(), "kept");
        disk.delete(&volume).unwrap();
        assert!(!own.exists());
        disk.delete(&volume).unwrap();
    }

    #[test]
    fn deletion_removes_links_and_not_their_targets() {
        let (folder, disk) = root();
        let victim = folder.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        std::fs::write(victim.join("file"), "x").unwrap();
        let own = disk.root().join("pvc-1");
        let volume = volume("pvc-1", &own);
        disk.create(&volume).unwrap();
        std::os::unix::fs::symlink(&victim, own.join("link")).unwrap();
        disk.delete(&volume).unwrap();
        assert!(victim.join("file").exists() && !own.exists());
        std::os::unix::fs::symlink(&victim, &own).unwrap();
        assert!(matches!(disk.delete(&volume), Err(FolderError::NotAFolder(_))));
        assert!(matches!(disk.create(&volume), Err(FolderError::NotAFolder(_))));
        assert!(victim.join("file").exists());
    }

    #[test]
    fn a_volume_with_a_path_elsewhere_is_not_deleted() {
        let (folder, disk) = root();
        let victim = folder.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        let other = disk.create(&volume("pvc-2", &disk.root().join("pvc-2"))).unwrap();
        for path in [victim.as_path(), other.as_path(), Path::new("/etc"), Path::new("")] {
            assert!(matches!(disk.delete(&volume("pvc-1", path)), Err(FolderError::Foreign { .. })), "{path:?}");
        }
        assert!(victim.exists() && other.exists());
    }

    #[test]
    fn names_that_lead_out_of_the_root_are_rejected() {
        let (_folder, disk) = root();
        for name in ["..", ".", "", "a/b", "../x", "/etc"] {
            let volume = volume(name, &disk.root().join(name));
            assert!(matches!(disk.create(&volume), Err(FolderError::Name(_))), "{name}");
            assert!(matches!(disk.delete(&volume), Err(FolderError::Name(_))), "{name}");
        }
    }
}
