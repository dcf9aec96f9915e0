//! The controllers against the embedded API, in virtual time.

mod claims;
mod cluster;
mod cron_jobs;
mod daemon_sets;
mod disruption;
mod endpoints;
mod evictions;
mod fake_runtime;
mod gangs;
mod hosted;
mod jobs;
mod jobsets;
mod kubelet;
mod machine;
mod metrics;
mod process_resizes;
mod resizes;
mod roles;
mod samples;
mod volumes;
mod world;
