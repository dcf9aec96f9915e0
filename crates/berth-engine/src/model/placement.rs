//! Where pods may run: selectors, affinity, taints and tolerations.

use super::Labels;
use crate::ids::Name;

/// A label selector. The namespace of a workload must match the selector of the workload's cluster
/// queue.
///
/// An empty selector matches everything. A missing selector, which matches nothing, is the `None`
/// of the `Option` around it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LabelSelector {
    /// Requirements, all of which must hold. `matchLabels` entries are `In` requirements with one
    /// value.
    pub requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// True when every requirement holds for the labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels))
    }
}

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    /// Label key.
    pub key: Name,
    /// How the label relates to the values.
    pub operator: Operator,
    /// The values; empty for `Exists` and `DoesNotExist`, one integer for `Gt` and `Lt`.
    pub values: Vec<Name>,
}

/// Operators of label selectors and node affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    /// The label's value is one of the values.
    In,
    /// The label is absent or its value none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label's value is an integer greater than the value.
    Gt,
    /// The label's value is an integer less than the value.
    Lt,
    /// Something else; a requirement with it is invalid and never matches.
    Unknown(Name),
}

impl Requirement {
    /// True when the labels satisfy this requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let integer = |text: &Name| text.parse::<i64>().ok();
        let compare = |holds: fn(i64, i64) -> bool| {
            let (Some(label), Some(bound)) = (value.and_then(integer), self.values.first().and_then(integer)) else {
                return false;
            };
            holds(label, bound)
        };
        match &self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compare(|label, bound| label > bound),
            Operator::Lt => compare(|label, bound| label < bound),
            Operator::Unknown(_) => false,
        }
    }
}

/// One term of a node affinity: all its expressions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SelectorTerm {
    /// Requirements on node labels.
    pub expressions: Vec<Requirement>,
    /// Requirements on node fields (`metadata.name`); evaluated for nodes, ignored for flavors
    /// (§8.4).
    pub fields: Vec<Requirement>,
}

/// A preferred term and its weight.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PreferredTerm {
    /// 1 to 100.
    pub weight: i32,
    /// The term.
    pub term: SelectorTerm,
}

/// A pod's node affinity.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NodeAffinity {
    /// Required terms, of which at least one must match. `None`: the pod requires nothing. An empty
    /// list matches no node.
    pub required: Option<Vec<SelectorTerm>>,
    /// Preferences, used by topology placement when `TASRespectNodeAffinityPreferred` is on.
    pub preferred: Vec<PreferredTerm>,
}

/// Effect of a taint on pods that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaintEffect {
    /// New pods are not scheduled there.
    NoSchedule,
    /// New pods are scheduled elsewhere if possible; decisions ignore this effect.
    PreferNoSchedule,
    /// New pods are not scheduled there, and running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// The name of the effect in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            TaintEffect::NoSchedule => "NoSchedule",
            TaintEffect::PreferNoSchedule => "PreferNoSchedule",
            TaintEffect::NoExecute => "NoExecute",
        }
    }
}

/// A taint of a flavor or node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint {
    /// Taint key.
    pub key: Name,
    /// Taint value, possibly empty.
    pub value: Name,
    /// Effect of the taint.
    pub effect: TaintEffect,
}

/// A pod's or flavor's toleration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Toleration {
    /// Key it applies to; empty with `exists` tolerates every taint.
    pub key: Name,
    /// True for operator `Exists`, false for `Equal`.
    pub exists: bool,
    /// Value for `Equal`.
    pub value: Name,
    /// Effect that it applies to; `None`: every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// True when the taint is tolerated by this toleration.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && (self.exists || (!self.key.is_empty() && self.value == taint.value))
    }
}
