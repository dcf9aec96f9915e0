//! Benchmarks of decisions: one group per quantity that the cost depends on.
//! docs/performance-engine.md contains the results, and explains how to run the benchmarks.
//!
//! Every result is for the engine alone: events and cycles in memory, without API and without
//! translation of objects.

mod cluster;
mod measure;

use std::hint::black_box;
use std::time::Duration;

use berth_engine::Verdict;
use berth_engine::model::{BorrowWithinCohort, Cohort, PreemptionPolicies, PreemptionPolicy};
use berth_engine::{Event, FairSharing};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use cluster::{Cluster, job, queue};
use measure::timed;

/// The allocator of `berth`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `queues` queues of `cores` cores each, in cohorts of `per_cohort` queues.
fn cluster(queues: usize, per_cohort: usize, cores: i64) -> Cluster {
    let mut cluster = Cluster::new(|_| {});
    cluster.flavor("default");
    for at in 0..queues {
        let name = format!("queue-{at}");
        cluster.queue(queue(&name, cores).with(|it| it.cohort = Some(format!("cohort-{}", at / per_cohort).into())));
    }
    cluster
}

/// Adds `each` waiting workloads of at least one core to every queue. They have `shapes` different
/// requests.
fn fill(cluster: &mut Cluster, queues: usize, each: usize, shapes: usize) {
    for at in 0..queues {
        for n in 0..each {
            let cores = 1000 + (n % shapes) as i64;
            cluster.submit(job(&format!("job-{at}-{n}"), &format!("queue-{at}"), cores));
        }
    }
}

/// One queue gets quota for one workload while all others wait for quota. Measures the cycle that
/// uses it.
fn one_admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one_admission");
    for queues in [10, 100, 1000, 2000] {
        // Queues without a cohort: an event in one queue concerns no other queue.
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default");
        for at in 0..queues {
            cluster.queue(queue(&format!("queue-{at}"), 1));
        }
        for at in 0..queues {
            for n in 0..(50_000 / queues) {
                cluster.submit(job(&format!("job-{at}-{n}"), &format!("queue-{at}"), 1000));
            }
        }
        cluster.settle();
        let mut next = 0;
        group.bench_function(BenchmarkId::new("queues", queues), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    next += 1;
                    let name = format!("queue-{}", next % queues);
                    let running = cluster.running_in(&name);
                    let again = cluster.object(&running);
                    let (time, _) = timed(|| {
                        cluster.finish(&running);
                        let outcome = cluster.engine.cycle(cluster.now);
                        cluster.confirm(&outcome)
                    });
                    spent += time;
                    cluster.settle();
                    cluster.resubmit(again);
                    cluster.settle();
                }
                spent
            });
        });
    }
    group.finish();
}

/// Every queue has quota for its head. Measures a cycle of 1,000 admissions out of 50,000 waiting
/// workloads, with the events that confirm them.
fn cycle_of_admissions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cycle");
    let (queues, each) = (1000, 50);
    group.throughput(Throughput::Elements(queues as u64));
    let mut cluster = cluster(queues, 100, 1000);
    fill(&mut cluster, queues, each, 3);
    group.bench_function("1000_queues_50000_waiting", |bencher| {
        bencher.iter_custom(|rounds| {
            let mut spent = Duration::ZERO;
            for _ in 0..rounds {
                let (time, outcome) = timed(|| cluster.engine.cycle(cluster.now));
                assert_eq!(outcome.decisions.len(), queues);
                spent += time;
                // The admitted workloads return to waiting, outside of the measured time.
                cluster.confirm(&outcome);
                for decision in &outcome.decisions {
                    let object = cluster.object(&decision.workload);
                    cluster.finish(&decision.workload);
                    cluster.resubmit(object);
                }
            }
            spent
        });
    });
    group.finish();
}

