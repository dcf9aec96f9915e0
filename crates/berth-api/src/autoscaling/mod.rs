//! The cluster autoscaler's API, group `autoscaling.x-k8s.io`: a request for the capacity of a
//! group of pods.

pub mod constants;
pub mod v1;
