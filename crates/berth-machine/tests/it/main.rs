//! Tests of described machines and of this machine.

mod assigned;
mod machine;