/// The free quota of each cohort is too small for any workload. A flush makes the engine try every
/// waiting workload again, and none can be admitted.
fn nothing_admissible(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("nothing_admissible");
    group.sample_size(20);
    for (name, queues, each, shapes) in [
        ("2000_queues_100000_waiting_alike", 2000, 50, 1),
        ("2000_queues_100000_waiting_5_shapes", 2000, 50, 5),
        ("200_queues_100000_waiting_alike", 200, 500, 1),
    ] {
        let mut cluster = cluster(queues, 100, 1);
        for cohort in 0..queues / 100 {
            cluster.submit(job(&format!("runs-{cohort}"), &format!("queue-{}", cohort * 100), 99_500));
        }
        cluster.settle();
        fill(&mut cluster, queues, each, shapes);
        cluster.settle();
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (time, ()) = timed(|| {
                        for cohort in 0..queues / 100 {
                            let cluster_queue = format!("queue-{}", cohort * 100).into();
                            cluster.apply(Event::FlushRequested { cluster_queue });
                        }
                        cluster.settle();
                    });
                    spent += time;
                }
                spent
            });
        });
    }
    group.finish();
}

/// A deep queue with free quota. Measures admissions per second, with all events of an admission,
/// by depth of the queue.
fn drain(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("drain_one_queue");
    for depth in [1_000, 10_000, 100_000] {
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default").queue(queue("deep", 1 << 30));
        for n in 0..depth {
            cluster.submit(job(&format!("job-{n}"), "deep", 1000));
        }
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("waiting", depth), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (time, outcome) = timed(|| {
                        let outcome = cluster.engine.cycle(cluster.now);
                        cluster.confirm(&outcome);
                        outcome
                    });
                    spent += time;
                    let admitted = outcome.decisions[0].workload.clone();
                    let object = cluster.object(&admitted);
                    cluster.finish(&admitted);
                    cluster.resubmit(object);
                }
                spent
            });
        });
    }
    group.finish();
}

/// Cohort trees of several depths. Measures a cycle in which one queue at the bottom borrows from
/// its root.
fn depth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one_admission_by_depth");
    for depth in [1, 5, 20] {
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default");
        for level in 0..depth {
            let mut cohort = Cohort::new(format!("level-{level}"));
            cohort.parent = (level > 0).then(|| format!("level-{}", level - 1).into());
            cluster.apply(Event::CohortUpserted(cohort));
        }
        cluster.queue(queue("rich", 1000).with(|it| it.cohort = Some("level-0".into())));
        let bottom = format!("level-{}", depth - 1);
        cluster.queue(queue("poor", 0).with(|it| it.cohort = Some(bottom.as_str().into())));
        for n in 0..1000 {
            cluster.submit(job(&format!("job-{n}"), "poor", 1000));
        }
        group.bench_function(BenchmarkId::new("levels", depth), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (time, outcome) = timed(|| cluster.engine.cycle(cluster.now));
                    spent += time;
                    cluster.confirm(&outcome);
                    let admitted = outcome.decisions[0].workload.clone();
                    let object = cluster.object(&admitted);
                    cluster.finish(&admitted);
                    cluster.resubmit(object);
                }
                spent
            });
        });
    }
    group.finish();
}

/// Search for victims among many candidates, without topology. The preemptor needs a tenth of them.
fn preemption(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("preemption");
    for candidates in [70, 700, 7000] {
        for fair in [false, true] {
            let mut cluster = Cluster::new(|config| {
                config.fair_sharing = fair.then(FairSharing::default);
            });
            cluster.flavor("default");
            let policies = PreemptionPolicies {
                within_cluster_queue: PreemptionPolicy::LowerPriority,
                reclaim_within_cohort: PreemptionPolicy::Any,
                borrow_within_cohort: BorrowWithinCohort::Never,
            };
            let queues = 10;
            let share = candidates / queues;
            for at in 0..queues {
                let own = if at == 0 { candidates } else { 0 };
                cluster.queue(queue(&format!("queue-{at}"), own as i64).with(|it| {
                    it.cohort = Some("all".into());
                    it.preemption = policies;
                }));
            }
            for at in 0..queues {
                for n in 0..share {
                    cluster.submit(job(&format!("runs-{at}-{n}"), &format!("queue-{at}"), 1000));
                }
            }
            cluster.settle();
            let needs = (candidates / 10) as i64 * 1000;
            cluster.submit(job("preemptor", "queue-0", needs).with(|it| it.priority = 100));
            let how = if fair { "fair" } else { "classical" };
            group.bench_function(BenchmarkId::new(how, candidates), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        let (time, outcome) = timed(|| cluster.engine.cycle(cluster.now));
                        spent += time;
                        let Verdict::Preempt { victims, .. } = &outcome.decisions[0].verdict else {
                            panic!("it has to preempt: {outcome:?}");
                        };
                        assert!(victims.len() as i64 >= needs / 1000);
                        // The decision was not written, so the state is as before.
                        for victim in victims {
                            cluster.apply(Event::PreemptionFailed(victim.workload.clone()));
                        }
                    }
                    spent
                });
            });
        }
    }
    group.finish();
}

