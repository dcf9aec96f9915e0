//! Manifests parsed by another thread while the cluster starts and works.
//!
//! Parsing is the only work of a run that does not depend on what happens in it. What is not ready when it is needed is
//! parsed then, so that nothing but the time taken depends on who is faster.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::Value;

use crate::manifest;
use crate::scenario::{Action, Loop, ManifestSet, Scenario};

/// Files parsed and not yet used, at most: a scenario may go over more than memory should hold.
const FILES_MAX: usize = 512;

/// Documents by the text they were parsed from.
#[derive(Default)]
pub(crate) struct Ahead(Mutex<HashMap<String, Vec<Value>>>);

impl Ahead {
    /// Begins with the manifests of a scenario, in the order it uses them. Ends when nobody is interested any more.
    pub(crate) fn of(scenario: &Scenario, folder: &Path, variables: &BTreeMap<String, String>) -> Arc<Ahead> {
        let ahead = Arc::<Ahead>::default();
        let reader = Reader { sets: sets(scenario), folder: folder.to_owned(), variables: variables.clone() };
        let filled = Arc::downgrade(&ahead);
        // Where there is no thread to be had each manifest is parsed when it is needed.
        let _ = std::thread::Builder::new().name("manifests".into()).spawn(move || reader.read(&filled));
        ahead
    }

    /// The documents of a text, if they have been parsed.
    pub(crate) fn take(&self, text: &str) -> Option<Vec<Value>> {
        self.parsed().remove(text)
    }

    fn parsed(&self) -> MutexGuard<'_, HashMap<String, Vec<Value>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// `None` if that was the last one. What cannot be read is left to whoever needs it and can say so.
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

/// The values of nested loops, the first one outermost.
pub(crate) struct Combinations<'l> {
    loops: &'l [Loop],
    /// `None` after the last one.
    positions: Option<Vec<usize>>,
}

impl<'l> Combinations<'l> {
    /// The first combination; there is none if a loop has no values.
    pub(crate) fn of(loops: &'l [Loop]) -> Self {
        let is_empty = loops.iter().any(|each| each.values.is_empty());
        Self { loops, positions: (!is_empty).then(|| vec![0; loops.len()]) }
    }

    /// Whether there is none left.
    pub(crate) fn is_over(&self) -> bool {
        self.positions.is_none()
    }

    /// These variables and those of the loops.
    pub(crate) fn values(&self, variables: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
        let mut variables = variables.clone();
        for (each, position) in self.loops.iter().zip(self.positions.as_ref()?) {
            variables.insert(each.name.clone(), each.values[*position].clone());
        }
        Some(variables)
    }

    /// Steps the innermost loop; returns the loops whose present value is over.
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
    fn the_innermost_loop_runs_fastest() {
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
    fn what_is_read_ahead_is_what_is_read() {
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
