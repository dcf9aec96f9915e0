//! The cluster autoscaler's API, group `autoscaling.x-k8s.io`: a request for capacity for a number of pods, all at once.

pub mod constants;
pub mod v1;
