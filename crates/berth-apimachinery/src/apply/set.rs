//! Sets of paths to fields, and their compact form `fieldsV1`.
//!
//! A set is a tree: each node records whether it is a member, and which nodes are below it. A node
//! that neither is a member nor has members below it does not exist, so two sets are equal exactly
//! if their trees are. Sets share subtrees: a copy is cheap, and most writes leave most of a
//! manager's set unchanged.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::path::{PathElement, PathError};
use crate::json::needs_escape;

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: Nodes,
}

/// One level of the tree, ordered by step. Levels are short and mostly read, so each is one
/// allocation, copied on write while it is shared.
#[derive(Clone, Default)]
struct Nodes(Option<Arc<Vec<(PathElement, Node)>>>);

impl Nodes {
    fn as_slice(&self) -> &[(PathElement, Node)] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn iter(&self) -> impl Iterator<Item = (&PathElement, &Node)> {
        self.as_slice().iter().map(|(element, node)| (element, node))
    }

    fn get(&self, element: &PathElement) -> Option<&Node> {
        let nodes = self.as_slice();
        let at = nodes.binary_search_by(|(other, _)| other.cmp(element)).ok()?;
        Some(&nodes[at].1)
    }

    /// The node of a step, created if it is missing.
    fn entry(&mut self, element: PathElement) -> &mut Node {
        let nodes = Arc::make_mut(self.0.get_or_insert_default());
        // Sets are read in order, so the node is usually the last one.
        let at = match nodes.last() {
            Some((last, _)) if *last < element => Err(nodes.len()),
            _ => nodes.binary_search_by(|(other, _)| other.cmp(&element)),
        };
        let at = at.unwrap_or_else(|at| {
            nodes.insert(at, (element, Node::default()));
            at
        });
        &mut nodes[at].1
    }

    /// A level made of nodes that are ordered by step.
    fn of(nodes: Vec<(PathElement, Node)>) -> Self {
        Nodes((!nodes.is_empty()).then(|| Arc::new(nodes)))
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => true,
            _ => self.as_slice() == other.as_slice(),
        }
    }
}

impl Eq for Nodes {}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl IntoIterator for Nodes {
    type Item = (PathElement, Node);
    type IntoIter = std::vec::IntoIter<(PathElement, Node)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.map(Arc::unwrap_or_clone).unwrap_or_default().into_iter()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    /// The empty set.
    pub fn new() -> Self {
        Set::default()
    }

    /// True if the set has no members.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a path. The empty path is ignored.
    pub fn insert(&mut self, path: &[PathElement]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.nodes.entry(first.clone());
        if rest.is_empty() {
            node.member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Adds one step.
    pub(super) fn insert_element(&mut self, element: PathElement) {
        self.nodes.entry(element).member = true;
    }

    /// Adds all members of a set below one step.
    pub(super) fn insert_below(&mut self, element: PathElement, below: Set) {
        if !below.is_empty() {
            let node = self.nodes.entry(element);
            let own = std::mem::take(&mut node.below);
            node.below = own.union(below);
        }
    }

    /// Adds a path and all members of a set below it.
    pub(super) fn insert_whole(&mut self, path: &[PathElement], below: Set) {
        match path {
            [] => *self = std::mem::take(self).union(below),
            [last] => {
                let node = self.nodes.entry(last.clone());
                node.member = true;
                node.below = std::mem::take(&mut node.below).union(below);
            }
            [first, rest @ ..] => self.nodes.entry(first.clone()).below.insert_whole(rest, below),
        }
    }

    /// True if the path itself is a member.
    pub fn has(&self, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [element] => self.has_element(element),
            [first, rest @ ..] => self.nodes.get(first).is_some_and(|node| node.below.has(rest)),
        }
    }

    pub(super) fn has_element(&self, element: &PathElement) -> bool {
        self.nodes.get(element).is_some_and(|node| node.member)
    }

    /// True if some path is a member of both sets.
    pub fn intersects(&self, other: &Set) -> bool {
        let (small, large) = if self.nodes.len() <= other.nodes.len() { (self, other) } else { (other, self) };
        small.nodes.iter().any(|(element, mine)| {
            large
                .nodes
                .get(element)
                .is_some_and(|theirs| (mine.member && theirs.member) || mine.below.intersects(&theirs.below))
        })
    }

    /// True if every member of the other set is a member of this set.
    pub fn has_all(&self, other: &Set) -> bool {
        other.nodes.iter().all(|(element, theirs)| {
            self.nodes
                .get(element)
                .is_some_and(|mine| (mine.member || !theirs.member) && mine.below.has_all(&theirs.below))
        })
    }

    /// The set below one step; `None` if it is empty.
    pub(super) fn below(&self, element: &PathElement) -> Option<&Set> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    /// The entries of the first level: the step, whether it is a member, and the set below it.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&PathElement, bool, &Set)> {
        self.nodes.iter().map(|(element, node)| (element, node.member, &node.below))
    }

