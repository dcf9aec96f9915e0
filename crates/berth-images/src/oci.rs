//! The documents of an image: configuration, manifests, platforms.

use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};
use serde::{Deserialize, Serialize};

use crate::decompress::sha256;
use crate::{Error, Result};

/// Limit on the size of a manifest or configuration, in bytes. Registries accept at most 4 MiB.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Limit on the layers of an image. Builders stop at 127.
const LAYERS_MAX: usize = 500;

/// The used part of an image's configuration. Absent fields have defaults, because old builders
/// omit some.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    config: Option<RunConfig>,
    rootfs: RootFs,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<String>>,
}

/// Defaults of an image's containers, with the names of the image configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RunConfig {
    pub(crate) user: Option<String>,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    pub(crate) working_dir: Option<String>,
    pub(crate) stop_signal: Option<String>,
}

impl ImageConfig {
    /// Parses a configuration for this operating system.
    pub(crate) fn parse(image: &str, bytes: &[u8]) -> Result<Self> {
        let config: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::invalid(image, format!("its configuration cannot be read: {error}")))?;
        if !config.os.is_empty() && config.os != "linux" {
            return Err(Error::invalid(image, format!("it is for {}, expected linux", config.os)));
        }
        if config.diff_ids().len() > LAYERS_MAX {
            let count = config.diff_ids().len();
            return Err(Error::invalid(image, format!("it has {count} layers, expected at most {LAYERS_MAX}")));
        }
        match config.diff_ids().iter().find(|id| !is_sha256(id)) {
            Some(id) => Err(Error::invalid(image, format!("{id:?} is not a digest of a layer, expected sha256:…"))),
            None => Ok(config),
        }
    }

    /// Digests of the uncompressed layers, the lowest first.
    pub(crate) fn diff_ids(&self) -> &[String] {
        self.rootfs.diff_ids.as_deref().unwrap_or_default()
    }

    /// For each layer, the name of its folder. The name depends on all layers below, because their
    /// symbolic links and folders determine the location of the layer's entries.
    pub(crate) fn chains(&self) -> Vec<String> {
        let mut chains: Vec<String> = Vec::new();
        let mut chain = String::new();
        for id in self.diff_ids() {
            chain = if chain.is_empty() { id.clone() } else { sha256(format!("{chain} {id}").as_bytes()) };
            // Half of the digest: the options of an overlay mount, which list all folders, are
            // limited to one memory page.
            chains.push(chain.trim_start_matches("sha256:")[..32].to_owned());
        }
        chains
    }

    pub(crate) fn run(&self) -> RunConfig {
        self.config.clone().unwrap_or_default()
    }
}

/// True for `sha256:` and 64 hexadecimal digits.
pub(crate) fn is_sha256(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// A layer's file, and its expected content.
#[derive(Clone, Debug)]
pub(crate) struct LayerFile {
    pub(crate) path: PathBuf,
    /// Reject symbolic links that lead out of this folder: the file is part of an untrusted
    /// archive.
    pub(crate) within: Option<PathBuf>,
    /// Digest of the file; `None` if the file is not named by a digest (`docker save`).
    pub(crate) digest: Option<String>,
}

/// A manifest or an index of manifests.
pub(crate) enum Document {
    Manifest(ImageManifest),
    Index(ImageIndex),
}

impl Document {
    pub(crate) fn parse(image: &str, bytes: &[u8]) -> Result<Self> {
        let invalid =
            |error: &dyn std::fmt::Display| Error::invalid(image, format!("its manifest is invalid: {error}"));
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
        if value.get("manifests").is_some() {
            serde_json::from_value(value).map(Self::Index).map_err(|error| invalid(&error))
        } else if value.get("layers").is_some() {
            serde_json::from_value(value).map(Self::Manifest).map_err(|error| invalid(&error))
        } else {
            Err(invalid(&"it has neither layers nor manifests; images of Docker's schema 1 cannot be used"))
        }
    }
}

/// Checks that a manifest is that of a container image, and that its digests can be verified.
pub(crate) fn check_manifest(image: &str, manifest: &ImageManifest) -> Result<()> {
    let parts = std::iter::once(manifest.config()).chain(manifest.layers());
    if let Some(part) = parts.clone().find(|part| !is_sha256(part.digest().as_ref())) {
        return Err(Error::invalid(
            image,
            format!("{} is not a digest that can be verified: expected sha256", part.digest()),
        ));
    }
    if manifest.config().size() > DOCUMENT_BYTES_MAX {
        return Err(Error::invalid(image, format!("its configuration exceeds {DOCUMENT_BYTES_MAX} bytes")));
    }
    let is_layer = |layer: &&Descriptor| match layer.media_type() {
        MediaType::ImageLayer | MediaType::ImageLayerGzip | MediaType::ImageLayerZstd => true,
        other => other.to_string().contains("rootfs.diff.tar") && !other.to_string().contains("foreign"),
    };
    match manifest.layers().iter().find(|layer| !is_layer(layer)) {
        Some(layer) => Err(Error::invalid(
            image,
            format!("it has a layer of type {}, which is not a file system", layer.media_type()),
        )),
        None => Ok(()),
    }
}

/// This machine's architecture in the words of image manifests.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// The manifest for a platform: `linux` and `architecture`, or else the only manifest without a
/// platform.
pub(crate) fn select<'d>(image: &str, manifests: &'d [Descriptor], architecture: &str) -> Result<&'d Descriptor> {
    let platforms: Vec<(String, &Descriptor)> = manifests
        .iter()
        .map(|manifest| {
            let platform = manifest.platform().as_ref();
            (platform.map_or_else(String::new, |p| format!("{}/{}", p.os(), p.architecture())), manifest)
        })
        .collect();
    let wanted = format!("linux/{architecture}");
    let exact = platforms.iter().find(|(platform, _)| *platform == wanted);
    let mut unnamed = platforms.iter().filter(|(platform, _)| platform.is_empty());
    if let Some((_, found)) = exact {
        return Ok(found);
    }
    if let (Some((_, found)), None) = (unnamed.next(), unnamed.next()) {
        return Ok(found);
    }
    let offered: Vec<&str> = platforms.iter().map(|(platform, _)| platform.as_str()).collect();
    Err(Error::invalid(image, format!("it is not available for {wanted}, only for: {}", offered.join(", "))))
}

