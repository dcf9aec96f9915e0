//! The `Status` object: error responses with the codes, reasons and messages that clients rely on.
//!
//! Constructors are named after the response. A [`Status`] is also a Rust error: code below the
//! server returns it with `?`, and the server sends it unchanged.
//!
//! Source of the shapes: the API conventions of Kubernetes, "Response Status Kind".

use std::borrow::Cow;

use std::fmt;

use serde_json::{Map, Value, json};

use crate::field;
use crate::meta::{GroupKind, GroupResource};

/// One reason a request failed, in `details.causes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable, e.g. `FieldValueInvalid`.
    pub reason: String,
    /// Message for users.
    pub message: String,
    /// Path of the field, if the cause concerns one.
    pub field: String,
}

/// The object of the failed request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// Group of the object.
    pub group: String,
    /// Kind or resource of the object.
    pub kind: String,
    /// Uid of the object.
    pub uid: String,
    /// Causes, one per field error.
    pub causes: Vec<Cause>,
    /// Seconds after which to retry; 0 if unspecified.
    pub retry_after_seconds: u32,
}

/// A response that is not an object: a failure, or a plain success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason; empty if there is none.
    pub reason: Cow<'static, str>,
    /// Message for users.
    pub message: String,
    /// The object of the request; boxed because most functions that return a `Status` succeed.
    pub details: Option<Box<Details>>,
    /// Token to continue an expired list with newer content: `metadata.continue`.
    pub continue_token: Option<Box<str>>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Status { code, reason: Cow::Borrowed(reason), message: message.into(), details: None, continue_token: None }
    }

    /// Sets the token that continues the list.
    #[must_use]
    pub fn with_continue(self, token: impl Into<Box<str>>) -> Self {
        Status { continue_token: Some(token.into()), ..self }
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.group.clone_from(&resource.group);
        details.kind.clone_from(&resource.resource);
        name.clone_into(&mut details.name);
        self
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Adds causes to the details.
    #[must_use]
    pub fn with_causes(mut self, causes: impl IntoIterator<Item = Cause>) -> Self {
        self.details.get_or_insert_default().causes.extend(causes);
        self
    }

    /// True if the request succeeded.
    pub fn is_success(&self) -> bool {
        self.code < 400
    }

    /// 200 without details.
    pub fn success() -> Self {
        Status::new(200, "", "")
    }

    /// 200 after a deletion, with the name of the deleted object.
    pub fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Self {
        let mut status = Status::success().about(resource, name);
        uid.clone_into(&mut status.details.get_or_insert_default().uid);
        status
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        Status::new(404, "NotFound", format!("{resource} {} not found", field::quote(name))).about(resource, name)
    }

    /// 404: the path does not exist.
    pub fn no_such_path() -> Self {
        let mut status = Status::new(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(Box::default());
        status
    }

    /// 409: an object of this name exists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} already exists", field::quote(name));
        Status::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409: no free name was found for `generateName`; the client should retry.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after_seconds: u32) -> Self {
        let message = format!(
            "{resource} {} already exists, the server was not able to generate a unique name for the object",
            field::quote(name)
        );
        Status::new(409, "AlreadyExists", message).about(resource, name).retry_after(retry_after_seconds)
    }

    /// 409: the object changed since it was read, or cannot change this way now.
    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {why}", field::quote(name));
        Status::new(409, "Conflict", message).about(resource, name)
    }

    /// 409: a stale resourceVersion, with the message that controllers look for.
    pub fn modified(resource: &GroupResource, name: &str) -> Self {
        Status::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: other managers own fields of a server-side apply.
    pub fn apply_conflict(causes: Vec<Cause>, message: impl Into<String>) -> Self {
        Status::new(409, "Conflict", message).with_causes(causes)
    }

    /// 410: the requested revision was compacted; the client must restart its watch or list.
    pub fn expired(message: impl Into<String>) -> Self {
        Status::new(410, "Expired", message)
    }

    /// 410: permanently gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Status::new(410, "Gone", message)
    }

    /// 422: the object is invalid, with an error per field.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &[field::Error]) -> Self {
        let subject = format!("{kind} {} is invalid", field::quote(name));
        let message = match errors {
            [] => subject,
            errors => format!("{subject}: {}", field::aggregate(errors)),
        };
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.kind.reason().to_owned(),
                message: error.body(),
                field: error.field.clone(),
            })
            .collect();
        let details = Details {
            name: name.to_owned(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            causes,
            ..Details::default()
        };
        Status { details: Some(Box::new(details)), ..Status::new(422, "Invalid", message) }
    }

    /// 422 without field errors, e.g. for a JSON patch whose test fails.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Status::new(422, "Invalid", message)
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::new(400, "BadRequest", message)
    }

    /// 401: the request is not authenticated.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let message = message.into();
        Status::new(401, "Unauthorized", if message.is_empty() { "not authorized".to_owned() } else { message })
    }

    /// 403: the request is not allowed.
    pub fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Self {
        let message = if resource.resource.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", field::quote(name))
        };
        Status::new(403, "Forbidden", message).about(resource, name)
    }

    /// 405: the resource does not support the verb.
    pub fn method_not_supported(resource: &GroupResource, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {}", field::quote(&resource.to_string()));
        Status::new(405, "MethodNotAllowed", message).about(resource, "")
    }

    /// 406: none of the accepted media types is offered.
    pub fn not_acceptable<S: AsRef<str>>(offered: &[S]) -> Self {
        let message = format!("only the following media types are accepted: {}", join(offered));
        Status::new(406, "NotAcceptable", message)
    }

    /// 415: the server does not support the media type of the body.
    pub fn unsupported_media_type<S: AsRef<str>>(understood: &[S]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            join(understood)
        );
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 413: the body is too large.
    pub fn request_entity_too_large(message: impl AsRef<str>) -> Self {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: {}", message.as_ref()))
    }

    /// 429: the client must retry later.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Status::new(429, "TooManyRequests", message).retry_after(retry_after_seconds)
    }

    /// 500: an internal error of the server.
    pub fn internal(message: impl AsRef<str>) -> Self {
        let message = message.as_ref();
        let cause = Cause { message: message.to_owned(), ..Cause::default() };
        Status::new(500, "InternalError", format!("Internal error occurred: {message}")).with_causes([cause])
    }

    /// 503: the server is temporarily unavailable.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Status::new(503, "ServiceUnavailable", message)
    }

    /// 504: the request ran out of time.
    pub fn timeout(message: impl AsRef<str>, retry_after_seconds: u32) -> Self {
        Status::new(504, "Timeout", format!("Timeout: {}", message.as_ref())).retry_after(retry_after_seconds)
    }

    /// 500 that asks the client to retry: a timeout within the server.
    pub fn server_timeout(resource: &GroupResource, verb: &str, retry_after_seconds: u32) -> Self {
        let message =
            format!("The {verb} operation against {resource} could not be completed at this time, please try again.");
        Status::new(500, "ServerTimeout", message).about(resource, "").retry_after(retry_after_seconds)
    }

    /// The serialized object.
    pub fn to_value(&self) -> Value {
        let mut object = Map::new();
        object.insert("kind".to_owned(), json!("Status"));
        object.insert("apiVersion".to_owned(), json!("v1"));
        let metadata = self.continue_token.as_ref().map_or_else(|| json!({}), |token| json!({"continue": token}));
        object.insert("metadata".to_owned(), metadata);
        object.insert("status".to_owned(), json!(if self.is_success() { "Success" } else { "Failure" }));
        put(&mut object, "message", &self.message);
        put(&mut object, "reason", &self.reason);
        if let Some(details) = &self.details {
            object.insert("details".to_owned(), details.to_value());
        }
        // A success that carries details (a deletion) has no code; every failure has one.
        if !(self.is_success() && self.details.is_some()) {
            object.insert("code".to_owned(), json!(self.code));
        }
        Value::Object(object)
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut object = Map::new();
        put(&mut object, "name", &self.name);
        put(&mut object, "group", &self.group);
        put(&mut object, "kind", &self.kind);
        put(&mut object, "uid", &self.uid);
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|cause| {
                let mut object = Map::new();
                put(&mut object, "reason", &cause.reason);
                put(&mut object, "message", &cause.message);
                put(&mut object, "field", &cause.field);
                Value::Object(object)
            });
            object.insert("causes".to_owned(), causes.collect());
        }
        if self.retry_after_seconds > 0 {
            object.insert("retryAfterSeconds".to_owned(), json!(self.retry_after_seconds));
        }
        Value::Object(object)
    }
}

fn put(object: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        object.insert(key.to_owned(), Value::String(text.to_owned()));
    }
}

fn join<S: AsRef<str>>(texts: &[S]) -> String {
    texts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_is_named_with_its_resource_and_group() {
        let status = Status::not_found(&GroupResource::new("batch", "jobs"), "a");
        assert_eq!(status.message, "jobs.batch \"a\" not found");
        assert_eq!(
            status.to_value(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
                "message": "jobs.batch \"a\" not found", "details": {"name": "a", "group": "batch", "kind": "jobs"}})
        );
    }

    #[test]
    fn an_invalid_object_lists_its_fields_as_causes() {
        let error = field::Error::required(&field::Path::new("spec.x"), "");
        let status = Status::invalid(&GroupKind::new("", "Pod"), "p", &[error]);
        assert_eq!(status.message, "Pod \"p\" is invalid: spec.x: Required value");
        assert_eq!(status.details.expect("has details").causes[0].field, "spec.x");
    }
}
