//! The conformance runner. It runs the recorded cases of a folder through the code that ships and
//! prints `suite agree/total` per suite. It also prints the difference of each disagreement
//! that is not listed ([`disagreements`]). With `--verbose` it prints all differences.
//!
//! A case names its suite; otherwise the name of its folder is the suite. A *runner* is a function
//! from a case to a verdict, and [`runner_for`] returns the runner of a suite. A case disagrees if
//!
//! - its suite has no runner,
//! - the runner finds a difference,
//! - the runner did not read a field of the case ([`fields::Fields`] records the reads), or
//! - the case sets a feature gate that Berth does not know ([`gates`]).
//!
//! `--check` also corrupts each expectation of an agreeing case, one at a time. The case disagrees
//! if the runner does not notice. `disagreements/ignored.txt` lists the fields that runners may
//! ignore, with reasons.

#[cfg(feature = "machinery")]
mod apimachinery;
#[cfg(feature = "server")]
mod apiserver;
#[cfg(feature = "cel")]
mod cel;
#[cfg(feature = "kueue")]
mod conversion;
mod disagreements;
mod fields;
mod gates;
#[cfg(feature = "jobset")]
mod jobset;
#[cfg(feature = "kueue")]
mod kueue;
#[cfg(feature = "kueue")]
mod kueue_controllers;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use disagreements::{Ignored, Listed};
use fields::Fields;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;

/// One recorded case.
pub struct Case {
    /// Suite name: the case's `suite` field, otherwise the name of its folder.
    pub suite: String,
    /// Case name as upstream spells it.
    pub name: String,
    /// File that the case was read from. Some suites read schemas from files near it.
    #[allow(dead_code, reason = "read only by suites that have schema files")]
    pub file: PathBuf,
    /// Fields other than `input` and `want`: clock, feature gates, upstream's observed output.
    pub data: Fields,
    /// Inputs of the tested function.
    pub input: Fields,
    /// Expected outputs.
    pub want: Fields,
}

impl Case {
    /// Creates a case from its recorded JSON.
    fn new(suite: String, name: String, file: PathBuf, mut data: Value) -> Self {
        let mut take = |part: &str| Fields::new(data.get_mut(part).map(Value::take).unwrap_or_default());
        let (input, want) = (take("input"), take("want"));
        Case { suite, name, file, data: Fields::new(data), input, want }
    }

    /// A copy of the case that expects another value in one field. No field counts as read.
    fn wanting(&self, key: &str, value: Value) -> Self {
        let unread = |fields: &Fields| Fields::new(fields.whole().clone());
        Case {
            suite: self.suite.clone(),
            name: self.name.clone(),
            file: self.file.clone(),
            data: unread(&self.data),
            input: unread(&self.input),
            want: self.want.with(key, value),
        }
    }
}

/// Result of a case: `Ok` if it agrees, otherwise the differences, one per line.
pub type Verdict = Result<(), String>;

/// The difference that is reported for a case of a suite without a runner.
const NO_RUNNER: &str = "no runner for this suite yet";

/// Runs one case.
pub type Runner = fn(&Case) -> Verdict;

/// Options of the command line.
pub struct Options {
    directory: PathBuf,
    suite: Option<String>,
    case: Option<String>,
    verbose: bool,
    json: bool,
    check: bool,
    list: bool,
    pack: Option<PathBuf>,
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
            pack: None,
        };
        while let Some(arg) = args.next() {
            let mut value = |flag: &str| args.next().ok_or(format!("{flag} needs a value"));
            match arg.as_str() {
                "--suite" => options.suite = Some(value("--suite")?),
                "--case" => options.case = Some(value("--case")?),
                "--verbose" | "-v" => options.verbose = true,
                "--check" => options.check = true,
                "--list-open" => options.list = true,
                "--pack" => options.pack = Some(PathBuf::from(value("--pack")?)),
                "--output" => match value("--output")?.as_str() {
                    "json" => options.json = true,
                    other => return Err(format!("--output {other}: expected json")),
                },
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                directory => options.directory = PathBuf::from(directory),
            }
        }
        if (options.check || options.list) && (options.suite.is_some() || options.case.is_some()) {
            return Err("--check and --list-open need the whole folder: remove --suite and --case".to_owned());
        }
        Ok(options)
    }
}

/// Results of one suite.
#[derive(Default)]
struct Tally {
    agree: usize,
    total: usize,
    /// Case name and difference of each disagreeing case.
    disagreements: Vec<(String, String)>,
}

