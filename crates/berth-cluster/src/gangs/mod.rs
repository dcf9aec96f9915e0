//! Decides about gangs: pods that are placed together or not at all. Pure functions and values.
//!
//! [`pod_group`] has the rules of the coscheduling plugin. The other modules place Sakkara's
//! groups: [`topology`] is the tree of racks and nodes, [`constraints`] says how a group is
//! distributed over the units of a level, and [`solver`] chooses the number of pods of each node.
//! [`member`] gives the chosen places to pods and ranks them, and [`plan`] does all of this for a
//! cluster. [`group`] reads and writes the group's ConfigMap.
//!
//! The scheduler ([`crate::scheduler`]) knows the clock, the pods and the API, and calls these
//! functions.

pub mod constraints;
pub mod counts;
pub mod distribution;
pub mod group;
pub mod member;
pub mod plan;
pub mod pod_group;
pub mod solver;
pub mod topology;

#[cfg(test)]
pub(crate) mod tests;
