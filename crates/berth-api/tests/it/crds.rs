//! Compares the generated definitions with the upstream ones, fact by fact.
//!
//! A definition is split into facts, `<definition> <version> <field path> <keyword> = <value>`,
//! without descriptions. Facts that differ must be listed in `crd_differences.txt` with a reason,
//! and every listed fact must differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::shared;

type Facts = BTreeMap<String, String>;

#[test]
fn generated_crds_match_the_upstream_ones() {
    let Some(directory) = berth_testing::shared("kubernetes/crds") else { return };
    let generated: BTreeMap<&str, &Value> =
        berth_api::crds().iter().map(|crd| (crd["metadata"]["name"].as_str().expect("a name"), crd)).collect();

    let mut differences = BTreeSet::new();
    let (mut compared, mut definitions) = (0, 0);
    for group in ["autoscaler", "jobset", "kueue"] {
        for file in shared::files(&directory.join(group), "yaml") {
            let text = std::fs::read_to_string(&file).expect("readable");
            let upstream: Value = serde_saphyr::from_str(&text).expect("well-formed");
            let name = upstream["metadata"]["name"].as_str().expect("a name");
            let ours = generated.get(name).unwrap_or_else(|| panic!("no definition {name} is generated"));
            let (ours, theirs) = (facts(ours), facts(&upstream));
            let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            compared += keys.len();
            definitions += 1;
            for key in keys {
                let difference = match (theirs.get(key), ours.get(key)) {
                    (Some(theirs), Some(ours)) if theirs == ours => continue,
                    (Some(theirs), Some(ours)) => format!("{key}: upstream {theirs}, here {ours}"),
                    (Some(theirs), None) => format!("{key}: upstream {theirs}, here nothing"),
                    (None, Some(ours)) => format!("{key}: upstream nothing, here {ours}"),
                    (None, None) => unreachable!("the key comes from one of them"),
                };
                differences.insert(difference);
            }
        }
    }
    println!("{definitions} definitions, {compared} facts compared, {} differ", differences.len());

    assert_eq!(definitions, 13, "one file per kind");

    let listed: BTreeSet<String> = include_str!("crd_differences.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let (difference, reason) = line.rsplit_once(" | ").unwrap_or_else(|| panic!("no reason in: {line}"));
            assert!(!reason.trim().is_empty(), "no reason in: {line}");
            difference.to_owned()
        })
        .collect();
    let unlisted: Vec<&String> = differences.difference(&listed).collect();
    let vanished: Vec<&String> = listed.difference(&differences).collect();
    assert!(unlisted.is_empty(), "differences without a reason in crd_differences.txt:\n{unlisted:#?}");
    assert!(vanished.is_empty(), "listed in crd_differences.txt, but not different any more:\n{vanished:#?}");
}

#[test]
fn the_files_of_definitions_are_generated_from_the_types() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("definitions");
    let files = berth_api::schema::files();
    for (name, text) in &files {
        let present = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(present == *text, "definitions/{name} is not that of the types: run `cargo xtask definitions`");
    }
    let generated: Vec<&str> = files.iter().filter_map(|(name, _)| name.strip_suffix(".json")).collect();
    let others = std::fs::read_dir(&folder).expect("readable").count() - generated.len();
    assert_eq!(others, 0, "files of definitions that no kind has");
    let installed = berth_api::crds().iter().map(|crd| crd["metadata"]["name"].as_str().expect("a name"));
    assert_eq!(installed.take(generated.len()).collect::<Vec<_>>(), generated, "the order of crds()");
}

#[test]
fn every_definition_is_complete_and_free_of_private_keywords() {
    for crd in berth_api::crds() {
        let name = crd["metadata"]["name"].as_str().expect("a name");
        let text = crd.to_string();
        for private in ["\"x-embed\"", "\"x-list\"", "\"x-rules\"", "\"x-optional\"", "\"x-required\"", "\"$ref\""] {
            assert!(!text.contains(private), "{name} contains {private}");
        }
        let versions = crd["spec"]["versions"].as_array().expect("versions");
        assert_eq!(
            versions.iter().filter(|version| version["storage"] == true).count(),
            1,
            "{name} has one storage version"
        );
        for version in versions {
            assert_eq!(version["schema"]["openAPIV3Schema"]["type"], "object", "{name} has a schema");
        }
        assert!(crd["spec"]["scope"] == "Cluster" || crd["spec"]["scope"] == "Namespaced", "{name} has a scope");
    }
}

