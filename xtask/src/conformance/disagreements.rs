//! The disagreements that are known: one file per folder of recorded cases, one line per case (or per suite).
//!
//! A line is `CLASS | SUITE | CASE | REASON`. `CASE` may be `*`: every case of the suite. The classes:
//!
//! - `accepted`: Berth behaves otherwise on purpose; the reason is about behaviour.
//! - `out-of-scope`: the recorded behaviour belongs to something Berth does not do (for now).
//! - `open`: Berth is wrong, or has no runner yet. `--list-open` writes these lines.
//!
//! A `*` line is refused when any case of the suite agrees, and `accepted` when nothing was run: what was not run cannot
//! be known to behave otherwise.
//!
//! `ignored.txt` is about fields: `SUITE | FIELD | REASON` for a field of `input` or `want` (or beside them) that a runner
//! may leave aside. `SUITE` may be `*`, or end in `*`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Tally;

/// Why a disagreement is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Different on purpose.
    Accepted,
    /// Not something Berth does.
    OutOfScope,
    /// To be mended.
    Open,
}

impl Class {
    /// As it stands in a list.
    pub fn text(self) -> &'static str {
        match self {
            Class::Accepted => "accepted",
            Class::OutOfScope => "out-of-scope",
            Class::Open => "open",
        }
    }
}

/// What a file lists: suite, case (or `*`) -> class and reason.
pub type Listed = BTreeMap<(String, String), (Class, String)>;

/// The file for a folder of cases, by the folder's name.
pub fn file_of(directory: &Path) -> PathBuf {
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name = name.strip_suffix(super::PACKED).unwrap_or(&name);
    crate::workspace_root().join("xtask/disagreements").join(format!("{name}.txt"))
}

/// Reads a list; a missing file lists nothing.
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
        let refuse = |why: &str| format!("{}:{}: {why}: {line}", file.display(), number + 1);
        let (class, rest) = line.split_once(" | ").ok_or_else(|| refuse("expected `CLASS | SUITE | CASE | REASON`"))?;
        let (suite, rest) = rest.split_once(" | ").ok_or_else(|| refuse("expected `CLASS | SUITE | CASE | REASON`"))?;
        // A case's name may hold the separator, a reason may not.
        let (case, reason) = rest.rsplit_once(" | ").ok_or_else(|| refuse("a disagreement needs a reason"))?;
        let class = match class {
            "accepted" => Class::Accepted,
            "out-of-scope" => Class::OutOfScope,
            "open" => Class::Open,
            _ => return Err(refuse("expected accepted, out-of-scope or open")),
        };
        if reason.trim().is_empty() {
            return Err(refuse("a disagreement needs a reason"));
        }
        if listed.insert((suite.to_owned(), case.to_owned()), (class, reason.to_owned())).is_some() {
            return Err(refuse("listed twice"));
        }
    }
    Ok(listed)
}

/// The line that lists a case, or its whole suite.
pub fn find<'a>(listed: &'a Listed, suite: &str, case: &str) -> Option<&'a (Class, String)> {
    listed.get(&(suite.to_owned(), case.to_owned())).or_else(|| listed.get(&(suite.to_owned(), "*".to_owned())))
}

/// ` (accepted 2, out-of-scope 1, open 4)` behind a suite's tally; nothing where every case agrees.
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

/// Where the run and the list differ: a disagreement nobody lists, a listed one that agrees, a line for a case that is
/// not there.
pub fn surprises(listed: &Listed, tallies: &BTreeMap<String, Tally>) -> Vec<String> {
    let mut surprises = Vec::new();
    let mut met = BTreeSet::new();
    for (suite, tally) in tallies {
        for (case, difference) in &tally.disagreements {
            let exact = (suite.clone(), case.clone());
            let all = (suite.clone(), "*".to_owned());
            if let Some(key) = [exact, all].into_iter().find(|key| listed.contains_key(key)) {
                met.insert(key);
            } else {
                surprises.push(format!("{suite} | {case}: disagrees and is not listed: {difference}"));
            }
        }
    }
    for (key, (class, _)) in listed {
        let Some(tally) = tallies.get(&key.0) else {
            surprises.push(format!("{} | {}: listed as {} and there is no such suite", key.0, key.1, class.text()));
            continue;
        };
        if key.1 == "*" && tally.agree > 0 {
            surprises.push(format!("{} | *: {} of its cases agree: name those that do not", key.0, tally.agree));
        }
        let unrun =
            tally.disagreements.iter().any(|(case, why)| why == super::NO_RUNNER && (key.1 == "*" || key.1 == *case));
        if *class == Class::Accepted && unrun {
            surprises.push(format!("{} | {}: listed as accepted and not run", key.0, key.1));
        }
        if !met.contains(key) {
            surprises.push(format!("{} | {}: listed as {} and agrees (or is gone)", key.0, key.1, class.text()));
        }
    }
    surprises
}

/// Writes the list anew: lines that still hold stay as they are, what is not listed becomes `open`.
pub fn write(file: &Path, listed: &Listed, tallies: &BTreeMap<String, Tally>) -> Result<(), String> {
    let mut lines: BTreeMap<(String, String), (Class, String)> = BTreeMap::new();
    for (suite, tally) in tallies {
        let all = (suite.clone(), "*".to_owned());
        if let Some(entry) = listed.get(&all)
            && !tally.disagreements.is_empty()
        {
            // A suite that has agreeing cases is listed case by case.
            if tally.agree == 0 {
                lines.insert(all, entry.clone());
                continue;
            }
        }
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

/// The beginning of a difference, short enough for a list and without the separator.
fn first_line(difference: &str) -> String {
    let line = difference.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("differs");
    let line: String = line.replace(" | ", " / ").chars().take(100).collect();
    line.trim().to_owned()
}

/// Fields that runners may leave aside.
#[derive(Default)]
pub struct Ignored {
    lines: Vec<(String, String)>,
    met: RefCell<BTreeSet<usize>>,
    used: RefCell<BTreeSet<usize>>,
}

/// Reads the list of fields that runners may leave aside.
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

    /// Notes that a case of a suite has a field.
    pub fn meet(&self, suite: &str, field: &str) {
        self.met.borrow_mut().extend(self.find(suite, field));
    }

    /// True if a suite's runner may leave a field aside.
    pub fn contains(&self, suite: &str, field: &str) -> bool {
        let found = self.find(suite, field);
        self.used.borrow_mut().extend(found);
        found.is_some()
    }

    /// Lines that nothing needs any more: there are such fields, and every runner compares them.
    pub fn stale(&self) -> Vec<String> {
        let (met, used) = (self.met.borrow(), self.used.borrow());
        let stale = met.difference(&used).filter_map(|at| self.lines.get(*at));
        // Lines about several suites hold where they are needed.
        let stale = stale.filter(|(suite, _)| !suite.ends_with('*'));
        stale.map(|(suite, field)| format!("{suite} | {field}: listed as ignored and compared")).collect()
    }
}

/// True if a line's suite, perhaps ending in `*`, is about a suite.
fn covers(line: &str, suite: &str) -> bool {
    line.strip_suffix('*').map_or(line == suite, |start| suite.starts_with(start))
}
