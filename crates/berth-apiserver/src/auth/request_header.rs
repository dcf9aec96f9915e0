//! Identities a front proxy vouches for in headers (`X-Remote-User` and its kin).
//!
//! Behaviour after Kubernetes' request-header authenticator (conformance suite `authn-request-header`). Whether the
//! proxy may vouch for anybody is [`super::authn::Authenticator`]'s decision, by its client certificate.

use std::collections::BTreeMap;

use super::impersonation::{decode_key, encode_key};
use crate::UserInfo;

/// Which headers say what. Names are compared without regard to case.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaders {
    /// Headers for the name; the first that is there counts.
    pub names: Vec<String>,
    /// Headers for the uid; the first that is there counts.
    pub uids: Vec<String>,
    /// Headers for groups; all count.
    pub groups: Vec<String>,
    /// What headers for extras begin with; the rest is the key, percent-encoded.
    pub extra_prefixes: Vec<String>,
}

impl RequestHeaders {
    /// The headers every Kubernetes front proxy sends.
    pub fn standard() -> RequestHeaders {
        let one = |name: &str| vec![name.to_owned()];
        RequestHeaders {
            names: one("X-Remote-User"),
            uids: one("X-Remote-Uid"),
            groups: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }

    /// Who the headers of a request speak of; `None` without a name.
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

    /// What says who `user` is, to be read back by [`RequestHeaders::user`]: the first name of each kind is used.
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

    /// Whether a header is one of these, and so no business of what comes after authentication.
    pub fn is_one(&self, header: &str) -> bool {
        let mut exact = self.names.iter().chain(&self.uids).chain(&self.groups);
        let starts = |prefix: &String| header.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
        exact.any(|name| header.eq_ignore_ascii_case(name)) || self.extra_prefixes.iter().any(starts)
    }
}
