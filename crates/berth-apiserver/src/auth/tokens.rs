//! Service account tokens: JSON Web Tokens that the server signs (ES256), with the claims of
//! Kubernetes' tokens.
//!
//! A token is valid until it expires, or until its service account (or the pod, Secret or node it
//! is bound to) is deleted or recreated. Other programs can verify tokens too: the public key is
//! served as a JSON Web Key Set ([`TokenKey::key_set`]).
//!
//! Tokens in Secrets of type `kubernetes.io/service-account-token` do not expire. They are valid
//! as long as that Secret holds them ([`SecretTokens::fill_secret`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_apimachinery::{meta, names};
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids;
use crate::strategy::{ACCOUNT_NAME, SecretTokens, TOKEN_TYPE};
use crate::{Clock, Objects, UserInfo};

/// `iss` of tokens, and the audience of tokens issued for this server itself.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// `iss` of tokens in Secrets.
const SECRET_ISSUER: &str = "kubernetes/serviceaccount";
/// Annotation with the uid of a token Secret's service account.
pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Maximum number of verified tokens to cache: checking a signature costs as much as a small read.
const REMEMBERED_MAX: usize = 1024;

/// The key pair with which tokens are signed (ECDSA, P-256). Clones share it.
#[derive(Clone)]
pub struct TokenKey(Arc<Pair>);

struct Pair {
    key: EcdsaKeyPair,
    random: SystemRandom,
    /// The header of every token, encoded.
    header: String,
    id: String,
}

impl fmt::Debug for TokenKey {
    /// Prints the key's id, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenKey").field(&self.0.id).finish()
    }
}

impl TokenKey {
    /// The key in a PKCS#8 document; `None` unless it holds an ECDSA P-256 key.
    pub fn from_pkcs8(document: &[u8]) -> Option<TokenKey> {
        let random = SystemRandom::new();
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, document, &random).ok()?;
        let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref());
        let id = URL_SAFE_NO_PAD.encode(digest);
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "ES256", "kid": id, "typ": "JWT"}).to_string());
        Some(TokenKey(Arc::new(Pair { key, random, header, id })))
    }

    /// A new key, from the operating system's generator; `None` when that fails.
    pub fn generate() -> Option<TokenKey> {
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).ok()?;
        TokenKey::from_pkcs8(document.as_ref())
    }

    /// The public half, as a JSON Web Key Set.
    pub fn key_set(&self) -> Value {
        // An uncompressed point: 4, then both coordinates.
        let (x, y) = self.0.key.public_key().as_ref()[1..].split_at(32);
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.0.id, "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]})
    }

    /// A unique token id (a version 4 UUID).
    fn new_id(&self) -> String {
        let mut bytes = [0; 16];
        self.0.random.fill(&mut bytes).expect("the random generator of the operating system does not fail");
        ids::uuid(0x4, u128::from_be_bytes(bytes))
    }

    fn sign(&self, claims: &Value) -> String {
        let signed = format!("{}.{}", self.0.header, URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.0.key.sign(&self.0.random, signed.as_bytes());
        let signature = signature.expect("signing fails only if the random generator fails");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    /// The claims of a token signed with this key.
    fn claims(&self, token: &str) -> Option<Value> {
        let (signed, signature) = token.rsplit_once('.')?;
        let payload = signed.strip_prefix(&self.0.header)?.strip_prefix('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let public = UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, self.0.key.public_key());
        public.verify(signed.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }
}

/// Signs and verifies tokens.
pub struct Tokens {
    key: TokenKey,
    clock: Clock,
    objects: Option<Objects>,
    /// Claims of tokens whose signature was verified, by token.
    verified: Mutex<BTreeMap<String, Arc<Value>>>,
}

/// The service account and the bound object of a new token.
#[derive(Clone, Debug)]
pub struct TokenSubject<'a> {
    /// Namespace of the service account.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Object that the token is bound to.
    pub bound: Option<BoundObject>,
    /// Name and uid of the node that the pod it is bound to runs on.
    pub node: Option<(String, String)>,
}

/// An object that a token is bound to: the token is valid while the object exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundObject {
    /// Its kind.
    pub kind: BoundKind,
    /// Its name; in the account's namespace, unless it is a node.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Kinds of objects that tokens are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundKind {
    /// A pod.
    Pod,
    /// A Secret.
    Secret,
    /// A node.
    Node,
}

impl BoundKind {
    /// The kind of this name in the core group.
    pub fn parse(api_version: &str, kind: &str) -> Option<BoundKind> {
        match (api_version, kind) {
            ("v1", "Pod") => Some(BoundKind::Pod),
            ("v1", "Secret") => Some(BoundKind::Secret),
            ("v1", "Node") => Some(BoundKind::Node),
            _ => None,
        }
    }

    /// Its plural.
    pub fn resource(self) -> &'static str {
        match self {
            BoundKind::Pod => "pods",
            BoundKind::Secret => "secrets",
            BoundKind::Node => "nodes",
        }
    }

    /// Namespace of bound objects of this kind for accounts of `namespace`: empty for nodes.
    pub fn namespace(self, namespace: &str) -> &str {
        if self == BoundKind::Node { "" } else { namespace }
    }
}