/// Runs every case under the directory and prints the tallies. Without `--check` the command fails
/// only if there are no cases, or if a file cannot be read or written. With it, the command also
/// fails if the disagreements are not exactly those that `xtask/disagreements/FOLDER.txt` lists, or
/// if a line of `ignored.txt` is not needed.
pub fn main(options: &Options) -> ExitCode {
    if let Some(file) = &options.pack {
        return match pack(&options.directory, file) {
            Ok(count) => {
                println!("packed {count} files of {} into {}", options.directory.display(), file.display());
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("xtask conformance: {message}");
                ExitCode::from(2)
            }
        };
    }
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
    // Run the cases that the options select.
    let is_selected = |case: &&Case| {
        options.suite.as_ref().is_none_or(|suite| case.suite == *suite)
            && options.case.as_ref().is_none_or(|text| case.name.contains(text.as_str()))
    };
    let selected: Vec<&Case> = cases.iter().filter(is_selected).collect();
    let file = disagreements::file_of(&options.directory);
    let (listed, ignored) = match disagreements::read(&file).and_then(|listed| Ok((listed, disagreements::ignored()?)))
    {
        Ok(lists) => lists,
        Err(message) => {
            eprintln!("xtask conformance: {message}");
            return ExitCode::from(2);
        }
    };
    let tallies = run(&selected, &ignored, options.check);
    if options.json {
        let report = report(&tallies, &listed);
        println!("{}", serde_json::to_string_pretty(&report).expect("a report of strings and numbers serializes"));
        return if options.check { check(&file, &listed, &ignored, &tallies) } else { ExitCode::SUCCESS };
    }
    // Print text for users.
    let (mut agree, mut total) = (0, 0);
    for (suite, tally) in &tallies {
        println!("{suite} {}/{}{}", tally.agree, tally.total, disagreements::summary(&listed, suite, tally));
        for (name, difference) in &tally.disagreements {
            // Listed disagreements are printed with `--verbose` only.
            if options.verbose || disagreements::find(&listed, suite, name).is_none() {
                println!("  - {name}\n      {}", difference.replace('\n', "\n      "));
            }
        }
        agree += tally.agree;
        total += tally.total;
    }
    println!("total {agree}/{total}");
    if let Some(line) = gates::missing_line(&selected) {
        println!("{line}");
    }
    // Compare with the list of known disagreements, or rewrite it.
    if options.list {
        return match disagreements::write(&file, &listed, &tallies) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("xtask conformance: {message}");
                ExitCode::from(2)
            }
        };
    }
    if options.check { check(&file, &listed, &ignored, &tallies) } else { ExitCode::SUCCESS }
}

/// Fails if the disagreements are not exactly those that are listed, or if a listed ignored field
/// is compared.
fn check(file: &Path, listed: &Listed, ignored: &Ignored, tallies: &BTreeMap<String, Tally>) -> ExitCode {
    let mut deviations = disagreements::deviations(listed, tallies);
    deviations.extend(ignored.stale());
    for deviation in &deviations {
        eprintln!("{deviation}");
    }
    if deviations.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{} results differ from {}: fix them, or list them there", deviations.len(), file.display());
    ExitCode::FAILURE
}

/// The tallies as JSON: per suite the number of agreeing cases, and each disagreement with the
/// class and reason of its line in the list, if it has one.
fn report(tallies: &BTreeMap<String, Tally>, listed: &Listed) -> BTreeMap<String, Value> {
    let of = |(suite, tally): (&String, &Tally)| {
        let disagreements: Vec<Value> = tally
            .disagreements
            .iter()
            .map(|(name, difference)| {
                let mut entry = serde_json::json!({"case": name, "difference": difference});
                if let Some((class, reason)) = disagreements::find(listed, suite, name) {
                    entry["class"] = class.text().into();
                    entry["reason"] = reason.as_str().into();
                }
                entry
            })
            .collect();
        let entry = serde_json::json!({"agree": tally.agree, "total": tally.total, "disagreements": disagreements});
        (suite.clone(), entry)
    };
    tallies.iter().map(of).collect()
}

fn run(cases: &[&Case], ignored: &Ignored, corrupt: bool) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for case in cases {
        let verdict = judge(case, ignored, corrupt);
        let tally = tallies.entry(case.suite.clone()).or_default();
        tally.total += 1;
        match verdict {
            Ok(()) => tally.agree += 1,
            Err(difference) => tally.disagreements.push((case.name.clone(), difference)),
        }
    }
    tallies
}

