//! Certificate signing requests. The server sets the requesting user, the request itself is
//! immutable, and approvers and signers write different parts of the status.
//!
//! Source of the behaviour: Kubernetes documentation, "Certificates and Certificate Signing
//! Requests", and its API reference.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apimachinery::field::{Error, Path, quote};
use berth_apimachinery::validation::NameCheck;
use berth_apimachinery::{meta, names};
use serde_json::{Map, Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::Pem;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};

use super::rules::{items, text};
use super::{Context, Strategy, same, spec_mut};

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
/// Types of the conditions whose only valid status is True and that are never removed.
const FINAL: [&str; 3] = [APPROVED, DENIED, "Failed"];
/// Default signer name of older API versions, which is rejected.
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// Minimum validity of a certificate, in seconds.
const MIN_SECONDS: i64 = 600;
/// Maximum lengths of the domain of a signer name and of the whole name: two subdomains, a label, a
/// dot and a slash.
const DOMAIN_MAX: usize = 253;
const SIGNER_MAX: usize = DOMAIN_MAX + 1 + (DOMAIN_MAX + 63 + 1);
/// Key usages of certificates.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(crate) struct SigningRequests;

impl Strategy for SigningRequests {
    fn name_check(&self) -> NameCheck {
        names::is_path_segment_name
    }

    fn prepare_create(&self, object: &mut Value, context: &Context<'_>) {
        let user = context.user;
        let spec = spec_mut(object);
        for field in ["username", "uid", "groups", "extra"] {
            spec.remove(field);
        }
        spec.insert("username".to_owned(), json!(user.name));
        if !user.uid.is_empty() {
            spec.insert("uid".to_owned(), json!(user.uid));
        }
        if !user.groups.is_empty() {
            spec.insert("groups".to_owned(), json!(user.groups));
        }
        if !user.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(user.extra));
        }
        meta::map_mut(object).insert("status".to_owned(), json!({}));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, _context: &Context<'_>) {
        keep_field(new, old, "spec");
        keep_field(new, old, "status");
    }

    /// Keeps the contents of existing approval and denial conditions. Validation checks that they
    /// are still present.
    fn prepare_status_update(&self, new: &mut Value, old: &Value, now: jiff::Timestamp) {
        for decision in [APPROVED, DENIED] {
            let before = of_type(old, decision);
            let slots: Vec<&mut Value> =
                conditions_mut(new).filter(|condition| condition["type"] == decision).collect();
            if slots.len() == before.len() {
                for (slot, value) in slots.into_iter().zip(before) {
                    slot.clone_from(value);
                }
            }
        }
        set_times(new, old, now);
    }

    fn validate(&self, object: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        check_spec(&object["spec"], &mut errors);
        check_conditions(object, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        check_update(new, old, Change::Neither)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        check_update(new, old, Change::Certificate)
    }
}

/// Reverts all changes except those of conditions, which are the only ones that an approval makes.
pub fn keep(new: &mut Value, old: &Value, now: jiff::Timestamp) {
    keep_field(new, old, "spec");
    let conditions = new["status"].get("conditions").cloned();
    keep_field(new, old, "status");
    let status = status_mut(new);
    status.remove("conditions");
    status.extend(conditions.map(|conditions| ("conditions".to_owned(), conditions)));
    set_times(new, old, now);
}

/// Validates an approval or denial.
pub fn validate_approval(new: &Value, old: &Value) -> Vec<Error> {
    check_update(new, old, Change::Approval)
}

/// The organizations in the subject of a request (base64 of PEM). They are the groups of the
/// certificate's user. The error is the reason why the request is invalid, or that an organization
/// has an unsupported encoding, which the signer might support.
pub fn organizations(request: &Value) -> Result<Vec<String>, String> {
    let pem = request_pem(request)?;
    let parsed = parse(&pem)?;
    let names = parsed.certification_request_info.subject.iter_organization();
    let read = |name: &AttributeTypeAndValue<'_>| match name.as_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(format!(
            "an organization of the subject must be a UTF8String, PrintableString, IA5String or NumericString: {error}"
        )),
    };
    names.map(read).collect()
}

