//! JobSet's API, group `jobset.x-k8s.io`.

pub mod v1alpha2;
