//! The machine's hierarchies of control groups.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::{Group, context, write};

/// Controllers that Berth uses.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "memory", "pids", FREEZER, "devices"];

/// Controller of version 1 that stops processes while they are killed. It is used only where the
/// machine has no limit on the number of processes, which serves the same purpose.
const FREEZER: &str = "freezer";

/// Controllers of version 2 without which limits cannot be set.
const REQUIRED: [&str; 3] = ["cpu", "memory", "pids"];

/// Prefix of the name of a probe's group; the ID of the probing process follows.
const PROBE: &str = "probe-";

/// Name of the parent of all pods' groups.
pub(super) const PARENT: &str = "berth";

/// The group in which the pods' groups are created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchies(Group);

impl Hierarchies {
    /// Finds the hierarchies in which this process may create groups.
    ///
    /// # Errors
    /// A sentence with the reason if there are none.
    pub fn detect() -> Result<Self, String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let group = Self::parents(&mounts, &own);
        if group.folders().is_empty() {
            return Err("no hierarchy of control groups with cpu, memory and pids is mounted".to_owned());
        }
        group.remove_former_probes();
        let probe = group.child(&format!("{PROBE}{}", std::process::id()));
        let created = probe.create().and_then(|()| if probe.v2.is_some() { probe.has_controllers() } else { Ok(()) });
        let _ = probe.remove();
        created.map_err(|error| format!("control groups cannot be written: {error}"))?;
        Ok(Self(group))
    }

    /// The control group of a pod.
    pub fn pod(&self, uid: &str) -> Group {
        self.0.child(uid)
    }

    /// The parent group in each hierarchy. In version 1 it is within the group of this process, so
    /// that the limits of that group also hold for the pods. In version 2 it is at the root of the
    /// writable hierarchy, because a group with processes cannot have children with controllers.
    fn parents(mountinfo: &str, own: &str) -> Group {
        let own = own_groups(own);
        let mut group = Group::default();
        for mount in mountinfo.lines().filter_map(parse_mount) {
            match mount.fs_type {
                "cgroup" => {
                    for controller in CONTROLLERS {
                        if !mount.options.split(',').any(|option| option == controller) {
                            continue;
                        }
                        let path = own.get(controller).map(|path| mount.path.join(path.trim_start_matches('/')));
                        let path = path.filter(|path| path.exists()).unwrap_or_else(|| mount.path.clone());
                        group.v1.insert(controller.to_owned(), path.join(PARENT));
                    }
                }
                "cgroup2" => {
                    let controllers =
                        std::fs::read_to_string(mount.path.join("cgroup.controllers")).unwrap_or_default();
                    let has = |name: &&str| controllers.split_ascii_whitespace().any(|other| other == *name);
                    if REQUIRED.iter().all(has) {
                        group.v2 = Some(mount.path.join(PARENT));
                    }
                }
                _ => {}
            }
        }
        if group.v1.contains_key("pids") {
            group.v1.remove(FREEZER);
        }
        group
    }
}

impl Group {
    /// Removes the probe groups of processes that were killed while they probed.
    fn remove_former_probes(&self) {
        for child in self.folders().into_iter().flat_map(super::folders_within) {
            let pid = child.file_name().and_then(|name| name.to_str()?.strip_prefix(PROBE)?.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // The group is empty. Another process may have removed it.
                let _ = std::fs::remove_dir(child);
            }
        }
    }

    fn has_controllers(&self) -> io::Result<()> {
        let Some(folder) = &self.v2 else { return Ok(()) };
        let path = folder.join("memory.max");
        std::fs::metadata(&path).map(drop).map_err(|error| context(&error, &path))
    }
}

/// Enables the controllers for the children of `folder` and of its ancestors.
pub(super) fn enable(folder: &Path) -> io::Result<()> {
    let path = folder.join("cgroup.subtree_control");
    let enabled = std::fs::read_to_string(&path).map_err(|error| context(&error, &path))?;
    if REQUIRED.iter().all(|name| enabled.split_ascii_whitespace().any(|other| other == *name)) {
        return Ok(());
    }
    if let Some(parent) = folder.parent()
        && parent.join("cgroup.subtree_control").exists()
    {
        enable(parent)?;
    }
    write(folder, "cgroup.subtree_control", "+cpu +memory +pids")
}

struct MountLine<'a> {
    path: PathBuf,
    fs_type: &'a str,
    options: &'a str,
}

/// Parses a line of `/proc/self/mountinfo` into mount point, file system type and super options.
fn parse_mount(line: &str) -> Option<MountLine<'_>> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let path = PathBuf::from(mount.split(' ').nth(4)?);
    let mut fields = filesystem.split(' ');
    let fs_type = fields.next()?;
    Some(MountLine { path, fs_type, options: fields.nth(1)? })
}

/// The group of this process in each hierarchy, by controller, from `/proc/self/cgroup`.
fn own_groups(text: &str) -> BTreeMap<&str, &str> {
    let mut groups = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        groups.extend(controllers.split(',').map(|controller| (controller, path)));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_version_1_are_below_the_group_of_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display();
        std::fs::create_dir_all(folder.path().join("memory/jobs/7")).unwrap();
        let mounts = format!(
            "30 25 0:26 / {root}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 25 0:27 / {root}/memory rw - cgroup cgroup rw,memory\n\
             32 25 0:28 / {root}/unified rw - cgroup2 cgroup2 rw\n"
        );
        let group = Hierarchies::parents(&mounts, "4:memory:/jobs/7\n1:cpu,cpuacct:/gone\n0::/\n");
        let path = |text: &str| folder.path().join(text);
        assert_eq!(group.v1["memory"], path("memory/jobs/7/berth"));
        assert_eq!(group.v1["cpu"], path("cpu/berth"));
        assert_eq!(group.v1["cpuacct"], path("cpu/berth"));
        assert_eq!(group.v2, None, "a hierarchy without controllers is not used");
    }

    #[test]
    fn the_freezer_is_used_only_where_the_number_of_processes_cannot_be_limited() {
        let freezer = "30 25 0:26 / /none/freezer rw - cgroup cgroup rw,freezer\n";
        let pids = "31 25 0:27 / /none/pids rw - cgroup cgroup rw,pids\n";
        let controllers = |mounts: &str| Hierarchies::parents(mounts, "").v1.into_keys().collect::<Vec<_>>();
        assert_eq!(controllers(freezer), ["freezer"]);
        assert_eq!(controllers(&format!("{freezer}{pids}")), ["pids"]);
    }

    #[test]
    fn a_version_2_hierarchy_with_controllers_is_used() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "cpuset cpu io memory pids").unwrap();
        let mounts = format!("30 25 0:26 / {} rw - cgroup2 cgroup2 rw,nsdelegate\n", folder.path().display());
        let group = Hierarchies::parents(&mounts, "0::/user.slice\n");
        assert_eq!(group, Group { v1: BTreeMap::new(), v2: Some(folder.path().join("berth")) });
    }
}
