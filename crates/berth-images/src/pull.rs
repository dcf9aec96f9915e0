//! Pulls from registries.

use std::time::Duration;

use berth_pod_runtime::RegistryCredential;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use oci_spec::image::{Descriptor, ImageManifest};
use tokio::io::AsyncWriteExt;

use crate::decompress::sha256;
use crate::oci::{self, DOCUMENT_BYTES_MAX, Document, ImageConfig, LayerFile};
use crate::store::{NewImage, Origin, Record, Session};
use crate::{Error, Name, Result, Store};

/// Time to connect to a registry.
const CONNECT: Duration = Duration::from_secs(15);
/// Maximum time between two parts of a response.
const READ: Duration = Duration::from_secs(60);
/// Number of layers that are downloaded at the same time.
const DOWNLOADS: usize = 3;
/// Media types of manifests and indexes.
const MANIFESTS: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// Result of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The image.
    pub record: Record,
    /// True if the store had this version of the image already.
    pub was_present: bool,
}

/// Makes the current version of an image in its registry available. The credentials that match the
/// registry are tried in order, the most specific first. Without credentials, the pull is
/// anonymous.
///
/// # Errors
/// The registry cannot be reached, rejects the request, or has no image for this machine; or the
/// image cannot be stored.
pub async fn pull(
    store: &Store,
    name: &Name,
    credentials: &[RegistryCredential],
    plain_http: &[String],
) -> Result<Pulled> {
    let mut last = None;
    for auth in matching(name, credentials) {
        let registry = Registry::new(name, auth, plain_http);
        match registry.manifest().await {
            Ok(found) => return registry.fetch(store, found).await,
            Err(error) if is_refusal(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::invalid(&name.to_string(), "no credentials are available")))
}

/// True if other credentials may help. Registries respond with "not found" for images that a user
/// may not see.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::Registry {
            source: OciDistributionError::UnauthorizedError { .. }
                | OciDistributionError::AuthenticationFailure(_)
                | OciDistributionError::ImageManifestNotFoundError(_)
                | OciDistributionError::RegistryError { .. }
                | OciDistributionError::ServerError { code: 401 | 403 | 404, .. },
            ..
        }
    )
}

/// The manifest of an image for this machine.
struct Manifest {
    digest: String,
    index_digest: Option<String>,
    manifest: ImageManifest,
}

/// A registry, for requests about one image.
struct Registry<'n> {
    name: &'n Name,
    client: Client,
    auth: RegistryAuth,
}

impl<'n> Registry<'n> {
    fn new(name: &'n Name, auth: RegistryAuth, plain_http: &[String]) -> Self {
        let registry = name.reference().resolve_registry().to_owned();
        let is_plain = is_loopback(&registry) || plain_http.contains(&registry);
        let client = Client::new(ClientConfig {
            protocol: if is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(CONNECT),
            read_timeout: Some(READ),
            user_agent: concat!("berth/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        });
        Self { name, client, auth }
    }

    fn shown(&self) -> String {
        self.name.to_string()
    }

    fn failed(&self, source: OciDistributionError) -> Error {
        Error::Registry { reference: self.shown(), source }
    }

    /// Requests the manifest, and the manifest of this platform if the response is an index.
    async fn manifest(&self) -> Result<Manifest> {
        let mut reference = self.name.reference().clone();
        let mut index_digest = None;
        // An index of indexes is unusual, and the limit prevents endless cycles.
        for _ in 0..4 {
            let asked = self.client.pull_manifest_raw(&reference, &self.auth, &MANIFESTS).await;
            let (bytes, digest) = asked.map_err(|error| self.failed(error))?;
            match Document::parse(&self.shown(), &bytes)? {
                Document::Manifest(manifest) => {
                    oci::check_manifest(&self.shown(), &manifest)?;
                    return Ok(Manifest { digest, index_digest, manifest });
                }
                Document::Index(index) => {
                    let entry = oci::select(&self.shown(), index.manifests(), oci::architecture())?;
                    reference = reference.clone_with_digest(entry.digest().to_string());
                    index_digest.get_or_insert(digest);
                }
            }
        }
        Err(Error::invalid(&self.shown(), "its indexes are nested too deeply"))
    }

    /// Downloads and unpacks the layers that are not in the store.
    async fn fetch(&self, store: &Store, found: Manifest) -> Result<Pulled> {
        let names = [self.shown()];
        let present = store.get(self.name)?.filter(|record| record.digest == found.digest);
        if let Some(record) = present {
            return Ok(Pulled { record, was_present: true });
        }
        let session = store.begin()?;
        let config = self.config(found.manifest.config()).await?;
        let layers = found.manifest.layers();
        let missing = session.missing(&config);
        let mut downloads: Vec<BoxFuture<'_, Result<()>>> = Vec::new();
        for layer in missing.iter().filter_map(|i| layers.get(*i)) {
            downloads.push(self.download(&session, store, layer).boxed());
        }
        futures::stream::iter(downloads).buffer_unordered(DOWNLOADS).try_collect::<Vec<()>>().await?;
        let files = layers.iter().map(|layer| LayerFile {
            path: store.blob(layer.digest().as_ref()),
            within: None,
            digest: Some(layer.digest().to_string()),
        });
        let files: Vec<LayerFile> = files.collect();
        let shown = self.shown();
        let unpack = move || {
            let record = session.add(NewImage {
                shown: &shown,
                names: &names,
                digest: &found.digest,
                index_digest: found.index_digest.as_deref(),
                config: &config,
                layers: files.clone(),
                origin: Origin::Pulled,
            })?;
            for file in files {
                // A file that remains is garbage.
                let _ = std::fs::remove_file(file.path);
            }
            Ok(record)
        };
        let unpacked = tokio::task::spawn_blocking(unpack).await;
        let record = unpacked.unwrap_or_else(|error| Err(Error::invalid(&self.shown(), error.to_string())))?;
        Ok(Pulled { record, was_present: false })
    }

    async fn config(&self, descriptor: &Descriptor) -> Result<ImageConfig> {
        let mut bytes = Vec::new();
        let digest = descriptor.digest().as_ref();
        let mut stream = self.blob(digest).await?;
        while let Some(chunk) = stream.try_next().await.map_err(|error| self.failed(error.into()))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
                return Err(Error::invalid(
                    &self.shown(),
                    format!("its configuration exceeds {DOCUMENT_BYTES_MAX} bytes"),
                ));
            }
        }
        let (found, expected) = (sha256(&bytes), digest.to_owned());
        if found != expected {
            return Err(Error::Digest { image: self.shown(), part: "its configuration".into(), found, expected });
        }
        ImageConfig::parse(&self.shown(), &bytes)
    }

    async fn blob(&self, digest: &str) -> Result<BoxStream<'static, std::io::Result<Bytes>>> {
        let asked = self.client.pull_blob_stream(self.name.reference(), digest).await;
        Ok(asked.map_err(|error| self.failed(error))?.stream)
    }

