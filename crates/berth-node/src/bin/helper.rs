//! The hidden subcommands of the `berth` executable as a program for this crate's tests: a pod's
//! supervisor (`pod-supervisor FOLDER`) and a container's entry helper (`pod-init`).

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_node::helper::run(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("expected pod-supervisor FOLDER or pod-init");
        ExitCode::FAILURE
    })
}
