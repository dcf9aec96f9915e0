//! Topology requests of pod sets, and the flavors that can serve them (§14.2–§14.4, §14.9).

use berth_engine::model::{ClusterQueue, FlavorQuotas, Quota, ResourceGroup, TopologyMode, Workload};
use berth_engine::{Amount, Name};

use crate::cluster::{Cluster, HOSTNAME, Job, job, queue};

/// A group of one resource and one flavor.
fn group(resource: &str, flavor: &str, amount: i64) -> impl FnOnce(&mut ClusterQueue) {
    let quota = Quota { nominal: Amount::Bounded(amount), borrowing_limit: None, lending_limit: None };
    let resource = Name::from(resource);
    let flavors = vec![FlavorQuotas { flavor: Name::from(flavor), quotas: vec![(resource.clone(), quota)] }];
    move |queue| queue.resource_groups.push(ResourceGroup { resources: vec![resource], flavors })
}

/// Adds one unit of a resource to the quota that is requested and, if `of_pods` is set, to the
/// requests of the pods themselves.
fn asks(resource: &str, of_pods: bool) -> impl FnOnce(&mut Workload) {
    let resource = Name::from(resource);
    move |workload| {
        let set = &mut workload.pod_sets[0];
        set.requests.insert(resource.clone(), 1);
        if of_pods {
            let mut template = (*set.template).clone();
            template.requests.insert(resource, 1);
            set.template = template.into();
        }
    }
}

/// Two racks of two nodes with two cores each.
fn racks() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 2])]);
    cluster
}

fn outcome_of(cluster: &mut Cluster, job: Job) -> String {
    cluster.submit(job);
    cluster.cycle().join("; ")
}

#[test]
fn a_topology_request_needs_a_flavor_with_a_topology_and_vice_versa() {
    let mut cluster = racks();
    cluster.flavor("plain").queue(queue("a").flavor("plain", 1).flavor("gpu", 2));
    let line = outcome_of(&mut cluster, job("asks", "a", 3).required("rack"));
    assert!(line.contains("Flavor \"plain\" does not support TopologyAwareScheduling"), "{line}");
    let line = outcome_of(&mut cluster, job("asks-not", "a", 2));
    assert!(line.contains("Flavor \"gpu\" supports only TopologyAwareScheduling"), "{line}");
    assert_eq!(outcome_of(&mut cluster, job("fits", "a", 1).required("rack")), "admit fits on gpu x1");
}

#[test]
fn a_flavor_for_resources_that_the_pods_do_not_request_needs_no_topology() {
    let with_licences = || queue("a").flavor("gpu", 8).with(group("licences", "plain", 8));
    let mut cluster = racks();
    cluster.flavor("plain").queue(with_licences());
    let transformed = job("transformed", "a", 1).required("rack").with(asks("licences", false));
    assert_eq!(outcome_of(&mut cluster, transformed), "admit transformed on gpu x1");
    let line = outcome_of(&mut cluster, job("own", "a", 1).required("rack").with(asks("licences", true)));
    assert!(line.ends_with("Flavor \"plain\" does not support TopologyAwareScheduling"), "{line}");
}

#[test]
fn a_pod_set_must_have_exactly_one_flavor_with_a_topology() {
    let mut cluster = racks();
    cluster.flavor("plain").flavor_with("other", |flavor| flavor.topology = Some(Name::from("racks")));
    let groups = queue("a").flavor("gpu", 8).with(group("nics", "other", 8)).with(group("licences", "plain", 8));
    cluster.queue(groups);
    let line = outcome_of(&mut cluster, job("two", "a", 1).required("rack").with(asks("nics", true)));
    assert!(line.ends_with("more than one TAS flavor assigned: gpu, other"), "{line}");
    let only_licences = job("none", "a", 1).required("rack").with(|workload| {
        let set = &mut workload.pod_sets[0];
        set.requests = [(Name::from("licences"), 1)].into();
        set.template = Default::default();
    });
    let line = outcome_of(&mut cluster, only_licences.clone());
    assert!(line.ends_with("no TAS flavor assigned"), "{line}");
    let mut cluster = Cluster::new();
    cluster.flavor("plain").queue(queue("a").with(group("licences", "plain", 8)));
    let line = outcome_of(&mut cluster, only_licences);
    assert!(line.ends_with("workload requires Topology, but there is no TAS cache information"), "{line}");
}

#[test]
fn pods_without_a_request_are_placed_if_all_flavors_have_topologies() {
    let mut cluster = racks();
    cluster.queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("implied", "a", 1).pods(7, None)).settle();
    assert_eq!(cluster.hosts("implied").iter().map(|(_, count)| count).sum::<i32>(), 7);
}

#[test]
fn slices_without_a_level_may_go_to_any_domains_but_stay_whole() {
    let mut cluster = racks();
    cluster.queue(queue("a").flavor("gpu", 8));
    cluster.submit(job("sliced", "a", 1).pods(6, None).slices("rack", 3)).settle();
    let hosts = cluster.hosts("sliced");
    let on = |rack: &str| hosts.iter().filter(|it| it.0.starts_with(rack)).map(|it| it.1).sum::<i32>();
    assert_eq!((on("r1"), on("r2")), (3, 3), "{hosts:?}");
}

