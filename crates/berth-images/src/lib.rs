//! The images of one node.
//!
//! [`NodeImages`] answers which files a container runs on. In this order:
//!
//! 1. A [`Mapping`] of the configuration names the image: the host's own files, a folder, or the registry.
//! 2. The image was imported or pulled into the [`Store`].
//! 3. [`Config::otherwise`] decides: the host's own files (the default, with a notice), a pull, or a
//!    refusal.
//!
//! The store has one folder for each unpacked layer, which overlayfs mounts as it is. Without the
//! rights for that (device nodes and trusted attributes) it has one folder for each image, with all
//! layers applied ([`Form`]). Archives are untrusted input: nothing that they hold is written outside
//! of the folder of their layer.
//!
//! This crate knows no Kubernetes type and starts no process.

mod archive;
mod config;
mod decompress;
mod error;
mod import;
mod name;
mod oci;
mod pull;
mod service;
mod store;
mod unpack;

pub use config::{Config, Declared, Mapping, Target};
pub use error::Error;
pub use import::{Imported, import};
pub use name::Name;
pub use pull::{Pulled, pull};
pub use service::NodeImages;
pub use store::{Origin, Record, Removed, Store};
pub use unpack::Form;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;
