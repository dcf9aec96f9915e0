//! Calling out: webhooks that take part in admission and in conversion between versions.

pub(crate) mod client;
pub mod client_config;
