//! Checks that the rules in published definitions of other projects are valid. Skipped if the files
//! are missing.

use std::path::{Path, PathBuf};

use berth_apimachinery::field;
use berth_apimachinery::schema::Schema;
use berth_cel::Env;
use berth_cel::rules::{NothingStored, Options, check_definition};
use serde_json::Value;

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
}

/// Every CustomResourceDefinition in a document, at any depth.
fn definitions<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) if map.get("kind").is_some_and(|kind| kind == "CustomResourceDefinition") => {
            found.push(value)
        }
        Value::Object(map) => map.values().for_each(|below| definitions(below, found)),
        Value::Array(list) => list.iter().for_each(|below| definitions(below, found)),
        _ => {}
    }
}

#[test]
fn rules_of_published_definitions_compile_within_the_cost_limit() {
    let Some(shared) = berth_testing::shared("kubernetes") else { return };
    let mut paths = Vec::new();
    files(&shared, &mut paths);
    assert!(!paths.is_empty(), "no definitions in {}", shared.display());
    let options = Options {
        env: Env::default(),
        env_stored: Env::default(),
        stored: &NothingStored,
        suppress_expression_cost: false,
    };
    let mut problems = Vec::new();
    let mut checked = 0;
    for path in paths {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let Ok(document) = serde_saphyr::from_str::<Value>(&text) else { continue };
        let mut found = Vec::new();
        definitions(&document, &mut found);
        for definition in found {
            for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
                checked += 1;
                let name = format!("{}/{}", definition["metadata"]["name"], version["name"]);
                let root = field::Path::new(&name);
                let schema = &version["schema"]["openAPIV3Schema"];
                let parsed = Schema::parse_crd(schema).ok();
                let errors = check_definition(schema, parsed.as_ref(), &options, &root);
                problems.extend(errors.iter().map(ToString::to_string));
            }
        }
    }
    println!("{checked} versions");
    assert!(problems.is_empty(), "{checked} versions: {problems:#?}");
}
