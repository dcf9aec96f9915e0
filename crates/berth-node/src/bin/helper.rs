//! The hidden subcommands of the `berth` executable as a program for this crate's tests: a pod's
//! supervisor (`pod-supervisor FOLDER`) and a container's entry helper (`pod-init`).

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pod-supervisor", folder] => berth_node::supervisor::main(Path::new(folder)),
        ["pod-init"] => berth_node::init::main(),
        _ => {
            eprintln!("expected pod-supervisor FOLDER or pod-init");
            ExitCode::FAILURE
        }
    }
}
