//! `berth check`: each rule on a configuration that works but for one change, and on the recorded
//! scenarios.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use berth_api::berth::NodePool;
use berth_cluster::pools;
use berth_foresight::check::{Finding, RULES, Severity, check, report};
use berth_foresight::command::check as command;
use berth_foresight::objects::{Objects, read};
use berth_testing::{shared, skip};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// Two teams on two flavors, with a job each. No rule finds anything.
const GOOD: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: red, labels: {team: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: blue, labels: {team: blue}}
---
apiVersion: berth.dev/v1alpha1
kind: ClusterConfiguration
metadata: {name: small}
spec:
  nodePools:
  - {name: reserved, machineType: e2-standard-4, initialNodes: 2, static: true, labels: {tier: reserved}}
  - {name: spot, machineType: e2-standard-4, maxNodes: 4, labels: {tier: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: reserved}
spec: {nodeLabels: {tier: reserved}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {tier: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: nodes}
spec:
  controllerName: kueue.x-k8s.io/provisioning-request
  parameters: {apiGroup: kueue.x-k8s.io, kind: ProvisioningRequestConfig, name: nodes}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ProvisioningRequestConfig
metadata: {name: nodes}
spec: {provisioningClassName: queued-provisioning.gke.io}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: red}
spec:
  cohortName: all
  namespaceSelector: {matchLabels: {team: red}}
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: LowerPriority}
  admissionChecksStrategy: {admissionChecks: [{name: nodes}]}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - {name: reserved, resources: [{name: cpu, nominalQuota: 4, borrowingLimit: 2}]}
    - {name: spot, resources: [{name: cpu, nominalQuota: 4}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: blue}
spec:
  cohortName: all
  namespaceSelector: {matchLabels: {team: blue}}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - {name: reserved, resources: [{name: cpu, nominalQuota: 3}]}
    - {name: spot, resources: [{name: cpu, nominalQuota: 4}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: red}
spec: {clusterQueue: red}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: blue}
spec: {clusterQueue: blue}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 10
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: red, labels: {kueue.x-k8s.io/queue-name: main}}
spec:
  parallelism: 2
  completions: 2
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: c, resources: {requests: {cpu: 1500m}}}]
"#;

fn template(pool: &NodePool) -> Vec<Node> {
    let site = crate::site();
    vec![pools::template(pool, &site, "us-central1-a", "node")]
}

fn findings(manifests: &str) -> Vec<Finding> {
    let documents =
        read::documents("all.yaml", manifests).unwrap_or_else(|(line, problem)| panic!("{line}: {problem}"));
    check(&Objects::read(documents), &template, Timestamp::UNIX_EPOCH).findings
}

/// The findings as `rule object field`.
fn short(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|it| format!("{} {} {}", it.rule, it.object, it.field).trim_end().to_owned()).collect()
}

/// The findings after replacing a text of the good configuration.
fn with(from: &str, to: &str) -> Vec<Finding> {
    assert!(GOOD.contains(from), "{from}");
    findings(&GOOD.replacen(from, to, 1))
}

#[test]
fn a_configuration_that_works_has_no_findings() {
    assert_eq!(findings(GOOD), []);
}

