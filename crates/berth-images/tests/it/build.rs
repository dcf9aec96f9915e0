//! Builds images.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

/// A layer under construction.
pub struct Layer(tar::Builder<Vec<u8>>);

/// A finished layer: an uncompressed tar archive.
#[derive(Clone)]
pub struct LayerBytes(pub Vec<u8>);

impl Layer {
    pub fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// Adds an entry. Path and link target are written unchanged, even if they are hostile.
    pub fn entry(self, kind: EntryType, path: &str, link: &str, mode: u32, content: &[u8]) -> Self {
        self.owned(kind, path, link, mode, content, 0)
    }

    pub fn owned(mut self, kind: EntryType, path: &str, link: &str, mode: u32, content: &[u8], user: u64) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(user);
        header.set_gid(user);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        let fields = header.as_old_mut();
        assert!(path.len() < 100 && link.len() < 100, "short names only");
        fields.name[..path.len()].copy_from_slice(path.as_bytes());
        fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.append(&header, content).expect("appended");
        self
    }

    pub fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, "", 0o644, content.as_bytes())
    }

    pub fn folder(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, "", mode, b"")
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, target, 0o777, b"")
    }

    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, target, 0o644, b"")
    }

    /// Adds PAX records to the next entry.
    pub fn pax(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).expect("appended");
        self
    }

    pub fn done(self) -> LayerBytes {
        LayerBytes(self.0.into_inner().expect("finished"))
    }
}

/// Compression of layers.
#[derive(Clone, Copy)]
pub enum Compressed {
    No,
    Gzip,
    Zstd,
}

impl Compressed {
    pub fn apply(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::No => bytes.to_vec(),
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(bytes).expect("compressed");
                encoder.finish().expect("compressed")
            }
            Self::Zstd => compress_to_vec(bytes, CompressionLevel::Fastest),
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::No => "",
            Self::Gzip => "+gzip",
            Self::Zstd => "+zstd",
        }
    }
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// This machine's architecture in the words of images.
pub fn architecture() -> &'static str {
    if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }
}

/// An image: its blobs by digest, and its manifest.
pub struct Built {
    pub blobs: Vec<(String, Vec<u8>)>,
    pub manifest: Value,
    pub config: Vec<u8>,
    pub layers: Vec<LayerBytes>,
}

/// Builds an image whose configuration is `run`.
pub fn image(layers: &[LayerBytes], run: &Value, compressed: Compressed) -> Built {
    image_for(architecture(), layers, run, compressed)
}

pub fn image_for(architecture: &str, layers: &[LayerBytes], run: &Value, compressed: Compressed) -> Built {
    let diff_ids: Vec<String> = layers.iter().map(|layer| digest(&layer.0)).collect();
    let config = json!({
        "architecture": architecture, "os": "linux", "config": run,
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let config = config.to_string().into_bytes();
    let mut blobs = vec![(digest(&config), config.clone())];
    let mut descriptors = Vec::new();
    for layer in layers {
        let bytes = compressed.apply(&layer.0);
        let media_type = format!("application/vnd.oci.image.layer.v1.tar{}", compressed.suffix());
        descriptors.push(json!({ "mediaType": media_type, "digest": digest(&bytes), "size": bytes.len() }));
        blobs.push((digest(&bytes), bytes));
    }
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len(),
        },
        "layers": descriptors,
    });
    Built { blobs, manifest, config, layers: layers.to_vec() }
}

impl Built {
    pub fn manifest_bytes(&self) -> Vec<u8> {
        self.manifest.to_string().into_bytes()
    }

    pub fn digest(&self) -> String {
        digest(&self.manifest_bytes())
    }

    /// The image's entry in an index.
    pub fn descriptor(&self) -> Value {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": self.digest(), "size": self.manifest_bytes().len(),
        })
    }
}

/// Writes an OCI image layout with the images and the entries of its index.
pub fn write_layout(folder: &Path, images: &[&Built], entries: &[Value]) {
    let blobs = folder.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("created");
    let put = |bytes: &[u8]| std::fs::write(blobs.join(&digest(bytes)[7..]), bytes).expect("written");
    for image in images {
        image.blobs.iter().for_each(|(_, bytes)| put(bytes));
        put(&image.manifest_bytes());
    }
    std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    let index = json!({ "schemaVersion": 2, "manifests": entries });
    std::fs::write(folder.join("index.json"), index.to_string()).expect("written");
}

/// Writes the layout of one image with a name.
pub fn write_named(folder: &Path, name: &str, image: &Built) {
    let mut entry = image.descriptor();
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
    write_layout(folder, &[image], &[entry]);
}

/// Packs a folder into a tar archive.
pub fn pack(folder: &Path, into: &Path, compressed: Compressed) -> PathBuf {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all(".", folder).expect("packed");
    let bytes = archive.into_inner().expect("packed");
    std::fs::write(into, compressed.apply(&bytes)).expect("written");
    into.to_owned()
}

/// Writes the format of `docker save` before it had OCI layouts: repeated layers are symbolic
/// links.
pub fn write_saved(into: &Path, name: &str, image: &Built) {
    let config = format!("{}.json", &digest(&image.config)[7..]);
    let mut layer = Layer::new().file(&config, std::str::from_utf8(&image.config).expect("text"));
    let mut paths: Vec<String> = Vec::new();
    for (i, bytes) in image.layers.iter().enumerate() {
        let path = format!("{i}/layer.tar");
        let same = image.layers[..i].iter().position(|known| known.0 == bytes.0);
        layer = match same {
            Some(known) => layer.link(&path, &format!("../{known}/layer.tar")),
            None => layer.entry(tar::EntryType::Regular, &path, "", 0o644, &bytes.0),
        };
        paths.push(path);
    }
    let manifest = json!([{ "Config": config, "RepoTags": [name], "Layers": paths }]);
    let archive = layer.file("manifest.json", &manifest.to_string()).done();
    std::fs::write(into, archive.0).expect("written");
}
