//! The name server of a pod network: names of the cluster from a [`Zone`], all others from the
//! host's name servers.

mod answer;
mod forward;
mod server;
mod zone;

pub use zone::{Answer, TTL, Zone};

pub(crate) use server::{Names, Sockets};
