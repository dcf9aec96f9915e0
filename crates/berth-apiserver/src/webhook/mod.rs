//! Calls to admission and conversion webhooks. Addresses and connections ([`service`],
//! [`connection`]) serve aggregated API servers too.

pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod service;
mod verifier;
