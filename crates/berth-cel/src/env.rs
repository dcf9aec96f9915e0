//! The environment of an expression: variables, functions, types.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check;
use crate::issue::Issues;
use crate::parse::{self, Macros};
use crate::program::Program;
use crate::signatures::{FUNCTIONS, Overload};
use crate::types::{ObjectType, Type};

/// The newest supported compatibility version (Kubernetes 1.N). The API server compiles all
/// expressions with it. It is the version before the server's own, so that a server that is rolled
/// back by one version has all functions of a stored expression.
pub const NEWEST: u32 = 35;

/// A set of declarations to compile expressions against.
#[derive(Clone, Debug)]
pub struct Env {
    pub(crate) version: u32,
    pub(crate) variables: Vec<(String, Type)>,
    pub(crate) extra: BTreeMap<String, Vec<Overload>>,
    pub(crate) patches: bool,
    pub(crate) selectors: bool,
    pub(crate) folds: bool,
    pub(crate) mixes: bool,
    pub(crate) bindings: bool,
}

impl Default for Env {
    fn default() -> Self {
        Env::new(NEWEST)
    }
}

impl Env {
    /// An environment with the libraries of Kubernetes 1.`version`.
    pub fn new(version: u32) -> Self {
        Env {
            version,
            variables: Vec::new(),
            extra: BTreeMap::new(),
            patches: false,
            selectors: version >= 31,
            folds: true,
            mixes: false,
            bindings: false,
        }
    }

    /// Adds a variable. Values are passed to [`Program::run`] in the order of declaration.
    #[must_use]
    pub fn variable(mut self, name: &str, type_: Type) -> Self {
        self.variables.push((name.to_owned(), type_));
        self
    }

    /// Enables or disables `fieldSelector` and `labelSelector` of authorization checks.
    #[must_use]
    pub fn selectors(mut self, enabled: bool) -> Self {
        self.selectors = enabled;
        self
    }

    /// Enables or disables constant folding before evaluation. The API server folds constants, and
    /// folded constants cost nothing.
    #[must_use]
    pub fn fold_constants(mut self, enabled: bool) -> Self {
        self.folds = enabled;
        self
    }

    /// Allows or rejects list and map literals with values of several types. CEL allows them,
    /// Kubernetes rejects them.
    #[must_use]
    pub fn mixed_literals(mut self, enabled: bool) -> Self {
        self.mixes = enabled;
        self
    }

    /// Adds the types of mutating policies: `Object`, the types below it, and `JSONPatch`.
    #[must_use]
    pub fn patches(mut self) -> Self {
        self.patches = true;
        self
    }

    /// Adds the macro `cel.bind(name, value, body)`.
    #[must_use]
    pub fn bindings(mut self) -> Self {
        self.bindings = true;
        self
    }

    /// Declares a function with these parameters and this result, but without an implementation. It
    /// stands for a function of another server version in tests.
    #[must_use]
    pub fn constant_function(mut self, name: &str, params: Vec<Type>, result: Type) -> Self {
        let overload = Overload { member: false, params, result, since: 0 };
        self.extra.entry(name.to_owned()).or_default().push(overload);
        self
    }

    pub(crate) fn macros(&self) -> Macros {
        Macros {
            optionals: self.version >= 29,
            two_variables: self.version >= 32,
            sort_by: self.version >= 34,
            bindings: self.bindings,
        }
    }

    /// Compiles an expression.
    pub fn compile(&self, text: &str) -> Result<Program, Issues> {
        let (expr, count) = parse::parse(text, self.macros())?;
        let checked = check::check(text, &expr, count, self)?;
        Ok(Program::plan(text, expr, checked, self))
    }

    /// The type that an object literal of this name creates.
    pub(crate) fn struct_type(&self, name: &str) -> Option<Arc<ObjectType>> {
        if !self.patches {
            return None;
        }
        if name == "JSONPatch" {
            let fields = [("op", Type::String), ("path", Type::String), ("from", Type::String), ("value", Type::Dyn)];
            return Some(ObjectType::new(name, fields));
        }
        let is_object = name == "Object" || name.starts_with("Object.");
        is_object.then(|| Arc::new(ObjectType { name: name.to_owned(), fields: None }))
    }

    /// The overloads of a function in this environment.
    pub(crate) fn overloads(&self, name: &str) -> Option<Vec<&Overload>> {
        let is_missing = match name {
            "fieldSelector" | "labelSelector" => !self.selectors,
            "jsonpatch.escapeKey" => !self.patches,
            _ => false,
        };
        if is_missing {
            return None;
        }
        let known = FUNCTIONS.get(name).into_iter().flatten();
        let own = self.extra.get(name).into_iter().flatten();
        let found: Vec<&Overload> = known.filter(|overload| overload.since <= self.version).chain(own).collect();
        (!found.is_empty()).then_some(found)
    }
}
