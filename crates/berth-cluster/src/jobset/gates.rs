//! JobSet's features that are off by default.

/// Enabled features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// `RestartJob`: failure policy actions that restart a single job.
    pub restart_job: bool,
    /// `InPlaceRestart`: the restart strategy of that name.
    pub in_place_restart: bool,
    /// `ElasticJobSet`: parallelism and completions of a running set may change.
    pub elastic_jobset: bool,
}
