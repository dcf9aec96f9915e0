//! The two commands of the executable that run as processes of a pod: its supervisor, and the entry
//! helper of each container and each `exec`.
//!
//! They are started for every pod, so an executable calls [`run`] before it parses its other
//! commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Command that runs [`crate::supervisor::main`], followed by the pod's folder.
const SUPERVISOR: &str = "pod-supervisor";
/// Command that runs [`crate::init::main`].
const INIT: &str = "pod-init";

/// Runs the helper command that the arguments (without the program's name) select. Returns `None`
/// if they select another command.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    let command = arguments.next()?;
    match (command.to_str()?, arguments.next(), arguments.next()) {
        (SUPERVISOR, Some(folder), None) => Some(crate::supervisor::main(Path::new(&folder))),
        (INIT, None, None) => Some(crate::init::main()),
        _ => None,
    }
}

/// Path of an executable whose `main` calls [`run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper(pub PathBuf);

impl Helper {
    /// The supervisor of the pod in a folder.
    pub(crate) fn supervisor(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(SUPERVISOR).arg(folder).env(berth_helper::ENVIRONMENT.0, berth_helper::ENVIRONMENT.1);
        command
    }

    /// Program and arguments of an entry helper.
    pub(crate) fn init(&self) -> Vec<String> {
        vec![self.0.display().to_string(), INIT.to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_other_commands_select_no_helper() {
        for arguments in [&[][..], &["up"], &["pod-supervisor"], &["pod-init", "extra"], &["pod-supervisor", "a", "b"]]
        {
            assert!(run(arguments.iter().map(OsString::from)).is_none(), "{arguments:?}");
        }
    }
}
