//! Tests of both stores through [`berth_store::Store`], and of the durability of the SQLite store.

mod crash;
mod damage;
mod durable;
mod full;
mod suite;
