//! AppWrapper (`workload.codeflare.dev`): its configuration file. The kind itself is declared in
//! [`crate::frameworks`], because its spec and status stay JSON.

mod configuration;

pub use configuration::{AppWrapperConfiguration, ConfigurationFile, FaultTolerance};
