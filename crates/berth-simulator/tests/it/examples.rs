//! All expectations of the scenarios in `examples/` hold.

use std::collections::BTreeMap;
use std::path::Path;

fn run(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("scenario.yaml");
    let mut report = String::new();
    let mut sink = |text: &str| report.push_str(text);
    let outcome = berth_simulator::run_in_virtual_time(&path, &BTreeMap::new(), &mut sink);
    let failed = outcome.map(|outcome| outcome.failed).unwrap_or_else(|error| panic!("{error}\n{report}"));
    assert_eq!(failed, 0, "{report}");
}

#[test]
fn pods_are_queued_alone_in_groups_and_through_their_controllers() {
    run("pods");
}

#[test]
fn a_job_starts_on_a_free_flavor_and_moves_to_the_preferred_one() {
    run("concurrent-admission");
}

#[test]
fn jobs_are_placed_in_racks_and_survive_the_loss_of_a_node() {
    run("topology");
}

#[test]
fn cron_jobs_daemon_sets_and_autoscalers_run_beside_queued_jobs() {
    run("workloads");
}

#[test]
fn ray_services_are_replaced_and_ray_jobs_are_retried_and_suspended() {
    run("ray");
}
