//! Names of Workloads: `<kind>-<owner>-<hash>`. They equal Kueue's, so that Berth and Kueue find
//! each other's objects.

use kube::ResourceExt;
use sha1::{Digest, Sha1};

use crate::gates::{Gate, Gates};

/// Number of hash digits at the end of a name.
const HASH_DIGITS: usize = 5;
/// Maximum length of an object name.
const NAME_MAX: usize = 253;
/// Maximum length of a name that must also be a label value (gate ShortWorkloadNames).
const SHORT_NAME_MAX: usize = 63;

/// Group and kind of the owner of a Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerKind {
    /// API group, empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

/// Name of the Workload of `owner`.
pub fn workload_name(owner: &str, uid: &str, kind: &OwnerKind, gates: &Gates) -> String {
    workload_name_with(owner, uid, kind, None, gates)
}

/// Name of one of several Workloads of an owner; `extra` (for elastic jobs: the generation) makes
/// it unique.
pub fn workload_name_with(owner: &str, uid: &str, kind: &OwnerKind, extra: Option<&str>, gates: &Gates) -> String {
    let mut hashed = vec![kind.kind.as_str(), kind.group.as_str(), owner, uid];
    hashed.extend(extra);
    finish(&format!("{}-{owner}", kind.kind.to_lowercase()), &hashed, gates)
}

/// Name of the variant of a Workload that is restricted to one flavor (concurrent admission).
pub fn variant_name(parent: &str, uid: &str, kind: &OwnerKind, flavor: &str, gates: &Gates) -> String {
    // The variant's hash replaces the parent's.
    let base = parent.rsplit_once('-').map_or(parent, |(base, _)| base);
    finish(&format!("{base}-variant-{flavor}"), &[&kind.kind, &kind.group, parent, uid, flavor], gates)
}

fn finish(prefix: &str, hashed: &[&str], gates: &Gates) -> String {
    let max = if gates.on(Gate::ShortWorkloadNames) { SHORT_NAME_MAX } else { NAME_MAX };
    let mut end = prefix.len().min(max - HASH_DIGITS - 1);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let digest = hex::encode(Sha1::digest(hashed.join("\n").as_bytes()));
    format!("{}-{}", &prefix[..end], &digest[..HASH_DIGITS])
}

/// The name in this annotation, which needs the gate WorkloadIdentifierAnnotations, or else in this
/// label.
pub(crate) fn identifier<'a>(
    object: &'a impl ResourceExt,
    annotation: &str,
    label: &str,
    gates: &Gates,
) -> Option<&'a str> {
    let annotated = object.annotations().get(annotation).filter(|_| gates.on(Gate::WorkloadIdentifierAnnotations));
    let mut names = annotated.into_iter().chain(object.labels().get(label));
    names.find(|name| !name.is_empty()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_equal_kueues() {
        let kind = OwnerKind { group: "batch".into(), kind: "Job".into() };
        let gates = Gates::default();
        assert_eq!(workload_name("job", "test-uid", &kind, &gates), "job-job-b3219");
        assert_eq!(workload_name_with("job", "test-uid", &kind, Some("0"), &gates), "job-job-2e122");
        assert_eq!(workload_name(&"x".repeat(300), "u", &kind, &gates).len(), 253);
    }
}
