//! Placement of pods in topology domains.

use std::sync::Arc;

use berth_engine::model::{NodePod, PodTemplate, ResourceFlavor, WorkloadKey};
use berth_engine::{Event, Name};

use crate::cluster::{Cluster, HOSTNAME, job, queue};

fn two_racks() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[4, 4]), ("r2", &[4, 2])]).queue(queue("a").flavor("gpu", 100));
    cluster
}

#[test]
fn pods_with_a_required_level_are_placed_in_the_tightest_domain() {
    let mut cluster = two_racks();
    cluster.submit(job("gang", "a", 2).pods(3, None).required("rack")).settle();
    assert_eq!(cluster.hosts("gang"), [("r2-0".to_owned(), 2), ("r2-1".to_owned(), 1)]);
    cluster.submit(job("wide", "a", 4).pods(2, None).required("rack")).settle();
    assert_eq!(cluster.hosts("wide"), [("r1-0".to_owned(), 1), ("r1-1".to_owned(), 1)]);
}

#[test]
fn a_gang_that_fits_in_no_domain_reports_how_many_pods_fit() {
    let mut cluster = two_racks();
    cluster.submit(job("gang", "a", 2).pods(5, None).required("rack"));
    assert_eq!(
        cluster.cycle(),
        ["gang waits: TopologyPlacementFailed: couldn't assign flavors to pod set main: topology \"racks\" allows to \
             fit only 4 out of 5 pod(s)"]
    );
}

#[test]
fn capacity_of_nodes_is_shared_by_workloads_and_released() {
    let mut cluster = two_racks();
    cluster.submit(job("one", "a", 4).pods(2, None).required("rack")).settle();
    cluster.submit(job("two", "a", 4).pods(2, None).required("rack")).settle();
    assert_eq!(cluster.running(), ["one"]);
    cluster.finish("one");
    cluster.settle();
    assert_eq!(cluster.hosts("two"), [("r1-0".to_owned(), 1), ("r1-1".to_owned(), 1)]);
}

#[test]
fn places_are_counted_also_if_a_workload_is_known_before_its_flavor() {
    let mut before = two_racks();
    before.submit(job("one", "a", 4).pods(3, None).preferred("rack")).settle();
    let admission = before.engine.admission(&WorkloadKey::new("default", "one")).expect("it is admitted").clone();
    // The process starts again, and hears of the flavor last.
    let mut after = Cluster::new();
    after.topology("racks", &["rack", HOSTNAME]).queue(queue("a").flavor("gpu", 100));
    for (host, rack, cores) in [("r1-0", "r1", 4), ("r1-1", "r1", 4), ("r2-0", "r2", 4), ("r2-1", "r2", 2)] {
        after.node(host, &[("rack", rack)], cores);
    }
    after.submit(job("one", "a", 4).pods(3, None).preferred("rack").with(|workload| {
        workload.admission = Some(admission);
        workload.admitted = true;
    }));
    after.submit(job("two", "a", 4).required("rack"));
    after.flavor_with("gpu", |flavor| flavor.topology = Some(Name::from("racks"))).settle();
    assert_eq!(after.running(), ["one"], "every node with 4 cores is used");
    after.finish("one").settle();
    assert_eq!(after.running(), ["two"]);
}