    /// All member paths: the members of a level, followed by those below them.
    pub fn paths(&self) -> Vec<Vec<PathElement>> {
        fn walk(set: &Set, prefix: &mut Vec<PathElement>, paths: &mut Vec<Vec<PathElement>>) {
            for (element, _) in set.nodes.iter().filter(|(_, node)| node.member) {
                let mut path = prefix.clone();
                path.push(element.clone());
                paths.push(path);
            }
            for (element, node) in set.nodes.iter() {
                prefix.push(element.clone());
                walk(&node.below, prefix, paths);
                prefix.pop();
            }
        }
        let mut paths = Vec::new();
        walk(self, &mut Vec::new(), &mut paths);
        paths
    }

    /// Union of two sets.
    #[must_use]
    pub fn union(mut self, other: Set) -> Set {
        if self.is_empty() {
            return other;
        }
        let (mut mine, mut theirs) = (std::mem::take(&mut self.nodes).into_iter().peekable(), other.nodes.into_iter());
        let mut both = Vec::with_capacity(mine.len().max(theirs.len()));
        for (element, theirs) in theirs.by_ref() {
            while let Some(before) = mine.next_if(|(own, _)| *own < element) {
                both.push(before);
            }
            both.push(match mine.next_if(|(own, _)| *own == element) {
                Some((element, own)) => {
                    let node = Node { member: own.member || theirs.member, below: own.below.union(theirs.below) };
                    (element, node)
                }
                None => (element, theirs),
            });
        }
        both.extend(mine);
        self.nodes = Nodes::of(both);
        self
    }

