//! Validates manifests against the generated schemas, with the API server's schema code.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::field::Path;
use berth_apimachinery::schema::{Root, Schema};
use serde_json::{Value, json};

use crate::shared;

/// Schemas by `apiVersion` and kind.
fn schemas() -> BTreeMap<(String, String), Arc<Schema>> {
    let mut schemas = BTreeMap::new();
    for crd in berth_api::crds() {
        let spec = &crd["spec"];
        for version in spec["versions"].as_array().expect("versions") {
            let text = |value: &Value| value.as_str().expect("a string").to_owned();
            let key = (format!("{}/{}", text(&spec["group"]), text(&version["name"])), text(&spec["names"]["kind"]));
            let schema = Schema::parse_crd(&version["schema"]["openAPIV3Schema"])
                .unwrap_or_else(|error| panic!("{key:?}: {error}"));
            schemas.insert(key, schema);
        }
    }
    schemas
}

/// The problems that a server reports for an object after defaulting: unknown fields, violations.
fn problems(schema: &Schema, object: &mut Value) -> Vec<String> {
    schema.drop_nulls(object);
    schema.apply_defaults(object);
    let root = Path::root();
    let mut problems: Vec<String> = schema
        .unknown_fields(object, Root::Resource)
        .into_iter()
        .map(|field| format!("unknown field {field}"))
        .collect();
    problems.extend(schema.validate(object, &root).iter().map(ToString::to_string));
    problems.extend(schema.validate_lists(object, &root).iter().map(ToString::to_string));
    problems
}

#[test]
fn every_generated_schema_is_structural() {
    assert_eq!(
        schemas().len(),
        11 * 2 + 1 + 2 + 1 + 2 + 3,
        "Kueue twice, JobSet, ProvisioningRequest twice, PodGroup, two kinds of Berth, monitoring"
    );
}

#[test]
fn manifests_of_the_scenarios_are_valid() {
    let Some(directory) = berth_testing::shared("scenarios") else { return };
    let schemas = schemas();
    let (mut checked, mut found) = (0, Vec::new());
    for file in shared::files(&directory, "yaml") {
        let text = std::fs::read_to_string(&file).expect("readable");
        for document in text.split("\n---") {
            let Ok(mut object) = serde_saphyr::from_str::<Value>(document.trim_start_matches("---")) else { continue };
            let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let Some(schema) = schemas.get(&(text("apiVersion"), text("kind"))) else { continue };
            checked += 1;
            // JobSet's webhook sets the names of a failure policy's rules before validation.
            let is_left_to_the_webhook = |problem: &String| {
                problem.starts_with("spec.failurePolicy.rules[") && problem.ends_with("].name: Required value")
            };
            for problem in problems(schema, &mut object).into_iter().filter(|problem| !is_left_to_the_webhook(problem))
            {
                found.push(format!("{}: {problem}", file.display()));
            }
        }
    }
    println!("{checked} manifests checked");
    assert!(found.is_empty(), "{found:#?}");
    assert!(checked > 100, "only {checked} manifests were found");
}

#[test]
fn a_bare_cluster_queue_gets_its_defaults_and_invalid_ones_are_rejected_with_their_paths() {
    let schemas = schemas();
    let schema = &schemas[&("kueue.x-k8s.io/v1beta2".to_owned(), "ClusterQueue".to_owned())];
    let queue = |spec: Value| json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": { "name": "q" }, "spec": spec });

    let mut bare = queue(json!({}));
    assert_eq!(problems(schema, &mut bare), Vec::<String>::new());
    assert_eq!(
        bare["spec"],
        json!({
            "flavorFungibility": { "whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor" },
            "preemption": { "borrowWithinCohort": { "policy": "Never" }, "reclaimWithinCohort": "Never", "withinClusterQueue": "Never" },
            "queueingStrategy": "BestEffortFIFO",
            "stopPolicy": "None",
        })
    );

    let group = |flavors: Value| json!({ "resourceGroups": [{ "coveredResources": ["cpu"], "flavors": flavors }] });
    for (spec, expected) in [
        (json!({ "cohort": "old-name" }), "unknown field spec.cohort"),
        (json!({ "queueingStrategy": "LIFO" }), "spec.queueingStrategy: Unsupported value: \"LIFO\""),
        (json!({ "cohortName": "Not_A_Name" }), "spec.cohortName: Invalid value"),
        (group(json!([])), "spec.resourceGroups[0].flavors: Invalid value"),
        (
            group(json!([{ "name": "f", "resources": [{ "name": "cpu" }] }])),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Required value",
        ),
        (
            group(json!([{ "name": "f", "resources": [{ "name": "cpu", "nominalQuota": "many" }] }])),
            "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota: Invalid value",
        ),
    ] {
        let found = problems(schema, &mut queue(spec));
        assert!(found.iter().any(|problem| problem.starts_with(expected)), "expected {expected}, got {found:?}");
    }
}

#[test]
fn a_text_that_is_no_duration_is_rejected_in_the_kinds_of_the_cloud() {
    let schemas = schemas();
    let found = |kind: &str, field: &str, text: &str| {
        let schema = &schemas[&("berth.dev/v1alpha1".to_owned(), kind.to_owned())];
        let mut object = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": { "name": "n" },
            "spec": { field: text } });
        problems(schema, &mut object)
    };
    for (kind, field) in [("NodePool", "startUpDelay"), ("ProvisioningClass", "maxWait")] {
        for good in ["0", "90s", "1h30m0s", "1.5s", ".5m", "250ms", "20µs"] {
            assert_eq!(found(kind, field, good), [""; 0], "{good}");
            good.parse::<berth_api::berth::Duration>().expect("a duration");
        }
        for bad in ["soon", "", "5", "-1s", "1 s", "1d", ".s"] {
            let expected = format!("spec.{field}: Invalid value");
            assert!(found(kind, field, bad).iter().any(|problem| problem.starts_with(&expected)), "{bad}");
            bad.parse::<berth_api::berth::Duration>().expect_err("no duration");
        }
    }
}
