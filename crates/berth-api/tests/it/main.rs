//! Tests of the vocabulary through its public face.

mod conversion;
mod crds;
mod manifests;
mod schemas;
mod shared;
mod types;
