//! Translates between API objects and the engine's model, for controllers, simulator and
//! conformance runner.
//!
//! [`queues`] translates queues, cohorts, flavors, checks and nodes, [`workload`](mod@workload)
//! translates Workloads with their effective requests ([`requests`](mod@requests), [`transform`]),
//! and [`admission`](mod@admission) translates admissions in both directions; [`validate`] finds
//! pods that can never be admitted. Nothing here decides, writes conditions or calls an API.

pub mod admission;
pub mod amounts;
pub mod decision;
pub mod placement;
pub mod queues;
pub mod requests;
pub mod transform;
pub mod validate;
pub mod workload;

pub use admission::{from_api as admission_from_api, to_api as admission};
pub use amounts::to_resource_list as requests;
pub use placement::labels;
pub use queues::{admission_check, cluster_queue, cohort, flavor, local_queue, node, node_pod, topology};
pub use workload::{Context, Context as Environment, adjusted_specs, time, workload, workload_key};
