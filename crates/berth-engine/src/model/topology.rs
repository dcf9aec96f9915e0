//! Topology-aware scheduling: requests, nodes and assignments (§14).

use super::{Labels, ResourceList, Taint};
use crate::ids::Name;

/// A Topology: node label keys from coarse to fine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Name.
    pub name: Name,
    /// Node label keys, coarse to fine.
    pub levels: Vec<Name>,
}

/// The fields of a Node that placement depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Name.
    pub name: Name,
    /// Labels.
    pub labels: Labels,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Allocatable amounts, including `pods`.
    pub allocatable: ResourceList,
    /// True if condition Ready is True.
    pub ready: bool,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
}

/// A running pod outside topology-aware scheduling, whose requests reduce a node's free capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePod {
    /// Namespace.
    pub namespace: Name,
    /// Name.
    pub name: Name,
    /// Node to which it is bound.
    pub node: Name,
    /// Its requests, without the implied request for one of `pods`.
    pub requests: ResourceList,
}

/// The topology request of a pod set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TopologyRequest {
    /// Required, preferred or unconstrained; `None` if only slices or a group are given.
    pub mode: Option<TopologyMode>,
    /// Slice constraints from coarse to fine; more than one is a multi-layer request.
    pub slices: Vec<SliceConstraint>,
    /// Name that pod sets placed together share.
    pub group: Option<Name>,
}

/// How the whole pod set relates to one topology domain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TopologyMode {
    /// All pods must be in one domain of this level.
    Required(Name),
    /// All pods should be in one domain of this level.
    Preferred(Name),
    /// Pods may be in any domains with free capacity.
    Unconstrained,
}

/// Groups of `size` pods must each fit in one domain of a level.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceConstraint {
    /// Level.
    pub level: Name,
    /// Pods per slice. Zero if the object does not set it, which is an error of the request.
    pub size: i32,
}

/// Topology domains of the pods of a pod set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TopologyAssignment {
    /// Levels of the domain values.
    pub levels: Vec<Name>,
    /// Domains in order of their values.
    pub domains: Vec<TopologyDomain>,
}

/// One domain, and the number of pods in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopologyDomain {
    /// One value per level.
    pub values: Vec<Name>,
    /// Pods.
    pub count: i32,
}
