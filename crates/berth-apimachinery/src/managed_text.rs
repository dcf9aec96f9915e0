//! Locates `metadata` and its `managedFields` in the text of an object without parsing either.
//! Field ownership is half of a typical object, and most readers do not use it. In malformed text,
//! no location is found: the decoder reports the errors.

use std::ops::Range;

/// The byte range of `"managedFields": ...` in metadata, including the comma that separates it from
/// its neighbour.
pub fn managed_fields(text: &[u8]) -> Option<Range<usize>> {
    place(text).map(|place| place.member)
}

/// The location of `managedFields` in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The member with its separating comma, as returned by [`managed_fields`].
    pub member: Range<usize>,
    /// Its value.
    pub list: Range<usize>,
}

/// Like [`managed_fields`], and also returns the range of the list itself.
pub fn place(text: &[u8]) -> Option<Place> {
    let (_, metadata) = member(text, skip_space(text, 0), b"\"metadata\"")?;
    let (key, value) = member(text, metadata, b"\"managedFields\"")?;
    let list = value..skip_value(text, value)?;
    Some(Place { member: with_comma(text, key, list.end)?, list })
}

/// The ranges of the items of a list that is the whole text. Each item is an object. `member` is
/// called for each of its members, with the item's index and the ranges of the key (with its
/// quotes) and the value.
pub(crate) fn items(
    text: &[u8],
    mut member: impl FnMut(usize, Range<usize>, Range<usize>),
) -> Option<Vec<Range<usize>>> {
    let mut items = Vec::new();
    let mut at = skip_space(text, 0);
    if text.get(at) != Some(&b'[') {
        return None;
    }
    at = skip_space(text, at + 1);
    while text.get(at)? != &b']' {
        let mut members = Members::of(text, at)?;
        while let Some((key, value)) = members.next()? {
            let end = skip_value(text, value)?;
            member(items.len(), key..skip_string(text, key)?, value..end);
            members.after(end)?;
        }
        let end = members.at + 1;
        items.push(at..end);
        at = skip_space(text, end);
        match text.get(at)? {
            b',' => at = skip_space(text, at + 1),
            b']' => {}
            _ => return None,
        }
    }
    Some(items)
}

/// The range of the value of `metadata`, and that of its `managedFields` as returned by
/// [`managed_fields`].
pub fn metadata(text: &[u8]) -> Option<(Range<usize>, Option<Range<usize>>)> {
    let (_, start) = member(text, skip_space(text, 0), b"\"metadata\"")?;
    let mut managed = None;
    let mut members = Members::of(text, start)?;
    while let Some((key, value)) = members.next()? {
        let end = skip_value(text, value)?;
        if is_key(text, key, b"\"managedFields\"") {
            managed = with_comma(text, key, end);
        }
        members.after(end)?;
    }
    Some((start..members.at + 1, managed))
}

/// The range of a member with the comma after it or, for the last member, the comma before it.
fn with_comma(text: &[u8], key: usize, end: usize) -> Option<Range<usize>> {
    let after = skip_space(text, end);
    if text.get(after) == Some(&b',') {
        return Some(key..after + 1);
    }
    let before = text[..key].iter().rposition(|byte| !byte.is_ascii_whitespace())?;
    Some(if text[before] == b',' { before..end } else { key..end })
}

/// The start of the member with this (quoted) key in the object at `start`, and the start of its
/// value.
fn member(text: &[u8], start: usize, key: &[u8]) -> Option<(usize, usize)> {
    let mut members = Members::of(text, start)?;
    while let Some((at, value)) = members.next()? {
        if is_key(text, at, key) {
            return Some((at, value));
        }
        members.after(skip_value(text, value)?)?;
    }
    None
}

/// Compares the key with its quotes, so that it does not match a longer key.
fn is_key(text: &[u8], at: usize, key: &[u8]) -> bool {
    text[at..].starts_with(key)
}

/// A walk over the members of an object.
struct Members<'t> {
    text: &'t [u8],
    /// Position of a key, or of the end of the object.
    at: usize,
}

impl<'t> Members<'t> {
    fn of(text: &'t [u8], start: usize) -> Option<Self> {
        (text.get(start) == Some(&b'{')).then(|| Members { text, at: skip_space(text, start + 1) })
    }

    /// The start of the next key and of its value; `Some(None)` at the end of the object.
    fn next(&self) -> Option<Option<(usize, usize)>> {
        match self.text.get(self.at)? {
            b'}' => Some(None),
            b'"' => {
                let colon = skip_space(self.text, skip_string(self.text, self.at)?);
                (self.text.get(colon) == Some(&b':')).then(|| Some((self.at, skip_space(self.text, colon + 1))))
            }
            _ => None,
        }
    }

    /// Continues after a value that ends at `end`.
    fn after(&mut self, end: usize) -> Option<()> {
        self.at = skip_space(self.text, end);
        match self.text.get(self.at)? {
            b',' => {
                self.at = skip_space(self.text, self.at + 1);
                Some(())
            }
            b'}' => Some(()),
            _ => None,
        }
    }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while text.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

const SHORT: usize = 24;

/// The end of the string that starts at `at`.
fn skip_string(text: &[u8], mut at: usize) -> Option<usize> {
    at += 1;
    // Most strings are short keys: checking a few bytes is cheaper than calling the search for long
    // strings.
    for byte in text.get(at..)?.iter().take(SHORT) {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => break,
            _ => at += 1,
        }
    }
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The end of the value that starts at `at`.
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
    use super::*;

    #[test]
    fn a_broken_list_has_no_items() {
        let found = |list: &'static str| {
            let mut members = Vec::new();
            let items = items(list.as_bytes(), |item, key, value| members.push((item, &list[key], &list[value])))?;
            Some((items.into_iter().map(|item| &list[item]).collect::<Vec<_>>(), members))
        };
        assert_eq!(found("[]"), Some((vec![], vec![])));
        let (items, members) = found(r#" [ {"a":"]"} , {}, {"b" : [1,{"c":2}] ,"d":3}]"#).expect("a list");
        assert_eq!(items, [r#"{"a":"]"}"#, "{}", r#"{"b" : [1,{"c":2}] ,"d":3}"#]);
        assert_eq!(members, [(0, "\"a\"", "\"]\""), (2, "\"b\"", r#"[1,{"c":2}]"#), (2, "\"d\"", "3")]);
        for broken in ["", "{}", "[", "[}", "[1", "[1}", "[1]", "[\"", "[{]", "[{\"a\"}]", "[{\"a\":1}"] {
            assert_eq!(found(broken), None, "{broken}");
        }
    }
}