#[test]
fn a_failed_node_is_replaced_and_the_other_pods_stay() {
    let mut cluster = two_racks();
    cluster.submit(job("gang", "a", 1).pods(6, None).required("rack")).settle();
    assert_eq!(cluster.hosts("gang"), [("r2-0".to_owned(), 4), ("r2-1".to_owned(), 2)]);
    cluster.submit(job("pair", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(cluster.hosts("pair"), [("r1-0".to_owned(), 2)]);
    cluster.apply(Event::NodeRemoved("r1-0".into()));
    cluster.update("pair", |workload| workload.unhealthy_nodes = vec!["r1-0".into()]);
    cluster.now = cluster.now.after(std::time::Duration::from_secs(2));
    cluster.settle();
    assert_eq!(cluster.hosts("pair"), [("r1-1".to_owned(), 2)]);
}

#[test]
fn only_nodes_that_are_ready_schedulable_and_have_every_label_serve_a_flavor() {
    let mut cluster = Cluster::new();
    cluster.topology("racks", &["rack", HOSTNAME]).flavor_with("gpu", |flavor| {
        flavor.topology = Some(Name::from("racks"));
        flavor.node_labels = [(Name::from("pool"), Name::from("gpu"))].into();
    });
    cluster.queue(queue("a").flavor("gpu", 100));
    let labels = [("pool", "gpu"), ("rack", "r1")];
    cluster.node("good", &labels, 1);
    cluster.node_with("away", &labels, 1, |node| node.ready = false);
    cluster.node_with("cordoned", &labels, 1, |node| node.unschedulable = true);
    cluster.node("other-pool", &[("pool", "cpu"), ("rack", "r1")], 1).node("no-rack", &[("pool", "gpu")], 1);
    cluster.submit(job("gang", "a", 1).pods(5, None).required("rack"));
    for (fits, mended) in ["away", "cordoned", "other-pool", "no-rack"].into_iter().enumerate() {
        let lines = cluster.cycle();
        let message = format!("allows to fit only {} out of 5 pod(s)", fits + 1);
        assert!(lines[0].ends_with(&message), "{lines:?}");
        cluster.node(mended, &labels, 1);
    }
    cluster.settle();
    assert_eq!(cluster.hosts("gang").len(), 5);
}

#[test]
fn a_domain_is_identified_by_all_its_values_and_has_the_capacity_of_its_nodes() {
    let mut cluster = Cluster::new();
    cluster.topology("blocks", &["block", "rack"]).flavor_with("gpu", |it| it.topology = Some(Name::from("blocks")));
    cluster.queue(queue("a").flavor("gpu", 100));
    let rack = |block: &'static str| [("block", block), ("rack", "r1")];
    cluster.node("n1", &rack("b1"), 1).node("n2", &rack("b1"), 1).node("n3", &rack("b2"), 1);
    cluster.submit(job("three", "a", 1).pods(3, None).required("rack"));
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("allows to fit only 2 out of 3 pod(s)"), "{lines:?}");
    cluster.submit(job("two", "a", 1).pods(2, None).required("rack")).settle();
    assert_eq!(cluster.hosts("two"), [("b1/r1".to_owned(), 2)]);
}

#[test]
fn pods_outside_topology_aware_scheduling_use_their_requests_and_one_of_pods() {
    let daemon = |cores: i64| {
        let requests = [(Name::from("cpu"), cores * 1000)].into();
        let (namespace, name, node) = (Name::from("kube-system"), Name::from("logs"), Name::from("host"));
        Event::NodePodUpserted(NodePod { namespace, name, node, requests })
    };
    for (cores, fits) in [(0, 2), (7, 1)] {
        let mut cluster = Cluster::new();
        cluster.racks("gpu", &[]).queue(queue("a").flavor("gpu", 100));
        cluster.node_with("host", &[("rack", "r1")], 8, |node| _ = node.allocatable.insert(Name::from("pods"), 3));
        cluster.apply(daemon(cores));
        cluster.submit(job("gang", "a", 1).pods(3, None).required("rack"));
        let lines = cluster.cycle();
        assert!(lines[0].ends_with(&format!("allows to fit only {fits} out of 3 pod(s)")), "{lines:?}");
        cluster.apply(Event::NodePodRemoved { namespace: Name::from("kube-system"), name: Name::from("logs") });
        cluster.settle();
        assert_eq!(cluster.hosts("gang"), [("host".to_owned(), 3)]);
    }
}

#[test]
fn node_capacity_is_used_by_pod_requests_not_by_counted_quota() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[3])]).queue(queue("a").flavor("gpu", 100));
    let small_in_quota = |name: &str| {
        let template = PodTemplate { requests: [(Name::from("cpu"), 2000)].into(), ..PodTemplate::default() };
        job(name, "a", 1).required("rack").template(|pods| *pods = template)
    };
    cluster.submit(small_in_quota("one")).submit(small_in_quota("two")).settle();
    assert_eq!(cluster.running(), ["one"]);
}

