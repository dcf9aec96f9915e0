//! The parser: recursive descent from tokens to a syntax tree. It expands macros, as upstream does.
//!
//! The maintained `cel` crate also has a parser. It lacks the source positions of nodes, which
//! every error of the type checker needs, and the macros that Kubernetes adds.

use crate::ast::{Element, Entry, Expr, Field, Fold, Kind, Literal};
use crate::issue::{Issues, NOWHERE};
use crate::lex::{Spanned, Token, lex};

/// Maximum length of an expression, in characters.
const LENGTH_MAX: usize = 100_000;
/// Maximum nesting depth of an expression, and maximum number of consecutive operators.
const DEPTH_MAX: usize = 250;
/// Maximum height of the tree; only this limit counts member accesses.
const HEIGHT_MAX: u32 = 400;
/// Maximum number of nodes of an expression; macros may multiply them.
const NODES_MAX: u32 = 500_000;
/// Name of the accumulator of folds, which no identifier can equal.
pub(crate) const ACCUMULATOR: &str = "@result";

const TOO_DEEP: &str = "max recursion depth exceeded";

const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                      BYTES, IDENTIFIER}";

const RESERVED: [&str; 20] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
];

/// Precedence of the weakest operator.
const OR: usize = 0;
const AND: usize = 1;

/// Binary operators with their function and precedence.
const OPERATORS: [(&str, &str, usize); 14] = [
    ("||", "_||_", OR),
    ("&&", "_&&_", AND),
    ("<", "_<_", 2),
    ("<=", "_<=_", 2),
    (">", "_>_", 2),
    (">=", "_>=_", 2),
    ("==", "_==_", 2),
    ("!=", "_!=_", 2),
    ("in", "@in", 2),
    ("+", "_+_", 3),
    ("-", "_-_", 3),
    ("*", "_*_", 4),
    ("/", "_/_", 4),
    ("%", "_%_", 4),
];

/// Parses an expression. Also returns its number of nodes.
pub(crate) fn parse(text: &str, macros: Macros) -> Result<(Expr, u32), Issues> {
    let mut issues = Issues::new(text);
    let length = text.chars().count();
    if length > LENGTH_MAX {
        issues.push(0, format!("expression code point size exceeds limit: size: {length}, limit {LENGTH_MAX}"));
        return Err(issues);
    }
    let (tokens, errors) = lex(text);
    for (at, message) in errors {
        issues.push(at, message);
    }
    let mut parser = Parser { tokens, at: 0, next_id: 1, depth: 0, heights: vec![0], issues, macros };
    match parser.whole() {
        Ok(_) if parser.heights.iter().any(|height| *height > HEIGHT_MAX) => {
            parser.issues.push(NOWHERE, TOO_DEEP);
            Err(parser.issues)
        }
        Ok(expr) if parser.issues.is_empty() => Ok((expr, parser.next_id)),
        _ => Err(parser.issues),
    }
}

/// The macros beyond the standard ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Macros {
    /// `optMap`, `optFlatMap`, and the syntax `a.?b`, `a[?b]`, `[?a]`.
    pub optionals: bool,
    /// `all`, `exists` and the like with two variables; `transformList`, `transformMap`,
    /// `transformMapEntry`.
    pub two_variables: bool,
    /// `sortBy`.
    pub sort_by: bool,
    /// `cel.bind`.
    pub bindings: bool,
}

struct Parser {
    tokens: Vec<Spanned>,
    at: usize,
    next_id: u32,
    depth: usize,
    /// Heights of the nodes created so far, by id.
    heights: Vec<u32>,
    issues: Issues,
    macros: Macros,
}

/// The error was recorded; parsing cannot continue.
struct Stop;

type Parsed = Result<Expr, Stop>;

impl Parser {
    fn token(&self) -> &Spanned {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(&self.token().token, Token::Symbol(found) if *found == symbol)
    }

    /// Consumes a symbol if it is next; returns its offset.
    fn take(&mut self, symbol: &str) -> Option<u32> {
        let at = self.token().at;
        self.is(symbol).then(|| {
            self.at += 1;
            at
        })
    }

