//! The last steps before a program: terminal, standard streams, and `exec`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};
use rustix::pty::OpenptFlags;
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use super::{Result, internal};
use crate::protocol::WireError;

/// Search path of programs if the environment does not set one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A pseudo-terminal.
pub(super) struct Terminal {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Opens a new terminal in the devpts file system to which `multiplexer` belongs.
pub(super) fn open_terminal(multiplexer: &Path) -> Result<Terminal> {
    let open = || -> io::Result<Terminal> {
        let master = OwnedFd::from(File::options().read(true).write(true).open(multiplexer)?);
        rustix::pty::unlockpt(&master)?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        Ok(Terminal { master, slave })
    };
    open().map_err(|error| internal("open a terminal", error))
}

/// Starts a session. Makes the terminal or the three streams the standard streams.
pub(super) fn attach_streams(terminal: Option<Terminal>, streams: &[OwnedFd]) -> Result<()> {
    let failed = |error: rustix::io::Errno| internal("standard streams", error);
    let _ = rustix::process::setsid();
    if let Some(terminal) = terminal {
        rustix::process::ioctl_tiocsctty(&terminal.slave).map_err(failed)?;
        rustix::stdio::dup2_stdin(&terminal.slave).map_err(failed)?;
        rustix::stdio::dup2_stdout(&terminal.slave).map_err(failed)?;
        return rustix::stdio::dup2_stderr(&terminal.slave).map_err(failed);
    }
    let [stdin, stdout, stderr] = streams else {
        return Err(WireError::Internal(format!("the message has {} standard streams, not 3", streams.len())));
    };
    rustix::stdio::dup2_stdin(stdin).map_err(failed)?;
    rustix::stdio::dup2_stdout(stdout).map_err(failed)?;
    rustix::stdio::dup2_stderr(stderr).map_err(failed)
}

/// Moves this process into the mount and control-group namespaces of a container's process. Both
/// processes are in the same PID namespace already.
pub(super) fn join(process: &OwnedFd) -> Result<()> {
    let namespaces = ThreadNameSpaceType::MOUNT | ThreadNameSpaceType::CONTROL_GROUP;
    move_into_thread_name_spaces(process.as_fd(), namespaces)
        .map_err(|error| internal("enter the container's namespaces", error))
}

/// Executes a program. Returns the reason if that fails.
pub(super) fn run(command: &[String], env: &[(String, String)], working_dir: &Path) -> WireError {
    let Some((name, args)) = command.split_first() else {
        return WireError::Config("the command is empty".to_owned());
    };
    if let Err(error) = std::env::set_current_dir(working_dir) {
        let message = format!("working directory {}: {error}", working_dir.display());
        return WireError::Start { exit_code: 128, message };
    }
    let path = match find(name, env) {
        Ok(path) => path,
        Err(error) => return error,
    };
    // If a variable is given twice, the last value is used.
    let mut seen = BTreeSet::new();
    let env: Vec<&(String, String)> = env.iter().rev().filter(|(name, _)| seen.insert(name)).collect();
    let env = env.into_iter().rev().map(|(name, value)| (name, value));
    let error = Command::new(&path).arg0(name).args(args).env_clear().envs(env).exec();
    let exit_code = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOENT) => 127,
        Some(rustix::io::Errno::ACCESS | rustix::io::Errno::NOEXEC | rustix::io::Errno::PERM) => 126,
        _ => 128,
    };
    WireError::Start { exit_code, message: format!("exec {}: {error}", path.display()) }
}

/// Finds a program in the search path of its own environment.
fn find(name: &str, env: &[(String, String)]) -> Result<PathBuf> {
    let not_found = |message: String| WireError::Start { exit_code: 127, message };
    if name.contains('/') {
        let path = PathBuf::from(name);
        if std::fs::symlink_metadata(&path).is_err() {
            return Err(not_found(format!("exec {name:?}: no such file or directory")));
        }
        return Ok(path);
    }
    let search = env.iter().rev().find(|(key, _)| key == "PATH").map_or(DEFAULT_PATH, |(_, value)| value.as_str());
    let mut is_forbidden = false;
    for folder in search.split(':') {
        let path = Path::new(if folder.is_empty() { "." } else { folder }).join(name);
        if path.is_file() {
            if access(&path, Access::EXEC_OK).is_ok() {
                return Ok(path);
            }
            is_forbidden = true;
        }
    }
    if is_forbidden {
        return Err(WireError::Start { exit_code: 126, message: format!("exec {name:?}: permission denied") });
    }
    Err(not_found(format!("exec {name:?}: executable file not found in $PATH")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_the_path_of_its_environment() {
        let env = |path: &str| vec![("PATH".to_owned(), path.to_owned())];
        assert!(find("sh", &env("/usr/bin:/bin")).is_ok());
        assert!(find("sh", &[]).is_ok());
        let error = find("sh", &env("/nowhere")).unwrap_err();
        assert!(matches!(error, WireError::Start { exit_code: 127, .. }), "{error:?}");
        assert!(matches!(find("/nowhere/x", &[]).unwrap_err(), WireError::Start { exit_code: 127, .. }));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tool"), "").unwrap();
        let error = find("tool", &env(folder.path().to_str().unwrap())).unwrap_err();
        assert!(matches!(error, WireError::Start { exit_code: 126, .. }), "{error:?}");
    }
}
