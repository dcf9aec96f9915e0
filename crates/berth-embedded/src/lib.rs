//! Assembles an embedded cluster: store, API server, Berth's controllers and the simulated nodes.
//!
//! [`api`] starts the API server with Berth's admission, kinds and API groups. [`Embedded`] also
//! runs the controllers and the simulated cluster. Only this crate depends on both halves: the API
//! server has no code for batch objects, and the controllers do not depend on the API server.
//! `berth controller` uses [`api::extensions`] to serve the same API groups behind the API server
//! of another cluster.

mod admission;
pub mod api;
mod cluster;
mod explanations;
mod external;
mod failure;
mod foresight;
mod metrics;
pub mod objects;
mod streams;
pub mod written_forecasts;

pub use cluster::{Embedded, EmbeddedError, Node, Options, Storage, cluster_configuration, controller_configuration};
pub use failure::ApiFailure;
pub use streams::Streams;