    fn close(&mut self, symbol: &str) -> Result<(), Stop> {
        if self.take(symbol).is_some() {
            return Ok(());
        }
        let (at, text) = (self.token().at, self.token().text.clone());
        let message = match self.token().token {
            Token::End => format!("Syntax error: missing '{symbol}' at '<EOF>'"),
            _ => format!("Syntax error: mismatched input '{text}' expecting '{symbol}'"),
        };
        Err(self.stop(at, message))
    }

    fn stop(&mut self, at: u32, message: impl Into<String>) -> Stop {
        self.issues.push(at, message);
        Stop
    }

    fn node(&mut self, at: u32, kind: Kind) -> Expr {
        let id = self.next_id;
        self.next_id += 1;
        let expr = Expr { id, at, kind };
        let mut below = 0;
        expr.children(&mut |child| below = below.max(self.heights.get(child.id as usize).copied().unwrap_or(0)));
        self.heights.push(below + 1);
        expr
    }

    fn call(&mut self, at: u32, function: &str, args: Vec<Expr>) -> Expr {
        self.node(at, Kind::Call { function: function.to_owned(), target: None, args })
    }

    fn method(&mut self, at: u32, target: Expr, function: &str, args: Vec<Expr>) -> Expr {
        self.node(at, Kind::Call { function: function.to_owned(), target: Some(Box::new(target)), args })
    }

    fn ident(&mut self, at: u32, name: &str) -> Expr {
        self.node(at, Kind::Ident(name.to_owned()))
    }

