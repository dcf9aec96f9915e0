//! What pod sets ask of a topology, and which flavors can serve them (§14.2–§14.4, §14.9).

use berth_engine::model::{ClusterQueue, FlavorQuotas, Quota, ResourceGroup, TopologyMode, Workload};
use berth_engine::{Amount, Name};

use crate::cluster::{HOSTNAME, Job, Platform, job, queue};

/// A group of one resource and one flavor.
fn group(resource: &str, flavor: &str, amount: i64) -> impl FnOnce(&mut ClusterQueue) {
    let quota = Quota { nominal: Amount::Bounded(amount), borrowing_limit: None, lending_limit: None };
    let resource = Name::from(resource);
    let flavors = vec![FlavorQuotas { flavor: Name::from(flavor), quotas: vec![(resource.clone(), quota)] }];
    move |queue| queue.resource_groups.push(ResourceGroup { resources: vec![resource], flavors })
}

/// Adds to what the quota is asked for, and perhaps to what the pods themselves ask for.
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
fn racks() -> Platform {
    let mut platform = Platform::new();
    platform.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 2])]);
    platform
}

fn outcome_of(platform: &mut Platform, job: Job) -> String {
    platform.submit(job);
    platform.cycle().join("; ")
}

#[test]
fn a_request_needs_a_flavor_with_a_topology_and_such_a_flavor_a_request() {
    let mut platform = racks();
    platform.flavor("plain").queue(queue("a").flavor("plain", 1).flavor("gpu", 2));
    let line = outcome_of(&mut platform, job("asks", "a", 3).required("rack"));
    assert!(line.contains("Flavor \"plain\" does not support TopologyAwareScheduling"), "{line}");
    let line = outcome_of(&mut platform, job("asks-not", "a", 2));
    assert!(line.contains("Flavor \"gpu\" supports only TopologyAwareScheduling"), "{line}");
    assert_eq!(outcome_of(&mut platform, job("fits", "a", 1).required("rack")), "admit fits on gpu x1");
}

#[test]
fn a_flavor_of_resources_that_the_pods_do_not_ask_for_needs_no_topology() {
    let with_licences = || queue("a").flavor("gpu", 8).with(group("licences", "plain", 8));
    let mut platform = racks();
    platform.flavor("plain").queue(with_licences());
    let transformed = job("transformed", "a", 1).required("rack").with(asks("licences", false));
    assert_eq!(outcome_of(&mut platform, transformed), "admit transformed on gpu x1");
    let line = outcome_of(&mut platform, job("own", "a", 1).required("rack").with(asks("licences", true)));
    assert!(line.ends_with("Flavor \"plain\" does not support TopologyAwareScheduling"), "{line}");
}

#[test]
fn one_flavor_with_a_topology_places_a_pod_set_neither_none_nor_two() {
    let mut platform = racks();
    platform.flavor("plain").flavor_with("other", |flavor| flavor.topology = Some(Name::from("racks")));
    let groups = queue("a").flavor("gpu", 8).with(group("nics", "other", 8)).with(group("licences", "plain", 8));
    platform.queue(groups);
    let line = outcome_of(&mut platform, job("two", "a", 1).required("rack").with(asks("nics", true)));
    assert!(line.ends_with("more than one TAS flavor assigned: gpu, other"), "{line}");
    let only_licences = job("none", "a", 1).required("rack").with(|workload| {
        let set = &mut workload.pod_sets[0];
        set.requests = [(Name::from("licences"), 1)].into();
        set.template = Default::default();
    });
    let line = outcome_of(&mut platform, only_licences.clone());
    assert!(line.ends_with("no TAS flavor assigned"), "{line}");
    let mut platform = Platform::new();
    platform.flavor("plain").queue(queue("a").with(group("licences", "plain", 8)));
    let line = outcome_of(&mut platform, only_licences);
    assert!(line.ends_with("workload requires Topology, but there is no TAS cache information"), "{line}");
}

#[test]
fn where_all_flavors_have_topologies_pods_that_ask_for_none_are_placed_on_any_nodes() {
    let mut platform = racks();
    platform.queue(queue("a").flavor("gpu", 8));
    platform.submit(job("implied", "a", 1).pods(7, None)).settle();
    assert_eq!(platform.hosts("implied").iter().map(|(_, count)| count).sum::<i32>(), 7);
}

