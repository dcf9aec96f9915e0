//! Controllers of queues, cohorts, flavors, priority classes and topologies. Usage and counts come
//! from the engine. Simultaneous changes to an object cause a single write.

pub mod cluster_queue;
pub mod cohort;
pub mod local_queue;
mod pace;
pub mod populate;
pub mod priority_class;
pub mod protect;
