//! Compiled expressions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use berth_apimachinery::regexp;

use crate::ast::{Element, Entry, Expr, Kind, Literal};
use crate::authorization::Authorizer;
use crate::check::Checked;
use crate::cost::{CostRule, LIST_COST};
use crate::env::Env;
use crate::error::EvalError;
use crate::estimate::{self, Estimate, Sizes};
use crate::eval::{Machine, Slot};
use crate::library;
use crate::node::{FoldNode, Node, Operator};
use crate::parse::qualified;
use crate::types::{Type, type_named};
use crate::value::{Constants, Map, OwnedMap, Text, Value};
use crate::variables::Variables;

/// A compiled expression: parsed, checked and planned. It can run any number of times, on any
/// thread.
#[derive(Clone, Debug)]
pub struct Program {
    text: Arc<str>,
    root: Node,
    result: Type,
    /// Whether the expression uses each variable, by slot.
    uses: Vec<bool>,
    failure: Option<String>,
    ast: Arc<(Expr, Checked)>,
}

/// Limits and services of an evaluation.
#[derive(Clone, Copy, Default)]
pub struct Run<'a> {
    /// Maximum cost; `None` for no limit.
    pub limit: Option<u64>,
    /// Set to true to cancel the evaluation.
    pub interrupt: Option<&'a AtomicBool>,
    /// Performs authorization checks.
    pub authorizer: Option<&'a dyn Authorizer>,
    /// The values of `variables`.
    pub variables: Option<&'a Variables<'a>>,
}

/// The result of an evaluation.
#[derive(Debug)]
pub struct Ran<'a> {
    /// The value or the error.
    pub result: Result<Value<'a>, EvalError>,
    /// The actual cost.
    pub cost: u64,
}

impl Program {
    pub(crate) fn plan(text: &str, expr: Expr, checked: Checked, env: &Env) -> Program {
        let variables: Vec<String> = env.variables.iter().map(|(name, _)| name.clone()).collect();
        let mut planner = Planner {
            env,
            checked: &checked,
            uses: vec![false; variables.len()],
            globals: variables,
            locals: Vec::new(),
            failure: None,
        };
        let root = planner.plan(&expr);
        let (uses, failure) = (planner.uses, planner.failure);
        let result = checked.types[expr.id as usize].clone();
        Program { text: text.into(), root, result, uses, failure, ast: Arc::new((expr, checked)) }
    }

    /// The expression as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The type of the result.
    pub fn result_type(&self) -> &Type {
        &self.result
    }

    /// True if the expression uses the variable with this index.
    pub fn uses(&self, variable: usize) -> bool {
        self.uses.get(variable).copied().unwrap_or_default()
    }

    /// Why the expression compiles but cannot run, for example an invalid constant regular
    /// expression.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    /// The estimated range of the cost of one evaluation; `sizes` provides maximum sizes of
    /// variables.
    pub fn estimate(&self, sizes: &dyn Sizes) -> Estimate {
        estimate::estimate(&self.ast.0, &self.ast.1, sizes)
    }

    /// Evaluates the expression with values for the declared variables, in their order.
    pub fn run<'a>(&self, variables: &[Value<'a>], run: Run<'a>) -> Ran<'a> {
        let mut slots = Vec::with_capacity(variables.len() + 4);
        slots.extend(variables.iter().cloned().map(|value| Slot::Done(Ok(value))));
        let mut machine = Machine {
            slots,
            cost: 0,
            folded: 0,
            limit: run.limit.unwrap_or(u64::MAX),
            interrupt: run.interrupt,
            authorizer: run.authorizer,
            variables: run.variables,
        };
        let result = machine.eval(&self.root);
        Ran { result, cost: machine.cost }
    }
}

struct Planner<'e> {
    env: &'e Env,
    checked: &'e Checked,
    uses: Vec<bool>,
    globals: Vec<String>,
    /// Names of the accumulators and variables of the enclosing folds, outermost first.
    locals: Vec<String>,
    failure: Option<String>,
}

