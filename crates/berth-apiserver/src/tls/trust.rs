//! The listener's serving certificates, and verification of client certificates.
//!
//! In the handshake a client only proves that it has the key of its certificate. Its issuer is
//! verified afterwards, as in kube-apiserver: a client with an untrusted or expired certificate
//! gets a 401 instead of a closed connection. A bearer token in the same request is still accepted.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme};

use crate::UserInfo;
use crate::auth::authn::x509_user;
use crate::pki::{Identity, Pki};

/// The serving certificates of a listener, and the certificate authorities that it trusts.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Trusted certificate authorities of client certificates, as concatenated PEM certificates. An
    /// intermediate authority is trusted without its root.
    pub client_authorities_pem: String,
    /// Serving certificate, followed by any intermediates.
    pub serving: Identity,
    /// Serving certificate for clients that request the server name [`OWN_NAME`].
    pub own: Option<Identity>,
}

/// Server name (SNI) for which the server always presents a certificate of its own certificate
/// authority.
pub const OWN_NAME: &str = "berth-apiserver";

impl Certificates {
    /// Trusts the cluster's own certificate authority for clients, and serves with `serving`.
    pub fn of(pki: &Pki, serving: Identity) -> Certificates {
        Certificates { client_authorities_pem: pki.authority_pem().to_owned(), serving, own: None }
    }
}

/// TLS configuration and client verifier made from [`Certificates`].
pub(super) struct Trust {
    /// TLS configuration of new connections.
    pub(super) config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The client certificate of a connection.
#[derive(Clone)]
pub(super) enum ClientCertificate {
    /// No certificate, or a certificate without a user name.
    Absent,
    /// A trusted certificate, with its expiry (seconds since 1970).
    Trusted { user: UserInfo, until: i64 },
    /// An untrusted or expired certificate.
    Untrusted,
}

impl Trust {
    /// Builds the TLS configuration. The error names the unusable certificate or key.
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
        let serving = ServingKeys {
            usual: certified(&certificates.serving, &provider)?,
            own: certificates.own.as_ref().map(|own| certified(own, &provider)).transpose()?,
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(Arc::new(ProofOfKey(verifier.clone())))
            .with_cert_resolver(Arc::new(serving));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Trust { config: Arc::new(config), verifier })
    }

