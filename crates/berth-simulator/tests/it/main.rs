//! Scenarios from beginning to end.

mod examples;
