//! The certificates of one embedded cluster: a certificate authority that lasts as long as the data
//! folder, the serving and client certificates that it signs at each start, and a separate
//! certificate authority for the client certificate that the server presents to aggregated API
//! servers.
//!
//! Only the certificate authorities and the key of service account tokens are stored on disk (mode
//! 0600, written atomically). Serving and client certificates are signed again at each start. That
//! costs a millisecond, and none of them has to be renewed. Certificates of earlier starts remain
//! valid until they expire, because the authority remains. All keys are on the elliptic curve
//! P-256.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::auth::tokens::TokenKey;

/// Validity of a certificate authority in years.
const AUTHORITY_YEARS: i16 = 10;
/// Validity of a serving or client certificate in years.
const LEAF_YEARS: i16 = 1;
/// Names in every serving certificate: those by which clients on this machine and inside a cluster
/// address the API server.
const SERVING_NAMES: [&str; 8] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    // The cluster IP of the Service `kubernetes`, which pods are given.
    "10.96.0.1",
    "127.0.0.1",
    "::1",
];

/// Why certificates could not be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A stored file is invalid.
    #[error(
        "{path} is not a valid {what}: restore it, or move it away so that a new one is created (clients then need the \
         new kubeconfig)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Expected content, such as `private key`.
        what: &'static str,
    },
    /// The certificate of a certificate authority exists without its key.
    #[error(
        "{path} exists without {missing}: restore {missing}, or move {path} away so that a new certificate \
         authority is created (clients then need the new kubeconfig)"
    )]
    Half {
        /// The existing file.
        path: PathBuf,
        /// The missing file.
        missing: PathBuf,
    },
    /// The certificate of a certificate authority has another key.
    #[error(
        "{certificate} is not the certificate of {key}: restore files that match, or move both away so that a new certificate \
         authority is created (clients then need the new kubeconfig)"
    )]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// Key generation or signing failed.
    #[error("creating a certificate or key for {subject}: {source}")]
    Generate {
        /// Subject of the certificate.
        subject: String,
        /// The cause.
        source: rcgen::Error,
    },
}

/// A certificate with its private key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key, PKCS#8.
    pub key_pem: String,
}

/// Omits the private key: keys must not appear in logs.
impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Identity").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

/// Common name of the client certificate that the server presents to aggregated API servers.
pub const FRONT_PROXY_NAME: &str = "front-proxy-client";

/// Client certificate with which this server may name the user of a request to aggregated API
/// servers.
#[derive(Clone, Debug)]
pub struct FrontProxy {
    /// The client certificate and its key.
    pub identity: Identity,
    /// PEM certificate of the certificate authority that signed it. That authority signs nothing
    /// else, so that no client of the cluster can impersonate another user towards aggregated API
    /// servers.
    pub authority_pem: String,
    /// PEM certificate of the certificate authority that signs the client certificates of users.
    pub client_authority_pem: String,
}

/// The certificate authorities of one cluster and the key of its service account tokens.
pub struct Pki {
    clients: Authority,
    front_proxy: Authority,
    token_key: TokenKey,
    today: jiff::civil::Date,
}

