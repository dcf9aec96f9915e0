//! `Impersonate-*` headers: running a request as another user. Name, uid, groups and extras must
//! each be permitted.
//!
//! Behaviour after Kubernetes' impersonation filter (conformance suite `impersonation`).

use std::collections::BTreeMap;

use berth_apimachinery::status::Status;
use http::HeaderMap;

use super::{Attributes, Decision};
use crate::UserInfo;
use crate::auth::tokens::{service_account_user, split_service_account};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";
const ANONYMOUS: &str = "system:anonymous";

/// Applies the headers of a request by `user`: calls `decide` for every aspect, removes the
/// headers and returns the user that the request runs as. A denial is a 403; groups, uid or extras
/// without a user name are a 400.
pub fn apply(
    user: UserInfo,
    headers: &mut HeaderMap,
    decide: impl Fn(&UserInfo, &Attributes<'_>) -> Decision,
) -> Result<UserInfo, Status> {
    let values = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
        values.map(str::to_owned).collect()
    };
    let name = values(USER).into_iter().next().unwrap_or_default();
    let groups = values(GROUP);
    let uid = values(UID).into_iter().next().unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for key in headers.keys() {
        if let Some(key) = key.as_str().strip_prefix(EXTRA_PREFIX) {
            extra.insert(decode_key(key), values(&format!("{EXTRA_PREFIX}{key}")));
        }
    }
    // Without a user name the other headers must be absent.
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(user);
        }
        return Err(Status::bad_request(format!(
            "requested [{}] without impersonating a user",
            groups
                .iter()
                .chain((!uid.is_empty()).then_some(&uid))
                .cloned()
                .chain(extra.keys().cloned())
                .collect::<Vec<_>>()
                .join(" ")
        )));
    }

    // The user needs the right to impersonate each aspect.
    let check = |attributes: Attributes<'_>| {
        let attributes = Attributes { verb: "impersonate", is_resource_request: true, ..attributes };
        let decision = decide(&user, &attributes);
        if decision.allowed { Ok(()) } else { Err(attributes.forbidden(&user, &decision.reason)) }
    };
    let service_account = split_service_account(&name);
    // The name of the user, then groups, extras and the UID.
    match service_account {
        Some((namespace, name)) => {
            check(Attributes { resource: "serviceaccounts", namespace, name, ..Attributes::default() })?;
        }
        None => check(Attributes { resource: "users", name: &name, ..Attributes::default() })?,
    }
    for group in &groups {
        check(Attributes { resource: "groups", name: group, ..Attributes::default() })?;
    }
    for (key, values) in &extra {
        for value in values {
            check(Attributes {
                group: AUTHENTICATION_GROUP,
                resource: "userextras",
                subresource: key,
                name: value,
                ..Attributes::default()
            })?;
        }
    }
    if !uid.is_empty() {
        check(Attributes { group: AUTHENTICATION_GROUP, resource: "uids", name: &uid, ..Attributes::default() })?;
    }

    let groups = completed(groups, &name);
    // The request continues as one of the impersonated user.
    let taken: Vec<_> = headers.keys().filter(|key| key.as_str().starts_with("impersonate-")).cloned().collect();
    for key in taken {
        headers.remove(key);
    }
    tracing::debug!(user = %user.name, as_user = %name, "impersonation");
    Ok(UserInfo { name, uid, groups, extra })
}

/// The groups of an impersonated user, with those that every user of its kind has.
fn completed(mut groups: Vec<String>, name: &str) -> Vec<String> {
    if groups.is_empty()
        && let Some((namespace, account)) = split_service_account(name)
    {
        groups = service_account_user(namespace, account, "").groups;
    }
    let has = |groups: &[String], group: &str| groups.iter().any(|own| own == group);
    if name == ANONYMOUS {
        if !has(&groups, "system:unauthenticated") {
            groups.push("system:unauthenticated".to_owned());
        }
    } else if !has(&groups, "system:authenticated") && !has(&groups, "system:unauthenticated") {
        groups.push("system:authenticated".to_owned());
    }
    groups
}

/// A key of extras, encoded for use in a header's name. [`decode_key`] decodes it, in lower case.
pub(super) fn encode_key(key: &str) -> String {
    let mut encoded = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            // The characters that HTTP allows in a header's name, except `%`, which is the escape.
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02x}")),
        }
    }
    encoded
}

/// Decodes a percent-encoded key of extras and converts it to lower case. A key with an invalid
/// encoding is only converted.
pub(super) fn decode_key(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'%' {
            decoded.push(bytes[at]);
            at += 1;
            continue;
        }
        let digits = bytes.get(at + 1..at + 3).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        let Some(hex) = digits.and_then(|hex| std::str::from_utf8(hex).ok()) else { return key.to_lowercase() };
        let Ok(byte) = u8::from_str_radix(hex, 16) else { return key.to_lowercase() };
        decoded.push(byte);
        at += 3;
    }
    String::from_utf8(decoded).unwrap_or_else(|_| key.to_owned()).to_lowercase()
}
