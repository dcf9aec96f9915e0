//! `berth run SCENARIO.yaml`: a scenario in virtual time.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;

/// Options of `berth run`.
#[derive(Args)]
pub struct Options {
    /// The scenario file.
    scenario: PathBuf,
    /// A value for one of the scenario's variables; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

/// Runs the scenario. The exit code is zero if every expectation holds.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    let mut given = BTreeMap::new();
    for pair in &options.set {
        let (name, value) = pair.split_once('=').ok_or_else(|| anyhow!("--set {pair}: expected NAME=VALUE"))?;
        given.insert(name.to_owned(), value.to_owned());
    }
    let started = tokio::time::Instant::now();
    let mut out = std::io::stdout().lock();
    // A closed pipe must not stop the run: the caller may only need its exit code.
    let mut sink = |text: &str| {
        let _ = out.write_all(text.as_bytes());
    };
    let outcome = berth_simulator::run_in_virtual_time(&options.scenario, &given, &mut sink)?;
    // Printed separately from the report, whose bytes are the same in every run.
    eprintln!("{:.2} s of wall time", started.elapsed().as_secs_f64());
    Ok(if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
