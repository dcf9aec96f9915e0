//! The identity of a client. Authentication sets it (or the creator of an in-process client);
//! authorization, admission and `managedFields` read it.

use std::collections::BTreeMap;

/// The user of a request, as Kubernetes' `UserInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// Name, such as `system:admin`, `system:serviceaccount:<namespace>:<name>` or an e-mail
    /// address.
    pub name: String,
    /// Stable identifier; empty if the authenticator provides none.
    pub uid: String,
    /// Groups, in the order of the authenticator.
    pub groups: Vec<String>,
    /// Additional attributes from the authenticator. Keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// A user with the given name and groups; `system:authenticated` is added.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> UserInfo {
        let mut groups: Vec<String> = groups.iter().map(|group| group.to_string()).collect();
        if !groups.iter().any(|group| group == "system:authenticated") {
            groups.push("system:authenticated".to_owned());
        }
        UserInfo { name: name.into(), uid: String::new(), groups, extra: BTreeMap::new() }
    }

    /// A user that may do everything (`system:masters`), for components in this process.
    pub fn master(name: impl Into<String>) -> UserInfo {
        UserInfo::new(name, &["system:masters"])
    }

    /// The user of unauthenticated requests.
    pub fn anonymous() -> UserInfo {
        UserInfo {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..UserInfo::default()
        }
    }

    /// True if the user is in `group`.
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
