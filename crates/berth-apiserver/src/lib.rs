//! The embedded Kubernetes API server. All kinds share one request path; a kind is a row in a
//! table.
//!
//! A request enters through [`ApiServer::handle`], from an in-process client or from the TLS
//! listener, and leaves as a response whose body may be a stream. On the way: path → row of the
//! [`Registry`] → authorization → decoding → admission → strategy and schema → [`berth_store`] →
//! conversion to the requested version and encoding. Objects are `serde_json::Value` throughout;
//! [`berth_apimachinery`] has Kubernetes' operations on them (patch, apply, selectors).
//!
//! The content of objects depends only on the requests and on [`Config`], which provides the clock
//! and the seed of uids and names. Only keys and tokens are random, and only certificates and
//! kubeconfigs are stored in files. It does not depend on controllers, garbage collection or any
//! kind of batch object. Other crates add admission rules through [`admission::AdmissionPlugin`].

pub mod admission;
mod aggregation;
pub mod audit;
pub mod auth;
pub mod body;
pub mod crd;
pub mod discovery;
pub mod extension;
mod health;
pub mod kubeconfig;
pub mod negotiation;
pub mod openapi;
pub mod pki;
pub mod request;
pub mod tls;

mod bootstrap;
mod clock;
mod compaction;
mod completion;
mod compression;
mod connect;
mod fairness;
mod flow_schemas;
mod forwarding;
mod ids;
mod kind_hooks;
mod logs;
mod objects;
mod own_requests;
mod own_service;
mod rest;
mod server;
mod service_addresses;
mod services;
mod state;
pub mod webhook;

pub use berth_kinds::{Registry, ResourceInfo, UserInfo, VersionInfo};
use berth_kinds::{fields, printers, protobuf, registry, service_ports, strategy};
pub use body::Body;
pub use clock::Clock;
pub use compaction::forget_history;
pub use connect::{Command, Container, Dial, Forward, PodStreams};
pub use crd::Converter;
pub use extension::{Answer, Asked, Extension};
pub use logs::{LogPart, PodLogs};
pub use objects::Objects;
pub use request::RequestInfo;
pub use server::{ApiServer, Config, InProcess, Metrics};
