//! Calling out: webhooks that take part in admission and in conversion between versions.

pub(crate) mod client;
pub mod client_config;
mod review_version;
mod verifier;

pub use review_version::ReviewVersion;
