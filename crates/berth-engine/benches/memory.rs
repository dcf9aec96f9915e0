//! Memory of a waiting workload, and allocations of the hot path. The results are printed, not
//! timed.

#[expect(dead_code, reason = "this bench admits in one cycle only")]
mod cluster;

use std::alloc::System;

use berth_engine::Event;
use berth_engine::model::Workload;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use cluster::{Cluster, job, queue};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    waiting();
    admissions();
}

/// Prints the memory of a waiting workload: its translated object and its place in the queue.
fn waiting() {
    let workloads = 100_000;
    for (name, shapes) in [("alike", 1), ("each of its own shape", workloads)] {
        let mut cluster = Cluster::new(|_| {});
        cluster.flavor("default").queue(queue("full", 0));
        let objects: Vec<Workload> =
            (0..workloads).map(|n| job(&format!("job-{n:06}"), "full", 1000 + (n % shapes) as i64).into()).collect();
        let before = Region::new(ALLOCATOR);
        // The objects are kept, so that neither they nor what they share with the engine count as
        // freed.
        for object in &objects {
            cluster.engine.apply(Event::WorkloadUpserted(Box::new(object.clone())), cluster.now);
        }
        let change = before.change();
        let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
        println!("memory: {} bytes per waiting workload ({workloads} waiting, {name})", bytes / workloads as i64);
    }
}

/// Prints the number of allocations of a cycle per admission.
fn admissions() {
    let mut cluster = Cluster::new(|_| {});
    cluster.flavor("default");
    for at in 0..100 {
        let name = format!("queue-{at}");
        cluster.queue(queue(&name, 1000).with(|it| it.cohort = Some("all".into())));
        for n in 0..50 {
            cluster.submit(job(&format!("job-{at}-{n}"), &name, 1000 + n % 3));
        }
    }
    let region = Region::new(ALLOCATOR);
    let outcome = cluster.engine.cycle(cluster.now);
    let change = region.change();
    let admitted = outcome.decisions.len();
    println!(
        "allocations: {} per admission ({} bytes)",
        change.allocations / admitted,
        change.bytes_allocated / admitted
    );
}
