//! Fair sharing between queues, and between local queues of one.

use std::time::Duration;

use berth_engine::model::{AdmissionScope, PreemptionPolicy};
use berth_engine::{AdmissionFairSharing, Event, FairSharing, QuotaCheckStrategy};

use crate::cluster::{Platform, job, queue};

#[test]
fn the_queue_that_uses_least_of_the_cohort_goes_first() {
    let mut platform = Platform::with(|config| config.fair_sharing = Some(FairSharing::default()));
    platform.flavor("default").queue(queue("pool").cohort("all").flavor("default", 6));
    platform.queue(queue("a").cohort("all").flavor("default", 0)).queue(queue("b").cohort("all").flavor("default", 0));
    for at in 0..4 {
        platform.submit(job(&format!("a{at}"), "a", 1).created(at));
        platform.submit(job(&format!("b{at}"), "b", 1).created(10 + at));
    }
    platform.settle();
    assert_eq!(platform.running(), ["a0", "a1", "a2", "b0", "b1", "b2"]);
}

#[test]
fn weight_counts_in_shares() {
    let mut platform = Platform::with(|config| config.fair_sharing = Some(FairSharing::default()));
    platform.flavor("default").queue(queue("pool").cohort("all").flavor("default", 5));
    platform.queue(queue("a").cohort("all").flavor("default", 0).with(|queue| queue.fair_weight_milli = 2000));
    platform.queue(queue("b").cohort("all").flavor("default", 0));
    for at in 0..6 {
        platform.submit(job(&format!("a{at}"), "a", 1).created(at));
        platform.submit(job(&format!("b{at}"), "b", 1).created(at));
    }
    platform.settle();
    // Every cycle takes one head of each queue; the last core goes to the queue whose share counts
    // half.
    let running = platform.running();
    assert_eq!(running.iter().filter(|name| name.starts_with('a')).count(), 3);
    assert_eq!(running.iter().filter(|name| name.starts_with('b')).count(), 2);
}

#[test]
fn preemption_stops_at_equal_shares() {
    let mut platform = Platform::with(|config| config.fair_sharing = Some(FairSharing::default()));
    platform.flavor("default").queue(queue("pool").cohort("all").flavor("default", 4));
    for name in ["a", "b"] {
        platform.queue(queue(name).cohort("all").flavor("default", 0).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        }));
    }
    for at in 0..4 {
        platform.submit(job(&format!("a{at}"), "a", 1).created(at)).settle();
    }
    let mut victims = Vec::new();
    for at in 0..4 {
        platform.submit(job(&format!("b{at}"), "b", 1).created(10 + at));
        for line in platform.cycle() {
            if let Some(rest) = line.strip_prefix("preempt ") {
                let victim = rest.split(' ').next().unwrap_or_default().to_owned();
                platform.update(&victim, |workload| {
                    workload.admission = None;
                    workload.admitted = false;
                    workload.active = false;
                });
                victims.push(victim);
            }
        }
        platform.settle();
    }
    assert_eq!(victims, ["a3", "a2"]);
    assert_eq!(platform.running(), ["a0", "a1", "b0", "b1"]);
}

#[test]
fn the_local_queue_that_used_least_goes_first_whatever_the_priority() {
    let mut platform = Platform::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    platform.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    platform.local("busy", "q");
    platform.local("idle", "q");
    platform.submit(job("first", "busy", 2)).settle();
    platform.submit(job("urgent", "busy", 1).priority(9)).submit(job("modest", "idle", 1));
    assert_eq!(platform.settle(), ["admit modest on default x1", "admit urgent on default x1"]);
}

#[test]
fn whether_a_queue_reclaims_its_own_is_judged_before_anybody_leaves() {
    let mut platform = Platform::with(|config| config.fair_sharing = Some(FairSharing::default()));
    platform.flavor("default").queue(queue("b").cohort("all").flavor("default", 4));
    platform.queue(queue("a").cohort("all").flavor("default", 10).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
    }));
    platform.submit(job("b0", "b", 6)).submit(job("a0", "a", 3)).settle();
    platform.submit(job("a1", "a", 4).priority(5)).settle();
    // With all its workloads queue a would borrow 3; without a0, which is tried first, it would
    // not.
    platform.submit(job("a2", "a", 6).priority(5));
    assert_eq!(platform.cycle()[0], "preempt b0 (InCohortFairSharing) for a2");
}

