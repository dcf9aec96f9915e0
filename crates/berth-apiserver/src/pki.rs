//! The certificates of one embedded cluster: a certificate authority that lives as long as its data directory, the
//! serving and client certificates it signs at each start, and an authority of its own for what the server shows to
//! aggregated API servers.
//!
//! Only the authorities and the key of service-account tokens are kept on disk (mode 0600, written whole or not at all).
//! Everything else is signed anew, which costs a millisecond and leaves nothing to expire or to renew; certificates
//! handed out earlier stay valid until their own end because the authority stays. Elliptic curves (P-256) throughout.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::auth::tokens::TokenKey;

/// Years a certificate authority is valid.
const AUTHORITY_YEARS: i16 = 10;
/// Years a serving or client certificate is valid.
const LEAF_YEARS: i16 = 1;
/// Names a serving certificate always has: what clients on this machine and inside a cluster call the API server.
const SERVING_NAMES: [&str; 7] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "::1",
];

/// Why certificates could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A kept file does not hold what it should.
    #[error("{path}: not a usable {what}; move it away to have a new one made (clients then need the new kubeconfig)")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was expected in it.
        what: &'static str,
    },
    /// An authority's certificate exists without its key.
    #[error(
        "{path} is there, but not {missing}: put that back, or move {path} away to have a new authority made (clients \
         then need the new kubeconfig)"
    )]
    Half {
        /// The existing file.
        path: PathBuf,
        /// The missing file.
        missing: PathBuf,
    },
    /// An authority's certificate is of another key.
    #[error(
        "{certificate} and {key} do not belong together: put back those that do, or move both away to have a new \
         authority made (clients then need the new kubeconfig)"
    )]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// Key generation or signing failed.
    #[error("making a certificate for {subject}: {source}")]
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

/// Keys must not appear in logs.
impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Identity").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

/// Common name of the certificate the server shows to aggregated API servers.
pub const FRONT_PROXY_NAME: &str = "front-proxy-client";

/// Client certificate with which this server may name the user of a request to aggregated API
/// servers.
#[derive(Clone, Debug)]
pub struct FrontProxy {
    /// The certificate the server shows them.
    pub identity: Identity,
    /// The authority behind it, PEM. It signs nothing else, so that no client of the cluster can speak for another one.
    pub authority_pem: String,
    /// The authority behind clients' own certificates, PEM.
    pub client_authority_pem: String,
}

/// The certificate authorities of one cluster and the secrets that live beside them.
pub struct Pki {
    clients: Authority,
    front_proxy: Authority,
    token_key: TokenKey,
    today: jiff::civil::Date,
}

/// An authority that can sign.
struct Authority {
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str, today: jiff::civil::Date) -> Result<Authority, PkiError> {
        let (certificate_pem, key) = new_authority(name, today)?;
        Ok(Authority { certificate_pem, issuer: issuer(name, key) })
    }

    /// The authority kept in `FILE.crt` and `FILE.key` of a directory; made when there is none that lasts a month. What
    /// an earlier start that was cut short has left undone is done first.
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
                    // A renewal cut short between its two renames: the certificate of the new key is beside the old one.
                    let staged = neighbour(&certificate_path);
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
        // Both are on disk before either is in its place, so that what comes between can be put right at the next start.
        let staged_key = stage(&key_path, key.serialize_pem().as_bytes())?;
        let staged = stage(&certificate_path, certificate_pem.as_bytes()).inspect_err(|_| {
            let _ = fs::remove_file(&staged_key);
        })?;
        put(&staged_key, &key_path).inspect_err(|_| {
            let _ = fs::remove_file(&staged);
        })?;
        // Should this fail, the staged certificate has to stay: it is the one of the key.
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

/// Common names of the authorities.
const CLIENTS: &str = "berth-ca";
const FRONT_PROXY: &str = "berth-front-proxy-ca";

impl Pki {
    /// An authority that lives in memory only.
    ///
    /// `now` is the real time, because clients check certificates against their own clocks. The
    /// clock of an embedded cluster may run faster.
    pub fn ephemeral(now: jiff::Timestamp) -> Result<Pki, PkiError> {
        let (_, token_key) = new_token_key()?;
        let today = date(now);
        let (clients, front_proxy) = (Authority::new(CLIENTS, today)?, Authority::new(FRONT_PROXY, today)?);
        Ok(Pki { clients, front_proxy, token_key, today })
    }

    /// The authority kept in `directory`; made, with the directory, on first use. `now` as in [`Pki::ephemeral`].
    ///
    /// Fails when files cannot be read or written, or hold something else. An authority within a month of its end is
    /// replaced: kubeconfigs written before then have to be fetched again.
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

    /// The authority's certificate, PEM: what clients trust.
    pub fn authority_pem(&self) -> &str {
        &self.clients.certificate_pem
    }

    /// The key service-account tokens are signed with.
    pub fn token_key(&self) -> &TokenKey {
        &self.token_key
    }

