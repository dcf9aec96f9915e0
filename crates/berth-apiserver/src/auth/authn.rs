//! Authentication: from a client certificate or a bearer token to a [`UserInfo`].
//!
//! The TLS layer has already verified the signature of a certificate. Requests without certificate
//! and token are rejected, except for the public paths: version and health.

use std::collections::BTreeMap;

use berth_apimachinery::status::Status;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::UserInfo;
use crate::auth::request_header::RequestHeaders;
use crate::auth::tokens::Tokens;

/// Paths served to unauthenticated clients: those of `system:public-info-viewer`. Single checks
/// below them (`/readyz/ping`) are not, as upstream.
const PUBLIC_PATHS: [&str; 5] = ["/version", "/version/", "/healthz", "/livez", "/readyz"];

/// Subject attribute that carries a user's uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";
/// Extra that identifies the credential of a user.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Authenticates requests by client certificate, front proxy or bearer token.
pub struct Authenticator {
    static_tokens: BTreeMap<String, UserInfo>,
    issued: Option<std::sync::Arc<Tokens>>,
    front_proxy: Option<FrontProxy>,
}

/// Proxies that authenticate users and forward their requests.
pub struct FrontProxy {
    /// Common names of their client certificates.
    pub names: Vec<String>,
    /// Headers in which they name the user.
    pub headers: RequestHeaders,
}

/// The content of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// No bearer token in it.
    None,
    /// A token.
    Token(&'a str),
    /// Two blanks before the token: not valid, and worth a warning.
    Misspelt,
}

impl Authenticator {
    /// An authenticator that accepts `static_tokens` and those of `issued`.
    pub fn new(static_tokens: BTreeMap<String, UserInfo>, issued: Option<std::sync::Arc<Tokens>>) -> Authenticator {
        Authenticator { static_tokens, issued, front_proxy: None }
    }

    /// This authenticator, which also trusts front proxies.
    #[must_use]
    pub fn with_front_proxy(mut self, proxy: FrontProxy) -> Authenticator {
        self.front_proxy = Some(proxy);
        self
    }

    /// The user named in the front-proxy headers, if `certificate_user` is a front proxy; removes
    /// the headers.
    fn proxied(&self, certificate_user: &UserInfo, headers: &mut HeaderMap) -> Option<UserInfo> {
        let proxy = self.front_proxy.as_ref().filter(|proxy| proxy.names.contains(&certificate_user.name))?;
        let text = |value: &http::HeaderValue| std::str::from_utf8(value.as_bytes()).ok().map(str::to_owned);
        let given: Vec<(String, String)> =
            headers.iter().filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?))).collect();
        let pairs: Vec<(&str, &str)> = given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let user = proxy.headers.user(&pairs)?;
        let used: Vec<_> = headers.keys().filter(|name| proxy.headers.is_one(name.as_str())).cloned().collect();
        for name in used {
            headers.remove(name);
        }
        Some(user)
    }

    /// Authenticates a request by its connection's certificate, else by bearer token. Removes the
    /// `Authorization` header of an authenticated request. A request without credentials becomes
    /// `system:anonymous` on the public paths only.
    pub fn authenticate(
        &self,
        certificate_user: Option<UserInfo>,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<UserInfo, Status> {
        let websocket = websocket_token(headers).ok().flatten();
        let user = match (certificate_user, websocket) {
            (Some(user), _) => self.proxied(&user, headers).unwrap_or(user),
            (None, Some((token, rest))) => {
                let user = self.token_user(&token).ok_or_else(|| Status::unauthorized("Unauthorized"))?;
                if let Ok(rest) = http::HeaderValue::from_str(&rest) {
                    headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
                }
                user
            }
            (None, None) => match headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).map(bearer_token) {
                Some(Bearer::Token(token)) => {
                    let user = self.token_user(token);
                    user.ok_or_else(|| Status::unauthorized("Unauthorized"))?
                }
                _ if PUBLIC_PATHS.contains(&path) => {
                    return Ok(UserInfo::anonymous());
                }
                _ => return Err(Status::unauthorized("Unauthorized")),
            },
        };
        headers.remove(AUTHORIZATION);
        Ok(with_authenticated_group(user))
    }

    /// The user a static or issued token authenticates, if any.
    pub fn token_user(&self, token: &str) -> Option<UserInfo> {
        self.static_tokens
            .get(token)
            .cloned()
            .or_else(|| self.issued.as_ref().and_then(|issued| issued.verify(token, None).ok()).map(|it| it.user))
    }
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

/// Prefix of the WebSocket subprotocol that carries a token.
const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The token that browsers send as a WebSocket subprotocol, because they cannot set other headers,
/// and the remaining subprotocols. `None` without a token.
///
/// # Errors
/// A token that is not base64url of UTF-8, more than one token, or no other subprotocol for the
/// server to choose.
pub fn websocket_token(headers: &HeaderMap) -> Result<Option<(String, String)>, String> {
    use base64::Engine;
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    for protocol in values.flat_map(|value| value.split(',')).map(str::trim) {
        match protocol.strip_prefix(WEBSOCKET_BEARER) {
            Some(token) => tokens.push(token),
            None => others.push(protocol),
        }
    }
    let token = match tokens.as_slice() {
        [] | [""] => return Ok(None),
        [token] => token,
        _ => return Err("multiple bearer tokens in subprotocols".to_owned()),
    };
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(token)
        .ok()
        .and_then(|token| String::from_utf8(token).ok())
        .ok_or("the bearer token in the subprotocols is not base64url of text")?;
    if token.is_empty() {
        return Ok(None);
    }
    if others.is_empty() {
        return Err("missing additional subprotocol".to_owned());
    }
    Ok(Some((token, others.join(","))))
}

/// The user of a client certificate (DER): the common name is the name, organizations are the
/// groups. `None` without a common name.
pub fn x509_user(der: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    // Of several common names the last one is used, as in Go.
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

/// Adds `system:authenticated`, unless the user is unauthenticated or already has the group.
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
    fn unauthenticated_clients_can_only_read_version_and_health() {
        let authenticator = Authenticator::new(BTreeMap::new(), None);
        let mut headers = HeaderMap::new();
        for path in ["/version", "/readyz", "/healthz"] {
            assert_eq!(authenticator.authenticate(None, path, &mut headers), Ok(UserInfo::anonymous()));
        }
        for path in ["/api/v1/pods", "/versions", "/readyz/ping", "/"] {
            assert_eq!(authenticator.authenticate(None, path, &mut headers).expect_err("rejected").code, 401);
        }
    }

    #[test]
    fn a_valid_token_is_removed_from_the_request() {
        let tokens =
            BTreeMap::from([("secret".to_owned(), UserInfo { name: "bob".to_owned(), ..UserInfo::default() })]);
        let authenticator = Authenticator::new(tokens, None);
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, "bEaReR secret".parse().expect("a header"))]);
        let user = authenticator.authenticate(None, "/api", &mut headers).expect("known");
        assert_eq!((user.name.as_str(), user.groups), ("bob", vec!["system:authenticated".to_owned()]));
        assert!(headers.is_empty());
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, "Bearer wrong".parse().expect("a header"))]);
        assert_eq!(authenticator.authenticate(None, "/version", &mut headers).expect_err("rejected").code, 401);
    }
}
