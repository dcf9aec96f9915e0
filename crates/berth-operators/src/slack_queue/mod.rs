//! Quota follows the health of nodes.
//!
//! A slack queue is a ClusterQueue without jobs of its own, whose quota a cohort may borrow. When
//! nodes become unusable, the amounts that they lack are taken out of what the slack queue lends,
//! so the quotas of teams need no change. ClusterQueues of a cohort without a slack queue get a
//! condition instead while their nominal quota exceeds what healthy nodes have.
//!
//! [`limits`] and [`shortfall`] decide, [`flavors`] assigns nodes to flavors, and the controller
//! writes. Source of the slack queue: AppWrapper 0.30. Differences: a node counts for the first
//! flavor whose node labels it has, not for the first flavor of the queue, and every resource group
//! is adjusted. A queue with one flavor without node labels behaves as upstream.

mod controller;
mod flavors;
mod limits;
mod shortfall;

pub use controller::install;
pub use flavors::{Flavors, Lost};
pub use limits::adjusted;
pub use shortfall::{CONDITION, Shortfall, shortfalls};
