//! The syntax tree of an expression: macros are expanded, and every node has its source position.

/// A node of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    /// Number of the node within its expression; side tables, such as types, are indexed by it.
    pub id: u32,
    /// Source position in characters, for error messages.
    pub at: u32,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Literal(Literal),
    Ident(String),
    /// `operand.field`, or with `test` the macro `has(operand.field)`.
    Select {
        operand: Box<Expr>,
        field: String,
        test: bool,
    },
    /// A call of a function, method or operator (operators have CEL's internal names, e.g. `_==_`).
    Call {
        function: String,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

/// An item of a list literal; an empty optional item is omitted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Element {
    pub value: Expr,
    pub optional: bool,
}

/// An entry of a map literal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

/// A field of a struct literal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub at: u32,
    pub name: String,
    pub value: Expr,
    pub optional: bool,
}

/// The loop behind macros such as `all` and `map`: an accumulator that is updated for every
/// element.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fold {
    pub range: Expr,
    pub var: String,
    pub var2: Option<String>,
    pub accu: String,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

/// The loop variable of a fold that only binds a value and iterates over nothing.
pub(crate) const UNUSED: &str = "#unused";

impl Fold {
    /// True if the fold only binds a value to a name.
    pub fn is_binding(&self) -> bool {
        self.var == UNUSED
    }
}

impl Expr {
    /// Calls `visit` on this node and everything below it.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        visit(self);
        self.children(&mut |child| child.walk(visit));
    }

    /// Calls `visit` on every direct child of this node.
    pub fn children<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => {}
            Kind::Select { operand, .. } => visit(operand),
            Kind::Call { target, args, .. } => {
                target.iter().for_each(|target| visit(target));
                args.iter().for_each(visit);
            }
            Kind::List(elements) => elements.iter().for_each(|element| visit(&element.value)),
            Kind::Map(entries) => entries.iter().for_each(|entry| {
                visit(&entry.key);
                visit(&entry.value);
            }),
            Kind::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    visit(part);
                }
            }
        }
    }
}
