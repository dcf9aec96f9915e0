//! The evaluator: runs a planned expression and counts its cost.
//!
//! Costs follow upstream's model: an identifier costs one, a field access one more, a call
//! according to its work. Limits are enforced during evaluation, so that no rule exceeds its
//! budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Atomic};

use crate::authorization::Authorizer;
use crate::cost::{CostRule, LIST_COST, MAP_COST, STRUCT_COST};
use crate::error::EvalError;
use crate::library::Implementation;
use crate::node::{FoldNode, Node, Operator};
use crate::operators::{arithmetic, compare, index_of, member, overflow};
use crate::value::{List, Map, Outcome, OwnedMap, Struct, Value};
use crate::variables::Variables;

/// The state of an evaluation: variables and cost.
pub(crate) struct Machine<'a> {
    pub slots: Vec<Slot<'a>>,
    pub cost: u64,
    pub limit: u64,
    /// Number of elements that all folds have visited.
    pub folded: u64,
    pub interrupt: Option<&'a AtomicBool>,
    pub authorizer: Option<&'a dyn Authorizer>,
    pub variables: Option<&'a Variables<'a>>,
}

/// The slot of a variable.
pub(crate) enum Slot<'a> {
    Done(Outcome<'a>),
    /// Evaluated on first use.
    Pending(Arc<Node>),
}

impl<'a> Slot<'a> {
    /// A slot for the value of a node.
    fn of(node: &Arc<Node>) -> Self {
        match &**node {
            Node::Const(value) => Slot::Done(Ok(value.clone())),
            _ => Slot::Pending(node.clone()),
        }
    }
}

