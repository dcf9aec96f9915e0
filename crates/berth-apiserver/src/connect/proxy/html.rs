//! Changes links in the web pages of pods. A link to a path of the pod becomes the path of this
//! server under which the proxy serves it, so that a browser can follow it through the proxy.
//!
//! A page is changed while it passes. Only the tag, comment or raw text (such as a script) that is
//! being read is held, and at most about 64 KiB of it.

/// Maximum length of a tag whose links are changed, in bytes. A longer tag passes unchanged.
const TAG_BYTES_MAX: usize = 64 * 1024;

/// Attributes with a link, by element.
///
/// Source: the HTML standard, "Attributes" (type "Valid URL potentially surrounded by spaces"), and
/// HTML 4.01 for elements that are obsolete.
const LINKS: [(&str, &[&str]); 28] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("track", &["src"]),
    ("video", &["poster", "src"]),
    ("image", &["href"]),
    ("use", &["href"]),
];

/// Elements whose content has no tags except the element's own end tag.
const RAW: [&str; 4] = ["script", "style", "textarea", "title"];

/// The part of the page to which the next byte belongs.
enum State {
    Text,
    /// A tag, which has begun with `<`. `quote` is the open quotation mark.
    Tag {
        quote: Option<u8>,
    },
    Comment,
    /// The content of an element of [`RAW`].
    Raw {
        name: &'static str,
    },
}

/// Changes the links of one page.
pub(super) struct Links<F> {
    /// Returns the new form of a link; `None` if the link stays unchanged.
    change: F,
    state: State,
    /// Bytes that have not been passed on.
    held: Vec<u8>,
}

impl<F: Fn(&str) -> Option<String>> Links<F> {
    pub(super) fn new(change: F) -> Self {
        Self { change, state: State::Text, held: Vec::new() }
    }

    /// Takes the next part of the page, and returns as much of the changed page as is known.
    pub(super) fn push(&mut self, part: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(part.len() + 64);
        for byte in part {
            self.held.push(*byte);
            self.step(*byte, &mut out);
        }
        if matches!(self.state, State::Text) {
            out.append(&mut self.held);
        }
        out
    }

    /// Returns the bytes that are still held when the page has ended.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    fn step(&mut self, byte: u8, out: &mut Vec<u8>) {
        match &mut self.state {
            State::Text if byte == b'<' => {
                self.held.pop();
                out.append(&mut self.held);
                self.held.push(b'<');
                self.state = State::Tag { quote: None };
            }
            State::Text => {}
            State::Comment => {
                if self.held.ends_with(b"-->") {
                    out.append(&mut self.held);
                    self.state = State::Text;
                } else if self.held.len() > TAG_BYTES_MAX {
                    let end = self.held.split_off(self.held.len() - 2);
                    out.append(&mut self.held);
                    self.held = end;
                }
            }
            State::Raw { name } => {
                let end_bytes = name.len() + 2;
                let end = &self.held[self.held.len().saturating_sub(end_bytes)..];
                if end.len() == end_bytes && end.starts_with(b"</") && end[2..].eq_ignore_ascii_case(name.as_bytes()) {
                    out.append(&mut self.held);
                    self.state = State::Text;
                } else if self.held.len() > TAG_BYTES_MAX {
                    let rest = self.held.split_off(self.held.len() - end_bytes);
                    out.append(&mut self.held);
                    self.held = rest;
                }
            }
            State::Tag { quote } => {
                let is_tag = self.held.get(1).is_none_or(|first| first.is_ascii_alphabetic() || *first == b'/');
                if self.held == b"<!--" {
                    self.state = State::Comment;
                } else if self.held.len() > TAG_BYTES_MAX || !is_tag && self.held[1] != b'!' {
                    out.append(&mut self.held);
                    self.state = State::Text;
                } else if let Some(open) = quote {
                    if *open == byte {
                        *quote = None;
                    }
                } else if matches!(byte, b'"' | b'\'') && is_tag {
                    *quote = Some(byte);
                } else if byte == b'>' {
                    let tag = std::mem::take(&mut self.held);
                    self.state = self.end_tag(&tag, out);
                }
            }
        }
    }

    /// Passes on a complete tag, with its links changed. Returns the state after the tag.
    fn end_tag(&self, tag: &[u8], out: &mut Vec<u8>) -> State {
        let Ok(text) = std::str::from_utf8(tag) else {
            out.extend_from_slice(tag);
            return State::Text;
        };
        let name_end = text[1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(text.len(), |at| at + 1);
        let name = text[1..name_end].to_ascii_lowercase();
        let links = LINKS.iter().find(|(element, _)| *element == name).map_or(&[][..], |(_, attributes)| *attributes);
        let mut passed = 0;
        for (attribute, value) in attributes(text, name_end) {
            if links.iter().any(|link| link.eq_ignore_ascii_case(attribute))
                && let Some(changed) = (self.change)(&text[value.clone()])
            {
                out.extend_from_slice(&text.as_bytes()[passed..value.start]);
                out.extend_from_slice(changed.as_bytes());
                passed = value.end;
            }
        }
        out.extend_from_slice(&text.as_bytes()[passed..]);
        match RAW.iter().find(|raw| **raw == name) {
            Some(name) if !text.ends_with("/>") => State::Raw { name },
            _ => State::Text,
        }
    }
}

