//! Discovery documents: `/api`, `/apis`, group and version lists, `/version`, health.

use crate::{Body, Registry, RequestInfo};

/// Answers requests for discovery, version and health; `None` when the path is none of these.
pub fn handle(_registry: &Registry, _info: &RequestInfo, _headers: &http::HeaderMap) -> Option<http::Response<Body>> {
    None
}
