//! Controllers against an API server in process, in virtual time.

mod admission_checks;
mod adoption;
mod cluster;
mod concurrent_admission;
mod decisions;
mod failure_recovery;
mod features;
mod frameworks;
mod held;
mod provisioning;
mod queueing;
mod registration;
mod rights;
mod round_trips;
mod topology;
mod webhooks;
mod writes;
