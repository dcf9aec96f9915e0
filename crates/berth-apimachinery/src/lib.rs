//! The API mechanics of Kubernetes as pure functions over JSON values.
//!
//! Implements the steps of an API server between the network and the store as functions over
//! [`serde_json::Value`]: decoding, naming, validating, defaulting, pruning, patching, applying,
//! selecting and printing. It uses no clock, no I/O and no Kubernetes client: time and schemas are
//! arguments.
//!
//! | purpose | modules |
//! |---|---|
//! | reporting errors | [`field`], [`status`] |
//! | decoding objects and requests | [`decode`], [`meta`], [`selector`], [`revision`], [`jsonpath`] |
//! | single values | [`quantity`], [`int_or_string`], [`times`], [`cron`], [`names`], [`regexp`] |
//! | whole objects | [`validation`], [`schema`], [`openapi`], [`builtin`], [`meaning`] |
//! | names of Kubernetes' own labels and annotations | [`well_known`] |
//! | changing objects | [`patch`], [`apply`], [`deletion`] |
//! | showing objects | [`table`] |
//! | matching webhook rules, counting quota usage | [`rules`], [`quota`] |

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
pub mod well_known;
mod zeros;
