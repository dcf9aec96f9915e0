//! The conformance runner: walks a folder of recorded cases, runs each through the code that ships, and prints
//! `suite agree/total` per suite with, on request, the smallest useful difference per disagreement.
//!
//! A case names its suite (or its folder does). A *runner* is a function from a case to a verdict; the table in
//! [`runner_for`] says which module knows which suite. A suite nobody runs counts as disagreeing: agreement is
//! earned, never assumed.

#[cfg(feature = "machinery")]
mod apimachinery;
#[cfg(feature = "server")]
mod apiserver;
#[cfg(feature = "cel")]
mod cel;
#[cfg(feature = "kueue")]
mod conversion;
mod disagreements;
#[cfg(any(feature = "cel", feature = "server"))]
mod fields;
#[cfg(feature = "jobset")]
mod jobset;
#[cfg(feature = "kueue")]
mod kueue;
#[cfg(feature = "kueue")]
mod kueue_controllers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

/// One recorded case: what it is called, where it came from, and its data.
pub struct Case {
    /// Suite name, from the case's `suite` field or, where it has none, its folder.
    pub suite: String,
    /// Case name as upstream spells it.
    pub name: String,
    /// The file the case was read from, for suites whose cases refer to files beside them.
    #[allow(dead_code, reason = "only suites with schemas beside them look")]
    pub file: PathBuf,
    /// The whole case.
    pub data: Value,
}

/// What a runner found: agreement, or the differences field by field.
pub type Verdict = Result<(), String>;

/// The difference of a case nobody can run yet.
const NO_RUNNER: &str = "no runner for this suite yet";

/// Runs one case.
pub type Runner = fn(&Case) -> Verdict;

/// What the command line asked for.
pub struct Options {
    directory: PathBuf,
    suite: Option<String>,
    case: Option<String>,
    verbose: bool,
    json: bool,
    check: bool,
    list: bool,
}

impl Options {
    /// Parses the arguments after `conformance`.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            directory: crate::workspace_root().join("../shared/conformance/kueue"),
            suite: None,
            case: None,
            verbose: false,
            json: false,
            check: false,
            list: false,
        };
        while let Some(arg) = args.next() {
            let mut value = |flag: &str| args.next().ok_or(format!("{flag} needs a value"));
            match arg.as_str() {
                "--suite" => options.suite = Some(value("--suite")?),
                "--case" => options.case = Some(value("--case")?),
                "--verbose" | "-v" => options.verbose = true,
                "--check" => options.check = true,
                "--list-open" => options.list = true,
                "--output" => match value("--output")?.as_str() {
                    "json" => options.json = true,
                    other => return Err(format!("--output {other}: expected json")),
                },
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                directory => options.directory = PathBuf::from(directory),
            }
        }
        if (options.check || options.list) && (options.suite.is_some() || options.case.is_some()) {
            return Err("--check and --list-open are about a whole folder: leave out --suite and --case".to_owned());
        }
        Ok(options)
    }
}

/// How a suite did.
#[derive(Default)]
struct Tally {
    agree: usize,
    total: usize,
    disagreements: Vec<(String, String)>,
}

