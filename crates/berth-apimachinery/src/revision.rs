//! Resource versions, and the continue tokens of lists.
//!
//! Clients may compare resource versions as decimal numbers of any length. A token holds the
//! revision at which a list started and the key at which its next page starts.

use std::cmp::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

/// Compares two resource versions. `0`, the empty string, and strings other than digits without
/// leading zeros are errors.
pub fn compare(a: &str, b: &str) -> Result<Ordering, String> {
    for version in [a, b] {
        if version.is_empty() || version.starts_with('0') || !version.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("resource version is not well formed: {}", crate::field::quote(version)));
        }
    }
    Ok(a.len().cmp(&b.len()).then_with(|| a.cmp(b)))
}

/// Parses the resource version of a request; empty is 0.
pub fn parse(version: &str) -> Result<u64, String> {
    if version.is_empty() {
        return Ok(0);
    }
    version.parse().map_err(|_| format!("invalid resource version {}", crate::field::quote(version)))
}

const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// The parsed content of a continue token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continue {
    /// The key to start at, with its prefix.
    pub key: String,
    /// The revision to read at; `-1` for the newest.
    pub revision: i64,
}

impl Continue {
    /// Encodes the token for keys below `prefix`.
    pub fn encode(&self, prefix: &str) -> Result<String, String> {
        let start = self.key.strip_prefix(prefix).filter(|start| !start.is_empty());
        let start = start
            .ok_or_else(|| format!("unable to encode next field: the key and key prefix do not match: {}", self.key))?;
        let token = json!({"v": TOKEN_VERSION, "rv": self.revision, "start": start});
        Ok(URL_SAFE_NO_PAD.encode(token.to_string()))
    }

    /// Decodes a token for keys below `prefix`.
    pub fn decode(token: &str, prefix: &str) -> Result<Self, String> {
        let invalid = |why: &str| format!("continue key is not valid: {why}");
        let bytes =
            URL_SAFE_NO_PAD.decode(token).or_else(|_| URL_SAFE.decode(token)).map_err(|e| invalid(&e.to_string()))?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|e| invalid(&e.to_string()))?;
        if token.get("v").and_then(Value::as_str) != Some(TOKEN_VERSION) {
            return Err(invalid("server does not recognize this encoded version"));
        }
        let revision = token.get("rv").and_then(Value::as_i64).unwrap_or_default();
        if revision == 0 {
            return Err(invalid(&format!("incorrect encoded start resourceVersion (version {TOKEN_VERSION})")));
        }
        let start = token.get("start").and_then(Value::as_str).unwrap_or_default();
        if start.is_empty() {
            return Err(invalid(&format!("encoded start key empty (version {TOKEN_VERSION})")));
        }
        // A key must not leave its prefix.
        let start = start.trim_start_matches('/');
        if start.split('/').any(|part| part == "..") || start.contains("//") || start.split('/').any(|part| part == ".")
        {
            return Err(invalid(start));
        }
        Ok(Continue { key: format!("{prefix}{start}"), revision })
    }
}

/// The read options of a list: the revision, and the first key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    /// The exact revision to read at; 0 if any revision is acceptable.
    pub revision: u64,
    /// The key to start at, if a token names one.
    pub start: Option<String>,
}

/// Derives the read options of a list from the options of the request.
pub fn read_at(
    key_prefix: &str,
    recursive: bool,
    resource_version: &str,
    version_match: &str,
    token: &str,
    limit: u64,
) -> Result<ReadAt, String> {
    if recursive && !token.is_empty() {
        let next = Continue::decode(token, key_prefix).map_err(|error| format!("invalid continue token: {error}"))?;
        if !resource_version.is_empty() && resource_version != "0" {
            return Err("specifying resource version is not allowed when using continue".to_owned());
        }
        // A negative revision continues the list with the current content.
        let revision = u64::try_from(next.revision).unwrap_or_default();
        return Ok(ReadAt { revision, start: Some(next.key) });
    }
    if resource_version.is_empty() {
        return Ok(ReadAt::default());
    }
    let revision = parse(resource_version).map_err(|_| format!("invalid resource version: {resource_version}"))?;
    let exact = match version_match {
        "Exact" => true,
        "NotOlderThan" => false,
        // Without resourceVersionMatch, pages are read at the exact revision, and whole lists at
        // that revision or a newer one.
        "" => recursive && limit > 0 && revision > 0,
        other => return Err(format!("unknown ResourceVersionMatch value: {other}")),
    };
    Ok(ReadAt { revision: if exact { revision } else { 0 }, start: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_decodes_to_its_key() {
        let next = Continue { key: "/pods/a/b".to_owned(), revision: 7 };
        let token = next.encode("/pods/").expect("encodes");
        assert_eq!(Continue::decode(&token, "/pods/"), Ok(next));
        assert!(Continue::decode("nonsense", "/pods/").is_err());
    }

    #[test]
    fn versions_compare_by_size_not_by_text() {
        assert_eq!(compare("99", "100"), Ok(Ordering::Less));
        assert!(compare("0100", "100").is_err());
        assert!(compare("0", "0").is_err());
    }
}