impl Planner<'_> {
    fn place(&mut self, name: &str) -> Option<usize> {
        if let Some(found) = self.locals.iter().rposition(|local| local == name) {
            return Some(self.globals.len() + found);
        }
        let found = self.globals.iter().position(|global| global == name)?;
        self.uses[found] = true;
        Some(found)
    }

    fn name(&mut self, name: &str) -> Option<Node> {
        if let Some(place) = self.place(name) {
            return Some(Node::Slot(place));
        }
        let type_ = type_named(name).or_else(|| self.env.struct_type(name).map(Type::Object))?;
        Some(Node::Const(Value::Type(type_)))
    }

    fn plan(&mut self, expr: &Expr) -> Node {
        match &expr.kind {
            Kind::Literal(literal) => Node::Const(match literal {
                Literal::Null => Value::Null,
                Literal::Bool(value) => Value::Bool(*value),
                Literal::Int(value) => Value::Int(*value),
                Literal::Uint(value) => Value::Uint(*value),
                Literal::Double(value) => Value::Double(*value),
                Literal::String(text) => Value::String(Text::Owned(text.as_str().into())),
                Literal::Bytes(bytes) => Value::Bytes(bytes.as_slice().into()),
            }),
            Kind::Ident(name) => self.name(name).unwrap_or_else(|| missing(name)),
            Kind::Select { operand, field, test } => {
                if !test
                    && let Some(name) = qualified(expr)
                    && !self.starts_at_local(expr)
                    && let Some(node) = self.name(&name)
                {
                    return node;
                }
                let operand = Box::new(self.plan(operand));
                let field = field.as_str().into();
                if *test { Node::Has { operand, field } } else { Node::Select { operand, field } }
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(elements) => self.list(elements),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => {
                let fields =
                    fields.iter().map(|field| (field.name.clone(), self.plan(&field.value), field.optional)).collect();
                Node::Struct { name: name.clone(), fields }
            }
            Kind::Fold(fold) => {
                let range = self.plan(&fold.range);
                let init = Arc::new(self.plan(&fold.init));
                let depth = self.locals.len();
                let slot = self.globals.len() + depth;
                self.locals.push(fold.accu.clone());
                self.locals.push(fold.var.clone());
                self.locals.extend(fold.var2.clone());
                let condition = self.plan(&fold.condition);
                let step = self.plan(&fold.step);
                self.locals.truncate(depth + 1);
                let result = self.plan(&fold.result);
                self.locals.truncate(depth);
                let two = fold.var2.is_some();
                Node::Fold(Box::new(FoldNode { range, two, init, condition, step, result, slot }))
            }
        }
    }

    /// Plans a list literal. A list of constants is a constant.
    fn list(&mut self, elements: &[Element]) -> Node {
        let nodes: Vec<(Node, bool)> =
            elements.iter().map(|element| (self.plan(&element.value), element.optional)).collect();
        let constant = |(node, optional): &(Node, bool)| match node {
            Node::Const(value) if !optional => Some(value.clone()),
            _ => None,
        };
        match nodes.iter().map(constant).collect::<Option<Vec<_>>>() {
            Some(items) if self.env.folds => Node::Const(Value::from(items)),
            _ => Node::List(nodes),
        }
    }

    /// Plans a map literal. A map of constants is a constant.
    fn map(&mut self, entries: &[Entry]) -> Node {
        let nodes: Vec<(Node, Node, bool)> =
            entries.iter().map(|entry| (self.plan(&entry.key), self.plan(&entry.value), entry.optional)).collect();
        let mut constant = self.env.folds.then(OwnedMap::default);
        for node in &nodes {
            constant = match (constant, node) {
                (Some(mut map), (Node::Const(key), Node::Const(value), false)) => {
                    map.insert(key.clone(), value.clone()).is_ok().then_some(map)
                }
                _ => None,
            };
        }
        match constant {
            Some(map) => Node::Const(Value::Map(Map::Owned(Arc::new(map)))),
            None => Node::Map(nodes),
        }
    }

    fn starts_at_local(&self, expr: &Expr) -> bool {
        let mut first = expr;
        while let Kind::Select { operand, .. } = &first.kind {
            first = operand;
        }
        matches!(&first.kind, Kind::Ident(name) if self.locals.contains(name))
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Node {
        if function == "_?._"
            && let [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }] = args
        {
            return Node::OptionalSelect { operand: Box::new(self.plan(operand)), field: field.as_str().into() };
        }
        let mut function = function.to_owned();
        let mut target = target;
        if let Some(prefix) = target
            && !self.starts_at_local(prefix)
            && let Some(name) = qualified(prefix).map(|prefix| format!("{prefix}.{function}"))
            && self.env.overloads(&name).is_some()
        {
            function = name;
            target = None;
        }
        if let Some(node) = self.accumulate(&function, target, args) {
            return node;
        }
        let mut nodes: Vec<Node> = target.into_iter().chain(args).map(|arg| self.plan(arg)).collect();
        let pair = |nodes: Vec<Node>| <[Node; 2]>::try_from(nodes).map(Box::new).ok();
        let fail = || missing(&function);
        let checked = self.checked;
        let call = checked.calls[expr.id as usize].as_ref();
        let overloads = call.map_or([].as_slice(), |call| call.overloads.as_slice());
        let cost = CostRule::of_call(&function, target.is_some(), overloads);
        if let Some(operator) = Operator::named(&function) {
            let Some(operands) = pair(nodes) else { return fail() };
            return match operator {
                Operator::In if self.env.folds && cost == CostRule::Search => member(*operands),
                _ => Node::Operate { operator, cost, operands },
            };
        }
        match function.as_str() {
            "_&&_" => return pair(nodes).map_or_else(fail, Node::And),
            "_||_" => return pair(nodes).map_or_else(fail, Node::Or),
            "_?_:_" => return <[Node; 3]>::try_from(nodes).map_or_else(|_| fail(), |parts| Node::If(Box::new(parts))),
            "or" | "orValue" if nodes.len() == 2 && target.is_some() => {
                let unwrap = function == "orValue";
                return pair(nodes).map_or_else(fail, |operands| Node::Otherwise { operands, unwrap });
            }
            "!_" | "-_" | "@not_strictly_false" => {
                let Some(operand) = nodes.pop().map(Box::new) else { return fail() };
                return match function.as_str() {
                    "!_" => Node::Not(operand),
                    "-_" => Node::Negate(operand),
                    _ => Node::NotStrictlyFalse(operand),
                };
            }
            "_[_]" | "_[?_]" => {
                let optional = function == "_[?_]";
                let Some([operand, index]) = pair(nodes).map(|nodes| *nodes) else { return fail() };
                return Node::Index { operand: Box::new(operand), index: Box::new(index), optional };
            }
            _ => {}
        }
        if let Some(own) = self.env.extra.get(&function) {
            return own.first().map_or_else(fail, |overload| match overload.result {
                Type::Bool => Node::Call { function: |_, _| Ok(Value::Bool(true)), cost, args: nodes, stops: false },
                _ => missing(&function),
            });
        }
        let Some(implementation) = library::implementation(&function) else { return fail() };
        // The sum of an empty list is the zero of the list's item type.
        let implementation: library::Implementation = match (function.as_str(), &checked.types[expr.id as usize]) {
            ("sum", Type::Double) => |_, args| library::sum(args, Value::Double(0.0)),
            ("sum", Type::Duration) => |_, args| library::sum(args, Value::Duration(0)),
            ("sum", Type::Uint) => |_, args| library::sum(args, Value::Uint(0)),
            _ => implementation,
        };
        // Upstream dispatches these functions differently, which is visible when an argument fails.
        let is_matcher =
            matches!(function.as_str(), "matches" | "find" | "findAll") && matches!(nodes.get(1), Some(Node::Const(_)));
        let stops = nodes.len() > 2 || is_matcher || function == "format";
        let node = Node::Call { function: implementation, cost, args: nodes, stops };
        self.folded(&function, node)
    }

    /// Plans an accumulator that grows in place instead of being copied for every element.
    fn accumulate(&mut self, function: &str, target: Option<&Expr>, args: &[Expr]) -> Option<Node> {
        let [Expr { kind: Kind::Ident(accu), .. }, rest @ ..] = args else { return None };
        if target.is_some() || accu != crate::parse::ACCUMULATOR {
            return None;
        }
        match (function, rest) {
            ("_+_", [Expr { kind: Kind::List(items), .. }]) if items.len() == 1 && !items[0].optional => {
                let slot = self.place(accu)?;
                let item = Box::new(self.plan(&items[0].value));
                let is_constant = self.env.folds && matches!(*item, Node::Const(_));
                Some(Node::Append { slot, item, list_cost: if is_constant { 0 } else { LIST_COST } })
            }
            ("cel.@mapInsert", rest) => {
                let slot = self.place(accu)?;
                Some(Node::Insert { slot, args: rest.iter().map(|arg| self.plan(arg)).collect() })
            }
            _ => None,
        }
    }

    /// Folds conversions of constants and validates constant regular expressions.
    fn folded(&mut self, function: &str, node: Node) -> Node {
        let Node::Call { function: implementation, args, .. } = &node else { return node };
        let pattern = match function {
            "matches" | "find" | "findAll" => args.get(1),
            _ => None,
        };
        if let Some(Node::Const(Value::String(pattern))) = pattern
            && let Err(error) = regexp::compile(pattern)
        {
            self.failure.get_or_insert(error);
        }
        let converts = matches!(
            function,
            "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
        );
        let [Node::Const(value)] = args.as_slice() else { return node };
        if !converts || !self.env.folds {
            return node;
        }
        match implementation(None, std::slice::from_ref(value)) {
            Ok(value) => Node::Const(value),
            Err(error) => {
                self.failure.get_or_insert(error.to_string());
                Node::Fail(error)
            }
        }
    }
}

fn missing(name: &str) -> Node {
    Node::Fail(EvalError::message(format!("no such function or variable: {name}")))
}

/// Plans `in` with a list. A list of simple constants becomes a set, in which a lookup adds nothing
/// to the cost, regardless of the length of the list.
fn member(operands: [Node; 2]) -> Node {
    let constants = match &operands[1] {
        Node::Const(Value::List(list)) if list.is_empty() => return Node::Const(Value::Bool(false)),
        Node::Const(Value::List(list)) => Constants::of(list),
        _ => None,
    };
    match constants {
        Some(constants) => {
            let [item, _] = operands;
            Node::Member { item: Box::new(item), constants: Arc::new(constants) }
        }
        None => Node::Operate { operator: Operator::In, cost: CostRule::Search, operands: Box::new(operands) },
    }
}
