//! Pods in topology domains.

use berth_engine::Event;

use crate::platform::{Platform, job, queue};

fn two_racks() -> Platform {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[4, 4]), ("r2", &[4, 2])]).queue(queue("a").flavor("gpu", 100));
    platform
}

#[test]
fn a_required_level_keeps_pods_in_one_domain_and_takes_the_tightest() {
    let mut platform = two_racks();
    platform.submit(job("gang", "a", 2).pods(3, None).required("rack")).settle();
    assert_eq!(platform.hosts("gang"), [("r2-0".to_owned(), 2), ("r2-1".to_owned(), 1)]);
    platform.submit(job("wide", "a", 4).pods(2, None).required("rack")).settle();
    assert_eq!(platform.hosts("wide"), [("r1-0".to_owned(), 1), ("r1-1".to_owned(), 1)]);
}

#[test]
fn what_fits_in_no_domain_says_how_much_would() {
    let mut platform = two_racks();
    platform.submit(job("gang", "a", 2).pods(5, None).required("rack"));
    assert_eq!(
        platform.cycle(),
        ["gang waits: TopologyPlacementFailed: couldn't assign flavors to pod set main: topology \"racks\" allows to \
             fit only 4 out of 5 pod(s)"]
    );
}

#[test]
fn room_on_nodes_is_counted_across_workloads_and_given_back() {
    let mut platform = two_racks();
    platform.submit(job("one", "a", 4).pods(2, None).required("rack")).settle();
    platform.submit(job("two", "a", 4).pods(2, None).required("rack")).settle();
    assert_eq!(platform.running(), ["one"]);
    platform.finish("one");
    platform.settle();
    assert_eq!(platform.hosts("two"), [("r1-0".to_owned(), 1), ("r1-1".to_owned(), 1)]);
}

#[test]
fn a_failed_node_is_replaced_and_the_other_pods_stay() {
    let mut platform = two_racks();
    platform.submit(job("gang", "a", 1).pods(6, None).required("rack")).settle();
    assert_eq!(platform.hosts("gang"), [("r2-0".to_owned(), 4), ("r2-1".to_owned(), 2)]);
    platform.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(platform.hosts("pair"), [("r1-0".to_owned(), 2)]);
    platform.apply(Event::NodeRemoved("r1-0".into()));
    platform.update("pair", |workload| workload.unhealthy_nodes = vec!["r1-0".into()]);
    platform.now = platform.now.after(std::time::Duration::from_secs(2));
    platform.settle();
    assert_eq!(platform.hosts("pair"), [("r1-1".to_owned(), 2)]);
}
