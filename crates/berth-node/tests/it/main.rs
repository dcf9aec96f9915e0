//! Pods that run as processes of this machine, through the interface that the kubelet uses.

mod containers;
mod harness;
mod hostile;
mod rates;
mod restarts;
mod streams;
mod volumes;
