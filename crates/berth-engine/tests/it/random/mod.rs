//! Random queues and workloads with histories, and the properties that every history must have.
//!
//! [`plan`] describes queues, nodes and a history in plain numbers. [`host`] carries out a plan on
//! an engine as a cluster would: victims stop, quota returns, workloads queue again. [`agreement`]
//! compares every cycle with the slow model in [`crate::reference`], and [`parts`] compares cycles
//! in parts with whole ones. [`storms`] change the configuration as well and check the capacity in
//! use. [`invariants`] has the other properties.
//!
//! `BERTH_PROPERTY_CASES` sets the number of cases of every property here, for a longer run than in
//! CI.

mod agreement;
mod host;
mod invariants;
mod parts;
pub mod plan;
mod storms;

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// A configuration with this number of cases, or the number in the environment. Seeds of failures
/// are stored in the folder of this file.
pub fn config(cases: u32, seeds: &'static str) -> Config {
    let given = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|text| text.parse().ok());
    Config {
        cases: given.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
        max_shrink_iters: 20_000,
        // The same cases in every run unless a longer run is requested, so that a failure is due to
        // a change to the code.
        rng_seed: if given.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        ..Config::default()
    }
}
