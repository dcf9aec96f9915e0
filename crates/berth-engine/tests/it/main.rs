//! Tests of the engine: small sets of queues and workloads, and the decisions about them.

mod cluster;
mod cycle;
mod explain;
mod fairness;
mod flavors;
mod gates;
mod map;
mod node_failures;
mod parts;
mod placement;
mod preemption;
mod prose;
mod queues;
mod random;
mod reference;
mod semantics;
mod topology;
mod topology_properties;
mod topology_requests;
mod two_phase;
mod variants;
