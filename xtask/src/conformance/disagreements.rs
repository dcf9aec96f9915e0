//! Known disagreements: one file per folder of recorded cases, one line per case or suite.
//!
//! A line is `CLASS | SUITE | CASE | REASON`. `CASE` may be `*`: every case of the suite. The
//! classes:
//!
//! - `accepted`: Berth differs on purpose. The reason describes the behaviour.
//! - `out-of-scope`: the recorded behaviour belongs to a feature that Berth does not have (yet).
//! - `open`: Berth is wrong, or the suite has no runner yet. `--list-open` writes these lines.
//!
//! A `*` line is an error if any case of the suite agrees. An `accepted` line is an error if the
//! suite has no runner, because the difference was not observed.
//!
//! `ignored.txt` lists fields that runners may ignore, as `SUITE | FIELD | REASON`. `FIELD` is a
//! field of the case, such as `now`, `input.env` or `want.err`. `SUITE` may be `*` or end in `*`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Tally;

/// Class of a known disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Berth differs on purpose.
    Accepted,
    /// Berth does not have the feature.
    OutOfScope,
    /// To be fixed.
    Open,
}

impl Class {
    /// The class's name in a list.
    pub fn text(self) -> &'static str {
        match self {
            Class::Accepted => "accepted",
            Class::OutOfScope => "out-of-scope",
            Class::Open => "open",
        }
    }
}

/// Lines of a list: class and reason by suite and case (or `*`).
pub type Listed = BTreeMap<(String, String), (Class, String)>;

/// Path of the list for a folder of cases.
pub fn file_of(directory: &Path) -> PathBuf {
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.strip_suffix(super::PACKED).unwrap_or(&name);
    crate::workspace_root().join("xtask/disagreements").join(format!("{name}.txt"))
}

/// Reads a list. A missing file is an empty list.
pub fn read(file: &Path) -> Result<Listed, String> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Listed::new()),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    let mut listed = Listed::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let invalid = |why: &str| format!("{}:{}: {why}: {line}", file.display(), number + 1);
        let (class, rest) =
            line.split_once(" | ").ok_or_else(|| invalid("expected `CLASS | SUITE | CASE | REASON`"))?;
        let (suite, rest) =
            rest.split_once(" | ").ok_or_else(|| invalid("expected `CLASS | SUITE | CASE | REASON`"))?;
        // A case name may contain the separator. A reason must not.
        let (case, reason) = rest.rsplit_once(" | ").ok_or_else(|| invalid("the reason is missing"))?;
        let class = match class {
            "accepted" => Class::Accepted,
            "out-of-scope" => Class::OutOfScope,
            "open" => Class::Open,
            _ => return Err(invalid("expected accepted, out-of-scope or open")),
        };
        if reason.trim().is_empty() {
            return Err(invalid("the reason is empty"));
        }
        if listed.insert((suite.to_owned(), case.to_owned()), (class, reason.to_owned())).is_some() {
            return Err(invalid("the case is listed twice"));
        }
    }
    Ok(listed)
}

/// Class and reason of the line that lists the case or its whole suite.
pub fn find<'a>(listed: &'a Listed, suite: &str, case: &str) -> Option<&'a (Class, String)> {
    listed.get(&(suite.to_owned(), case.to_owned())).or_else(|| listed.get(&(suite.to_owned(), "*".to_owned())))
}

/// Counts per class for a suite's tally, such as ` (accepted 2, open 4)`. Empty if every case
/// agrees.
pub fn summary(listed: &Listed, suite: &str, tally: &Tally) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, _) in &tally.disagreements {
        let class = find(listed, suite, case).map_or("unlisted", |(class, _)| class.text());
        *counts.entry(class).or_default() += 1;
    }
    if counts.is_empty() {
        return String::new();
    }
    let parts: Vec<String> = counts.iter().map(|(class, count)| format!("{class} {count}")).collect();
    format!(" ({})", parts.join(", "))
}

/// Differences between the results and the list: disagreements that are not listed, and lines that
/// do not match the results.
pub fn deviations(listed: &Listed, tallies: &BTreeMap<String, Tally>) -> Vec<String> {
    let mut deviations = Vec::new();
    let mut used = BTreeSet::new();
    // Disagreements without a line.
    for (suite, tally) in tallies {
        for (case, difference) in &tally.disagreements {
            let exact = (suite.clone(), case.clone());
            let all = (suite.clone(), "*".to_owned());
            if let Some(key) = [exact, all].into_iter().find(|key| listed.contains_key(key)) {
                used.insert(key);
            } else {
                deviations.push(format!("{suite} | {case}: disagrees and is not listed: {difference}"));
            }
        }
    }
    // Lines that do not match the results.
    for (key, (class, _)) in listed {
        let Some(tally) = tallies.get(&key.0) else {
            deviations.push(format!("{} | {}: listed as {}, but there is no such suite", key.0, key.1, class.text()));
            continue;
        };
        if key.1 == "*" && tally.agree > 0 {
            deviations.push(format!(
                "{} | *: {} cases of this suite agree: list the disagreeing cases by name",
                key.0, tally.agree
            ));
        }
        let has_no_runner =
            tally.disagreements.iter().any(|(case, why)| why == super::NO_RUNNER && (key.1 == "*" || key.1 == *case));
        if *class == Class::Accepted && has_no_runner {
            deviations.push(format!("{} | {}: listed as accepted, but the suite has no runner", key.0, key.1));
        }
        if !used.contains(key) {
            deviations.push(format!(
                "{} | {}: listed as {}, but the case agrees or does not exist",
                key.0,
                key.1,
                class.text()
            ));
        }
    }
    deviations
}

