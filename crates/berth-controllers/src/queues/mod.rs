//! Status and life of queues, cohorts, flavors, priority classes and topologies. What is counted comes from the engine;
//! what is written is coalesced: any number of changes of the same instant make one write.

pub mod cluster_queue;
pub mod cohort;
pub mod local_queue;
mod pace;
pub mod priority_class;
pub mod protect;
