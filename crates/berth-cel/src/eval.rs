//! Running a planned expression, counting what it costs.
//!
//! Costs follow upstream's model: a name costs one, a field one more, a call what its work is worth. Limits are enforced
//! while the expression runs, so that no rule takes longer than its budget.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Atomic};

use crate::library::{Authorizer, Implementation};
use crate::value::{List, Map, OwnedMap, Struct, Text, Timestamp, Value};
use crate::variables::Variables;

/// Why an expression gave no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvalError {
    /// Something went wrong; the text says what.
    Message(Arc<str>),
    /// A field or key is not there.
    NoSuchKey(Arc<str>),
    /// No function of this name takes such values.
    NoOverload,
    /// The expression did more than it may.
    CostLimit,
    /// The caller gave up.
    Interrupted,
}

impl EvalError {
    pub(crate) fn message(text: impl Into<Arc<str>>) -> EvalError {
        EvalError::Message(text.into())
    }

    /// Whether nothing may go on, not even the other side of `||`.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, EvalError::CostLimit | EvalError::Interrupted)
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EvalError::Message(text) => f.write_str(text),
            EvalError::NoSuchKey(key) => write!(f, "no such key: {key}"),
            EvalError::NoOverload => f.write_str("no such overload"),
            EvalError::CostLimit => f.write_str("operation cancelled: actual cost limit exceeded"),
            EvalError::Interrupted => f.write_str("operation interrupted"),
        }
    }
}

impl std::error::Error for EvalError {}

pub(crate) type Outcome<'a> = Result<Value<'a>, EvalError>;

/// What runs an expression: its variables, and the meter.
pub(crate) struct Machine<'a> {
    pub slots: Vec<Outcome<'a>>,
    pub cost: u64,
    pub limit: u64,
    pub interrupt: Option<&'a AtomicBool>,
    pub authorizer: Option<&'a dyn Authorizer>,
    pub variables: Option<&'a Variables<'a>>,
}

/// A planned node: names are resolved to places, constants are computed.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    /// A variable, by place on the stack.
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
    /// `a.or(b)` and `a.orValue(b)`: the second is only looked at when the first is empty.
    Otherwise {
        operands: Box<[Node; 2]>,
        unwrap: bool,
    },
    Operate {
        operator: Operator,
        operands: Box<[Node; 2]>,
    },
    Not(Box<Node>),
    Negate(Box<Node>),
    NotStrictlyFalse(Box<Node>),
    Call {
        function: Implementation,
        cost: CostRule,
        args: Vec<Node>,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Struct {
        name: String,
        fields: Vec<(String, Node, bool)>,
    },
    /// `accumulator + [item]`, in place.
    Append {
        slot: usize,
        item: Box<Node>,
    },
    /// A new entry, or entries, for the accumulated map, in place.
    Insert {
        slot: usize,
        args: Vec<Node>,
    },
    Fold(Box<FoldNode>),
    /// Cannot be evaluated; planning found out.
    Fail(EvalError),
}

#[derive(Clone, Debug)]
pub(crate) struct FoldNode {
    pub range: Node,
    pub two: bool,
    pub init: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
    /// Where the accumulator is; the variables follow.
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

/// What a call costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostRule {
    /// One, whatever the arguments.
    One,
    /// A constant.
    Fixed(u64),
    /// Reading argument `.0` once, `.1` tenths per element.
    Traverse(usize, u64),
    /// One per element of the first argument.
    Each,
    /// As long as the result is, both parts copied.
    Result,
    Contains,
    /// A regular expression over a text; `.0` more than the call itself.
    Matches,
    Selector,
    ContainsIp,
    ContainsCidr,
    Ip,
    /// Two lists, each item against each, `.0` times.
    Sets(u64),
    Validate,
    /// A new list, as long as the result is.
    NewList,
    /// A new list, and each item of the first argument against each.
    NewListCompared,
    Format,
    /// As conversions cost that copy a text.
    Convert,
}

/// `n / 10`, rounded up: reading ten characters costs one.
pub(crate) fn tenth(n: u64) -> u64 {
    n.div_ceil(10)
}