#[test]
fn conflicting_levels_and_sizes_are_reported() {
    let mut cluster = racks();
    cluster.queue(queue("a").flavor("gpu", 8));
    for (name, ask, problem) in [
        (
            "above",
            job("above", "a", 1).required(HOSTNAME).slices("rack", 1),
            "podset slice topology rack is above the podset topology kubernetes.io/hostname",
        ),
        (
            "no-size",
            job("no-size", "a", 1).required("rack").slices(HOSTNAME, 0),
            "slice topology requested, but slice size not provided",
        ),
        (
            "layers",
            job("layers", "a", 1).pods(4, None).required("rack").slices("rack", 4).slices(HOSTNAME, 3),
            "podset slice topology kubernetes.io/hostname must be below rack and its size must divide 4",
        ),
        (
            "same-level",
            job("same-level", "a", 1).pods(4, None).required("rack").slices("rack", 4).slices("rack", 2),
            "podset slice topology rack must be below rack and its size must divide 4",
        ),
        ("row", job("row", "a", 1).slices("row", 1), "Flavor \"gpu\" does not contain the requested level"),
    ] {
        let line = outcome_of(&mut cluster, ask);
        assert!(line.ends_with(problem), "{name}: {line}");
    }
}

#[test]
fn layers_within_slices_are_used_only_with_their_gate() {
    let ask = || job("layers", "a", 1).pods(4, None).required("rack").slices("rack", 4).slices(HOSTNAME, 3);
    let mut cluster = Cluster::with(|config| config.gates.tas_multi_layer_topology = false);
    cluster.racks("gpu", &[("r1", &[2, 2])]).queue(queue("a").flavor("gpu", 8));
    assert_eq!(outcome_of(&mut cluster, ask()), "admit layers on gpu x4");
}

#[test]
fn a_pod_set_without_pods_needs_no_domain() {
    let mut cluster = racks();
    cluster.queue(queue("a").flavor("gpu", 8));
    let empty = job("gang", "a", 1).required("rack").pod_set("nobody", 0, 1).required("rack");
    cluster.submit(empty).settle();
    assert_eq!((cluster.hosts("gang").len(), cluster.hosts_of("gang", 1).len()), (1, 0));
}

fn grouped(job: Job) -> Job {
    job.required("rack").topology(|request| request.group = Some(Name::from("group")))
}

#[test]
fn the_smaller_pod_set_of_a_group_leads_and_both_share_the_domain() {
    for leader_first in [true, false] {
        let mut cluster = Cluster::new();
        cluster.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 3])]).queue(queue("a").flavor("gpu", 8));
        let (first, second) = if leader_first { ((1, 2), (3, 1)) } else { ((3, 1), (1, 2)) };
        let gang = grouped(job("gang", "a", first.1).pods(first.0, None));
        cluster.submit(grouped(gang.pod_set("second", second.0, second.1))).settle();
        let (leader, workers) = if leader_first { (0, 1) } else { (1, 0) };
        let (leader, workers) = (cluster.hosts_of("gang", leader), cluster.hosts_of("gang", workers));
        assert_eq!(workers.iter().map(|it| it.1).sum::<i32>(), 3, "{workers:?}");
        assert_eq!(leader.len(), 1);
        assert!(leader.iter().chain(&workers).all(|it| it.0.starts_with("r2")), "{leader:?} {workers:?}");
    }
}

#[test]
fn the_second_of_two_equal_pod_sets_leads() {
    let mut cluster = racks();
    cluster.queue(queue("a").flavor("gpu", 100));
    // Nodes are excluded by the request of the workers.
    let line = outcome_of(&mut cluster, grouped(grouped(job("gang", "a", 9)).pod_set("second", 1, 1)));
    assert!(line.ends_with("Total nodes: 4; excluded: resource \"cpu\": 4"), "{line}");
    let line = outcome_of(&mut cluster, grouped(grouped(job("other", "a", 1)).pod_set("second", 1, 9)));
    assert!(!line.contains("excluded"), "{line}");
}

#[test]
fn flavors_are_placed_in_name_order_and_share_node_capacity() {
    let mut cluster = Cluster::new();
    cluster.racks("x", &[("r1", &[2, 3])]);
    cluster.flavor_with("y", |flavor| flavor.topology = Some(Name::from("racks")));
    cluster.queue(queue("a").flavor("x", 1).flavor("y", 2));
    let gang = job("gang", "a", 1).pods(2, None).placed(TopologyMode::Unconstrained);
    cluster.submit(gang.pod_set("side", 1, 1).placed(TopologyMode::Unconstrained)).settle();
    assert_eq!(cluster.hosts_of("gang", 1), [("r1-0".to_owned(), 1)]);
    assert_eq!(cluster.hosts("gang"), [("r1-1".to_owned(), 2)]);
}
