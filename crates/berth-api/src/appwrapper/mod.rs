//! AppWrapper (`workload.codeflare.dev`): its configuration file, the parts of its definition
//! beyond the names, and the pod sets of its components. The kind itself is declared in
//! [`crate::frameworks`], because its spec and status stay JSON.

mod configuration;
mod definition;
pub mod pod_sets;

pub use configuration::{AppWrapperConfiguration, ConfigurationFile, FaultTolerance};
pub(crate) use definition::complete;
