//! Approval of definitions in groups of the Kubernetes community: an annotation with a link to the
//! approval, or with the reason why there is none.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta;
use serde_json::Value;

use crate::client_config::Url;

const ANNOTATION: &str = "api-approved.kubernetes.io";
const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// The approval of a definition, by its annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Neither a link nor a reason.
    Invalid,
    /// A link to the approval.
    Approved,
    /// `unapproved`, with or without a reason.
    Bypassed,
    /// No annotation.
    Missing,
}

/// True if definitions of a group need an approval.
pub fn is_protected_group(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|protected| group.strip_suffix(protected).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

/// The approval of a definition, and a message that describes it.
pub fn state(definition: &Value) -> (Approval, String) {
    let text = meta::annotation(definition, ANNOTATION).unwrap_or_default();
    if text.is_empty() {
        let why = format!("protected groups must have approval annotation \"{ANNOTATION}\", {SEE}");
        return (Approval::Missing, why);
    }
    if text.starts_with("unapproved") {
        return (Approval::Bypassed, format!("not approved: \"{text}\""));
    }
    match Url::parse(text) {
        Ok(url) if !url.host.is_empty() && !url.scheme.is_empty() => {
            (Approval::Approved, format!("approved in {text}"))
        }
        _ => {
            let why = format!(
                "protected groups must have approval annotation \"{ANNOTATION}\" with either a URL or a reason \
                 starting with \"unapproved\", {SEE}"
            );
            (Approval::Invalid, why)
        }
    }
}

/// Status and reason of the condition `KubernetesAPIApprovalPolicyConformant`; `None` for groups
/// that need none.
pub fn condition(definition: &Value) -> Option<(&'static str, &'static str, String)> {
    if !is_protected_group(definition["spec"]["group"].as_str().unwrap_or_default()) {
        return None;
    }
    let (state, why) = state(definition);
    let (status, reason) = match state {
        Approval::Invalid => ("False", "InvalidAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
    };
    Some((status, reason, why))
}

/// Checks the approval. A missing or invalid approval is allowed if the stored definition has the
/// same.
pub fn validate(definition: &Value, old: Option<&Value>) -> Vec<Error> {
    if !is_protected_group(definition["spec"]["group"].as_str().unwrap_or_default()) {
        return Vec::new();
    }
    let (new_state, why) = state(definition);
    if old.is_some_and(|old| state(old).0 == new_state) {
        return Vec::new();
    }
    let annotations = Path::new("metadata.annotations");
    let path = annotations.key(ANNOTATION);
    match new_state {
        Approval::Invalid => {
            let text = meta::annotation(definition, ANNOTATION).unwrap_or_default();
            vec![Error::invalid(&path, text, why)]
        }
        Approval::Missing => vec![Error::required(&path, why)],
        Approval::Approved | Approval::Bypassed => Vec::new(),
    }
}