/// The names of a tag's attributes that have a value, and the range of each value without its
/// quotation marks.
fn attributes(tag: &str, name_end: usize) -> Vec<(&str, std::ops::Range<usize>)> {
    let bytes = tag.as_bytes();
    let mut found = Vec::new();
    let mut at = name_end;
    let skip = |mut at: usize, skipped: &dyn Fn(u8) -> bool| {
        while bytes.get(at).is_some_and(|byte| skipped(*byte)) {
            at += 1;
        }
        at
    };
    let is_space = |byte: u8| byte.is_ascii_whitespace();
    loop {
        at = skip(at, &|byte| is_space(byte) || byte == b'/');
        let name = at..skip(at, &|byte| !is_space(byte) && !matches!(byte, b'=' | b'>' | b'/'));
        if name.is_empty() {
            return found;
        }
        at = skip(name.end, &is_space);
        if bytes.get(at) != Some(&b'=') {
            continue;
        }
        at = skip(at + 1, &is_space);
        let quote = bytes.get(at).copied().filter(|byte| matches!(byte, b'"' | b'\''));
        let value = match quote {
            Some(quote) => at + 1..skip(at + 1, &|byte| byte != quote),
            None => at..skip(at, &|byte| !is_space(byte) && byte != b'>'),
        };
        at = value.end + usize::from(quote.is_some());
        found.push((&tag[name], value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(page: &str, size: usize) -> String {
        let change = |link: &str| link.starts_with('/').then(|| format!("/proxy{link}"));
        let mut links = Links::new(change);
        let mut out: Vec<u8> = page.as_bytes().chunks(size).flat_map(|part| links.push(part)).collect();
        out.extend(links.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn links_of_a_page_lead_through_the_proxy() {
        for (page, expected) in [
            (r#"<a href="/x">test</a>"#, r#"<a href="/proxy/x">test</a>"#),
            ("<IMG alt='a > b' SRC='/i.png'/> <p>1 < 2", "<IMG alt='a > b' SRC='/proxy/i.png'/> <p>1 < 2"),
            ("<a href=/x class=y>", "<a href=/proxy/x class=y>"),
            (
                r#"<a href="x"><a name="/x" href="http://other/x">"#,
                r#"<a href="x"><a name="/x" href="http://other/x">"#,
            ),
            (r#"<!-- <a href="/x"> --><p title="/x">"#, r#"<!-- <a href="/x"> --><p title="/x">"#),
            (
                r#"<script src="/a.js">s = '<a href="/x">'</script><a href="/y">"#,
                r#"<script src="/proxy/a.js">s = '<a href="/x">'</script><a href="/proxy/y">"#,
            ),
            (
                "<!DOCTYPE html><form method=post action = \"/f\">é",
                "<!DOCTYPE html><form method=post action = \"/proxy/f\">é",
            ),
            ("<a href=\"/x", "<a href=\"/x"),
        ] {
            for size in [1, 3, 1000] {
                assert_eq!(changed(page, size), expected, "in parts of {size} bytes");
            }
        }
    }

    #[test]
    fn a_tag_without_an_end_passes_as_it_is() {
        let page = format!("<a {}", "x".repeat(3 * TAG_BYTES_MAX));
        assert_eq!(changed(&page, 1000), page);
        let page = format!("<!-- {} --><a href='/x'>", "x".repeat(3 * TAG_BYTES_MAX));
        assert!(changed(&page, 1000).ends_with("--><a href='/proxy/x'>"));
    }
}
