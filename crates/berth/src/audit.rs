//! `--audit-log-path`, `--audit-policy-file`: what the embedded API writes down about requests.

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

/// Where the audit log goes and what is in it.
#[derive(Args)]
pub struct AuditOptions {
    /// Append audit events (audit.k8s.io/v1, one JSON object a line) to this file; a new one is begun when it is moved away.
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// What is recorded: an audit.k8s.io/v1 Policy. Default: who asked for what, of every request.
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    audit_policy_file: Option<PathBuf>,
}

impl AuditOptions {
    /// The log, if one is wanted.
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

/// Appends lines to a file, wherever it is moved: once another one, or none, is under its path, a new one is begun there.
/// So whoever keeps logs small moves it away and needs to tell nobody.
struct Appender {
    file: Mutex<File>,
    path: PathBuf,
}

impl Appender {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = append(path).with_context(|| format!("--audit-log-path {}", path.display()))?;
        Ok(Self { file: Mutex::new(file), path: path.to_owned() })
    }

    /// Is the open file not the one under the path any more?
    fn has_moved(&self, file: &File) -> bool {
        let Ok(open) = file.metadata() else { return false };
        match std::fs::metadata(&self.path) {
            Ok(there) => (there.dev(), there.ino()) != (open.dev(), open.ino()),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

/// What was asked for is nobody's business but the owner's.
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
                    tracing::warn!(path = %self.path.display(), %error, "the audit log goes on in the file that was moved");
                }
            }
        }
        // One write a line, so that whoever else appends does so between lines.
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
    fn a_log_is_private_and_goes_on_where_it_was_moved_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("audit.log"), folder.path().join("audit.log.1"));
        let log = Appender::open(&path).expect("opened");
        log.write("one");
        std::fs::rename(&path, &old).expect("moved");
        log.write("two");
        let read = |path: &Path| std::fs::read_to_string(path).expect("read");
        assert_eq!((read(&old).as_str(), read(&path).as_str()), ("one\n", "two\n"));
        // Moved, and another file made in its place by whoever did so.
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
