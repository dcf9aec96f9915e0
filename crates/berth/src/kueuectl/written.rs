//! The output of commands that write one object.

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::output::{Asked, TemplateOptions};
use crate::listing::{Format, Listing};
use crate::team::title;

/// Whether a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// The change is written.
    None,
    /// The API server validates the change and does not store it.
    Server,
    /// No change is sent to the API server.
    Client,
}

/// Options of commands that write an object.
#[derive(Args)]
pub struct Written {
    /// Write nothing: `client` sends no change, `server` lets the API server validate the change.
    #[arg(long, value_enum, default_value_t = DryRun::None)]
    pub dry_run: DryRun,
    /// Output format: name, json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE. Default: a
    /// sentence about the write.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Asked>,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    managed_fields: ManagedFields,
}

/// Whether the field managers of objects are printed.
#[derive(Args)]
pub struct ManagedFields {
    /// Keep metadata.managedFields of objects.
    #[arg(long)]
    show_managed_fields: bool,
}

impl ManagedFields {
    /// Removes the field managers of an object unless they are asked for.
    pub fn select(&self, object: &mut Value) {
        if !self.show_managed_fields
            && let Some(metadata) = object["metadata"].as_object_mut()
        {
            metadata.remove("managedFields");
        }
    }
}

impl Written {
    /// Checks the output format, before anything is written.
    ///
    /// # Errors
    /// See [`TemplateOptions::format`].
    pub fn check(&self) -> anyhow::Result<()> {
        self.template.format(self.output.as_ref()).map(drop)
    }

    /// The text about a written object. `done` is what happened to it, such as `created`.
    pub fn text(&self, object: &Value, done: &str) -> anyhow::Result<String> {
        let mut shown = object.clone();
        self.managed_fields.select(&mut shown);
        let listing = Listing { names: vec![title(object)], items: vec![shown], ..Listing::default() };
        match self.template.format(self.output.as_ref())? {
            Some(format) if format == Format::Name || format.is_of_objects() => listing.render_one(&format),
            _ => Ok(self.sentence(&title(object), done)),
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