    /// A serving certificate for loopback and in-cluster names and `extra_names` (host names or IP addresses).
    pub fn serving(&self, extra_names: &[String]) -> Result<Identity, PkiError> {
        let mut params = leaf(self.today, "berth-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
        let extra = extra_names.iter().map(String::as_str);
        for name in SERVING_NAMES.into_iter().chain(extra) {
            let san = match name.parse::<IpAddr>() {
                // The unspecified address is where one listens, not where one is reached.
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

    /// A client certificate that authenticates as `user`, member of `group`.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        self.clients.sign(leaf(self.today, user, group, ExtendedKeyUsagePurpose::ClientAuth), user)
    }

    /// What the server shows to aggregated API servers.
    pub fn front_proxy(&self) -> Result<FrontProxy, PkiError> {
        let params = leaf(self.today, FRONT_PROXY_NAME, None, ExtendedKeyUsagePurpose::ClientAuth);
        Ok(FrontProxy {
            identity: self.front_proxy.sign(params, FRONT_PROXY_NAME)?,
            authority_pem: self.front_proxy.certificate_pem.clone(),
            client_authority_pem: self.clients.certificate_pem.clone(),
        })
    }
}

/// The parameters every authority has, apart from its dates: also what signing needs to know about a kept one.
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

/// The certificate of an authority that has this key.
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

/// From yesterday, for clocks that differ a little, to the same day `years` later.
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

/// When a certificate ends, and its public key.
pub(crate) fn end_and_key(certificate_pem: &str) -> Option<(jiff::Timestamp, Vec<u8>)> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate_pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let end = jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
    Some((end, certificate.public_key().subject_public_key.data.to_vec()))
}

/// A key for tokens, as it is kept (PEM) and as it is used.
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

/// Writes a file only its owner can read: to a neighbour first, then renamed, so a crash leaves the old or the new one.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    put(&stage(path, content)?, path)
}

/// Where a file is written before it is put in its place.
fn neighbour(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

/// Writes what is to be put at this path to its neighbour, which only its owner can read; answers where that is.
fn stage(path: &Path, content: &[u8]) -> Result<PathBuf, PkiError> {
    let failed = |source| PkiError::File { path: path.to_owned(), source };
    let temporary = neighbour(path);
    // A left-over from a crash may have other permissions: never write a secret into it.
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

/// Puts a staged file in its place; it is gone where it cannot be.
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
    fn an_authority_near_its_end_is_replaced_and_a_damaged_one_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = Pki::load_or_create(directory.path(), now()).expect("made");
        let late = now() + jiff::SignedDuration::from_hours(24 * 365 * 10);
        let second = Pki::load_or_create(directory.path(), late).expect("replaced");
        assert_ne!(first.authority_pem(), second.authority_pem());
        fs::write(directory.path().join("ca.key"), "nonsense").expect("written");
        let error = Pki::load_or_create(directory.path(), now()).err().expect("refused").to_string();
        assert!(error.contains("ca.key: not a usable private key"), "{error}");
    }

    #[test]
    fn an_authority_without_its_key_and_two_halves_of_different_ones_are_refused() {
        let (directory, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let pki = Pki::load_or_create(directory.path(), now()).expect("made");
        Pki::load_or_create(other.path(), now()).expect("made");
        let refused = || Pki::load_or_create(directory.path(), now()).err().expect("refused").to_string();
        for (gone, left) in [("ca.key", "ca.crt"), ("front-proxy-ca.key", "front-proxy-ca.crt")] {
            let file = directory.path().join(gone);
            fs::rename(&file, directory.path().join("away")).expect("renamed");
            let error = refused();
            assert!(error.contains(&format!("{left} is there, but not ")) && error.contains(gone), "{error}");
            fs::rename(directory.path().join("away"), &file).expect("renamed");
        }
        fs::copy(directory.path().join("ca.key"), directory.path().join("kept")).expect("copied");
        fs::copy(other.path().join("ca.key"), directory.path().join("ca.key")).expect("copied");
        let error = refused();
        assert!(error.contains("ca.crt and ") && error.contains("ca.key do not belong together"), "{error}");
        fs::rename(directory.path().join("kept"), directory.path().join("ca.key")).expect("renamed");
        let again = Pki::load_or_create(directory.path(), now()).expect("as it was");
        assert_eq!(again.authority_pem(), pki.authority_pem());
    }

    #[test]
    fn a_start_cut_short_is_made_whole_by_the_next() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let first = Pki::load_or_create(directory.path(), now()).expect("made");
        let old = fs::read(file("ca.crt")).expect("there");
        // The first start came as far as the key.
        fs::remove_file(file("ca.crt")).expect("removed");
        let second = Pki::load_or_create(directory.path(), now()).expect("a certificate for the key");
        assert_eq!(end_and_key(second.authority_pem()), end_and_key(first.authority_pem()));
        let third = Pki::load_or_create(directory.path(), now()).expect("loaded");
        assert_eq!(third.authority_pem(), second.authority_pem());
        // A renewal came as far as the new key, with the new certificate staged.
        let late = now() + jiff::SignedDuration::from_hours(24 * 365 * 10);
        let renewed = Pki::load_or_create(directory.path(), late).expect("renewed");
        assert!(!file("ca.key.new").exists() && !file("ca.crt.new").exists());
        fs::rename(file("ca.crt"), file("ca.crt.new")).expect("renamed");
        fs::write(file("ca.crt"), &old).expect("written");
        let healed = Pki::load_or_create(directory.path(), late).expect("healed");
        assert_eq!(healed.authority_pem(), renewed.authority_pem());
        assert_eq!(fs::read_to_string(file("ca.crt")).expect("there"), renewed.authority_pem());
        // A staged certificate of another key heals nothing.
        fs::write(file("ca.crt"), &old).expect("written");
        fs::write(file("ca.crt.new"), &old).expect("written");
        let error = Pki::load_or_create(directory.path(), late).err().expect("refused").to_string();
        assert!(error.contains("do not belong together"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let directory = tempfile::tempdir().expect("a directory");
        // A folder in the way: the last step fails.
        let path = directory.path().join("kubeconfig");
        fs::create_dir(&path).expect("made");
        assert!(write_private(&path, b"text").is_err());
        let left: Vec<_> = fs::read_dir(directory.path()).expect("read").map(|it| it.expect("read").path()).collect();
        assert_eq!(left, [path]);
    }
}
