//! Suites of webhooks: which webhooks a request calls, and how their responses are read.

use berth_apimachinery::field::Path;
use berth_apimachinery::meta::{self, GroupVersionKind, GroupVersionResource};
use berth_apiserver::admission::policies::matching as policies;
use berth_apiserver::admission::webhooks::matching::{self, Lookup, MatchError, RequestAttributes, Target};
use berth_apiserver::admission::webhooks::review;
use berth_kinds::ReviewVersion;
use berth_kinds::client_config;
use berth_kinds::crd::conversion;
use serde_json::{Map, Value, json};

use super::{input, same, text, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "conversion-objects-to-convert" => objects_to_convert,
        "conversion-restore-objectmeta" => restore_metadata,
        "conversion-webhook-response" => conversion_response,
        "webhook-ca-bundle" => ca_bundle,
        "webhook-namespace-labels" => namespace_labels,
        "webhook-object-selector" => object_selector,
        "webhook-response" => response,
        "webhook-should-call" => should_call,
        "vap-matching" => policy_matching,
        _ => return None,
    })
}

/// Resources and namespaces that the recorded cases can look up (the folder's README).
struct Recorded;

impl Lookup for Recorded {
    fn equivalents(&self, target: &Target) -> Vec<(GroupVersionResource, Option<GroupVersionKind>)> {
        let resource = target.resource.resource.as_str();
        if resource == "widgets" {
            let widgets = |version| (GroupVersionResource::new("example.com", version, "widgets"), None);
            return vec![widgets("v1"), widgets("v2")];
        }
        if resource != "deployments" {
            return Vec::new();
        }
        [("extensions", "v1beta1"), ("apps", "v1"), ("apps", "v1beta1"), ("apps", "v1alpha1")]
            .into_iter()
            .map(|(group, version)| {
                let kind = match (target.subresource.as_str(), version) {
                    ("scale", "v1") => GroupVersionKind::new("autoscaling", "v1", "Scale"),
                    ("scale", _) => GroupVersionKind::new(group, version, "Scale"),
                    _ => GroupVersionKind::new(group, version, "Deployment"),
                };
                (GroupVersionResource::new(group, version, resource), Some(kind))
            })
            .collect()
    }

    fn namespace_labels(&self, name: &str) -> Option<Map<String, Value>> {
        let labels = json!({"runlevel": "1"});
        (name == "1").then(|| labels.as_object().cloned().unwrap_or_default())
    }
}

fn target(attributes: &Value) -> Target {
    let (resource, kind) = (&attributes["resource"], &attributes["kind"]);
    Target {
        resource: GroupVersionResource::new(
            text(resource, "group"),
            text(resource, "version"),
            text(resource, "resource"),
        ),
        subresource: text(attributes, "subresource").to_owned(),
        kind: GroupVersionKind::new(text(kind, "group"), text(kind, "version"), text(kind, "kind")),
    }
}

/// The request that the attributes of a case describe.
fn request_of<'a>(attributes: &'a Value, target: &'a Target) -> RequestAttributes<'a> {
    RequestAttributes {
        target,
        operation: text(attributes, "operation"),
        namespace: text(attributes, "namespace"),
        object: attributes.get("object"),
        old_object: attributes.get("oldObject"),
    }
}

fn namespace_labels(case: &Case) -> Verdict {
    let target = target(input(case, "attr"));
    let got = matching::namespace_labels(&request_of(input(case, "attr"), &target), &Recorded);
    let got = got.map_err(|error| format!("{error:?}"))?;
    same("labels", &Value::Object(got), want(case, "expectedLabels"))
}

fn object_selector(case: &Case) -> Verdict {
    let target = target(input(case, "attrs"));
    let webhook = json!({"objectSelector": input(case, "objectSelector")});
    let got = matching::object_matches(&webhook, &request_of(input(case, "attrs"), &target));
    same("call", got, Ok(want(case, "expectCall").as_bool().unwrap_or_default()))
}

fn policy_matching(case: &Case) -> Verdict {
    let attributes = input(case, "attrs");
    let target = target(attributes);
    let request = request_of(attributes, &target);
    let got = policies::matches(input(case, "criteria"), &request, text(attributes, "name"), &Recorded);
    let error = text(&case.want, "expectErr");
    let got = match got {
        Err(MatchError::Broken(why)) if !error.is_empty() && why.contains(error) => return Ok(()),
        Err(other) => return Err(format!("{other:?}")),
        Ok(_) if !error.is_empty() => return Err(format!("want error {error}, got none")),
        Ok(got) => got,
    };
    same("match", got.is_some(), want(case, "expectMatches").as_bool().unwrap_or_default())?;
    let Some(got) = got else { return Ok(()) };
    let wanted = self::target(&json!({
        "resource": want(case, "expectMatchResource"), "kind": want(case, "expectMatchKind"), "subresource": "",
    }));
    // The expectation is empty if the request matches without conversion.
    if !wanted.kind.kind.is_empty() {
        same("kind", &got.kind, &wanted.kind)?;
    }
    if !wanted.resource.resource.is_empty() {
        same("resource", &got.resource, &wanted.resource)?;
    }
    Ok(())
}