/// Runs every case under the directory and prints the tallies. Without `--check` it fails only when there is nothing to
/// run; with it, when the disagreements are not exactly those that `xtask/disagreements/FOLDER.txt` lists.
pub fn main(options: &Options) -> ExitCode {
    let cases = match load(&options.directory) {
        Ok(cases) if cases.is_empty() => {
            eprintln!("xtask conformance: no cases under {}", options.directory.display());
            return ExitCode::from(2);
        }
        Ok(cases) => cases,
        Err(message) => {
            eprintln!("xtask conformance: {message}");
            return ExitCode::from(2);
        }
    };
    let selected = cases.iter().filter(|case| {
        options.suite.as_ref().is_none_or(|suite| case.suite == *suite)
            && options.case.as_ref().is_none_or(|text| case.name.contains(text.as_str()))
    });
    let tallies = run(selected);
    if options.json {
        let report: BTreeMap<&String, Value> = tallies
            .iter()
            .map(|(suite, tally)| {
                let disagreements: Vec<Value> = tally
                    .disagreements
                    .iter()
                    .map(|(name, difference)| serde_json::json!({"case": name, "difference": difference}))
                    .collect();
                (suite, serde_json::json!({"agree": tally.agree, "total": tally.total, "disagreements": disagreements}))
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&report).expect("a report of strings and numbers serializes"));
        return ExitCode::SUCCESS;
    }
    let file = disagreements::file_of(&options.directory);
    let listed = match disagreements::read(&file) {
        Ok(listed) => listed,
        Err(message) => {
            eprintln!("xtask conformance: {message}");
            return ExitCode::from(2);
        }
    };
    let (mut agree, mut total) = (0, 0);
    for (suite, tally) in &tallies {
        println!("{suite} {}/{}{}", tally.agree, tally.total, disagreements::summary(&listed, suite, tally));
        if options.verbose {
            for (name, difference) in &tally.disagreements {
                println!("  - {name}\n      {}", difference.replace('\n', "\n      "));
            }
        }
        agree += tally.agree;
        total += tally.total;
    }
    println!("total {agree}/{total}");
    if options.list {
        return match disagreements::write(&file, &listed, &tallies) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("xtask conformance: {message}");
                ExitCode::from(2)
            }
        };
    }
    if options.check {
        let surprises = disagreements::surprises(&listed, &tallies);
        for surprise in &surprises {
            eprintln!("{surprise}");
        }
        if !surprises.is_empty() {
            eprintln!("{} differ from {}: mend them, or list them there", surprises.len(), file.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn run<'a>(cases: impl Iterator<Item = &'a Case>) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for case in cases {
        let verdict = match runner_for(case) {
            // A panic in one case must not hide the others' verdicts.
            Some(runner) => std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runner(case)))
                .unwrap_or_else(|_| Err("panicked".to_owned())),
            None => Err(NO_RUNNER.to_owned()),
        };
        let tally = tallies.entry(case.suite.clone()).or_default();
        tally.total += 1;
        match verdict {
            Ok(()) => tally.agree += 1,
            Err(difference) => tally.disagreements.push((case.name.clone(), difference)),
        }
    }
    tallies
}

/// The module that knows a suite. Suite names overlap between folders in no recorded set, so the name decides.
fn runner_for(case: &Case) -> Option<Runner> {
    let suite = case.suite.as_str();
    None.or_else(|| {
        #[cfg(feature = "machinery")]
        if let Some(runner) = apimachinery::runner(suite) {
            return Some(runner);
        }
        #[cfg(feature = "cel")]
        if let Some(runner) = cel::runner(suite) {
            return Some(runner);
        }
        #[cfg(feature = "server")]
        if let Some(runner) = apiserver::runner(suite) {
            return Some(runner);
        }
        #[cfg(feature = "kueue")]
        if let Some(runner) = conversion::runner(suite) {
            return Some(runner);
        }
        #[cfg(feature = "jobset")]
        if let Some(runner) = jobset::runner(suite) {
            return Some(runner);
        }
        #[cfg(feature = "kueue")]
        if let Some(runner) = kueue::runner(suite).or_else(|| kueue_controllers::runner(suite)) {
            return Some(runner);
        }
        None
    })
}

/// Reads every case under a directory: each `*.json` holds one case or an array of them.
fn load(directory: &Path) -> Result<Vec<Case>, String> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    files.sort();
    let mut cases = Vec::new();
    let mut turns = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let data: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let folder = file.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let folder = folder.unwrap_or_default();
        let list = match data {
            Value::Array(list) => list,
            one => vec![one],
        };
        for (index, data) in list.into_iter().enumerate() {
            let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
            let suite = text("suite").unwrap_or_else(|| folder.clone());
            let mut name = text("name").unwrap_or_else(|| format!("#{index}"));
            // Some suites give one name to several cases; a case is named by what it is called and its turn.
            let turn = turns.entry((suite.clone(), name.clone())).or_insert(0_usize);
            *turn += 1;
            if *turn > 1 {
                name = format!("{name} ({turn})");
            }
            cases.push(Case { suite, name, file: file.clone(), data });
        }
    }
    Ok(cases)
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", directory.display()))?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if name != "schemas" {
                collect(&path, files)?;
            }
        } else if name.ends_with(".json") && name != "index.json" && name != "feature-gate-defaults.json" {
            files.push(path);
        }
    }
    Ok(())
}
