//! The pod network on a real kernel.

#[cfg(target_os = "linux")]
mod pods;
#[cfg(target_os = "linux")]
mod rootless;
#[cfg(target_os = "linux")]
mod services;
#[cfg(target_os = "linux")]
mod space;
