//! Tests that load the whole machine for a while. Cargo runs test binaries in sequence, so they
//! delay no other test.

mod connections;
mod idle;
mod kills;

#[path = "../it/cluster.rs"]
#[expect(dead_code, reason = "the other binary needs the rest")]
mod cluster;
