//! Workloads: how their status moves (`status`), which admission checks they need (`checks`), how many pods they have
//! (`counts`), what their controller does (`reconcile`), and the task that carries it out (`controller`).

pub mod checks;
pub mod controller;
pub mod counts;
pub mod reconcile;
pub mod status;
#[cfg(test)]
mod tests;
