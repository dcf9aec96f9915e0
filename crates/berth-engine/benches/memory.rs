//! What a waiting workload takes in memory, and what the hot path allocates: printed, not timed.

#[expect(dead_code, reason = "nothing is admitted here but in one cycle")]
mod cluster;

use std::alloc::System;

use berth_engine::Event;
use berth_engine::model::Workload;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

use cluster::{Platform, job, queue};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() {
    waiting();
    admissions();
}

/// Prints what a waiting workload takes, its object translated and its place in the queue.
fn waiting() {
    let workloads = 100_000;
    for (name, shapes) in [("alike", 1), ("each of its own shape", workloads)] {
        let mut platform = Platform::new(|_| {});
        platform.flavor("default").queue(queue("full", 0));
        let objects: Vec<Workload> =
            (0..workloads).map(|n| job(&format!("job-{n:06}"), "full", 1000 + (n % shapes) as i64).into()).collect();
        let before = Region::new(ALLOCATOR);
        // The objects stay, so that neither they nor what they share with the engine are counted
        // as given back.
        for object in &objects {
            platform.engine.apply(Event::WorkloadUpserted(Box::new(object.clone())), platform.now);
        }
        let change = before.change();
        let bytes = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
        println!("memory: {} bytes per waiting workload ({workloads} waiting, {name})", bytes / workloads as i64);
    }
}

/// Prints what a cycle allocates per admission.
fn admissions() {
    let mut platform = Platform::new(|_| {});
    platform.flavor("default");
    for at in 0..100 {
        let name = format!("queue-{at}");
        platform.queue(queue(&name, 1000).with(|it| it.cohort = Some("all".into())));
        for n in 0..50 {
            platform.submit(job(&format!("job-{at}-{n}"), &name, 1000 + n % 3));
        }
    }
    let region = Region::new(ALLOCATOR);
    let outcome = platform.engine.cycle(platform.now);
    let change = region.change();
    let admitted = outcome.decisions.len();
    println!(
        "allocations: {} per admission ({} bytes)",
        change.allocations / admitted,
        change.bytes_allocated / admitted
    );
}
