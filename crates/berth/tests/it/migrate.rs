//! `berth migrate --check`, `import` and `populate` as a user runs them.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::cluster::{Cluster, file};

fn berth(cluster: Option<&Cluster>, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    if let Some(cluster) = cluster {
        command.env("KUBECONFIG", &cluster.kubeconfig);
    }
    command.args(arguments).output().expect("berth runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = berth(Some(cluster), arguments);
    assert!(output.status.success(), "berth {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_folder_of_manifests_is_judged_without_a_cluster() {
    let output = berth(None, &["migrate"]);
    assert!(!output.status.success() && text(&output.stderr).contains("--check"), "{output:?}");
    let output = berth(None, &["migrate", "--check", "-f", "no-such-folder"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: AdmissionCheck\nmetadata: {name: remote}\n\
                 spec: {controllerName: kueue.x-k8s.io/multikueue}\n---\n\
                 apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: default}\n";
    std::fs::write(folder.path().join("check.yaml"), check).expect("a writable folder");
    let path = folder.path().display().to_string();
    let output = berth(None, &["migrate", "--check", "-f", &path]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report = text(&output.stdout);
    assert!(report.contains("not supported: AdmissionCheck remote\n  spec.controllerName: "), "{report}");
    assert!(report.contains("2 objects: 1 the same, 0 different, 1 not supported"), "{report}");
    let output = berth(None, &["migrate", "--check", "-f", &path, "--fail-on", "never", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["objects"][0]["verdict"], "unsupported", "{report:#}");
}

const OBJECTS: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: small}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default, resources: [{name: cpu, nominalQuota: 2}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: before, namespace: default, labels: {team: blue}, annotations: {berth.dev/run-duration: 1h}}
spec:
  containers: [{name: c, image: example.com/train, resources: {requests: {cpu: 1}}}]
---
"#;

/// A queued Job of two CPUs.
const JOB: &str = r#"
apiVersion: batch/v1
kind: Job
metadata: {name: waits, namespace: default, labels: {kueue.x-k8s.io/queue-name: small}}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: example.com/train, resources: {requests: {cpu: 2}}}]
"#;

#[test]
fn running_pods_are_imported_into_populated_queues_and_nothing_would_differ_in_a_migration() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = folder.path().join("controllers.yaml");
    let text_of_settings = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n\
                            integrations: {frameworks: [batch/job]}\n";
    std::fs::write(&settings, text_of_settings).expect("a writable folder");
    let nodes = file("examples/gke-batch-refarch/cluster.yaml");
    let cluster = Cluster::ephemeral(&["--config", &nodes, "--controller-config", &settings.display().to_string()]);
    let apply = |name: &str, manifests: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, manifests).expect("a writable folder");
        cluster.run(&["apply", "-f", &path.display().to_string()]);
    };
    apply("objects.yaml", OBJECTS);
    cluster.wait_until("the pod to run", 60, |cluster| cluster.get(&["pod", "before"])["status"]["phase"] == "Running");

    let populate = ["populate", "--local-queue-name-mode", "AsClusterQueue"];
    let planned = done(&cluster, &["populate", "--local-queue-name-mode", "AsClusterQueue", "--dry-run"]);
    assert_eq!(planned, "missing: LocalQueue default/small for ClusterQueue small\n");
    assert_eq!(done(&cluster, &populate), "created: LocalQueue default/small for ClusterQueue small\n");
    assert_eq!(done(&cluster, &populate), "no LocalQueue is missing\n");

    let import = ["import", "-n", "default", "--queuelabel", "team", "--queuemapping", "blue=small"];
    let planned = done(&cluster, &import);
    assert!(planned.starts_with("1 running pods checked: 1 to import"), "{planned}");
    let unmapped = ["import", "-n", "default", "--queuelabel", "team", "--queuemapping", "red=small"];
    let refused = berth(Some(&cluster), &unmapped);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stdout).contains("no rule of the mapping matches: pod default/before"), "{refused:?}");
    let written = done(&cluster, &[&import[..], &["--dry-run=false"]].concat());
    assert!(written.ends_with("1 pods imported, 0 failed\n"), "{written}");
    let again = done(&cluster, &import);
    assert!(again.starts_with("1 running pods checked: 0 to import, 1 imported before"), "{again}");

    apply("job.yaml", JOB);
    cluster.wait_until("the job to wait for the pod's quota", 60, |cluster| {
        let queue = cluster.get(&["clusterqueue", "small"]);
        queue["status"]["admittedWorkloads"] == 1 && queue["status"]["pendingWorkloads"] == 1
    });
    let pod = cluster.get(&["pod", "before"]);
    assert_eq!((&pod["status"]["phase"], &pod["metadata"]["deletionTimestamp"]), (&"Running".into(), &Value::Null));

    let report = done(&cluster, &["migrate", "--check"]);
    assert!(report.contains("0 decisions about 1 admitted and 1 pending workloads would differ"), "{report}");
}

