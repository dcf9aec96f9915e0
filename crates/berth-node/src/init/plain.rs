//! A container at the plain level: a process of the host with the host's files.
//!
//! The program sees the host's root. The mounts of the container are links in a folder of its own,
//! `BERTH_ROOT`. If the command, its arguments, the environment or the working directory contain
//! the path of a mount, that path is replaced with the path of the link. Most manifests therefore
//! run unchanged.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::mounts::open_within;
use super::{Result, at, touch, user};
use crate::folder::TERMINATION;
use crate::protocol::{ContainerEntry, LandlockRules, Program, WireError};

/// Prepares the folder of the container. Returns how to run the program.
pub(super) fn prepare(entry: &ContainerEntry) -> Result<Program> {
    let root = entry.folder.join("root");
    make_folders(&root)?;
    let mut rules = LandlockRules::default();
    for mount in &entry.config.mounts {
        let missing = || WireError::Config(format!("volume {}: the pod has no volume with this name", mount.volume));
        let volume = entry.volumes.get(&mount.volume).ok_or_else(missing)?;
        let target = if mount.sub_path.is_empty() {
            volume.path.clone()
        } else {
            sub_path(&volume.path, mount, volume.writable)?
        };
        let link = location(&root, &mount.path);
        if let Some(parent) = link.parent() {
            make_folders(parent)?;
        }
        place(&link, &target)?;
        let is_read_only = mount.read_only || volume.read_only;
        if is_read_only { &mut rules.read } else { &mut rules.write }.push(target);
    }
    let temporary = location(&root, "/tmp");
    make_folders(&temporary)?;
    let mut program = user::resolve(entry)?;
    let own = rustix::process::geteuid();
    if !own.is_root() {
        if entry.config.security.user.is_none() {
            (program.uid, program.gid) = (own.as_raw(), rustix::process::getegid().as_raw());
        }
        program.groups = Vec::new();
    }
    for (_, value) in &mut program.env {
        *value = rewrite(value, &root, &paths(entry));
    }
    let working_dir = program.working_dir.display().to_string();
    program.working_dir = working_folder(entry, &root, &working_dir)?;
    if !entry.config.termination_message_path.is_empty() {
        let message = entry.folder.join(TERMINATION);
        touch(&message, 0o666)?;
        program.env.push(("BERTH_TERMINATION_MESSAGE".to_owned(), message.display().to_string()));
        rules.write.push(message);
    }
    program.env.push(("BERTH_ROOT".to_owned(), root.display().to_string()));
    program.env.push(("TMPDIR".to_owned(), temporary.display().to_string()));
    // Identifies the processes of the pod if no other mark does.
    program.env.push(("BERTH_POD".to_owned(), entry.cookie.clone()));
    rules.write.push(root);
    rules.write.extend(["/dev", "/proc", "/sys"].iter().flat_map(|path| without(Path::new(path), &entry.hidden)));
    rules.read.extend(without(Path::new("/"), &entry.hidden));
    program.landlock = Some(rules);
    Ok(program)
}

/// The command with the paths of mounts replaced.
pub(super) fn rewrite_all(entry: &ContainerEntry, command: &[String]) -> Vec<String> {
    let (root, paths) = (entry.folder.join("root"), paths(entry));
    command.iter().map(|word| rewrite(word, &root, &paths)).collect()
}

/// Paths at which the container has files of its own, longest first.
fn paths(entry: &ContainerEntry) -> Vec<String> {
    let mut paths: Vec<String> =
        entry.config.mounts.iter().map(|mount| mount.path.trim_end_matches('/').to_owned()).collect();
    paths.retain(|path| !path.is_empty());
    paths.sort_by(|left, right| right.len().cmp(&left.len()).then(left.cmp(right)));
    paths
}

/// Replaces the paths of mounts in a string with their locations. A path matches only if the
/// character before it cannot belong to a longer path and it ends at the end of a name.
fn rewrite(text: &str, root: &Path, paths: &[String]) -> String {
    let continues =
        |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '$' | '}');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let begins = !out.chars().next_back().is_some_and(continues);
        let found = paths.iter().find(|path| {
            let after = rest.strip_prefix(path.as_str()).map(|after| after.chars().next());
            after.is_some_and(|next| next.is_none_or(|next| next == '/' || !continues(next)))
        });
        match found.filter(|_| begins) {
            Some(path) => {
                out.push_str(&location(root, path).display().to_string());
                rest = &rest[path.len()..];
            }
            None => {
                out.push(character);
                rest = &rest[character.len_utf8()..];
            }
        }
    }
    out
}

/// The location below `BERTH_ROOT` of a path of the container.
fn location(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn sub_path(volume: &Path, mount: &berth_pod_runtime::Mount, is_writable: bool) -> Result<PathBuf> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::openat(rustix::fs::CWD, volume, flags, rustix::fs::Mode::empty())
        .map_err(|error| at("open", volume, error))?;
    let found = open_within(&opened, &mount.sub_path, is_writable && !mount.read_only)?;
    std::fs::read_link(super::fd_path(&found)).map_err(|error| at("resolve", volume, error))
}

fn working_folder(entry: &ContainerEntry, root: &Path, path: &str) -> Result<PathBuf> {
    let rewritten = PathBuf::from(rewrite(path, root, &paths(entry)));
    if rewritten.is_dir() {
        return Ok(rewritten);
    }
    let own = location(root, path);
    make_folders(&own)?;
    Ok(own)
}

/// Creates a link. Succeeds if an earlier attempt created it.
fn place(link: &Path, target: &Path) -> Result<()> {
    match symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(|error| at("link", link, error)),
    }
}

fn make_folders(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|error| at("create", path, error))
}

/// A folder without the hidden folders in it. Landlock only supports allowed paths, so the result
/// lists the entries of each folder that contains a hidden one. Files that are created there later
/// are not allowed. Links are not listed, because they may lead to a folder that contains a hidden
/// one; a process may follow them to allowed files.
fn without(folder: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(path) = open.pop() {
        if hidden.contains(&path) {
            continue;
        }
        if !hidden.iter().any(|hidden| hidden.starts_with(&path)) {
            found.push(path);
            continue;
        }
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        let entries = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
        open.extend(entries.map(|entry| entry.path()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_replaced_where_they_are_whole() {
        let paths = ["/data/in".to_owned(), "/data".to_owned()];
        let check = |text: &str, expected: &str| assert_eq!(rewrite(text, Path::new("/r"), &paths), expected);
        check("/data", "/r/data");
        check("/data/x.py", "/r/data/x.py");
        check("/data/in/y", "/r/data/in/y");
        check("python3 /data/x.py --out=/data/y:/data", "python3 /r/data/x.py --out=/r/data/y:/r/data");
        check("\"/data\"; ls '/data/'", "\"/r/data\"; ls '/r/data/'");
        check("/database /mnt/data $HOME/data a/data", "/database /mnt/data $HOME/data a/data");
    }

    #[test]
    fn hidden_folders_are_not_readable_and_their_siblings_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir_all(path.join("hidden/inside")).unwrap();
        std::fs::create_dir(path.join("sibling")).unwrap();
        symlink(&path, path.join("link")).unwrap();
        let found = without(Path::new("/"), &[path.join("hidden")]);
        assert!(found.contains(&path.join("sibling")));
        assert!(!found.iter().any(|other| path.join("hidden").starts_with(other)));
        assert!(found.contains(&PathBuf::from("/usr")));
        assert_eq!(without(&path, &[path.join("hidden")]), [path.join("sibling")]);
        assert_eq!(without(&path, &[PathBuf::from("/elsewhere")]), [path]);
    }
}
