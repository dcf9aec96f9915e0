//! What an expression may cost, told from its shape and from how large its inputs can be.
//!
//! Source: the published cost model of CEL (checker) with Kubernetes' sizes: lengths come from schemas, or from what fits
//! into a request.

use crate::ast::{Expr, Fold, Kind, Literal};
use crate::check::Types;
use crate::types::Type;

/// A range of costs, or of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// At least.
    pub min: u64,
    /// At most; `u64::MAX` when nothing bounds it.
    pub max: u64,
}

/// Knows how large variables can be.
pub trait Sizes {
    /// The most characters, items or entries of what a path leads to; a path starts with a variable, `@items` and
    /// `@values` and `@keys` step into collections. `None` if it cannot be known.
    fn max_size(&self, path: &[&str]) -> Option<u64>;
}

/// Knows nothing.
pub struct Unknown;

impl Sizes for Unknown {
    fn max_size(&self, _: &[&str]) -> Option<u64> {
        None
    }
}

impl Estimate {
    const fn exactly(cost: u64) -> Estimate {
        Estimate { min: cost, max: cost }
    }

    const UNBOUNDED: Estimate = Estimate { min: 0, max: u64::MAX };

    fn plus(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn or(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Times a factor, rounded up; floating-point as upstream, whose huge figures show its rounding.
    fn scaled(self, factor: f64) -> Estimate {
        let scale = |value: u64| {
            let scaled = (value as f64 * factor).ceil();
            if scaled >= u64::MAX as f64 { u64::MAX } else { scaled as u64 }
        };
        Estimate { min: scale(self.min), max: scale(self.max) }
    }
}

/// Reading text: ten characters cost one.
const TEXT: f64 = 0.1;
/// Four characters of a regular expression are one of its parts.
const REGEX: f64 = 0.25;

pub(crate) fn estimate(expr: &Expr, types: &Types, sizes: &dyn Sizes) -> Estimate {
    let mut coster =
        Coster { types, sizes, paths: vec![None; types.len()], computed: vec![None; types.len()], locals: Vec::new() };
    coster.cost(expr)
}

struct Coster<'e> {
    types: &'e Types,
    sizes: &'e dyn Sizes,
    /// Where the value of a node comes from.
    paths: Vec<Option<Vec<String>>>,
    /// Sizes that follow from the expression.
    computed: Vec<Option<Estimate>>,
    /// Fold variables: name, path, size.
    locals: Vec<(String, Option<Vec<String>>, Option<Estimate>)>,
}

impl Coster<'_> {
    fn type_of(&self, expr: &Expr) -> &Type {
        &self.types[expr.id as usize]
    }

    fn set_path(&mut self, expr: &Expr, path: Option<Vec<String>>) {
        self.paths[expr.id as usize] = path;
    }

    fn step(&self, from: &Expr, step: &str) -> Option<Vec<String>> {
        // Without a path of its own the step stands alone, as upstream.
        let mut path = self.paths[from.id as usize].clone().unwrap_or_default();
        path.push(step.to_owned());
        Some(path)
    }

    fn set_size(&mut self, expr: &Expr, size: Estimate) {
        self.computed[expr.id as usize] = Some(size);
    }

    fn size(&self, expr: &Expr) -> Estimate {
        if let Some(size) = self.computed[expr.id as usize] {
            return size;
        }
        if let Kind::Literal(literal) = &expr.kind {
            return Estimate::exactly(match literal {
                Literal::String(text) => text.chars().count() as u64,
                Literal::Bytes(bytes) => bytes.len() as u64,
                _ => 1,
            });
        }
        if let Some(path) = &self.paths[expr.id as usize] {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            if let Some(max) = self.sizes.max_size(&path) {
                return Estimate { min: 0, max };
            }
        }
        match self.type_of(expr) {
            Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint | Type::Opaque(_) => {
                Estimate::exactly(1)
            }
            _ => Estimate::UNBOUNDED,
        }
    }

