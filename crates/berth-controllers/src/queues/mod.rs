//! Controllers of queues, cohorts, flavors, priority classes and topologies. Figures come from the
//! engine. Writes are coalesced: any number of simultaneous changes cause one write.

pub mod cluster_queue;
pub mod cohort;
pub mod local_queue;
mod pace;
pub mod priority_class;
pub mod protect;
