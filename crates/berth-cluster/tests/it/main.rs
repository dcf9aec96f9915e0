//! The controllers against the embedded API, in virtual time.

mod cluster;
mod disruption;
mod endpoints;
mod jobs;
mod jobsets;
mod resizes;
mod roles;
mod samples;
mod volumes;
mod world;
