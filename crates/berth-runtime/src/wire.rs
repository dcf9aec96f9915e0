//! Decodes API objects without the parts that controllers do not use.
//!
//! Two things make decoding cheap. An object that this process has just written comes back through
//! the watch; it is recognised by its resourceVersion and not decoded again. And
//! `metadata.managedFields`, which are half of a typical object, are neither decoded nor kept.

use std::borrow::Cow;
use std::fmt::{Debug, Formatter};
use std::ops::Range;

use berth_api::json::Json;
use berth_apimachinery::managed_text;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An undecoded object of any kind: its identity and its text. Lists and watches read objects of
/// this type, so they are compiled once and not once per kind.
#[derive(Clone)]
pub(crate) struct Undecoded {
    /// Name, namespace, uid and resourceVersion only.
    metadata: ObjectMeta,
    text: Box<RawValue>,
    /// Range of `managedFields` in the text.
    managed: Option<Range<usize>>,
}

impl Undecoded {
    /// Decodes the object without `managedFields`.
    pub(crate) fn decode<K: Json>(&self) -> Result<K, serde_json::Error> {
        K::from_json_text(&without(self.text.get(), self.managed.clone()))
    }
}

impl Debug for Undecoded {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undecoded").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for Undecoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let (range, managed) =
            managed_text::metadata(text.get().as_bytes()).ok_or_else(|| serde::de::Error::missing_field("metadata"))?;
        let within = managed.clone().map(|managed| managed.start - range.start..managed.end - range.start);
        let metadata: Identity =
            serde_json::from_str(&without(&text.get()[range], within)).map_err(serde::de::Error::custom)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, text, managed })
    }
}

/// The part of the metadata that [`Undecoded`] reads immediately.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

crate::resource_of_any_kind!(Undecoded, metadata, false);

/// Implements [`kube::Resource`] for a type that has objects of any kind, which an `ApiResource`
/// names. `$metadata` is the field with the metadata. If `$only` is true, lists and watches request
/// metadata only.
#[macro_export]
macro_rules! resource_of_any_kind {
    ($type:ty, $metadata:tt, $only:literal) => {
        impl kube::Resource for $type {
            type DynamicType = kube::core::ApiResource;
            type Scope = kube::core::DynamicResourceScope;

            fn metadata_api() -> bool {
                $only
            }

            fn kind(resource: &kube::core::ApiResource) -> std::borrow::Cow<'_, str> {
                std::borrow::Cow::Borrowed(&resource.kind)
            }

            fn group(resource: &kube::core::ApiResource) -> std::borrow::Cow<'_, str> {
                std::borrow::Cow::Borrowed(&resource.group)
            }

            fn version(resource: &kube::core::ApiResource) -> std::borrow::Cow<'_, str> {
                std::borrow::Cow::Borrowed(&resource.version)
            }

            fn plural(resource: &kube::core::ApiResource) -> std::borrow::Cow<'_, str> {
                std::borrow::Cow::Borrowed(&resource.plural)
            }

            fn meta(&self) -> &kube::api::ObjectMeta {
                &self.$metadata
            }

            fn meta_mut(&mut self) -> &mut kube::api::ObjectMeta {
                &mut self.$metadata
            }
        }
    };
}

/// Decodes an object without its `metadata.managedFields`.
pub fn decode<K: Json>(text: &str) -> Result<K, serde_json::Error> {
    K::from_json_text(&without(text, managed_text::managed_fields(text.as_bytes())))
}

/// The text without this part.
fn without(text: &str, range: Option<Range<usize>>) -> Cow<'_, str> {
    let Some(range) = range else { return Cow::Borrowed(text) };
    let mut lean = String::with_capacity(text.len() - range.len());
    lean.push_str(&text[..range.start]);
    lean.push_str(&text[range.end..]);
    Cow::Owned(lean)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Resource;
    use serde_json::{Value, json};

    use super::*;

    fn lean(text: &str) -> Value {
        let lean = without(text, managed_text::managed_fields(text.as_bytes()));
        serde_json::from_str(&lean).unwrap_or_else(|error| panic!("{lean}: {error}"))
    }

    #[test]
    fn only_managed_fields_are_removed() {
        let managed = r#"[{"manager":"a\"}]","fieldsV1":{"f:data":{"f:x":{}}}}]"#;
        let shapes = [
            format!(
                r#"{{"kind":"K","metadata":{{"managedFields":{managed},"name":"n"}},"data":{{"managedFields":"x"}}}}"#
            ),
            format!(
                r#"{{"kind":"K","metadata":{{"name":"n","managedFields":{managed}}},"data":{{"managedFields":"x"}}}}"#
            ),
            format!(
                "{{\"kind\": \"K\",\n \"metadata\": {{ \"managedFields\" : {managed} , \"name\": \"n\" }}, \"data\": {{\"managedFields\": \"x\"}}}}"
            ),
        ];
        for shape in shapes {
            let expected = json!({"kind": "K", "metadata": {"name": "n"}, "data": {"managedFields": "x"}});
            assert_eq!(lean(&shape), expected, "{shape}");
        }
        assert_eq!(lean(r#"{"metadata":{"managedFields":null}}"#), json!({"metadata": {}}));
        assert_eq!(
            lean(r#"{"spec":{"metadata":{"managedFields":[]}}}"#)["spec"]["metadata"]["managedFields"],
            json!([])
        );
    }

    #[test]
    fn malformed_text_is_rejected_by_the_decoder() {
        for text in
            ["", "{", "[]", r#"{"metadata""#, r#"{"metadata":{"managedFields":["#, r#"{"metadata":{"managedFields":"\"#]
        {
            assert_eq!(managed_text::managed_fields(text.as_bytes()), None, "{text}");
            assert!(decode::<ConfigMap>(text).is_err());
        }
    }

    #[test]
    fn the_identity_of_an_object_is_known_before_it_is_decoded() {
        let text = r#"{"metadata":{"name":"n","namespace":"s","resourceVersion":"7","managedFields":[{"manager":"m"}]},"data":{"a":"b"}}"#;
        let undecoded: Undecoded = serde_json::from_str(text).unwrap();
        assert_eq!(undecoded.meta().namespace.as_deref(), Some("s"));
        assert_eq!(undecoded.meta().resource_version.as_deref(), Some("7"));
        let decoded: ConfigMap = undecoded.decode().unwrap();
        assert_eq!(decoded.data.unwrap()["a"], "b");
        assert!(decoded.metadata.managed_fields.is_none());
    }
}
