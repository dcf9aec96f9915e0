//! `Warning` headers, as many as clients accept.

use std::collections::HashSet;

use http::{HeaderMap, HeaderValue, header};

/// Maximum size of all warnings, as upstream; beyond it, each warning is truncated.
const BYTES_MAX: usize = 4096;
/// Length of a truncated warning in characters, as upstream.
const CUT_AT: usize = 256;
/// Maximum number of warnings: Python's client rejects a response with more than 100 headers.
const COUNT_MAX: usize = 64;

/// Adds the warnings to the headers of a response: each once, up to the limits.
pub(super) fn put(warnings: &[String], headers: &mut HeaderMap) {
    let mut seen = HashSet::new();
    let mut texts: Vec<&str> = warnings.iter().map(String::as_str).collect();
    texts.retain(|text| !text.is_empty() && seen.insert(*text));
    let is_cut = texts.iter().map(|text| text.len()).sum::<usize>() > BYTES_MAX;
    let mut bytes = 0;
    for (index, text) in texts.iter().copied().enumerate() {
        let text = if is_cut { cut(text) } else { text };
        bytes += text.len();
        let is_last = index + 1 == COUNT_MAX && texts.len() > COUNT_MAX;
        if is_last || bytes > BYTES_MAX {
            return add(&format!("{} more warnings are omitted", texts.len() - index), headers);
        }
        add(text, headers);
    }
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(CUT_AT).map_or(text, |(end, _)| &text[..end])
}

/// A warning of RFC 7234: code 299, no agent, quoted message.
fn add(text: &str, headers: &mut HeaderMap) {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
        headers.append(header::WARNING, value);
    }
}
