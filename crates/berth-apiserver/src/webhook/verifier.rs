//! Verifies the certificates of webhook servers: by rustls' rules, and also those that only Go's
//! TLS accepts.
//!
//! Many webhooks serve with a self-signed CA certificate (`openssl req -x509`, Go's `httptest`) and
//! use that certificate as caBundle. The rules of web browsers reject a CA certificate as server
//! certificate. Go, and with it Kubernetes, accepts it.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Verifies server certificates against trusted certificate authorities.
#[derive(Debug)]
pub(super) struct Verifier {
    web: Arc<WebPkiServerVerifier>,
    /// The certificates of the caBundle themselves.
    bundle: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// Trusts `roots` and the certificates of `bundle` themselves. The error names the invalid
    /// certificate.
    pub(super) fn new(
        roots: RootCertStore,
        bundle: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Verifier, String> {
        let web = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        Ok(Verifier { web: web.map_err(|error| format!("caBundle: {error}"))?, bundle })
    }

    /// Accepts a certificate that is itself in the bundle, without a signature. Its names and its
    /// validity period must still match.
    fn in_bundle(&self, leaf: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
        if !self.bundle.iter().any(|trusted| trusted == leaf) {
            return Err(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        }
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < parsed.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parsed.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        rustls::client::verify_server_name(&ParsedCertificate::try_from(leaf)?, name)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.web.verify_server_cert(leaf, chain, name, ocsp, now).or_else(|refused| {
            // On failure report rustls' own error, which explains more.
            self.in_bundle(leaf, name, now).map(|()| ServerCertVerified::assertion()).map_err(|_| refused)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.web.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.web.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.web.supported_verify_schemes()
    }
}

/// Accepts any server that has the key of its certificate (`insecureSkipTLSVerify`).
#[derive(Debug)]
pub(super) struct AnyKeyHolder(Arc<CryptoProvider>);

impl AnyKeyHolder {
    pub(super) fn new(provider: Arc<CryptoProvider>) -> AnyKeyHolder {
        AnyKeyHolder(provider)
    }
}

impl ServerCertVerifier for AnyKeyHolder {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn a_ca_certificate_may_serve_if_it_is_itself_in_the_bundle() {
        let authority = |name: &str| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_before = rcgen::date_time_ymd(2026, 1, 1);
            params.not_after = rcgen::date_time_ymd(2027, 1, 1);
            let key = KeyPair::generate().expect("a key");
            params.self_signed(&key).expect("a certificate").der().clone()
        };
        let (own, other) = (authority("hook.team.svc"), authority("hook.team.svc"));
        let mut roots = RootCertStore::empty();
        roots.add(own.clone()).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trust = Verifier::new(roots, vec![own.clone()], provider).expect("usable");
        let verify = |leaf: &CertificateDer<'_>, name: &str, seconds: u64| {
            let name = ServerName::try_from(name.to_owned()).expect("a name");
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
            trust.verify_server_cert(leaf, &[], &name, &[], now).is_ok()
        };
        // Mid 2026, and after the certificate expires.
        let (now, late) = (1_783_000_000, 1_900_000_000);
        assert!(verify(&own, "hook.team.svc", now));
        assert!(!verify(&own, "other.team.svc", now), "another name");
        assert!(!verify(&own, "hook.team.svc", late), "it has expired");
        assert!(!verify(&other, "hook.team.svc", now), "another authority of that name");
    }
}