impl CostRule {
    pub(crate) fn of(self, args: &[Value<'_>], result: &Outcome<'_>) -> u64 {
        let size = |index: usize| args.get(index).map_or(0, Value::size);
        let is_string = |index: usize| matches!(args.get(index), Some(Value::String(_)));
        match self {
            CostRule::One => 1,
            CostRule::Fixed(cost) => cost,
            CostRule::Traverse(index, tenths) => (size(index) * tenths).div_ceil(10),
            CostRule::Each => match args.first() {
                Some(Value::String(_) | Value::Bytes(_)) => 1,
                _ => size(0),
            },
            CostRule::Result => result.as_ref().map_or(0, |result| tenth(result.size() * 2)),
            CostRule::Contains => tenth(size(0)) * tenth(size(1)),
            CostRule::Matches => tenth(1 + size(0)) * size(1).div_ceil(4),
            CostRule::Selector => size(1).div_ceil(4) * SELECTOR_COST,
            CostRule::ContainsIp => tenth(size(0) + size(1)) + if is_string(1) { tenth(size(1)) } else { 0 },
            CostRule::ContainsCidr => tenth(size(0) + size(1)) + if is_string(1) { tenth(size(1)) } else { 0 } + 1,
            CostRule::Ip if is_string(0) => tenth(size(0)),
            CostRule::Ip => 1,
            CostRule::Sets(times) => 1 + times * size(0) * size(1),
            CostRule::Validate => match args.first() {
                Some(Value::Format(format)) => tenth(1 + size(1)) * format.regex_length().div_ceil(4),
                _ => 1,
            },
            CostRule::NewList => LIST_COST + 1 + result.as_ref().map_or(0, Value::size),
            CostRule::NewListCompared => LIST_COST + 1 + 2 * size(0) * size(0),
            CostRule::Format => tenth(size(0)),
            CostRule::Convert => match (args.first(), result) {
                (Some(Value::String(_)), Ok(Value::Bytes(_))) | (Some(Value::Bytes(_)), Ok(Value::String(_))) => {
                    tenth(size(0))
                }
                _ => 1,
            },
        }
    }
}

/// What four characters of a selector cost to parse.
pub(crate) const SELECTOR_COST: u64 = 101;
/// How often a fold asks whether anybody still waits for it.
const INTERRUPT_EVERY: usize = 100;
const LIST_COST: u64 = 10;
const MAP_COST: u64 = 30;
const STRUCT_COST: u64 = 40;

impl<'a> Machine<'a> {
    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }

