//! Workloads: transitions of their status (`status`), the admission checks they need (`checks`),
//! their pod counts (`counts`), and their reconciler (`reconcile`, which is pure, and `controller`,
//! which executes it).

pub mod checks;
pub mod controller;
pub mod counts;
pub mod reconcile;
pub mod status;
#[cfg(test)]
mod tests;