fn keep_field(new: &mut Value, old: &Value, field: &str) {
    let map = meta::map_mut(new);
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

fn status_mut(object: &mut Value) -> &mut Map<String, Value> {
    meta::map_mut(meta::map_mut(object).entry("status").or_insert_with(|| json!({})))
}

fn conditions_mut(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    status_mut(object).get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten()
}

fn of_type<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    items(&object["status"]["conditions"]).iter().filter(|condition| text(condition, "type") == kind).collect()
}

/// Sets the timestamps of conditions that the client left unset.
fn set_times(new: &mut Value, old: &Value, now: jiff::Timestamp) {
    let now = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    for condition in conditions_mut(new) {
        let is_missing = |field: &str| text(condition, field).is_empty();
        let (no_update, no_transition) = (is_missing("lastUpdateTime"), is_missing("lastTransitionTime"));
        let Some(map) = condition.as_object_mut() else { continue };
        if no_update {
            map.insert("lastUpdateTime".to_owned(), now.clone());
        }
        if no_transition {
            let is_same = |other: &&Value| ["type", "status"].iter().all(|field| other.get(*field) == map.get(*field));
            let known = items(&old["status"]["conditions"]).iter().find(is_same);
            let since = known.and_then(|known| known.get("lastTransitionTime")).filter(|time| !time.is_null());
            map.insert("lastTransitionTime".to_owned(), since.unwrap_or(&now).clone());
        }
    }
}

/// Part of the status that a write may change.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    Neither,
    /// The conditions Approved and Denied.
    Approval,
    Certificate,
}

fn check_update(new: &Value, old: &Value, allowed: Change) -> Vec<Error> {
    let mut errors = Vec::new();
    check_spec(&new["spec"], &mut errors);
    check_conditions(new, &mut errors);
    let conditions = Path::new("status.conditions");
    for kind in FINAL {
        let (after, before) = (of_type(new, kind), of_type(old, kind));
        let mut reject = |what: &str| {
            let detail = format!("updates may not {what} a condition of type {}", quote(kind));
            errors.push(Error::forbidden(&conditions, detail));
        };
        if after.len() < before.len() {
            reject("remove");
        } else if allowed != Change::Approval && kind != "Failed" {
            if after.len() > before.len() {
                reject("add");
            } else if !after.iter().zip(&before).all(|(after, before)| same(after, before)) {
                reject("modify");
            }
        }
    }
    let certificate = Path::new("status.certificate");
    let (after, before) = (text(&new["status"], "certificate"), text(&old["status"], "certificate"));
    if after != before {
        if allowed != Change::Certificate {
            errors.push(Error::forbidden(&certificate, "updates may not set certificate content"));
        } else if !before.is_empty() {
            errors.push(Error::forbidden(&certificate, "updates may not modify existing certificate content"));
        }
        if let Err(why) = check_certificate(after) {
            errors.push(Error::invalid(&certificate, "<certificate data>", why));
        }
    }
    errors
}

fn check_spec(spec: &Value, errors: &mut Vec<Error>) {
    let path = Path::new("spec");
    if let Err(why) = check_request(&spec["request"]) {
        errors.push(Error::invalid(&path.child("request"), spec["request"].clone(), why));
    }
    let at = path.child("usages");
    if items(&spec["usages"]).is_empty() {
        errors.push(Error::required(&at, ""));
    }
    let mut seen = HashSet::new();
    for (index, usage) in items(&spec["usages"]).iter().enumerate() {
        let name = usage.as_str().unwrap_or_default();
        if !USAGES.contains(&name) {
            errors.push(Error::not_supported(&at.index(index), name, &USAGES));
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&at.index(index), name));
        }
    }
    let at = path.child("signerName");
    match text(spec, "signerName") {
        LEGACY_SIGNER => {
            let detail = "the legacy signerName is not allowed via this API version";
            errors.push(Error::invalid(&at, LEGACY_SIGNER, detail));
        }
        signer => check_signer(signer, &at, errors),
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64().filter(|seconds| *seconds < MIN_SECONDS) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(&path.child("expirationSeconds"), seconds, detail));
    }
}

