//! Serving certificates: from files, or made for this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Interval of reads of a folder's certificate.
const LOOK: Duration = Duration::from_secs(60);

/// The current certificate, if there is one. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Certificate(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl Certificate {
    /// True if TLS handshakes can succeed.
    pub fn is_there(&self) -> bool {
        self.0.read().is_some()
    }

    /// Replaces the certificate for later handshakes.
    pub fn set(&self, key: CertifiedKey) {
        *self.0.write() = Some(Arc::new(key));
    }

    /// A self-signed certificate of this process, for `localhost`. Clients cannot verify it.
    ///
    /// # Errors
    /// The key cannot be generated.
    pub fn self_signed() -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost", "127.0.0.1", "::1"].map(str::to_owned))?;
        let certificate = Self::default();
        certificate.set(certified(&made.cert.pem(), &made.signing_key.serialize_pem())?);
        Ok(certificate)
    }

    /// The certificate in `tls.crt` and `tls.key` of a folder.
    ///
    /// # Errors
    /// The files cannot be read, or do not belong together.
    pub fn in_folder(folder: &Path) -> anyhow::Result<Self> {
        let certificate = Self::default();
        let [chain, key] = read(folder)?;
        certificate.set(certified(&chain, &key).with_context(|| folder.display().to_string())?);
        Ok(certificate)
    }

    /// Reads the folder's certificate again and again. A certificate that cannot be read is logged,
    /// and the previous one stays.
    pub async fn follow(self, folder: &Path) {
        let mut known = read(folder).ok();
        loop {
            tokio::time::sleep(LOOK).await;
            let changed = read(folder).and_then(|files| {
                if known.as_ref() != Some(&files) {
                    self.set(certified(&files[0], &files[1])?);
                    known = Some(files);
                }
                Ok(())
            });
            if let Err(error) = changed {
                tracing::warn!(folder = %folder.display(), "certificate: {error:#}");
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// `tls.crt` and `tls.key` of a folder.
pub fn read(folder: &Path) -> anyhow::Result<[String; 2]> {
    let text = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    Ok([text("tls.crt")?, text("tls.key")?])
}

/// A certificate chain and its key, from PEM.
pub fn certified(certificate_pem: &str, key_pem: &str) -> anyhow::Result<CertifiedKey> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate_pem.as_bytes()).collect();
    let chain = chain.map_err(|error| anyhow!("tls.crt: {error}"))?;
    if chain.is_empty() {
        return Err(anyhow!("tls.crt: no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).map_err(|error| anyhow!("tls.key: {error}"))?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| anyhow!("tls.key: {error}"))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|error| anyhow!("tls.crt and tls.key: {error}"))?;
    Ok(certified)
}
