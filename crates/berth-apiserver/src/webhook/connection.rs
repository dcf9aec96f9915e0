//! TLS connections to webhooks and aggregated API servers: which certificate authorities are
//! trusted, and which client certificate is presented.

use std::sync::{Arc, OnceLock};

use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::verifier::{AnyKeyHolder, Verifier};
use crate::Objects;
use crate::pki::Identity;
use berth_kinds::client_config::certificates;

/// The trusted certificate authorities.
pub(crate) enum Trust {
    /// The certificate authorities in a `caBundle`.
    Bundle(Arc<rustls::ClientConfig>),
    /// The certificate authorities of the system.
    System,
}

impl Trust {
    /// Parses a `caBundle`; without one, the system's certificate authorities are used.
    pub(crate) fn new(bundle: Option<&str>) -> Result<Trust, String> {
        let Some(bundle) = bundle.filter(|bundle| !bundle.is_empty()) else { return Ok(Trust::System) };
        tls(trusting(bundle)?, None).map(Trust::Bundle)
    }

    /// The TLS configuration. The system's certificate authorities are loaded at the first call
    /// that needs them. Most conversion webhooks are never called, because all objects are stored
    /// and requested in one version.
    pub(crate) fn config(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        static SYSTEM: OnceLock<Result<Arc<rustls::ClientConfig>, String>> = OnceLock::new();
        match self {
            Trust::Bundle(config) => Ok(config.clone()),
            Trust::System => SYSTEM.get_or_init(|| tls(trusting_system()?, None)).clone(),
        }
    }
}

/// TLS configuration for an aggregated API server, presenting `identity`. Trusts the `caBundle` or,
/// without one, the system's certificate authorities. If `insecure` is set, it trusts any server.
pub(crate) fn authenticated(
    bundle: Option<&str>,
    insecure: bool,
    identity: Option<&Identity>,
) -> Result<Arc<rustls::ClientConfig>, String> {
    let verifier: Arc<dyn ServerCertVerifier> = match bundle.filter(|bundle| !bundle.is_empty()) {
        _ if insecure => Arc::new(AnyKeyHolder::new(provider())),
        Some(bundle) => trusting(bundle)?,
        None => trusting_system()?,
    };
    tls(verifier, identity)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn trusting(bundle: &str) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    let bundle = certificates(bundle)?;
    for certificate in &bundle {
        roots.add(certificate.clone()).map_err(|error| format!("caBundle: {error}"))?;
    }
    Ok(Arc::new(Verifier::new(roots, bundle, provider())?))
}

fn trusting_system() -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(Arc::new(Verifier::new(roots, Vec::new(), provider())?))
}

fn tls(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<&Identity>,
) -> Result<Arc<rustls::ClientConfig>, String> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some(identity) = identity else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes());
    let (certificate, key) = (certificate.map_err(|error| error.to_string())?, key.map_err(|error| error.to_string())?);
    builder.with_client_auth_cert(vec![certificate], key).map(Arc::new).map_err(|error| error.to_string())
}

/// Opens a connection to a server that proves to be `server_name`.
pub(crate) async fn open(
    objects: &Objects,
    host: &str,
    port: u16,
    server_name: String,
    tls: Arc<rustls::ClientConfig>,
) -> Result<TokioIo<TlsStream<TcpStream>>, String> {
    let stream = objects.connect(host, port).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let name = ServerName::try_from(server_name).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    stream.map(TokioIo::new).map_err(|error| error.to_string())
}
