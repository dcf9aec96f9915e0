//! The type checker: assigns a static type to every node and rejects ill-typed expressions before
//! evaluation.
//!
//! The rules are those of CEL's reference checker: parametric overloads with substitution, `dyn`
//! unifies with every type, and items of list and map literals must have a common type.

use std::sync::Arc;

use berth_apimachinery::regexp;

use crate::ast::{Expr, Field, Fold, Kind, Literal};
use crate::env::Env;
use crate::issue::Issues;
use crate::parse::qualified;
use crate::types::{ObjectType, Type, type_named};
use crate::value::{Timestamp, parse_duration};

/// Types of all nodes by id.
pub(crate) type Types = Vec<Type>;

/// The result of checking an expression.
#[derive(Debug)]
pub(crate) struct Checked {
    pub types: Types,
    /// The function that each node calls, by id; `None` for nodes that are not calls.
    pub calls: Vec<Option<Call>>,
}

/// A resolved call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The full name of the function.
    pub name: String,
    pub is_member: bool,
    /// The declared parameters of every matching overload, with a method's target first.
    pub overloads: Vec<Vec<Type>>,
}

pub(crate) fn check(text: &str, expr: &Expr, count: u32, env: &Env) -> Result<Checked, Issues> {
    let mut checker = Checker {
        env,
        issues: Issues::new(text),
        types: vec![Type::Error; count as usize],
        calls: vec![None; count as usize],
        substitutions: Vec::new(),
        trail: Vec::new(),
        scopes: Vec::new(),
    };
    checker.check(expr);
    for index in 0..checker.types.len() {
        checker.types[index] = checker.substitute(&checker.types[index], true);
    }
    if checker.issues.is_empty() {
        checker.literals(expr);
    }
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    Ok(Checked { types: checker.types, calls: checker.calls })
}

struct Checker<'e> {
    env: &'e Env,
    issues: Issues,
    types: Types,
    calls: Vec<Option<Call>>,
    /// The type bound to each type parameter so far.
    substitutions: Vec<Option<Type>>,
    /// Bindings overwritten by the current unification attempt, for rollback if it fails.
    trail: Vec<(u32, Option<Type>)>,
    scopes: Vec<(String, Type)>,
}

