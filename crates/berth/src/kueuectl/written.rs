//! The output of commands that write one object.

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::listing::{Format, Listing};
use crate::team::title;

/// Where a change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// In the cluster.
    None,
    /// Nowhere: the API server validates it.
    Server,
    /// Nowhere: no request writes.
    Client,
}

/// Options of commands that write an object.
#[derive(Args)]
pub struct Written {
    /// Change nothing: `client` sends no write, `server` lets the API server validate it.
    #[arg(long, value_enum, default_value_t = DryRun::None)]
    pub dry_run: DryRun,
    /// Output format: name, json, yaml or jsonpath=TEMPLATE. Default: what was done.
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<Format>,
}

impl Written {
    /// The text about a written object. `done` is what happened to it, such as `created`.
    pub fn text(&self, object: &Value, done: &str) -> anyhow::Result<String> {
        let listing = Listing { names: vec![title(object)], items: vec![object.clone()], ..Listing::default() };
        match &self.output {
            None | Some(Format::Table | Format::Wide | Format::Csv) => Ok(self.sentence(&title(object), done)),
            Some(format) => listing.render_one(format),
        }
    }

    /// What happened to an object.
    pub fn sentence(&self, title: &str, done: &str) -> String {
        let suffix = match self.dry_run {
            DryRun::None => "",
            DryRun::Server => " (server dry run)",
            DryRun::Client => " (client dry run)",
        };
        format!("{title} {done}{suffix}\n")
    }
}
