//! Tests of the vocabulary through its public face.

mod crds;
mod shared;
