//! `--decision-journal`: where decisions about workloads are stored across restarts.

use std::path::PathBuf;

use berth_controllers::Decisions;
use berth_controllers::decisions::journal::{Journal, Sizes};
use clap::Args;

/// Folder and maximum size of the decision journal.
#[derive(Args)]
pub struct JournalOptions {
    /// Append a record of every decision about a workload (one JSON object per line) to files in
    /// this folder. `berth explain` shows the newest of them after a restart. Default: the last
    /// decisions are kept in memory only.
    #[arg(long, value_name = "DIR")]
    decision_journal: Option<PathBuf>,
    /// Maximum size of the decision journal in MiB, at least 8: the oldest files are deleted.
    #[arg(long, value_name = "MIB", default_value_t = 256, requires = "decision_journal",
          value_parser = clap::value_parser!(u64).range(8..=1 << 24))]
    decision_journal_max_size: u64,
    /// Maximum size of the journal's records of use in MiB, at least 8: the oldest files are
    /// deleted. A million jobs take about 500 MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, requires = "decision_journal",
          value_parser = clap::value_parser!(u64).range(8..=1_048_576))]
    usage_max_size: u64,
}

impl JournalOptions {
    /// Opens the journal and restores its newest records to `decisions`; `None` if it is switched
    /// off. Records are written until the journal is closed.
    ///
    /// # Errors
    /// The folder is in use by another process, or cannot be read or written.
    pub fn open(&self, decisions: &Decisions) -> anyhow::Result<Option<Journal>> {
        let Some(folder) = &self.decision_journal else { return Ok(None) };
        let sizes = Sizes { decisions: self.decision_journal_max_size << 20, usage: self.usage_max_size << 20 };
        Ok(Some(Journal::open(folder, sizes, decisions)?))
    }
}
