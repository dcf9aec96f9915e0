//! Which files images run on, by name.

use std::path::PathBuf;

use crate::Name;

/// Configuration of a node's images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Tried in order; the first that matches decides.
    pub mappings: Vec<Mapping>,
    /// For images without a mapping that are not in the store.
    pub otherwise: Target,
    /// Registries that are asked over plain HTTP, beside those on loopback addresses: `registry.lan:5000`.
    pub plain_http: Vec<String>,
}

/// The files of images whose names match a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Pattern with `*` and `?`; see [`Name::matches`].
    pub image: String,
    /// Where the files are.
    pub target: Target,
    /// What a container runs, for images that the store does not have: files on the host declare
    /// nothing.
    pub declared: Declared,
}

/// What an image declares.
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

/// Where the files of an image are.
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
