//! Conversion of Kueue's objects through the public API: recorded cases, and properties that hold
//! for all objects.

use berth_api::kueue::conversion::{ConversionError, KINDS, convert};
use serde_json::{Value, json};

use crate::shared;

#[test]
fn recorded_conversions_are_reproduced_exactly() {
    let Some(directory) = berth_testing::shared("conformance/kueue-controllers") else { return };
    let mut cases = 0;
    for file in shared::files(&directory, "json") {
        let suite =
            file.parent().and_then(|parent| parent.file_name()).unwrap_or_default().to_string_lossy().into_owned();
        if !suite.starts_with("conversion-") {
            continue;
        }
        let case: Value =
            serde_json::from_str(&std::fs::read_to_string(&file).expect("readable")).expect("well-formed");
        let (input, path) = (&case["input"], file.display());
        let go =
            |object: &Value, to: &str| convert(object.clone(), to).unwrap_or_else(|error| panic!("{path}: {error}"));
        if let Some(to) =
            [("-convert-to", "v1beta2"), ("-convert-from", "v1beta1")].iter().find(|(end, _)| suite.ends_with(end))
        {
            assert_eq!(go(&input["input"], to.1), case["want"]["result"], "{path}");
        } else if let Some(object) = input.get("v1beta1Obj") {
            assert_eq!(&go(&go(object, "v1beta2"), "v1beta1"), object, "{path}");
        } else {
            let object = &input["v1beta2Obj"];
            assert_eq!(&go(&go(object, "v1beta1"), "v1beta2"), object, "{path}");
        }
        cases += 1;
    }
    println!("{cases} recorded conversions agree");
    assert!(cases > 40, "recorded cases were found");
}

fn workload_with_topology(version: &str, topology: Value) -> Value {
    json!({
        "apiVersion": format!("kueue.x-k8s.io/{version}"),
        "kind": "Workload",
        "metadata": { "name": "w" },
        "status": { "admission": { "clusterQueue": "q", "podSetAssignments": [{ "name": "main", "topologyAssignment": topology }] } },
    })
}

fn topology(workload: &Value) -> &Value {
    &workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
}

#[test]
fn topology_assignments_survive_a_round_trip_with_any_node_names() {
    // Names with common prefixes and suffixes that overlap, contain each other, are empty, or are
    // not ASCII.
    let names: [&[&str]; 8] = [
        &["a"],
        &["aa", "a"],
        &["aba", "aa", "aca"],
        &["node-1-gpu", "node-11-gpu", "node-111-gpu"],
        &["", "x"],
        &["é1", "é2", "è2"],
        &["same", "same"],
        &["gke-pool-1-a", "gke-pool-1-b", "gke-pool-2-b", "gke-pool-2-a"],
    ];
    for (index, nodes) in names.iter().enumerate() {
        let domains: Vec<Value> = nodes
            .iter()
            .enumerate()
            .map(|(i, node)| json!({ "values": ["block", node], "count": 1 + (i * index) % 3 }))
            .collect();
        let flat = workload_with_topology(
            "v1beta1",
            json!({ "levels": ["cloud/block", "kubernetes.io/hostname"], "domains": domains }),
        );
        let there = convert(flat.clone(), "kueue.x-k8s.io/v1beta2").expect("converts");
        let typed: berth_api::kueue::v1beta2::Workload =
            serde_json::from_value(there.clone()).expect("is a v1beta2 workload");
        let slices = &typed.status.expect("a status").admission.expect("an admission").pod_set_assignments[0];
        assert_eq!(
            slices.topology_assignment.as_ref().expect("a topology").slices.len(),
            1,
            "few domains need one slice"
        );
        assert_eq!(convert(there, "v1beta1").expect("converts"), flat, "{nodes:?}");
    }
}

#[test]
fn a_hundred_thousand_domains_are_split_into_slices() {
    let domains: Vec<Value> =
        (0..100_001).map(|node| json!({ "values": [format!("node-{node}")], "count": 1 })).collect();
    let flat = workload_with_topology("v1beta1", json!({ "levels": ["kubernetes.io/hostname"], "domains": domains }));
    let there = convert(flat.clone(), "v1beta2").expect("converts");
    let slices = topology(&there)["slices"].as_array().expect("slices");
    assert_eq!(slices.iter().map(|slice| slice["domainCount"].as_u64()).collect::<Vec<_>>(), [Some(100_000), Some(1)]);
    assert_eq!(convert(there, "v1beta1").expect("converts"), flat);
}

