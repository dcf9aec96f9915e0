//! Runs whole scenarios.

mod examples;
mod week;
