//! Calls to admission and conversion webhooks. Addresses and connections ([`service`],
//! [`connection`]) serve aggregated API servers too.

pub(crate) mod client;
pub mod client_config;
pub(crate) mod connection;
mod review_version;
pub(crate) mod service;
mod verifier;

pub use review_version::ReviewVersion;