    /// Downloads a layer, unless an earlier pull downloaded it. Its digest is verified when it is
    /// unpacked.
    async fn download(&self, session: &Session, store: &Store, layer: &Descriptor) -> Result<()> {
        let digest = layer.digest().as_ref();
        let place = store.blob(digest);
        if place.is_file() {
            return Ok(());
        }
        let temporary = session.temporary();
        let partial = tempfile::NamedTempFile::new_in(temporary).map_err(Error::io(temporary))?;
        let (file, path) = partial.into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let mut stream = self.blob(digest).await?;
        let mut left = layer.size();
        while let Some(chunk) = stream.try_next().await.map_err(|error| self.failed(error.into()))? {
            left = left.checked_sub(chunk.len() as u64).ok_or_else(|| {
                let problem = format!("the layer {digest} is larger than the {} bytes of its manifest", layer.size());
                Error::invalid(&self.shown(), problem)
            })?;
            file.write_all(&chunk).await.map_err(Error::io(&path))?;
        }
        file.flush().await.map_err(Error::io(&path))?;
        path.persist(&place).map_err(|error| Error::io(&place)(error.error))
    }
}

/// True if a registry is on a loopback address of this machine, where plain HTTP is safe and usual.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The credentials for an image, the longest path first; anonymous if there are none.
fn matching(name: &Name, credentials: &[RegistryCredential]) -> Vec<RegistryAuth> {
    let mut found: Vec<(usize, &RegistryCredential)> = credentials
        .iter()
        .filter_map(|credential| {
            let (host, path) = location(&credential.registry);
            let repository = name.reference().repository();
            let in_path = path.is_empty()
                || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            (host_matches(host, name.reference().registry()) && in_path).then_some((path.len(), credential))
        })
        .collect();
    // Stable: equal paths keep the order of the secrets.
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    if found.is_empty() {
        return vec![RegistryAuth::Anonymous];
    }
    found.into_iter().map(|(_, c)| RegistryAuth::Basic(c.username.clone(), c.password.clone())).collect()
}

/// Registry and path of a key in a Docker configuration: `https://index.docker.io/v1/` is Docker
/// Hub.
fn location(key: &str) -> (&str, &str) {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = path.trim_matches('/');
    // `v1` and `v2` are versions of the registry's API, not repositories.
    let path = if matches!(path, "v1" | "v2") { "" } else { path };
    let is_hub = matches!(host, "index.docker.io" | "registry-1.docker.io");
    (if is_hub { "docker.io" } else { host }, path)
}

/// In the host of a credential, `*` matches any characters of one part: `*.example.com`.
fn host_matches(pattern: &str, host: &str) -> bool {
    let (patterns, parts): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), host.split('.').collect());
    patterns.len() == parts.len()
        && patterns.iter().zip(parts).all(|(pattern, part)| match pattern.split_once('*') {
            Some((start, end)) => {
                part.len() >= start.len() + end.len() && part.starts_with(start) && part.ends_with(end)
            }
            None => *pattern == part,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(registry: &str) -> RegistryCredential {
        RegistryCredential { registry: registry.into(), username: registry.into(), password: "secret".into() }
    }

    #[track_caller]
    fn check(image: &str, registries: &[&str], expected: &[&str]) {
        let credentials: Vec<_> = registries.iter().map(|registry| credential(registry)).collect();
        let found = matching(&Name::parse(image).expect("a name"), &credentials);
        let names: Vec<String> = found
            .into_iter()
            .map(|auth| match auth {
                RegistryAuth::Basic(user, _) => user,
                _ => "anonymous".into(),
            })
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn credentials_match_registry_and_path_and_the_most_specific_comes_first() {
        let hub = "https://index.docker.io/v1/";
        check("python", &["quay.io", hub], &[hub]);
        check("quay.io/team/app", &["quay.io", "quay.io/team", "quay.io/te"], &["quay.io/team", "quay.io"]);
        check("eu.gcr.io/p/app", &["*.gcr.io", "*.io"], &["*.gcr.io"]);
        check("quay.io/team/app", &["example.com"], &["anonymous"]);
    }

    #[test]
    fn registries_on_loopback_addresses_are_accessed_over_plain_http() {
        for registry in ["localhost:5000", "127.0.0.1:5000", "127.3.0.1", "[::1]:5000", "kind.localhost:80"] {
            assert!(is_loopback(registry), "{registry}");
        }
        for registry in ["docker.io", "10.0.0.1:5000", "localhost.example.com", "registry:5000"] {
            assert!(!is_loopback(registry), "{registry}");
        }
    }
}