/// Runs a case. It agrees if its runner finds no difference and has read all fields that it may not
/// ignore. With `corrupt`, each of these expectations is also corrupted in turn, and the runner
/// must find a difference each time.
fn judge(case: &Case, ignored: &Ignored, corrupt: bool) -> Verdict {
    let runner = runner_for(case).ok_or(NO_RUNNER)?;
    gates::check(case)?;
    // A panic in one case must not hide the verdicts of the others.
    let guarded = |case: &Case| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runner(case)))
            .unwrap_or_else(|_| Err("panicked".to_owned()))
    };
    for (part, fields) in [("", &case.data), ("input.", &case.input), ("want.", &case.want)] {
        fields.peek().for_each(|(key, _)| ignored.note_present(&case.suite, &format!("{part}{key}")));
    }
    guarded(case)?;
    let mut problems = Vec::new();
    for (part, fields) in [("", &case.data), ("input.", &case.input), ("want.", &case.want)] {
        for (key, value) in fields.unread() {
            let field = format!("{part}{key}");
            if !(is_zero_value(value) || ignored.contains(&case.suite, &field)) {
                problems.push(format!("{field}: the runner does not read this field"));
            }
        }
    }
    if corrupt && problems.is_empty() {
        // Corrupted expectations may make a runner panic: do not print those panics.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        for (key, value) in case.want.peek() {
            if value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(serde_json::Map::is_empty) {
                continue;
            }
            let wrong = corrupted(value);
            let field = format!("want.{key}");
            if wrong != *value && guarded(&case.wanting(key, wrong)).is_ok() && !ignored.contains(&case.suite, &field) {
                problems.push(format!("{field}: the runner accepts a corrupted value"));
            }
        }
        std::panic::set_hook(hook);
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// True for a value that is equivalent to an absent field.
fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// The value with every leaf changed except null. Empty lists and objects get an entry.
fn corrupted(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(flag) => Value::Bool(!flag),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.wrapping_add(7).into(),
            None => (number.as_f64().unwrap_or_default() + 7.0).into(),
        },
        Value::String(text) => format!("{text}X").into(),
        Value::Array(list) if list.is_empty() => vec![Value::from("X")].into(),
        Value::Array(list) => list.iter().map(corrupted).collect(),
        Value::Object(map) if map.is_empty() => serde_json::json!({"X": "X"}),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), corrupted(value))).collect(),
    }
}

/// The runner of a case's suite. The name suffices: no two folders have a suite of the same name.
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

/// Suffix of a packed file. It holds many recorded files: one JSON value per line, compressed with
/// gzip.
pub(crate) const PACKED: &str = ".jsonl.gz";

/// The recorded files under a directory, or in a packed file, in name order. Each holds one case or
/// an array of cases.
fn recorded(source: &Path) -> Result<Vec<(PathBuf, Value)>, String> {
    fn parse(file: &Path, text: &str) -> Result<Value, String> {
        serde_json::from_str(text).map_err(|e| format!("{}: {e}", file.display()))
    }
    if source.to_string_lossy().ends_with(PACKED) {
        let open = || {
            let mut text = String::new();
            GzDecoder::new(std::fs::File::open(source)?).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = open().map_err(|e: std::io::Error| format!("{}: {e}", source.display()))?;
        return text.lines().map(|line| Ok((source.to_path_buf(), parse(source, line)?))).collect();
    }
    let mut files = Vec::new();
    collect(source, &mut files)?;
    files.sort();
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let value = parse(&file, &text)?;
        Ok((file, value))
    };
    files.into_iter().map(read).collect()
}

/// Packs the recorded files of a directory into one file and returns their number. The output bytes
/// depend only on the files.
fn pack(directory: &Path, file: &Path) -> Result<usize, String> {
    let values = recorded(directory)?;
    let write = || {
        let mut out = GzEncoder::new(std::fs::File::create(file)?, Compression::best());
        for (_, value) in &values {
            writeln!(out, "{value}")?;
        }
        out.finish()
    };
    write().map_err(|e: std::io::Error| format!("{}: {e}", file.display()))?;
    Ok(values.len())
}

/// Reads every recorded case under a directory or in a packed file.
fn load(directory: &Path) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    let mut numbers = BTreeMap::new();
    for (file, data) in recorded(directory)? {
        let folder = file.parent().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
        let folder = folder.unwrap_or_default();
        let list = match data {
            Value::Array(list) => list,
            case => vec![case],
        };
        for (index, data) in list.into_iter().enumerate() {
            let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
            let suite = text("suite").unwrap_or_else(|| folder.clone());
            let mut name = text("name").unwrap_or_else(|| format!("#{index}"));
            // Some suites have several cases of one name: number them from the second one on.
            let number = numbers.entry((suite.clone(), name.clone())).or_insert(0_usize);
            *number += 1;
            if *number > 1 {
                name = format!("{name} ({number})");
            }
            cases.push(Case::new(suite, name, file.clone(), data));
        }
    }
    Ok(cases)
}

/// Adds the case files under a directory to `files`. Schemas, indexes and lists of gate defaults
/// are skipped.
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
