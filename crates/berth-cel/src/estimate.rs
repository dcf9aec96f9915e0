//! Static cost estimates, from the shape of an expression and the maximum sizes of its inputs.
//!
//! Source: CEL's published cost model (checker) with Kubernetes' sizes: lengths come from schemas,
//! or from the request size limit.

use crate::ast::{Expr, Fold, Kind, Literal};
use crate::check::Checked;
use crate::cost::{
    CHECK_COST, FORMAT_LENGTH_MAX, FORMAT_NAME_MAX, LIST_COST, MAP_COST, REGEX, REQUIREMENT_COST,
    SELECTOR_REQUIREMENTS, STRUCT_COST, TEXT,
};
use crate::types::Type;

/// A range of costs, or of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Lower bound.
    pub min: u64,
    /// Upper bound; `u64::MAX` if unbounded.
    pub max: u64,
}

/// Provides maximum sizes of values whose size the expression does not determine.
pub trait Sizes {
    /// Maximum number of characters, items or entries of the value at a path; `None` if unknown. A
    /// path starts with a variable. `@items`, `@values` and `@keys` step into collections. The path
    /// is empty for a value that is not part of a variable. `type_` is the static type of the
    /// value.
    fn max_size(&self, path: &[&str], type_: &Type) -> Option<u64>;
}

/// Provides no sizes.
pub struct Unknown;

impl Sizes for Unknown {
    fn max_size(&self, _: &[&str], _: &Type) -> Option<u64> {
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

    /// The estimate multiplied by a factor and rounded up. The computation is in floating point, as
    /// upstream, because the rounding is visible in large costs.
    fn scaled(self, factor: f64) -> Estimate {
        let scale = |value: u64| {
            let scaled = (value as f64 * factor).ceil();
            if scaled >= u64::MAX as f64 { u64::MAX } else { scaled as u64 }
        };
        Estimate { min: scale(self.min), max: scale(self.max) }
    }
}

pub(crate) fn estimate(expr: &Expr, checked: &Checked, sizes: &dyn Sizes) -> Estimate {
    let nodes = checked.types.len();
    let mut coster = Coster {
        checked,
        sizes,
        paths: vec![None; nodes],
        computed: vec![None; nodes],
        entries: vec![None; nodes],
        locals: Vec::new(),
    };
    coster.cost(expr)
}

/// Origin of a value: a variable and the steps from it.
type ValuePath = Option<Vec<String>>;

/// Sizes of the keys and values of a list or map; a list's values are its items.
#[derive(Clone, Copy)]
struct Entry {
    is_list: bool,
    key: Estimate,
    value: Estimate,
}

impl Entry {
    fn or(self, other: Entry) -> Entry {
        Entry { is_list: self.is_list, key: self.key.or(other.key), value: self.value.or(other.value) }
    }
}

/// A variable of a fold, which is the expanded form of a macro such as `all` or `map`.
#[derive(Clone)]
struct Local {
    name: String,
    path: ValuePath,
    size: Option<Estimate>,
    entry: Option<Entry>,
}

struct Coster<'e> {
    checked: &'e Checked,
    sizes: &'e dyn Sizes,
    /// The origin of each node's value.
    paths: Vec<ValuePath>,
    /// Size of each node's value, if it was computed from the expression or looked up.
    computed: Vec<Option<Estimate>>,
    /// Sizes of the contents of each node's list or map, if computed.
    entries: Vec<Option<Entry>>,
    locals: Vec<Local>,
}