impl Checker<'_> {
    fn fresh(&mut self) -> Type {
        self.substitutions.push(None);
        Type::Param(self.substitutions.len() as u32 - 1)
    }

    fn type_of(&self, expr: &Expr) -> Type {
        self.types[expr.id as usize].clone()
    }

    fn set(&mut self, expr: &Expr, type_: Type) {
        self.types[expr.id as usize] = type_;
    }

    fn check(&mut self, expr: &Expr) {
        let type_ = match &expr.kind {
            Kind::Literal(literal) => match literal {
                Literal::Null => Type::Null,
                Literal::Bool(_) => Type::Bool,
                Literal::Int(_) => Type::Int,
                Literal::Uint(_) => Type::Uint,
                Literal::Double(_) => Type::Double,
                Literal::String(_) => Type::String,
                Literal::Bytes(_) => Type::Bytes,
            },
            Kind::Ident(name) => match self.identifier(name) {
                Some(type_) => type_,
                None => self.undeclared(expr.at, name),
            },
            Kind::Select { operand, field, test } => match qualified(expr).and_then(|name| self.identifier(&name)) {
                Some(type_) if !*test => type_,
                _ => {
                    let type_ = self.field(expr.at, operand, field, false);
                    if *test { Type::Bool } else { type_ }
                }
            },
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(elements) => {
                let mut item = None;
                for element in elements {
                    self.check(&element.value);
                    let type_ = self.unwrapped(&element.value, element.optional);
                    item = Some(self.join(item, type_));
                }
                let item = item.unwrap_or_else(|| self.fresh());
                Type::list(item)
            }
            Kind::Map(entries) => {
                let (mut key, mut value) = (None, None);
                for entry in entries {
                    self.check(&entry.key);
                    let type_ = self.type_of(&entry.key);
                    // Only scalars are valid keys; without this limit, types of nested maps could
                    // double in size at every level.
                    let type_ = match self.substitute(&type_, false) {
                        Type::List(_) | Type::Map(..) | Type::Optional(_) | Type::Type(_) => Type::Dyn,
                        _ => type_,
                    };
                    key = Some(self.join(key, type_));
                    self.check(&entry.value);
                    let type_ = self.unwrapped(&entry.value, entry.optional);
                    value = Some(self.join(value, type_));
                }
                let key = key.unwrap_or_else(|| self.fresh());
                let value = value.unwrap_or_else(|| self.fresh());
                Type::map(key, value)
            }
            Kind::Struct { name, fields } => self.object(expr.at, name, fields),
            Kind::Fold(fold) => self.fold(fold),
        };
        self.set(expr, type_);
    }

    /// The type of an object literal.
    fn object(&mut self, at: u32, name: &str, fields: &[Field]) -> Type {
        let found = self.env.struct_type(name);
        if found.is_none() {
            let message = match self.identifier(name) {
                Some(_) => format!("'{name}' is not a type"),
                None => format!("undeclared reference to '{name}' (in container '')"),
            };
            self.issues.push(at, message);
        }
        for field in fields {
            self.check(&field.value);
            let given = self.unwrapped(&field.value, field.optional);
            let Some(found) = &found else { continue };
            match found.field(&field.name) {
                None => self.issues.push(field.at, format!("undefined field '{}'", field.name)),
                Some(wanted) if !self.is_assignable(&wanted, &given) => {
                    let given = self.substitute(&given, false);
                    let name = &field.name;
                    let text = format!("expected type of field '{name}' is '{wanted}' but provided type is '{given}'");
                    self.issues.push(field.at, text);
                }
                Some(_) => {}
            }
        }
        found.map_or(Type::Error, Type::Object)
    }

    fn undeclared(&mut self, at: u32, name: &str) -> Type {
        self.issues.push(at, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn identifier(&self, name: &str) -> Option<Type> {
        // A local variable hides a dotted name that starts with it.
        let first = name.split('.').next().unwrap_or_default();
        if let Some((_, type_)) = self.scopes.iter().rev().find(|(scoped, _)| scoped == first) {
            return (first == name).then(|| type_.clone());
        }
        if let Some((_, type_)) = self.env.variables.iter().find(|(variable, _)| variable == name) {
            return Some(type_.clone());
        }
        if let Some(type_) = type_named(name) {
            return Some(Type::Type(Some(Arc::new(type_))));
        }
        self.env.struct_type(name).map(|object| Type::Type(Some(Arc::new(Type::Object(object)))))
    }

    /// The type that an item adds to a literal. The expression of an optional item (`?item`) must
    /// be an optional; its type parameter is returned.
    fn unwrapped(&mut self, value: &Expr, optional: bool) -> Type {
        let type_ = self.type_of(value);
        if !optional {
            return type_;
        }
        match self.substitute(&type_, false) {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                let message = format!("expected type 'optional_type({other})' but found '{other}'");
                self.issues.push(value.at, message);
                Type::Error
            }
        }
    }

    fn join(&mut self, previous: Option<Type>, current: Type) -> Type {
        match previous {
            None => current,
            Some(previous) if self.is_assignable(&previous, &current) => most_general(previous, current),
            // Items are compared at the end, when all types are known.
            Some(_) => Type::Dyn,
        }
    }

    fn field(&mut self, at: u32, operand: &Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand = self.substitute(&self.type_of(operand), false);
        let (target, was_optional) = match operand {
            Type::Optional(inner) => ((*inner).clone(), true),
            other => (other, false),
        };
        let result = match &target {
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) => self.object_field(at, object, field),
            Type::Param(_) => {
                self.is_assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                self.issues.push(at, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(result) } else { result }
    }

    fn object_field(&mut self, at: u32, object: &ObjectType, field: &str) -> Type {
        // Field names that are reserved words were added in a later version.
        let is_known = self.env.version >= 31 || !crate::escape::is_keyword(field);
        object.field(field).filter(|_| is_known).unwrap_or_else(|| {
            self.issues.push(at, format!("undefined field '{field}'"));
            Type::Error
        })
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        if function == "_?._"
            && let [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }] = args
        {
            self.set(&args[1], Type::String);
            return self.field(expr.at, operand, field, true);
        }
        for arg in args {
            self.check(arg);
        }
        if let Some(target) = target {
            let name = qualified(target).map(|prefix| format!("{prefix}.{function}"));
            if let Some(name) = name
                && self.namespaced(target)
                && self.env.overloads(&name).is_some()
            {
                return self.resolve(expr, &name, None, args);
            }
            self.check(target);
        }
        self.resolve(expr, function, target, args)
    }

    /// True if a dotted target cannot be a value, so that it may be part of a function's name.
    fn namespaced(&self, target: &Expr) -> bool {
        let mut first = target;
        while let Kind::Select { operand, .. } = &first.kind {
            first = operand;
        }
        match &first.kind {
            Kind::Ident(name) => !self.scopes.iter().any(|(scoped, _)| scoped == name),
            _ => false,
        }
    }

    fn resolve(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Type {
        let given: Vec<Type> =
            target.into_iter().chain(args).map(|arg| self.substitute(&self.type_of(arg), false)).collect();
        let ordered = ordered_overloads(function);
        let declared = self.env.overloads(function);
        if declared.is_none() && ordered.is_none() {
            return self.undeclared(expr.at, function);
        }
        let mut result: Option<Type> = None;
        let mut overloads = Vec::new();
        let mut offer = |checker: &mut Self, declared: &[Type], params: &[Type], answer: Type| {
            if !checker.all_assignable(&given, params) {
                return;
            }
            overloads.push(declared.to_vec());
            let answer = checker.substitute(&answer, false);
            result = Some(match result.take() {
                None => answer,
                Some(first) if first == Type::Dyn || first == answer => first,
                Some(_) => Type::Dyn,
            });
        };
        for overload in declared.into_iter().flatten() {
            if overload.member != target.is_some() || overload.params.len() != given.len() {
                continue;
            }
            let fresh = [self.fresh(), self.fresh()];
            let params: Vec<Type> = overload.params.iter().map(|param| instantiate(param, &fresh)).collect();
            let answer = instantiate(&overload.result, &fresh);
            offer(self, &overload.params, &params, answer);
        }
        for pair in ordered.into_iter().flatten() {
            offer(self, &pair, &pair, Type::Bool);
        }
        self.calls[expr.id as usize] = Some(Call { name: function.to_owned(), is_member: target.is_some(), overloads });
        result.unwrap_or_else(|| {
            let shown: Vec<String> = given.iter().map(|type_| self.substitute(type_, true).to_string()).collect();
            let applied = match target {
                Some(_) => format!("{}.({})", shown[0], shown[1..].join(", ")),
                None => format!("({})", shown.join(", ")),
            };
            self.issues.push(expr.at, format!("found no matching overload for '{function}' applied to '{applied}'"));
            Type::Error
        })
    }

    fn fold(&mut self, fold: &Fold) -> Type {
        self.check(&fold.range);
        self.check(&fold.init);
        let range = self.substitute(&self.type_of(&fold.range), false);
        let accu = self.type_of(&fold.init);
        self.scopes.push((fold.accu.clone(), accu.clone()));
        let (first, second) = match &range {
            Type::List(item) if fold.var2.is_some() => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Error),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.is_assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let text = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issues.push(fold.range.at, text);
                (Type::Error, Type::Error)
            }
        };
        let outer = self.scopes.len();
        self.scopes.push((fold.var.clone(), first));
        if let Some(var2) = &fold.var2 {
            self.scopes.push((var2.clone(), second));
        }
        self.check(&fold.condition);
        self.expect(&fold.condition, &Type::Bool);
        self.check(&fold.step);
        self.expect(&fold.step, &accu);
        self.scopes.truncate(outer);
        self.check(&fold.result);
        self.scopes.pop();
        self.substitute(&self.type_of(&fold.result), false)
    }

    fn expect(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.type_of(expr);
        if !self.is_assignable(wanted, &found) {
            let (wanted, found) = (self.substitute(wanted, false), self.substitute(&found, false));
            self.issues.push(expr.at, format!("expected type '{wanted}' but found '{found}'"));
        }
    }

    /// Replaces type parameters by their bindings; unbound ones become `dyn` if `close` is set.
    fn substitute(&self, type_: &Type, close: bool) -> Type {
        match type_ {
            Type::Param(index) => match &self.substitutions[*index as usize] {
                Some(found) => self.substitute(found, close),
                None if close => Type::Dyn,
                None => type_.clone(),
            },
            Type::List(item) => Type::list(self.substitute(item, close)),
            Type::Map(key, value) => Type::map(self.substitute(key, close), self.substitute(value, close)),
            Type::Optional(value) => Type::optional(self.substitute(value, close)),
            Type::Type(Some(of)) => Type::Type(Some(Arc::new(self.substitute(of, close)))),
            other => other.clone(),
        }
    }

    fn is_assignable(&mut self, to: &Type, from: &Type) -> bool {
        self.trail.clear();
        let fits = self.unify(to, from);
        if !fits {
            self.roll_back();
        }
        fits
    }

    fn roll_back(&mut self) {
        while let Some((param, before)) = self.trail.pop() {
            self.substitutions[param as usize] = before;
        }
    }

    fn stand_for(&mut self, param: u32, type_: Type) {
        let before = self.substitutions[param as usize].replace(type_);
        self.trail.push((param, before));
    }

    fn all_assignable(&mut self, given: &[Type], params: &[Type]) -> bool {
        if given.len() != params.len() {
            return false;
        }
        self.trail.clear();
        let fits = given.iter().zip(params).all(|(given, param)| self.unify(given, param));
        if !fits {
            self.roll_back();
        }
        fits
    }

    fn unify(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Param(index) = b {
            match self.bind(a, *index) {
                Bound::Fits => return true,
                Bound::Conflicts => return false,
                Bound::Open => {}
            }
        }
        if let Type::Param(index) = a {
            return matches!(self.bind(b, *index), Bound::Fits);
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null | Type::Optional(_) | Type::Opaque(_) | Type::Object(_) | Type::Timestamp | Type::Duration
            ),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.unify(a, b),
            (Type::Map(ak, av), Type::Map(bk, bv)) => self.unify(ak, bk) && self.unify(av, bv),
            (Type::Type(a), Type::Type(b)) => {
                if let (Some(a), Some(b)) = (a, b)
                    && (matches!(**a, Type::Param(_)) || matches!(**b, Type::Param(_)))
                {
                    self.unify(a, b);
                }
                true
            }
            _ => a == b,
        }
    }

    /// Binds a type parameter to a type.
    fn bind(&mut self, type_: &Type, param: u32) -> Bound {
        if *type_ == Type::Param(param) {
            return Bound::Fits;
        }
        if let Some(found) = self.substitutions[param as usize].clone() {
            if found == *type_ {
                return Bound::Fits;
            }
            if !self.unify(type_, &found) {
                return Bound::Conflicts;
            }
            let general = most_general(type_.clone(), found);
            if !self.mentions(&general, param) {
                self.stand_for(param, general);
            }
            return Bound::Fits;
        }
        if self.mentions(type_, param) {
            return Bound::Open;
        }
        self.stand_for(param, type_.clone());
        Bound::Fits
    }

    fn mentions(&self, type_: &Type, param: u32) -> bool {
        match type_ {
            Type::Param(index) => {
                *index == param
                    || self.substitutions[*index as usize].as_ref().is_some_and(|found| self.mentions(found, param))
            }
            Type::List(item) | Type::Optional(item) | Type::Type(Some(item)) => self.mentions(item, param),
            Type::Map(key, value) => self.mentions(key, param) || self.mentions(value, param),
            _ => false,
        }
    }

    /// Checks that the elements of a literal list or map have one type, unless the environment
    /// allows mixed types, and that literal timestamps, durations and patterns are valid.
    fn literals(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::List(elements) => {
                let items = elements.iter().map(|element| (&element.value, element.optional));
                self.alike(items);
            }
            Kind::Map(entries) => {
                self.alike(entries.iter().map(|entry| (&entry.key, false)));
                self.alike(entries.iter().map(|entry| (&entry.value, entry.optional)));
            }
            Kind::Call { function, target, args } => {
                let literal = |index: usize| match args.get(index).map(|arg| (&arg.kind, arg.at)) {
                    Some((Kind::Literal(literal), at)) => Some((literal, at)),
                    _ => None,
                };
                let refused = match (function.as_str(), literal(0)) {
                    ("timestamp", Some((Literal::String(text), at))) => Timestamp::parse(text).is_none().then_some(at),
                    ("timestamp", Some((Literal::Int(seconds), at))) => {
                        (!Timestamp::is_in_range(*seconds)).then_some(at)
                    }
                    ("duration", Some((Literal::String(text), at))) => parse_duration(text).is_none().then_some(at),
                    _ => None,
                };
                if let Some(at) = refused {
                    self.issues.push(at, format!("invalid {function} argument"));
                }
                let pattern = if target.is_some() { literal(0) } else { literal(1) };
                if function == "matches"
                    && let Some((Literal::String(pattern), at)) = pattern
                    && regexp::compile(pattern).is_err()
                {
                    self.issues.push(at, "invalid matches argument");
                }
                // The arguments of `format` may have any type.
                if function == "format" {
                    if let Some(target) = target {
                        self.literals(target);
                    }
                    return;
                }
            }
            _ => {}
        }
        expr.children(&mut |child| self.literals(child));
    }

    fn alike<'x>(&mut self, items: impl Iterator<Item = (&'x Expr, bool)>) {
        let mut first: Option<Type> = None;
        for (item, optional) in items.filter(|_| !self.env.mixes) {
            let type_ = match self.type_of(item) {
                Type::Optional(inner) if optional => (*inner).clone(),
                other => other,
            };
            match &first {
                None => first = Some(type_),
                Some(wanted) if *wanted != type_ => {
                    self.issues.push(item.at, format!("expected type '{wanted}' but found '{type_}'"));
                    break;
                }
                Some(_) => {}
            }
        }
    }
}

