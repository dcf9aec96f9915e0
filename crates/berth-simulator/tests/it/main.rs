//! Runs whole scenarios.

mod examples;
