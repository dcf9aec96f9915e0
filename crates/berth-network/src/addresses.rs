//! The allocator of pod addresses.
//!
//! The record of an address is one small file, named by the address, with the pod's UID in it. It
//! is created exclusively, so a crash leaves either no record or the whole record, except for an
//! empty file that the next start deletes. The files are not synced: a pod does not survive the
//! machine's restart, and after a crash of this process the kernel still has the files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use berth_pod_runtime::PodUid;
use ipnet::Ipv4Net;

/// Failure to allocate or release an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("pod UID {0:?} is not a name of letters, digits and '-'")]
    Uid(String),
    #[error("all {count} addresses of the pod network {range} are in use; delete pods, or configure a larger range")]
    Exhausted { range: Ipv4Net, count: usize },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// The address of each pod. The state is durable; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Addresses {
    folder: PathBuf,
    /// Range of new addresses.
    range: Ipv4Net,
    /// Addresses of the range that pods do not get, such as the gateway's.
    reserved: Vec<Ipv4Net>,
    by_pod: BTreeMap<PodUid, Ipv4Addr>,
    taken: BTreeSet<Ipv4Addr>,
    /// The last allocated address. The next search starts after it, so that an address is reused as
    /// late as possible.
    last: Ipv4Addr,
}

impl Addresses {
    /// Reads the records of `folder`, which is created if it is missing. Recorded addresses outside
    /// of `range` stay valid until their release.
    pub(crate) fn open(folder: &Path, range: Ipv4Net, reserved: Vec<Ipv4Net>) -> Result<Self, AddressError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| AddressError::Io { path, source }
        };
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        let (mut by_pod, mut taken) = (BTreeMap::new(), BTreeSet::new());
        let mut names: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(at(folder))? {
            names.push(entry.map_err(at(folder))?.path());
        }
        names.sort();
        for path in names {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Ok(address) = name.parse::<Ipv4Addr>() else { continue };
            let pod = PodUid(std::fs::read_to_string(&path).map_err(at(&path))?);
            if !is_valid(&pod) || by_pod.contains_key(&pod) {
                std::fs::remove_file(&path).map_err(at(&path))?;
                continue;
            }
            taken.insert(address);
            by_pod.insert(pod, address);
        }
        let last = taken.iter().copied().rfind(|address| range.contains(address)).unwrap_or_else(|| range.network());
        Ok(Self { folder: folder.to_owned(), range, reserved, by_pod, taken, last })
    }

    /// The address of a pod; `None` if it has none.
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "pods are connected to a pod network on Linux only")
    )]
    pub(crate) fn get(&self, pod: &PodUid) -> Option<Ipv4Addr> {
        self.by_pod.get(pod).copied()
    }

    /// True if a pod has this address.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        self.taken.contains(&address)
    }

    /// The pods that have an address.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }

    /// The address of a pod. The first call allocates and records it.
    pub(crate) fn allocate(&mut self, pod: &PodUid) -> Result<Ipv4Addr, AddressError> {
        if let Some(known) = self.by_pod.get(pod) {
            return Ok(*known);
        }
        if !is_valid(pod) {
            return Err(AddressError::Uid(pod.0.clone()));
        }
        let address = self.next_free()?;
        let path = self.folder.join(address.to_string());
        let written = std::fs::File::create_new(&path).and_then(|mut file| file.write_all(pod.0.as_bytes()));
        if let Err(source) = written {
            // An incomplete record has no use. An error of its removal adds no information.
            let _ = std::fs::remove_file(&path);
            return Err(AddressError::Io { path, source });
        }
        self.taken.insert(address);
        self.by_pod.insert(pod.clone(), address);
        self.last = address;
        Ok(address)
    }

    /// Releases the address of a pod. Succeeds if the pod has none.
    pub(crate) fn release(&mut self, pod: &PodUid) -> Result<(), AddressError> {
        let Some(address) = self.by_pod.get(pod).copied() else { return Ok(()) };
        let path = self.folder.join(address.to_string());
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => return Err(AddressError::Io { path, source }),
            _ => {}
        }
        self.by_pod.remove(pod);
        self.taken.remove(&address);
        Ok(())
    }

    fn next_free(&self) -> Result<Ipv4Addr, AddressError> {
        let (first, last) = (u32::from(self.range.network()), u32::from(self.range.broadcast()));
        // The network's own address and the broadcast address are not allocated.
        let size = last.saturating_sub(first).saturating_sub(1);
        let start = u32::from(self.last).checked_sub(first).filter(|offset| *offset <= size).unwrap_or(0);
        (0..size)
            .map(|step| Ipv4Addr::from(first + 1 + (start + step) % size))
            .find(|address| {
                !self.taken.contains(address) && !self.reserved.iter().any(|reserved| reserved.contains(address))
            })
            .ok_or(AddressError::Exhausted { range: self.range, count: self.taken.len() })
    }
}

