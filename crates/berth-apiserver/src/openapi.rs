//! OpenAPI v2 and v3 documents, and the schemas of built-in kinds out of them.

use std::sync::Arc;

use crate::machinery::Schema;

use crate::{Body, Registry, RequestInfo};

/// Answers `/openapi/v2` and `/openapi/v3…`; `None` for other paths.
pub fn handle(_registry: &Registry, _info: &RequestInfo, _headers: &http::HeaderMap) -> Option<http::Response<Body>> {
    None
}

/// The schema of a built-in kind.
pub fn builtin_schema(_group: &str, _version: &str, _kind: &str) -> Option<Arc<Schema>> {
    None
}
