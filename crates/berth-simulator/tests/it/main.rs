//! Runs whole scenarios.

mod examples;
mod faults;
mod language;
mod objects;
mod week;
mod whole;
