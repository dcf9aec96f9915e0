//! Checks of the definitions of a cluster before an installation: the versions in which objects may
//! be stored, and the Helm release that owns the definitions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::check::Report;

/// Annotations by which Helm knows the objects of a release.
const RELEASE: &str = "meta.helm.sh/release-name";
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";

/// Compares the definitions of the cluster, by name, with those of an installation in `objects`.
pub fn look(definitions: &BTreeMap<String, Value>, objects: &[Value], report: &mut Report) {
    // Definitions that Berth adopted keep the annotations of the release. Helm deletes them with
    // the release.
    releases(definitions, report);
    let own = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
    let mut older: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for own in own {
        let name = own["metadata"]["name"].as_str().unwrap_or_default();
        let versions = own["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let storage = versions.iter().find(|version| version["storage"] == true).map(|version| &version["name"]);
        let stored = definitions.get(name).map(|found| &found["status"]["storedVersions"]);
        for (index, version) in stored.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let shown = version.as_str().unwrap_or_default();
            if !versions.iter().any(|it| it["name"] == *version) {
                report.obstacles.push(format!(
                    "CustomResourceDefinition {name}: status.storedVersions[{index}] is {shown}, which this installation \
                     does not have, so the API server would reject the new definition. Run `berth migrate --storage`, \
                     which writes these objects in the present storage version, while the present controllers run"
                ));
            } else if Some(version) != storage {
                older.entry(shown.to_owned()).or_default().push(name.to_owned());
            }
        }
    }
    for (version, names) in older {
        report.notes.push(format!(
            "objects may be stored in {version}, which works: {}. After the installation, `berth migrate --storage` writes \
             them in the storage version",
            names.join(", ")
        ));
    }
}

fn releases(definitions: &BTreeMap<String, Value>, report: &mut Report) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of = |definition: &Value| {
        let annotations = &definition["metadata"]["annotations"];
        Some((text(&annotations[RELEASE])?, text(&annotations[RELEASE_NAMESPACE]).unwrap_or_default()))
    };
    let found: BTreeSet<(String, String)> = definitions.values().filter_map(of).collect();
    for (release, namespace) in found {
        report.notes.push(format!(
            "Helm release {release} of namespace {namespace} owns the definitions: `helm uninstall {release}` deletes them, and \
             all queues and workloads with them. docs/install.md explains how to keep them"
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(storage: &str, stored: &[&str]) -> Value {
        let version = |name: &str| json!({"name": name, "served": true, "storage": name == storage});
        json!({"kind": "CustomResourceDefinition",
            "metadata": {"name": "cohorts.kueue.x-k8s.io", "annotations": {RELEASE: "queues", RELEASE_NAMESPACE: "ops"}},
            "spec": {"versions": [version("v1beta1"), version("v1beta2")]}, "status": {"storedVersions": stored}})
    }

    fn looked(stored: &[&str]) -> Report {
        let mut report = Report::default();
        let found = BTreeMap::from([("cohorts.kueue.x-k8s.io".to_owned(), definition("v1beta1", stored))]);
        look(&found, &[definition("v1beta2", &[])], &mut report);
        report
    }

    #[test]
    fn versions_in_which_objects_may_be_stored_are_notes_or_obstacles() {
        assert_eq!(looked(&["v1beta2"]).obstacles, [""; 0]);
        assert_eq!(looked(&["v1beta2"]).notes.len(), 1, "only the release");
        let older = looked(&["v1beta1", "v1beta2"]);
        assert_eq!((older.obstacles.len(), older.notes.len()), (0, 2));
        assert!(older.notes[1].starts_with("objects may be stored in v1beta1, which works: cohorts.kueue.x-k8s.io."));
        let lost = looked(&["v1alpha1", "v1beta2"]);
        assert!(lost.obstacles[0].contains("cohorts.kueue.x-k8s.io: status.storedVersions[0] is v1alpha1, which"));
    }

    #[test]
    fn the_helm_release_that_would_delete_the_definitions_is_named() {
        let notes = looked(&["v1beta2"]).notes;
        assert!(notes[0].starts_with("Helm release queues of namespace ops owns the definitions"), "{notes:?}");
    }
}
