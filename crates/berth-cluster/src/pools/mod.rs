//! Node pools: what a pool's machines look like as Nodes, and how many there are.

mod controller;
mod plan;
mod template;

pub use controller::install;
pub use plan::{Order, PoolPlan, plan};
pub use template::{NodeTimes, node, template};
