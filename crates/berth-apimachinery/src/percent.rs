//! Percent encoding of URLs (RFC 3986), by the crate `percent-encoding`: every URL of the workspace
//! is encoded and decoded here.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_decode_str, percent_encode};

/// All octets but unreserved characters.
const COMPONENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Octets that Go's `url.URL` escapes when it writes a path.
const PATH: AsciiSet = COMPONENT
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');
/// Octets that Go escapes in a path that is written as given: valid escapes stay.
const GIVEN_PATH: AsciiSet =
    PATH.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')').remove(b'%').remove(b'[').remove(b']');

/// A value as part of a query, or as part of a path that contains no dot segment.
pub fn component(text: &str) -> String {
    percent_encode(text.as_bytes(), &COMPONENT).to_string()
}

/// A name as one segment of a path. A name of dots only is encoded too, so that it cannot lead to
/// another path.
pub fn segment(name: &str) -> String {
    if !name.is_empty() && name.bytes().all(|byte| byte == b'.') {
        return "%2E".repeat(name.len());
    }
    component(name)
}

/// A decoded path as Go's `url.URL` writes it. `/` separates segments and stays.
pub fn path(octets: &[u8]) -> String {
    percent_encode(octets, &PATH).to_string()
}

/// A path as given, with every octet escaped that is not allowed in a URL. Existing escapes stay.
pub fn given_path(path: &str) -> String {
    percent_encode(path.as_bytes(), &GIVEN_PATH).to_string()
}

/// The octets of an escaped path.
///
/// # Errors
/// The first `%` that does not begin an escape, with up to two characters after it.
pub fn decode_path(path: &str) -> Result<Vec<u8>, &str> {
    match malformed(path) {
        Some(escape) => Err(escape),
        None => Ok(percent_decode_str(path).collect()),
    }
}

/// A component of a query: `+` is a space, and malformed escapes are returned unchanged.
pub fn decode_component(text: &str) -> String {
    let bytes: Cow<'_, [u8]> = if text.contains('+') {
        text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect::<Vec<u8>>().into()
    } else {
        text.as_bytes().into()
    };
    percent_decode(&bytes).decode_utf8_lossy().into_owned()
}

/// The first `%` that does not begin an escape, with up to two characters after it.
pub fn malformed(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let is_escape = |at: usize| bytes.get(at + 1..at + 3).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit));
    let at = (0..bytes.len()).find(|at| bytes[*at] == b'%' && !is_escape(*at))?;
    let end = text[at..].char_indices().map(|(offset, _)| at + offset).nth(3).unwrap_or(text.len());
    Some(&text[at..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        assert_eq!(segment("job-a.b"), "job-a.b");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("ü"), "%C3%BC");
        assert_eq!(component("a=b,c!=(d)"), "a%3Db%2Cc%21%3D%28d%29");
    }

    #[test]
    fn a_path_keeps_its_slashes_and_a_given_one_its_escapes() {
        assert_eq!(path(b"/a b/%/c(d)"), "/a%20b/%25/c%28d%29");
        assert_eq!(given_path("/a b/%2F/c(d)"), "/a%20b/%2F/c(d)");
    }

    #[test]
    fn malformed_escapes_are_named_in_paths_and_kept_in_components() {
        assert_eq!(decode_path("/a%20b"), Ok(b"/a b".to_vec()));
        assert_eq!(decode_path("/a%2"), Err("%2"));
        assert_eq!(decode_path("/a%2xyz"), Err("%2x"));
        assert_eq!(decode_path("/%üx"), Err("%üx"));
        assert_eq!(decode_component("a+b%3Dc%2"), "a b=c%2");
        assert_eq!(decode_component("%C3%BC"), "ü");
    }
}
