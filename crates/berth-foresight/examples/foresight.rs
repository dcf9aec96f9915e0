//! `berth replay` and `berth forecast` alone, for measurements without building all of Berth.

use berth_foresight::command::{forecast, replay};
use clap::Parser;

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
enum Cli {
    Replay(replay::Options),
    Forecast(forecast::Options),
}

fn main() -> anyhow::Result<()> {
    let report = match Cli::parse() {
        Cli::Replay(options) => {
            replay::run(&options, &|_, _| anyhow::bail!("this example has no cluster: use berth replay --whole"))?
        }
        Cli::Forecast(options) => forecast::run(&options, false)?,
    };
    print!("{report}");
    Ok(())
}
