//! Tests that the table of clauses in `xtask/http-conformance/README.md` names existing steps and
//! tests.

use std::collections::{BTreeMap, BTreeSet};

use super::load;

#[test]
fn every_clause_names_existing_steps_and_every_walk_has_a_clause() {
    let root = crate::workspace_root();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let walks = load(None).expect("all walks parse");
    let steps: BTreeMap<&str, BTreeSet<&str>> =
        walks.iter().map(|walk| (&*walk.name, walk.steps.iter().map(|step| &*step.name).collect())).collect();
    let mut named = BTreeSet::new();
    let table = read("xtask/http-conformance/README.md");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| clause |"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [clause, covered_by] = cells[..] else { panic!("{row}: expected two cells: clause and steps") };
        for item in covered_by.split("; ") {
            match item.split_once(": ").unwrap_or_else(|| panic!("{clause}: {item}: expected `walk: step`")) {
                ("test", test) => {
                    let (path, name) = test.split_once(' ').unwrap_or_else(|| panic!("{test}: expected `FILE TEST`"));
                    assert!(read(path).contains(&format!("fn {name}(")), "{clause}: {path} has no test {name}");
                }
                (walk, step) => {
                    let exists = steps.get(walk).is_some_and(|steps| steps.contains(step));
                    assert!(exists, "{clause}: the walk `{walk}` has no step `{step}`");
                    named.insert(walk);
                }
            }
        }
    }
    let unnamed: Vec<&str> = steps.keys().copied().filter(|walk| !named.contains(walk)).collect();
    assert!(unnamed.is_empty(), "no clause names these walks: {unnamed:?}");
}
