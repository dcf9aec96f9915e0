//! The controllers against the embedded API, in virtual time.

mod cluster;
mod cron_jobs;
mod disruption;
mod jobs;
mod jobsets;
mod resizes;
mod roles;
mod samples;
mod volumes;
mod world;