#[test]
fn slices_alone_may_go_to_any_domains_but_stay_whole() {
    let mut platform = racks();
    platform.queue(queue("a").flavor("gpu", 8));
    platform.submit(job("sliced", "a", 1).pods(6, None).slices("rack", 3)).settle();
    let hosts = platform.hosts("sliced");
    let on = |rack: &str| hosts.iter().filter(|it| it.0.starts_with(rack)).map(|it| it.1).sum::<i32>();
    assert_eq!((on("r1"), on("r2")), (3, 3), "{hosts:?}");
}

#[test]
fn levels_and_sizes_that_do_not_go_together_are_named() {
    let mut platform = racks();
    platform.queue(queue("a").flavor("gpu", 8));
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
        let line = outcome_of(&mut platform, ask);
        assert!(line.ends_with(problem), "{name}: {line}");
    }
}

#[test]
fn layers_within_slices_count_only_with_their_gate() {
    let ask = || job("layers", "a", 1).pods(4, None).required("rack").slices("rack", 4).slices(HOSTNAME, 3);
    let mut platform = Platform::with(|config| config.gates.tas_multi_layer_topology = false);
    platform.racks("gpu", &[("r1", &[2, 2])]).queue(queue("a").flavor("gpu", 8));
    assert_eq!(outcome_of(&mut platform, ask()), "admit layers on gpu x4");
}

#[test]
fn a_pod_set_without_pods_needs_no_place() {
    let mut platform = racks();
    platform.queue(queue("a").flavor("gpu", 8));
    let empty = job("gang", "a", 1).required("rack").pod_set("nobody", 0, 1).required("rack");
    platform.submit(empty).settle();
    assert_eq!((platform.hosts("gang").len(), platform.hosts_of("gang", 1).len()), (1, 0));
}

fn grouped(job: Job) -> Job {
    job.required("rack").topology(|request| request.group = Some(Name::from("group")))
}

#[test]
fn the_smaller_pod_set_of_a_group_leads_and_both_share_the_domain() {
    for leader_first in [true, false] {
        let mut platform = Platform::new();
        platform.racks("gpu", &[("r1", &[2, 2]), ("r2", &[2, 3])]).queue(queue("a").flavor("gpu", 8));
        let (first, second) = if leader_first { ((1, 2), (3, 1)) } else { ((3, 1), (1, 2)) };
        let gang = grouped(job("gang", "a", first.1).pods(first.0, None));
        platform.submit(grouped(gang.pod_set("second", second.0, second.1))).settle();
        let (leader, workers) = if leader_first { (0, 1) } else { (1, 0) };
        let (leader, workers) = (platform.hosts_of("gang", leader), platform.hosts_of("gang", workers));
        assert_eq!(workers.iter().map(|it| it.1).sum::<i32>(), 3, "{workers:?}");
        assert_eq!(leader.len(), 1);
        assert!(leader.iter().chain(&workers).all(|it| it.0.starts_with("r2")), "{leader:?} {workers:?}");
    }
}

#[test]
fn of_two_pod_sets_of_one_size_the_second_leads() {
    let mut platform = racks();
    platform.queue(queue("a").flavor("gpu", 100));
    // Nodes are left out for what the workers ask.
    let line = outcome_of(&mut platform, grouped(grouped(job("gang", "a", 9)).pod_set("second", 1, 1)));
    assert!(line.ends_with("Total nodes: 4; excluded: resource \"cpu\": 4"), "{line}");
    let line = outcome_of(&mut platform, grouped(grouped(job("other", "a", 1)).pod_set("second", 1, 9)));
    assert!(!line.contains("excluded"), "{line}");
}

#[test]
fn flavors_are_filled_in_the_order_of_their_names_each_seeing_what_the_others_took() {
    let mut platform = Platform::new();
    platform.racks("x", &[("r1", &[2, 3])]);
    platform.flavor_with("y", |flavor| flavor.topology = Some(Name::from("racks")));
    platform.queue(queue("a").flavor("x", 1).flavor("y", 2));
    let gang = job("gang", "a", 1).pods(2, None).placed(TopologyMode::Unconstrained);
    platform.submit(gang.pod_set("side", 1, 1).placed(TopologyMode::Unconstrained)).settle();
    assert_eq!(platform.hosts_of("gang", 1), [("r1-0".to_owned(), 1)]);
    assert_eq!(platform.hosts("gang"), [("r1-1".to_owned(), 2)]);
}
