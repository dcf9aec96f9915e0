//! The name server of a pod network. It answers questions about names of the cluster from a
//! [`Zone`] and forwards all others to the host's name servers.

mod answer;
mod forward;
mod server;
mod zone;

pub use zone::{Answer, TTL, Zone};

pub(crate) use server::{Names, Outsiders, Sockets};