#[test]
fn usage_of_local_queues_is_recorded_at_intervals_and_fades() {
    let mut platform = Platform::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    platform.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    let consumed = |platform: &Platform| {
        let status = platform.engine.local_queue_status("default", "q").expect("it was made");
        status.consumed.map(|(consumed, _)| consumed.values().sum::<f64>()).unwrap_or_default()
    };
    let sample =
        |platform: &mut Platform| platform.engine.sample_usage("default", "q", platform.now).expect("it was made");
    let start = platform.now;
    platform.submit(job("long", "q", 4)).settle();
    let at_admission = consumed(&platform);
    platform.now = start.after(Duration::from_secs(299));
    assert!(!sample(&mut platform).recorded);
    platform.now = platform.now.after(Duration::from_secs(1));
    assert!(sample(&mut platform).recorded);
    let while_running = consumed(&platform);
    assert!(while_running > at_admission, "{while_running} after {at_admission}");
    platform.finish("long");
    platform.now = platform.now.after(Duration::from_secs(600));
    sample(&mut platform);
    // One half life without usage leaves half.
    assert!((while_running / 2.0 - consumed(&platform)).abs() < 1.0, "{} after {while_running}", consumed(&platform));
}

#[test]
fn a_recorded_usage_is_added_once_even_if_an_admission_was_settled_before() {
    let mut platform = Platform::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    platform.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    let consumed = |platform: &Platform| {
        let status = platform.engine.local_queue_status("default", "q").expect("it was made");
        status.consumed.map(|(consumed, _)| consumed.values().sum::<f64>()).unwrap_or_default()
    };
    platform.submit(job("early", "q", 4)).settle();
    let settled = consumed(&platform);
    for _ in 0..2 {
        let (at, consumed) = (platform.now, [("cpu".into(), 8000)].into());
        let event = Event::LocalQueueUsageRestored { namespace: "default".into(), name: "q".into(), consumed, at };
        platform.engine.apply(event, platform.now);
    }
    assert!((consumed(&platform) - settled - 8000.0).abs() < 1e-6, "{} after {settled}", consumed(&platform));
}

#[test]
fn what_a_queue_does_not_count_costs_its_local_queues_nothing() {
    let mut platform = Platform::with(|config| {
        config.quota_check_strategy = QuotaCheckStrategy::IgnoreUndeclared;
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    platform.flavor("default").queue(queue("greedy").flavor("default", 2).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    platform.local("modest", "greedy");
    let licensed = job("licensed", "greedy", 1).created(1).with(|workload| {
        workload.pod_sets[0].requests.insert("example.com/license".into(), 1_000_000);
    });
    platform.submit(licensed).submit(job("bigger", "modest", 1).created(2).pods(2, None)).cycle();
    assert_eq!(platform.running(), ["licensed"]);
    // Its licenses are not the queue's: it was charged for one core, as the next one will be.
    platform.finish("licensed");
    platform.submit(job("next", "greedy", 1).created(3)).cycle();
    assert_eq!(platform.running(), ["bigger"]);
    platform.finish("bigger").submit(job("last", "modest", 1).created(0));
    assert_eq!(platform.cycle(), ["admit next on default x1"]);
}

#[test]
fn the_local_queue_with_the_highest_usage_is_preempted_first() {
    let victims = [true, false].map(|shares| {
        let mut platform = Platform::with(|config| {
            config.admission_fair_sharing = shares.then(|| AdmissionFairSharing {
                usage_half_life: Duration::from_secs(600),
                usage_sampling_interval: Duration::from_secs(300),
                resource_weights_milli: Default::default(),
            });
        });
        platform.flavor("default").queue(queue("q").flavor("default", 4).with(|queue| {
            queue.admission_scope = Some(AdmissionScope::UsageBased);
            queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        }));
        platform.local("busy", "q");
        platform.local("idle", "q");
        platform.submit(job("large", "busy", 3).priority(1)).submit(job("small", "idle", 1)).settle();
        platform.submit(job("urgent", "q", 1).priority(9));
        platform.cycle()
    });
    assert_eq!(victims, [["preempt large (InClusterQueue) for urgent"], ["preempt small (InClusterQueue) for urgent"]]);
}
