//! `--audit-log-path`, `--audit-policy-file`: what the embedded API writes down about requests.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use berth_apiserver::audit::policy::Policy;
use berth_apiserver::audit::{Log, Sink};
use clap::Args;
use serde_json::json;

use crate::process;

/// Where the audit log goes and what is in it.
#[derive(Args)]
pub struct AuditOptions {
    /// Append audit events (audit.k8s.io/v1, one JSON object a line) to this file.
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

/// Appends lines to a file.
struct Appender {
    file: Mutex<File>,
    path: PathBuf,
}

impl Appender {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Self { file: Mutex::new(file.with_context(|| path.display().to_string())?), path: path.to_owned() })
    }
}

impl Sink for Appender {
    fn write(&self, event: &str) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write a line, so that whoever else appends does so between lines.
        if let Err(error) = file.write_all(format!("{event}\n").as_bytes()) {
            tracing::error!(path = %self.path.display(), %error, "an audit event is lost");
        }
    }
}