/// Rewrites the list. Lines that match the results are kept; disagreements without a line become
/// `open`.
pub fn write(file: &Path, listed: &Listed, tallies: &BTreeMap<String, Tally>) -> Result<(), String> {
    let mut lines: BTreeMap<(String, String), (Class, String)> = BTreeMap::new();
    for (suite, tally) in tallies {
        let all = (suite.clone(), "*".to_owned());
        if let Some(entry) = listed.get(&all)
            && !tally.disagreements.is_empty()
        {
            // If some cases agree, the others are listed one by one.
            if tally.agree == 0 {
                lines.insert(all, entry.clone());
                continue;
            }
        }
        // One line for a suite without a runner.
        if tally.agree == 0 && tally.total > 1 && tally.disagreements.iter().all(|(_, why)| why == super::NO_RUNNER) {
            lines.insert(all, (Class::Open, super::NO_RUNNER.to_owned()));
            continue;
        }
        for (case, difference) in &tally.disagreements {
            let key = (suite.clone(), case.clone());
            let entry = listed.get(&key).cloned().unwrap_or_else(|| (Class::Open, first_line(difference)));
            lines.insert(key, entry);
        }
    }
    let mut text = String::from(
        "# Known disagreements with the recorded cases: CLASS | SUITE | CASE | REASON.\n\
         # `cargo xtask conformance DIR --list-open` rewrites the open ones; docs: xtask/src/conformance/disagreements.rs.\n",
    );
    for ((suite, case), (class, reason)) in lines {
        let _ = writeln!(text, "{} | {suite} | {case} | {reason}", class.text());
    }
    std::fs::create_dir_all(file.parent().expect("the file lies in a folder")).map_err(|e| e.to_string())?;
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// First line of a difference, shortened for a list and without the separator.
fn first_line(difference: &str) -> String {
    let line = difference.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("differs");
    let line: String = line.replace(" | ", " / ").chars().take(100).collect();
    line.trim().to_owned()
}

/// Fields that runners may ignore.
#[derive(Default)]
pub struct Ignored {
    /// Suite and field of each line.
    lines: Vec<(String, String)>,
    /// Indexes of the lines whose field occurred in a case.
    present: RefCell<BTreeSet<usize>>,
    /// Indexes of the lines that allowed a runner to ignore a field.
    used: RefCell<BTreeSet<usize>>,
}

/// Reads the list of fields that runners may ignore.
pub fn ignored() -> Result<Ignored, String> {
    let file = crate::workspace_root().join("xtask/disagreements/ignored.txt");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut ignored = Ignored::default();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        match line.splitn(3, " | ").collect::<Vec<_>>()[..] {
            [suite, field, reason] if !reason.trim().is_empty() => {
                ignored.lines.push((suite.to_owned(), field.to_owned()));
            }
            _ => return Err(format!("{}:{}: expected `SUITE | FIELD | REASON`: {line}", file.display(), number + 1)),
        }
    }
    Ok(ignored)
}

impl Ignored {
    fn find(&self, suite: &str, field: &str) -> Option<usize> {
        self.lines.iter().position(|(of, name)| name == field && covers(of, suite))
    }

    /// Records that a case of a suite has a field.
    pub fn note_present(&self, suite: &str, field: &str) {
        self.present.borrow_mut().extend(self.find(suite, field));
    }

    /// True if the suite's runner may ignore the field. The line counts as used.
    pub fn contains(&self, suite: &str, field: &str) -> bool {
        let found = self.find(suite, field);
        self.used.borrow_mut().extend(found);
        found.is_some()
    }

    /// Messages about lines to remove: the field occurs in cases, and the runner reads and compares
    /// it in all of them.
    pub fn stale(&self) -> Vec<String> {
        let (present, used) = (self.present.borrow(), self.used.borrow());
        let stale = present.difference(&used).filter_map(|at| self.lines.get(*at));
        // A line for several suites may be unused in this folder.
        let stale = stale.filter(|(suite, _)| !suite.ends_with('*'));
        let message = |(suite, field): &(String, String)| {
            format!("{suite} | {field}: listed as ignored, but the runner compares it: remove the line")
        };
        stale.map(message).collect()
    }
}

/// True if a line's suite, which may end in `*`, matches the suite.
fn covers(line: &str, suite: &str) -> bool {
    line.strip_suffix('*').map_or(line == suite, |start| suite.starts_with(start))
}
