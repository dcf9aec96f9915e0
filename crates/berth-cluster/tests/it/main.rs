//! The controllers against the embedded API, in virtual time.

mod jobs;
mod jobsets;
mod world;
