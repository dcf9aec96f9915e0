//! AppWrapper (workload.codeflare.dev/v1beta2): objects of any kind that are queued, deployed,
//! watched and retried together.

pub mod config;
