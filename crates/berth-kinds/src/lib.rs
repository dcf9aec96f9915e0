//! The kinds of the Kubernetes API: their names, defaults, validation, columns and encoding,
//! independent of the server.
//!
//! | module | what it has |
//! |---|---|
//! | [`registry`] | the table of kinds: a row with names, versions and verbs per kind |
//! | [`strategy`] | defaults, immutable fields and validation of built-in kinds |
//! | [`crd`] | CustomResourceDefinitions: validation, defaults, names, status, and the rows they define |
//! | [`printers`], [`fields`] | columns of tables, and fields that selectors may use |
//! | [`protobuf`] | the encoding of built-in kinds that Go clients use |
//!
//! Everything here is a function of its arguments: no clock, no store, no request. The rules of a
//! kind read stored objects through [`strategy::StoredObjects`].

pub mod client_config;
pub mod crd;
pub mod fields;
pub mod printers;
pub mod protobuf;
pub mod registry;
pub mod review_version;
pub mod service_ports;
pub mod strategy;
pub mod user;

pub use registry::{Registry, ResourceInfo, VersionInfo};
pub use review_version::ReviewVersion;
pub use user::UserInfo;
