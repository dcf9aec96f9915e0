//! Kubernetes' API mechanics over JSON values, pure.
//!
//! Everything a Kubernetes API server does to an object between the wire and the store, as functions over
//! [`serde_json::Value`]: reading, naming, validating, defaulting, pruning, patching, applying, selecting, printing.
//! No clock, no I/O, no Kubernetes client: time is an argument, schemas are handed in.
//!
//! | what | where |
//! |---|---|
//! | saying what is wrong | [`field`], [`status`] |
//! | reading objects and requests | [`decode`], [`meta`], [`selector`], [`revision`], [`jsonpath`] |
//! | single values | [`quantity`], [`int_or_string`], [`times`], [`cron`], [`names`], [`regexp`] |
//! | whole objects | [`validation`], [`schema`], [`openapi`], [`builtin`], [`meaning`] |
//! | changing objects | [`patch`], [`apply`], [`deletion`] |
//! | showing objects | [`table`] |
//! | who is asked, what is left | [`rules`], [`quota`] |

pub mod apply;
pub mod builtin;
pub mod condensed;
pub mod cron;
pub mod decode;
pub mod deletion;
pub mod field;
pub mod int_or_string;
mod json;
pub mod jsonpath;
pub mod managed_text;
pub mod meaning;
pub mod meta;
pub mod names;
pub mod openapi;
pub mod packed;
pub mod patch;
pub mod percent;
pub mod quantity;
pub mod quota;
pub mod regexp;
pub mod revision;
pub mod rules;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod times;
mod trail;
pub mod validation;
mod zeros;
