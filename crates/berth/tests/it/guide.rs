//! Pages with commands. Each command of a fenced block `console` is run in a shell, in the order of
//! the page, and prints what the page shows. Ages and generated parts of names may differ. A line
//! `...` on the page stands for any lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_testing::has_kubectl;

use crate::cluster::{Cluster, file, pause};

/// Commands that only read. They are repeated until their output is that of the page.
const READERS: [&str; 8] = [
    "kubectl get",
    "berth team list",
    "berth explain",
    "kubectl describe",
    "berth queue",
    "berth forecast",
    "berth what-if",
    "berth usage",
];
/// Prefixes of names that the API server completes, in the manifests of the guides.
const GENERATED: [&str; 7] =
    ["short-", "normal-", "important-", "large-", "gke-mlbatch-worker-", "job-train-1-", "job-train-2-"];
/// Attempts of a reading command, and the time between two.
const ATTEMPTS: u32 = 240;
const INTERVAL: Duration = Duration::from_millis(500);

/// A command of a page, with the output that the page shows.
struct Step {
    line: usize,
    command: String,
    shown: Vec<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_console = false;
    for (index, line) in page.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(kind) => in_console = !in_console && kind == "console",
            None if !in_console => {}
            None => match line.strip_prefix("$ ") {
                Some(command) => {
                    steps.push(Step { line: index + 1, command: command.to_owned(), shown: Vec::new() });
                }
                // A command that ends in a backslash continues on the next line.
                None => match steps.last_mut() {
                    Some(step) if step.command.ends_with('\\') => {
                        step.command.pop();
                        step.command.push_str(line.trim_start());
                    }
                    Some(step) => step.shown.push(line.to_owned()),
                    None => panic!("line {}: output without a command", index + 1),
                },
            },
        }
    }
    steps
}

/// The words of a line, without what differs from run to run.
fn words(line: &str) -> Vec<String> {
    let is_age = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
    };
    let general = |word: &str| {
        if is_age(word) {
            return "AGE".to_owned();
        }
        if word.len() == 20 && word.starts_with("20") && word.ends_with('Z') {
            return "TIME".to_owned();
        }
        let at = GENERATED.iter().find_map(|prefix| Some(word.find(prefix)? + prefix.len()));
        match at {
            Some(at) => format!("{}*", &word[..at]),
            None => word.to_owned(),
        }
    };
    line.split_whitespace().map(general).collect()
}

/// True if the output is that of the page.
fn is_shown(shown: &[String], output: &[String]) -> bool {
    match shown.split_first() {
        None => output.is_empty(),
        Some((line, rest)) if line.trim() == "..." => (0..=output.len()).any(|at| is_shown(rest, &output[at..])),
        Some((line, rest)) => match output.split_first() {
            Some((first, more)) => words(line) == words(first) && is_shown(rest, more),
            None => false,
        },
    }
}

/// Runs a command. Returns its output and error output.
fn shell(command: &str, variables: &BTreeMap<String, String>) -> Vec<String> {
    let output = Command::new("bash")
        .args(["-c", &format!("exec 2>&1; {command}")])
        .current_dir(file(""))
        .envs(variables)
        .output()
        .expect("bash runs");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn follow(page: &str) {
    let text = std::fs::read_to_string(file(page)).expect("the page can be read");
    let mut steps = steps(&text).into_iter();
    let first = steps.next().expect("the page has commands");
    let arguments = first.command.strip_prefix("berth up --ephemeral").expect("the first command starts a cluster");
    let arguments: Vec<String> = arguments
        .split_whitespace()
        .map(|word| if word.contains('/') { file(word) } else { word.to_owned() })
        .collect();
    let cluster = Cluster::ephemeral(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let folder = Path::new(env!("CARGO_BIN_EXE_berth")).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut variables = BTreeMap::from([
        ("PATH".to_owned(), format!("{folder}:{path}")),
        ("KUBECONFIG".to_owned(), cluster.kubeconfig.display().to_string()),
        ("HOME".to_owned(), cluster.kubeconfig.parent().expect("a folder").display().to_string()),
    ]);
    for step in steps {
        if let Some((name, value)) = step.command.split_once("=$(") {
            let value = shell(&format!("printf %s $({value}"), &variables).join("\n");
            assert!(!value.is_empty(), "{page}:{}: {}: no value", step.line, step.command);
            variables.insert(name.to_owned(), value);
            continue;
        }
        let reads = READERS.iter().any(|reader| step.command.starts_with(reader));
        let mut output = shell(&step.command, &variables);
        for _ in 0..ATTEMPTS {
            if !reads || is_shown(&step.shown, &output) {
                break;
            }
            pause(INTERVAL);
            output = shell(&step.command, &variables);
        }
        assert!(
            is_shown(&step.shown, &output),
            "{page}:{}: $ {}\nexpected\n{}\n\nfound\n{}\n",
            step.line,
            step.command,
            step.shown.join("\n"),
            output.join("\n")
        );
    }
    cluster.interrupt();
}

#[test]
fn the_guide_from_a_waiting_job_to_more_gpus_shows_what_its_commands_print() {
    if has_kubectl() {
        follow("docs/guides/more-gpus.md");
    }
}

#[test]
fn the_guide_of_mlbatch_shows_what_its_commands_print() {
    if has_kubectl() {
        follow("docs/guides/mlbatch.md");
    }
}

#[test]
fn output_matches_but_for_ages_generated_names_and_omitted_lines() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let shown = lines("NAME   AGE\n...\nshort-x7k2p   12s");
    assert!(is_shown(&shown, &lines("NAME      AGE\na   1s\nb   1s\nshort-aaaaa    3m2s")));
    assert!(!is_shown(&shown, &lines("NAME      AGE\nother    3m2s")));
    assert!(!is_shown(&lines("a"), &lines("a\nb")));
    assert_eq!(words("job/short-abcde created 5m"), ["job/short-*", "created", "AGE"]);
}
