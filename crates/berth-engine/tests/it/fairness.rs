//! Fair sharing between queues, and between the local queues of one queue.

use std::time::Duration;

use berth_engine::model::{AdmissionScope, PreemptionPolicy, QueueingStrategy};
use berth_engine::{AdmissionFairSharing, Event, FairSharing, QuotaCheckStrategy};

use crate::cluster::{Cluster, job, queue};

#[test]
fn the_queue_with_the_smallest_share_goes_first() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("default").queue(queue("pool").cohort("all").flavor("default", 6));
    cluster.queue(queue("a").cohort("all").flavor("default", 0)).queue(queue("b").cohort("all").flavor("default", 0));
    for at in 0..4 {
        cluster.submit(job(&format!("a{at}"), "a", 1).created(at));
        cluster.submit(job(&format!("b{at}"), "b", 1).created(10 + at));
    }
    cluster.settle();
    assert_eq!(cluster.running(), ["a0", "a1", "a2", "b0", "b1", "b2"]);
}

#[test]
fn weight_counts_in_shares() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("default").queue(queue("pool").cohort("all").flavor("default", 5));
    cluster.queue(queue("a").cohort("all").flavor("default", 0).with(|queue| queue.fair_weight_milli = 2000));
    cluster.queue(queue("b").cohort("all").flavor("default", 0));
    for at in 0..6 {
        cluster.submit(job(&format!("a{at}"), "a", 1).created(at));
        cluster.submit(job(&format!("b{at}"), "b", 1).created(at));
    }
    cluster.settle();
    // Every cycle takes one head of each queue. The last core goes to the queue whose share counts
    // half.
    let running = cluster.running();
    assert_eq!(running.iter().filter(|name| name.starts_with('a')).count(), 3);
    assert_eq!(running.iter().filter(|name| name.starts_with('b')).count(), 2);
}

#[test]
fn preemption_stops_at_equal_shares() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("default").queue(queue("pool").cohort("all").flavor("default", 4));
    for name in ["a", "b"] {
        cluster.queue(queue(name).cohort("all").flavor("default", 0).with(|queue| {
            queue.preemption.reclaim_within_cohort = PreemptionPolicy::Any;
        }));
    }
    for at in 0..4 {
        cluster.submit(job(&format!("a{at}"), "a", 1).created(at)).settle();
    }
    let mut victims = Vec::new();
    for at in 0..4 {
        cluster.submit(job(&format!("b{at}"), "b", 1).created(10 + at));
        for line in cluster.cycle() {
            if let Some(rest) = line.strip_prefix("preempt ") {
                let victim = rest.split(' ').next().unwrap_or_default().to_owned();
                cluster.update(&victim, |workload| {
                    workload.admission = None;
                    workload.admitted = false;
                    workload.active = false;
                });
                victims.push(victim);
            }
        }
        cluster.settle();
    }
    assert_eq!(victims, ["a3", "a2"]);
    assert_eq!(cluster.running(), ["a0", "a1", "b0", "b1"]);
}

#[test]
fn the_local_queue_with_the_least_usage_goes_first_regardless_of_priority() {
    let mut cluster = Cluster::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    cluster.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    cluster.local("busy", "q");
    cluster.local("idle", "q");
    cluster.submit(job("first", "busy", 2)).settle();
    cluster.submit(job("urgent", "busy", 1).priority(9)).submit(job("modest", "idle", 1));
    assert_eq!(cluster.settle(), ["admit modest on default x1", "admit urgent on default x1"]);
}