/// Validates the name of a signer: a domain, a slash, and labels separated by dots.
fn check_signer(signer: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    if signer.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    let Some((domain, name)) = signer.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(Error::invalid(path, signer, detail));
        return;
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(Error::too_long(path, DOMAIN_MAX as i64));
    }
    let mut check = |part: &str, check: NameCheck| {
        // Only the first invalid label is reported.
        let wrong = part.split('.').map(|label| (label, check(label))).find(|(_, messages)| !messages.is_empty());
        if let Some((label, messages)) = wrong {
            let details = messages.iter().map(|message| format!("validating label {}: {message}", quote(label)));
            errors.extend(details.map(|detail| Error::invalid(path, part, detail)));
        }
    };
    check(domain, names::is_dns1123_label);
    check(name, names::is_dns1123_subdomain);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(Error::invalid(path, domain, detail));
    }
    if signer.len() > SIGNER_MAX {
        errors.push(Error::too_long(path, SIGNER_MAX as i64));
    }
}

fn check_conditions(object: &Value, errors: &mut Vec<Error>) {
    let path = Path::new("status.conditions");
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, condition) in items(&object["status"]["conditions"]).iter().enumerate() {
        let at = path.index(index);
        let kind = text(condition, "type");
        if kind.is_empty() {
            errors.push(Error::required(&at.child("type"), ""));
        }
        let values: &[&str] = if FINAL.contains(&kind) { &["True"] } else { &["False", "True", "Unknown"] };
        match text(condition, "status") {
            "" => errors.push(Error::required(&at.child("status"), "")),
            status if !values.contains(&status) => {
                errors.push(Error::not_supported(&at.child("status"), status, values));
            }
            _ => {}
        }
        let opposite = match kind {
            APPROVED => DENIED,
            DENIED => APPROVED,
            _ => "",
        };
        if !opposite.is_empty() && seen.contains(opposite) {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.push(Error::invalid(&at.child("type"), kind, detail));
        }
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&at.child("type"), kind));
        }
    }
}

/// Decodes a base64 field.
fn bytes(value: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(value).map_err(|error| format!("must be base64 of PEM: {error}"))
}

fn request_pem(request: &Value) -> Result<Pem, String> {
    const EXPECTED: &str = "PEM block type must be CERTIFICATE REQUEST";
    let bytes = bytes(request.as_str().unwrap_or_default())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&bytes).map_err(|_| EXPECTED.to_owned())?;
    if pem.label == "CERTIFICATE REQUEST" { Ok(pem) } else { Err(EXPECTED.to_owned()) }
}

fn parse(pem: &Pem) -> Result<X509CertificationRequest<'_>, String> {
    match X509CertificationRequest::from_der(&pem.contents) {
        Ok(([], request)) => Ok(request),
        Ok(_) => Err("data follows the PKCS#10 certificate request".to_owned()),
        Err(error) => Err(format!("must be a PKCS#10 certificate request: {error}")),
    }
}

/// Validates a certificate request, and its signature by its own key.
fn check_request(request: &Value) -> Result<(), String> {
    let pem = request_pem(request)?;
    parse(&pem)?.verify_signature().map_err(|error| {
        format!(
            "must be signed with its own key (RSA of 2048 bits or more, ECDSA on P-256 or P-384, or Ed25519): {error}"
        )
    })
}

/// Validates that the field is empty or consists of PEM certificates only.
fn check_certificate(certificate: &str) -> Result<(), String> {
    if certificate.is_empty() {
        return Ok(());
    }
    let bytes = bytes(certificate)?;
    let mut blocks = 0;
    for pem in Pem::iter_from_buffer(&bytes) {
        let Ok(pem) = pem else { break };
        if pem.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {}", quote(&pem.label)));
        }
        match X509Certificate::from_der(&pem.contents) {
            Ok(([], _)) => blocks += 1,
            Ok(_) => return Err("data follows the certificate in its PEM block".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
    if blocks == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}
