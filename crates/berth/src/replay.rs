//! `berth replay TRACE`: the jobs of a trace through the engine, or through a whole cluster.

use berth_foresight::command::replay::{Options, run};

/// Replays the trace and returns the report.
pub fn main(options: &Options) -> anyhow::Result<String> {
    run(options, &|replay, ended| Ok(berth_simulator::whole::replay(replay, ended)?))
}
