//! Tests that load the whole machine for a while. Cargo runs test binaries in sequence, so these
//! tests do not delay others.

mod connections;
mod idle;
mod kills;

#[path = "../it/cluster.rs"]
#[expect(dead_code, reason = "the other binary needs the rest")]
mod cluster;
