//! Names derived from the cluster. A later run finds the interfaces of this cluster by them.

use std::path::Path;

use berth_pod_runtime::PodUid;
use sha2::{Digest, Sha256};

/// Distinguishes the pod network of a cluster from those of other clusters on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity([u8; 32]);

impl Identity {
    /// The identity of the cluster whose node has this folder.
    pub(crate) fn of(folder: &Path) -> Self {
        Self(hash(&[folder.as_os_str().as_encoded_bytes()]))
    }

    /// Name of the bridge. Names of interfaces have at most 15 characters.
    pub(crate) fn bridge(&self) -> String {
        format!("berth-{}", hex::encode(&self.0[..4]))
    }

    /// Name of the table of the packet filter.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has this packet filter"))]
    pub(crate) fn table(&self) -> String {
        format!("berth_{}", hex::encode(&self.0[..4]))
    }

    /// Hardware address of the bridge, locally administered.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has bridges"))]
    pub(crate) fn mac(&self) -> [u8; 6] {
        [0x02, 0xbe, self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    /// Name of the machine's end of a pod's pair of interfaces.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has such interfaces"))]
    pub(crate) fn interface(&self, pod: &PodUid) -> String {
        format!("bv{}", hex::encode(&hash(&[&self.0, pod.0.as_bytes()])[..6]))
    }

    /// A number below `bound`.
    pub(crate) fn number(&self, bound: u8) -> u8 {
        self.0[4] % bound.max(1)
    }
}

/// Name of the packet filter table that belongs to a bridge; `None` if the bridge does not belong
/// to a cluster.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has bridges"))]
pub(crate) fn table_of_bridge(bridge: &str) -> Option<String> {
    cluster_number(bridge, "berth-").map(|number| format!("berth_{number}"))
}

/// Name of the bridge that belongs to a packet filter table; `None` if the table does not belong to
/// a cluster.
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has bridges"))]
pub(crate) fn bridge_of_table(table: &str) -> Option<String> {
    cluster_number(table, "berth_").map(|number| format!("berth-{number}"))
}

fn cluster_number<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let number = name.strip_prefix(prefix)?;
    (number.len() == 8 && number.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(number)
}

fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_and_pods_have_interfaces_of_their_own() {
        let (a, b) = (Identity::of(Path::new("/data/a")), Identity::of(Path::new("/data/b")));
        let pod = PodUid("0b0e7e0e-6c5f-4f6a-8f5e-000000000001".to_owned());
        assert_ne!(a.bridge(), b.bridge());
        assert_eq!(table_of_bridge(&a.bridge()), Some(a.table()));
        assert_eq!(table_of_bridge("berth-x"), None);
        assert_ne!(a.interface(&pod), b.interface(&pod));
        assert_ne!(a.interface(&pod), a.interface(&PodUid("other".to_owned())));
        for name in [a.bridge(), a.interface(&pod)] {
            assert!(name.len() <= 15, "{name} is too long for an interface");
        }
    }
}
