//! Requests that the server sends to itself: follow-ups of a write that need all steps of a
//! request, such as admission and the steps of a graceful deletion.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;

use crate::Body;

/// Handles requests of the server to itself.
pub(crate) trait OwnRequests: Send + Sync {
    /// Responds to a request on behalf of `system:apiserver`, which may do everything.
    fn send(&self, request: Request<Full<Bytes>>) -> BoxFuture<'_, Response<Body>>;
}