/// Fair sharing: 50 or 200 queues at the bottom of a tree of five levels, each with a head.
fn fair_sharing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fair_sharing");
    group.sample_size(20);
    for queues in [50, 200] {
        let mut cluster = Cluster::new(|config| config.fair_sharing = Some(FairSharing::default()));
        cluster.flavor("default");
        // A binary tree of cohorts: 1 + 2 + 4 + 8 + 16. The queues are below the last level.
        for level in 0..5_u32 {
            for at in 0..(1_u32 << level) {
                let mut cohort = Cohort::new(format!("cohort-{level}-{at}"));
                cohort.parent = (level > 0).then(|| format!("cohort-{}-{}", level - 1, at / 2).into());
                cluster.apply(Event::CohortUpserted(cohort));
            }
        }
        for at in 0..queues {
            cluster.queue(queue(&format!("queue-{at}"), 10).with(|it| {
                it.cohort = Some(format!("cohort-4-{}", at % 16).into());
                it.fair_weight_milli = 1000 + at as i64;
            }));
            for n in 0..20 {
                cluster.submit(job(&format!("job-{at}-{n}"), &format!("queue-{at}"), 1000));
            }
        }
        group.throughput(Throughput::Elements(queues as u64));
        group.bench_function(BenchmarkId::new("queues_five_levels_deep", queues), |bencher| {
            bencher.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let (time, outcome) = timed(|| cluster.engine.cycle(cluster.now));
                    assert_eq!(outcome.decisions.len(), queues);
                    spent += time;
                    cluster.confirm(&outcome);
                    for decision in &outcome.decisions {
                        let object = cluster.object(&decision.workload);
                        cluster.finish(&decision.workload);
                        cluster.resubmit(object);
                    }
                }
                spent
            });
        });
    }
    group.finish();
}

/// The amounts in one queue's status, by the number of its running workloads.
fn status(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cluster_queue_status");
    for running in [10, 10_000] {
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default").queue(queue("busy", 1 << 30));
        for n in 0..running {
            cluster.submit(job(&format!("job-{n}"), "busy", 1000));
        }
        cluster.settle();
        group.bench_function(BenchmarkId::new("running", running), |bencher| {
            bencher.iter_custom(|rounds| {
                timed(|| (0..rounds).for_each(|_| drop(black_box(cluster.engine.cluster_queue_status("busy"))))).0
            });
        });
    }
    group.finish();
}

/// Measures the explanation of the last workload of a queue whose quota thousands of workloads
/// hold, and the first page of the queue.
fn explanations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("explanations");
    group.sample_size(20);
    for waiting in [1_000, 100_000] {
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default").queue(queue("busy", 5_000));
        for n in 0..5_000 + waiting {
            cluster.submit(job(&format!("job-{n}"), "busy", 1000));
        }
        cluster.settle();
        let pending = cluster.engine.pending("busy");
        assert_eq!(pending.len(), waiting);
        let last = pending.last().expect("many workloads wait").workload.clone();
        group.bench_function(BenchmarkId::new("explain_the_last_of", waiting), |bencher| {
            bencher.iter_custom(|rounds| {
                let now = cluster.now;
                timed(|| (0..rounds).for_each(|_| drop(black_box(cluster.engine.explain(&last, now))))).0
            });
        });
        group.bench_function(BenchmarkId::new("first_page_of", waiting), |bencher| {
            bencher.iter_custom(|rounds| {
                let page = || cluster.engine.pending_part("busy", None, 0..50);
                timed(|| (0..rounds).for_each(|_| drop(black_box(page())))).0
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    targets = one_admission, cycle_of_admissions, nothing_admissible, drain, depth, preemption,
        fair_sharing, status, explanations
}
criterion_main!(benches);
