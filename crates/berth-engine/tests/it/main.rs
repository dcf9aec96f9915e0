//! What the engine decides, told as short platforms and the plans that come out.

mod cycle;
mod explain;
mod fairness;
mod flavors;
mod gates;
mod map;
mod node_failures;
mod parts;
mod placement;
mod platform;
mod preemption;
mod queues;
mod random;
mod reference;
mod semantics;
mod topology;
mod topology_properties;
mod topology_requests;
mod two_phase;
mod variants;
