//! Objects whose `metadata.managedFields` is packed: stored as the JSON text of the list.
//!
//! The list is half of a typical object, and most code that uses an object does not need the list.
//! As a tree it would be parsed, copied, compared, dropped and written field by field at every
//! step. The packed form is a list of one entry whose only field is the text. It is a list so that
//! code that deserializes the object to its typed form still works. The server keeps objects packed
//! between reading them from the store and writing them back. Code that returns an object to a
//! client, webhook or policy [expands](expand) it first. A list sent by a client is never treated
//! as packed: see [`disarm`].

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::json::{put, put_members};
use crate::managed_text::{self, Place};

const FIELD: &str = "managedFields";
/// The only field of the only entry.
const TEXT: &str = "text";

/// Parses an object's text and packs its `managedFields`.
///
/// # Errors
/// The text is not JSON.
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    parse_at(text, managed_text::place(text).as_ref())
}

/// Parses an object's text whose list has a known location.
///
/// # Errors
/// The text is not JSON.
pub fn parse_at(text: &[u8], place: Option<&Place>) -> Result<Value, serde_json::Error> {
    let Some(Place { member, list }) = place.filter(|place| text[place.list.start] == b'[') else {
        return serde_json::from_slice(text);
    };
    let Ok(list) = std::str::from_utf8(&text[list.clone()]) else { return serde_json::from_slice(text) };
    let mut rest = Vec::with_capacity(text.len() - member.len());
    rest.extend_from_slice(&text[..member.start]);
    rest.extend_from_slice(&text[member.end..]);
    let mut object: Value = serde_json::from_slice(&rest)?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(FIELD.to_owned(), of_text(list.to_owned()));
    }
    Ok(object)
}

/// Appends the text of an object; a packed and an unpacked object have the same text. Returns the
/// location of a packed list.
pub fn write(object: &Value, out: &mut Vec<u8>) -> Option<Place> {
    let Some((map, metadata, list)) = packed_list(object) else {
        put(out, object);
        return None;
    };
    let is_last = metadata.keys().next_back().is_some_and(|last| last == FIELD);
    let mut place = None;
    put_members(out, map, |out, key, value| match key {
        "metadata" => put_members(out, metadata, |out, key, value| match key {
            FIELD => {
                let start = out.len();
                out.extend_from_slice(list.as_bytes());
                place = Some(start..out.len());
            }
            _ => put(out, value),
        }),
        _ => put(out, value),
    });
    place.map(|list| {
        // The key, its quotes and the colon; and the comma after the list or, if there is none, the
        // one before.
        let key = list.start - FIELD.len() - 3;
        let member = match (is_last, metadata.len()) {
            (false, _) => key..list.end + 1,
            (true, 1) => key..list.end,
            (true, _) => key - 1..list.end,
        };
        Place { member, list }
    })
}

fn packed_list(object: &Value) -> Option<(&Map<String, Value>, &Map<String, Value>, &str)> {
    let map = object.as_object()?;
    let metadata = map.get("metadata")?.as_object()?;
    Some((map, metadata, text_of(metadata.get(FIELD)?)?))
}

/// The text of a list, if the list is packed.
pub fn text_of(list: &Value) -> Option<&str> {
    match list.as_array()?.as_slice() {
        [Value::Object(entry)] if entry.len() == 1 => entry.get(TEXT)?.as_str(),
        _ => None,
    }
}

/// A packed list.
pub(crate) fn of_text(text: String) -> Value {
    Value::Array(vec![Value::Object(Map::from_iter([(TEXT.to_owned(), Value::String(text))]))])
}

/// Ensures that the list of an object from a client is not treated as packed: an entry with the
/// reserved field is replaced by an empty entry.
pub fn disarm(object: &mut Value) {
    if let Some(list) = list_mut(object)
        && text_of(list).is_some()
    {
        *list = Value::Array(vec![Value::Object(Map::new())]);
    }
}

fn list_mut(object: &mut Value) -> Option<&mut Value> {
    object.get_mut("metadata")?.get_mut(FIELD)
}

/// Unpacks the list of an object.
pub fn expand(object: &mut Value) {
    if let Some(list) = list_mut(object)
        && let Some(text) = text_of(list)
    {
        *list = serde_json::from_str(text).unwrap_or_default();
    }
}

