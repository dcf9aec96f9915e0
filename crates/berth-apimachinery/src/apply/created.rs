//! The `managedFields` entry of an object's creation.
//!
//! The manager that creates an object owns all of its fields. [`super::compare()`] with an empty
//! object would find them, and [`mod@super::set`] would write them. Most objects are created once
//! and changed a few times, so this module writes the text of the first entry directly, without
//! building a set.

use serde_json::Value;

use super::path::PathElement;
use super::set::{Set, put_text};
use super::types::{Relationship, TypeRef, Types};
use super::walk::{Shape, TypeError, elements, shapes};

/// The `fieldsV1` text of every field of a value, containers included. Members of `never` are
/// omitted. Members of `ignored` are omitted with everything below them.
pub(super) fn created_fields(
    types: &Types,
    root: &TypeRef,
    value: &Value,
    never: &Set,
    ignored: Option<&Set>,
) -> Result<String, TypeError> {
    let mut out = String::with_capacity(256);
    let without = Without { never: Some(never), ignored };
    put(types, root, value, false, without, &mut out)?;
    Ok(out)
}

/// The fields to omit below one step.
#[derive(Clone, Copy)]
struct Without<'a> {
    never: Option<&'a Set>,
    ignored: Option<&'a Set>,
}

/// One step of the walk and the result for it.
struct Step<'a> {
    is_ignored: bool,
    is_member: bool,
    below: Without<'a>,
}

impl<'a> Without<'a> {
    fn step(self, element: impl FnOnce() -> PathElement) -> Step<'a> {
        if self.never.is_none() && self.ignored.is_none() {
            return Step { is_ignored: false, is_member: true, below: self };
        }
        let element = element();
        Step {
            is_ignored: self.ignored.is_some_and(|ignored| ignored.has_element(&element)),
            is_member: !self.never.is_some_and(|never| never.has_element(&element)),
            below: Without {
                never: self.never.and_then(|never| never.below(&element)),
                ignored: self.ignored.and_then(|ignored| ignored.below(&element)),
            },
        }
    }
}

/// Appends `{...}` for a value; `itself` is true if the value is a member. Returns true if it has
/// members below it.
fn put(
    types: &Types,
    type_ref: &TypeRef,
    value: &Value,
    itself: bool,
    without: Without<'_>,
    out: &mut String,
) -> Result<bool, TypeError> {
    let atom = shapes(types, type_ref, &[])?;
    out.push('{');
    let start = out.len();
    let part = |type_ref: &TypeRef, value: &Value, step: Step<'_>, prefix: &str, text: &str, out: &mut String| {
        let before = out.len();
        if before > start {
            out.push(',');
        } else if itself {
            out.push_str("\".\":{},");
        }
        put_text(out, prefix, text);
        out.push(':');
        let has_more = put(types, type_ref, value, step.is_member, step.below, out)?;
        if step.is_ignored || !(step.is_member || has_more) {
            out.truncate(before);
        }
        Ok::<(), TypeError>(())
    };
    match (atom.shape(value), value) {
        (Shape::Map(map), Value::Object(entries)) if map.relationship == Relationship::Granular => {
            for (name, entry) in entries {
                let element = || PathElement::field(name);
                let Some(type_ref) = map.entry(name) else {
                    return Err(TypeError::new(&[element()], "field not declared in schema"));
                };
                part(type_ref, entry, without.step(element), "f:", name, out)?;
            }
        }
        (Shape::List(list), Value::Array(items)) if list.relationship == Relationship::Granular => {
            let elements = elements(types, list, items, &[])?;
            let mut parts: Vec<(String, &PathElement, &Value)> =
                elements.iter().zip(items).map(|(element, item)| (element.to_text(), element, item)).collect();
            // Steps of this kind are ordered by their text.
            parts.sort_by(|(a, ..), (b, ..)| a.cmp(b));
            for same in parts.chunk_by(|(_, a, _), (_, b, _)| a == b) {
                let (text, element, item) = &same[0];
                // Duplicate items are one field, regardless of their content.
                let item = if same.len() == 1 { *item } else { &Value::Null };
                part(&list.element, item, without.step(|| (*element).clone()), "", text, out)?;
            }
        }
        (Shape::None, _) => return Err(TypeError::new(&[], "schema error: invalid atom")),
        _ => {}
    }
    let has_more = out.len() > start;
    out.push('}');
    Ok(has_more)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apply::compare::compare;
    use crate::schema::Schema;

    fn types() -> Types {
        let item = json!({"type": "object", "properties": {"name": {"type": "string"}, "port": {"type": "integer"},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}});
        let schema = Schema::parse_crd(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "free": {"type": "object", "additionalProperties": {"type": "string"}},
                "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "integer"}}},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "list": {"type": "array", "items": {"type": "string"}},
                "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
                    "items": item}}},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
        }}))
        .expect("parses");
        Types::from_schema(&schema).with_object_meta()
    }

    fn path(names: &[&str]) -> Vec<PathElement> {
        names.iter().map(|name| PathElement::field(name)).collect()
    }

    /// The same result computed by comparing with an empty object and subtracting the excluded
    /// fields.
    fn by_sets(value: &Value, never: &Set, ignored: &Set) -> String {
        let added = compare(&types(), &Types::root(), &json!({}), value).expect("compares").added;
        let mut text = String::new();
        added.recursive_difference(ignored).difference(never).write_fields_v1(&mut text);
        text
    }

    #[test]
    fn the_first_entry_equals_the_difference_to_an_empty_object() {
        let metadata = json!({"name": "a", "labels": {"x/y": "z", "\"": ""}, "annotations": {}, "finalizers": ["b", "a"],
            "ownerReferences": [{"uid": "2", "kind": "K"}, {"uid": "1"}]});
        let specs = [
            json!(null),
            json!({}),
            json!({"free": {}, "whole": {"a": 1}, "any": {"b": {"c": [1]}, "d": null}, "list": ["x"], "items": []}),
            json!({"items": [{"name": "b", "port": 10}, {"name": "b", "port": 9, "tags": ["y", "x", "y"]}, {"name": "a", "port": 1}]}),
            json!({"items": [{"name": "b", "port": 1, "tags": []}, {"name": "b", "port": 1}], "free": {"k\\": "", "b": "c"}}),
        ];
        let mut never = Set::new();
        never.insert(&path(&["metadata"]));
        never.insert(&path(&["metadata", "name"]));
        never.insert(&path(&["spec", "free", "b"]));
        let mut ignored = Set::new();
        ignored.insert(&path(&["status"]));
        for spec in specs {
            for metadata in [&metadata, &json!({"name": "a"}), &Value::Null] {
                let value = json!({"metadata": metadata, "spec": spec, "status": {"n": 1}});
                for (never, ignored) in [(&never, &ignored), (&Set::new(), &Set::new()), (&ignored, &never)] {
                    let text = created_fields(&types(), &Types::root(), &value, never, Some(ignored)).expect("writes");
                    assert_eq!(text, by_sets(&value, never, ignored), "{value}");
                    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_value_that_does_not_match_its_type_has_no_first_entry() {
        let refused = |value: Value| created_fields(&types(), &Types::root(), &value, &Set::new(), None).is_err();
        assert!(refused(json!({"spec": {"unknown": 1}})));
        assert!(refused(json!({"spec": {"items": [{"name": "a"}, 1]}})));
    }
}
