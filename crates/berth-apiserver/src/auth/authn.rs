//! Authentication: from a client certificate or a bearer token to a [`UserInfo`].
//!
//! The TLS layer has verified a certificate's signature before it comes here. Requests without either are refused,
//! except for what anybody may ask to find out that the server is there: version and health.

use std::collections::BTreeMap;

use berth_apimachinery::status::Status;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::UserInfo;
use crate::auth::tokens::Tokens;

/// Paths served to callers who do not say who they are.
const PUBLIC_PATHS: [&str; 4] = ["/version", "/healthz", "/livez", "/readyz"];

/// Subject attribute that carries a user's uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";
/// Extra that says which credential a user came with.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Knows bearer tokens.
pub struct Authenticator {
    static_tokens: BTreeMap<String, UserInfo>,
    issued: Option<std::sync::Arc<Tokens>>,
}

/// What an `Authorization` header says.
#[derive(Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// No bearer token in it.
    None,
    /// A token.
    Token(&'a str),
    /// Two blanks before the token: not understood, and worth telling.
    Misspelt,
}

impl Authenticator {
    /// An authenticator that accepts `static_tokens` and those of `issued`.
    pub fn new(static_tokens: BTreeMap<String, UserInfo>, issued: Option<std::sync::Arc<Tokens>>) -> Authenticator {
        Authenticator { static_tokens, issued }
    }

    /// Who sends a request: by its connection's certificate, else by bearer token. The `Authorization` header is
    /// removed once it was accepted. Nobody is let in as `system:anonymous` for version and health only.
    pub fn authenticate(
        &self,
        certificate_user: Option<UserInfo>,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<UserInfo, Status> {
        let user = match certificate_user {
            Some(user) => user,
            None => match headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(bearer_token) {
                Some(Bearer::Token(token)) => {
                    let user = self.token_user(token);
                    user.ok_or_else(|| Status::unauthorized("Unauthorized"))?
                }
                _ if PUBLIC_PATHS.iter().any(|public| is_at_or_below(path, public)) => {
                    return Ok(UserInfo::anonymous());
                }
                _ => return Err(Status::unauthorized("Unauthorized")),
            },
        };
        headers.remove(AUTHORIZATION);
        Ok(with_authenticated_group(user))
    }

    /// Whose token this is.
    pub fn token_user(&self, token: &str) -> Option<UserInfo> {
        self.static_tokens
            .get(token)
            .cloned()
            .or_else(|| self.issued.as_ref().and_then(|issued| issued.verify(token, None).ok()).map(|it| it.user))
    }
}

fn is_at_or_below(path: &str, public: &str) -> bool {
    path.strip_prefix(public).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Reads an `Authorization` header; the scheme's case does not matter.
pub fn bearer_token(header: &str) -> Bearer<'_> {
    let header = header.trim();
    let mut parts = header.splitn(3, ' ');
    let (Some(scheme), Some(token)) = (parts.next(), parts.next()) else { return Bearer::None };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Bearer::None;
    }
    match (token.is_empty(), parts.next()) {
        (true, Some(rest)) if !rest.is_empty() => Bearer::Misspelt,
        (true, _) => Bearer::None,
        (false, _) => Bearer::Token(token),
    }
}

/// The user a client certificate (DER) stands for: common name is the name, organizations are the groups. `None`
/// without a common name.
pub fn x509_user(der: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    // Of several common names the last counts, as in Go.
    let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|it| it.as_str().ok()).map(str::to_owned).collect();
    let uid = subject.iter().flat_map(|it| it.iter()).find(|it| it.attr_type().to_id_string() == UID_ATTRIBUTE);
    let uid = uid.and_then(|it| it.as_str().ok()).unwrap_or_default().to_owned();
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")])]);
    Some(UserInfo { name, uid, groups, extra })
}

/// Adds `system:authenticated`, unless the user is nobody or has it.
pub fn with_authenticated_group(mut user: UserInfo) -> UserInfo {
    let known = user.in_group("system:authenticated") || user.in_group("system:unauthenticated");
    if user.name != "system:anonymous" && !known {
        user.groups.push("system:authenticated".to_owned());
    }
    user
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn a_client_certificate_names_its_user_and_group() {
        let pki = crate::pki::Pki::ephemeral("2026-01-01T00:00:00Z".parse().expect("a timestamp")).expect("keys");
        let identity = pki.client("alice", Some("team-a")).expect("signed");
        let der = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
        let user = x509_user(der.as_ref()).expect("a user");
        assert_eq!((user.name.as_str(), user.groups), ("alice", vec!["team-a".to_owned()]));
    }

    #[test]
    fn strangers_see_version_and_health_only() {
        let authenticator = Authenticator::new(BTreeMap::new(), None);
        let mut headers = HeaderMap::new();
        for path in ["/version", "/readyz/ping", "/healthz"] {
            assert_eq!(authenticator.authenticate(None, path, &mut headers), Ok(UserInfo::anonymous()));
        }
        for path in ["/api/v1/pods", "/versions", "/"] {
            assert_eq!(authenticator.authenticate(None, path, &mut headers).expect_err("refused").code, 401);
        }
    }

    #[test]
    fn a_known_token_is_taken_out_of_the_request() {
        let tokens =
            BTreeMap::from([("secret".to_owned(), UserInfo { name: "bob".to_owned(), ..UserInfo::default() })]);
        let authenticator = Authenticator::new(tokens, None);
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, "bEaReR secret".parse().expect("a header"))]);
        let user = authenticator.authenticate(None, "/api", &mut headers).expect("known");
        assert_eq!((user.name.as_str(), user.groups), ("bob", vec!["system:authenticated".to_owned()]));
        assert!(headers.is_empty());
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, "Bearer wrong".parse().expect("a header"))]);
        assert_eq!(authenticator.authenticate(None, "/version", &mut headers).expect_err("refused").code, 401);
    }
}
