//! SPDY/3.1, as clients of Kubernetes before 1.31 speak it: [`command`] carries the streams of a
//! command, [`ports`] forwarded connections.
//!
//! No crate implements SPDY, which HTTP/2 has replaced. [`frame`] implements its frames,
//! [`headers`] its compressed headers and [`connection`] its streams.

pub(super) mod command;
mod connection;
mod frame;
mod headers;
pub(super) mod ports;
#[cfg(test)]
mod testing;