enum Bound {
    Fits,
    /// The parameter is bound to a different type.
    Conflicts,
    /// The type would contain itself.
    Open,
}

/// Overloads of comparison operators: two values of one ordered type, or any two numbers.
fn ordered_overloads(function: &str) -> Option<Vec<[Type; 2]>> {
    if !matches!(function, "_<_" | "_<=_" | "_>_" | "_>=_") {
        return None;
    }
    let numbers = [Type::Int, Type::Uint, Type::Double];
    let others = [Type::Bool, Type::String, Type::Bytes, Type::Timestamp, Type::Duration];
    let mut pairs: Vec<[Type; 2]> = numbers.iter().cloned().chain(others).map(|type_| [type_.clone(), type_]).collect();
    for a in &numbers {
        pairs.extend(numbers.iter().filter(|b| *b != a).map(|b| [a.clone(), b.clone()]));
    }
    Some(pairs)
}

fn instantiate(type_: &Type, params: &[Type; 2]) -> Type {
    match type_ {
        Type::Param(index) => params[*index as usize].clone(),
        Type::List(item) => Type::list(instantiate(item, params)),
        Type::Map(key, value) => Type::map(instantiate(key, params), instantiate(value, params)),
        Type::Optional(value) => Type::optional(instantiate(value, params)),
        Type::Type(Some(of)) => Type::Type(Some(Arc::new(instantiate(of, params)))),
        other => other.clone(),
    }
}

fn most_general(a: Type, b: Type) -> Type {
    if is_equal_or_less_specific(&a, &b) || !is_equal_or_less_specific(&b, &a) { a } else { b }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => is_equal_or_less_specific(a, b),
        (Type::Map(ak, av), Type::Map(bk, bv)) => {
            is_equal_or_less_specific(ak, bk) && is_equal_or_less_specific(av, bv)
        }
        (Type::Type(_), Type::Type(_)) => true,
        _ => a == b,
    }
}
