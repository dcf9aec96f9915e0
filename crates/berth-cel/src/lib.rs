//! Kubernetes' dialect of the Common Expression Language (CEL): parser, type checker, cost
//! estimator, planner and evaluator. Pure: expressions run over borrowed JSON and stop at a cost
//! limit.
//!
//! | purpose | modules |
//! |---|---|
//! | parsing | `lex`, `parse`, `ast` |
//! | declared types | [`decl`], [`types`], [`env`](mod@env), [`escape`](mod@escape) |
//! | type checking and errors | `check`, [`issue`] |
//! | estimated and actual cost | [`estimate`], `cost` |
//! | evaluation | [`program`], `eval`, [`value`], [`variables`] |
//! | functions | [`library`] |
//! | `x-kubernetes-validations` | [`rules`] |
//! | expressions about requests | [`admission`] |

pub mod admission;
mod ast;
mod check;
mod cost;
pub mod decl;
pub mod env;
pub mod escape;
pub mod estimate;
mod eval;
pub mod issue;
mod lex;
pub mod library;
mod parse;
pub mod program;
pub mod rules;
pub mod types;
pub mod value;
pub mod variables;

pub use decl::Decl;
pub use env::{Env, NEWEST};
pub use escape::{escape, unescape};
pub use eval::EvalError;
pub use issue::Issues;
pub use program::{Program, Ran, Run};
pub use rules::Rules;
pub use types::Type;
pub use value::Value;
pub use variables::Variables;
