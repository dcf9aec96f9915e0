//! The time of the embedded cluster, handed to the server as a function.

use std::sync::Arc;

/// Returns the current time of the embedded cluster.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;