fn should_call(case: &Case) -> Verdict {
    let target = target(input(case, "attrs"));
    let mut webhook = input(case, "webhook").clone();
    // Cases about rules omit the selectors. An empty selector matches.
    for field in ["namespaceSelector", "objectSelector"] {
        if webhook[field].is_null() && !webhook["rules"].is_null() {
            webhook[field] = json!({});
        }
    }
    let got = matching::should_call(&webhook, &request_of(input(case, "attrs"), &target), &Recorded);
    let error = text(&case.want, "expectErr");
    let got = match got {
        Err(MatchError::Broken(why)) if !error.is_empty() && why.contains(error) => return Ok(()),
        Err(other) => return Err(format!("{other:?}")),
        Ok(_) if !error.is_empty() => return Err(format!("want error {error}, got none")),
        // Match conditions are evaluated last. The case records their result.
        Ok(Some(_)) if webhook["matchConditions"].is_array() && input(case, "matchResult") == false => None,
        Ok(got) => got,
    };
    same("call", got.is_some(), want(case, "expectCall").as_bool().unwrap_or_default())?;
    let Some(got) = got else { return Ok(()) };
    let wanted = self::target(&json!({
        "resource": want(case, "expectCallResource"), "kind": want(case, "expectCallKind"),
        "subresource": want(case, "expectCallSubresource"),
    }));
    same("target", got, wanted)
}

fn response(case: &Case) -> Verdict {
    let version = if case.name.starts_with("v1beta1") { ReviewVersion::V1beta1 } else { ReviewVersion::V1 };
    let mutating = input(case, "mutating").as_bool().unwrap_or_default();
    let got = review::answer(version, text(&case.input, "uid"), mutating, input(case, "review"));
    let wanted = &case.want;
    let got = match (got, text(wanted, "expectErr")) {
        (Err(why), error) if !error.is_empty() && why.contains(error) => return Ok(()),
        (got, "") => got?,
        (got, error) => return Err(format!("want error {error}, got {got:?}")),
    };
    same("allowed", got.allowed, want(case, "expectAllowed").as_bool().unwrap_or_default())?;
    same("patch", String::from_utf8_lossy(&got.patch).as_ref(), text(wanted, "expectPatch"))?;
    same("patchType", got.patch_type.as_str(), text(wanted, "expectPatchType"))?;
    same("result", &got.result, want(case, "expectResult"))?;
    let annotations = want(case, "expectAuditAnnotations").as_object().cloned().unwrap_or_default();
    same("auditAnnotations", got.audit_annotations, annotations)
}

fn ca_bundle(case: &Case) -> Verdict {
    // API objects have base64 of the PEM. The cases have the PEM, or invalid text.
    let given = input(case, "caBundle").as_str().unwrap_or_default();
    let encoded = if given.starts_with("-----") { base64(given) } else { given.to_owned() };
    let errors = client_config::validate_ca_bundle(Some(&Value::from(encoded)), &Path::new("caBundle"));
    same("error", !errors.is_empty(), want(case, "expectErr").as_bool().unwrap_or_default())
}

fn base64(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at) & 63) as usize;
            out.push(if at <= chunk.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    out
}

fn objects_to_convert(case: &Case) -> Verdict {
    let got = conversion::objects_to_convert(input(case, "object"), text(&case.input, "apiVersion"));
    let wanted = want(case, "objects").as_array().cloned().unwrap_or_default();
    same("objects", json!(got), Value::Array(wanted))
}

fn restore_metadata(case: &Case) -> Verdict {
    let mut got = input(case, "converted").clone();
    let outcome = conversion::restore_metadata(input(case, "original"), &mut got);
    same("object", &got, want(case, "object"))?;
    let wanted = match want(case, "err") {
        Value::Null => Ok(()),
        Value::Array(errors) => {
            let texts: Vec<&str> = errors.iter().map(|error| text(error, "error")).collect();
            Err(texts.join(", "))
        }
        other => Err(other.as_str().unwrap_or_default().to_owned()),
    };
    same("outcome", outcome, wanted)
}

fn conversion_response(case: &Case) -> Verdict {
    let response = input(case, "response");
    // Responses of v1beta1 were recorded without `apiVersion` and `kind`.
    let has = |field: &str| !meta::map_mut(&mut response.clone()).get(field).is_none_or(Value::is_null);
    let version = if has("apiVersion") || has("kind") { ReviewVersion::V1 } else { ReviewVersion::V1beta1 };
    let got = conversion::converted_objects(version, text(&case.input, "uid"), response);
    match (got, text(&case.want, "err")) {
        (Ok(objects), "") => same("objects", &Value::Array(objects), want(case, "objects")),
        (Err(why), error) if error.starts_with(&why) => Ok(()),
        (got, error) => Err(format!("want error {error:?}, got {got:?}")),
    }
}
