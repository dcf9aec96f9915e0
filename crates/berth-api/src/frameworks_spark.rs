//! The columns of `kubectl get sparkapplications` in the open definition of SparkApplications.

use serde_json::json;

/// Adds the columns and short names to the definition of SparkApplication; does not change other
/// definitions.
pub(crate) fn complete(kind: &str, definition: &mut serde_json::Value) {
    if kind != "SparkApplication" {
        return;
    }
    // Definitions in groups of k8s.io must say whether Kubernetes has approved them.
    let unapproved = "unapproved, the definition of the Spark operator replaces this one";
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": unapproved});
    definition["spec"]["names"]["shortNames"] = json!(["sparkapp"]);
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Suspend", "type": "boolean", "jsonPath": ".spec.suspend"},
        {"name": "Status", "type": "string", "jsonPath": ".status.applicationState.state"},
        {"name": "Attempts", "type": "string", "jsonPath": ".status.executionAttempts"},
        {"name": "Start", "type": "string", "jsonPath": ".status.lastSubmissionAttemptTime"},
        {"name": "Finish", "type": "string", "jsonPath": ".status.terminationTime"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
}