/// A verified token.
#[derive(Debug)]
pub struct Verified {
    /// The service account as a user.
    pub user: UserInfo,
    /// The requested audiences for which the token was issued.
    pub audiences: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    iss: String,
    /// Id of the token. Tokens of older versions have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
    nbf: i64,
    sub: String,
}

#[derive(Serialize, Deserialize)]
struct Bound {
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
    serviceaccount: Reference,
}

#[derive(Serialize, Deserialize)]
struct Reference {
    name: String,
    uid: String,
}

impl Tokens {
    /// Signs with `key`; issue and expiry times come from `clock`. A token's service account and
    /// bound object must still exist in `objects`, if given.
    pub fn new(key: TokenKey, clock: Clock, objects: Option<Objects>) -> Tokens {
        Tokens { key, clock, objects, verified: Mutex::default() }
    }

    /// The public key, as a JSON Web Key Set.
    pub fn key_set(&self) -> Value {
        self.key.key_set()
    }

    /// Issues a token valid for `seconds`, and returns it with its expiry. Without audiences it is
    /// for this server.
    pub fn issue(&self, subject: &TokenSubject<'_>, audiences: &[String], seconds: i64) -> (String, jiff::Timestamp) {
        let now = (self.clock)();
        let exp = now.as_second().saturating_add(seconds);
        let audiences = if audiences.is_empty() { vec![ISSUER.to_owned()] } else { audiences.to_vec() };
        let reference = |name: &str, uid: &str| Reference { name: name.to_owned(), uid: uid.to_owned() };
        let bound = |kind: BoundKind| {
            let bound = subject.bound.as_ref().filter(|bound| bound.kind == kind);
            bound.map(|bound| reference(&bound.name, &bound.uid))
        };
        let claims = Claims {
            aud: audiences,
            exp,
            iat: now.as_second(),
            iss: ISSUER.to_owned(),
            jti: self.key.new_id(),
            kubernetes: Bound {
                namespace: subject.namespace.to_owned(),
                node: bound(BoundKind::Node).or(subject.node.as_ref().map(|(name, uid)| reference(name, uid))),
                pod: bound(BoundKind::Pod),
                secret: bound(BoundKind::Secret),
                serviceaccount: reference(subject.name, subject.uid),
            },
            nbf: now.as_second(),
            sub: format!("{USER_PREFIX}{}:{}", subject.namespace, subject.name),
        };
        let claims = serde_json::to_value(claims).expect("claims are strings and numbers");
        (self.key.sign(&claims), jiff::Timestamp::from_second(exp).unwrap_or(jiff::Timestamp::MAX))
    }

    /// The user of a token. The token must be for one of `audiences`, or for this server when none
    /// are given. The error is the reason why the token is not accepted.
    pub fn verify(&self, token: &str, audiences: Option<&[String]>) -> Result<Verified, String> {
        let claims = self.claims(token).ok_or("invalid bearer token")?;
        let own = [ISSUER.to_owned()];
        let wanted = audiences.filter(|list| !list.is_empty()).unwrap_or(&own);
        if claims["iss"] == SECRET_ISSUER {
            return self.verify_secret(token, &claims, wanted);
        }
        let claims = Claims::deserialize(claims.as_ref()).map_err(|_| "invalid bearer token")?;
        let now = (self.clock)().as_second();
        if now >= claims.exp {
            return Err("service account token has expired".to_owned());
        }
        let matching = matching_audiences(wanted, &claims.aud);
        if matching.is_empty() {
            return Err(format!("token audiences {:?} is invalid for the target audiences {wanted:?}", claims.aud));
        }
        let Bound { namespace, node, pod, secret, serviceaccount } = claims.kubernetes;
        let gone = || Err("service account token has been invalidated".to_owned());
        if !self.exists("serviceaccounts", &namespace, &serviceaccount.name, &serviceaccount.uid) {
            return gone();
        }
        // The node of a pod-bound token is informational. A token is bound to its node only
        // without a pod.
        let bound_node = node.as_ref().filter(|_| pod.is_none());
        for (resource, namespace, bound) in
            [("pods", &*namespace, pod.as_ref()), ("secrets", &*namespace, secret.as_ref()), ("nodes", "", bound_node)]
        {
            if bound.is_some_and(|bound| !self.exists(resource, namespace, &bound.name, &bound.uid)) {
                return gone();
            }
        }
        let parts = |it: Option<Reference>| it.map(|it| (it.name, it.uid)).unwrap_or_default();
        let ((pod_name, pod_uid), (node_name, node_uid)) = (parts(pod), parts(node));
        let credential_id = if claims.jti.is_empty() { String::new() } else { format!("JTI={}", claims.jti) };
        let account = Account {
            namespace: &namespace,
            name: &serviceaccount.name,
            uid: &serviceaccount.uid,
            pod_name: &pod_name,
            pod_uid: &pod_uid,
            node_name: &node_name,
            node_uid: &node_uid,
            credential_id: &credential_id,
        };
        let user = account.user();
        Ok(Verified { user, audiences: matching })
    }

