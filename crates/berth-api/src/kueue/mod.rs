//! Kueue's API, group `kueue.x-k8s.io`.

pub mod v1beta2;
