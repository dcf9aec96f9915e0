//! Kubernetes' dialect of the Common Expression Language (CEL): parser, type checker, cost
//! estimator, planner and evaluator. Pure: expressions run over borrowed JSON and stop at a cost
//! limit.
//!
//! | purpose | modules |
//! |---|---|
//! | parsing | `lex`, `parse`, `ast` |
//! | declared types | [`decl`], [`types`], `signatures`, [`env`](mod@env), [`escape`](mod@escape) |
//! | type checking and errors | `check`, [`issue`] |
//! | estimated and actual cost | [`estimate`], `cost` |
//! | values | [`value`], [`authorization`], `error` |
//! | evaluation | [`program`], `node`, `eval`, `operators`, [`variables`] |
//! | functions | `library` |
//! | `x-kubernetes-validations` | [`rules`] |
//! | expressions about requests | [`admission`] |

pub mod admission;
mod ast;
pub mod authorization;
mod check;
mod cost;
pub mod decl;
pub mod env;
mod error;
pub mod escape;
pub mod estimate;
mod eval;
pub mod issue;
mod lex;
mod library;
mod node;
mod operators;
mod parse;
pub mod program;
pub mod rules;
mod signatures;
pub mod types;
pub mod value;
pub mod variables;

pub use decl::Decl;
pub use env::{Env, NEWEST};
pub use error::EvalError;
pub use escape::{escape, unescape};
pub use issue::Issues;
pub use program::{Program, Ran, Run};
pub use rules::Rules;
pub use types::Type;
pub use value::Value;
pub use variables::Variables;