    pub(crate) fn eval(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Slot(_) | Node::Select { .. } | Node::OptionalSelect { .. } | Node::Index { .. } => {
                if node.has_base_cost() {
                    self.charge(1)?;
                }
                self.attribute(node)
            }
            Node::Has { operand, field } => self.has(operand, field),
            Node::And(operands) => self.logic(operands, false),
            Node::Or(operands) => self.logic(operands, true),
            Node::If(_) => self.attribute(node),
            Node::Otherwise { operands, unwrap } => match self.eval(&operands[0])? {
                Value::Optional(None) => self.eval(&operands[1]),
                Value::Optional(Some(value)) if *unwrap => Ok((*value).clone()),
                some @ Value::Optional(_) => Ok(some),
                _ => Err(EvalError::NoOverload),
            },
            Node::Operate { operator, operands } => {
                let (a, b) = (self.eval(&operands[0]), self.eval(&operands[1]));
                self.operate(*operator, a, b)
            }
            Node::Not(operand) => {
                let value = self.eval(operand);
                self.charge(1)?;
                match value? {
                    Value::Bool(value) => Ok(Value::Bool(!value)),
                    _ => Err(EvalError::NoOverload),
                }
            }
            Node::Negate(operand) => {
                let value = self.eval(operand);
                self.charge(1)?;
                match value? {
                    Value::Int(value) => value.checked_neg().map(Value::Int).ok_or_else(overflow),
                    Value::Double(value) => Ok(Value::Double(-value)),
                    _ => Err(EvalError::NoOverload),
                }
            }
            Node::NotStrictlyFalse(operand) => {
                let value = self.eval(operand);
                if let Err(error) = &value
                    && error.is_final()
                {
                    return value;
                }
                self.charge(1)?;
                Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false)))))
            }
            Node::Call { function, cost, args } => self.call(*function, *cost, args),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Struct { name, fields } => self.object(name, fields),
            Node::Append { slot, item } => self.append(*slot, item),
            Node::Insert { slot, args } => self.insert(*slot, args),
            Node::Fold(fold) => self.fold(fold),
            Node::Fail(error) => Err(error.clone()),
        }
    }

    /// A node's value as the start of a path: the path pays for it.
    fn attribute(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Slot(slot) => self.slots[*slot].clone(),
            Node::Select { operand, field } => {
                let value = self.attribute(operand)?;
                self.charge(1)?;
                self.select(value, field)
            }
            Node::OptionalSelect { operand, field } => {
                let value = self.attribute(operand)?;
                self.charge(1)?;
                self.optional_select(value, field)
            }
            Node::Index { operand, index, optional } => {
                let value = self.attribute(operand)?;
                let index = self.attribute(index)?;
                self.charge(1)?;
                index_of(value, &index, *optional)
            }
            Node::If(parts) => match self.eval(&parts[0])? {
                Value::Bool(true) => self.attribute(&parts[1]),
                Value::Bool(false) => self.attribute(&parts[2]),
                _ => Err(EvalError::NoOverload),
            },
            other => self.eval(other),
        }
    }

    fn select(&mut self, value: Value<'a>, field: &str) -> Outcome<'a> {
        let missing = || EvalError::NoSuchKey(field.into());
        match value {
            Value::Map(map) => map.get_str(field).unwrap_or_else(|| Err(missing())),
            Value::Struct(value) => match value.fields.get(field) {
                Some(value) => Ok(value.clone()),
                None => Err(missing()),
            },
            Value::Variables => self.variable(field),
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(value)) => self.optional_select((*value).clone(), field),
            Value::Unknown(json) => self.select(crate::value::untyped(json), field),
            _ => Err(EvalError::NoOverload),
        }
    }

    fn variable(&mut self, name: &str) -> Outcome<'a> {
        let Some(variables) = self.variables else { return Err(EvalError::NoSuchKey(name.into())) };
        variables.get(name, self)
    }

    fn optional_select(&mut self, value: Value<'a>, field: &str) -> Outcome<'a> {
        let found = match value {
            Value::Optional(None) => None,
            Value::Optional(Some(inner)) => return self.optional_select((*inner).clone(), field),
            Value::Map(map) => map.get_str(field).transpose()?,
            Value::Struct(value) => value.fields.get(field).cloned(),
            Value::Variables => Some(self.variable(field)?),
            _ => return Err(EvalError::NoOverload),
        };
        Ok(Value::Optional(found.map(Arc::new)))
    }

    fn has(&mut self, operand: &Node, field: &str) -> Outcome<'a> {
        let value = self.attribute(operand)?;
        self.charge(1)?;
        let value = match value {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(value)) => (*value).clone(),
            other => other,
        };
        Ok(Value::Bool(match value {
            Value::Map(map) => match map.get_str(field) {
                Some(Ok(Value::Null)) => !map.is_object(),
                // What is there but not as declared is an error to look at.
                Some(Ok(_)) => true,
                Some(Err(error)) => return if map.is_object() { Err(error) } else { Ok(Value::Bool(true)) },
                None => false,
            },
            Value::Struct(value) => value.fields.contains_key(field),
            Value::Variables => self.variables.is_some_and(|variables| variables.contains(field)),
            _ => return Err(EvalError::NoOverload),
        }))
    }

    /// `&&` and `||`: the side that decides wins over an error on the other.
    fn logic(&mut self, operands: &[Node; 2], deciding: bool) -> Outcome<'a> {
        let mut failed = None;
        for operand in operands {
            match self.eval(operand) {
                Ok(Value::Bool(value)) if value == deciding => return Ok(Value::Bool(deciding)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(EvalError::NoOverload)),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!deciding)), Err)
    }

    fn operate(&mut self, operator: Operator, a: Outcome<'a>, b: Outcome<'a>) -> Outcome<'a> {
        use Operator::*;
        let (a, b) = match (a, b) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                // A call whose operand failed has been paid for all the same.
                self.charge(1)?;
                return Err(error);
            }
        };
        let cost = match (operator, &a, &b) {
            (Equal | NotEqual, ..) => tenth(a.size().min(b.size())),
            (Less | LessOrEqual | Greater | GreaterOrEqual, Value::String(_) | Value::Bytes(_), _) => {
                tenth(a.size().min(b.size()))
            }
            (Add, Value::String(_) | Value::Bytes(_), _) => tenth(a.size() + b.size()),
            (In, _, Value::List(list)) => list.len() as u64,
            _ => 1,
        };
        self.charge(cost)?;
        match operator {
            Equal => Ok(Value::Bool(a.equals(&b)?)),
            NotEqual => Ok(Value::Bool(!a.equals(&b)?)),
            Less | LessOrEqual | Greater | GreaterOrEqual => compare(operator, &a, &b),
            In => member(&a, &b),
            _ => arithmetic(operator, a, b),
        }
    }

    fn call(&mut self, function: Implementation, cost: CostRule, args: &[Node]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(args.len());
        let mut failed = None;
        for arg in args {
            match self.eval(arg) {
                Ok(value) => values.push(value),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            self.charge(1)?;
            return Err(error);
        }
        // What is known to be too much is not begun.
        if !matches!(cost, CostRule::Result | CostRule::Convert | CostRule::NewList) {
            self.charge(cost.of(&values, &Err(EvalError::NoOverload)))?;
            return function(self, &values);
        }
        let result = function(self, &values);
        self.charge(cost.of(&values, &result))?;
        result
    }

    fn list(&mut self, elements: &[(Node, bool)]) -> Outcome<'a> {
        let mut items = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.eval(element)?, optional) {
                (value, false) => items.push(value),
                (Value::Optional(value), true) => items.extend(value.map(|value| (*value).clone())),
                (other, true) => return Err(not_optional(&other, "element")),
            }
        }
        self.charge(LIST_COST)?;
        Ok(Value::from(items))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
        let mut map = OwnedMap::default();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            match (self.eval(value)?, optional) {
                (value, false) => map.insert(key, value)?,
                (Value::Optional(Some(value)), true) => map.insert(key, (*value).clone())?,
                (Value::Optional(None), true) => {}
                (other, true) => return Err(not_optional(&other, "entry")),
            }
        }
        self.charge(MAP_COST)?;
        Ok(Value::Map(Map::Owned(Arc::new(map))))
    }

    fn object(&mut self, name: &str, given: &[(String, Node, bool)]) -> Outcome<'a> {
        let mut value = Struct { name: name.to_owned(), fields: std::collections::BTreeMap::new() };
        for (field, node, optional) in given {
            let field_value = match (self.eval(node)?, optional) {
                (value, false) => Some(value),
                (Value::Optional(value), true) => value.map(|value| (*value).clone()),
                (other, true) => return Err(not_optional(&other, "field")),
            };
            if let Some(field_value) = field_value {
                value.fields.insert(field.clone(), field_value);
            }
        }
        self.charge(STRUCT_COST)?;
        Ok(Value::Struct(Arc::new(value)))
    }

    fn append(&mut self, slot: usize, item: &Node) -> Outcome<'a> {
        let item = self.eval(item)?;
        // The accumulator, the list of one, and the sum.
        self.charge(1 + LIST_COST + 1)?;
        let taken = std::mem::replace(&mut self.slots[slot], Ok(Value::Null));
        match taken? {
            Value::List(List::Owned(mut items)) => {
                Arc::make_mut(&mut items).push(item);
                Ok(Value::List(List::Owned(items)))
            }
            _ => Err(EvalError::NoOverload),
        }
    }

    fn insert(&mut self, slot: usize, args: &[Node]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(2);
        for arg in args {
            values.push(self.eval(arg)?);
        }
        self.charge(2)?;
        let taken = std::mem::replace(&mut self.slots[slot], Ok(Value::Null));
        let Value::Map(Map::Owned(mut map)) = taken? else { return Err(EvalError::NoOverload) };
        let into = Arc::make_mut(&mut map);
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(key), Some(value)) => into.insert(key, value)?,
            (Some(Value::Map(more)), None) => {
                for key in more.keys() {
                    if let Some(value) = more.get(&key) {
                        into.insert(key, value?)?;
                    }
                }
            }
            _ => return Err(EvalError::NoOverload),
        }
        Ok(Value::Map(Map::Owned(map)))
    }

    fn fold(&mut self, fold: &FoldNode) -> Outcome<'a> {
        let range = self.eval(&fold.range)?;
        let init = self.eval(&fold.init);
        let bottom = self.slots.len();
        debug_assert_eq!(bottom, fold.slot);
        self.slots.push(init);
        let result = self.fold_over(fold, range);
        self.slots.truncate(bottom);
        result
    }

    fn fold_over(&mut self, fold: &FoldNode, range: Value<'a>) -> Outcome<'a> {
        let keys = match &range {
            Value::List(_) => Vec::new(),
            Value::Map(map) => map.keys(),
            _ => return Err(EvalError::NoOverload),
        };
        let count = if let Value::List(list) = &range { list.len() } else { keys.len() };
        for index in 0..count {
            if index % INTERRUPT_EVERY == INTERRUPT_EVERY - 1
                && self.interrupt.is_some_and(|interrupt| interrupt.load(Atomic::Relaxed))
            {
                return Err(EvalError::Interrupted);
            }
            self.slots.truncate(fold.slot + 1);
            match &range {
                Value::List(list) => {
                    if fold.two {
                        self.slots.push(Ok(Value::Int(index as i64)));
                    }
                    self.slots.push(list.get(index).unwrap_or(Ok(Value::Null)));
                }
                Value::Map(map) => {
                    let Some(key) = keys.get(index).cloned() else { break };
                    let value = fold.two.then(|| map.get(&key).unwrap_or(Ok(Value::Null)));
                    self.slots.push(Ok(key));
                    self.slots.extend(value);
                }
                _ => {}
            }
            match self.eval(&fold.condition) {
                Ok(Value::Bool(false)) => break,
                Err(error) if error.is_final() => return Err(error),
                _ => {}
            }
            let step = self.eval(&fold.step);
            if let Err(error) = &step
                && error.is_final()
            {
                return step;
            }
            self.slots.truncate(fold.slot + 1);
            self.slots[fold.slot] = step;
        }
        self.slots.truncate(fold.slot + 1);
        self.eval(&fold.result)
    }
}

