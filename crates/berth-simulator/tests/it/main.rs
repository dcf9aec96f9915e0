//! Runs whole scenarios.

mod examples;
mod language;
mod week;
