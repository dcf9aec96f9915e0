//! Tests of plans from generator files, of their bounds, and of their schedules.

use std::time::Duration;

use berth_engine::EngineConfig;
use berth_load::bound::{limited_bound, lower_bound};
use berth_load::{Config, Ledger, Plan, Untimed, chart, drive};

const SMALL: &str = r#"
cohorts:
- className: cohort
  count: 2
  queuesSets:
  - className: cq
    count: 2
    nominalQuota: 2
    borrowingLimit: "2"
    reclaimWithinCohort: Any
    withinClusterQueue: LowerPriority
    workloadsSets:
    - count: 4
      creationIntervalMs: 10
      workloads:
      - {className: small, runtimeMs: 100, priority: 50, request: 500m, podCount: 2}
    - count: 1
      creationIntervalMs: 50
      workloads:
      - {className: large, runtimeMs: 200, priority: 200, request: 2}
"#;

fn plan(text: &str) -> Plan {
    Plan::new(&Config::parse(text).expect("a generator file"))
}

fn prompt() -> EngineConfig {
    EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() }
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn arrivals_are_ordered_by_time() {
    let plan = plan(SMALL);
    assert_eq!(plan.queues.len(), 4);
    assert_eq!(&*plan.queues[1].name, "cq-0-1-cohort-0");
    assert_eq!(plan.classes.iter().map(|class| class.demand()).collect::<Vec<_>>(), [1000, 2000]);
    assert_eq!(plan.arrivals.len(), 20);
    assert!(plan.arrivals.is_sorted_by_key(|arrival| arrival.at));
    assert_eq!(plan.arrivals[0].at, millis(10), "the interval passes before the first creation");
}

#[test]
fn configuration_errors_name_the_field() {
    let wrong = |from: &str, to: &str| {
        let error = Config::parse(&SMALL.replace(from, to)).expect_err("a mistake");
        error.to_string()
    };
    assert!(wrong("podCount", "podsCount").contains("podsCount"), "{}", wrong("podCount", "podsCount"));
    assert!(wrong("500m", "much").contains("is not a quantity"), "{}", wrong("500m", "much"));
    let text = wrong("podCount: 2", "podCount: 0");
    assert_eq!(text, "cohorts[0].queuesSets[0].workloadsSets[0].workloads[0].podCount: must be at least 1");
    assert!(wrong("podCount: 2", "tasLevel: rack").ends_with("tasConstraint: is needed with tasLevel"));
}

#[test]
fn no_schedule_beats_the_lower_bound_and_preemption_admits_large_workloads_at_once() {
    let plan = plan(SMALL);
    // Per cohort, 8 small workloads of 1 CPU x 0.1 s and 2 large ones of 2 CPUs x 0.2 s share 4
    // CPUs; the large ones are created at 50 ms. All work, 1.6 CPU seconds, arrives at 10 ms or
    // later. The work that arrives at 50 ms or later is that of the large workloads, 0.8 CPU
    // seconds.
    assert_eq!(lower_bound(&plan), millis(410));
    let outcome = drive(&plan, prompt(), &mut Untimed);
    assert_eq!(outcome.unfinished, 0);
    assert!(outcome.wall >= lower_bound(&plan), "{outcome:?}");
    assert_eq!(outcome.classes["large"].admission.p99, Duration::ZERO, "{outcome:?}");
    assert!(outcome.classes["small"].evictions > 0, "{outcome:?}");
    assert_eq!(outcome.admissions, 20 + outcome.classes["small"].evictions);
    assert_eq!(drive(&plan, prompt(), &mut Untimed), outcome, "same plan, same history");
}

#[test]
fn the_published_bounds_are_reproduced() {
    let Some(folder) = berth_testing::shared("perf") else { return };
    for (name, seconds) in [("baseline", 66.8), ("large-scale", 4.47), ("tas", 66.4)] {
        let path = folder.join(format!("{name}.yaml"));
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let bound = lower_bound(&plan(&text)).as_secs_f64();
        assert!((bound - seconds).abs() < 0.05, "{name}: {bound}");
    }
}