#[test]
fn whether_a_queue_reclaims_its_own_quota_is_evaluated_before_victims_leave() {
    let mut cluster = Cluster::with(|config| config.fair_sharing = Some(FairSharing::default()));
    cluster.flavor("default").queue(queue("b").cohort("all").flavor("default", 4));
    cluster.queue(queue("a").cohort("all").flavor("default", 10).with(|queue| {
        queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        queue.preemption.reclaim_within_cohort = PreemptionPolicy::LowerPriority;
    }));
    cluster.submit(job("b0", "b", 6)).submit(job("a0", "a", 3)).settle();
    cluster.submit(job("a1", "a", 4).priority(5)).settle();
    // With all its workloads, queue a would borrow 3. Without a0, which is tried first, it would
    // not borrow.
    cluster.submit(job("a2", "a", 6).priority(5));
    assert_eq!(cluster.cycle()[0], "preempt b0 (InCohortFairSharing) for a2");
}

#[test]
fn usage_of_local_queues_is_recorded_at_intervals_and_decays() {
    let mut cluster = Cluster::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    cluster.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    let consumed = |cluster: &Cluster| {
        let status = cluster.engine.local_queue_status("default", "q").expect("the queue was created");
        status.consumed.map(|(consumed, _)| consumed.values().sum::<f64>()).unwrap_or_default()
    };
    let sample = |cluster: &mut Cluster| {
        cluster.engine.sample_usage("default", "q", cluster.now).expect("the queue was created")
    };
    let start = cluster.now;
    cluster.submit(job("long", "q", 4)).settle();
    let at_admission = consumed(&cluster);
    cluster.now = start.after(Duration::from_secs(299));
    assert!(!sample(&mut cluster).recorded);
    cluster.now = cluster.now.after(Duration::from_secs(1));
    assert!(sample(&mut cluster).recorded);
    let while_running = consumed(&cluster);
    assert!(while_running > at_admission, "{while_running} after {at_admission}");
    cluster.finish("long");
    cluster.now = cluster.now.after(Duration::from_secs(600));
    sample(&mut cluster);
    // After one half-life without usage, half is left.
    assert!((while_running / 2.0 - consumed(&cluster)).abs() < 1.0, "{} after {while_running}", consumed(&cluster));
}

#[test]
fn recorded_usage_wakes_the_scheduler_while_a_head_blocks_its_queue() {
    let mut cluster = Cluster::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(60),
            usage_sampling_interval: Duration::from_secs(10),
            resource_weights_milli: Default::default(),
        });
    });
    cluster.flavor("default").queue(queue("q").flavor("default", 4).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
        queue.strategy = QueueingStrategy::StrictFifo;
    }));
    cluster.local("busy", "q");
    cluster.local("idle", "q");
    let sample = |cluster: &mut Cluster, name: &str| {
        cluster.now = cluster.now.after(Duration::from_secs(10));
        cluster.engine.sample_usage("default", name, cluster.now).expect("the queue was created")
    };
    // Queue idle used more before, and busy uses more from now on.
    cluster.submit(job("past", "idle", 3)).settle();
    for _ in 0..20 {
        assert!(!sample(&mut cluster, "idle").wake, "nothing waits");
    }
    cluster.finish("past");
    cluster.submit(job("long", "busy", 3)).settle();
    cluster.submit(job("large", "busy", 3)).settle();
    cluster.submit(job("small", "idle", 1)).settle();
    assert_eq!(cluster.running(), ["long"], "the head of the queue does not fit");
    for _ in 0..60 {
        let woken = [sample(&mut cluster, "busy").wake, sample(&mut cluster, "idle").wake];
        if woken.contains(&true) {
            cluster.settle();
        }
        if cluster.running() == ["long", "small"] {
            return;
        }
    }
    panic!("the scheduler was not woken when small became the first in line");
}

#[test]
fn a_local_queue_that_used_nothing_reports_zero_of_each_resource() {
    for (half_life, expected) in [(600, vec![("cpu".into(), 0.0)]), (0, Vec::new())] {
        let mut cluster = Cluster::with(|config| {
            config.admission_fair_sharing = Some(AdmissionFairSharing {
                usage_half_life: Duration::from_secs(half_life),
                usage_sampling_interval: Duration::from_secs(300),
                resource_weights_milli: Default::default(),
            });
        });
        cluster.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
            queue.admission_scope = Some(AdmissionScope::UsageBased);
        }));
        cluster.engine.sample_usage("default", "q", cluster.now).expect("the queue was created");
        let status = cluster.engine.local_queue_status("default", "q").expect("the queue was created");
        let (consumed, _) = status.consumed.expect("usage was recorded");
        assert_eq!(consumed.into_iter().collect::<Vec<(berth_engine::Name, f64)>>(), expected);
    }
}

