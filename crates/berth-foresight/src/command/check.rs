//! The command `berth check`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::check::{self, Checked, RULES, Severity, report};
use crate::objects::{Document, Invalid, ObjectRef, Objects, Source, Template, read};

/// What to check, and how to report it.
#[derive(Debug, Args)]
pub struct Options {
    /// A file, or a folder with all files below it that end in .yaml, .yml or .json. May be
    /// repeated.
    #[arg(short, long = "filename", value_name = "FILE|FOLDER")]
    pub files: Vec<PathBuf>,
    /// Format of the report.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Exit with 1 if there is a finding of this severity or a worse one.
    #[arg(long, value_enum, default_value = "warning", value_name = "SEVERITY")]
    fail_on: FailOn,
    /// Leave out the findings of this rule. May be repeated.
    #[arg(long, value_name = "RULE", value_parser = rule)]
    ignore: Vec<String>,
}

/// Format of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A paragraph per finding.
    Text,
    /// One JSON object.
    Json,
    /// SARIF 2.1.0, for code hosts.
    Sarif,
}

/// The least severity that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Note,
    Warning,
    Error,
    Never,
}

/// A report, and whether the check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What to print.
    pub text: String,
    /// True if a finding is as severe as `--fail-on`.
    pub failed: bool,
}

fn rule(text: &str) -> Result<String, String> {
    let known = RULES.iter().any(|rule| rule.id == text);
    let names: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    known.then(|| text.to_owned()).ok_or_else(|| format!("expected one of {}", names.join(", ")))
}

/// Checks the files, and the objects of a live cluster if there are any.
pub fn run(options: &Options, live: Vec<Document>, template: Template<'_>, now: Timestamp) -> anyhow::Result<Report> {
    let (mut documents, unreadable) = documents(&options.files)?;
    // Objects of files replace those of the cluster.
    documents.extend(live);
    let mut objects = Objects::read(documents);
    objects.invalid.retain(|invalid| invalid.source.is_some());
    objects.invalid.extend(unreadable);
    let mut checked = check::check(&objects, template, now);
    let ignored: BTreeSet<&str> = options.ignore.iter().map(String::as_str).collect();
    checked.findings.retain(|finding| !ignored.contains(finding.rule));
    Ok(Report { text: rendered(options.output, &checked), failed: fails(options.fail_on, &checked) })
}

fn rendered(output: Output, checked: &Checked) -> String {
    match output {
        Output::Text => report::text(checked),
        Output::Json => format!("{:#}\n", report::json(checked)),
        Output::Sarif => format!("{:#}\n", report::sarif(checked)),
    }
}

fn fails(on: FailOn, checked: &Checked) -> bool {
    let least = match on {
        FailOn::Note => Severity::Note,
        FailOn::Warning => Severity::Warning,
        FailOn::Error => Severity::Error,
        FailOn::Never => return false,
    };
    checked.findings.iter().any(|finding| finding.severity >= least)
}

/// The documents of files and folders, in the order of the file names. A file of a folder that is
/// not YAML or JSON is returned as invalid; a file that was named is an error.
pub fn documents(paths: &[PathBuf]) -> anyhow::Result<(Vec<Document>, Vec<Invalid>)> {
    let (mut documents, mut invalid) = (Vec::new(), Vec::new());
    for path in paths {
        let is_folder = path.is_dir();
        let mut files = Vec::new();
        if is_folder {
            collect(path, &mut files)?;
            if files.is_empty() {
                bail!("{}: no file ends in .yaml, .yml or .json", path.display());
            }
        } else {
            files.push(path.clone());
        }
        for file in files {
            let name = file.display().to_string();
            let bytes = std::fs::read(&file).with_context(|| name.clone())?;
            let text = String::from_utf8(bytes).map_err(|_| (1, "is not UTF-8".to_owned()));
            match text.and_then(|text| read::documents(&name, &text)) {
                Ok(found) => documents.extend(found),
                Err((line, problem)) if is_folder => invalid.push(Invalid {
                    object: ObjectRef::cluster("File", &name),
                    problems: vec![problem],
                    source: Some(Source { file: name.as_str().into(), line }),
                }),
                Err((line, problem)) => bail!("{name}, document in line {line}: {problem}"),
            }
        }
    }
    Ok((documents, invalid))
}

/// The manifests below a folder, in name order. Links and hidden files are left out.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(|| folder.display().to_string())?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let kind = entry.file_type().with_context(|| path.display().to_string())?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        let ending = path.extension().and_then(|ending| ending.to_str());
        if is_hidden {
            continue;
        }
        if kind.is_dir() {
            collect(&path, files)?;
        } else if kind.is_file() && ending.is_some_and(|ending| matches!(ending, "yaml" | "yml" | "json")) {
            files.push(path);
        }
    }
    Ok(())
}
