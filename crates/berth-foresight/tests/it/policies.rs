//! Policies made from a trace, and policies read from manifests.

use berth_engine::model::{PreemptionPolicy, QueueingStrategy};
use berth_engine::{Amount, Name};
use berth_foresight::policy::built_in::{BuiltIn, quotas};
use berth_foresight::policy::{Policy, file};
use berth_foresight::replay::Replay;
use berth_load::Untimed;

use super::{SMALL, trace};

/// Two queues in one cohort, the first with fair weight and priority classes.
pub const MANIFESTS: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a}
spec:
  cohortName: all
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: spot
      resources: [{name: cpu, nominalQuota: 2}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team-b}
spec:
  cohort: all
  namespaceSelector: {}
  queueingStrategy: StrictFIFO
  resourceGroups:
  - coveredResources: [cpu]
    flavors:
    - name: spot
      resources: [{name: cpu, nominalQuota: 1, borrowingLimit: 1}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: a}
spec: {clusterQueue: team-a}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: b}
spec: {clusterQueue: team-b}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 100
---
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
fairSharing: {preemptionStrategies: [LessThanInitialShare]}
"#;

const RULES: &str = r#"
---
apiVersion: replay.berth.dev/v1alpha1
kind: ReplayPolicy
spec:
  rules:
  - match: {user: [amy]}
    localQueue: b/main
    priorityClassName: high
  - localQueue: "{tenant}/main"
  prices:
  - {resource: cpu, perHour: 36}
  - {resource: cpu, flavor: spot, perHour: 18}
"#;

fn parse(text: &str) -> Policy {
    file::parse("policy.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn error(text: &str) -> String {
    file::parse("policy.yaml", text).expect_err("an invalid policy").to_string()
}

#[test]
fn quotas_are_half_of_the_peaks_and_at_least_the_largest_job() {
    // Tenant a peaks at 5 CPUs, when its three jobs overlap; b at 2.5 CPUs, with a job of 2.
    let trace = trace(SMALL);
    let quotas = quotas(&trace);
    assert_eq!((quotas["a"]["cpu"], quotas["b"]["cpu"]), (2500, 2000));
}

#[test]
fn quotas_add_up_to_the_machine() {
    let mut trace = trace(SMALL);
    trace.machine = Some([(Name::from("cpu"), 64_000)].into());
    let quotas = quotas(&trace);
    assert_eq!(quotas["a"]["cpu"] + quotas["b"]["cpu"], 64_000);
    assert_eq!(quotas["a"]["cpu"], 35_500, "in units of half a CPU, as jobs request them");
}

#[test]
fn built_in_policies_differ_in_strategy_borrowing_and_preemption() {
    let trace = trace(SMALL);
    let queue = |built_in: BuiltIn| built_in.policy(&trace).cluster_queues().next().expect("a queue").clone();
    assert_eq!(queue(BuiltIn::Fifo).strategy, QueueingStrategy::StrictFifo);
    assert_eq!(queue(BuiltIn::BestEffort).preemption.reclaim_within_cohort, PreemptionPolicy::Never);
    assert_eq!(queue(BuiltIn::Reclaim).preemption.reclaim_within_cohort, PreemptionPolicy::Any);
    assert!(BuiltIn::FairSharing.policy(&trace).config.fair_sharing.is_some());
    let limit = queue(BuiltIn::NoBorrowing).resource_groups[0].flavors[0].quotas[0].1.borrowing_limit;
    assert_eq!(limit, Some(Amount::ZERO));
}

#[test]
fn manifests_of_both_versions_and_the_configuration_are_a_policy() {
    let policy = parse(MANIFESTS);
    let queues: Vec<_> = policy.cluster_queues().collect();
    assert_eq!(queues.len(), 2);
    assert_eq!(queues[1].cohort.as_deref(), Some("all"), "v1beta1 spells the field differently");
    assert_eq!(queues[1].strategy, QueueingStrategy::StrictFifo);
    assert_eq!(policy.quota()["cpu"], 3000);
    assert_eq!(policy.priority_classes["high"], 100);
    assert_eq!(policy.config.fair_sharing.as_ref().map(|it| it.preemption_strategies.len()), Some(1));
    let trace = trace(SMALL);
    let history = Replay::new(&trace, &policy).expect("every job has a queue").run(&mut Untimed);
    assert!(history.jobs.iter().all(|record| record.ended.is_some()));
    assert!(history.holdings.iter().all(|holding| holding.amounts.iter().all(|(flavor, ..)| &**flavor == "spot")));
}

#[test]
fn rules_map_jobs_to_queues_and_give_priorities_and_prices() {
    let policy = parse(&format!("{MANIFESTS}{RULES}"));
    let trace = trace(SMALL);
    let target = |number: usize| policy.mapping.target(&trace.jobs[number].owner).expect("a queue");
    assert_eq!(target(0).0.to_string(), "a/main");
    assert_eq!((target(4).0.to_string(), target(4).1.as_deref()), ("b/main".to_owned(), Some("high")));
    let (spot, other, cpu) = (Name::from("spot"), Name::from("other"), Name::from("cpu"));
    assert_eq!((policy.prices.of(&spot, &cpu), policy.prices.of(&other, &cpu)), (18.0, 36.0));
}

#[test]
fn errors_of_a_policy_name_object_and_field() {
    let wrong = |from: &str, to: &str| error(&format!("{MANIFESTS}{RULES}").replacen(from, to, 1));
    let text = wrong("nominalQuota: 2", "nominalQuota: lots");
    assert!(text.starts_with("policy.yaml: ClusterQueue team-a: spec.resourceGroups[0].flavors[0]"), "{text}");
    let text = wrong("queueingStrategy: StrictFIFO", "queueingStrategy: Random");
    assert!(text.starts_with("policy.yaml: ClusterQueue team-b: spec.queueingStrategy: "), "{text}");
    let text = wrong("preemption: {", "preemptions: {");
    assert_eq!(text, "policy.yaml: ClusterQueue team-a: spec.preemptions: unknown field");
    let text = wrong("fairSharing: {", "unfairSharing: {");
    assert!(text.starts_with("policy.yaml: Configuration: ") && text.contains("unfairSharing"), "{text}");
    let text = wrong("match: {user", "match: {shoe");
    assert!(text.contains("spec.rules[0].match.shoe: is not an attribute of a job"), "{text}");
    let text = wrong("\"{tenant}/main\"", "\"{town}/main\"");
    assert!(text.contains("spec.rules[1].localQueue: {town} is not an attribute of a job"), "{text}");
    let text = wrong("priorityClassName: high", "priorityClassName: low");
    assert!(text.contains("a rule names WorkloadPriorityClass low, which is not in the file"), "{text}");
    let text = wrong("perHour: 18", "perHour: -18");
    assert!(text.contains("spec.prices[1].perHour: -18 is not a price"), "{text}");
    let text = error("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n");
    assert!(text.starts_with("policy.yaml: Deployment web: apiVersion apps/v1 is not part of a policy"), "{text}");
    let text = wrong("metadata: {name: team-b}", "metadata: {name: team-a}");
    assert_eq!(text, "policy.yaml: ClusterQueue team-a: is twice in the file");
}

#[test]
fn a_job_without_a_queue_is_an_error_that_names_it() {
    let policy = parse(MANIFESTS);
    let trace = trace(&SMALL.replace(",b,", ",c,"));
    let text = Replay::new(&trace, &policy).expect_err("tenant c has no queue").to_string();
    assert!(text.starts_with("policy policy.yaml: job b1: there is no single LocalQueue in namespace c"), "{text}");
    assert!(text.contains("a/main, b/main"), "{text}");
}