fn is_valid(pod: &PodUid) -> bool {
    !pod.0.is_empty() && pod.0.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodUid {
        PodUid(name.to_owned())
    }

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn open(folder: &Path) -> Addresses {
        Addresses::open(folder, range("10.200.0.0/29"), vec![range("10.200.0.1/32")]).unwrap()
    }

    #[test]
    fn a_pod_keeps_its_address_over_a_restart_until_its_release() {
        let folder = tempfile::tempdir().unwrap();
        let mut addresses = open(folder.path());
        let first = addresses.allocate(&pod("a")).unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 200, 0, 2));
        assert_eq!(addresses.allocate(&pod("a")).unwrap(), first);
        let mut addresses = open(folder.path());
        assert_eq!(addresses.get(&pod("a")), Some(first));
        assert_eq!(addresses.allocate(&pod("b")).unwrap(), Ipv4Addr::new(10, 200, 0, 3));
        addresses.release(&pod("a")).unwrap();
        addresses.release(&pod("a")).unwrap();
        assert_eq!(open(folder.path()).get(&pod("a")), None);
    }

    #[test]
    fn a_freed_address_is_reused_after_all_others() {
        let folder = tempfile::tempdir().unwrap();
        let mut addresses = open(folder.path());
        for name in ["a", "b"] {
            addresses.allocate(&pod(name)).unwrap();
            addresses.release(&pod(name)).unwrap();
        }
        let given: Vec<u8> = (0..5).map(|n| addresses.allocate(&pod(&format!("p{n}"))).unwrap().octets()[3]).collect();
        assert_eq!(given, [4, 5, 6, 2, 3]);
        let error = addresses.allocate(&pod("more")).unwrap_err().to_string();
        assert!(error.contains("all 5 addresses of the pod network 10.200.0.0/29 are in use"), "{error}");
    }

    #[test]
    fn the_record_of_an_interrupted_allocation_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("10.200.0.4"), "").unwrap();
        let mut addresses = open(folder.path());
        assert_eq!(addresses.pods().count(), 0);
        assert_eq!(addresses.allocate(&pod("a")).unwrap(), Ipv4Addr::new(10, 200, 0, 2));
    }

    #[test]
    fn an_address_of_a_former_range_stays_valid() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path()).allocate(&pod("a")).unwrap();
        let mut moved = Addresses::open(folder.path(), range("10.201.0.0/24"), Vec::new()).unwrap();
        assert_eq!(moved.allocate(&pod("a")).unwrap(), Ipv4Addr::new(10, 200, 0, 2));
        assert_eq!(moved.allocate(&pod("b")).unwrap(), Ipv4Addr::new(10, 201, 0, 1));
    }

    #[test]
    fn a_uid_that_is_not_a_file_name_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let error = open(folder.path()).allocate(&pod("../x")).unwrap_err();
        assert!(matches!(error, AddressError::Uid(_)), "{error}");
    }
}
