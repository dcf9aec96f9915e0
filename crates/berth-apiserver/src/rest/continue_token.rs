//! The `continue` token of paged lists: where the next page starts and at which revision. Base64url
//! JSON `{"v": "meta.k8s.io/v1", "rv": …, "start": …}` as upstream (conformance suite
//! `continue-token`).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_apimachinery::status::Status;
use serde_json::{Value, json};

const VERSION: &str = "meta.k8s.io/v1";
/// Member of a token that upstream does not have. Clients return tokens unchanged.
const FORGOTTEN: &str = "forgotten";

/// The position at which a list continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    /// Full key after which the next page starts.
    pub(crate) after: String,
    /// Revision of the first page; `None` to continue with the latest state, which may leave a gap.
    pub(crate) revision: Option<u64>,
    /// Number of compactions of the history when the first page was read.
    pub(crate) forgotten: u64,
}

impl Continue {
    /// The token that continues after `key`, which begins with `prefix`.
    pub(crate) fn encode(key: &str, prefix: &str, revision: u64, forgotten: u64) -> String {
        let mut token = json!({"v": VERSION, "rv": revision, "start": start(key, prefix)});
        if forgotten > 0 {
            token[FORGOTTEN] = forgotten.into();
        }
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    /// The token that continues after `key` with the state at that time.
    pub(crate) fn encode_at_latest(key: &str, prefix: &str) -> String {
        URL_SAFE_NO_PAD.encode(json!({"v": VERSION, "rv": -1, "start": start(key, prefix)}).to_string())
    }

    /// Decodes a token.
    pub(crate) fn decode(token: &str, prefix: &str) -> Result<Continue, Status> {
        let invalid = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| invalid(&error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(&error.to_string()))?;
        if value["v"] != VERSION {
            return Err(invalid("server does not recognize this encoded version"));
        }
        let revision = value["rv"].as_i64().unwrap_or(0);
        if revision == 0 {
            return Err(invalid("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        let start = value["start"].as_str().unwrap_or_default();
        if start.is_empty() {
            return Err(invalid("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // A start outside the prefix would read other kinds.
        if start.split('/').any(|part| matches!(part, "." | "..")) || start.contains("//") {
            return Err(invalid(start));
        }
        Ok(Continue {
            after: format!("{prefix}{}", start.trim_end_matches('\0')),
            revision: u64::try_from(revision).ok(),
            forgotten: value[FORGOTTEN].as_u64().unwrap_or(0),
        })
    }
}

fn start(key: &str, prefix: &str) -> String {
    // Upstream's start key is the first key not yet seen: the last one plus a zero byte.
    format!("{}\0", key.strip_prefix(prefix).unwrap_or(key))
}
