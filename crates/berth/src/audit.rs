//! `--audit-log-path`, `--audit-policy-file`: the audit log of the embedded API.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use berth_apiserver::audit::policy::Policy;
use berth_apiserver::audit::{Log, Sink};
use clap::Args;
use parking_lot::Mutex;
use serde_json::json;

use crate::process;

/// Path and policy of the audit log.
#[derive(Args)]
pub struct AuditOptions {
    /// Append audit events (audit.k8s.io/v1, one JSON object per line) to this file. If the file is
    /// moved away, a new one is created.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// File with the audit.k8s.io/v1 Policy that selects the requests to record. Default: user,
    /// verb and object of every request are recorded.
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    audit_policy_file: Option<PathBuf>,
}

impl AuditOptions {
    /// The log; `None` without a path.
    pub fn log(&self) -> anyhow::Result<Option<Log>> {
        let Some(path) = &self.audit_log_path else { return Ok(None) };
        let policy = match &self.audit_policy_file {
            Some(file) => {
                let value = process::read(file)?;
                let described = file.display();
                if value["kind"] != "Policy" || value["apiVersion"] != "audit.k8s.io/v1" {
                    return Err(anyhow!("{described}: expected apiVersion audit.k8s.io/v1, kind Policy"));
                }
                Policy::from_value(&value).map_err(|errors| {
                    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                    anyhow!("{described}: {}", errors.join("; "))
                })?
            }
            None => Policy::from_value(&json!({"rules": [{"level": "Metadata"}]}))
                .map_err(|errors| anyhow!("the default policy: {errors:?}"))?,
        };
        Ok(Some(Log { policy: Arc::new(policy), sink: Arc::new(Appender::open(path)?) }))
    }
}

/// Appends lines to a file. If the path names another file or none, a new file is created there, so
/// a tool for log rotation can move the file without a signal.
struct Appender {
    file: Mutex<File>,
    path: PathBuf,
}

impl Appender {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = append(path).with_context(|| format!("--audit-log-path {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), path: path.to_owned() })
    }

    /// True if the path no longer names the open file.
    fn has_moved(&self, file: &File) -> bool {
        let Ok(open) = file.metadata() else { return false };
        match std::fs::metadata(&self.path) {
            Ok(there) => (there.dev(), there.ino()) != (open.dev(), open.ino()),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

/// Opens the log for appending, and creates it if it is missing. It names objects and users, so
/// only its owner may read it.
fn append(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

impl Sink for Appender {
    fn write(&self, event: &str) {
        let mut file = self.file.lock();
        if self.has_moved(&file) {
            match append(&self.path) {
                Ok(new) => *file = new,
                Err(error) => {
                    tracing::warn!(path = %self.path.display(), %error, "the new audit log cannot be created; events are appended to the moved file");
                }
            }
        }
        // One write per line, so that lines of other writers are not interleaved.
        if let Err(error) = file.write_all(format!("{event}\n").as_bytes()) {
            tracing::error!(path = %self.path.display(), %error, "an audit event is lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_log_is_private_and_continues_at_its_path_after_a_move() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("audit.log"), folder.path().join("audit.log.1"));
        let log = Appender::open(&path).expect("opened");
        log.write("one");
        std::fs::rename(&path, &old).expect("moved");
        log.write("two");
        let read = |path: &Path| std::fs::read_to_string(path).expect("read");
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("one\n", "two\n"));
        // The file was moved, and another process created one at its path.
        std::fs::rename(&path, &old).expect("moved");
        std::fs::write(&path, "").expect("made");
        log.write("three");
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("two\n", "three\n"));
        std::fs::remove_file(&path).expect("removed");
        log.write("four");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let error = format!("{:#}", Appender::open(folder.path()).err().expect("a folder"));
        assert!(error.starts_with("--audit-log-path /"), "{error}");
    }
}
