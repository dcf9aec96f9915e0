//! Documents with which other programs verify service-account tokens: the issuer's OpenID
//! configuration and its keys.

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Response};
use serde_json::json;

use super::tokens::{ISSUER, Tokens};
use crate::discovery::json_response;
use crate::{Body, RequestInfo};

const CONFIGURATION: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";

/// The response to a request for one of the two documents; `None` for other paths.
pub(crate) fn response(tokens: &Tokens, info: &RequestInfo, headers: &HeaderMap) -> Option<Response<Body>> {
    if !matches!(info.verb.as_str(), "get" | "head") {
        return None;
    }
    let path = info.path.trim_end_matches('/');
    if path == KEYS {
        let mut response = json_response(200, &tokens.key_set());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/jwk-set+json"));
        return Some(response);
    }
    // The URL of the keys has the host with which the client requested this document.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let base = host.map_or(ISSUER.to_owned(), |host| format!("https://{host}"));
    (path == CONFIGURATION).then(|| {
        let document = json!({
            "issuer": ISSUER, "jwks_uri": format!("{base}{KEYS}"), "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
        });
        json_response(200, &document)
    })
}
