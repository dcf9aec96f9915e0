//! Node pools: the machines of a pool as Nodes, and their number.

mod billing;
mod controller;
mod faults;
mod orders;
mod plan;
mod supply;
mod template;

pub use controller::install;
pub use faults::Draws;
pub(crate) use faults::are_pods_stuck;
pub use plan::{
    PoolPlan, REMOVAL_TAINT, annotated_time, has_taint, is_hosted, is_ready, plan, request_of, start_time, zones,
};
pub use supply::{
    MAX_RUN_DURATION, RECLAIMED, TERMINATION_TAINT, announced_end, next_change, next_period, scheduled_stock, stock,
};
pub(crate) use template::daemon_endpoints;
pub use template::{NodeTimes, POOL_LABEL, QUEUED_TAINT, SIMULATED_TAINT, label_for_request, node, taints, template};

#[cfg(test)]
mod tests;
