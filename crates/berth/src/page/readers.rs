//! The reader of a request, and a client of the API server with that reader's rights.
//!
//! A bearer token is passed on to the API server, which authenticates it at each request. A user
//! with a client certificate, or one that a trusted proxy asserts, is impersonated: the API server
//! checks at each request what that user may do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_apiserver::UserInfo;
use http::{HeaderMap, Request, header};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::config::AuthInfo;
use kube::{Api, Client, Config};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::sessions::{Identity, Sessions};
use crate::component::clients::{ClientAuthority, TrustedProxy};
use crate::component::connect;
use crate::component::listen::PeerCertificates;

/// Time for which the client of a reader is cached after the last request.
const CACHED: Duration = Duration::from_secs(600);
/// Maximum number of cached clients.
const CLIENTS_MAX: usize = 256;

/// The clients that may read the pages, and how they are authenticated.
#[derive(Clone)]
pub enum Access {
    /// Every client that reaches the address reads with this client.
    Everyone(Client),
    /// Clients are authenticated.
    Readers(Arc<Readers>),
}

/// How readers are recognized.
pub struct Readers {
    /// The API server, without credentials.
    pub cluster: Config,
    /// The owner of this process: the client, and the secret in the printed address.
    pub owner: Option<(Client, String)>,
    /// The configuration of the client that may impersonate users.
    pub impersonator: Option<Config>,
    /// Issuers of the certificates of the cluster's users.
    pub users: RwLock<Option<ClientAuthority>>,
    /// A proxy that asserts users in headers.
    pub proxy: Option<TrustedProxy>,
    /// Sessions of browsers.
    pub sessions: Sessions,
    /// Clients that were used recently.
    pub clients: Clients,
}

/// Clients by reader, each with the end of the time for which it is cached.
#[derive(Default)]
pub struct Clients(Mutex<BTreeMap<String, (Instant, Client)>>);

/// The reader of a request.
#[derive(Clone)]
pub struct Reader {
    /// Reads with the reader's rights.
    pub client: Client,
    /// Name of the user, if it is known.
    pub user: Option<String>,
    /// True if the reader has a session.
    pub has_session: bool,
}

/// Why a request has no reader.
#[derive(Debug)]
pub enum Unknown {
    /// It has no credentials.
    Anonymous,
    /// There is no client for the credentials.
    Failed(anyhow::Error),
}

impl Readers {
    /// The reader of a request.
    pub fn of<B>(&self, request: &Request<B>) -> Result<Reader, Unknown> {
        if let Some(token) = bearer(request.headers()) {
            let client = self.of_token(&token).map_err(Unknown::Failed)?;
            return Ok(Reader { client, user: None, has_session: false });
        }
        if let Some((identity, user)) = self.sessions.of(request.headers()) {
            let client = match (identity, &self.owner) {
                (Identity::Token(token), _) => self.of_token(&token).map_err(Unknown::Failed)?,
                (Identity::Owner, Some((client, _))) => client.clone(),
                (Identity::Owner, None) => return Err(Unknown::Anonymous),
            };
            return Ok(Reader { client, user: Some(user), has_session: true });
        }
        let Some(user) = request.extensions().get::<PeerCertificates>().and_then(|it| self.certified(it, request))
        else {
            return Err(Unknown::Anonymous);
        };
        let client = self.of_user(&user).map_err(Unknown::Failed)?;
        Ok(Reader { client, user: Some(user.name), has_session: false })
    }

    /// The user of a client certificate, or the user that the trusted proxy asserts.
    fn certified<B>(&self, shown: &PeerCertificates, request: &Request<B>) -> Option<UserInfo> {
        self.impersonator.as_ref()?;
        if let Some(proxy) = self.proxy.as_ref().filter(|proxy| proxy.is_it(shown)) {
            return proxy.user(request.headers());
        }
        self.users.read().as_ref()?.user(shown)
    }

    /// A client with a token.
    pub fn of_token(&self, token: &str) -> anyhow::Result<Client> {
        self.clients.get(&format!("token {token}"), || {
            let mut config = self.cluster.clone();
            config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
            connect::asking(config)
        })
    }

    fn of_user(&self, user: &UserInfo) -> anyhow::Result<Client> {
        self.clients.get(&format!("user {user:?}"), || {
            let mut config = self.impersonator.clone().unwrap_or_else(|| self.cluster.clone());
            let auth = &mut config.auth_info;
            auth.impersonate = Some(user.name.clone());
            // UID and extra attributes would need further rights to impersonate, and RBAC ignores
            // them.
            auth.impersonate_groups = Some(user.groups.clone()).filter(|groups| !groups.is_empty());
            connect::asking(config)
        })
    }

    /// The name of a token's user.
    pub async fn name(&self, token: &str) -> anyhow::Result<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.of_token(token)?);
        let review = api.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
        let user = review.status.and_then(|status| status.user_info);
        Ok(user.and_then(|user| user.username).unwrap_or_default())
    }
}

impl Clients {
    fn get(&self, key: &str, make: impl FnOnce() -> anyhow::Result<Client>) -> anyhow::Result<Client> {
        let now = Instant::now();
        let mut known = self.0.lock();
        known.retain(|_, (until, _)| *until > now);
        if let Some((until, client)) = known.get_mut(key) {
            *until = now + CACHED;
            return Ok(client.clone());
        }
        let client = make()?;
        // Without room, the next request makes a new client.
        if known.len() < CLIENTS_MAX {
            known.insert(key.to_owned(), (now + CACHED, client.clone()));
        }
        Ok(client)
    }
}

/// The token of header `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}
