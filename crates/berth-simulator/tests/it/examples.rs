//! All expectations of the scenarios in `examples/` hold.

use std::collections::BTreeMap;
use std::path::Path;

fn run(name: &str) {
    run_file(&format!("examples/{name}/scenario.yaml"));
}

fn run_file(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
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
fn gangs_and_topology_aware_admission_place_the_same_jobs_alike() {
    run("gangs");
}

#[test]
fn cron_jobs_daemon_sets_and_autoscalers_run_beside_queued_jobs() {
    run("workloads");
}

#[test]
fn jobs_take_the_first_capacity_of_a_week_with_a_stock_out() {
    run("capacity");
}

#[test]
fn a_job_asks_for_capacity_in_two_pools_and_takes_the_first() {
    run("first-capacity");
}

#[test]
fn an_elastic_job_is_charged_for_its_growth_and_restarts_nothing() {
    run("elastic");
}

#[test]
fn a_job_leaves_a_flavor_whose_request_failed_within_a_second() {
    run_file("tests/scenarios/flavor-cool-down.yaml");
}

#[test]
fn provisioning_classes_change_while_the_cluster_runs_and_atomic_requests_share_no_machine() {
    run_file("tests/scenarios/provisioning-classes.yaml");
}

#[test]
fn a_pool_grows_for_claims_of_devices_and_devices_are_preempted_for() {
    run_file("tests/scenarios/device-pools.yaml");
}

#[test]
fn an_unhealthy_node_is_found_left_and_taken_out_of_the_quota() {
    run("node-health");
}

#[test]
fn ray_services_are_replaced_and_ray_jobs_are_retried_and_suspended() {
    run("ray");
}

#[test]
fn teams_share_gpus_and_a_job_leaves_an_unhealthy_node() {
    run("mlbatch");
}

#[test]
fn jobs_claim_devices_within_their_quota() {
    run("devices");
}