#[test]
fn every_field_of_kueues_kinds_is_described() {
    fn visit(path: &str, schema: &Value, bare: &mut Vec<String>) {
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (name, property) in properties {
            let path = format!("{path}.{name}");
            // Templates of Kubernetes' own types have their own descriptions, and their metadata
            // has none.
            if name == "metadata" || name == "template" || name == "templates" {
                continue;
            }
            if property.get("description").is_none() {
                bare.push(path.clone());
            }
            visit(&path, property, bare);
            visit(&format!("{path}[]"), &property["items"], bare);
        }
    }
    let mut bare = Vec::new();
    for crd in berth_api::crds().iter().filter(|crd| crd["spec"]["group"] == "kueue.x-k8s.io") {
        for version in crd["spec"]["versions"].as_array().expect("versions") {
            let path = format!("{}/{}", crd["spec"]["names"]["kind"], version["name"]);
            visit(&path, &version["schema"]["openAPIV3Schema"], &mut bare);
        }
    }
    assert!(bare.is_empty(), "fields without a description for `kubectl explain`: {bare:#?}");
}

/// All facts of a definition, except descriptions.
fn facts(crd: &Value) -> Facts {
    let mut facts = Facts::new();
    let name = crd["metadata"]["name"].as_str().expect("a name");
    let spec = &crd["spec"];
    for key in ["group", "scope"] {
        facts.insert(format!("{name} {key}"), spec[key].to_string());
    }
    for (key, value) in spec["names"].as_object().expect("names") {
        facts.insert(format!("{name} names.{key}"), value.to_string());
    }
    for version in spec["versions"].as_array().expect("versions") {
        let prefix = format!("{name} {}", version["name"].as_str().expect("a version"));
        for (key, value) in version.as_object().expect("a version") {
            match key.as_str() {
                "schema" => schema_facts(&mut facts, &prefix, ".", &value["openAPIV3Schema"]),
                "additionalPrinterColumns" => {
                    for (index, column) in value.as_array().into_iter().flatten().enumerate() {
                        for (key, value) in
                            column.as_object().expect("a column").iter().filter(|(key, _)| *key != "description")
                        {
                            facts.insert(format!("{prefix} column[{index}].{key}"), value.to_string());
                        }
                    }
                }
                _ => {
                    facts.insert(format!("{prefix} {key}"), value.to_string());
                }
            }
        }
    }
    facts
}

fn schema_facts(facts: &mut Facts, prefix: &str, path: &str, schema: &Value) {
    for (key, value) in schema.as_object().expect("a schema") {
        let at = |what: &str| format!("{prefix} {path} {what}");
        match key.as_str() {
            "description" => {}
            "properties" => {
                for (name, property) in value.as_object().expect("properties") {
                    let path = if path == "." { format!(".{name}") } else { format!("{path}.{name}") };
                    facts.insert(format!("{prefix} {path}"), "a field".into());
                    schema_facts(facts, prefix, &path, property);
                }
            }
            "items" => schema_facts(facts, prefix, &format!("{path}[]"), value),
            "additionalProperties" if value.is_object() => schema_facts(facts, prefix, &format!("{path}{{}}"), value),
            "required" | "enum" => {
                for name in value.as_array().expect("a list") {
                    facts.insert(at(&format!("{key} {name}")), "listed".into());
                }
            }
            "x-kubernetes-validations" => {
                for rule in value.as_array().expect("rules") {
                    facts.insert(at(&format!("rule {}", rule["rule"])), rule["message"].to_string());
                    for key in rule
                        .as_object()
                        .expect("a rule")
                        .keys()
                        .filter(|key| !["rule", "message"].contains(&key.as_str()))
                    {
                        facts.insert(at(&format!("rule {} {key}", rule["rule"])), rule[key].to_string());
                    }
                }
            }
            _ => {
                facts.insert(at(key), number(value).to_string());
            }
        }
    }
}

/// A number as an integer if it is one, because 1 and 1.0 are the same bound.
fn number(value: &Value) -> Value {
    match value.as_f64() {
        Some(float) if float.fract() == 0.0 => (float as i64).into(),
        _ => value.clone(),
    }
}
