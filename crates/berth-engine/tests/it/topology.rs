//! Pods in topology domains.

use std::sync::Arc;

use berth_engine::model::{NodePod, PodTemplate, ResourceFlavor};
use berth_engine::{Event, Name};

use crate::cluster::{HOSTNAME, Platform, job, queue};

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
fn node_capacity_is_counted_across_workloads_and_released() {
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

#[test]
fn only_nodes_that_are_ready_schedulable_and_have_every_label_serve_a_flavor() {
    let mut platform = Platform::new();
    platform.topology("racks", &["rack", HOSTNAME]).flavor_with("gpu", |flavor| {
        flavor.topology = Some(Name::from("racks"));
        flavor.node_labels = [(Name::from("pool"), Name::from("gpu"))].into();
    });
    platform.queue(queue("a").flavor("gpu", 100));
    let labels = [("pool", "gpu"), ("rack", "r1")];
    platform.node("good", &labels, 1);
    platform.node_with("away", &labels, 1, |node| node.ready = false);
    platform.node_with("cordoned", &labels, 1, |node| node.unschedulable = true);
    platform.node("other-pool", &[("pool", "cpu"), ("rack", "r1")], 1).node("no-rack", &[("pool", "gpu")], 1);
    platform.submit(job("gang", "a", 1).pods(5, None).required("rack"));
    for (fits, mended) in ["away", "cordoned", "other-pool", "no-rack"].into_iter().enumerate() {
        let lines = platform.cycle();
        let message = format!("allows to fit only {} out of 5 pod(s)", fits + 1);
        assert!(lines[0].ends_with(&message), "{lines:?}");
        platform.node(mended, &labels, 1);
    }
    platform.settle();
    assert_eq!(platform.hosts("gang").len(), 5);
}

#[test]
fn a_domain_is_all_its_values_and_holds_what_its_nodes_hold() {
    let mut platform = Platform::new();
    platform.topology("blocks", &["block", "rack"]).flavor_with("gpu", |it| it.topology = Some(Name::from("blocks")));
    platform.queue(queue("a").flavor("gpu", 100));
    let rack = |block: &'static str| [("block", block), ("rack", "r1")];
    platform.node("n1", &rack("b1"), 1).node("n2", &rack("b1"), 1).node("n3", &rack("b2"), 1);
    platform.submit(job("three", "a", 1).pods(3, None).required("rack"));
    let lines = platform.cycle();
    assert!(lines[0].ends_with("allows to fit only 2 out of 3 pod(s)"), "{lines:?}");
    platform.submit(job("two", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(platform.hosts("two"), [("b1/r1".to_owned(), 2)]);
}

#[test]
fn pods_outside_topology_aware_scheduling_take_what_they_ask_for_and_one_of_pods() {
    let daemon = |cores: i64| {
        let requests = [(Name::from("cpu"), cores * 1000)].into();
        let (namespace, name, node) = (Name::from("kube-system"), Name::from("logs"), Name::from("host"));
        Event::NodePodUpserted(NodePod { namespace, name, node, requests })
    };
    for (cores, fits) in [(0, 2), (7, 1)] {
        let mut platform = Platform::new();
        platform.racks("gpu", &[]).queue(queue("a").flavor("gpu", 100));
        platform.node_with("host", &[("rack", "r1")], 8, |node| _ = node.allocatable.insert(Name::from("pods"), 3));
        platform.apply(daemon(cores));
        platform.submit(job("gang", "a", 1).pods(3, None).required("rack"));
        let lines = platform.cycle();
        assert!(lines[0].ends_with(&format!("allows to fit only {fits} out of 3 pod(s)")), "{lines:?}");
        platform.apply(Event::NodePodRemoved { namespace: Name::from("kube-system"), name: Name::from("logs") });
        platform.settle();
        assert_eq!(platform.hosts("gang"), [("host".to_owned(), 3)]);
    }
}

#[test]
fn nodes_are_filled_by_what_pods_ask_for_themselves_not_by_what_quota_counts() {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[3])]).queue(queue("a").flavor("gpu", 100));
    let small_in_quota = |name: &str| {
        let template = PodTemplate { requests: [(Name::from("cpu"), 2000)].into(), ..PodTemplate::default() };
        job(name, "a", 1).required("rack").template(|pods| *pods = template)
    };
    platform.submit(small_in_quota("one")).submit(small_in_quota("two")).settle();
    assert_eq!(platform.running(), ["one"]);
}

