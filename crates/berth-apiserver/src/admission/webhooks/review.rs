//! The AdmissionReview sent to a webhook, and the decoding of its response.
//!
//! Behaviour after Kubernetes' admission webhooks (conformance suite `webhook-response`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apimachinery::meta::{GroupVersionKind, GroupVersionResource};
use berth_apimachinery::status::Status;
use serde_json::{Map, Value, json};

use super::matching::Target;
use crate::UserInfo;
use crate::rest::Options;
use berth_kinds::ReviewVersion;

/// Group of the reviews.
const GROUP: &str = "admission.k8s.io";

/// The content of an admission review request.
pub(crate) struct ReviewRequest<'a> {
    pub(crate) uid: &'a str,
    /// The resource, with its version, in whose form the webhook gets the object.
    pub(crate) target: &'a Target,
    /// Kind, resource and subresource of the original request.
    pub(crate) requested: &'a Target,
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) operation: &'a str,
    pub(crate) user: &'a UserInfo,
    pub(crate) object: &'a Value,
    pub(crate) old_object: &'a Value,
    pub(crate) dry_run: bool,
    pub(crate) options: &'a Options,
}

fn resource(resource: &GroupVersionResource) -> Value {
    json!({"group": resource.group, "version": resource.version, "resource": resource.resource})
}

fn kind(kind: &GroupVersionKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

/// A user in the form of reviews.
pub(crate) fn user_info(user: &UserInfo) -> Value {
    let mut info = Map::new();
    info.insert("username".to_owned(), user.name.as_str().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

/// The request body.
pub(crate) fn question(version: ReviewVersion, asked: &ReviewRequest<'_>) -> Value {
    json!({"apiVersion": version.api_version(GROUP), "kind": "AdmissionReview", "request": request(asked)})
}

/// The request in a review. Expressions see it in the same form.
pub(crate) fn request(asked: &ReviewRequest<'_>) -> Value {
    let mut request = json!({
        "uid": asked.uid,
        "kind": kind(&asked.target.kind),
        "resource": resource(&asked.target.resource),
        "requestKind": kind(&asked.requested.kind),
        "requestResource": resource(&asked.requested.resource),
        "operation": asked.operation,
        "userInfo": user_info(asked.user),
        "object": asked.object,
        "oldObject": asked.old_object,
        "dryRun": asked.dry_run,
        "options": asked.options.in_review(asked.operation, asked.dry_run),
    });
    for (field, text) in [
        ("name", asked.name),
        ("namespace", asked.namespace),
        ("subResource", asked.target.subresource.as_str()),
        ("requestSubResource", asked.requested.subresource.as_str()),
    ] {
        if !text.is_empty() {
            request[field] = text.into();
        }
    }
    request
}

/// The response of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// True if the request is allowed.
    pub allowed: bool,
    /// The patch, decoded from base64.
    pub patch: Vec<u8>,
    /// Type of the patch; empty without a patch.
    pub patch_type: String,
    /// The Status of a denied request; null if absent.
    pub result: Value,
    /// Facts for the audit log.
    pub audit_annotations: Map<String, Value>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// Decodes the response to the review `uid`, sent in `version`. The error describes its fault.
pub fn answer(version: ReviewVersion, uid: &str, mutating: bool, review: &Value) -> Result<Answer, String> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    if version == ReviewVersion::V1 {
        let expected = format!("{}, Kind=AdmissionReview", version.api_version(GROUP));
        let got = format!("{}, Kind={}", text(review, "apiVersion"), text(review, "kind"));
        if got != expected {
            return Err(format!("expected webhook response of {expected}, got {got}"));
        }
    }
    let response = &review["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let mut patch_type = text(response, "patchType");
    let patch = response["patch"].as_str().unwrap_or_default();
    let mut patch = STANDARD.decode(patch).map_err(|error| format!("response.patch is not base64: {error}"))?;
    match version {
        ReviewVersion::V1 => {
            let got = text(response, "uid");
            if got != uid {
                return Err(format!("expected response.uid=\"{uid}\", got \"{got}\""));
            }
            let problem = match (mutating, patch.is_empty(), patch_type.is_empty()) {
                (true, false, true) => "webhook returned response.patch but not response.patchType",
                (true, true, false) => "webhook returned response.patchType but not response.patch",
                (false, false, _) => "validating webhook may not return response.patch",
                (false, true, false) => "validating webhook may not return response.patchType",
                _ => "",
            };
            if !problem.is_empty() {
                return Err(problem.to_owned());
            }
        }
        // v1beta1 has one patch type, and ignores an empty patch.
        ReviewVersion::V1beta1 if mutating && !patch.is_empty() => patch_type = "JSONPatch".to_owned(),
        ReviewVersion::V1beta1 => {
            patch.clear();
            patch_type.clear();
        }
    }
    let warnings = response["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(Answer {
        allowed: response["allowed"].as_bool().unwrap_or(false),
        patch,
        patch_type,
        result: response.get("status").cloned().unwrap_or_default(),
        audit_annotations: response["auditAnnotations"].as_object().cloned().unwrap_or_default(),
        warnings: warnings.collect(),
    })
}

/// The rejection of a request that a webhook denied. `result` is the Status in its response; null
/// if absent. Plugins that replace a webhook use the same message.
pub fn refusal(webhook: &str, result: &Value) -> Status {
    let denied = format!("admission webhook \"{webhook}\" denied the request");
    let text = |field: &str| result[field].as_str().unwrap_or_default();
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let mut status = Status::bad_request(message);
    status.reason = text("reason").to_owned().into();
    if let Some(code) = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400) {
        status.code = code;
    }
    let causes = result["details"]["causes"].as_array().into_iter().flatten();
    let causes: Vec<_> = causes
        .map(|cause| {
            let text = |field: &str| cause[field].as_str().unwrap_or_default().to_owned();
            berth_apimachinery::status::Cause { reason: text("reason"), message: text("message"), field: text("field") }
        })
        .collect();
    if causes.is_empty() { status } else { status.with_causes(causes) }
}
