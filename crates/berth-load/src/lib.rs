//! Load configurations with published results: what they create when, what would be possible, and what the engine makes
//! of them in virtual time.
//!
//! ```text
//! generator file ──Config::parse──▶ Config ──Plan::new──▶ Plan: queues, classes, arrivals in order of time
//!                                                          ├─ bound::lower_bound   what no scheduler can beat
//!                                                          ├─ drive::drive         the engine, no time between
//!                                                          │                       a decision and its effect
//!                                                          └─ ledger::Ledger       the books of a real run
//! ```
//!
//! The files are the generator configurations of Kueue's scalability test. [`drive::drive`] is the schedule the policies
//! allow when deciding, writing and noticing cost nothing: whatever a real run takes longer is overhead. The same plan
//! serves a run against a real API.
//!
//! No clock and no I/O here: the engine is told the plan's own time, and files are read by whoever has them.

pub mod bound;
pub mod chart;
pub mod config;
pub mod drive;
pub mod ledger;
pub mod plan;

pub use config::{Config, ConfigError};
pub use drive::{Outcome, Probe, Untimed, drive};
pub use ledger::Ledger;
pub use plan::Plan;
