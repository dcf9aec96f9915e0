//! Tests of both stores through the trait.
