//! Service-account tokens: JSON Web Tokens the server signs for itself (HS256), with the claims Kubernetes' tokens have.
//!
//! A symmetric signature suffices because nobody but this server verifies them; there is no issuer discovery. A token
//! is good until it expires or its service account (or the pod it is bound to) is gone or was made anew.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_apimachinery::{meta, names};
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::{Clock, Objects, UserInfo};

/// `iss` of tokens and the audience of those issued for the server itself.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// `{"alg":"HS256","typ":"JWT"}`, encoded.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9";

/// Signs and verifies.
pub struct Tokens {
    key: hmac::Key,
    clock: Clock,
    objects: Option<Objects>,
}

/// What a token is issued for.
#[derive(Clone, Debug)]
pub struct TokenSubject<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Name and uid of the pod the token is bound to.
    pub pod: Option<(&'a str, &'a str)>,
}

/// A verified token.
#[derive(Debug)]
pub struct Verified {
    /// The service account as a user.
    pub user: UserInfo,
    /// Audiences the token was issued for.
    pub audiences: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
    nbf: i64,
    sub: String,
}

#[derive(Serialize, Deserialize)]
struct Bound {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    serviceaccount: Reference,
}

#[derive(Serialize, Deserialize)]
struct Reference {
    name: String,
    uid: String,
}

impl Tokens {
    /// `key` signs; `clock` says when tokens are issued and end; `objects`, if given, must still hold a token's service
    /// account and pod.
    pub fn new(key: &[u8; 32], clock: Clock, objects: Option<Objects>) -> Tokens {
        Tokens { key: hmac::Key::new(hmac::HMAC_SHA256, key), clock, objects }
    }

    /// A token valid for `seconds`, and when it ends. Without audiences it is for this server.
    pub fn issue(&self, subject: &TokenSubject<'_>, audiences: &[String], seconds: i64) -> (String, jiff::Timestamp) {
        let now = (self.clock)();
        let exp = now.as_second().saturating_add(seconds);
        let audiences = if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences.to_vec() };
        let reference = |name: &str, uid: &str| Reference { name: name.to_owned(), uid: uid.to_owned() };
        let claims = Claims {
            aud: audiences,
            exp,
            iat: now.as_second(),
            iss: ISSUER.to_owned(),
            kubernetes: Bound {
                namespace: subject.namespace.to_owned(),
                pod: subject.pod.map(|(name, uid)| reference(name, uid)),
                serviceaccount: reference(subject.name, subject.uid),
            },
            nbf: now.as_second(),
            sub: format!("{USER_PREFIX}{}:{}", subject.namespace, subject.name),
        };
        let payload = serde_json::to_vec(&claims).expect("claims are strings and numbers");
        let signed = format!("{HEADER}.{}", URL_SAFE_NO_PAD.encode(payload));
        let signature = hmac::sign(&self.key, signed.as_bytes());
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()));
        (token, jiff::Timestamp::from_second(exp).unwrap_or(jiff::Timestamp::MAX))
    }

    /// Whose token this is. It must be for one of `audiences`, or for this server when none are given. The error says
    /// why it is not accepted.
    pub fn verify(&self, token: &str, audiences: Option<&[String]>) -> Result<Verified, String> {
        let malformed = || "invalid bearer token".to_owned();
        let (signed, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| malformed())?;
        hmac::verify(&self.key, signed.as_bytes(), &signature).map_err(|_| malformed())?;
        let payload = signed.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix('.')).ok_or_else(malformed)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| malformed())?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| malformed())?;
        let now = (self.clock)().as_second();
        if now >= claims.exp {
            return Err("service account token has expired".to_owned());
        }
        let own = [ISSUER.to_owned()];
        let wanted = audiences.filter(|list| !list.is_empty()).unwrap_or(&own);
        let matching = matching_audiences(wanted, &claims.aud);
        if matching.is_empty() {
            return Err(format!("token audiences {:?} is invalid for the target audiences {wanted:?}", claims.aud));
        }
        let Bound { namespace, pod, serviceaccount } = claims.kubernetes;
        if let Some(objects) = &self.objects {
            let exists = |resource: &str, wanted: &Reference| {
                let object = objects.get("", resource, &namespace, &wanted.name);
                object.is_some_and(|object| meta::uid(&object) == wanted.uid)
            };
            if !exists("serviceaccounts", &serviceaccount) {
                return Err("service account token has been invalidated".to_owned());
            }
            if pod.as_ref().is_some_and(|pod| !exists("pods", pod)) {
                return Err("service account token has been invalidated".to_owned());
            }
        }
        let (pod_name, pod_uid) = pod.map(|pod| (pod.name, pod.uid)).unwrap_or_default();
        let account = Account {
            namespace: &namespace,
            name: &serviceaccount.name,
            uid: &serviceaccount.uid,
            pod_name: &pod_name,
            pod_uid: &pod_uid,
            ..Account::default()
        };
        let user = account.user();
        Ok(Verified { user, audiences: matching })
    }
}

