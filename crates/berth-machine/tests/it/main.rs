//! Tests of described machines, and of this one.

mod assigned;
mod machine;