/// A certificate authority with its key.
struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str, today: jiff::civil::Date) -> Result<Authority, PkiError> {
        let (certificate_pem, key) = new_authority(name, today)?;
        Ok(Authority { certificate_pem, issuer: issuer(name, key) })
    }

    /// The certificate authority stored in `FILE.crt` and `FILE.key` of a directory. It is created
    /// if it is missing or expires within 30 days. Files that an interrupted start left incomplete
    /// are completed.
    fn load_or_create(directory: &Path, file: &str, name: &str, now: jiff::Timestamp) -> Result<Authority, PkiError> {
        let certificate_path = directory.join(format!("{file}.crt"));
        let key_path = directory.join(format!("{file}.key"));
        match (read_if_present(&certificate_path)?, read_if_present(&key_path)?) {
            (Some(certificate_pem), Some(key_pem)) => {
                let key = KeyPair::from_pem(&key_pem)
                    .map_err(|_| PkiError::Damaged { path: key_path.clone(), what: "private key" })?;
                let (mut end, public_key) = end_and_key(&certificate_pem)
                    .ok_or_else(|| PkiError::Damaged { path: certificate_path.clone(), what: "certificate" })?;
                let mut certificate_pem = certificate_pem;
                if public_key != key.public_key_raw() {
                    // A renewal was interrupted between its two renames: the certificate of the
                    // new key is still in the temporary file.
                    let staged = temporary_path(&certificate_path);
                    let pem = read_if_present(&staged)?.unwrap_or_default();
                    match end_and_key(&pem) {
                        Some((its_end, its_key)) if its_key == key.public_key_raw() => {
                            fs::rename(&staged, &certificate_path)
                                .map_err(|source| PkiError::File { path: certificate_path.clone(), source })?;
                            (end, certificate_pem) = (its_end, pem);
                        }
                        _ => return Err(PkiError::Mismatch { certificate: certificate_path, key: key_path }),
                    }
                }
                if end > now + jiff::SignedDuration::from_hours(24 * 30) {
                    return Ok(Authority { certificate_pem, issuer: issuer(name, key) });
                }
            }
            (Some(_), None) => return Err(PkiError::Half { path: certificate_path, missing: key_path }),
            (None, Some(key_pem)) => {
                // The first start was interrupted. Clients with an earlier certificate of this key
                // still trust what it signs.
                let key = KeyPair::from_pem(&key_pem)
                    .map_err(|_| PkiError::Damaged { path: key_path, what: "private key" })?;
                let certificate_pem = authority_certificate(name, date(now), &key)?;
                write_private(&certificate_path, certificate_pem.as_bytes())?;
                return Ok(Authority { certificate_pem, issuer: issuer(name, key) });
            }
            (None, None) => {}
        }
        let (certificate_pem, key) = new_authority(name, date(now))?;
        // Both files are written before either is renamed, so that the next start can complete an
        // interrupted renewal.
        let staged_key = stage(&key_path, key.serialize_pem().as_bytes())?;
        let staged = stage(&certificate_path, certificate_pem.as_bytes()).inspect_err(|_| {
            let _ = fs::remove_file(&staged_key);
        })?;
        put(&staged_key, &key_path).inspect_err(|_| {
            let _ = fs::remove_file(&staged);
        })?;
        // If this fails, the temporary file must remain: it has the certificate of the new key.
        fs::rename(&staged, &certificate_path)
            .map_err(|source| PkiError::File { path: certificate_path.clone(), source })?;
        Ok(Authority { certificate_pem, issuer: issuer(name, key) })
    }

    fn sign(&self, params: CertificateParams, subject: &str) -> Result<Identity, PkiError> {
        let failed = |source| PkiError::Generate { subject: subject.to_owned(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Ok(Identity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }
}

/// Common names of the certificate authorities.
const CLIENTS: &str = "berth-ca";
const FRONT_PROXY: &str = "berth-front-proxy-ca";

impl Pki {
    /// Certificate authorities and keys that are only in memory.
    ///
    /// `now` is the real time, because clients check certificates against their own clocks. The
    /// clock of an embedded cluster may run faster.
    pub fn ephemeral(now: jiff::Timestamp) -> Result<Pki, PkiError> {
        let (_, token_key) = new_token_key()?;
        let today = date(now);
        let (clients, front_proxy) = (Authority::new(CLIENTS, today)?, Authority::new(FRONT_PROXY, today)?);
        Ok(Pki { clients, front_proxy, token_key, today })
    }

    /// The certificate authorities and keys stored in `directory`. On first use, they and the
    /// directory are created. `now` as in [`Pki::ephemeral`].
    ///
    /// Fails when files cannot be read or written, or are invalid. A certificate authority that
    /// expires within 30 days is replaced. Clients then need a new kubeconfig.
    pub fn load_or_create(directory: &Path, now: jiff::Timestamp) -> Result<Pki, PkiError> {
        create_private_directory(directory)?;
        let clients = Authority::load_or_create(directory, "ca", CLIENTS, now)?;
        let front_proxy = Authority::load_or_create(directory, "front-proxy-ca", FRONT_PROXY, now)?;
        let token_path = directory.join("sa.key");
        let token_key = match read_if_present(&token_path)? {
            Some(pem) => {
                let document = KeyPair::from_pem(&pem).ok().map(|pair| pair.serialize_der());
                let key = document.and_then(|document| TokenKey::from_pkcs8(&document));
                key.ok_or(PkiError::Damaged { path: token_path, what: "token key" })?
            }
            None => {
                let (pem, key) = new_token_key()?;
                write_private(&token_path, pem.as_bytes())?;
                key
            }
        };
        Ok(Pki { clients, front_proxy, token_key, today: date(now) })
    }

    /// PEM certificate of the certificate authority that clients trust.
    pub fn authority_pem(&self) -> &str {
        &self.clients.certificate_pem
    }

    /// The key that signs service account tokens.
    pub fn token_key(&self) -> &TokenKey {
        &self.token_key
    }

    /// A serving certificate for loopback names, in-cluster names and `extra_names` (host names or
    /// IP addresses).
    pub fn serving(&self, extra_names: &[String]) -> Result<Identity, PkiError> {
        let mut params = leaf(self.today, "berth-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
        let extra = extra_names.iter().map(String::as_str);
        for name in SERVING_NAMES.into_iter().chain(extra) {
            let san = match name.parse::<IpAddr>() {
                // A server may listen at the unspecified address, but no client connects to it.
                Ok(address) if address.is_unspecified() => continue,
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(
                    name.try_into().map_err(|source| PkiError::Generate { subject: name.to_owned(), source })?,
                ),
            };
            if !params.subject_alt_names.contains(&san) {
                params.subject_alt_names.push(san);
            }
        }
        self.clients.sign(params, "berth-apiserver")
    }

    /// A client certificate that authenticates as `user`, a member of `group`.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        self.clients.sign(leaf(self.today, user, group, ExtendedKeyUsagePurpose::ClientAuth), user)
    }

    /// The client certificate that the server presents to aggregated API servers.
    pub fn front_proxy(&self) -> Result<FrontProxy, PkiError> {
        let params = leaf(self.today, FRONT_PROXY_NAME, None, ExtendedKeyUsagePurpose::ClientAuth);
        Ok(FrontProxy {
            identity: self.front_proxy.sign(params, FRONT_PROXY_NAME)?,
            authority_pem: self.front_proxy.certificate_pem.clone(),
            client_authority_pem: self.clients.certificate_pem.clone(),
        })
    }
}

/// Certificate parameters of a certificate authority without its dates. A stored authority needs no
/// other parameters to sign.
fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn issuer(name: &str, key: KeyPair) -> Issuer<'static, KeyPair> {
    Issuer::new(authority(name), key)
}

fn new_authority(name: &str, today: jiff::civil::Date) -> Result<(String, KeyPair), PkiError> {
    let key = KeyPair::generate().map_err(|source| PkiError::Generate { subject: name.to_owned(), source })?;
    Ok((authority_certificate(name, today, &key)?, key))
}

/// The self-signed certificate of a certificate authority with this key.
fn authority_certificate(name: &str, today: jiff::civil::Date, key: &KeyPair) -> Result<String, PkiError> {
    let mut params = authority(name);
    set_validity(&mut params, today, AUTHORITY_YEARS);
    let certificate = params.self_signed(key);
    certificate.map(|it| it.pem()).map_err(|source| PkiError::Generate { subject: name.to_owned(), source })
}

fn leaf(
    today: jiff::civil::Date,
    name: &str,
    group: Option<&str>,
    usage: ExtendedKeyUsagePurpose,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, today, LEAF_YEARS);
    params
}

