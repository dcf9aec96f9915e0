//! JobSet's API, group `jobset.x-k8s.io`.

pub mod constants;
pub mod v1alpha2;