    /// Intersection of two sets.
    #[must_use]
    pub fn intersection(&self, other: &Set) -> Set {
        let both = self.nodes.iter().filter_map(|(element, mine)| {
            let theirs = other.nodes.get(element)?;
            let node = Node { member: mine.member && theirs.member, below: mine.below.intersection(&theirs.below) };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Set { nodes: Nodes::of(both.collect()) }
    }

    /// Members of this set that are not members of the other.
    #[must_use]
    pub fn difference(&self, other: &Set) -> Set {
        if !self.intersects(other) {
            return self.clone();
        }
        let mine = self.nodes.iter().filter_map(|(element, mine)| {
            let node = match other.nodes.get(element) {
                Some(theirs) => {
                    Node { member: mine.member && !theirs.member, below: mine.below.difference(&theirs.below) }
                }
                None => mine.clone(),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Set { nodes: Nodes::of(mine.collect()) }
    }

    /// Members of this set that are neither members of the other set nor below one.
    #[must_use]
    pub fn recursive_difference(&self, other: &Set) -> Set {
        if other.is_empty() || self.is_empty() {
            return self.clone();
        }
        let mine = self.nodes.iter().filter_map(|(element, mine)| {
            let node = match other.nodes.get(element) {
                Some(theirs) if theirs.member => return None,
                Some(theirs) => Node { member: mine.member, below: mine.below.recursive_difference(&theirs.below) },
                None => mine.clone(),
            };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Set { nodes: Nodes::of(mine.collect()) }
    }

    /// Members that have no members below them.
    #[must_use]
    pub fn leaves(&self) -> Set {
        let leaves = self.nodes.iter().map(|(element, node)| {
            let below = node.below.leaves();
            (element.clone(), Node { member: node.member && below.is_empty(), below })
        });
        Set { nodes: Nodes::of(leaves.collect()) }
    }

    /// The members that the pattern keeps.
    #[must_use]
    pub fn filtered(&self, pattern: &Pattern) -> Set {
        if pattern.everything {
            return self.clone();
        }
        let kept = self.nodes.iter().filter_map(|(element, node)| {
            let below = pattern.below(element)?;
            let node = Node { member: node.member, below: node.below.filtered(&below) };
            (!node.is_empty()).then(|| (element.clone(), node))
        });
        Set { nodes: Nodes::of(kept.collect()) }
    }

    /// Reads `fieldsV1`.
    pub fn from_fields_v1(fields: &Value) -> Result<Self, PathError> {
        let map = match fields {
            Value::Null => return Ok(Set::new()),
            Value::Object(map) => map,
            other => return Err(PathError(format!("expected an object, got {other}"))),
        };
        let mut set = Set::new();
        for (key, value) in map {
            if key == "." {
                if !(value.is_object() || value.is_null()) {
                    return Err(PathError(format!("expected an object, got {value}")));
                }
                continue;
            }
            let Some(element) = PathElement::parse(key)? else { continue };
            let below = Set::from_fields_v1(value)?;
            let itself = value.as_object().is_none_or(|map| map.is_empty() || map.contains_key("."));
            let node = Node { member: itself, below };
            if !node.is_empty() {
                *set.nodes.entry(element) = node;
            }
        }
        Ok(set)
    }

    /// Reads the text of the `fieldsV1` form directly, without parsing it to a JSON value first.
    pub fn from_fields_v1_text(text: &str) -> Result<Self, PathError> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = Level.deserialize(&mut reader).and_then(|level| reader.end().map(|()| level));
        read.map(|level| level.set).map_err(|error| PathError(error.to_string()))
    }

    /// The `fieldsV1` form as a value. The map type determines key order;
    /// [`Set::to_fields_v1_text`] has the canonical one.
    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        for (element, node) in self.nodes.iter() {
            let mut below = match node.below.to_fields_v1() {
                Value::Object(below) => below,
                _ => Map::new(),
            };
            if node.member && !below.is_empty() {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            map.insert(element.to_text(), Value::Object(below));
        }
        Value::Object(map)
    }

    /// Appends the text of [`Set::to_fields_v1`].
    pub(super) fn write_fields_v1(&self, out: &mut String) {
        self.write_by_text(false, out);
    }

    fn write_by_text(&self, itself: bool, out: &mut String) {
        out.push('{');
        let dot = itself && !self.is_empty();
        if dot {
            out.push_str("\".\":{}");
        }
        let mut between = if dot { "," } else { "" };
        let mut put = |out: &mut String, prefix: &str, text: &str, node: &Node| {
            out.push_str(between);
            between = ",";
            put_text(out, prefix, text);
            out.push(':');
            node.below.write_by_text(node.member, out);
        };
        if self.nodes.iter().all(|(element, _)| matches!(element, PathElement::Field(_))) {
            for (element, node) in self.nodes.iter() {
                if let PathElement::Field(name) = element {
                    put(out, "f:", name, node);
                }
            }
        } else {
            // Steps of other kinds are ordered by value, not by their text.
            let mut below: Vec<(String, &Node)> =
                self.nodes.iter().map(|(element, node)| (element.to_text(), node)).collect();
            below.sort_by(|(a, _), (b, _)| a.cmp(b));
            for (text, node) in below {
                put(out, "", &text, node);
            }
        }
        out.push('}');
    }

    /// The canonical `fieldsV1` text: fields, keys, values, indexes, each ordered by value.
    pub fn to_fields_v1_text(&self) -> String {
        let mut text = String::new();
        self.write(false, &mut text);
        text
    }

    fn write(&self, itself: bool, text: &mut String) {
        text.push('{');
        let mut first = true;
        if itself && !self.is_empty() {
            text.push_str("\".\":{}");
            first = false;
        }
        for (element, node) in self.nodes.iter() {
            if !first {
                text.push(',');
            }
            first = false;
            text.push_str(&Value::String(element.to_text()).to_string());
            text.push(':');
            node.below.write(node.member, text);
        }
        text.push('}');
    }

    /// The fields of a value without a schema. List items that are maps with a scalar `key`, `id`
    /// or `name` are keyed by those fields, other items by their index.
    pub fn of_schemaless(value: &Value) -> Set {
        fn walk(value: &Value, path: &mut Vec<PathElement>, set: &mut Set) {
            match value {
                Value::Object(map) if !map.is_empty() || path.is_empty() => {
                    for (key, value) in map {
                        path.push(PathElement::field(key));
                        walk(value, path, set);
                        path.pop();
                    }
                }
                Value::Array(list) if !list.is_empty() => {
                    for (i, item) in list.iter().enumerate() {
                        let keys: Vec<(String, Value)> = ["key", "id", "name"]
                            .into_iter()
                            .filter_map(|key| Some((key.to_owned(), item.get(key)?.clone())))
                            .filter(|(_, value)| !value.is_object() && !value.is_array())
                            .collect();
                        path.push(if keys.is_empty() {
                            PathElement::Index(i as i64)
                        } else {
                            PathElement::keyed(keys)
                        });
                        walk(item, path, set);
                        path.pop();
                    }
                }
                _ => set.insert(path),
            }
        }
        let mut set = Set::new();
        walk(value, &mut Vec::new(), &mut set);
        set
    }
}

/// The paths to keep: a tree of steps, any of which may be a wildcard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Keep everything below.
    pub everything: bool,
    /// Steps and the pattern below each; a step of `None` matches every step.
    pub members: Vec<(Option<PathElement>, Pattern)>,
}

impl Pattern {
    fn below(&self, element: &PathElement) -> Option<Pattern> {
        let mut found: Option<Pattern> = None;
        // A wildcard matches every step, including steps that the list also names.
        let wildcard = self.members.iter().any(|(member, _)| member.is_none());
        for (member, below) in &self.members {
            let matches = if wildcard { member.is_none() } else { member.as_ref() == Some(element) };
            if matches {
                let merged = found.get_or_insert_default();
                merged.everything |= below.everything;
                merged.members.extend(below.members.iter().cloned());
            }
        }
        found
    }
}

/// Appends a JSON string made of two parts. The first part needs no escaping.
pub(super) fn put_text(out: &mut String, prefix: &str, text: &str) {
    out.push('"');
    out.push_str(prefix);
    if !needs_escape(text) {
        out.push_str(text);
    } else {
        let quoted = Value::from(text).to_string();
        out.push_str(&quoted[1..quoted.len() - 1]);
    }
    out.push('"');
}

/// A cache of recently read sets by `fieldsV1` text. Most objects of a controller have the same
/// text, and sets share their trees, so most ownership lists are served without parsing.
#[derive(Debug, Default)]
pub struct ReadSets(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Set>,
    old: HashMap<Box<str>, Set>,
}

/// Maximum number of sets of a generation. A full young generation replaces the old one; the sets
/// of the old one that were not read again are dropped.
const GENERATION_MAX: usize = 512;
/// Maximum length of a cached text, in bytes. A longer text usually belongs to one object only.
const REMEMBERED_BYTES_MAX: usize = 8 * 1024;

impl ReadSets {
    /// Reads a set as [`Set::from_fields_v1_text`] does, through the cache.
    pub(super) fn read(&self, text: &str) -> Result<Set, PathError> {
        let mut generations = self.0.lock();
        if let Some(set) = generations.young.get(text) {
            return Ok(set.clone());
        }
        let set = match generations.old.remove(text) {
            Some(set) => set,
            None => Set::from_fields_v1_text(text)?,
        };
        if text.len() <= REMEMBERED_BYTES_MAX {
            if generations.young.len() == GENERATION_MAX {
                generations.old = std::mem::take(&mut generations.young);
            }
            generations.young.insert(text.into(), set.clone());
        }
        Ok(set)
    }
}

/// Reads one level of a `fieldsV1` text.
struct Level;

/// The parsed content of a level: the members below it, and whether the step to it is a member.
struct Read {
    set: Set,
    itself: bool,
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Read;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Read, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Read;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Read, E> {
        Ok(Read { set: Set::new(), itself: true })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
        let mut set = Set::new();
        let (mut is_empty, mut has_dot) = (true, false);
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            is_empty = false;
            if key == "." {
                map.next_value::<Option<std::collections::BTreeMap<Cow<'de, str>, IgnoredAny>>>()?;
                has_dot = true;
                continue;
            }
            let Some(element) = PathElement::parse(&key).map_err(A::Error::custom)? else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let Read { set: below, itself } = map.next_value_seed(Level)?;
            let node = Node { member: itself, below };
            if !node.is_empty() {
                *set.nodes.entry(element) = node;
            }
        }
        Ok(Read { set, itself: is_empty || has_dot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_that_is_a_member_with_children_has_a_dot() {
        let fields = json!({"f:a": {".": {}, "k:{\"name\":\"x\"}": {"f:b": {}}}, "f:c": {}});
        let set = Set::from_fields_v1(&fields).expect("parses");
        assert_eq!(set.to_fields_v1(), fields);
        let paths: Vec<String> = set.paths().iter().map(|path| super::super::path::path_text(path)).collect();
        assert_eq!(paths, [".a", ".c", ".a[name=\"x\"].b"]);
    }

    #[test]
    fn field_sets_read_and_write_the_same_as_text_and_as_values() {
        for fields in [
            json!({}),
            json!({"f:a": {".": {}, "k:{\"name\":\"x\"}": {"f:b": {}}}, "f:c": {}}),
            json!({"f:l": {"k:{\"n\":\"a-b\"}": {}, "k:{\"n\":\"a!\"}": {}, "k:{\"n\":\"a\"}": {"f:\"\\u0001": {}}}}),
            json!({"f:s": {"v:1": {}, "v:\"a\"": {}, "v:10": {}, "v:9": {}, "i:3": {}, "x:y": {}}, "f:n": null}),
        ] {
            let text = fields.to_string();
            let set = Set::from_fields_v1(&fields).expect("parses");
            assert_eq!(Set::from_fields_v1_text(&text), Ok(set.clone()), "{text}");
            let mut written = String::new();
            set.write_fields_v1(&mut written);
            assert_eq!(written, set.to_fields_v1().to_string());
        }
        for broken in ["", "1", "[]", "{", "{\"a\":{}}", "{\"f:a\":1}", "{\".\":1}", "{} {}", "{\"i:x\":{}}"] {
            assert!(Set::from_fields_v1_text(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn recently_read_sets_are_shared_and_old_ones_dropped() {
        let sets = ReadSets::default();
        let text = |i: usize| format!("{{\"f:{i}\":{{}}}}");
        let first = sets.read(&text(0)).expect("parses");
        assert!(Arc::ptr_eq(
            first.nodes.0.as_ref().expect("members"),
            sets.read(&text(0)).expect("parses").nodes.0.as_ref().expect("members")
        ));
        for i in 0..3 * GENERATION_MAX {
            assert_eq!(sets.read(&text(i)), Set::from_fields_v1_text(&text(i)));
        }
        assert!(sets.read("{").is_err());
        let generations = sets.0.lock();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION_MAX);
        assert!(!generations.young.contains_key(text(0).as_str()));
    }

    #[test]
    fn a_recursive_difference_removes_children_too() {
        let a = Set::from_fields_v1(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}})).expect("parses");
        let b = Set::from_fields_v1(&json!({"f:a": {}})).expect("parses");
        assert_eq!(a.difference(&b).to_fields_v1(), json!({"f:a": {"f:b": {}}, "f:c": {}}));
        assert_eq!(a.recursive_difference(&b).to_fields_v1(), json!({"f:c": {}}));
    }
}
