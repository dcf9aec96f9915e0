//! Load configurations with published results: their plan of creations, the lower bounds of any
//! schedule, and the engine's schedule in virtual time.
//!
//! ```text
//! generator file ──Config::parse──▶ Config ──Plan::new──▶ Plan: queues, classes, arrivals by time
//!
//! Plan ├─ bound::lower_bound   the shortest time of any schedule
//!      ├─ drive::drive         the engine's schedule, if decisions take effect at once
//!      └─ ledger::Ledger       the record of a real run
//! ```
//!
//! The files are the generator configurations of Kueue's scalability test. [`drive::drive`]
//! computes the schedule that the policies allow if decisions, writes and watches take no time. Any
//! additional time of a real run is overhead. The same plan is used for a run against a real API.
//! [`drive::run`] does the same for any [`Load`], such as a trace of a real cluster, and records
//! what happened to each job ([`History`]).
//!
//! The crate reads no clock and does no I/O: the engine receives the plan's time, and the caller
//! reads the files.

pub mod bound;
pub mod chart;
pub mod config;
pub mod drive;
pub mod history;
pub mod ledger;
pub mod plan;

pub use config::{Config, ConfigError};
pub use drive::{Capacity, Load, Outcome, Probe, Unlimited, Untimed, drive};
pub use history::{History, Holding, Holdings, JobRecord, JobRun};
pub use ledger::Ledger;
pub use plan::Plan;
