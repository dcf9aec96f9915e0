//! The controllers against the embedded API, in virtual time.

mod cluster;
mod cron_jobs;
mod daemon_sets;
mod disruption;
mod jobs;
mod jobsets;
mod resizes;
mod roles;
mod samples;
mod volumes;
mod world;
