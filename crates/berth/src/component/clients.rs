//! Clients that are recognized by their certificates: users of the cluster, and proxies that assert
//! other users in headers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use berth_apiserver::UserInfo;
use berth_apiserver::auth::authn::x509_user;
use berth_apiserver::auth::request_header::RequestHeaders;
use berth_runtime::Clock;
use http::HeaderMap;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::listen::PeerCertificates;

/// Certificate authorities of clients.
#[derive(Clone)]
pub struct ClientAuthority(Arc<dyn ClientCertVerifier>);

impl ClientAuthority {
    /// The authorities of a PEM file.
    ///
    /// # Errors
    /// The text has no certificate, or an invalid one.
    pub fn of(pem: &str) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate.map_err(|error| anyhow!("{error}"))?)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Ok(Self(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?))
    }

    /// The user of a client's certificate; `None` if another authority issued it, or it has
    /// expired.
    pub fn user(&self, shown: &PeerCertificates) -> Option<UserInfo> {
        self.has_issued(shown).then(|| x509_user(shown.0.first()?.as_ref())).flatten()
    }

    fn has_issued(&self, shown: &PeerCertificates) -> bool {
        let Some((leaf, chain)) = shown.0.split_first() else { return false };
        let now = u64::try_from(Clock::system().now().as_second()).unwrap_or_default();
        self.0.verify_client_cert(leaf, chain, UnixTime::since_unix_epoch(Duration::from_secs(now))).is_ok()
    }
}

/// A proxy whose headers are trusted.
pub struct TrustedProxy {
    /// Issuers of its certificate.
    pub clients: ClientAuthority,
    /// Accepted common names of its certificate; every name if empty.
    pub names: Vec<String>,
    /// The headers with the user.
    pub headers: RequestHeaders,
}

impl TrustedProxy {
    /// True if the client is the proxy.
    pub fn is_it(&self, shown: &PeerCertificates) -> bool {
        match self.names.is_empty() {
            true => self.clients.has_issued(shown),
            false => self.clients.user(shown).is_some_and(|user| self.names.contains(&user.name)),
        }
    }

    /// The user that the proxy asserts.
    pub fn user(&self, headers: &HeaderMap) -> Option<UserInfo> {
        let headers = headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        self.headers.user(&headers.collect::<Vec<_>>())
    }
}