/// Number of elements after which folds check for cancellation.
const INTERRUPT_EVERY: u64 = 100;

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
            Node::Operate { operator, cost, operands } => self.operate(*operator, *cost, operands),
            Node::Member { item, constants } => Ok(Value::Bool(constants.contains(&self.eval(item)?))),
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
            Node::Call { function, cost, args, stops } => self.call(*function, *cost, args, *stops),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Struct { name, fields } => self.object(name, fields),
            Node::Append { slot, item, list_cost } => self.append(*slot, item, *list_cost),
            Node::Insert { slot, args } => self.insert(*slot, args),
            Node::Fold(fold) => self.fold(fold),
            Node::Fail(error) => Err(error.clone()),
        }
    }

    /// The value of a variable.
    fn slot(&mut self, place: usize) -> Outcome<'a> {
        match &self.slots[place] {
            Slot::Done(outcome) => outcome.clone(),
            Slot::Pending(node) => {
                // The node sees only variables declared before it.
                let node = node.clone();
                let above = self.slots.split_off(place);
                let outcome = self.eval(&node);
                self.slots.truncate(place);
                self.slots.extend(above);
                self.slots[place] = Slot::Done(outcome.clone());
                outcome
            }
        }
    }

    /// The value of a node of a path. Each step costs one; the caller charges the base cost of the
    /// path. An optional step without a result costs nothing, nor do the steps after it.
    fn attribute(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Slot(place) => self.slot(*place),
            Node::Select { operand, field } => match self.attribute(operand)? {
                value @ Value::Optional(_) => {
                    let found = self.optional_select(value, field)?;
                    self.step_to(found)
                }
                value => {
                    self.charge(1)?;
                    self.select(value, field)
                }
            },
            Node::OptionalSelect { operand, field } => {
                let value = self.attribute(operand)?;
                let found = self.optional_select(value, field)?;
                self.step_to(found)
            }
            Node::Index { operand, index, optional } => {
                let value = self.attribute(operand)?;
                if let Value::Optional(None) = value {
                    return Ok(value);
                }
                let optional = *optional || matches!(value, Value::Optional(_));
                let index = self.attribute(index);
                if optional {
                    let found = index_of(value, &index?, true)?;
                    return self.step_to(found);
                }
                self.charge(1)?;
                index_of(value, &index?, false)
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

    /// Charges for an optional step if it has a result.
    fn step_to(&mut self, found: Value<'a>) -> Outcome<'a> {
        if !matches!(found, Value::Optional(None)) {
            self.charge(1)?;
        }
        Ok(found)
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
        let (value, optional) = match value {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(value)) => ((*value).clone(), true),
            other => {
                self.charge(1)?;
                (other, false)
            }
        };
        let found = self.has_field(value, field)?;
        if found && optional {
            self.charge(1)?;
        }
        Ok(Value::Bool(found))
    }

    fn has_field(&self, value: Value<'a>, field: &str) -> Result<bool, EvalError> {
        Ok(match value {
            Value::Map(map) => match map.get_str(field) {
                Some(Ok(Value::Null)) => !map.is_object(),
                // A field that exists with the wrong type is an error when it is accessed.
                Some(Ok(_)) => true,
                Some(Err(error)) => return if map.is_object() { Err(error) } else { Ok(true) },
                None => false,
            },
            Value::Struct(value) => value.fields.contains_key(field),
            Value::Variables => self.variables.is_some_and(|variables| variables.contains(field)),
            _ => return Err(EvalError::NoOverload),
        })
    }

    /// `&&` and `||`: a deciding operand overrides an error of the other operand.
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

    /// The value of an argument. A failed argument does not end the call and is charged with size
    /// one.
    fn argument(&mut self, node: &Node, failed: &mut Option<EvalError>) -> Outcome<'a> {
        match self.eval(node) {
            Err(error) if !error.is_final() => {
                failed.get_or_insert(error);
                Ok(Value::Null)
            }
            outcome => outcome,
        }
    }

    fn operate(&mut self, operator: Operator, cost: CostRule, operands: &[Node; 2]) -> Outcome<'a> {
        use Operator::*;
        let mut failed = None;
        let operands = [self.argument(&operands[0], &mut failed)?, self.argument(&operands[1], &mut failed)?];
        self.charge(cost.of(&operands, None))?;
        if let Some(error) = failed {
            return Err(error);
        }
        let [a, b] = operands;
        match operator {
            Equal => Ok(Value::Bool(a.equals(&b)?)),
            NotEqual => Ok(Value::Bool(!a.equals(&b)?)),
            Less | LessOrEqual | Greater | GreaterOrEqual => compare(operator, &a, &b),
            In => member(&a, &b),
            _ => arithmetic(operator, a, b),
        }
    }

    fn call(&mut self, function: Implementation, cost: CostRule, args: &[Node], stops: bool) -> Outcome<'a> {
        let mut values = Vec::with_capacity(args.len());
        let mut failed = None;
        for (index, arg) in args.iter().enumerate() {
            // If the last argument fails, no other argument is skipped, so the call is charged.
            let ends = stops && index + 1 < args.len();
            values.push(if ends { self.eval(arg)? } else { self.argument(arg, &mut failed)? });
        }
        // A call whose known cost exceeds the limit is not started.
        if !cost.needs_result() {
            self.charge(cost.of(&values, None))?;
            return match failed {
                Some(error) => Err(error),
                None => function(self.authorizer, &values),
            };
        }
        let result = match failed {
            Some(error) => Err(error),
            None => function(self.authorizer, &values),
        };
        self.charge(cost.of(&values, Some(&result)))?;
        result
    }

    fn list(&mut self, elements: &[(Node, bool)]) -> Outcome<'a> {
        let result = self.elements(elements);
        self.made(result, LIST_COST)
    }

    /// Charges for a literal, whether or not its creation succeeded.
    fn made(&mut self, result: Outcome<'a>, cost: u64) -> Outcome<'a> {
        match result {
            Err(error) if error.is_final() => Err(error),
            result => {
                self.charge(cost)?;
                result
            }
        }
    }

    fn elements(&mut self, elements: &[(Node, bool)]) -> Outcome<'a> {
        let mut items = Vec::with_capacity(elements.len());
        for (element, optional) in elements {
            match (self.eval(element)?, optional) {
                (value, false) => items.push(value),
                (Value::Optional(value), true) => items.extend(value.map(|value| (*value).clone())),
                (other, true) => return Err(not_optional(&other, "element")),
            }
        }
        Ok(Value::from(items))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
        let result = self.entries(entries);
        self.made(result, MAP_COST)
    }

    fn entries(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
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
        Ok(Value::Map(Map::Owned(Arc::new(map))))
    }

    fn object(&mut self, name: &str, given: &[(String, Node, bool)]) -> Outcome<'a> {
        let result = self.fields(name, given);
        self.made(result, STRUCT_COST)
    }

    fn fields(&mut self, name: &str, given: &[(String, Node, bool)]) -> Outcome<'a> {
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
        Ok(Value::Struct(Arc::new(value)))
    }

    /// Moves the accumulated value out of its slot, so that it can be changed and stored again.
    fn take(&mut self, place: usize) -> Outcome<'a> {
        if let Slot::Pending(_) = self.slots[place]
            && let Err(error) = self.slot(place)
            && error.is_final()
        {
            return Err(error);
        }
        match std::mem::replace(&mut self.slots[place], Slot::Done(Ok(Value::Null))) {
            Slot::Done(outcome) => outcome,
            Slot::Pending(_) => Err(EvalError::NoOverload),
        }
    }

    fn append(&mut self, slot: usize, item: &Node, list_cost: u64) -> Outcome<'a> {
        // Charges for the accumulator, the one-item list and the sum, also if there is no item.
        self.charge(1)?;
        let taken = self.take(slot);
        let item = self.eval(item);
        if let Err(error) = &item
            && error.is_final()
        {
            return item;
        }
        self.charge(list_cost + 1)?;
        match (taken?, item?) {
            (Value::List(List::Owned(mut items, _)), item) => {
                Arc::make_mut(&mut items).push(item);
                Ok(Value::List(List::Owned(items, None)))
            }
            _ => Err(EvalError::NoOverload),
        }
    }

    fn insert(&mut self, slot: usize, args: &[Node]) -> Outcome<'a> {
        self.charge(1)?;
        let taken = self.take(slot);
        // With a key and a value, an earlier failure ends the call.
        if let (Err(_), [_, _]) = (&taken, args) {
            return taken;
        }
        let mut failed = None;
        let mut values = Vec::with_capacity(2);
        for (index, arg) in args.iter().enumerate() {
            let ends = index + 1 < args.len();
            values.push(if ends { self.eval(arg)? } else { self.argument(arg, &mut failed)? });
        }
        self.charge(1)?;
        if let (Ok(_), Some(error)) = (&taken, failed) {
            return Err(error);
        }
        let Value::Map(Map::Owned(mut map)) = taken? else { return Err(EvalError::NoOverload) };
        let into = Arc::make_mut(&mut map);
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(key), Some(value)) => into.insert(key, value)?,
            (Some(Value::Map(more)), None) => into.insert_all(&more)?,
            _ => return Err(EvalError::NoOverload),
        }
        Ok(Value::Map(Map::Owned(map)))
    }

    fn fold(&mut self, fold: &FoldNode) -> Outcome<'a> {
        let range = self.eval(&fold.range)?;
        let bottom = self.slots.len();
        debug_assert_eq!(bottom, fold.slot);
        self.slots.push(Slot::of(&fold.init));
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
            self.slots.truncate(fold.slot + 1);
            match &range {
                Value::List(list) => {
                    if fold.two {
                        self.slots.push(Slot::Done(Ok(Value::Int(index as i64))));
                    }
                    self.slots.push(Slot::Done(list.get(index).unwrap_or(Ok(Value::Null))));
                }
                Value::Map(map) => {
                    let Some(key) = keys.get(index).cloned() else { break };
                    let value = fold.two.then(|| map.get(&key).unwrap_or(Ok(Value::Null)));
                    self.slots.push(Slot::Done(Ok(key)));
                    self.slots.extend(value.map(Slot::Done));
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
            self.slots[fold.slot] = Slot::Done(step);
            self.folded += 1;
            if self.folded.is_multiple_of(INTERRUPT_EVERY)
                && self.interrupt.is_some_and(|interrupt| interrupt.load(Atomic::Relaxed))
            {
                return Err(EvalError::Interrupted);
            }
        }
        self.slots.truncate(fold.slot + 1);
        self.eval(&fold.result)
    }
}

fn not_optional(value: &Value<'_>, what: &str) -> EvalError {
    EvalError::message(format!("cannot initialize optional {what} from non-optional value {}", value.type_name()))
}
