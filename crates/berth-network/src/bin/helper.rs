//! The hidden subcommand of the `berth` executable as a program for this crate's tests: the holder
//! of a rootless pod network (`pod-network FOLDER`).

use std::process::ExitCode;

fn main() -> ExitCode {
    berth_network::helper::run(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("expected pod-network FOLDER");
        ExitCode::FAILURE
    })
}
