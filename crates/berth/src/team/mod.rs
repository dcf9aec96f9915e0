//! `berth team`: the objects of a team that shares a cluster. A team is a labelled namespace, a
//! ClusterQueue with the team's quota in a cohort, the LocalQueue through which the namespace uses
//! it, and RoleBindings of its users.

mod cluster;
mod create;
mod delete;
mod list;
mod manifests;
mod quota;

use std::process::ExitCode;

use berth_apimachinery::names::{is_dns1123_label, is_label_value, is_qualified_name};
use clap::{Args, Subcommand, ValueEnum};

pub use cluster::{in_words, title};

use crate::process;

/// Options of `berth team`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a team, or add quota and users to it: a labelled namespace, a ClusterQueue in the
    /// cohort, a LocalQueue, and a RoleBinding for each user.
    Create(create::Options),
    /// List the teams: quota in use and owned, admitted and pending workloads.
    #[command(visible_alias = "ls")]
    List(list::Options),
    /// Delete a team: its RoleBindings, its namespace with everything in it, then its ClusterQueue.
    Delete(delete::Options),
}

/// The label by which the namespaces of teams are found.
#[derive(Args, Clone, Debug)]
struct TeamLabel {
    /// Label of the namespaces of teams. `managedJobsNamespaceSelector` in the configuration of the
    /// controllers should select it.
    #[arg(long, value_name = "KEY=VALUE", default_value = manifests::NAMESPACE_LABEL, value_parser = label)]
    namespace_label: (String, String),
}

impl TeamLabel {
    fn selector(&self) -> String {
        format!("{}={}", self.namespace_label.0, self.namespace_label.1)
    }
}

/// What a command without effect sends to the API server.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// Print the objects and send none.
    Client,
    /// Send the objects, and let the server validate them without storing them.
    Server,
}

/// Runs the subcommand.
pub fn main(options: &Options) -> anyhow::Result<ExitCode> {
    match &options.command {
        Command::Create(options) => process::run(create::create(options)),
        Command::List(options) => process::run(list::list(options)),
        Command::Delete(options) => process::run(delete::delete(options)),
    }
}

/// The name of a team, which is the name of its namespace.
fn team_name(text: &str) -> Result<String, String> {
    if let Some(wrong) = is_dns1123_label(text).into_iter().next() {
        return Err(wrong);
    }
    if text == "default" || text.starts_with("kube-") {
        return Err("namespaces default and kube-* belong to the cluster; choose another name".to_owned());
    }
    Ok(text.to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    let wrong = is_qualified_name(key).into_iter().chain(is_label_value(value)).next();
    wrong.map_or_else(|| Ok((key.to_owned(), value.to_owned())), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_of_the_cluster_are_no_teams() {
        assert_eq!(team_name("blue"), Ok("blue".to_owned()));
        for name in ["default", "kube-system", "kube-public"] {
            assert!(team_name(name).unwrap_err().contains("belong to the cluster"), "{name}");
        }
        assert!(team_name("Blue").unwrap_err().contains("lower case"));
    }

    #[test]
    fn a_label_has_a_key_and_a_value() {
        assert_eq!(label("team=yes"), Ok(("team".to_owned(), "yes".to_owned())));
        assert_eq!(label("team").unwrap_err(), "expected KEY=VALUE");
        assert!(label("=yes").is_err());
    }
}
