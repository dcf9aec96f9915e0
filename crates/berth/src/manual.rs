//! `berth completion` and `berth man`: completions of shells, and manual pages. As
//! `kubectl_complete-berth`, the program completes `kubectl berth …`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::process;

/// Name of the program with which kubectl completes the words of its plugin.
const KUBECTL_COMPLETES_AS: &str = "kubectl_complete-berth";
/// Prefix of the names under which kubectl finds the plugin.
const KUBECTL_PLUGIN: &str = "kubectl-berth";

/// Options of `berth completion`.
#[derive(Args)]
pub struct CompletionOptions {
    /// The shell: bash, zsh, fish, elvish or powershell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Options of `berth man`.
#[derive(Args)]
pub struct ManOptions {
    /// Write a page for each command to this folder, such as ~/.local/share/man/man1. Default:
    /// print the page of berth.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completions of a shell.
pub fn completion(options: &CompletionOptions, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, "berth", &mut script);
    process::print(&String::from_utf8(script).context("the script is text")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes manual pages.
pub fn man(options: &ManOptions, command: Command) -> anyhow::Result<ExitCode> {
    match &options.dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            process::print(&String::from_utf8(page).context("the page is text")?)?;
        }
        Some(folder) => {
            let shown = || format!("--dir {}", folder.display());
            std::fs::create_dir_all(folder).with_context(shown)?;
            clap_mangen::generate_to(command, folder).with_context(shown)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The name in usage lines of a program that was started by this path.
pub fn usage_name(program: &str) -> &'static str {
    if file_name(program).starts_with(KUBECTL_PLUGIN) { "kubectl berth" } else { "berth" }
}

/// The completions that kubectl asks for; `None` if the program was not started for that.
/// `arguments` are those of the process, beginning with its path.
pub fn kubectl_completions(arguments: &[String], command: &Command) -> Option<String> {
    let (program, words) = arguments.split_first()?;
    if file_name(program) != KUBECTL_COMPLETES_AS {
        return None;
    }
    let lines = candidates(command, words).into_iter().map(|(word, about)| match about.is_empty() {
        true => format!("{word}\n"),
        false => format!("{word}\t{about}\n"),
    });
    let mut text: String = lines.collect();
    // No file names, in the protocol of cobra.
    text.push_str(":4\n");
    Some(text)
}

fn file_name(program: &str) -> &str {
    Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Words that may stand in place of the last of `words`, each with its description.
fn candidates(command: &Command, words: &[String]) -> Vec<(String, String)> {
    let Some((last, before)) = words.split_last() else { return Vec::new() };
    let (mut command, mut option) = (command, None);
    for word in before {
        option = option_of(command, word).filter(|_| !word.contains('='));
        if let Some(found) = command.find_subcommand(word) {
            command = found;
        }
    }
    let begins = |word: &str| word.starts_with(last.as_str());
    let values = |argument: &clap::Arg| {
        let values = argument.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
        let values = values.map(|value| (value.get_name().to_owned(), first_line(value.get_help())));
        values.collect::<Vec<_>>()
    };
    let all = match option {
        Some(option) => values(option),
        None if last.starts_with('-') => {
            let options = command.get_arguments().filter(|it| !it.is_hide_set());
            options.filter_map(|it| Some((format!("--{}", it.get_long()?), first_line(it.get_help())))).collect()
        }
        None => {
            let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
            let commands = commands.map(|it| (it.get_name().to_owned(), first_line(it.get_about())));
            commands.chain(command.get_positionals().flat_map(values)).collect()
        }
    };
    all.into_iter().filter(|(word, _)| begins(word)).collect()
}

/// The option of a word that takes the next word as its value.
fn option_of<'a>(command: &'a Command, word: &str) -> Option<&'a clap::Arg> {
    let found = command.get_arguments().find(|it| {
        let is_long = word.strip_prefix("--").is_some_and(|name| it.get_long() == Some(name));
        let short = it.get_short().map(|short| format!("-{short}"));
        is_long || short.as_deref() == Some(word)
    })?;
    found.get_action().takes_values().then_some(found)
}

fn first_line(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn command() -> Command {
        let list = Command::new("list")
            .about("List things")
            .arg(Arg::new("kind").value_parser(["jobs", "nodes"]))
            .arg(Arg::new("output").short('o').long("output").action(ArgAction::Set).value_parser(["json", "yaml"]));
        Command::new("berth").subcommand(list).subcommand(Command::new("hold")).subcommand(Command::new("x").hide(true))
    }

    fn completed(line: &str) -> String {
        let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        kubectl_completions(&arguments, &command()).unwrap_or_else(|| "none".to_owned())
    }

    #[test]
    fn kubectl_gets_the_words_that_may_follow() {
        assert_eq!(completed("/bin/kubectl_complete-berth "), "list\tList things\nhold\n:4\n");
        assert_eq!(completed("kubectl_complete-berth ho"), "hold\n:4\n");
        assert_eq!(completed("kubectl_complete-berth list "), "jobs\nnodes\n:4\n");
        assert_eq!(completed("kubectl_complete-berth list --o"), "--output\n:4\n");
        assert_eq!(completed("kubectl_complete-berth list -o y"), "yaml\n:4\n");
        assert_eq!(completed("kubectl_complete-berth list --output "), "json\nyaml\n:4\n");
        assert_eq!(completed("kubectl-berth li"), "none");
    }

    #[test]
    fn usage_lines_name_the_plugin() {
        assert_eq!(usage_name("/usr/bin/kubectl-berth"), "kubectl berth");
        assert_eq!(usage_name("target/debug/berth"), "berth");
    }
}
