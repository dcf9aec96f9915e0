//! Controllers against an API server in process, in virtual time.

mod cluster;
mod provisioning;
mod queueing;
mod rights;
mod topology;
mod webhooks;