/// Two flavors over the same nodes, with a queue each.
fn overlapping(levels: &[&str], shared: bool) -> Cluster {
    let mut cluster = Cluster::with(|config| config.gates.tas_handle_overlapping_flavors = shared);
    cluster.topology("t", levels).node("host", &[("rack", "r1")], 4);
    let with_topology = |flavor: &mut ResourceFlavor| flavor.topology = Some(Name::from("t"));
    cluster.flavor_with("x", with_topology).flavor_with("y", with_topology);
    cluster.queue(queue("a").flavor("x", 3)).queue(queue("b").flavor("y", 3));
    cluster.queue(queue("both").flavor("x", 3).flavor("y", 3));
    cluster
}

#[test]
fn usage_of_a_node_counts_in_all_flavors_that_it_serves() {
    for (levels, shared, running) in [
        (&["rack", HOSTNAME][..], true, vec!["one"]),
        (&["rack", HOSTNAME], false, vec!["one", "two"]),
        // Domains above nodes are counted separately for each flavor.
        (&["rack"], true, vec!["one", "two"]),
    ] {
        let mut cluster = overlapping(levels, shared);
        cluster.submit(job("one", "a", 3)).submit(job("two", "b", 3)).settle();
        assert_eq!(cluster.running(), running, "{levels:?} {shared}");
    }
}

#[test]
fn pod_sets_of_one_workload_in_several_flavors_share_node_capacity() {
    for (shared, running) in [(true, 0), (false, 1)] {
        let mut cluster = overlapping(&["rack", HOSTNAME], shared);
        cluster.submit(job("wide", "both", 3).pod_set("side", 1, 3)).settle();
        assert_eq!(cluster.running().len(), running);
    }
}

/// One pod set goes through three flavors and the other through two of them. Only the fourth search
/// finds capacity for both.
#[test]
fn pod_sets_with_different_numbers_of_flavors_try_all_combinations() {
    let mut cluster = Cluster::new();
    cluster.topology("t", &["rack", HOSTNAME]);
    for (name, large, cores) in [("x", "no", 4), ("y", "yes", 1), ("z", "yes", 3)] {
        let labels = [("pool", name), ("large", large)];
        cluster.node(name, &[("rack", "r1"), labels[0], labels[1]], cores);
        cluster.flavor_with(name, |flavor| {
            flavor.topology = Some(Name::from("t"));
            flavor.node_labels = labels.iter().map(|(key, value)| (Name::from(*key), Name::from(*value))).collect();
        });
    }
    cluster.queue(queue("all").flavor("x", 9).flavor("y", 9).flavor("z", 9));
    let wide = job("wide", "all", 4).pod_set("side", 1, 3).with(|workload| {
        let selector = [(Name::from("large"), Name::from("yes"))].into();
        workload.pod_sets[1].template = Arc::new(PodTemplate {
            node_selector: selector,
            requests: [(Name::from("cpu"), 3000)].into(),
            ..PodTemplate::default()
        });
    });
    let lines = cluster.submit(wide).settle();
    assert_eq!(cluster.running(), ["wide"], "{lines:#?}");
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

#[test]
fn pod_sets_that_start_over_in_different_searches_stop_eventually() {
    let mut cluster = overlapping(&["rack", HOSTNAME], true);
    cluster.submit(job("wide", "both", 3).pod_set("side", 1, 3));
    // By quota one pod set goes to x and the other to y, then the other way round.
    let lines = cluster.settle();
    assert!((2..=6).contains(&lines.len()), "{lines:?}");
    assert!(cluster.engine.pending("both")[0].inadmissible);
    // A change lets it be tried again.
    cluster.node("more", &[("rack", "r1")], 4).settle();
    assert_eq!(cluster.running(), ["wide"]);
}