    /// Verifies the certificate chain of a client, which begins with the client's own certificate.
    pub(super) fn client(&self, chain: Option<&[CertificateDer<'_>]>, now: jiff::Timestamp) -> ClientCertificate {
        let Some((leaf, intermediates)) = chain.and_then(<[_]>::split_first) else {
            return ClientCertificate::Absent;
        };
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        if let Err(error) = self.verifier.verify_client_cert(leaf, intermediates, now) {
            tracing::debug!(%error, "untrusted client certificate");
            return ClientCertificate::Untrusted;
        }
        match (x509_user(leaf), expiry(leaf)) {
            (Some(user), Some(until)) => ClientCertificate::Trusted { user, until },
            // A certificate without a common name does not identify a user.
            _ => ClientCertificate::Absent,
        }
    }
}

/// Expiry of a certificate, in seconds since 1970.
fn expiry(leaf: &[u8]) -> Option<i64> {
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

/// Chooses the serving certificate by the requested server name.
#[derive(Debug)]
struct ServingKeys {
    usual: Arc<CertifiedKey>,
    own: Option<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ServingKeys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let own = self.own.as_ref().filter(|_| hello.server_name() == Some(OWN_NAME));
        Some(own.unwrap_or(&self.usual).clone())
    }
}

/// Accepts clients without a certificate, and clients that prove that they have the key of their
/// certificate.
#[derive(Debug)]
struct ProofOfKey(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ProofOfKey {
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
        accept_unparsable(self.0.verify_tls12_signature(message, certificate, signature), certificate)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        accept_unparsable(self.0.verify_tls13_signature(message, certificate, signature), certificate)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Accepts the handshake if the signature is valid, or if the certificate cannot be parsed (X.509
/// version 1, for example), so that the signature cannot be verified. [`Trust::client`] cannot
/// parse such a certificate either, so it authenticates no user, regardless of its issuer. The
/// client gets an error response instead of a closed connection.
fn accept_unparsable(
    verified: Result<HandshakeSignatureValid, Error>,
    certificate: &CertificateDer<'_>,
) -> Result<HandshakeSignatureValid, Error> {
    match verified {
        Err(Error::InvalidCertificate(_)) if ParsedCertificate::try_from(certificate).is_err() => {
            Ok(HandshakeSignatureValid::assertion())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rustls::client::ResolvesClientCert;
    use rustls::time_provider::TimeProvider;
    use rustls::{ClientConfig, ClientConnection, ServerConnection};

    use super::*;

    /// A certificate of X.509 version 1, which webpki cannot parse.
    const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBGTCBvwIUC3Fu/fLW/mopYXh6DaNBFKgCE7QwCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTEyMzAwMzk0M1oYDzIxMjYxMDMwMDAzOTQzWjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATS3z/Manx1zfGg
gWnsJG+KeQ+h7H33sHLgcBrIeLqijNo+9/KV4VLFATkHWeoJ3i0c6bP01Kcbhib5
fgn0RaUtMAoGCCqGSM49BAMCA0kAMEYCIQDQNlpiK+c5vEZ6rQlUbhqk5Rj57mhq
5xJRCHQsADG2DgIhAKkXOtDzi5p55AYz0jBLKseZh9WtbKa7zs1ypyO1zsK8
-----END CERTIFICATE-----
";

    #[derive(Debug)]
    struct FixedKey(Arc<CertifiedKey>);

    impl ResolvesClientCert for FixedKey {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// A fixed time in the past. By the system's clock, certificates of that time have expired;
    /// this must not matter.
    fn now() -> jiff::Timestamp {
        "2020-02-03T12:00:00Z".parse().expect("a timestamp")
    }

    /// The clock of the client, which always returns [`now`].
    #[derive(Debug)]
    struct FixedTime;

    impl TimeProvider for FixedTime {
        fn current_time(&self) -> Option<UnixTime> {
            let seconds = u64::try_from(now().as_second()).ok()?;
            Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
        }
    }

    /// The server's classification of a client that presents this certificate and signs with this
    /// key. An error means that the handshake failed.
    fn verify(certificate_pem: &str, key_pem: &str, pki: &Pki) -> Result<ClientCertificate, Error> {
        let serving = pki.serving(&[]).expect("signed");
        let trust = Trust::new(&Certificates::of(pki, serving)).expect("usable");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for root in chain(pki.authority_pem()).expect("certificates") {
            roots.add(root).expect("an authority");
        }
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).expect("a key");
        let key = provider.key_provider.load_private_key(key).expect("a usable key");
        let fixed_key = FixedKey(Arc::new(CertifiedKey::new(chain(certificate_pem).expect("certificates"), key)));
        let config = ClientConfig::builder_with_details(provider, Arc::new(FixedTime))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(fixed_key));
        let name = "localhost".try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut server = ServerConnection::new(trust.config.clone()).expect("a server");
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).expect("memory");
            }
            server.read_tls(&mut sent.as_slice()).expect("memory");
            server.process_new_packets()?;
            let mut sent = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut sent).expect("memory");
            }
            client.read_tls(&mut sent.as_slice()).expect("memory");
            client.process_new_packets()?;
        }
        Ok(trust.client(server.peer_certificates(), now()))
    }

    #[test]
    fn an_unreadable_client_certificate_is_untrusted_but_does_not_close_the_connection() {
        let pki = Pki::ephemeral(now()).expect("made");
        let (own, other) = (pki.client("jane", None).expect("signed"), pki.client("joe", None).expect("signed"));
        assert!(matches!(verify(VERSION_1, &other.key_pem, &pki), Ok(ClientCertificate::Untrusted)));
        // A certificate that can be parsed requires a signature of its own key.
        let trusted = verify(&own.certificate_pem, &own.key_pem, &pki);
        assert!(matches!(trusted, Ok(ClientCertificate::Trusted { .. })));
        assert!(verify(&own.certificate_pem, &other.key_pem, &pki).is_err());
    }
}
