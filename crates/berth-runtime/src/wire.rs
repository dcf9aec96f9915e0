//! Reading objects off the wire without what a controller never looks at.
//!
//! Two things make decoding cheap. An object this process has just written comes back through the watch: it is known by
//! its resourceVersion and need not be decoded again. And `metadata.managedFields`, half of a typical object, says who
//! set which field; no controller asks, so it is neither decoded nor kept.

use std::borrow::Cow;
use std::fmt::{Debug, Formatter};
use std::marker::PhantomData;
use std::ops::Range;

use kube::Resource;
use kube::api::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// An object as it came: what identifies it, and its text.
#[derive(Clone)]
pub(crate) struct Seen<K> {
    /// Name, namespace, uid and resourceVersion only.
    metadata: ObjectMeta,
    text: Box<RawValue>,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> Seen<K> {
    /// The whole object, without `managedFields`.
    pub(crate) fn decode(&self) -> Result<K, serde_json::Error> {
        decode(self.text.get())
    }
}

impl<K> Debug for Seen<K> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

impl<'de, K> Deserialize<'de> for Seen<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Identified { metadata } = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        let metadata = ObjectMeta {
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, text, kind: PhantomData })
    }
}

/// The part of an object that [`Seen`] reads at once.
#[derive(Deserialize)]
struct Identified {
    metadata: Identity,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<K: Resource<DynamicType = ()>> Resource for Seen<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An object read without its `metadata.managedFields`, for watches that are not a [`crate::Cache`]'s.
#[derive(Clone, Debug)]
pub struct Lean<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        decode(text.get()).map(Self).map_err(serde::de::Error::custom)
    }
}

impl<K: Resource> Resource for Lean<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

/// Decodes an object without its `metadata.managedFields`.
pub fn decode<K: DeserializeOwned>(text: &str) -> Result<K, serde_json::Error> {
    match managed_fields(text.as_bytes()) {
        Some(range) => {
            let mut lean = String::with_capacity(text.len() - range.len());
            lean.push_str(&text[..range.start]);
            lean.push_str(&text[range.end..]);
            serde_json::from_str(&lean)
        }
        None => serde_json::from_str(text),
    }
}

/// Where `"managedFields": ...` of the metadata stands, with the comma that separates it from its neighbour. Text that is
/// not what it should be has none: whoever decodes it says what is wrong.
fn managed_fields(text: &[u8]) -> Option<Range<usize>> {
    let (_, metadata) = member(text, skip_space(text, 0), b"\"metadata\"")?;
    let (key, value) = member(text, metadata, b"\"managedFields\"")?;
    let end = skip_value(text, value)?;
    let after = skip_space(text, end);
    if text.get(after) == Some(&b',') {
        return Some(key..after + 1);
    }
    // The last member: the comma before it goes, if there is one.
    let before = text[..key].iter().rposition(|byte| !byte.is_ascii_whitespace())?;
    Some(if text[before] == b',' { before..end } else { key..end })
}

/// Where the member with this (quoted) key begins in the object at `start`, and where its value does.
fn member(text: &[u8], start: usize, key: &[u8]) -> Option<(usize, usize)> {
    if text.get(start) != Some(&b'{') {
        return None;
    }
    let mut at = skip_space(text, start + 1);
    while text.get(at) == Some(&b'"') {
        let end = skip_string(text, at)?;
        let colon = skip_space(text, end);
        if text.get(colon) != Some(&b':') {
            return None;
        }
        let value = skip_space(text, colon + 1);
        if &text[at..end] == key {
            return Some((at, value));
        }
        at = skip_space(text, skip_value(text, value)?);
        if text.get(at) != Some(&b',') {
            return None;
        }
        at = skip_space(text, at + 1);
    }
    None
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// The end of the string that begins at `at`.
fn skip_string(text: &[u8], mut at: usize) -> Option<usize> {
    at += 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the value that begins at `at`.
fn skip_value(text: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match text.get(at)? {
            b'"' => at = skip_string(text, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b',' if depth == 0 => return Some(at),
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::{Value, json};

    use super::*;

    fn without(text: &str) -> Value {
        let range = managed_fields(text.as_bytes());
        let lean = range.map_or_else(|| text.to_owned(), |r| format!("{}{}", &text[..r.start], &text[r.end..]));
        serde_json::from_str(&lean).unwrap_or_else(|error| panic!("{lean}: {error}"))
    }

    #[test]
    fn managed_fields_go_and_nothing_else_does() {
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
            assert_eq!(without(&shape), expected, "{shape}");
        }
        assert_eq!(without(r#"{"metadata":{"managedFields":null}}"#), json!({"metadata": {}}));
        assert_eq!(
            without(r#"{"spec":{"metadata":{"managedFields":[]}}}"#)["spec"]["metadata"]["managedFields"],
            json!([])
        );
    }

    #[test]
    fn broken_text_is_left_to_the_decoder() {
        for text in
            ["", "{", "[]", r#"{"metadata""#, r#"{"metadata":{"managedFields":["#, r#"{"metadata":{"managedFields":"\"#]
        {
            assert_eq!(managed_fields(text.as_bytes()), None, "{text}");
            assert!(decode::<ConfigMap>(text).is_err());
        }
    }

    #[test]
    fn a_seen_object_is_known_before_it_is_decoded() {
        let text = r#"{"metadata":{"name":"n","namespace":"s","resourceVersion":"7","managedFields":[{"manager":"m"}]},"data":{"a":"b"}}"#;
        let seen: Seen<ConfigMap> = serde_json::from_str(text).unwrap();
        assert_eq!(seen.meta().resource_version.as_deref(), Some("7"));
        let decoded = seen.decode().unwrap();
        assert_eq!(decoded.data.unwrap()["a"], "b");
        assert!(decoded.metadata.managed_fields.is_none());
    }
}