/// Reads a document of limited size.
pub(crate) fn read_document(path: &Path, file: impl std::io::Read) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut file.take(DOCUMENT_BYTES_MAX + 1), &mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > DOCUMENT_BYTES_MAX {
        return Err(Error::invalid(&path.display().to_string(), format!("it exceeds {DOCUMENT_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn configurations_of_old_builders_are_read() {
        let text = serde_json::json!({
            "config": { "Cmd": null, "Env": null, "Entrypoint": ["/bin/app"], "Volumes": null, "Healthcheck": {} },
            "rootfs": { "type": "layers", "diff_ids": [digest('a')] },
        });
        let config = ImageConfig::parse("x", text.to_string().as_bytes()).expect("a configuration");
        assert_eq!(config.run().entrypoint, Some(vec!["/bin/app".to_owned()]));
        assert_eq!((config.run().cmd, config.diff_ids().len()), (None, 1));
    }

    #[test]
    fn a_configuration_for_another_system_or_with_invalid_digests_is_rejected() {
        let check = |text: serde_json::Value, expected: &str| {
            let error = ImageConfig::parse("x", text.to_string().as_bytes()).expect_err("refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(serde_json::json!({ "os": "windows", "rootfs": {} }), "it is for windows, expected linux");
        check(serde_json::json!({ "rootfs": { "diff_ids": ["../../etc"] } }), "\"../../etc\" is not a digest");
        check(serde_json::json!({}), "missing field `rootfs`");
    }

    #[test]
    fn the_folder_of_a_layer_depends_on_the_layers_below() {
        let config = |ids: &[String]| {
            let text = serde_json::json!({ "rootfs": { "diff_ids": ids } }).to_string();
            ImageConfig::parse("x", text.as_bytes()).expect("a configuration").chains()
        };
        let (one, two) = (config(&[digest('a'), digest('b')]), config(&[digest('c'), digest('b')]));
        assert_eq!(one[0], "a".repeat(32));
        assert_ne!(one[1], two[1]);
        assert_eq!(one, config(&[digest('a'), digest('b')]));
    }

    #[test]
    fn the_manifest_for_this_architecture_is_selected() {
        let index = |platforms: &[Option<(&str, &str)>]| -> Vec<Descriptor> {
            let entries = platforms.iter().enumerate().map(|(i, platform)| {
                let digit = char::from_digit(u32::try_from(i).expect("small"), 10).expect("a digit");
                let mut entry = serde_json::json!({
                    "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(digit), "size": 1,
                });
                if let Some((os, architecture)) = platform {
                    entry["platform"] = serde_json::json!({ "os": os, "architecture": architecture });
                }
                serde_json::from_value(entry).expect("a descriptor")
            });
            entries.collect()
        };
        let check = |platforms: &[Option<(&str, &str)>], expected: char| {
            let index = index(platforms);
            assert_eq!(select("x", &index, "arm64").expect("one").digest().as_ref(), digest(expected));
        };
        check(&[Some(("linux", "amd64")), Some(("linux", "arm64")), Some(("unknown", "unknown"))], '1');
        check(&[None], '0');
        let index = index(&[Some(("linux", "amd64")), Some(("windows", "arm64"))]);
        let error = select("x", &index, "arm64").expect_err("none").to_string();
        assert_eq!(error, "x: it is not available for linux/arm64, only for: linux/amd64, windows/arm64");
    }
}