impl Node {
    /// Whether reading this path costs one on top of its steps: unless it starts at a choice, which was paid for.
    fn has_base_cost(&self) -> bool {
        match self {
            Node::Select { operand, .. } | Node::OptionalSelect { operand, .. } | Node::Index { operand, .. } => {
                operand.has_base_cost()
            }
            Node::If(_) => false,
            _ => true,
        }
    }
}

fn not_optional(value: &Value<'_>, what: &str) -> EvalError {
    EvalError::message(format!("cannot initialize optional {what} from non-optional value {}", value.type_name()))
}

fn overflow() -> EvalError {
    EvalError::message("integer overflow")
}

fn index_of<'a>(value: Value<'a>, index: &Value<'a>, optional: bool) -> Outcome<'a> {
    let (value, optional) = match value {
        Value::Optional(None) => return Ok(Value::Optional(None)),
        Value::Optional(Some(value)) => ((*value).clone(), true),
        other => (other, optional),
    };
    let found = match &value {
        Value::List(list) => {
            let position = match index {
                Value::Int(index) => Some(*index),
                Value::Uint(index) => i64::try_from(*index).ok(),
                Value::Double(index) if index.fract() == 0.0 => Some(*index as i64),
                _ => None,
            };
            let Some(position) = position else {
                let text = format!("unsupported index type '{}' in list", index.type_name());
                return Err(EvalError::message(text));
            };
            let found = usize::try_from(position).ok().and_then(|position| list.get(position));
            match found {
                None if !optional => return Err(EvalError::message(format!("index out of bounds: {position}"))),
                found => found.transpose()?,
            }
        }
        Value::Map(map) => match map.get(index) {
            None if !optional => {
                let shown = match index {
                    Value::String(text) => text.to_string(),
                    other => other.to_json().map(|json| json.to_string()).unwrap_or_default(),
                };
                return Err(EvalError::NoSuchKey(shown.into()));
            }
            found => found.transpose()?,
        },
        Value::Unknown(json) => return index_of(crate::value::untyped(json), index, optional),
        _ => return Err(EvalError::NoOverload),
    };
    match (found, optional) {
        (Some(found), false) => Ok(found),
        (found, _) => Ok(Value::Optional(found.map(Arc::new))),
    }
}

