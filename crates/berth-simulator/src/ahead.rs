//! Manifests parsed by a second thread while the cluster starts and runs.
//!
//! Parsing is the only work of a run that does not depend on the run's state. If the thread has not
//! parsed a file when a step needs it, the step parses it. Thread timing therefore changes only how
//! long a run takes.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::manifest;
use crate::scenario::{Action, Loop, ManifestSet, Scenario};

/// Maximum number of parsed files that were not used yet. A scenario may use more files than fit in
/// memory.
const FILES_MAX: usize = 512;

/// Parsed documents, by the string from which they were parsed.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<HashMap<String, Vec<Value>>>);

impl Ahead {
    /// Starts parsing the manifests of a scenario, in the order in which its steps use them. The
    /// thread ends when the returned value is dropped.
    pub(crate) fn of(scenario: &Scenario, folder: &Path, variables: &BTreeMap<String, String>) -> Arc<Ahead> {
        let ahead = Arc::<Ahead>::default();
        let reader = Reader { sets: sets(scenario), folder: folder.to_owned(), variables: variables.clone() };
        let filled = Arc::downgrade(&ahead);
        // Without a thread, each manifest is parsed when a step needs it.
        let _ = std::thread::Builder::new().name("manifests".into()).spawn(move || reader.read(&filled));
        ahead
    }

    /// Removes and returns the documents of a string, if they have been parsed.
    pub(crate) fn take(&self, text: &str) -> Option<Vec<Value>> {
        self.parsed().remove(text)
    }

    fn parsed(&self) -> MutexGuard<'_, HashMap<String, Vec<Value>>> {
        self.0.lock()
    }
}

fn sets(scenario: &Scenario) -> Vec<ManifestSet> {
    let actions = scenario.spec.steps.iter().flat_map(|step| &step.actions);
    let files = actions.filter_map(|action| match action {
        Action::Apply(set) | Action::Create(set) => {
            Some(ManifestSet { files: set.files.clone(), for_each: set.for_each.clone(), ..ManifestSet::default() })
        }
        Action::Delete(delete) => Some(ManifestSet { files: delete.files.clone(), ..ManifestSet::default() }),
        _ => None,
    });
    files.filter(|set| !set.files.is_empty()).collect()
}

struct Reader {
    sets: Vec<ManifestSet>,
    folder: PathBuf,
    variables: BTreeMap<String, String>,
}

impl Reader {
    fn read(&self, filled: &Weak<Ahead>) {
        for set in &self.sets {
            let mut combinations = Combinations::of(&set.for_each);
            while let Some(variables) = combinations.values(&self.variables) {
                for file in &set.files {
                    if self.parse(file, &variables, filled).is_none() {
                        return;
                    }
                }
                combinations.advance();
            }
        }
    }

    /// Parses a file, or the files of a folder. `None` ends the thread: the documents are no longer
    /// used, or [`FILES_MAX`] is reached. Unreadable files are skipped. The step that needs such a
    /// file reports the error.
    fn parse(&self, file: &str, variables: &BTreeMap<String, String>, filled: &Weak<Ahead>) -> Option<()> {
        let path = self.folder.join(manifest::substitute(file, variables));
        for file in manifest::expand(&path).unwrap_or_default() {
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            let text = manifest::substitute(&text, variables);
            let Ok(documents) = berth_apimachinery::decode::documents(&text) else { continue };
            let ahead = filled.upgrade()?;
            let mut parsed = ahead.parsed();
            if parsed.len() >= FILES_MAX {
                return None;
            }
            parsed.insert(text, documents);
        }
        Some(())
    }
}

/// Iterates over the values of nested loops; the first loop is the outermost.
pub(crate) struct Combinations<'l> {
    loops: &'l [Loop],
    /// Index of each loop's current value; `None` after the last combination.
    positions: Option<Vec<usize>>,
}

impl<'l> Combinations<'l> {
    /// Starts at the first combination. There are no combinations if a loop has no values.
    pub(crate) fn of(loops: &'l [Loop]) -> Self {
        let is_empty = loops.iter().any(|each| each.values.is_empty());
        Self { loops, positions: (!is_empty).then(|| vec![0; loops.len()]) }
    }

    /// True if no combination is left.
    pub(crate) fn is_over(&self) -> bool {
        self.positions.is_none()
    }

    /// `variables` and the current values of the loops; `None` if no combination is left.
    pub(crate) fn values(&self, variables: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
        let mut variables = variables.clone();
        for (each, position) in self.loops.iter().zip(self.positions.as_ref()?) {
            variables.insert(each.name.clone(), each.values[*position].clone());
        }
        Some(variables)
    }

    /// Advances to the next combination. Returns the loops whose value changes, the innermost
    /// first.
    pub(crate) fn advance(&mut self) -> Vec<&'l Loop> {
        let mut finished = Vec::new();
        if let Some(positions) = &mut self.positions {
            for (each, position) in self.loops.iter().zip(positions).rev() {
                finished.push(each);
                *position += 1;
                if *position < each.values.len() {
                    return finished;
                }
                *position = 0;
            }
        }
        self.positions = None;
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loops() -> Vec<Loop> {
        serde_json::from_value(serde_json::json!([
            {"name": "index", "values": ["0", "1"]}, {"name": "team", "values": ["a", "b", "c"]},
        ]))
        .unwrap()
    }

    #[test]
    fn the_innermost_loop_changes_first() {
        let loops = loops();
        let mut combinations = Combinations::of(&loops);
        let (mut seen, mut finished) = (Vec::new(), Vec::new());
        while let Some(values) = combinations.values(&BTreeMap::new()) {
            seen.push(format!("{}{}", values["index"], values["team"]));
            finished.push(combinations.advance().len());
        }
        assert_eq!(seen, ["0a", "0b", "0c", "1a", "1b", "1c"]);
        assert_eq!(finished, [1, 1, 2, 1, 1, 2]);
        assert!(Combinations::of(&[]).values(&BTreeMap::new()).is_some());
        let none = Loop { values: Vec::new(), ..loops[0].clone() };
        assert!(Combinations::of(&[none]).values(&BTreeMap::new()).is_none());
    }

    #[test]
    fn a_file_parsed_ahead_has_the_documents_of_its_text() {
        let folder = std::env::temp_dir().join(format!("berth-ahead-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("job-a.yaml"), "kind: Job\nmetadata: {name: \"${team}\"}\n---\nkind: B\n").unwrap();
        std::fs::write(folder.join("job-b.yaml"), "kind: [\n").unwrap();
        let ahead = Arc::<Ahead>::default();
        let set = ManifestSet {
            files: vec!["job-${team}.yaml".into()],
            for_each: loops()[1..].to_vec(),
            ..ManifestSet::default()
        };
        let reader = Reader { sets: vec![set], folder: folder.clone(), variables: BTreeMap::new() };
        reader.read(&Arc::downgrade(&ahead));
        std::fs::remove_dir_all(&folder).unwrap();
        let text = "kind: Job\nmetadata: {name: \"a\"}\n---\nkind: B\n";
        assert_eq!(ahead.take(text), berth_apimachinery::decode::documents(text).ok());
        assert!(ahead.take(text).is_none() && ahead.parsed().is_empty());
    }
}
