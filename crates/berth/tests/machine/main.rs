//! What takes the whole machine for a while. Cargo runs one test binary after the other, so nobody's patience ends meanwhile.

mod connections;

#[path = "../it/cluster.rs"]
#[expect(dead_code, reason = "the other binary needs the rest")]
mod cluster;