#[test]
fn contradictions_are_rejected_with_the_field_path() {
    let refused = |topology: Value, to: &str| {
        let from = if to == "v1beta1" { "v1beta2" } else { "v1beta1" };
        convert(workload_with_topology(from, topology), to).expect_err("must be rejected").to_string()
    };
    let prefix = "status.admission.podSetAssignments[0].topologyAssignment";
    assert_eq!(
        refused(json!({ "levels": ["a", "b"], "domains": [{ "values": ["x"], "count": 1 }] }), "v1beta2"),
        format!("{prefix}.domains[0].values: expected 2 values, one per level, got 1")
    );
    let slice = |count: i64, values: Value, counts: Value| json!({ "levels": ["a"], "slices": [{ "domainCount": count, "valuesPerLevel": values, "podCounts": counts }] });
    assert_eq!(
        refused(slice(2, json!([{ "individual": { "roots": ["x"] } }]), json!({ "universal": 1 })), "v1beta1"),
        format!("{prefix}.slices[0].valuesPerLevel[0].individual.roots: expected 2 roots, one per domain, got 1")
    );
    assert_eq!(
        refused(slice(2_000_000_000, json!([{ "universal": "x" }]), json!({ "universal": 1 })), "v1beta1"),
        format!("{prefix}.slices[0].domainCount: expected at most 1000000 domains in all, got more")
    );
    assert_eq!(
        refused(slice(2, json!([{ "universal": "x" }]), json!({ "individual": [1] })), "v1beta1"),
        format!("{prefix}.slices[0].podCounts.individual: expected 2 counts, one per domain, got 1")
    );
}

#[test]
fn other_groups_versions_and_kinds_are_rejected_and_the_same_version_is_unchanged() {
    let object = |version: &str, kind: &str| json!({ "apiVersion": version, "kind": kind, "spec": { "cohort": "c" } });
    let same = object("kueue.x-k8s.io/v1beta1", "ClusterQueue");
    assert_eq!(convert(same.clone(), "v1beta1"), Ok(same));
    assert!(matches!(convert(object("batch/v1", "Job"), "v1beta2"), Err(ConversionError::Version { .. })));
    assert!(matches!(
        convert(object("kueue.x-k8s.io/v1alpha1", "Cohort"), "v1beta2"),
        Err(ConversionError::Version { .. })
    ));
    assert!(matches!(convert(object("kueue.x-k8s.io/v1beta1", "Cohort"), "v3"), Err(ConversionError::Version { .. })));
    assert!(matches!(convert(object("kueue.x-k8s.io/v1beta1", "Queue"), "v1beta2"), Err(ConversionError::Kind { .. })));
    assert!(convert(json!([]), "v1beta2").is_err(), "a list is no object");
}

#[test]
fn fields_that_only_one_version_has_are_dropped() {
    let there = |object: Value| convert(object, "v1beta2").expect("converts");
    let check = there(
        json!({ "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "AdmissionCheck", "spec": { "controllerName": "c", "retryDelayMinutes": 15 } }),
    );
    assert_eq!(check["spec"], json!({ "controllerName": "c" }));
    let queue = there(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue",
        "status": { "flavors": [{ "name": "f" }], "flavorUsage": [], "pendingWorkloads": 1 },
    }));
    assert_eq!(queue["status"], json!({ "flavorsUsage": [], "pendingWorkloads": 1 }));
    let both = there(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue",
        "spec": { "admissionChecks": ["a", "b"], "admissionChecksStrategy": { "admissionChecks": [{ "name": "b", "onFlavors": ["f"] }] } },
    }));
    assert_eq!(
        both["spec"]["admissionChecksStrategy"]["admissionChecks"],
        json!([{ "name": "b", "onFlavors": ["f"] }, { "name": "a" }])
    );
}

#[test]
fn every_kind_with_two_versions_in_kueues_definitions_can_be_converted() {
    let defined: Vec<&str> = berth_api::crds()
        .iter()
        .filter(|crd| crd["spec"]["group"] == "kueue.x-k8s.io")
        .map(|crd| crd["spec"]["names"]["kind"].as_str().expect("a kind"))
        .collect();
    let mut sorted = defined.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, KINDS);
    for kind in KINDS {
        let object = json!({ "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": { "name": "x" } });
        let there = convert(object.clone(), "v1beta2").expect("converts");
        assert_eq!(there["apiVersion"], "kueue.x-k8s.io/v1beta2", "{kind}");
    }
}
