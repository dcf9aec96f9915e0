//! The images of one node.
//!
//! [`NodeImages`] selects the files of a container, in this order:
//!
//! 1. A [`Mapping`] of the configuration names the image: the host's own files, a folder, or the
//!    registry.
//! 2. The image was imported or pulled into the [`Store`].
//! 3. [`Config::otherwise`] decides: the host's own files (the default, with a notice), a pull, or
//!    an error.
//!
//! The store has one folder for each unpacked layer, which overlayfs mounts unchanged. Without the
//! necessary privileges (for device nodes and trusted attributes), it has one folder for each
//! image, with all layers applied ([`Form`]). Archives are untrusted input: nothing in them is
//! written outside the folder of their layer.
//!
//! This crate uses no Kubernetes type and starts no process.

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