/// A ledger of `SMALL` after its first workload was created and reserved quota.
fn started_ledger(plan: &Plan) -> Ledger<'_> {
    let mut ledger = Ledger::new(plan, millis(50));
    ledger.created(0, millis(10));
    ledger.reserved(0, millis(20));
    ledger.admitted(0, millis(20));
    ledger
}

fn violations(ledger: Ledger<'_>) -> String {
    let (_, _, violations) = ledger.close();
    violations.described.join("\n")
}

#[test]
fn the_ledger_of_a_correct_run_has_its_figures_and_no_violations() {
    let plan = plan(SMALL);
    let mut ledger = started_ledger(&plan);
    ledger.evicted(0, millis(60));
    ledger.released(0, millis(70));
    ledger.reserved(0, millis(100));
    ledger.admitted(0, millis(100));
    assert_eq!((ledger.now().used, ledger.now().pending, ledger.now().admissions), (1000, 0, 2));
    ledger.finished(0, millis(200));
    for number in 1..plan.arrivals.len() {
        let at = millis(1000 * number as u64);
        ledger.created(number, at);
        ledger.reserved(number, at);
        ledger.admitted(number, at);
        ledger.finished(number, at + millis(500));
    }
    assert!(ledger.is_over());
    let (outcome, moments, violations) = ledger.close();
    assert_eq!(violations.count, 0, "{violations:?}");
    assert_eq!(outcome.unfinished, 0);
    assert_eq!(outcome.wall, millis(19_500));
    assert_eq!(outcome.admissions, 21);
    let class = &plan.classes[plan.arrivals[0].class].name;
    assert_eq!((outcome.classes[class].evictions, outcome.classes[class].lost), (1, millis(50)));
    assert!(moments.is_sorted_by_key(|moment| moment.at));
    let picture = chart::svg("a run & its \"chart\"", &moments, 8000);
    assert!(
        picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>") && picture.contains("a run &amp; its")
    );
}

#[test]
fn the_ledger_reports_lost_and_repeated_events_and_quota_assigned_twice() {
    let plan = plan(SMALL);
    let mut ledger = started_ledger(&plan);
    ledger.reserved(0, millis(30));
    assert!(violations(ledger).contains("got quota twice"));
    let mut ledger = started_ledger(&plan);
    ledger.finished(0, millis(500));
    ledger.finished(0, millis(501));
    assert!(violations(ledger).contains("finished twice"));
    let mut ledger = started_ledger(&plan);
    ledger.finished(0, millis(30));
    assert!(violations(ledger).contains("finished before it had run"));
    let text = violations(started_ledger(&plan));
    assert!(text.contains("never finished"), "{text}");
    let mut ledger = started_ledger(&plan);
    ledger.finished(0, millis(500));
    ledger.reserved(0, millis(600));
    assert!(violations(ledger).contains("after it had finished"));

    // The cohort has quota for four CPUs, so the fifth is too many in any queue.
    let mut ledger = Ledger::new(&plan, millis(50));
    let cohort = &plan.queues[0].cohort;
    let of_cohort = |number: &usize| &plan.queues[plan.arrivals[*number].queue].cohort == cohort;
    let smalls = |number: &usize| plan.classes[plan.arrivals[*number].class].demand() == 1000;
    for number in (0..plan.arrivals.len()).filter(of_cohort).filter(smalls).take(5) {
        ledger.created(number, millis(10));
        ledger.reserved(number, millis(20));
    }
    assert!(violations(ledger).contains("has 5000m cpu in use, but a quota of 4000m"));
}

#[test]
fn a_limited_client_cannot_be_faster_than_its_limit() {
    assert_eq!(limited_bound(15_000, 50.0, 100), Duration::from_secs(298));
    assert_eq!(limited_bound(50, 50.0, 100), Duration::ZERO);
}
