//! Node pools: the machines of a pool as Nodes, and their number.

mod controller;
mod plan;
mod template;

pub use controller::install;
pub use plan::{Order, PoolPlan, REMOVAL_TAINT, has_taint, is_hosted, is_ready, plan, request_of, zones};
pub use template::{NodeTimes, POOL_LABEL, SIMULATED_TAINT, label_for_request, node, taints, template};
