//! Planned expressions: names are resolved to slots, constants are folded.

use std::sync::Arc;

use crate::cost::CostRule;
use crate::error::EvalError;
use crate::library::Implementation;
use crate::value::{Constants, Value};

/// A planned node.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    /// A variable, by its slot.
    Slot(usize),
    Select {
        operand: Box<Node>,
        field: Box<str>,
    },
    Has {
        operand: Box<Node>,
        field: Box<str>,
    },
    OptionalSelect {
        operand: Box<Node>,
        field: Box<str>,
    },
    Index {
        operand: Box<Node>,
        index: Box<Node>,
        optional: bool,
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    If(Box<[Node; 3]>),
    /// `a.or(b)` and `a.orValue(b)`: the second operand is evaluated only if the first is empty.
    Otherwise {
        operands: Box<[Node; 2]>,
        unwrap: bool,
    },
    Operate {
        operator: Operator,
        cost: CostRule,
        operands: Box<[Node; 2]>,
    },
    /// `in` with a list of constants, which costs nothing.
    Member {
        item: Box<Node>,
        constants: Arc<Constants>,
    },
    Not(Box<Node>),
    Negate(Box<Node>),
    NotStrictlyFalse(Box<Node>),
    Call {
        function: Implementation,
        cost: CostRule,
        args: Vec<Node>,
        /// True if the first failed argument ends the call before the remaining arguments are
        /// evaluated; the call then costs nothing, unless the failed argument is the last.
        stops: bool,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Struct {
        name: String,
        fields: Vec<(String, Node, bool)>,
    },
    /// `accumulator + [item]`, in place; appending a constant list costs nothing.
    Append {
        slot: usize,
        item: Box<Node>,
        list_cost: u64,
    },
    /// Adds one or more entries to the accumulated map, in place.
    Insert {
        slot: usize,
        args: Vec<Node>,
    },
    Fold(Box<FoldNode>),
    /// An error found by the planner.
    Fail(EvalError),
}

#[derive(Clone, Debug)]
pub(crate) struct FoldNode {
    pub range: Node,
    pub two: bool,
    pub init: Arc<Node>,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
    /// Slot of the accumulator; the loop variables follow it.
    pub slot: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    In,
}

impl Operator {
    /// The operator with this internal name.
    pub(crate) fn named(function: &str) -> Option<Operator> {
        Some(match function {
            "_==_" => Operator::Equal,
            "_!=_" => Operator::NotEqual,
            "_<_" => Operator::Less,
            "_<=_" => Operator::LessOrEqual,
            "_>_" => Operator::Greater,
            "_>=_" => Operator::GreaterOrEqual,
            "_+_" => Operator::Add,
            "_-_" => Operator::Subtract,
            "_*_" => Operator::Multiply,
            "_/_" => Operator::Divide,
            "_%_" => Operator::Modulo,
            "@in" => Operator::In,
            _ => return None,
        })
    }
}

impl Node {
    /// True if accessing this path costs one in addition to its steps. A path that starts at a
    /// conditional is already charged.
    pub(crate) fn has_base_cost(&self) -> bool {
        match self {
            Node::Select { operand, .. } | Node::OptionalSelect { operand, .. } | Node::Index { operand, .. } => {
                operand.has_base_cost()
            }
            Node::If(_) => false,
            _ => true,
        }
    }
}
