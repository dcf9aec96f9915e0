//! Puts an embedded cluster together: store, API server, Berth's controllers and the simulated rest.
//!
//! [`api`] is the API server with what Berth brings; [`Embedded`] runs the controllers and the simulated cluster beside
//! it. This is the one place that knows both halves: the API server knows no batch object, and the controllers know no
//! API server. [`api::extensions`] also serves `berth controller`, behind an API server elsewhere.

mod admission;
pub mod api;
mod cluster;
mod explanations;
mod failure;

pub use cluster::{Embedded, EmbeddedError, Options, Storage, cluster_configuration, controller_configuration};
pub use failure::ApiFailure;
