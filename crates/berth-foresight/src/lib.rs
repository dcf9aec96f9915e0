//! Replays the traces of real clusters through the engine in virtual time, under one or several
//! policies.
//!
//! ```text
//! trace file ──trace::read──▶ Trace ─┐
//!                                    ├─ replay::Replay (a Load) ──berth_load::drive::run──▶ History
//! manifests ──policy::file──▶ Policy ┘                                                        │
//!             policy::built_in                              figures::Figures ──report──▶ table, JSON, CSV, HTML
//! ```
//!
//! The driver is `berth-load`'s: a [`berth_load::Load`] may also be the state of a live cluster,
//! whose future is then computed in the same way. [`packing`] places the pods of a trace on nodes,
//! with parts of GPUs, which the engine's topology-aware placement cannot express.
//!
//! [`check`](mod@check) finds configuration that cannot work in a set of [`objects`].
//! [`migrate`](mod@migrate) judges the objects of a Kueue before Berth takes over.
//! [`live`] computes the future of a cluster, or of a [`snapshot`] of one.
//!
//! The crate reads no clock. Only [`command`] reads files, and reports progress by time.

pub mod check;
pub mod command;
pub mod figures;
pub mod forecast;
pub mod forward;
pub mod live;
pub mod memory;
pub mod migrate;
pub mod objects;
pub mod packing;
pub mod policy;
pub mod replay;
pub mod report;
pub mod snapshot;
pub mod trace;
