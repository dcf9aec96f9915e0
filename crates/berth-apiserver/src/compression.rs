//! Gzip compression of responses for clients that accept it. It pays for lists, which are large
//! and repetitive.
//!
//! As in Kubernetes, small responses and watches are not compressed: an event of a watch must not
//! wait until a compression block is full.

use http::{HeaderValue, Method, Request, Response, header};

use crate::{Body, RequestInfo, connect};

/// Minimum size of a compressed response in bytes, as upstream.
const BYTES_MIN: usize = 128 * 1024;

/// True if the response to a request may be compressed.
pub(crate) fn is_wanted<B>(request: &Request<B>) -> bool {
    let accepts = request.headers().get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let takes_gzip = |clause: &str| {
        let mut parts = clause.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    };
    if request.method() != Method::GET || !accepts.flat_map(|value| value.split(',')).any(takes_gzip) {
        return false;
    }
    let info = RequestInfo::parse(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
    info.verb != "watch" && info.subresource != "log" && !connect::is_proxy(&info)
}

/// Compresses a response if it has at least [`BYTES_MIN`] bytes or is sent in chunks.
pub(crate) fn apply(response: Response<Body>) -> Response<Body> {
    let large = response.body().bytes().is_none_or(|bytes| bytes.len() >= BYTES_MIN);
    if !large || response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body.gzip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Read;

    async fn unzipped(response: Response<Body>) -> String {
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        let mut text = String::new();
        flate2::read::GzDecoder::new(bytes.as_ref()).read_to_string(&mut text).expect("gzip");
        text
    }

    #[tokio::test]
    async fn large_responses_are_compressed_whole_or_in_chunks() {
        let text = "all work and no play ".repeat(10_000);
        assert_eq!(unzipped(apply(Response::new(Body::from(text.clone())))).await, text);
        let chunks: Vec<bytes::Bytes> = text.as_bytes().chunks(1000).map(|it| it.to_vec().into()).collect();
        assert_eq!(unzipped(apply(Response::new(Body::stream(futures::stream::iter(chunks))))).await, text);
        let small = apply(Response::new(Body::from("small")));
        assert!(!small.headers().contains_key(header::CONTENT_ENCODING));
    }

    #[test]
    fn watches_and_clients_without_gzip_get_uncompressed_responses() {
        let ask = |uri: &str, accept: &str| {
            is_wanted(&Request::builder().uri(uri).header(header::ACCEPT_ENCODING, accept).body(()).expect("a request"))
        };
        assert!(ask("/api/v1/pods", "deflate, gzip"));
        assert!(!ask("/api/v1/pods?watch=true", "gzip"));
        assert!(!ask("/api/v1/pods", "identity"));
        assert!(!ask("/api/v1/pods", "gzip;q=0"));
    }
}
