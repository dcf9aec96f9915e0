//! The API server through its public face: requests in, responses out, no sockets, paused time.

mod access;
mod aggregation;
mod audit;
mod autoscalers;
mod client;
mod configuration_kinds;
mod crds;
mod crud;
mod fair_share;
mod hang_ups;
mod harness;
mod health;
mod kubectl;
mod limits;
mod meddled;
mod older_objects;
mod owners;
mod patches;
mod pods;
mod policies;
mod quotas;
mod races;
mod tokens;
mod watches;
mod webhooks;
mod wire;
