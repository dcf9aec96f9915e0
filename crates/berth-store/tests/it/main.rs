//! Both stores through the trait: one suite, run on each; and what only the durable one can lose.

mod crash;
mod durable;
mod suite;
