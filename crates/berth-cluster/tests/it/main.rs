//! The controllers against the embedded API, in virtual time.

mod cluster;
mod jobs;
mod jobsets;
mod resizes;
mod roles;
mod samples;
mod volumes;
mod world;