#[test]
fn each_rule_finds_its_mistake_and_names_the_field() {
    const PRIORITY: &str = "  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: LowerPriority}\n";
    const BLUE: &str = "kind: ClusterQueue\nmetadata: {name: blue}\nspec:\n  cohortName: all\n";
    let second = "spec.resourceGroups[0].flavors[1]";
    let cases: &[(&str, &str, &str)] = &[
        (
            "nominalQuota: 4, borrowingLimit: 2",
            "nominalQuota: 9, borrowingLimit: 2",
            "quota-above-supply ResourceFlavor reserved ClusterQueue blue spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
        ),
        (
            "spec: {nodeLabels: {tier: spot}}",
            "spec: {nodeLabels: {tier: preemptible}}",
            "flavor-without-nodes ResourceFlavor spot spec.nodeLabels",
        ),
        (
            "labels: {tier: spot}}",
            "labels: {tier: spot}, taints: [{key: spot, value: 'yes', effect: NoSchedule}]}",
            "node-taint-undeclared ResourceFlavor spot spec.tolerations",
        ),
        (
            "    - {name: spot, resources: [{name: cpu, nominalQuota: 4}]}\n---",
            "    - {name: spt, resources: [{name: cpu, nominalQuota: 4}]}\n---",
            &format!("flavor-missing ClusterQueue red {second}.name"),
        ),
        (
            "{nodeLabels: {tier: spot}}",
            "{nodeLabels: {tier: spot}, topologyName: racks}",
            "topology-missing ResourceFlavor spot spec.topologyName",
        ),
        (
            "spec: {clusterQueue: blue}",
            "spec: {clusterQueue: bleu}",
            "queue-missing LocalQueue blue/main spec.clusterQueue",
        ),
        (
            "spec: {clusterQueue: blue}",
            "spec: {clusterQueue: red}",
            "queue-namespace-excluded LocalQueue blue/main spec.clusterQueue",
        ),
        (
            "{matchLabels: {team: blue}}",
            "{matchLabels: {team: bleu}}",
            "queue-selects-no-namespace ClusterQueue blue spec.namespaceSelector",
        ),
        (
            "nominalQuota: 4, borrowingLimit: 2",
            "nominalQuota: 0, borrowingLimit: 0",
            "quota-unusable ClusterQueue red spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
        ),
        (
            "{name: reserved, resources: [{name: cpu, nominalQuota: 3}]}",
            "{name: reserved, resources: [{name: cpu, nominalQuota: 3, lendingLimit: 0}]}",
            "borrowing-impossible ClusterQueue red spec.resourceGroups[0].flavors[0].resources[0].borrowingLimit",
        ),
        (
            BLUE,
            "kind: ClusterQueue\nmetadata: {name: blue}\nspec:\n  cohortName: other\n",
            "reclaim-impossible ClusterQueue red spec.preemption.reclaimWithinCohort",
        ),
        (
            "admissionChecks: [{name: nodes}]",
            "admissionChecks: [{name: nods}]",
            "check-missing ClusterQueue red spec.admissionChecksStrategy.admissionChecks[0].name",
        ),
        (
            "kind: ProvisioningRequestConfig, name: nodes}",
            "kind: ProvisioningRequestConfig, name: nods}",
            "provisioning-config AdmissionCheck nodes spec.parameters",
        ),
        (
            "controllerName: kueue.x-k8s.io/provisioning-request",
            "controllerName: kueue.x-k8s.io/multikueue",
            "check-unserved AdmissionCheck nodes spec.controllerName",
        ),
        (PRIORITY, "", "class-never-preempts WorkloadPriorityClass high value"),
        (
            "reclaimWithinCohort: LowerPriority",
            "reclaimWithinCohort: Any",
            "preemption-may-not-rest ClusterQueue red spec.preemption.reclaimWithinCohort",
        ),
        ("requests: {cpu: 1500m}", "requests: {cpu: 8}", "job-never-fits Job red/train"),
        (
            "requests: {cpu: 1500m}",
            "requests: {cpu: 1500m}}}],\n        nodeSelector: {disk: ssd}, x: [{resources: {limits: {}",
            "pod-fits-no-node Job red/train",
        ),
        (
            "queue-name: main}}",
            "queue-name: main, kueue.x-k8s.io/priority-class: higher}}",
            "job-has-no-workload Job red/train",
        ),
        (
            "nominalQuota: 3",
            "nominalQuota: -3",
            "invalid-object ClusterQueue blue spec.resourceGroups[0].flavors[0].resources[0].nominalQuota",
        ),
    ];
    let mut wrong = Vec::new();
    for (from, to, wanted) in cases {
        if wanted.starts_with("pod-fits-no-node") {
            continue;
        }
        let found = short(&with(from, to));
        if !found.iter().any(|it| it == wanted) {
            wrong.push(format!("{wanted}\n  found: {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_pod_that_fits_on_no_machine_of_its_flavor_is_found() {
    let selects = with("restartPolicy: Never", "restartPolicy: Never\n      nodeSelector: {disk: ssd}");
    let found = selects.iter().find(|it| it.rule == "pod-fits-no-node").expect("a finding");
    assert!(found.message.contains("no machine has the labels"), "{}", found.message);
    let large = findings(&GOOD.replace("parallelism: 2", "parallelism: 1").replace("1500m", "3950m"));
    let found = large.iter().find(|it| it.rule == "pod-fits-no-node").unwrap_or_else(|| panic!("{large:#?}"));
    assert!(found.message.contains("a pod requests 3950m cpu, and a machine has 3920m"), "{}", found.message);
}

#[test]
fn cohorts_above_themselves_and_levels_without_nodes_are_found() {
    let cycle = "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {name: all}\nspec: {parentName: top}\n---\n\
                 apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {name: top}\nspec: {parentName: all}\n";
    let found = short(&findings(&format!("{GOOD}{cycle}")));
    assert!(found.contains(&"cohort-cycle Cohort all spec.parentName".to_owned()), "{found:#?}");
    let topology = "---\napiVersion: kueue.x-k8s.io/v1beta2\nkind: Topology\nmetadata: {name: racks}\n\
                    spec: {levels: [{nodeLabel: example.com/rack}]}\n";
    let named = GOOD.replace("{nodeLabels: {tier: spot}}", "{nodeLabels: {tier: spot}, topologyName: racks}");
    let found = short(&findings(&format!("{named}{topology}")));
    assert!(found.contains(&"topology-level-missing Topology racks spec.levels[0].nodeLabel".to_owned()), "{found:#?}");
}

#[test]
fn preemptions_that_never_end_are_an_error() {
    let manifests = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/restless.yaml"));
    let found = findings(&manifests.expect("restless.yaml"));
    let never: Vec<&Finding> = found.iter().filter(|it| it.rule == "preemption-never-rests").collect();
    assert!(!never.is_empty(), "{:#?}", short(&found));
    assert!(never.iter().all(|it| it.severity == Severity::Error));
}

#[test]
fn the_reserved_pool_of_the_gke_scenario_has_half_of_its_quota() {
    let Some(scenario) = shared("scenarios/gke-batch-refarch/platform") else {
        return skip("the recorded scenarios are missing");
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let paths = [scenario, root.join("examples/gke-batch-refarch/cluster.yaml")];
    let report = run(&paths, &["-o", "json"]);
    let report: serde_json::Value = serde_json::from_str(&report.text).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let reserved: Vec<_> = findings
        .iter()
        .filter(|it| it["rule"] == "quota-above-supply")
        .map(|it| (it["object"]["name"].as_str().unwrap_or_default(), it["message"].as_str().unwrap_or_default()))
        .collect();
    let [(name, message)] = reserved.as_slice() else { panic!("{reserved:#?}") };
    assert_eq!(*name, "gpu-l4-reserved");
    let wanted = "nominal quota of nvidia.com/gpu in ResourceFlavor gpu-l4-reserved is 16 and the supply at most 8 (NodePool \
                  reserved-np: at most 4 with 2 each)";
    assert!(message.starts_with(wanted), "{message}");
    assert!(!findings.iter().any(|it| it["severity"] == "error"), "{findings:#?}");
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: command::Options,
}

fn run(paths: &[PathBuf], arguments: &[&str]) -> command::Report {
    let mut all = vec!["check".to_owned()];
    for path in paths {
        all.extend(["-f".to_owned(), path.display().to_string()]);
    }
    all.extend(arguments.iter().map(|it| (*it).to_owned()));
    let cli = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{error}"));
    command::run(&cli.options, Vec::new(), &template, Timestamp::UNIX_EPOCH).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn reports_have_the_line_and_exit_codes_follow_the_severity() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("queues.yaml");
    let text = GOOD.replace("spec: {clusterQueue: blue}", "spec: {clusterQueue: bleu}");
    std::fs::write(&file, &text).expect("a writable folder");
    std::fs::write(folder.path().join("chart.yaml"), "a: {{ .Values.x }}\n").expect("a writable folder");
    let paths = [folder.path().to_owned()];
    let report = run(&paths, &["--ignore", "queue-unreachable"]);
    assert!(report.failed);
    let line = 1 + text.lines().take_while(|line| !line.contains("name: main, namespace: blue")).count() - 2;
    let wanted =
        format!("{}:{line}: error: LocalQueue blue/main [queue-missing]\n  spec.clusterQueue: ", file.display());
    assert!(report.text.contains(&wanted), "{wanted}\n{}", report.text);
    assert!(report.text.contains("chart.yaml:1: warning: File "), "{}", report.text);
    assert!(report.text.ends_with("1 error, 1 warning, 0 notes\n"), "{}", report.text);
    assert!(!run(&paths, &["--fail-on", "never"]).failed);
    assert!(!run(std::slice::from_ref(&file), &["--fail-on", "error", "--ignore", "queue-missing"]).failed);

    let sarif: serde_json::Value = serde_json::from_str(&run(&paths, &["-o", "sarif"]).text).expect("JSON");
    let results = sarif["runs"][0]["results"].as_array().expect("a list");
    let result = results.iter().find(|it| it["ruleId"] == "queue-missing").expect("the finding");
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!((&result["level"], &place["region"]["startLine"]), (&"error".into(), &line.into()));
    let index = result["ruleIndex"].as_u64().and_then(|it| usize::try_from(it).ok()).expect("an index");
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][index]["id"], "queue-missing");
}

#[test]
fn rules_are_sorted_documented_and_named_once() {
    let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(ids, ids.iter().copied().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md");
    let page = std::fs::read_to_string(page).expect("docs/check.md");
    for rule in RULES {
        let row = format!("| `{}` | {} | {} |", rule.id, rule.severity.as_str(), rule.about);
        assert!(page.contains(&row), "docs/check.md lacks the row\n{row}");
    }
    assert!(report::text(&berth_foresight::check::Checked::default()).contains("0 objects checked"));
}
