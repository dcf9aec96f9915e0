//! Variables of a policy: named expressions, evaluated and charged on first use.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::EvalError;
use crate::eval::{Machine, Slot};
use crate::program::Program;
use crate::types::{ObjectType, Type};
use crate::value::{Outcome, Value};

/// The variables of one evaluation.
pub struct Variables<'a> {
    programs: &'a BTreeMap<String, Program>,
    inputs: Vec<Value<'a>>,
    done: RefCell<BTreeMap<String, Result<Value<'a>, EvalError>>>,
}

impl<'a> Variables<'a> {
    /// Variables with the same inputs as the expressions that use them.
    pub fn new(programs: &'a BTreeMap<String, Program>, inputs: Vec<Value<'a>>) -> Self {
        Variables { programs, inputs, done: RefCell::new(BTreeMap::new()) }
    }

    /// The type of `variables`, from the variables that compiled.
    pub fn type_of(programs: &BTreeMap<String, Program>) -> Type {
        let fields = programs.iter().map(|(name, program)| (name.clone(), program.result_type().clone()));
        Type::Object(ObjectType::new("kubernetes.variables", fields))
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.programs.contains_key(name)
    }

    pub(crate) fn get(&'a self, name: &str, machine: &mut Machine<'a>) -> Outcome<'a> {
        if let Some(done) = self.done.borrow().get(name) {
            return done.clone();
        }
        let Some(program) = self.programs.get(name) else { return Err(EvalError::NoSuchKey(name.into())) };
        // The variable runs with its own slots and the same cost counter.
        let inputs = self.inputs.iter().cloned().map(|value| Slot::Done(Ok(value))).collect();
        let outer = std::mem::replace(&mut machine.slots, inputs);
        let result = machine.eval(program.root());
        machine.slots = outer;
        let result = result.map_err(|error| match error {
            fatal if fatal.is_final() => fatal,
            error => {
                let text: Arc<str> = format!("composited variable \"{name}\" fails to evaluate: {error}").into();
                EvalError::Message(text)
            }
        });
        self.done.borrow_mut().insert(name.to_owned(), result.clone());
        result
    }
}
