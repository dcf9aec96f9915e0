//! `berth replay TRACE`: the jobs of a trace through the engine, or through a whole cluster.

use berth_foresight::command::replay::{Options, run};
use berth_simulator::whole::Division;

/// Replays the trace and returns the report.
pub fn main(options: &Options) -> anyhow::Result<String> {
    let division = Division { threads: options.threads_each(), ..Division::default() };
    run(options, &|replay, ended| Ok(berth_simulator::whole::replay_divided(replay, &division, ended)?))
}
