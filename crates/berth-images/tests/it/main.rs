//! Tests of whole images: built here, imported or pulled, and examined as a container sees them.

mod build;
mod hostile;
mod import;
mod registry;
mod service;
mod unpack;
mod view;
