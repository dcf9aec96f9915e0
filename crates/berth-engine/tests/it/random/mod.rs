//! Random platforms with histories, and what must be true of every one of them.
//!
//! [`plan`] describes a platform and a history in plain numbers, [`host`] carries a plan out on an
//! engine as a cluster would: victims stop, quota returns, workloads queue again. [`agreement`]
//! holds every cycle against the slow model in [`crate::reference`]; [`parts`] holds cycles
//! answered in parts against whole ones; [`storms`] change the platform as well and look at what
//! is given; [`invariants`] are the rest.
//!
//! `BERTH_PROPERTY_CASES` sets the number of cases of every property here, for a longer run than
//! CI's.

mod agreement;
mod host;
mod invariants;
mod parts;
pub mod plan;
mod storms;

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// So many cases, or as many as the environment asks for. Seeds of failures are kept beside this
/// file.
pub fn config(cases: u32, seeds: &'static str) -> Config {
    let asked = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|text| text.parse().ok());
    Config {
        cases: asked.unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(seeds))),
        max_shrink_iters: 20_000,
        // The same cases every time unless a longer run is asked for: a change is judged by
        // itself, not by the draw.
        rng_seed: if asked.is_some() { RngSeed::Random } else { RngSeed::Fixed(1) },
        ..Config::default()
    }
}
