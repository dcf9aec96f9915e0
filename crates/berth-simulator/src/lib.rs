//! Scenarios in virtual time, with expectations on what a person would see.
//!
//! A [`scenario::Scenario`] is a file: a cluster, steps that apply manifests, wait or break things, and expectations
//! on fields, counts and table cells. [`runner`] starts an embedded cluster (`berth_embedded`) and executes the scenario against it.
//! On tokio's paused clock an hour of cluster life takes as long as its decisions do, and the same seed gives the
//! same report, byte for byte.
//!
//! What this crate does not do: decide anything. It only drives and looks.

mod ahead;
pub mod expectation;
mod explained;
pub mod fault;
mod followed;
pub mod manifest;
pub mod path;
pub mod report;
pub mod resource;
pub mod runner;
pub mod scenario;
pub mod table;

pub use runner::{Outcome, run_in_virtual_time};
pub use scenario::Scenario;
