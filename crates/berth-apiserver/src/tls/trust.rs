//! What the listener shows to clients, and whose certificates it believes.
//!
//! In the handshake a client only proves that it has the key of the certificate it shows. Who signed that is looked at
//! afterwards, as kube-apiserver does it: whoever comes with a stranger's certificate, or with one that has ended, is
//! answered 401 instead of being cut off, and a bearer token beside it still counts.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme};

use crate::UserInfo;
use crate::auth::authn::x509_user;
use crate::pki::{Identity, Pki};

/// What a listener shows and whom it believes.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Authorities whose client certificates are believed, PEM, one after the other. One that is itself signed by another
    /// is enough.
    pub client_authorities_pem: String,
    /// What clients are shown: the server's certificate, then those between it and the authority clients know.
    pub serving: Identity,
    /// Shown instead to clients that ask for [`OWN_NAME`].
    pub own: Option<Identity>,
}

/// The name under which the server can be had with a certificate of its own authority, whatever it shows otherwise.
pub const OWN_NAME: &str = "berth-apiserver";

impl Certificates {
    /// Believes and shows what the cluster's own authority signed.
    pub fn of(pki: &Pki, serving: Identity) -> Certificates {
        Certificates { client_authorities_pem: pki.authority_pem().to_owned(), serving, own: None }
    }
}

/// Certificates ready for use.
pub(super) struct Trust {
    /// How connections are opened.
    pub(super) config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// What a connection's client showed.
#[derive(Clone)]
pub(super) enum Shown {
    /// Nothing.
    Nothing,
    /// A certificate that is believed, until it ends (seconds since 1970).
    Believed { user: UserInfo, until: i64 },
    /// One that is not.
    Strange,
}

impl Trust {
    /// The error says what cannot be used.
    pub(super) fn new(certificates: &Certificates) -> Result<Trust, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in
            chain(&certificates.client_authorities_pem).map_err(|e| format!("client authorities: {e}"))?
        {
            roots.add(certificate).map_err(|error| format!("client authorities: {error}"))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| format!("client authorities: {error}"))?;
        let shown = Serving {
            usual: certified(&certificates.serving, &provider)?,
            own: certificates.own.as_ref().map(|own| certified(own, &provider)).transpose()?,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(Arc::new(HasTheKey(verifier.clone())))
            .with_cert_resolver(Arc::new(shown));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Trust { config: Arc::new(config), verifier })
    }

    /// Who a client is that showed these certificates, its own first.
    pub(super) fn client(&self, shown: Option<&[CertificateDer<'_>]>, now: jiff::Timestamp) -> Shown {
        let Some((leaf, between)) = shown.and_then(<[_]>::split_first) else { return Shown::Nothing };
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        if let Err(error) = self.verifier.verify_client_cert(leaf, between, now) {
            tracing::debug!(%error, "client certificate");
            return Shown::Strange;
        }
        match (x509_user(leaf), end(leaf)) {
            (Some(user), Some(until)) => Shown::Believed { user, until },
            // Without a common name it says nothing about who this is.
            _ => Shown::Nothing,
        }
    }
}

fn end(leaf: &[u8]) -> Option<i64> {
    use x509_parser::prelude::FromDer;
    let (_, certificate) = x509_parser::prelude::X509Certificate::from_der(leaf).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err("no certificate (PEM) in it".to_owned()),
        other => other.map_err(|error| error.to_string()),
    }
}

fn certified(identity: &Identity, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    let chain = chain(&identity.certificate_pem).map_err(|error| format!("serving certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes());
    let key = key.map_err(|error| format!("key of the serving certificate: {error}"))?;
    let certified = CertifiedKey::from_der(chain, key, provider);
    certified.map(Arc::new).map_err(|error| format!("serving certificate and its key: {error}"))
}

/// Chooses the certificate to show.
#[derive(Debug)]
struct Serving {
    usual: Arc<CertifiedKey>,
    own: Option<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let own = self.own.as_ref().filter(|_| hello.server_name() == Some(OWN_NAME));
        Some(own.unwrap_or(&self.usual).clone())
    }
}

/// Lets in whoever has the key of the certificate shown, or shows none.
#[derive(Debug)]
struct HasTheKey(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for HasTheKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
