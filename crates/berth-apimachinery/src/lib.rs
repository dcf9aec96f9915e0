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
//!
//! ```
//! use berth_apimachinery::patch::{apply_merge, merge_diff};
//! use berth_apimachinery::quantity::Quantity;
//! use berth_apimachinery::selector::LabelSelector;
//! use serde_json::json;
//! use std::collections::BTreeMap;
//!
//! // Quantities are exact, and equal if their amounts are equal.
//! assert_eq!(Quantity::parse("1500m").unwrap(), Quantity::parse("1.5").unwrap());
//! assert!(Quantity::parse("1 GB").is_err());
//!
//! // A merge patch contains the changes between two states of an object.
//! let (old, new) = (json!({"a": 1, "b": 2}), json!({"a": 1, "c": 3}));
//! let patch = merge_diff(&old, &new);
//! assert_eq!(patch, json!({"b": null, "c": 3}));
//! let mut patched = old;
//! apply_merge(&mut patched, &patch);
//! assert_eq!(patched, new);
//!
//! let labels = BTreeMap::from([("team".to_owned(), "blue".to_owned())]);
//! assert!(LabelSelector::parse("team in (blue, green), !gpu").unwrap().matches(&labels));
//! ```

pub mod apply;
pub mod builtin;
pub mod condensed;
pub mod cron;
pub mod decode;
pub mod deletion;
pub mod exposition;
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
pub mod printed;
pub mod quantity;
pub mod quota;
pub mod regexp;
pub mod revision;
pub mod rules;
pub mod samples;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod times;
mod trail;
pub mod validation;
pub mod well_known;
mod zeros;
