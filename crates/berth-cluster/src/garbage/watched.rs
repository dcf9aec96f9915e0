//! Objects as the garbage collector watches them. It watches every kind, so it decodes only the
//! part of the metadata that its graph has: labels, annotations and field owners are most of the
//! text, and are skipped.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};

/// The metadata of an object of any kind: identity, owners, finalizers and deletion. All other
/// fields are absent.
#[derive(Clone, Debug)]
pub struct Watched(ObjectMeta);

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Kept { metadata } = Kept::deserialize(deserializer)?;
        Ok(Self(ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            deletion_timestamp: metadata.deletion_timestamp,
            finalizers: metadata.finalizers,
            owner_references: metadata.owner_references,
            ..ObjectMeta::default()
        }))
    }
}

#[derive(Deserialize)]
struct Kept {
    metadata: KeptMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

berth_runtime::resource_of_any_kind!(Watched, 0, true);

#[cfg(test)]
mod tests {
    use kube::Resource;

    use super::*;

    #[test]
    fn owners_finalizers_and_deletion_are_read_and_labels_are_not() {
        let text = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{
            "name":"pod","namespace":"ns","uid":"u","resourceVersion":"7","labels":{"app":"x"},
            "annotations":{"a":"{\"metadata\":{}}"},"deletionTimestamp":"2026-01-01T00:00:00Z",
            "finalizers":["foregroundDeletion"],"managedFields":[{"manager":"m"}],
            "ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"j","uid":"o","blockOwnerDeletion":true}]}}"#;
        let watched: Watched = serde_json::from_str(text).expect("an object");
        let meta = watched.meta();
        assert_eq!((meta.name.as_deref(), meta.uid.as_deref()), (Some("pod"), Some("u")));
        assert_eq!(meta.resource_version.as_deref(), Some("7"));
        assert!(meta.deletion_timestamp.is_some());
        assert_eq!(meta.finalizers.as_deref(), Some(&["foregroundDeletion".to_owned()][..]));
        assert_eq!(meta.owner_references.as_ref().map(|owners| owners[0].block_owner_deletion), Some(Some(true)));
        assert_eq!((&meta.labels, &meta.annotations, &meta.managed_fields), (&None, &None, &None));
    }
}