/// Sets the validity: from yesterday, because clocks differ, until `years` after today.
fn set_validity(params: &mut CertificateParams, today: jiff::civil::Date, years: i16) {
    let date = |day: jiff::civil::Date| {
        date_time_ymd(i32::from(day.year()), day.month().unsigned_abs(), day.day().unsigned_abs())
    };
    params.not_before = date(today.yesterday().unwrap_or(today));
    params.not_after = date(today.checked_add(jiff::Span::new().years(years)).unwrap_or(jiff::civil::Date::MAX));
}

fn date(now: jiff::Timestamp) -> jiff::civil::Date {
    now.to_zoned(jiff::tz::TimeZone::UTC).date()
}

/// When a certificate expires, and its public key.
pub(crate) fn end_and_key(certificate_pem: &str) -> Option<(jiff::Timestamp, Vec<u8>)> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate_pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let end = jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
    Some((end, certificate.public_key().subject_public_key.data.to_vec()))
}

/// A new key for tokens: as PEM for the file, and parsed.
fn new_token_key() -> Result<(String, TokenKey), PkiError> {
    let failed = |source| PkiError::Generate { subject: "service-account tokens".to_owned(), source };
    let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let key = TokenKey::from_pkcs8(&pair.serialize_der()).ok_or(rcgen::Error::CouldNotParseKeyPair).map_err(failed)?;
    Ok((pair.serialize_pem(), key))
}

