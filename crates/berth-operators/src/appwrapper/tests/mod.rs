//! Tests of the state machine: its transitions one by one, and all interleavings of faults, timers
//! and API errors to a depth.

mod explore;
mod model;
mod transitions;
