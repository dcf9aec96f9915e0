//! Calling out: webhooks that take part in admission and in conversion between versions. What reaching somebody takes
//! ([`service`], [`connection`]) serves aggregated API servers too.

pub(crate) mod client;
pub mod client_config;
pub(crate) mod connection;
mod review_version;
pub(crate) mod service;
mod verifier;

pub use review_version::ReviewVersion;