#[test]
fn recorded_usage_is_added_once_even_if_an_admission_was_settled_before() {
    let mut cluster = Cluster::with(|config| {
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    cluster.flavor("default").queue(queue("q").flavor("default", 9).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    let consumed = |cluster: &Cluster| {
        let status = cluster.engine.local_queue_status("default", "q").expect("the queue was created");
        status.consumed.map(|(consumed, _)| consumed.values().sum::<f64>()).unwrap_or_default()
    };
    cluster.submit(job("early", "q", 4)).settle();
    let settled = consumed(&cluster);
    for _ in 0..2 {
        let (at, consumed) = (cluster.now, [("cpu".into(), 8000)].into());
        let event = Event::LocalQueueUsageRestored { namespace: "default".into(), name: "q".into(), consumed, at };
        cluster.engine.apply(event, cluster.now);
    }
    assert!((consumed(&cluster) - settled - 8000.0).abs() < 1e-6, "{} after {settled}", consumed(&cluster));
}

#[test]
fn resources_that_a_queue_does_not_count_are_not_charged_to_its_local_queues() {
    let mut cluster = Cluster::with(|config| {
        config.quota_check_strategy = QuotaCheckStrategy::IgnoreUndeclared;
        config.admission_fair_sharing = Some(AdmissionFairSharing {
            usage_half_life: Duration::from_secs(600),
            usage_sampling_interval: Duration::from_secs(300),
            resource_weights_milli: Default::default(),
        });
    });
    cluster.flavor("default").queue(queue("greedy").flavor("default", 2).with(|queue| {
        queue.admission_scope = Some(AdmissionScope::UsageBased);
    }));
    cluster.local("modest", "greedy");
    let licensed = job("licensed", "greedy", 1).created(1).with(|workload| {
        workload.pod_sets[0].requests.insert("example.com/license".into(), 1_000_000);
    });
    cluster.submit(licensed).submit(job("bigger", "modest", 1).created(2).pods(2, None)).cycle();
    assert_eq!(cluster.running(), ["licensed"]);
    // The queue has no quota for its licenses: it was charged for one core, as the next one will
    // be.
    cluster.finish("licensed");
    cluster.submit(job("next", "greedy", 1).created(3)).cycle();
    assert_eq!(cluster.running(), ["bigger"]);
    cluster.finish("bigger").submit(job("last", "modest", 1).created(0));
    assert_eq!(cluster.cycle(), ["admit next on default x1"]);
}

#[test]
fn the_local_queue_with_the_highest_usage_is_preempted_first() {
    let victims = [true, false].map(|shares| {
        let mut cluster = Cluster::with(|config| {
            config.admission_fair_sharing = shares.then(|| AdmissionFairSharing {
                usage_half_life: Duration::from_secs(600),
                usage_sampling_interval: Duration::from_secs(300),
                resource_weights_milli: Default::default(),
            });
        });
        cluster.flavor("default").queue(queue("q").flavor("default", 4).with(|queue| {
            queue.admission_scope = Some(AdmissionScope::UsageBased);
            queue.preemption.within_cluster_queue = PreemptionPolicy::LowerPriority;
        }));
        cluster.local("busy", "q");
        cluster.local("idle", "q");
        cluster.submit(job("large", "busy", 3).priority(1)).submit(job("small", "idle", 1)).settle();
        cluster.submit(job("urgent", "q", 1).priority(9));
        cluster.cycle()
    });
    assert_eq!(victims, [["preempt large (InClusterQueue) for urgent"], ["preempt small (InClusterQueue) for urgent"]]);
}