    /// The claims of a token with a valid signature, which is cached. Everything else is checked
    /// on each call.
    fn claims(&self, token: &str) -> Option<Arc<Value>> {
        let mut verified = self.verified.lock();
        if let Some(claims) = verified.get(token) {
            return Some(claims.clone());
        }
        let claims = Arc::new(self.key.claims(token)?);
        if verified.len() >= REMEMBERED_MAX {
            verified.clear();
        }
        verified.insert(token.to_owned(), claims.clone());
        Some(claims)
    }

    fn exists(&self, resource: &str, namespace: &str, name: &str, uid: &str) -> bool {
        self.objects.as_ref().is_none_or(|objects| {
            objects.get("", resource, namespace, name).is_some_and(|object| meta::uid(&object) == uid)
        })
    }

    /// Verifies a Secret's token: valid while the Secret holds it and belongs to its service
    /// account.
    fn verify_secret(&self, token: &str, claims: &Value, wanted: &[String]) -> Result<Verified, String> {
        let text = |claim: &str| claims[format!("{SECRET_ISSUER}/{claim}")].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("service-account.name"));
        let uid = text("service-account.uid");
        let audiences = matching_audiences(wanted, &[ISSUER.to_owned()]);
        if audiences.is_empty() {
            return Err(format!("a token in a secret is for this server only, not for {wanted:?}"));
        }
        if let Some(objects) = &self.objects {
            let account = objects.get("", "serviceaccounts", namespace, name);
            let secret = objects.get("", "secrets", namespace, text("secret.name"));
            let held =
                account.filter(|account| meta::uid(account) == uid).zip(secret).is_some_and(|(account, secret)| {
                    let is_live =
                        meta::deletion_timestamp(&secret).is_none() && meta::deletion_timestamp(&account).is_none();
                    is_live && is_token_of(&secret, &account) && secret["data"]["token"] == STANDARD.encode(token)
                });
            if !held {
                return Err("service account token has been invalidated".to_owned());
            }
        }
        Ok(Verified { user: Account { namespace, name, uid, ..Account::default() }.user(), audiences })
    }
}

impl SecretTokens for Tokens {
    /// Fills in the missing data of a Secret of type `kubernetes.io/service-account-token`: the
    /// token of the account it names, the account's uid, its namespace, and the CA certificate.
    /// Does not change a Secret whose service account does not exist.
    fn fill_secret(&self, secret: &mut Value) {
        let Some(objects) = &self.objects else { return };
        let (namespace, own_name) = (meta::namespace(secret).to_owned(), meta::name(secret).to_owned());
        let name = secret["metadata"]["annotations"][ACCOUNT_NAME].as_str().unwrap_or_default().to_owned();
        if secret["type"] != TOKEN_TYPE || name.is_empty() {
            return;
        }
        let Some(account) = objects.get("", "serviceaccounts", &namespace, &name) else { return };
        let given = &secret["metadata"]["annotations"][ACCOUNT_UID];
        if given.as_str().is_some_and(|uid| uid != meta::uid(&account)) {
            return;
        }
        let annotations = meta::metadata_mut(secret).entry("annotations").or_insert_with(|| json!({}));
        meta::map_mut(annotations).insert(ACCOUNT_UID.to_owned(), meta::uid(&account).into());
        let data = meta::map_mut(meta::map_mut(secret).entry("data").or_insert_with(|| json!({})));
        let is_missing = |data: &serde_json::Map<String, Value>, key: &str| {
            data.get(key).and_then(Value::as_str).unwrap_or_default().is_empty()
        };
        if is_missing(data, "token") {
            let mut claims = json!({
                "iss": SECRET_ISSUER,
                "sub": format!("{USER_PREFIX}{namespace}:{name}"),
            });
            for (claim, text) in [
                ("namespace", namespace.as_str()),
                ("secret.name", own_name.as_str()),
                ("service-account.name", name.as_str()),
                ("service-account.uid", meta::uid(&account)),
            ] {
                claims[format!("{SECRET_ISSUER}/{claim}")] = text.into();
            }
            data.insert("token".to_owned(), STANDARD.encode(self.key.sign(&claims)).into());
        }
        if is_missing(data, "namespace") {
            data.insert("namespace".to_owned(), STANDARD.encode(&namespace).into());
        }
        let authority = objects.get("", "configmaps", &namespace, "kube-root-ca.crt");
        if is_missing(data, "ca.crt")
            && let Some(pem) = authority.as_ref().and_then(|map| map["data"]["ca.crt"].as_str())
        {
            data.insert("ca.crt".to_owned(), STANDARD.encode(pem).into());
        }
    }
}