fn compare<'a>(operator: Operator, a: &Value<'a>, b: &Value<'a>) -> Outcome<'a> {
    let numeric = |value: &Value<'_>| matches!(value, Value::Int(_) | Value::Uint(_) | Value::Double(_));
    let Some(order) = a.compare(b) else {
        // Not a number compares to nothing.
        return if numeric(a) && numeric(b) { Ok(Value::Bool(false)) } else { Err(EvalError::NoOverload) };
    };
    Ok(Value::Bool(match operator {
        Operator::Less => order == Ordering::Less,
        Operator::LessOrEqual => order != Ordering::Greater,
        Operator::Greater => order == Ordering::Greater,
        _ => order != Ordering::Less,
    }))
}

fn member<'a>(a: &Value<'a>, b: &Value<'a>) -> Outcome<'a> {
    match b {
        Value::List(list) => {
            for item in list.iter() {
                if item?.equals(a)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Value::Map(map) => Ok(Value::Bool(map.get(a).is_some())),
        _ => Err(EvalError::NoOverload),
    }
}

fn arithmetic<'a>(operator: Operator, a: Value<'a>, b: Value<'a>) -> Outcome<'a> {
    use Operator::*;
    let zero = || EvalError::message(if operator == Divide { "division by zero" } else { "modulus by zero" });
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => {
            if matches!(operator, Divide | Modulo) && b == 0 {
                return Err(zero());
            }
            let result = match operator {
                Add => a.checked_add(b),
                Subtract => a.checked_sub(b),
                Multiply => a.checked_mul(b),
                Divide => a.checked_div(b),
                _ => a.checked_rem(b),
            };
            result.map(Value::Int).ok_or_else(overflow)
        }
        (Value::Uint(a), Value::Uint(b)) => {
            if matches!(operator, Divide | Modulo) && b == 0 {
                return Err(zero());
            }
            let result = match operator {
                Add => a.checked_add(b),
                Subtract => a.checked_sub(b),
                Multiply => a.checked_mul(b),
                Divide => a.checked_div(b),
                _ => a.checked_rem(b),
            };
            result.map(Value::Uint).ok_or_else(|| EvalError::message("unsigned integer overflow"))
        }
        (Value::Double(a), Value::Double(b)) => match operator {
            Add => Ok(Value::Double(a + b)),
            Subtract => Ok(Value::Double(a - b)),
            Multiply => Ok(Value::Double(a * b)),
            Divide => Ok(Value::Double(a / b)),
            _ => Err(EvalError::NoOverload),
        },
        (Value::String(a), Value::String(b)) if operator == Add => {
            let mut text = String::with_capacity(a.len() + b.len());
            text.push_str(&a);
            text.push_str(&b);
            Ok(Value::String(Text::Owned(text.into())))
        }
        (Value::Bytes(a), Value::Bytes(b)) if operator == Add => Ok(Value::Bytes([&*a, &*b].concat().into())),
        (Value::List(a), Value::List(b)) if operator == Add => a.concat(&b),
        (Value::Duration(a), Value::Duration(b)) => {
            let result = match operator {
                Add => a.checked_add(b),
                Subtract => a.checked_sub(b),
                _ => return Err(EvalError::NoOverload),
            };
            result.map(Value::Duration).ok_or_else(|| EvalError::message("duration overflow"))
        }
        (Value::Timestamp(at), Value::Duration(by)) if operator == Add => shift(at, i128::from(by)),
        (Value::Duration(by), Value::Timestamp(at)) if operator == Add => shift(at, i128::from(by)),
        (Value::Timestamp(at), Value::Duration(by)) if operator == Subtract => shift(at, -i128::from(by)),
        (Value::Timestamp(a), Value::Timestamp(b)) if operator == Subtract => {
            let nanos = total_nanos(a) - total_nanos(b);
            i64::try_from(nanos).map(Value::Duration).map_err(|_| EvalError::message("duration overflow"))
        }
        _ => Err(EvalError::NoOverload),
    }
}

const NANOS: i128 = 1_000_000_000;

fn total_nanos(at: Timestamp) -> i128 {
    i128::from(at.seconds) * NANOS + i128::from(at.nanos)
}

fn shift<'a>(at: Timestamp, by: i128) -> Outcome<'a> {
    let total = total_nanos(at) + by;
    let seconds = i64::try_from(total.div_euclid(NANOS)).map_err(|_| EvalError::message("timestamp overflow"))?;
    Timestamp::checked(seconds, total.rem_euclid(NANOS) as u32, at.offset)
        .map(Value::Timestamp)
        .map_err(|_| EvalError::message("timestamp overflow"))
}