fn read_if_present(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { path: path.to_owned(), source }),
    }
}

fn create_private_directory(path: &Path) -> Result<(), PkiError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(|source| PkiError::File { path: path.to_owned(), source })
}

/// Writes a file that only its owner can read. It is written to a temporary file and renamed, so
/// that a crash leaves either the old or the new content.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    put(&stage(path, content)?, path)
}

/// Path of the temporary file in which the new content of a file is written.
fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Writes the new content of a file to its temporary file, which only its owner can read. Returns
/// the path of the temporary file.
fn stage(path: &Path, content: &[u8]) -> Result<PathBuf, PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    let temporary = temporary_path(path);
    // A temporary file left by a crash may have other permissions: never write a secret into it.
    match fs::remove_file(&temporary) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(failed(source)),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary).map_err(failed)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.map_err(|source| {
        // A partial file is useless, and takes space on a full disk.
        let _ = fs::remove_file(&temporary);
        failed(source)
    })?;
    Ok(temporary)
}

/// Renames a temporary file to its final path, or deletes it if that fails.
fn put(temporary: &Path, path: &Path) -> Result<(), PkiError> {
    fs::rename(temporary, path).map_err(|source| {
        let _ = fs::remove_file(temporary);
        PkiError::File { path: path.to_owned(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> jiff::Timestamp {
        "2026-03-01T12:00:00Z".parse().expect("a timestamp")
    }

    #[test]
    fn the_authority_survives_a_restart_and_its_files_are_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pki");
        let first = Pki::load_or_create(&path, now()).expect("made");
        let second = Pki::load_or_create(&path, now()).expect("loaded");
        assert_eq!(first.authority_pem(), second.authority_pem());
        assert_eq!(first.token_key().key_set(), second.token_key().key_set());
        #[cfg(unix)]
        for file in ["ca.key", "ca.crt", "front-proxy-ca.key", "front-proxy-ca.crt", "sa.key"] {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(path.join(file)).expect("present").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn an_expiring_authority_is_replaced_and_a_damaged_authority_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = Pki::load_or_create(directory.path(), now()).expect("made");
        let late = now() + jiff::SignedDuration::from_hours(24 * 365 * 10);
        let second = Pki::load_or_create(directory.path(), late).expect("replaced");
        assert_ne!(first.authority_pem(), second.authority_pem());
        fs::write(directory.path().join("ca.key"), "nonsense").expect("written");
        let error = Pki::load_or_create(directory.path(), now()).err().expect("rejected").to_string();
        assert!(error.contains("ca.key is not a valid private key"), "{error}");
    }

    #[test]
    fn an_authority_without_its_key_or_with_another_key_is_rejected() {
        let (directory, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let pki = Pki::load_or_create(directory.path(), now()).expect("made");
        Pki::load_or_create(other.path(), now()).expect("made");
        let rejected = || Pki::load_or_create(directory.path(), now()).err().expect("rejected").to_string();
        for (gone, left) in [("ca.key", "ca.crt"), ("front-proxy-ca.key", "front-proxy-ca.crt")] {
            let file = directory.path().join(gone);
            fs::rename(&file, directory.path().join("away")).expect("renamed");
            let error = rejected();
            assert!(error.contains(&format!("{left} exists without ")) && error.contains(gone), "{error}");
            fs::rename(directory.path().join("away"), &file).expect("renamed");
        }
        fs::copy(directory.path().join("ca.key"), directory.path().join("kept")).expect("copied");
        fs::copy(other.path().join("ca.key"), directory.path().join("ca.key")).expect("copied");
        let error = rejected();
        assert!(error.contains("ca.crt is not the certificate of ") && error.contains("ca.key: "), "{error}");
        fs::rename(directory.path().join("kept"), directory.path().join("ca.key")).expect("renamed");
        let again = Pki::load_or_create(directory.path(), now()).expect("loaded");
        assert_eq!(again.authority_pem(), pki.authority_pem());
    }

    #[test]
    fn an_interrupted_start_is_completed_by_the_next_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let first = Pki::load_or_create(directory.path(), now()).expect("made");
        let old = fs::read(file("ca.crt")).expect("present");
        // The first start was interrupted after it wrote the key.
        fs::remove_file(file("ca.crt")).expect("removed");
        let second = Pki::load_or_create(directory.path(), now()).expect("a certificate for the key");
        assert_eq!(end_and_key(second.authority_pem()), end_and_key(first.authority_pem()));
        let third = Pki::load_or_create(directory.path(), now()).expect("loaded");
        assert_eq!(third.authority_pem(), second.authority_pem());
        // A renewal was interrupted after it renamed the key, and before it renamed the
        // certificate.
        let late = now() + jiff::SignedDuration::from_hours(24 * 365 * 10);
        let renewed = Pki::load_or_create(directory.path(), late).expect("renewed");
        assert!(!file("ca.key.new").exists() && !file("ca.crt.new").exists());
        fs::rename(file("ca.crt"), file("ca.crt.new")).expect("renamed");
        fs::write(file("ca.crt"), &old).expect("written");
        let completed = Pki::load_or_create(directory.path(), late).expect("completed");
        assert_eq!(completed.authority_pem(), renewed.authority_pem());
        assert_eq!(fs::read_to_string(file("ca.crt")).expect("present"), renewed.authority_pem());
        // A temporary file with the certificate of another key is not used.
        fs::write(file("ca.crt"), &old).expect("written");
        fs::write(file("ca.crt.new"), &old).expect("written");
        let error = Pki::load_or_create(directory.path(), late).err().expect("rejected").to_string();
        assert!(error.contains("is not the certificate of"), "{error}");
    }

    #[test]
    fn a_failed_write_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().expect("a directory");
        // A directory at this path makes the rename fail.
        let path = directory.path().join("kubeconfig");
        fs::create_dir(&path).expect("made");
        assert!(write_private(&path, b"text").is_err());
        let left: Vec<_> = fs::read_dir(directory.path()).expect("read").map(|it| it.expect("read").path()).collect();
        assert_eq!(left, [path]);
    }
}
