//! Tests that load the whole machine for a while. Cargo runs test binaries in sequence, so these
//! tests do not delay others.

mod connections;
mod idle;
mod kills;

#[path = "../it/cluster.rs"]
#[expect(dead_code, reason = "only the other test binary uses the other items of this module")]
mod cluster;