/// The object with its list unpacked.
pub fn expanded(object: &Value) -> Cow<'_, Value> {
    if packed_list(object).is_none() {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    expand(&mut object);
    Cow::Owned(object)
}

/// [`expanded`] for a shared object.
pub fn expanded_shared(object: Arc<Value>) -> Arc<Value> {
    match expanded(&object) {
        Cow::Owned(expanded) => Arc::new(expanded),
        Cow::Borrowed(_) => object,
    }
}

/// Packs the list of an object, if it has one.
pub fn pack(object: &mut Value) {
    if let Some(list) = list_mut(object)
        && list.is_array()
        && text_of(list).is_none()
    {
        *list = of_text(list.to_string());
    }
}

/// Removes the list from an object if it is packed; [`put_back`] restores it.
pub fn take(object: &mut Value) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    text_of(metadata.get(FIELD)?)?;
    metadata.remove(FIELD)
}

/// Restores the list that [`take`] removed.
pub fn put_back(object: &mut Value, list: Option<Value>) {
    if let Some(list) = list {
        crate::meta::metadata_mut(object).insert(FIELD.to_owned(), list);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"managedFields": "x", "metadata": "y"},
            "metadata": {"labels": {}, "name": "n", "managedFields": [
                {"manager": "a\\\"]", "operation": "Update", "fieldsV1": {"f:data": {"k:{\"a\":\"]\"}": {}}}}]}})
    }

    #[test]
    fn packing_keeps_the_text() {
        let object = object();
        let text = object.to_string();
        let packed = parse(text.as_bytes()).expect("parses");
        assert!(text_of(&packed["metadata"]["managedFields"]).is_some());
        assert_eq!(packed["data"], object["data"]);
        let mut out = Vec::new();
        let place = write(&packed, &mut out);
        assert_eq!(place, managed_text::place(&out));
        assert_eq!(parse_at(&out, place.as_ref()).expect("parses"), packed);
        assert_eq!(String::from_utf8(out).expect("text"), text);
        assert_eq!(*expanded(&packed), object);
        let mut again = object.clone();
        pack(&mut again);
        assert_eq!(again, packed);
    }

    #[test]
    fn the_written_list_is_located() {
        let list = json!([{"manager": "m"}]);
        for metadata in [
            json!({"managedFields": list}),
            json!({"managedFields": list, "name": "n"}),
            json!({"labels": {}, "managedFields": list}),
            json!({"labels": {}, "managedFields": list, "name": "n"}),
        ] {
            let mut object = json!({"kind": "K", "metadata": metadata});
            pack(&mut object);
            let mut out = b"[".to_vec();
            let place = write(&object, &mut out).expect("it has a list");
            assert_eq!(&out[place.list.clone()], list.to_string().as_bytes());
            out.remove(0);
            let found = managed_text::place(&out).expect("it has a list");
            assert_eq!((found.member.start + 1, found.member.end + 1), (place.member.start, place.member.end));
        }
    }

    #[test]
    fn objects_without_managed_fields_are_unchanged() {
        for object in [
            json!(null),
            json!([1]),
            json!({}),
            json!({"metadata": null}),
            json!({"metadata": {}}),
            json!({"metadata": {"managedFields": null}}),
            json!({"metadata": {"managedFields": {"a": 1}}}),
        ] {
            let parsed = parse(object.to_string().as_bytes()).expect("parses");
            assert_eq!(parsed, object);
            let mut out = Vec::new();
            write(&parsed, &mut out);
            assert_eq!(String::from_utf8(out).expect("text"), object.to_string());
        }
    }

    #[test]
    fn a_list_sent_by_a_client_is_never_treated_as_packed() {
        let mut sent = json!({"metadata": {"managedFields": [{"text": "]}"}]}});
        disarm(&mut sent);
        assert_eq!(sent, json!({"metadata": {"managedFields": [{}]}}));
        let mut honest = object();
        disarm(&mut honest);
        assert_eq!(honest, object());
    }

    #[test]
    fn a_packed_list_that_was_taken_can_be_put_back() {
        let mut packed = object();
        assert_eq!(take(&mut packed), None);
        pack(&mut packed);
        let before = packed.clone();
        let list = take(&mut packed);
        assert!(list.is_some());
        assert_eq!(packed["metadata"].get("managedFields"), None);
        put_back(&mut packed, list);
        assert_eq!(packed, before);
    }
}