    fn deeper(&mut self) -> Result<(), Stop> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.stop(NOWHERE, TOO_DEEP));
        }
        Ok(())
    }

    fn whole(&mut self) -> Parsed {
        let expr = self.expr()?;
        if self.token().token != Token::End {
            let (at, text) = (self.token().at, self.token().text.clone());
            // An error of the lexer is more specific.
            if self.issues.is_empty() {
                self.issues.push(at, format!("Syntax error: mismatched input '{text}' expecting <EOF>"));
            }
            return Err(Stop);
        }
        Ok(expr)
    }

    fn expr(&mut self) -> Parsed {
        self.deeper()?;
        let condition = self.binary(OR)?;
        let expr = match self.take("?") {
            Some(at) => {
                let truthy = self.binary(OR)?;
                self.close(":")?;
                let falsy = self.expr()?;
                self.call(at, "_?_:_", vec![condition, truthy, falsy])
            }
            None => condition,
        };
        self.depth -= 1;
        Ok(expr)
    }

    /// Parses binary operators of at least the precedence `level`, by precedence climbing: few
    /// stack frames per nesting level.
    fn binary(&mut self, level: usize) -> Parsed {
        let mut left = self.unary()?;
        let depth = self.depth;
        while let Some(&(symbol, function, own)) =
            OPERATORS.iter().find(|(symbol, _, own)| *own >= level && self.is(symbol))
        {
            if own <= AND {
                let mut terms = vec![left];
                let mut operators = Vec::new();
                while let Some(at) = self.take(symbol) {
                    operators.push(at);
                    terms.push(self.binary(own + 1)?);
                }
                left = self.balanced(function, terms, &operators);
            } else {
                let at = self.take(symbol).unwrap_or_default();
                self.deeper()?;
                let right = self.binary(own + 1)?;
                left = self.call(at, function, vec![left, right]);
            }
        }
        self.depth = depth;
        Ok(left)
    }

    /// Builds a tree of logarithmic depth from a chain of one operator.
    fn balanced(&mut self, function: &str, mut terms: Vec<Expr>, operators: &[u32]) -> Expr {
        if operators.is_empty() {
            return terms.swap_remove(0);
        }
        let middle = operators.len() / 2;
        let right = terms.split_off(middle + 1);
        let left = self.balanced(function, terms, &operators[..middle]);
        let right = self.balanced(function, right, &operators[middle + 1..]);
        self.call(operators[middle], function, vec![left, right])
    }

    fn unary(&mut self) -> Parsed {
        let at = self.token().at;
        for (symbol, function) in [("!", "!_"), ("-", "-_")] {
            if !self.is(symbol) {
                continue;
            }
            if symbol == "-"
                && let Some(Token::Literal(literal @ (Literal::Int(_) | Literal::Double(_)))) =
                    self.tokens.get(self.at + 1).map(|next| &next.token)
            {
                let literal = match literal {
                    Literal::Int(value) => Literal::Int(value.wrapping_neg()),
                    Literal::Double(value) => Literal::Double(-value),
                    _ => Literal::Null,
                };
                self.at += 2;
                let literal = self.node(at, Kind::Literal(literal));
                return self.members(literal);
            }
            let mut count = 0;
            while self.take(symbol).is_some() {
                count += 1;
            }
            let operand = self.member()?;
            return Ok(if count % 2 == 1 { self.call(at, function, vec![operand]) } else { operand });
        }
        self.member()
    }

    fn member(&mut self) -> Parsed {
        let primary = self.primary()?;
        self.members(primary)
    }

    fn members(&mut self, mut operand: Expr) -> Parsed {
        loop {
            if self.heights.get(operand.id as usize).is_some_and(|height| *height > HEIGHT_MAX) {
                return Err(self.stop(NOWHERE, TOO_DEEP));
            }
            if let Some(at) = self.take(".") {
                if self.is("in") {
                    // As upstream, `in` is read as the operator here, and parsing continues with
                    // it.
                    let found = self.token().at;
                    self.issues.push(found, "Syntax error: no viable alternative at input '.in'");
                    return Ok(operand);
                }
                operand = self.dotted(operand, at)?;
            } else if let Some(at) = self.take("[") {
                let optional = self.optional_mark()?;
                let index = self.expr()?;
                self.close("]")?;
                operand = self.call(at, if optional { "_[?_]" } else { "_[_]" }, vec![operand, index]);
            } else if self.is("{") && !matches!(operand.kind, Kind::Literal(_)) {
                let Some(name) = qualified(&operand) else { break };
                let at = self.take("{").unwrap_or_default();
                let fields = self.items("}", Self::field)?;
                operand = self.node(at, Kind::Struct { name, fields });
            } else {
                break;
            }
        }
        Ok(operand)
    }

    /// Consumes `?` where optional syntax allows it.
    fn optional_mark(&mut self) -> Result<bool, Stop> {
        match self.take("?") {
            Some(at) if !self.macros.optionals => Err(self.stop(at, "unsupported syntax '?'")),
            mark => Ok(mark.is_some()),
        }
    }

    fn dotted(&mut self, operand: Expr, at: u32) -> Parsed {
        let mark = self.token().at;
        let optional = self.optional_mark()?;
        let name = match &self.token().token {
            Token::Ident(name) | Token::Quoted(name) => name.clone(),
            _ => {
                let (found, text) = (self.token().at, self.token().text.clone());
                let message = if self.token().token == Token::End {
                    "Syntax error: no viable alternative at input '.'".to_owned()
                } else {
                    format!("Syntax error: mismatched input '{text}' expecting IDENTIFIER")
                };
                return Err(self.stop(found, message));
            }
        };
        self.at += 1;
        if optional {
            let field = self.node(at, Kind::Literal(Literal::String(name)));
            return Ok(self.call(mark, "_?._", vec![operand, field]));
        }
        if let Some(open) = self.take("(") {
            let args = self.arguments()?;
            return self.method_or_macro(open, operand, name, args);
        }
        Ok(self.node(at, Kind::Select { operand: Box::new(operand), field: name, test: false }))
    }

    fn arguments(&mut self) -> Result<Vec<Expr>, Stop> {
        let mut args = Vec::new();
        if !self.is(")") {
            loop {
                args.push(self.expr()?);
                if self.take(",").is_none() {
                    break;
                }
            }
        }
        self.close(")")?;
        Ok(args)
    }

    fn primary(&mut self) -> Parsed {
        let Spanned { token, at, text } = self.token().clone();
        match token {
            Token::Literal(literal) => {
                self.at += 1;
                if literal == Literal::Int(i64::MIN) {
                    return Err(self.stop(at, "invalid int literal"));
                }
                Ok(self.node(at, Kind::Literal(literal)))
            }
            Token::Ident(name) => {
                self.at += 1;
                self.named(at, name)
            }
            Token::Symbol("(") => {
                self.at += 1;
                let inner = self.expr()?;
                self.close(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.at += 1;
                let elements = self.items("]", Self::element)?;
                Ok(self.node(at, Kind::List(elements)))
            }
            Token::Symbol("{") => {
                self.at += 1;
                let entries = self.items("}", Self::entry)?;
                Ok(self.node(at, Kind::Map(entries)))
            }
            // A leading dot marks an absolute name; without containers it has no effect.
            Token::Symbol(".")
                if matches!(self.tokens.get(self.at + 1), Some(Spanned { token: Token::Ident(_), .. })) =>
            {
                self.at += 1;
                let Spanned { token, at, .. } = self.token().clone();
                let Token::Ident(name) = token else { return Err(Stop) };
                self.at += 1;
                self.named(at, name)
            }
            _ => {
                // Upstream calls the token extraneous if the next token could start an expression.
                let next = self.tokens.get(self.at + 1).map(|next| &next.token);
                let starts = match next {
                    Some(Token::Literal(_) | Token::Ident(_)) => true,
                    Some(Token::Symbol(symbol)) => matches!(*symbol, "[" | "{" | "(" | "." | "-" | "!"),
                    _ => false,
                };
                let verb = if starts { "extraneous" } else { "mismatched" };
                Err(self.stop(at, format!("Syntax error: {verb} input '{text}' expecting {STARTS}")))
            }
        }
    }

    fn named(&mut self, at: u32, name: String) -> Parsed {
        if RESERVED.contains(&name.as_str()) {
            return Err(self.stop(at, format!("reserved identifier: {name}")));
        }
        if let Some(open) = self.take("(") {
            let args = self.arguments()?;
            return self.function_or_macro(open, name, args);
        }
        Ok(self.ident(at, &name))
    }

    /// Items up to a closing symbol, separated by commas. A comma may follow the last item.
    fn items<T>(&mut self, close: &str, item: fn(&mut Self) -> Result<T, Stop>) -> Result<Vec<T>, Stop> {
        let mut items = Vec::new();
        while !self.is(close) {
            items.push(item(self)?);
            if self.take(",").is_none() {
                break;
            }
        }
        self.close(close)?;
        Ok(items)
    }

    fn element(&mut self) -> Result<Element, Stop> {
        let optional = self.optional_mark()?;
        Ok(Element { value: self.expr()?, optional })
    }

    fn entry(&mut self) -> Result<Entry, Stop> {
        let optional = self.optional_mark()?;
        let key = self.expr()?;
        self.close(":")?;
        Ok(Entry { key, value: self.expr()?, optional })
    }

    fn field(&mut self) -> Result<Field, Stop> {
        let optional = self.optional_mark()?;
        let Spanned { token, at, text } = self.token().clone();
        let (Token::Ident(name) | Token::Quoted(name)) = token else {
            return Err(self.stop(at, format!("Syntax error: mismatched input '{text}' expecting IDENTIFIER")));
        };
        self.at += 1;
        let colon = self.token().at;
        self.close(":")?;
        Ok(Field { at: colon, name, value: self.expr()?, optional })
    }

    fn function_or_macro(&mut self, at: u32, name: String, mut args: Vec<Expr>) -> Parsed {
        if name == "has" && args.len() == 1 {
            let arg = args.remove(0);
            return match arg.kind {
                Kind::Select { operand, field, test: false } => {
                    Ok(self.node(at, Kind::Select { operand, field, test: true }))
                }
                _ => Err(self.stop(arg.at, "invalid argument to has() macro")),
            };
        }
        Ok(self.call(at, &name, args))
    }

    fn method_or_macro(&mut self, at: u32, target: Expr, name: String, mut args: Vec<Expr>) -> Parsed {
        let two = self.macros.two_variables;
        match (name.as_str(), args.len()) {
            ("all" | "exists" | "exists_one" | "existsOne", 2) => {
                let predicate = args.remove(1);
                let var = self.variable(&args[0])?;
                self.quantifier(at, &name, target, var, None, predicate)
            }
            ("all" | "exists" | "exists_one" | "existsOne", 3) if two => {
                let predicate = args.remove(2);
                let (var, var2) = self.two_variables(&args)?;
                self.quantifier(at, &name, target, var, Some(var2), predicate)
            }
            ("map", 2 | 3) => {
                let transform = args.pop().ok_or(Stop)?;
                let filter = if args.len() == 2 { args.pop() } else { None };
                let var = self.variable(&args[0])?;
                let item = self.one_element(at, transform);
                self.collect(at, target, var, None, filter, item)
            }
            ("filter", 2) => {
                let filter = args.pop();
                let var = self.variable(&args[0])?;
                let item = self.ident(at, &var);
                let item = self.one_element(at, item);
                self.collect(at, target, var, None, filter, item)
            }
            ("transformList", 3 | 4) if two => {
                let transform = args.pop().ok_or(Stop)?;
                let filter = if args.len() == 3 { args.pop() } else { None };
                let (var, var2) = self.two_variables(&args)?;
                let item = self.one_element(at, transform);
                self.collect(at, target, var, Some(var2), filter, item)
            }
            ("transformMap" | "transformMapEntry", 3 | 4) if two => {
                let transform = args.pop().ok_or(Stop)?;
                let filter = if args.len() == 3 { args.pop() } else { None };
                let (var, var2) = self.two_variables(&args)?;
                let accu = self.ident(at, ACCUMULATOR);
                let step = if name == "transformMap" {
                    let key = self.ident(at, &var);
                    self.call(at, "cel.@mapInsert", vec![accu, key, transform])
                } else {
                    self.call(at, "cel.@mapInsert", vec![accu, transform])
                };
                let init = self.node(at, Kind::Map(Vec::new()));
                self.fold_filtered(at, target, var, Some(var2), filter, init, step)
            }
            ("optMap" | "optFlatMap", 2) if self.macros.optionals => {
                let body = args.pop().ok_or(Stop)?;
                let var = self.variable(&args[0])?;
                self.optional_map(at, target, var, body, name == "optMap")
            }
            ("bind", 3) if self.macros.bindings && matches!(&target.kind, Kind::Ident(name) if name == "cel") => {
                let body = args.pop().ok_or(Stop)?;
                let value = args.pop().ok_or(Stop)?;
                let var = self.variable(&args[0])?;
                Ok(self.bind(at, &var, value, body))
            }
            ("sortBy", 2) if self.macros.sort_by => {
                let key = args.pop().ok_or(Stop)?;
                let var = self.variable(&args[0])?;
                self.sort_by(at, target, var, key)
            }
            _ => Ok(self.method(at, target, &name, args)),
        }
    }

    fn variable(&mut self, arg: &Expr) -> Result<String, Stop> {
        match &arg.kind {
            Kind::Ident(name) => Ok(name.clone()),
            _ => Err(self.stop(arg.at, "argument must be a simple name")),
        }
    }

    fn two_variables(&mut self, args: &[Expr]) -> Result<(String, String), Stop> {
        let (var, var2) = (self.variable(&args[0])?, self.variable(&args[1])?);
        if var == var2 {
            return Err(self.stop(args[1].at, format!("duplicate variable name: {var}")));
        }
        Ok((var, var2))
    }

    fn one_element(&mut self, at: u32, value: Expr) -> Expr {
        self.node(at, Kind::List(vec![Element { value, optional: false }]))
    }

    fn quantifier(
        &mut self,
        at: u32,
        name: &str,
        range: Expr,
        var: String,
        var2: Option<String>,
        predicate: Expr,
    ) -> Parsed {
        let accu = self.ident(at, ACCUMULATOR);
        let (init, condition, step, result) = match name {
            "all" => {
                let init = self.node(at, Kind::Literal(Literal::Bool(true)));
                let condition = self.call(at, "@not_strictly_false", vec![accu]);
                let accu = self.ident(at, ACCUMULATOR);
                let step = self.call(at, "_&&_", vec![accu, predicate]);
                (init, condition, step, self.ident(at, ACCUMULATOR))
            }
            "exists" => {
                let init = self.node(at, Kind::Literal(Literal::Bool(false)));
                let not = self.call(at, "!_", vec![accu]);
                let condition = self.call(at, "@not_strictly_false", vec![not]);
                let accu = self.ident(at, ACCUMULATOR);
                let step = self.call(at, "_||_", vec![accu, predicate]);
                (init, condition, step, self.ident(at, ACCUMULATOR))
            }
            _ => {
                let init = self.node(at, Kind::Literal(Literal::Int(0)));
                let condition = self.node(at, Kind::Literal(Literal::Bool(true)));
                let one = self.node(at, Kind::Literal(Literal::Int(1)));
                let sum = self.call(at, "_+_", vec![accu, one]);
                let accu = self.ident(at, ACCUMULATOR);
                let step = self.call(at, "_?_:_", vec![predicate, sum, accu]);
                let (accu, one) = (self.ident(at, ACCUMULATOR), self.node(at, Kind::Literal(Literal::Int(1))));
                (init, condition, step, self.call(at, "_==_", vec![accu, one]))
            }
        };
        let accu = ACCUMULATOR.to_owned();
        Ok(self.node(at, Kind::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result }))))
    }

    /// `map` and `filter`: appends `items` to a list for every element that passes the filter.
    fn collect(
        &mut self,
        at: u32,
        range: Expr,
        var: String,
        var2: Option<String>,
        filter: Option<Expr>,
        items: Expr,
    ) -> Parsed {
        let init = self.node(at, Kind::List(Vec::new()));
        let accu = self.ident(at, ACCUMULATOR);
        let step = self.call(at, "_+_", vec![accu, items]);
        self.fold_filtered(at, range, var, var2, filter, init, step)
    }

    fn fold_filtered(
        &mut self,
        at: u32,
        range: Expr,
        var: String,
        var2: Option<String>,
        filter: Option<Expr>,
        init: Expr,
        step: Expr,
    ) -> Parsed {
        let condition = self.node(at, Kind::Literal(Literal::Bool(true)));
        let step = match filter {
            Some(filter) => {
                let accu = self.ident(at, ACCUMULATOR);
                self.call(at, "_?_:_", vec![filter, step, accu])
            }
            None => step,
        };
        let result = self.ident(at, ACCUMULATOR);
        let accu = ACCUMULATOR.to_owned();
        Ok(self.node(at, Kind::Fold(Box::new(Fold { range, var, var2, accu, init, condition, step, result }))))
    }

    /// Binds a name to a value inside `body`, as a fold over an empty list.
    fn bind(&mut self, at: u32, name: &str, value: Expr, body: Expr) -> Expr {
        let range = self.node(at, Kind::List(Vec::new()));
        let condition = self.node(at, Kind::Literal(Literal::Bool(false)));
        let step = self.ident(at, name);
        let fold = Fold {
            range,
            var: crate::ast::UNUSED.to_owned(),
            var2: None,
            accu: name.to_owned(),
            init: value,
            condition,
            step,
            result: body,
        };
        self.node(at, Kind::Fold(Box::new(fold)))
    }

    fn optional_map(&mut self, at: u32, target: Expr, var: String, body: Expr, wrap: bool) -> Parsed {
        let again = self.copy(&target)?;
        let has = self.method(at, target, "hasValue", Vec::new());
        let value = self.method(at, again, "value", Vec::new());
        let body = self.bind(at, &var, value, body);
        let some = if wrap { self.call(at, "optional.of", vec![body]) } else { body };
        let none = self.call(at, "optional.none", Vec::new());
        Ok(self.call(at, "_?_:_", vec![has, some, none]))
    }

    fn sort_by(&mut self, at: u32, target: Expr, var: String, key: Expr) -> Parsed {
        const INPUT: &str = "@__sortBy_input__";
        let (input, again) = (self.ident(at, INPUT), self.ident(at, INPUT));
        let key = self.one_element(at, key);
        let keys = self.collect(at, again, var, None, None, key)?;
        let sorted = self.method(at, input, "@sortByAssociatedKeys", vec![keys]);
        Ok(self.bind(at, INPUT, target, sorted))
    }

    /// Copies an expression with new node ids.
    fn copy(&mut self, expr: &Expr) -> Parsed {
        let mut count = 0;
        expr.walk(&mut |_| count += 1);
        if self.next_id.saturating_add(count) > NODES_MAX {
            return Err(self.stop(expr.at, format!("expression has more than {NODES_MAX} nodes")));
        }
        let mut copy = expr.clone();
        self.renumber(&mut copy);
        Ok(copy)
    }

    fn renumber(&mut self, expr: &mut Expr) {
        let height = self.heights.get(expr.id as usize).copied().unwrap_or(0);
        self.heights.push(height);
        expr.id = self.next_id;
        self.next_id += 1;
        match &mut expr.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => self.renumber(operand),
            Kind::Call { target, args, .. } => {
                target.iter_mut().for_each(|target| self.renumber(target));
                args.iter_mut().for_each(|arg| self.renumber(arg));
            }
            Kind::List(elements) => elements.iter_mut().for_each(|element| self.renumber(&mut element.value)),
            Kind::Map(entries) => entries.iter_mut().for_each(|entry| {
                self.renumber(&mut entry.key);
                self.renumber(&mut entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter_mut().for_each(|field| self.renumber(&mut field.value)),
            Kind::Fold(fold) => {
                let Fold { range, init, condition, step, result, .. } = fold.as_mut();
                for part in [range, init, condition, step, result] {
                    self.renumber(part);
                }
            }
        }
    }
}

/// The dotted name that an expression spells, if it is one.
pub(crate) fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.clone()),
        Kind::Select { operand, field, test: false } => Some(format!("{}.{field}", qualified(operand)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Macros {
        Macros { optionals: true, two_variables: true, sort_by: true, bindings: false }
    }

    fn error(text: &str) -> String {
        parse(text, all()).map(|_| ()).expect_err("must not parse").to_string()
    }

    #[test]
    fn an_error_points_at_the_character() {
        assert_eq!(
            error("self.true == 1"),
            "ERROR: <input>:1:6: Syntax error: mismatched input 'true' expecting IDENTIFIER\n | self.true == 1\n | .....^"
        );
        assert_eq!(
            error("'asdf'.contains('x'"),
            "ERROR: <input>:1:20: Syntax error: missing ')' at '<EOF>'\n | 'asdf'.contains('x'\n | ...................^"
        );
    }

    #[test]
    fn long_chains_and_deep_nesting_are_rejected_without_a_crash() {
        for text in [
            format!("{}1{}", "(".repeat(100), ")".repeat(100)),
            vec!["true"; 5000].join(" && "),
            format!("a{}", ".b".repeat(200)),
        ] {
            assert!(parse(&text, all()).is_ok());
        }
        for text in [
            format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000)),
            vec!["1"; 20_000].join(" + "),
            format!("a{}", ".b".repeat(40_000)),
            "[".repeat(90_000),
            "-".repeat(90_000),
            "x".repeat(100_001),
        ] {
            assert!(parse(&text, all()).is_err());
        }
    }

    #[test]
    fn literals_read_as_written() {
        let literal = |text: &str| match parse(text, all()) {
            Ok((Expr { kind: Kind::Literal(literal), .. }, _)) => literal,
            other => panic!("{text}: {:?}", other.map(|(expr, _)| expr).map_err(|issues| issues.to_string())),
        };
        assert_eq!(literal("-9223372036854775808"), Literal::Int(i64::MIN));
        assert_eq!(literal("0x1Fu"), Literal::Uint(31));
        assert_eq!(literal(".5e1"), Literal::Double(5.0));
        assert_eq!(literal(r#"'a\n\u00e9\x41'"#), Literal::String("a\n\u{e9}A".to_owned()));
        assert_eq!(literal(r#"b'\xff\101é'"#), Literal::Bytes(vec![0xff, b'A', 0xc3, 0xa9]));
        assert_eq!(literal(r#"r'\n'"#), Literal::String("\\n".to_owned()));
        assert_eq!(literal("'''a\n'b'''"), Literal::String("a\n'b".to_owned()));
    }
}