/// Two flavors over the same nodes, with a queue each.
fn overlapping(levels: &[&str], shared: bool) -> Platform {
    let mut platform = Platform::with(|config| config.gates.tas_handle_overlapping_flavors = shared);
    platform.topology("t", levels).node("host", &[("rack", "r1")], 4);
    let with_topology = |flavor: &mut ResourceFlavor| flavor.topology = Some(Name::from("t"));
    platform.flavor_with("x", with_topology).flavor_with("y", with_topology);
    platform.queue(queue("a").flavor("x", 3)).queue(queue("b").flavor("y", 3));
    platform.queue(queue("both").flavor("x", 3).flavor("y", 3));
    platform
}

#[test]
fn a_node_is_filled_once_whatever_flavors_it_is_used_through() {
    for (levels, shared, running) in [
        (&["rack", HOSTNAME][..], true, vec!["one"]),
        (&["rack", HOSTNAME], false, vec!["one", "two"]),
        // Domains above nodes are counted flavor by flavor.
        (&["rack"], true, vec!["one", "two"]),
    ] {
        let mut platform = overlapping(levels, shared);
        platform.submit(job("one", "a", 3)).submit(job("two", "b", 3)).settle();
        assert_eq!(platform.running(), running, "{levels:?} {shared}");
    }
}

#[test]
fn pod_sets_of_one_workload_in_several_flavors_see_each_other() {
    for (shared, running) in [(true, 0), (false, 1)] {
        let mut platform = overlapping(&["rack", HOSTNAME], shared);
        platform.submit(job("wide", "both", 3).pod_set("side", 1, 3)).settle();
        assert_eq!(platform.running().len(), running);
    }
}

/// One goes through three flavors and the other through two of them: only the fourth search finds
/// capacity for both.
#[test]
fn pod_sets_with_rounds_of_different_length_come_to_all_combinations() {
    let mut platform = Platform::new();
    platform.topology("t", &["rack", HOSTNAME]);
    for (name, large, cores) in [("x", "no", 4), ("y", "yes", 1), ("z", "yes", 3)] {
        let labels = [("pool", name), ("large", large)];
        platform.node(name, &[("rack", "r1"), labels[0], labels[1]], cores);
        platform.flavor_with(name, |flavor| {
            flavor.topology = Some(Name::from("t"));
            flavor.node_labels = labels.iter().map(|(key, value)| (Name::from(*key), Name::from(*value))).collect();
        });
    }
    platform.queue(queue("all").flavor("x", 9).flavor("y", 9).flavor("z", 9));
    let wide = job("wide", "all", 4).pod_set("side", 1, 3).with(|workload| {
        let selector = [(Name::from("large"), Name::from("yes"))].into();
        workload.pod_sets[1].template = Arc::new(PodTemplate {
            node_selector: selector,
            requests: [(Name::from("cpu"), 3000)].into(),
            ..PodTemplate::default()
        });
    });
    let lines = platform.submit(wide).settle();
    assert_eq!(platform.running(), ["wide"], "{lines:#?}");
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

#[test]
fn pod_sets_that_start_over_with_their_flavors_in_turns_come_to_rest() {
    let mut platform = overlapping(&["rack", HOSTNAME], true);
    platform.submit(job("wide", "both", 3).pod_set("side", 1, 3));
    // By quota one goes to x and the other to y, then the other way round.
    let lines = platform.settle();
    assert!((2..=6).contains(&lines.len()), "{lines:?}");
    assert!(platform.engine.pending("both")[0].inadmissible);
    // A change gives it another chance.
    platform.node("more", &[("rack", "r1")], 4).settle();
    assert_eq!(platform.running(), ["wide"]);
}
