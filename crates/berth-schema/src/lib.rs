//! Stands in for the derive macro of `schemars` where no schemas are derived.
//!
//! The types of `berth-api` declare their schemas with `#[schemars(…)]` attributes, from which the
//! definitions in `crates/berth-api/definitions` are generated. The product only reads these files,
//! so it is built without `schemars`. The compiler rejects an attribute that belongs to no macro;
//! this macro owns it.

use proc_macro::TokenStream;

/// Generates nothing, and accepts the attributes of `schemars::JsonSchema`.
#[proc_macro_derive(JsonSchema, attributes(schemars))]
pub fn json_schema(_: TokenStream) -> TokenStream {
    TokenStream::new()
}