/// What names of service accounts' users begin with.
const USER_PREFIX: &str = "system:serviceaccount:";

/// The user name of a service account; `None` when there can be no account of that namespace and name.
pub fn service_account_user_name(namespace: &str, name: &str) -> Option<String> {
    let valid = names::is_dns1123_label(namespace).is_empty() && names::is_dns1123_subdomain(name).is_empty();
    valid.then(|| format!("{USER_PREFIX}{namespace}:{name}"))
}

/// Namespace and name of the service account a user is; `None` for other users.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    service_account_user_name(namespace, name).is_some().then_some((namespace, name))
}

/// The wanted audiences that a token has too; a token for one of them is acceptable.
pub fn matching_audiences(wanted: &[String], token: &[String]) -> Vec<String> {
    wanted.iter().filter(|audience| token.contains(audience)).cloned().collect()
}

/// A service account, and what a token of it is bound to; what is not known is empty.
#[derive(Clone, Debug, Default)]
pub struct Account<'a> {
    /// Namespace of the account.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// The pod the token is for.
    pub pod_name: &'a str,
    /// That pod's uid.
    pub pod_uid: &'a str,
    /// The node the pod runs on.
    pub node_name: &'a str,
    /// That node's uid.
    pub node_uid: &'a str,
    /// Identifier of the token (`JTI=…`).
    pub credential_id: &'a str,
}

impl Account<'_> {
    /// The account as a user, with what the token is bound to as extras.
    pub fn user(&self) -> UserInfo {
        let mut user = service_account_user(self.namespace, self.name, self.uid);
        let mut add = |key: &str, value: &str| {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        };
        if !self.pod_name.is_empty() && !self.pod_uid.is_empty() {
            add("pod-name", self.pod_name);
            add("pod-uid", self.pod_uid);
        }
        if !self.node_name.is_empty() {
            add("node-name", self.node_name);
            if !self.node_uid.is_empty() {
                add("node-uid", self.node_uid);
            }
        }
        if !self.credential_id.is_empty() {
            add("credential-id", self.credential_id);
        }
        user
    }
}

/// A service account as a user, with the groups all of them and all of its namespace are in.
pub fn service_account_user(namespace: &str, name: &str, uid: &str) -> UserInfo {
    UserInfo {
        name: format!("{USER_PREFIX}{namespace}:{name}"),
        uid: uid.to_owned(),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
        extra: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn a_token_is_good_until_it_ends_and_only_for_its_audience() {
        let seconds = Arc::new(AtomicI64::new(1_000));
        let clock: Clock = {
            let seconds = seconds.clone();
            Arc::new(move || jiff::Timestamp::from_second(seconds.load(Ordering::Relaxed)).expect("in range"))
        };
        let tokens = Tokens::new(&[7; 32], clock.clone(), None);
        let subject = TokenSubject { namespace: "team-a", name: "runner", uid: "u", pod: None };
        let (token, end) = tokens.issue(&subject, &[], 600);
        assert_eq!(end.as_second(), 1_600);
        let user = tokens.verify(&token, None).expect("good").user;
        assert_eq!(user.name, "system:serviceaccount:team-a:runner");
        assert!(user.in_group("system:serviceaccounts:team-a"));
        assert!(tokens.verify(&token, Some(&["vault".to_owned()])).is_err());
        assert!(Tokens::new(&[8; 32], clock, None).verify(&token, None).is_err(), "another key");
        let mut forged = token.clone();
        forged.replace_range(40..41, "x");
        assert!(tokens.verify(&forged, None).is_err());
        seconds.store(1_600, Ordering::Relaxed);
        assert!(tokens.verify(&token, None).expect_err("ended").contains("expired"));
    }
}
