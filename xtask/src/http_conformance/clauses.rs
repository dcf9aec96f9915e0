//! The table of what each clause is shown by (`xtask/http-conformance/README.md`) names steps and tests that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::load;

#[test]
fn every_clause_names_steps_that_exist() {
    let root = crate::workspace_root();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let walks = load(None).expect("the walks are readable");
    let steps: BTreeMap<&str, BTreeSet<&str>> =
        walks.iter().map(|walk| (&*walk.name, walk.steps.iter().map(|step| &*step.name).collect())).collect();
    let mut named = BTreeSet::new();
    let table = read("xtask/http-conformance/README.md");
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| clause |"));
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [clause, shown_by] = cells[..] else { panic!("{row}: expected a clause and what it is shown by") };
        for item in shown_by.split("; ") {
            match item.split_once(": ").unwrap_or_else(|| panic!("{clause}: {item}: expected `walk: step`")) {
                ("test", test) => {
                    let (path, name) =
                        test.split_once(' ').unwrap_or_else(|| panic!("{test}: expected a file and a test"));
                    assert!(read(path).contains(&format!("fn {name}(")), "{clause}: there is no test {name} in {path}");
                }
                (walk, step) => {
                    let known = steps.get(walk).is_some_and(|steps| steps.contains(step));
                    assert!(known, "{clause}: there is no step `{step}` in the walk `{walk}`");
                    named.insert(walk);
                }
            }
        }
    }
    let unnamed: Vec<&str> = steps.keys().copied().filter(|walk| !named.contains(walk)).collect();
    assert!(unnamed.is_empty(), "no clause is shown by {unnamed:?}");
}