const STORED: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: queue}
spec: {cohortName: all, namespaceSelector: {}}
"#;

/// Rejects every update of flavors, because nothing listens there.
const REJECTING: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: rejecting}
webhooks:
  - name: flavors.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    timeoutSeconds: 1
    clientConfig: {url: "https://127.0.0.1:1/validate"}
    rules: [{apiGroups: [kueue.x-k8s.io], apiVersions: ["*"], operations: [UPDATE], resources: [resourceflavors]}]
"#;

#[test]
fn stored_objects_move_to_another_version_and_a_rejected_one_keeps_its_version_listed() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cluster = Cluster::apiserver(&[]);
    let apply = |name: &str, manifests: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, manifests).expect("a writable folder");
        cluster.run(&["apply", "-f", &path.display().to_string()]);
    };
    let stored = |plural: &str| -> Value {
        cluster.get(&["customresourcedefinition", &format!("{plural}.kueue.x-k8s.io")])["status"]["storedVersions"]
            .clone()
    };
    let revision = || cluster.get(&["clusterqueue", "queue"])["metadata"]["resourceVersion"].clone();
    apply("objects.yaml", STORED);

    let unchanged = done(&cluster, &["migrate", "--storage"]);
    assert!(unchanged.contains("clusterqueues.kueue.x-k8s.io: all objects are stored in v1beta2"), "{unchanged}");
    let refused = berth(Some(&cluster), &["migrate", "--storage", "--storage-version", "v1alpha1"]);
    let expected = "does not serve this version; it serves v1beta1, v1beta2";
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains(expected), "{refused:?}");

    let before = revision();
    let moved = done(&cluster, &["migrate", "--storage", "--storage-version", "v1beta1"]);
    assert!(moved.contains("clusterqueues.kueue.x-k8s.io: 1 objects are stored in v1beta1"), "{moved}");
    assert_eq!((stored("clusterqueues"), stored("resourceflavors")), (json!(["v1beta1"]), json!(["v1beta1"])));
    assert_ne!(revision(), before, "the object was stored again");
    assert_eq!(cluster.get(&["clusterqueues.v1beta2.kueue.x-k8s.io", "queue"])["spec"]["cohortName"], "all");

    apply("webhook.yaml", REJECTING);
    let partly = berth(Some(&cluster), &["migrate", "--storage", "--storage-version", "v1beta2"]);
    assert_eq!(partly.status.code(), Some(1), "{partly:?}");
    assert!(text(&partly.stderr).contains("ResourceFlavor default: "), "{partly:?}");
    assert_eq!(
        (stored("clusterqueues"), stored("resourceflavors")),
        (json!(["v1beta2"]), json!(["v1beta1", "v1beta2"]))
    );
    cluster.run(&["delete", "validatingwebhookconfiguration", "rejecting"]);
    let before = revision();
    done(&cluster, &["migrate", "--storage"]);
    assert_eq!((stored("resourceflavors"), revision()), (json!(["v1beta2"]), before), "the queue is not stored again");
}
