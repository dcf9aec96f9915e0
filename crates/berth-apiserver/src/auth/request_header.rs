//! Identities that a front proxy asserts in headers (`X-Remote-User` and related ones).
//!
//! Behaviour after Kubernetes' request-header authenticator (conformance suite
//! `authn-request-header`). [`super::authn::Authenticator`] decides by the client certificate
//! whether a client is a trusted proxy.

use std::collections::BTreeMap;

use super::impersonation::{decode_key, encode_key};
use crate::UserInfo;

/// Names of the headers that carry an identity, compared without regard to case.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaders {
    /// Headers for the name; the first one with a value in the request is used.
    pub names: Vec<String>,
    /// Headers for the uid; the first one with a value in the request is used.
    pub uids: Vec<String>,
    /// Headers for groups; all are used.
    pub groups: Vec<String>,
    /// Prefixes of headers for extras; the rest of the header's name is the key, percent-encoded.
    pub extra_prefixes: Vec<String>,
}

impl RequestHeaders {
    /// The headers that every Kubernetes front proxy sends.
    pub fn standard() -> RequestHeaders {
        let one = |name: &str| vec![name.to_owned()];
        RequestHeaders {
            names: one("X-Remote-User"),
            uids: one("X-Remote-Uid"),
            groups: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }

    /// The user that the headers of a request assert; `None` without a name.
    pub fn user(&self, headers: &[(&str, &str)]) -> Option<UserInfo> {
        let values = |name: &str| -> Vec<String> {
            let own = headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
            own.map(|(_, value)| (*value).to_owned()).collect()
        };
        let first = |names: &[String]| {
            names.iter().filter_map(|name| values(name).into_iter().next()).find(|value| !value.is_empty())
        };
        let name = first(&self.names)?;
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            for (header, value) in headers {
                let fits = header.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
                if fits {
                    extra.entry(decode_key(&header[prefix.len()..])).or_default().push((*value).to_owned());
                }
            }
        }
        Some(UserInfo {
            name,
            uid: first(&self.uids).unwrap_or_default(),
            groups: self.groups.iter().flat_map(|group| values(group)).collect(),
            extra,
        })
    }

    /// Headers that assert `user`, as [`RequestHeaders::user`] reads them; uses the first header
    /// name of each kind.
    pub fn headers(&self, user: &UserInfo) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        let mut add = |names: &[String], value: &str| {
            if let Some(name) = names.first().filter(|_| !value.is_empty()) {
                headers.push((name.clone(), value.to_owned()));
            }
        };
        add(&self.names, &user.name);
        add(&self.uids, &user.uid);
        user.groups.iter().for_each(|group| add(&self.groups, group));
        for (key, values) in &user.extra {
            let prefixed: Vec<String> =
                self.extra_prefixes.iter().map(|prefix| format!("{prefix}{}", encode_key(key))).collect();
            values.iter().for_each(|value| add(&prefixed, value));
        }
        headers
    }

    /// True if a header is one of these headers, which must be removed after authentication.
    pub fn is_one(&self, header: &str) -> bool {
        let mut exact = self.names.iter().chain(&self.uids).chain(&self.groups);
        let starts = |prefix: &String| header.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
        exact.any(|name| header.eq_ignore_ascii_case(name)) || self.extra_prefixes.iter().any(starts)
    }
}
