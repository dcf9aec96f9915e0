//! Objects whose `metadata.managedFields` is one text: the list's own.
//!
//! That list is half of a typical object, and nearly everybody who holds an object as a value only carries it along:
//! as a tree it would be read, copied, compared, dropped and written field by field at every step. Packed it is a list of
//! one entry that holds nothing but the text. (A list, so that who reads an object as its type still can.) The server
//! keeps objects so between reading them from the store and writing them back; whoever shows an object to somebody else
//! (an answer, a webhook, a policy) [expands](expand) it first. What comes from outside is never taken for a packed
//! list: see [`disarm`].

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::json::{put, put_members};
use crate::managed_text::{self, Place};

const FIELD: &str = "managedFields";
/// The only field of the only entry.
const TEXT: &str = "text";

/// Reads an object's text; its `managedFields` are packed.
///
/// # Errors
/// What the text is not JSON.
pub fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    parse_at(text, managed_text::place(text).as_ref())
}

/// The same for a text of which is known where its list stands.
///
/// # Errors
/// What the text is not JSON.
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

/// Appends the text of an object, packed or not: in either case the same. Tells where the list of a packed one stands.
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
        // The key, its quotes, the colon; and the comma behind or, if there is none, the one before.
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

/// The text of a list, if it is packed.
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

/// Sees to it that the list of an object from outside is not taken for a packed one: an entry with a field that no entry
/// has is an empty entry.
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

/// Makes the packed list of an object a list again.
pub fn expand(object: &mut Value) {
    if let Some(list) = list_mut(object)
        && let Some(text) = text_of(list)
    {
        *list = serde_json::from_str(text).unwrap_or_default();
    }
}

/// The object with its list as a list.
pub fn expanded(object: &Value) -> Cow<'_, Value> {
    if packed_list(object).is_none() {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    expand(&mut object);
    Cow::Owned(object)
}

/// [`expanded`] for an object that is shared.
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

/// Takes the list out of an object if it is packed; [`put_back`] puts it in again.
pub fn take(object: &mut Value) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    text_of(metadata.get(FIELD)?)?;
    metadata.remove(FIELD)
}

/// Puts back what [`take`] took.
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
    fn where_the_list_was_written_is_where_it_is_found() {
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
    fn whatever_has_no_list_is_left_alone() {
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
    fn nothing_from_outside_is_taken_for_a_packed_list() {
        let mut sent = json!({"metadata": {"managedFields": [{"text": "]}"}]}});
        disarm(&mut sent);
        assert_eq!(sent, json!({"metadata": {"managedFields": [{}]}}));
        let mut honest = object();
        disarm(&mut honest);
        assert_eq!(honest, object());
    }

    #[test]
    fn what_is_taken_can_be_put_back() {
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
