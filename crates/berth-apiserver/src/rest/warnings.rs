//! Texts for people as `Warning` headers, as many as clients take.

use std::collections::HashSet;

use http::{HeaderMap, HeaderValue, header};

/// All of them together, as upstream; where they are longer, each is cut.
const BYTES_MAX: usize = 4096;
/// Characters of one that is cut, as upstream.
const CUT_AT: usize = 256;
/// Most of them: Python's client takes no answer with more than 100 headers.
const COUNT_MAX: usize = 64;

/// Adds the warnings to the headers of an answer: each once, and no more than fit.
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
            return add(&format!("{} more warnings are left out", texts.len() - index), headers);
        }
        add(text, headers);
    }
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(CUT_AT).map_or(text, |(end, _)| &text[..end])
}

/// RFC 7234 warning: code 299, no agent, quoted text.
fn add(text: &str, headers: &mut HeaderMap) {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
        headers.append(header::WARNING, value);
    }
}
