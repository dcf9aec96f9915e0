//! Both stores through the trait: one suite, run on each; and what only the durable one can lose.

mod crash;
mod damage;
mod durable;
mod full;
mod suite;
