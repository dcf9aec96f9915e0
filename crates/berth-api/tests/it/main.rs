//! Tests of the API types through the public API.

mod conversion;
mod crds;
mod manifests;
mod schemas;
mod shared;
mod types;