impl Coster<'_> {
    fn type_of(&self, expr: &Expr) -> &Type {
        &self.checked.types[expr.id as usize]
    }

    fn local(&self, expr: &Expr) -> Option<&Local> {
        let Kind::Ident(name) = &expr.kind else { return None };
        self.locals.iter().rev().find(|local| local.name == *name)
    }

    fn path(&self, expr: &Expr) -> ValuePath {
        match self.local(expr) {
            Some(local) => local.path.clone(),
            None => self.paths[expr.id as usize].clone(),
        }
    }

    fn set_path(&mut self, expr: &Expr, path: ValuePath) {
        self.paths[expr.id as usize] = path;
    }

    fn step(&self, from: &Expr, step: &str) -> ValuePath {
        // A step without a parent path starts a new path, as upstream.
        let mut path = self.path(from).unwrap_or_default();
        path.push(step.to_owned());
        Some(path)
    }

    fn look_up(&self, path: &ValuePath, type_: &Type) -> Option<Estimate> {
        let path: Vec<&str> = path.iter().flatten().map(String::as_str).collect();
        self.sizes.max_size(&path, type_).map(|max| Estimate { min: 0, max })
    }

    fn set_size(&mut self, expr: &Expr, size: Option<Estimate>) {
        if size.is_some() {
            self.computed[expr.id as usize] = size;
        }
    }

    fn known_size(&mut self, expr: &Expr) -> Option<Estimate> {
        if let Some(size) = self.computed[expr.id as usize] {
            return Some(size);
        }
        match &expr.kind {
            Kind::Literal(Literal::String(text)) => return Some(Estimate::exactly(text.chars().count() as u64)),
            Kind::Literal(Literal::Bytes(bytes)) => return Some(Estimate::exactly(bytes.len() as u64)),
            Kind::Literal(_) => return Some(Estimate::exactly(1)),
            Kind::List(elements) => return Some(Estimate::exactly(elements.len() as u64)),
            Kind::Map(entries) => return Some(Estimate::exactly(entries.len() as u64)),
            _ => {}
        }
        if let Some(size) = self.look_up(&self.path(expr), self.type_of(expr)) {
            self.set_size(expr, Some(size));
            return Some(size);
        }
        if is_scalar(self.type_of(expr)) {
            return Some(Estimate::exactly(1));
        }
        self.local(expr).and_then(|local| local.size)
    }

    fn size(&mut self, expr: &Expr) -> Estimate {
        self.known_size(expr).unwrap_or(Estimate::UNBOUNDED)
    }

    fn entry(&self, expr: &Expr) -> Option<Entry> {
        self.entries[expr.id as usize].or_else(|| self.local(expr).and_then(|local| local.entry))
    }

    fn set_entry(&mut self, expr: &Expr, entry: Option<Entry>) {
        if entry.is_some() {
            self.entries[expr.id as usize] = entry;
        }
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        let (size, entry) = (self.known_size(from), self.entry(from));
        self.set_size(to, size);
        self.set_entry(to, entry);
    }

    fn cost(&mut self, expr: &Expr) -> Estimate {
        match &expr.kind {
            Kind::Literal(_) => Estimate::exactly(0),
            Kind::Ident(name) => {
                let path = match self.local(expr) {
                    Some(local) => local.path.clone(),
                    None => Some(vec![name.clone()]),
                };
                self.set_path(expr, path);
                Estimate::exactly(1)
            }
            // In a dotted type name, the part before the dot is not a value and has no type.
            Kind::Select { operand, .. } if *self.type_of(operand) == Type::Error => {
                self.set_path(expr, Some(crate::parse::qualified(expr).into_iter().collect()));
                Estimate::exactly(1)
            }
            Kind::Select { operand, field, test } => {
                let below = self.cost(operand);
                // A presence test costs only the access to its operand.
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
                let mut sum = Estimate::exactly(LIST_COST);
                let mut sizes = None;
                for element in elements {
                    sum = sum.plus(self.cost(&element.value));
                    sizes = self.with_size(sizes, &element.value);
                }
                let value = sizes.unwrap_or(Estimate::exactly(0));
                self.set_entry(expr, Some(Entry { is_list: true, key: Estimate::exactly(1), value }));
                sum
            }
            Kind::Map(entries) => {
                let mut sum = Estimate::exactly(MAP_COST);
                let (mut keys, mut values) = (None, None);
                for entry in entries {
                    sum = sum.plus(self.cost(&entry.key));
                    sum = sum.plus(self.cost(&entry.value));
                    keys = self.with_size(keys, &entry.key);
                    values = self.with_size(values, &entry.value);
                }
                let none = Estimate::exactly(0);
                let entry = Entry { is_list: false, key: keys.unwrap_or(none), value: values.unwrap_or(none) };
                self.set_entry(expr, Some(entry));
                sum
            }
            Kind::Struct { fields, .. } => {
                let sum = Estimate::exactly(STRUCT_COST);
                fields.iter().fold(sum, |sum, field| sum.plus(self.cost(&field.value)))
            }
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    /// The range that covers the sizes so far and the size of one more node.
    fn with_size(&mut self, met: Option<Estimate>, expr: &Expr) -> Option<Estimate> {
        let size = self.size(expr);
        Some(met.map_or(size, |met| met.or(size)))
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Estimate {
        let mut sum = self.cost(&fold.range);
        sum = sum.plus(self.cost(&fold.init));
        let outer = self.locals.len();
        let accu = Local {
            name: fold.accu.clone(),
            path: self.path(&fold.init),
            size: self.known_size(&fold.init),
            entry: self.entry(&fold.init),
        };
        self.locals.push(accu);
        if fold.is_binding() {
            sum = sum.plus(self.cost(&fold.result));
            self.copy_sizes(expr, &fold.result);
            self.locals.truncate(outer);
            return sum;
        }
        let entry = self.entry(&fold.range);
        let is_list = match entry {
            Some(entry) => entry.is_list,
            None => matches!(self.type_of(&fold.range), Type::List(_)),
        };
        let (keys, values) = if is_list { ("@indices", "@items") } else { ("@keys", "@values") };
        let (keys, values) = (self.step(&fold.range, keys), self.step(&fold.range, values));
        let (key_size, value_size) = (entry.map(|entry| entry.key), entry.map(|entry| entry.value));
        let variables = match &fold.var2 {
            Some(var2) => vec![(&fold.var, keys, key_size), (var2, values, value_size)],
            None if is_list => vec![(&fold.var, values, value_size)],
            None => vec![(&fold.var, keys, key_size)],
        };
        for (name, path, size) in variables {
            self.locals.push(Local { name: name.clone(), path, size, entry: None });
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        self.locals.truncate(outer + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(outer);
        let range = self.size(&fold.range);
        match fold.init.kind {
            Kind::Literal(_) => {
                let size = self.known_size(&fold.init);
                self.set_size(expr, size);
            }
            Kind::List(_) | Kind::Map(_) => {
                self.set_size(expr, Some(range));
                let entry = self.entry(&fold.step);
                self.set_entry(expr, entry);
            }
            _ => {}
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
                self.set_size(expr, Some(size));
                let entries = self.entry(&args[1]).zip(self.entry(&args[2]));
                self.set_entry(expr, entries.map(|(truthy, falsy)| truthy.or(falsy)));
                return condition.plus(truthy.or(*falsy));
            }
            _ => {}
        }
        let checked = self.checked;
        let Some(call) = checked.calls[expr.id as usize].as_ref() else { return given };
        // The namespace of a dotted function name costs nothing.
        let target = target.filter(|_| call.is_member);
        let before = match target {
            Some(target) => self.cost(target).plus(given),
            None => given,
        };
        let operands: Vec<&Expr> = target.into_iter().chain(args).collect();
        if let ("dyn", [operand]) = (call.name.as_str(), operands.as_slice()) {
            // A conversion to `dyn` only hides a type.
            self.copy_sizes(expr, operand);
            return before.plus(Estimate::exactly(1));
        }
        // With several possible overloads, the estimate covers all of them.
        let (mut own, mut result) = (None, None);
        for params in &call.overloads {
            let (cost, size) = self.function(&call.name, call.is_member, params, &operands);
            own = Some(own.map_or(cost, |own: Estimate| own.or(cost)));
            result = match (result, size) {
                (Some(result), Some(size)) => Some(Estimate::or(result, size)),
                (result, size) => result.or(size),
            };
            match (call.name.as_str(), params.first()) {
                ("_[_]", Some(Type::List(_) | Type::Map(..))) => {
                    let step = if matches!(params[0], Type::Map(..)) { "@values" } else { "@items" };
                    result = self.entry(operands[0]).map(|entry| entry.value);
                    let path = self.step(operands[0], step);
                    self.set_path(expr, path);
                }
                ("_+_", Some(Type::String | Type::Bytes | Type::List(_))) => {
                    let entries = self.entry(operands[0]).zip(self.entry(operands[1]));
                    self.set_entry(expr, entries.map(|(left, right)| left.or(right)));
                }
                _ => {}
            }
            result = result.or_else(|| self.known_size(expr));
        }
        self.set_size(expr, result);
        before.plus(own.unwrap_or(Estimate::exactly(0)))
    }

    /// The type and size of the items of a list or optional, or of the keys of a map; `None` for
    /// other types.
    fn item_size(&self, list: &Expr) -> Option<(Type, Estimate)> {
        let item = match self.type_of(list) {
            Type::List(item) | Type::Optional(item) | Type::Map(item, _) => (**item).clone(),
            _ => return None,
        };
        let path = self.path(list).and_then(|_| self.step(list, "@items"));
        let size = self.look_up(&path, &item).unwrap_or(Estimate::UNBOUNDED);
        Some((item, size))
    }

    /// The cost of calling one overload, without the cost of its arguments. Also the size of its
    /// result, if known.
    fn function(
        &mut self,
        name: &str,
        is_member: bool,
        params: &[Type],
        operands: &[&Expr],
    ) -> (Estimate, Option<Estimate>) {
        let sizes: Vec<Estimate> = operands.iter().map(|operand| self.size(operand)).collect();
        let size = |index: usize| sizes.get(index).copied().unwrap_or(Estimate::exactly(0));
        let param = |index: usize| params.get(index).unwrap_or(&Type::Error);
        let is_text = |index: usize| matches!(param(index), Type::String | Type::Bytes);
        let one = Estimate::exactly(1);
        let smaller = || {
            let max = size(0).max.min(size(1).max);
            Estimate { min: max.min(1), max }.scaled(TEXT)
        };
        match name {
            "_==_" => (self.equality(operands).unwrap_or_else(smaller), None),
            "_!=_" => (smaller(), None),
            "_<_" | "_<=_" | "_>_" | "_>=_" if is_text(0) && is_text(1) => (smaller(), None),
            "_+_" if is_text(0) => {
                let sum = size(0).plus(size(1));
                (sum.scaled(TEXT), Some(sum))
            }
            "_+_" if matches!(param(0), Type::List(_)) => (one, Some(size(0).plus(size(1)))),
            "@in" if matches!(param(1), Type::List(_)) => (size(1).scaled(1.0), None),
            "startsWith" | "endsWith" => (size(1).scaled(TEXT), None),
            "contains" => (size(0).scaled(TEXT).times(size(1).scaled(TEXT)), None),
            // As a plain function, `matches` has no cost rule upstream either.
            "matches" if is_member => (size(0).plus(one).scaled(TEXT).times(size(1).scaled(REGEX)), None),
            "find" | "findAll" => {
                let cost = size(0).plus(one).scaled(TEXT).times(size(1).scaled(REGEX));
                (cost, Some(Estimate { min: 0, max: size(0).max }))
            }
            "bytes" if *param(0) == Type::String => (size(0).scaled(TEXT), Some(converted(name, size(0)))),
            "string" if *param(0) == Type::Bytes => (size(0).scaled(TEXT), Some(converted(name, size(0)))),
            "strings.quote" => (size(0).scaled(TEXT), Some(converted(name, size(0)))),
            "format" if operands.len() == 2 => (size(0).scaled(TEXT), None),
            "check" => (Estimate::exactly(CHECK_COST), None),
            "fieldSelector" | "labelSelector" => {
                let requirements = size(1).scaled(SELECTOR_REQUIREMENTS).scaled(REQUIREMENT_COST);
                (Estimate::exactly(LIST_COST).plus(size(1).scaled(TEXT)).plus(requirements), None)
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" if is_member => {
                match self.item_size(operands[0]) {
                    Some((Type::String | Type::Bytes, item)) => (size(0).times(one.plus(item.scaled(TEXT))), None),
                    Some(_) => (size(0), None),
                    None => (size(0).scaled(TEXT), None),
                }
            }
            "ip" if *param(0) != Type::String => (one, None),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
                (size(0).scaled(TEXT), None)
            }
            "ip.isCanonical" => (size(0).scaled(2.0 * TEXT), None),
            "url" | "jsonpatch.escapeKey" | "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                (size(0).scaled(TEXT), Some(size(0)))
            }
            "replace" => (size(0).scaled(2.0 * TEXT), Some(replaced(size(0), size(1), size(2)))),
            "split" => {
                let max = literal(operands, 2).map_or(size(0).max, |limit| limit as u64);
                (size(0).scaled(2.0 * TEXT), Some(Estimate { min: 0, max }))
            }
            "join" => {
                let joined = self.joined(operands, &sizes);
                (joined.scaled(TEXT), Some(joined))
            }
            "containsIP" | "containsCIDR" => {
                let parsed = if *param(1) == Type::String { size(1).scaled(TEXT) } else { Estimate::exactly(0) };
                (containment(name).plus(parsed), None)
            }
            "validate" => (size(1).scaled(TEXT).scaled(FORMAT_LENGTH_MAX * REGEX), None),
            "sets.contains" | "sets.intersects" => (size(0).times(size(1)).scaled(1.0).plus(one), None),
            "sets.equivalent" => (size(0).times(size(1)).scaled(2.0).plus(one), None),
            "slice" | "lists.range" | "reverse" | "flatten" | "distinct" | "sort" | "@sortByAssociatedKeys" => {
                list_function(name, params, operands, &sizes)
            }
            _ => (one, None),
        }
    }

    /// The size of a string joined from a list, with an optional separator.
    fn joined(&self, operands: &[&Expr], sizes: &[Estimate]) -> Estimate {
        let list = sizes[0];
        let joined = self.item_size(operands[0]).map_or(Estimate::exactly(0), |(_, item)| list.times(item));
        match sizes.get(1) {
            Some(separator) => {
                let between = Estimate { min: list.min.saturating_sub(1), max: list.max.saturating_sub(1) };
                joined.plus(separator.times(between))
            }
            None => joined,
        }
    }

    /// The cost of `==` for types that Kubernetes adds; `None` for other types.
    fn equality(&mut self, operands: &[&Expr]) -> Option<Estimate> {
        let [left, right] = operands else { return None };
        let Type::Opaque(name) = self.type_of(left) else { return None };
        let name = *name;
        if self.type_of(left) != self.type_of(right) {
            return None;
        }
        Some(match name {
            "kubernetes.NamedFormat" => Estimate { min: 1, max: FORMAT_NAME_MAX }.scaled(TEXT),
            "kubernetes.URL" => {
                let size = self.known_size(right).unwrap_or(Estimate::exactly(1));
                Estimate { min: 1, max: size.max }.scaled(TEXT)
            }
            _ => Estimate::exactly(1),
        })
    }
}

/// The cost of comparing a network with an address or a network.
fn containment(name: &str) -> Estimate {
    // Addresses have 4 or 16 octets.
    let address = Estimate { min: 4, max: 16 };
    let cost = address.plus(address).scaled(TEXT);
    match name {
        "containsCIDR" => cost.plus(address.scaled(TEXT)).plus(Estimate::exactly(1)),
        _ => cost,
    }
}

fn literal(operands: &[&Expr], index: usize) -> Option<i64> {
    match operands.get(index).map(|operand| &operand.kind) {
        Some(Kind::Literal(Literal::Int(value))) => Some(*value),
        _ => None,
    }
}

/// The range of lengths of a string or bytes of this size after a conversion.
fn converted(name: &str, size: Estimate) -> Estimate {
    // The product wraps around for a string of unbounded length, as upstream.
    match name {
        "bytes" => Estimate { min: size.min, max: size.max.wrapping_mul(4) },
        "string" => Estimate { min: size.min / 4, max: size.max },
        _ => Estimate { min: size.min.saturating_add(2), max: size.max.wrapping_mul(2).wrapping_add(2) },
    }
}

/// The cost of a function that creates a list, and the size of the list.
fn list_function(name: &str, params: &[Type], operands: &[&Expr], sizes: &[Estimate]) -> (Estimate, Option<Estimate>) {
    let size = |index: usize| sizes.get(index).copied().unwrap_or(Estimate::exactly(0));
    // The operand, if it is a literal number of items; negative numbers do not occur.
    let count = |index: usize, otherwise: u64| {
        literal(operands, index).map_or(otherwise, |value| u64::try_from(value).unwrap_or_default())
    };
    let new_list =
        |size: Estimate, factor: f64| (size.scaled(factor).plus(Estimate::exactly(LIST_COST + 1)), Some(size));
    let compared = |index: usize, item: &Type| {
        let text = if matches!(item, Type::String | Type::Bytes) { TEXT } else { 0.0 };
        new_list(size(index).times(size(index)), 2.0 + text)
    };
    match name {
        "slice" => {
            // For a range that ends before it starts, the unsigned difference wraps to a huge
            // value, as upstream.
            let end = count(2, size(0).max);
            new_list(Estimate::exactly(end.wrapping_sub(count(1, 0))), 1.0)
        }
        "lists.range" => new_list(Estimate::exactly(count(0, u64::MAX)), 1.0),
        "flatten" => new_list(size(0), if operands.len() > 1 { count(1, u64::MAX) as f64 } else { 1.0 }),
        "distinct" => compared(0, &Type::Dyn),
        "sort" | "@sortByAssociatedKeys" => match params.last() {
            Some(Type::List(item)) => compared(params.len() - 1, item),
            _ => (Estimate::exactly(1), None),
        },
        _ => new_list(size(0), 1.0),
    }
}

/// The range of lengths of a string in which every `from` was replaced by a `to`.
fn replaced(text: Estimate, from: Estimate, to: Estimate) -> Estimate {
    let at_least_once = |length: u64, of: u64| (length as f64 / of as f64).ceil() as u64;
    // Maximum: the text consists of the shortest matches, and each becomes the longest replacement.
    // An empty pattern matches between all characters.
    let (most, kept) = match from.min {
        0 => (text.max.saturating_add(1), text.max),
        shortest if to.max <= shortest => (0, text.max),
        shortest => (at_least_once(text.max, shortest), 0),
    };
    let max = most.saturating_mul(to.max).saturating_add(kept);
    // Minimum: the text consists of the longest matches, and each becomes the shortest replacement.
    let (fewest, kept) = match from.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= to.min => (0, text.min),
        longest => (at_least_once(text.min, longest), 0),
    };
    let min = fewest.saturating_mul(to.min).saturating_add(kept);
    Estimate { min, max }
}

/// True if all values of the type have the same size.
fn is_scalar(type_: &Type) -> bool {
    match type_ {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(value) => is_scalar(value),
        _ => false,
    }
}
