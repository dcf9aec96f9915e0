//! The command of the executable that runs as the holder of a rootless pod network.

use std::ffi::OsString;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::process::ExitCode;

/// Command of the holder, followed by the folder of the network's records.
#[cfg(target_os = "linux")]
pub(crate) const HOLDER: &str = "pod-network";

/// Runs the holder if the arguments (without the program's name) select it. Returns `None` if they
/// select another command. An executable calls it before it parses its other commands.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next()?;
    match (command.to_str()?, arguments.next(), arguments.next()) {
        #[cfg(target_os = "linux")]
        (HOLDER, Some(folder), None) => Some(crate::holder::main(Path::new(&folder))),
        _ => None,
    }
}
