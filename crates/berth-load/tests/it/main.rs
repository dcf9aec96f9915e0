//! Plans from generator files, their bounds, and drives of them.

use std::path::PathBuf;
use std::time::Duration;

use berth_engine::EngineConfig;
use berth_load::{Config, Plan, Untimed, bound::lower_bound, drive};

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
fn a_file_is_written_out_in_order_of_time() {
    let plan = plan(SMALL);
    assert_eq!(plan.queues.len(), 4);
    assert_eq!(&*plan.queues[1].name, "cq-0-1-cohort-0");
    assert_eq!(plan.classes.iter().map(|class| class.demand()).collect::<Vec<_>>(), [1000, 2000]);
    assert_eq!(plan.arrivals.len(), 20);
    assert!(plan.arrivals.is_sorted_by_key(|arrival| arrival.at));
    assert_eq!(plan.arrivals[0].at, millis(10), "the interval passes before the first creation");
}

#[test]
fn mistakes_name_the_field() {
    let wrong = |from: &str, to: &str| {
        let error = Config::parse(&SMALL.replace(from, to)).expect_err("a mistake");
        error.to_string()
    };
    assert!(wrong("podCount", "podsCount").contains("podsCount"), "{}", wrong("podCount", "podsCount"));
    assert!(wrong("500m", "much").contains("no quantity"), "{}", wrong("500m", "much"));
    let text = wrong("podCount: 2", "podCount: 0");
    assert_eq!(text, "cohorts[0].queuesSets[0].workloadsSets[0].workloads[0].podCount: must be at least 1");
    assert!(wrong("podCount: 2", "tasLevel: rack").ends_with("tasConstraint: is needed with tasLevel"));
}

#[test]
fn no_schedule_beats_the_lower_bound_and_preemption_makes_large_ones_wait_for_nobody() {
    let plan = plan(SMALL);
    // Per cohort 8 small of 1 cpu x 0.1 s and 2 large of 2 cpus x 0.2 s on 4 cpus; the large come at 50 ms.
    // All of it arrives from 10 ms on: 1.6 cpu seconds; from 50 ms on only the large ones, 0.8.
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
fn the_published_bounds_are_ours() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/perf");
    for (name, seconds) in [("baseline", 66.8), ("large-scale", 4.47), ("tas", 66.4)] {
        let path = folder.join(format!("{name}.yaml"));
        let Ok(text) = std::fs::read_to_string(&path) else {
            println!("skipped: there is no {}", path.display());
            continue;
        };
        let bound = lower_bound(&plan(&text)).as_secs_f64();
        assert!((bound - seconds).abs() < 0.05, "{name}: {bound}");
    }
}
