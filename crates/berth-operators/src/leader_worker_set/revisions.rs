//! ControllerRevisions of a LeaderWorkerSet: the templates and the network configuration that it
//! has had. A group is made from the revision of its leader, so that a group of an old revision
//! that is recreated during an update keeps its own templates and size.
//!
//! The label [`REVISION`] of a revision, of StatefulSets and of pods holds the key of the revision:
//! a hash of its data.

use std::sync::Arc;

use berth_api::frameworks::LeaderWorkerSet;
use berth_apimachinery::meaning;
use berth_runtime::owned_by;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::constants::{NAME, REVISION};
use super::facts;

/// Maximum length of the set's name in the name of a revision, which has at most 253 characters.
const PREFIX_MAX: usize = 220;

/// The data of the current revision: a strategic merge patch that restores it.
fn data_of(set: &LeaderWorkerSet) -> Value {
    let mut template = set.spec["leaderWorkerTemplate"].clone();
    let network = &set.spec["networkConfig"];
    // The default that a missing field stands for.
    let mut network = if network.is_object() { network.clone() } else { json!({"subdomainPolicy": "Shared"}) };
    template["$patch"] = json!("replace");
    network["$patch"] = json!("replace");
    json!({"spec": {"leaderWorkerTemplate": template, "networkConfig": network}})
}

/// Hash of the data: FNV-1 of 32 bits of the text, its digits written with the characters of
/// generated names. Upstream's keys are the same, so that its operator can take over a set.
fn hash(data: &Value) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = data.to_string();
    let hash = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte));
    hash.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// The revision of the current spec. `key` is that of existing objects, if their revision was lost.
pub fn new(set: &LeaderWorkerSet, known: &[Arc<ControllerRevision>], key: &str) -> ControllerRevision {
    let number = known.iter().map(|revision| revision.revision).max().unwrap_or(0) + 1;
    let data = data_of(set);
    let hash = hash(&data);
    let name = set.name_any();
    let prefix: String = name.chars().take(PREFIX_MAX).collect();
    let key = if key.is_empty() { &hash } else { key };
    let labels = [(NAME.to_owned(), name), (REVISION.to_owned(), key.to_owned())];
    ControllerRevision {
        metadata: ObjectMeta {
            // The number makes the name of a repeated revision unique.
            name: Some(format!("{prefix}-{hash}-{number}")),
            namespace: set.namespace(),
            labels: Some(labels.into()),
            owner_references: Some(vec![owned_by(set)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// The revision with this key; the newest one if there are several.
pub fn find<'a>(known: &'a [Arc<ControllerRevision>], key: &str) -> Option<&'a Arc<ControllerRevision>> {
    let of_key = known.iter().filter(|revision| !key.is_empty() && key_of(revision) == key);
    of_key.max_by_key(|revision| revision.revision)
}

/// Key of a revision.
pub fn key_of(revision: &ControllerRevision) -> &str {
    facts::revision_of(&revision.metadata)
}

/// True if the revision restores the current spec.
pub fn is_current(set: &LeaderWorkerSet, revision: &ControllerRevision) -> bool {
    revision.data.as_ref().is_some_and(|data| meaning::same(&data.0, &data_of(set)))
}

/// The spec of the set at this revision.
pub fn spec_at(set: &LeaderWorkerSet, revision: &ControllerRevision) -> Value {
    let mut spec = set.spec.clone();
    let data = revision.data.as_ref().map(|data| &data.0["spec"]);
    for field in ["leaderWorkerTemplate", "networkConfig"] {
        if let Some(Value::Object(saved)) = data.map(|data| &data[field]) {
            let mut saved = saved.clone();
            saved.remove("$patch");
            spec[field] = Value::Object(saved);
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(image: &str, size: i32) -> LeaderWorkerSet {
        let template =
            json!({"size": size, "workerTemplate": {"spec": {"containers": [{"name": "c", "image": image}]}}});
        let object = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"replicas": 2, "leaderWorkerTemplate": template}});
        serde_json::from_value(object).expect("a LeaderWorkerSet")
    }

    #[test]
    fn only_templates_and_network_make_a_revision() {
        let first = new(&set("a", 2), &[], "");
        assert_eq!((first.revision, key_of(&first).is_empty()), (1, false));
        assert_eq!(hash(&json!({"a": 1})), "69966c9df7", "as upstream hashes it");
        let mut scaled = set("a", 2);
        scaled.spec["replicas"] = json!(5);
        scaled.spec["networkConfig"] = json!({"subdomainPolicy": "Shared"});
        assert!(is_current(&scaled, &first));
        let mut rewritten = set("a", 2);
        rewritten.spec["leaderWorkerTemplate"]["workerTemplate"]["metadata"] = json!({"creationTimestamp": null});
        assert!(is_current(&rewritten, &first), "a typed client writes empty fields");
        assert!(!is_current(&set("b", 2), &first));
        let second = new(&set("b", 2), &[Arc::new(first.clone())], "");
        assert_eq!(second.revision, 2);
        assert_ne!(key_of(&first), key_of(&second));
    }

    #[test]
    fn a_revision_restores_templates_and_size() {
        let old = new(&set("a", 2), &[], "lost");
        assert_eq!(key_of(&old), "lost", "existing objects keep their key");
        let spec = spec_at(&set("b", 4), &old);
        assert_eq!(spec["leaderWorkerTemplate"]["size"], 2);
        assert_eq!(spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"], "a");
        assert!(spec["leaderWorkerTemplate"].get("$patch").is_none());
        assert_eq!(spec["replicas"], 2);
    }

    #[test]
    fn the_newest_revision_of_a_key_counts() {
        let first = Arc::new(new(&set("a", 2), &[], "k"));
        let second = Arc::new(new(&set("a", 2), std::slice::from_ref(&first), "k"));
        let known = [first, second];
        assert_eq!(find(&known, "k").map(|revision| revision.revision), Some(2));
        assert!(find(&known, "").is_none() && find(&known, "x").is_none());
    }
}