/// True if a Secret is for tokens of this service account, by its type, its namespace and its
/// annotations.
pub fn is_token_of(secret: &Value, account: &Value) -> bool {
    let annotation = |name: &str| secret["metadata"]["annotations"][name].as_str().unwrap_or_default();
    secret["type"] == TOKEN_TYPE
        && meta::namespace(secret) == meta::namespace(account)
        && annotation(ACCOUNT_NAME) == meta::name(account)
        && annotation(ACCOUNT_UID) == meta::uid(account)
}

/// Prefix of service accounts' user names.
const USER_PREFIX: &str = "system:serviceaccount:";

/// The user name of a service account; `None` if the namespace or name is invalid.
pub fn service_account_user_name(namespace: &str, name: &str) -> Option<String> {
    let valid = names::is_dns1123_label(namespace).is_empty() && names::is_dns1123_subdomain(name).is_empty();
    valid.then(|| format!("{USER_PREFIX}{namespace}:{name}"))
}

/// Namespace and name of the service account with this user name; `None` for other users.
pub fn split_service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
    service_account_user_name(namespace, name).is_some().then_some((namespace, name))
}

/// The audiences in both lists; one match makes a token acceptable.
pub fn matching_audiences(wanted: &[String], token: &[String]) -> Vec<String> {
    wanted.iter().filter(|audience| token.contains(audience)).cloned().collect()
}

/// A service account with the object its token is bound to; unknown fields are empty.
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
    /// The account as a user, with the bound object as extras.
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

/// A service account as a user, in the groups of all service accounts and of its namespace.
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
    use std::sync::atomic::{AtomicI64, Ordering};

    #[test]
    fn a_token_is_valid_until_it_expires_and_only_for_its_audience() {
        let seconds = Arc::new(AtomicI64::new(1_000));
        let clock: Clock = {
            let seconds = seconds.clone();
            Arc::new(move || jiff::Timestamp::from_second(seconds.load(Ordering::Relaxed)).expect("in range"))
        };
        let key = TokenKey::generate().expect("a key");
        let tokens = Tokens::new(key.clone(), clock.clone(), None);
        let subject = TokenSubject { namespace: "team-a", name: "runner", uid: "u", bound: None, node: None };
        let (token, end) = tokens.issue(&subject, &[], 600);
        assert_eq!(end.as_second(), 1_600);
        let user = tokens.verify(&token, None).expect("good").user;
        assert_eq!(user.name, "system:serviceaccount:team-a:runner");
        assert!(user.in_group("system:serviceaccounts:team-a"));
        assert!(tokens.verify(&token, Some(&["vault".to_owned()])).is_err());
        assert!(
            Tokens::new(TokenKey::generate().expect("a key"), clock, None).verify(&token, None).is_err(),
            "another key"
        );
        let (signed, signature) = token.rsplit_once('.').expect("three parts");
        let (header, payload) = signed.split_once('.').expect("three parts");
        let claims = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).expect("base64")).expect("text");
        let forged = URL_SAFE_NO_PAD.encode(claims.replace("runner", "admin"));
        assert!(tokens.verify(&format!("{header}.{forged}.{signature}"), None).is_err());
        let public = &key.key_set()["keys"][0];
        assert_eq!((&public["kty"], &public["alg"]), (&json!("EC"), &json!("ES256")));
        let decoded = URL_SAFE_NO_PAD.decode(header).expect("base64");
        assert_eq!(serde_json::from_slice::<Value>(&decoded).expect("JSON")["kid"], public["kid"]);
        seconds.store(1_600, Ordering::Relaxed);
        assert!(tokens.verify(&token, None).expect_err("ended").contains("expired"));
    }
}
