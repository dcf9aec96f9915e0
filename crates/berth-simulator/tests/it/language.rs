//! What a scenario can say about objects whose names it does not know, and about the past.

use std::collections::BTreeMap;

/// Runs a scenario with these steps. Returns the report and the number of failed expectations.
fn run(steps: &str) -> (String, usize) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("scenario.yaml");
    let head = "apiVersion: berth.dev/v1alpha1\nkind: Scenario\nmetadata: {name: language}\nspec:\n";
    let cluster = "  cluster: {nodePools: [{name: pool, machineType: e2-standard-4, zones: [z], initialNodes: 2, static: true}]}\n";
    std::fs::write(folder.path().join("kueue.yaml"), "manageJobsWithoutQueueName: true\n").expect("a file");
    std::fs::write(&path, format!("{head}{cluster}{steps}")).expect("a scenario");
    let mut report = String::new();
    let outcome = berth_simulator::run_in_virtual_time(&path, &BTreeMap::new(), &mut |text| report.push_str(text));
    match outcome {
        Ok(outcome) => (report, outcome.failed),
        Err(error) => (format!("{report}{error:?}"), usize::MAX),
    }
}

const JOBS: &str = r#"
  steps:
    - name: start
      do:
        - create:
            forEach: [{name: index, values: ["1", "2"]}]
            remember: job${index}
            objects:
              - apiVersion: batch/v1
                kind: Job
                metadata: {generateName: train-}
                spec: {parallelism: 2, template: {spec: {restartPolicy: Never, containers: [
                  {name: main, image: x, command: [sleep, 20s], resources: {requests: {cpu: "1"}}}]}}}
        - remember: {name: node, of: {kind: pods, selector: "job-name=${job1}"}, path: spec.nodeName}
      settle: 2s
"#;

#[test]
fn generated_names_and_values_are_remembered() {
    let (report, failed) = run(&format!(
        "{JOBS}      expect:
        - object: {{is: {{kind: jobs, name: '${{job2}}'}}, fields: {{status.active: 2, metadata.name: '${{job2}}'}}}}
        - object: {{is: {{kind: pods, ownedBy: 'Job/${{job1}}'}}, fields: {{spec.nodeName: '${{node}}'}}}}
        - count: {{of: pods, groupBy: spec.nodeName, distinct: 2}}
        - count: {{of: pods, selector: 'job-name=${{job1}}', is: 2}}
        - count: {{of: nodes, where: {{metadata.name: '${{node}}'}}, is: 1}}
"
    ));
    assert_eq!(failed, 0, "{report}");
}

#[test]
fn a_value_that_does_not_exist_is_not_remembered() {
    let (report, failed) = run(&format!(
        "{JOBS}      expect: []\n    - {{name: b, do: [{{remember: {{name: x, of: {{kind: jobs, name: '${{job1}}'}}, path: spec.nothing}}}}]}}\n"
    ));
    assert_eq!(failed, usize::MAX);
    assert!(report.contains("there is no value to remember") || report.contains("spec.nothing"), "{report}");
}

#[test]
fn the_history_of_a_field_has_what_no_check_sees() {
    let (report, failed) = run(&format!(
        "{JOBS}    - name: end
      do: [{{wait: 60s}}]
      expect:
        - history: {{of: {{kind: jobs, name: '${{job1}}'}}, path: status.active, is: ['2', '1', '0']}}
        - history: {{of: {{kind: jobs, name: '${{job2}}'}}, path: status.ready, is: ['7']}}
"
    ));
    // Whether the two pods of a Job end in one status or in two is not fixed.
    assert!(failed == 1 || failed == 2, "{report}");
    assert!(report.contains("status.ready: expected 7, found 2, "), "{report}");
}

#[test]
fn the_configuration_may_be_a_file() {
    let (report, failed) = run("  configuration: kueue.yaml
  steps:
    - name: hold
      do:
        - create:
            objects:
              - apiVersion: batch/v1
                kind: Job
                metadata: {name: bare}
                spec: {template: {spec: {restartPolicy: Never, containers: [{name: main, image: x}]}}}
      expect:
        - object: {is: {kind: jobs, name: bare}, fields: {spec.suspend: true}}
");
    assert_eq!(failed, 0, "{report}");
}