    fn cost(&mut self, expr: &Expr) -> Estimate {
        match &expr.kind {
            Kind::Literal(_) => Estimate::exactly(0),
            Kind::Ident(name) => {
                match self.locals.iter().rev().find(|(local, ..)| local == name).cloned() {
                    Some((_, path, size)) => {
                        self.set_path(expr, path);
                        self.computed[expr.id as usize] = size;
                    }
                    None => self.set_path(expr, Some(vec![name.clone()])),
                }
                Estimate::exactly(1)
            }
            // A dotted name of a type: what stands before the dot is no value and was never given a type.
            Kind::Select { operand, .. } if *self.type_of(operand) == Type::Error => {
                self.set_path(expr, Some(crate::parse::qualified(expr).into_iter().collect()));
                Estimate::exactly(1)
            }
            Kind::Select { operand, field, test } => {
                let below = self.cost(operand);
                // Asking for presence is free beyond getting there.
                if *test {
                    return below;
                }
                let path = self.step(operand, field);
                self.set_path(expr, path);
                let own = match self.type_of(operand) {
                    Type::Map(..) | Type::Object(_) | Type::Param(_) => 1,
                    _ => 0,
                };
                below.plus(Estimate::exactly(own))
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(elements) => {
                self.set_size(expr, Estimate::exactly(elements.len() as u64));
                let sum = Estimate::exactly(10);
                elements.iter().fold(sum, |sum, element| sum.plus(self.cost(&element.value)))
            }
            Kind::Map(entries) => {
                self.set_size(expr, Estimate::exactly(entries.len() as u64));
                let sum = Estimate::exactly(30);
                entries.iter().fold(sum, |sum, entry| {
                    let key = self.cost(&entry.key);
                    sum.plus(key).plus(self.cost(&entry.value))
                })
            }
            Kind::Struct { fields, .. } => {
                let sum = Estimate::exactly(40);
                fields.iter().fold(sum, |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Estimate {
        let mut sum = self.cost(&fold.range);
        sum = sum.plus(self.cost(&fold.init));
        let init_path = self.paths[fold.init.id as usize].clone();
        let init_size = self.computed[fold.init.id as usize];
        let is_binding = fold.var == "#unused";
        let range = self.size(&fold.range);
        let outer = self.locals.len();
        let grows = matches!(fold.init.kind, Kind::List(_) | Kind::Map(_)) && !is_binding;
        let accu_size = if grows { Some(Estimate { min: 0, max: range.max }) } else { init_size };
        self.locals.push((fold.accu.clone(), init_path, accu_size));
        if is_binding {
            sum = sum.plus(self.cost(&fold.result));
            self.computed[expr.id as usize] = self.computed[fold.result.id as usize];
            self.locals.truncate(outer);
            return sum;
        }
        let is_map = matches!(self.type_of(&fold.range), Type::Map(..));
        let items = self.step(&fold.range, "@items");
        let (keys, values) = (self.step(&fold.range, "@keys"), self.step(&fold.range, "@values"));
        match (&fold.var2, is_map) {
            (None, false) => self.locals.push((fold.var.clone(), items, None)),
            (None, true) => self.locals.push((fold.var.clone(), keys, None)),
            (Some(var2), false) => {
                self.locals.push((fold.var.clone(), None, None));
                self.locals.push((var2.clone(), items, None));
            }
            (Some(var2), true) => {
                self.locals.push((fold.var.clone(), keys, None));
                self.locals.push((var2.clone(), values, None));
            }
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.locals.truncate(outer + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(outer);
        if grows {
            self.set_size(expr, Estimate { min: 0, max: range.max });
        }
        sum.plus(range.times(step.plus(condition)))
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Estimate {
        if function == "_?._"
            && let [operand, _] = args
        {
            return self.cost(operand).plus(Estimate::exactly(1));
        }
        let costs: Vec<Estimate> = args.iter().map(|arg| self.cost(arg)).collect();
        let given = costs.iter().fold(Estimate::exactly(0), |sum, cost| sum.plus(*cost));
        match (function, costs.as_slice()) {
            ("_&&_" | "_||_", [left, right]) => return Estimate { min: left.min, max: left.plus(*right).max },
            ("_?_:_", [condition, truthy, falsy]) => {
                let size = self.size(&args[1]).or(self.size(&args[2]));
                self.set_size(expr, size);
                return condition.plus(truthy.or(*falsy));
            }
            _ => {}
        }
        // The first part of a dotted function name costs nothing, like the rest of it.
        let is_namespace = target.is_some_and(|target| {
            crate::parse::qualified(target)
                .is_some_and(|prefix| crate::types::FUNCTIONS.contains_key(format!("{prefix}.{function}").as_str()))
        });
        let target = target.filter(|_| !is_namespace);
        let before = match target {
            Some(target) => self.cost(target).plus(given),
            None => given,
        };
        let operands: Vec<&Expr> = target.into_iter().chain(args).collect();
        let (own, size) = self.function(function, &operands);
        if let Some(size) = size {
            self.set_size(expr, size);
        }
        if function == "_[_]" {
            let step = if matches!(self.type_of(operands[0]), Type::Map(..)) { "@values" } else { "@items" };
            let path = self.step(operands[0], step);
            self.set_path(expr, path);
        }
        before.plus(own)
    }

    /// Looking at every item of a list, all of it.
    fn each(&self, operands: &[&Expr]) -> Estimate {
        let Some(list) = operands.first() else { return Estimate::exactly(0) };
        let size = self.size(list);
        let Type::List(item) = self.type_of(list) else { return size };
        if !matches!(**item, Type::String | Type::Bytes | Type::List(_) | Type::Map(..)) {
            return size;
        }
        let path = self.step(list, "@items");
        let max = path.and_then(|path| self.sizes.max_size(&path.iter().map(String::as_str).collect::<Vec<_>>()));
        size.times(Estimate { min: 0, max: max.unwrap_or(u64::MAX) }.scaled(TEXT).plus(Estimate::exactly(1)))
    }

    /// The cost of a call without its arguments, and the size of its result where that follows.
    fn function(&self, name: &str, operands: &[&Expr]) -> (Estimate, Option<Estimate>) {
        let size = |index: usize| operands.get(index).map_or(Estimate::exactly(0), |operand| self.size(operand));
        let is_text = |index: usize| {
            operands.get(index).is_some_and(|operand| matches!(self.type_of(operand), Type::String | Type::Bytes))
        };
        let is_list =
            |index: usize| operands.get(index).is_some_and(|operand| matches!(self.type_of(operand), Type::List(_)));
        let one = Estimate::exactly(1);
        let smaller = || {
            let (a, b) = (size(0), size(1));
            Estimate { min: a.min.min(b.min), max: a.max.min(b.max) }.scaled(TEXT)
        };
        let up_to = |size: Estimate| Some(Estimate { min: 0, max: size.max });
        match name {
            "_==_" | "_!=_" => (smaller(), None),
            "_<_" | "_<=_" | "_>_" | "_>=_" if is_text(0) => (smaller(), None),
            "_+_" if is_text(0) => {
                let sum = size(0).plus(size(1));
                (sum.scaled(TEXT), Some(sum))
            }
            "_+_" if is_list(0) => (one, Some(size(0).plus(size(1)))),
            "@in" if is_list(1) => (size(1), None),
            "startsWith" | "endsWith" => (size(1).scaled(TEXT), None),
            "contains" => (size(0).scaled(TEXT).times(size(1).scaled(TEXT)), None),
            "matches" => (size(0).plus(one).scaled(TEXT).times(size(1).scaled(REGEX)), None),
            "find" | "findAll" => {
                let cost = size(0).plus(one).scaled(TEXT).times(size(1).scaled(REGEX));
                (cost, up_to(size(0)))
            }
            "bytes" if is_text(0) => {
                let size = size(0);
                (size.scaled(TEXT), Some(Estimate { min: size.min, max: size.max.saturating_mul(4) }))
            }
            "string" if operands.first().is_some_and(|operand| *self.type_of(operand) == Type::Bytes) => {
                let size = size(0);
                (size.scaled(TEXT), Some(Estimate { min: size.min / 4, max: size.max }))
            }
            "format" if operands.len() == 2 => (size(0).scaled(TEXT), None),
            "check" => (Estimate::exactly(350_000), None),
            "fieldSelector" | "labelSelector" => {
                (size(1).scaled(REGEX).times(Estimate::exactly(crate::eval::SELECTOR_COST)), None)
            }
            "isSorted" | "sum" | "max" | "min" => (self.each(operands), None),
            "indexOf" | "lastIndexOf" if is_text(0) => (size(0).scaled(TEXT), None),
            "indexOf" | "lastIndexOf" => (self.each(operands), None),
            "url"
            | "strings.quote"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => (size(0).scaled(TEXT), None),
            "ip" if is_text(0) => (size(0).scaled(TEXT), None),
            "ip.isCanonical" => (size(0).scaled(TEXT * 2.0), None),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => (size(0).scaled(TEXT), up_to(size(0))),
            "replace" => {
                let (text, from, to) = (size(0), size(1), size(2));
                // Every character, or every match, gives way to the replacement.
                let matches = if from.min == 0 { text.max.saturating_add(1) } else { text.max / from.min.max(1) };
                let max = text.max.max(matches.saturating_mul(to.max).saturating_add(text.max));
                (text.scaled(2.0 * TEXT), Some(Estimate { min: 0, max }))
            }
            "split" => (size(0).scaled(2.0 * TEXT), up_to(size(0))),
            "join" => {
                let (list, by) = (size(0), size(1));
                let item = operands
                    .first()
                    .and_then(|operand| self.step(operand, "@items"))
                    .and_then(|path| self.sizes.max_size(&path.iter().map(String::as_str).collect::<Vec<_>>()))
                    .unwrap_or(u64::MAX);
                let max = list.max.saturating_mul(item.saturating_add(by.max));
                let size = Estimate { min: 0, max };
                (size.scaled(TEXT), Some(size))
            }
            "sets.contains" | "sets.equivalent" | "sets.intersects" => (size(0).times(size(1)).plus(one), None),
            "containsIP" | "containsCIDR" => (Estimate { min: 1, max: 10 }, None),
            "validate" => (size(1).plus(one).scaled(TEXT).times(Estimate { min: 0, max: 27 }), None),
            "distinct" => (size(0).times(size(0)).scaled(TEXT), up_to(size(0))),
            "flatten" | "reverse" | "slice" | "sort" | "@sortByAssociatedKeys" => (size(0), up_to(size(0))),
            _ => (one, None),
        }
    }
}
