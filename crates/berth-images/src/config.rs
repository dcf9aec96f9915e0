//! The location of the files of images, by image name.

use std::path::PathBuf;

use crate::Name;

/// Configuration of a node's images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Mappings in order; the first that matches applies.
    pub mappings: Vec<Mapping>,
    /// Location of images without a mapping that are not in the store.
    pub otherwise: Target,
    /// Registries that are accessed over plain HTTP, in addition to those on loopback addresses:
    /// `registry.lan:5000`.
    pub plain_http: Vec<String>,
}

/// Location of the files of images whose names match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Pattern with `*` and `?`; see [`Name::matches`].
    pub image: String,
    /// Location of the files.
    pub target: Target,
    /// Defaults of containers, for images that are not in the store. Files on the host do not
    /// declare any.
    pub declared: Declared,
}

/// Defaults that an image declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Entrypoint.
    pub entrypoint: Vec<String>,
    /// Default arguments.
    pub cmd: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// User: `user[:group]`, by number or name.
    pub user: String,
    /// Working directory.
    pub working_dir: String,
}

/// Location of an image's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The host's own files.
    #[default]
    Host,
    /// A folder of the host, read-only.
    Folder(PathBuf),
    /// The store, and the registry if the store does not have the image.
    Pull,
    /// The store only.
    Refuse,
}

impl Config {
    /// The mapping of an image.
    pub fn mapping(&self, name: &Name) -> Option<&Mapping> {
        self.mappings.iter().find(|mapping| name.matches(&mapping.image))
    }
}
