//! Scenarios in virtual time, with expectations on what a person would see.
