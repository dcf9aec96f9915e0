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
//! | expressions about devices | [`device`] |
//!
//! ```
//! use berth_cel::{Env, Run, Type, Value};
//!
//! let env = Env::default().variable("image", Type::String);
//! let program = env.compile("image.startsWith('registry.example/') && !image.endsWith(':latest')").unwrap();
//! let ran = program.run(&[Value::from("registry.example/train:1.2")], Run::default());
//! assert!(matches!(ran.result, Ok(Value::Bool(true))));
//!
//! // An error of types is found before evaluation.
//! let issues = env.compile("image > 3").unwrap_err();
//! assert!(issues.to_string().contains("found no matching overload"), "{issues}");
//!
//! // An evaluation stops at its cost limit.
//! let long = env.compile("lists.range(1000).all(n, n >= 0)").unwrap();
//! let ran = long.run(&[Value::from("")], Run { limit: Some(100), ..Run::default() });
//! assert!(ran.result.is_err());
//! ```

pub mod admission;
mod ast;
pub mod authorization;
mod check;
mod cost;
pub mod decl;
pub mod device;
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
