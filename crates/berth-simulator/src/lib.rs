//! Runs scenarios in virtual time and checks what a user of the cluster would see.
//!
//! A [`scenario::Scenario`] is a file. It describes a cluster, steps that apply manifests, wait or
//! inject faults, and expectations on fields, counts and table cells. [`runner`] starts an
//! embedded cluster (`berth_embedded`) and executes the scenario against it. The clock is tokio's
//! paused clock: an hour of cluster time takes only as long as its decisions, and the same seed
//! gives the same report, byte for byte.
//!
//! [`whole`] replays a trace of a real cluster in the same way, every job as a Job.
//!
//! This crate does not make scheduling decisions. It sends requests to the API and checks the
//! responses.

mod ahead;
pub mod expectation;
mod explained;
pub mod fault;
mod followed;
pub mod history;
pub mod manifest;
pub mod path;
pub mod report;
pub mod resource;
pub mod runner;
pub mod scenario;
pub mod table;
pub mod whole;

pub use runner::{Outcome, run_in_virtual_time};
pub use scenario::Scenario;
