//! Responses with a complete value: a Status, or a document in the negotiated encoding.

use berth_apimachinery::status::Status;
use berth_apimachinery::{meta, packed};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::negotiate::{self, Encoding};
use crate::{Body, protobuf};

/// A Status as a JSON response, for clients that accept none of the server's encodings.
pub(crate) fn status_response(status: &Status) -> Response<Body> {
    labelled_status(status, Encoding::Json, Body::from(to_bytes(&status.to_value())))
}

/// A Status as a response in an encoding that the `Accept` header allows.
pub(crate) fn status_response_for(status: &Status, accept: &str) -> Response<Body> {
    let encoding = negotiate::plain(accept).unwrap_or(Encoding::Json);
    match to_encoding(encoding, &status.to_value()) {
        Ok(body) => labelled_status(status, encoding, Body::from(body)),
        Err(_) => status_response(status),
    }
}

fn labelled_status(status: &Status, encoding: Encoding, body: Body) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = response(code, encoding, body);
    if let Some(seconds) = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|s| *s > 0) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A response in `encoding`.
pub(crate) fn response(code: StatusCode, encoding: Encoding, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, encoding.media_type());
    response
}

/// Encodes a value, whose `managedFields` may be packed.
pub(crate) fn to_encoding(encoding: Encoding, value: &Value) -> Result<Bytes, Status> {
    match encoding {
        Encoding::Json => Ok(to_bytes(value)),
        Encoding::Yaml => {
            let text = serde_saphyr::to_string(&packed::expanded(value));
            text.map(Bytes::from).map_err(|error| Status::internal(error.to_string()))
        }
        Encoding::Protobuf => {
            let (body, left_out) = protobuf::from_json_lossy(value).map_err(unwritten)?;
            report_left_out(value, &left_out);
            Ok(Bytes::from(body))
        }
    }
}

/// Logs the fields of an object that its protobuf response lacks. New writes always fit their
/// kind. An object stored before that check existed may not; JSON responses show it in full.
pub(crate) fn report_left_out(object: &Value, left_out: &[protobuf::EncodeError]) {
    for error in left_out {
        let (kind, namespace, name) = (meta::kind(object), meta::namespace(object), meta::name(object));
        tracing::warn!(kind, namespace, name, %error, "a field with the wrong type is omitted");
    }
}

/// The error for an object whose kind has no protobuf encoding. The table covers every kind that
/// is served, so clients should never see it.
pub(crate) fn unwritten(error: protobuf::EncodeError) -> Status {
    Status::internal(error.to_string())
}

/// The JSON text of a value; packed `managedFields` are written as a list.
pub(crate) fn to_bytes(value: &Value) -> Bytes {
    let mut text = Vec::new();
    packed::write(value, &mut text);
    Bytes::from(text)
}

/// A response of complete JSON bytes.
pub(crate) fn json_response(code: StatusCode, bytes: impl Into<Body>) -> Response<Body> {
    response(code, Encoding::Json, bytes)
}
