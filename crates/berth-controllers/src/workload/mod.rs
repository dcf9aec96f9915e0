//! Workloads: how their status moves (`status`), which admission checks they need (`checks`), what their controller does
//! (`reconcile`), and the task that carries it out (`controller`).

pub mod checks;
pub mod controller;
pub mod reconcile;
pub mod status;
