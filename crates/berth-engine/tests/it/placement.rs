//! Placement of pods (§14.5–§14.8): the nodes that count, the domains that are chosen, and the
//! messages if no placement is found.

use berth_engine::Name;
use berth_engine::model::{
    Node, NodeAffinity, Operator, PodTemplate, PreferredTerm, Requirement, SelectorTerm, Taint, TaintEffect,
    Toleration, TopologyMode,
};

use crate::cluster::{Cluster, HOSTNAME, Job, job, queue};

const BLOCKS: [&str; 3] = ["block", "rack", HOSTNAME];

fn tainted(key: &str, effect: TaintEffect) -> impl FnOnce(&mut Node) {
    let taint = Taint { key: Name::from(key), value: Name::from("yes"), effect };
    move |node| node.taints.push(taint)
}

fn tolerates(key: &str) -> Toleration {
    Toleration { key: Name::from(key), exists: true, value: Name::from(""), effect: None }
}

fn label(key: &str, value: &str) -> Requirement {
    Requirement { key: Name::from(key), operator: Operator::In, values: vec![Name::from(value)] }
}

fn hosts(list: &[(&str, i32)]) -> Vec<(String, i32)> {
    list.iter().map(|(host, count)| ((*host).to_owned(), *count)).collect()
}

/// Blocks of racks of hosts with these numbers of cores: `b1`, `b1-r1`, `b1-r1-1`.
fn blocks(cluster: &mut Cluster, blocks: &[&[&[i64]]]) {
    cluster.topology("blocks", &BLOCKS).flavor_with("gpu", |flavor| flavor.topology = Some(Name::from("blocks")));
    for (block, racks) in (1..).zip(blocks) {
        for (rack, hosts) in (1..).zip(*racks) {
            for (host, cores) in (1..).zip(*hosts) {
                let (block, rack) = (format!("b{block}"), format!("b{block}-r{rack}"));
                cluster.node(&format!("{rack}-{host}"), &[("block", &block), ("rack", &rack)], *cores);
            }
        }
    }
    cluster.queue(queue("a").flavor("gpu", 100));
}

#[test]
fn nodes_whose_taints_are_not_tolerated_are_left_out() {
    let rack = [("rack", "r1")];
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[]).queue(queue("a").flavor("gpu", 100));
    cluster.node_with("special", &rack, 1, tainted("special", TaintEffect::NoSchedule));
    cluster.node_with("leaving", &rack, 1, tainted("leaving", TaintEffect::NoExecute));
    cluster.node_with("avoided", &rack, 1, tainted("avoided", TaintEffect::PreferNoSchedule));
    cluster.submit(job("gang", "a", 1).pods(3, None).required("rack"));
    assert_eq!(
        cluster.cycle(),
        ["gang waits: TopologyPlacementFailed: couldn't assign flavors to pod set main: topology \"racks\" allows to \
             fit only 1 out of 3 pod(s). Total nodes: 3; excluded: taint \"leaving=yes:NoExecute\": 1, taint \
             \"special=yes:NoSchedule\": 1"]
    );
    // The flavor tolerates one taint for all its pods, these pods tolerate the other.
    cluster.flavor_with("gpu", |flavor| {
        flavor.topology = Some(Name::from("racks"));
        flavor.tolerations = vec![tolerates("leaving")];
    });
    let gang = job("tolerant", "a", 1).pods(3, None).required("rack");
    cluster.submit(gang.template(|pods| pods.tolerations = vec![tolerates("special")])).settle();
    assert_eq!(cluster.hosts("tolerant"), hosts(&[("avoided", 1), ("leaving", 1), ("special", 1)]));
}

#[test]
fn taints_of_nodes_do_not_exclude_a_domain_of_several_nodes() {
    let mut cluster = Cluster::new();
    cluster.topology("by-rack", &["rack"]).flavor_with("gpu", |it| it.topology = Some(Name::from("by-rack")));
    cluster.queue(queue("a").flavor("gpu", 100));
    cluster.node_with("special", &[("rack", "r1")], 1, tainted("special", TaintEffect::NoSchedule));
    cluster.submit(job("one", "a", 1).required("rack")).settle();
    assert_eq!(cluster.hosts("one"), hosts(&[("r1", 1)]));
}

#[test]
fn pods_are_placed_only_on_nodes_they_select() {
    let rack = |more: &'static str| [("rack", "r1"), ("disk", more)];
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[]).queue(queue("a").flavor("gpu", 100));
    cluster.node("fast", &rack("ssd"), 1).node("slow", &rack("hdd"), 1).node("bare", &[("rack", "r1")], 1);
    let gang = |name: &str| job(name, "a", 1).pods(2, None).required("rack");
    let selecting = gang("selecting").template(|pods| {
        pods.node_selector = [(Name::from("disk"), Name::from("ssd"))].into();
    });
    cluster.submit(selecting);
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("only 1 out of 2 pod(s). Total nodes: 3; excluded: nodeSelector: 2"), "{lines:?}");
    let choosy = |name: &str, terms: Vec<SelectorTerm>| {
        gang(name).template(|pods| pods.affinity = NodeAffinity { required: Some(terms), preferred: Vec::new() })
    };
    // An empty term matches no node.
    let slow = SelectorTerm { expressions: vec![label("disk", "hdd")], fields: Vec::new() };
    cluster.submit(choosy("choosy", vec![slow.clone(), SelectorTerm::default()]));
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("only 1 out of 2 pod(s). Total nodes: 3; excluded: affinity: 2"), "{lines:?}");
    let by_name = SelectorTerm { expressions: Vec::new(), fields: vec![label("metadata.name", "bare")] };
    cluster.submit(choosy("either", vec![slow, by_name])).settle();
    assert_eq!(cluster.hosts("either"), hosts(&[("bare", 1), ("slow", 1)]));
}

#[test]
fn a_leader_gets_a_node_it_may_use_and_its_workers_the_others() {
    let mut cluster = Cluster::new();
    cluster.racks("gpu", &[("r1", &[1, 1])]).queue(queue("a").flavor("gpu", 100));
    cluster.node("r1-head", &[("rack", "r1"), ("role", "head")], 2);
    let grouped = |job: Job| job.required("rack").topology(|request| request.group = Some(Name::from("group")));
    let gang = grouped(grouped(job("gang", "a", 1).pods(3, None)).pod_set("leader", 1, 1));
    let led_by = |role: &str| {
        gang.clone().with(|workload| {
            let leader = &mut workload.pod_sets[1];
            let mut template = PodTemplate::clone(&leader.template);
            template.node_selector = [(Name::from("role"), Name::from(role))].into();
            leader.template = template.into();
        })
    };
    cluster.submit(led_by("absent"));
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("excluded: nodeSelector: 3"), "{lines:?}");
    cluster.finish("gang").submit(led_by("head")).settle();
    assert_eq!(cluster.hosts_of("gang", 1), hosts(&[("r1-head", 1)]));
    assert_eq!(cluster.hosts("gang"), hosts(&[("r1-0", 1), ("r1-1", 1), ("r1-head", 1)]));
}

/// Prefers the nodes of these terms, each with a weight.
fn preferring(job: Job, terms: &[(i32, SelectorTerm)]) -> Job {
    let preferred = terms.iter().map(|(weight, term)| PreferredTerm { weight: *weight, term: term.clone() }).collect();
    job.template(|pods| pods.affinity = NodeAffinity { required: None, preferred })
}

#[test]
fn preferred_affinity_takes_precedence_over_a_tight_fit_with_its_gate() {
    let by_name = SelectorTerm { expressions: Vec::new(), fields: vec![label("metadata.name", "r1-1")] };
    for (respected, host) in [(true, "r1-1"), (false, "r1-0")] {
        let mut cluster = Cluster::with(|config| config.gates.tas_respect_node_affinity_preferred = respected);
        cluster.racks("gpu", &[("r1", &[1, 2])]).queue(queue("a").flavor("gpu", 100));
        cluster.submit(preferring(job("one", "a", 1).preferred(HOSTNAME), &[(10, by_name.clone())])).settle();
        assert_eq!(cluster.hosts("one"), hosts(&[(host, 1)]));
    }
}

#[test]
fn a_rack_with_more_nodes_is_not_preferred_by_an_empty_preference() {
    let mut cluster = Cluster::with(|config| config.gates.tas_respect_node_affinity_preferred = true);
    cluster.racks("gpu", &[("r1", &[1, 1]), ("r2", &[1])]).queue(queue("a").flavor("gpu", 100));
    cluster.submit(preferring(job("one", "a", 1).required("rack"), &[(100, SelectorTerm::default())])).settle();
    assert_eq!(cluster.hosts("one"), hosts(&[("r2-0", 1)]));
    // The scores of a rack's nodes are added.
    let all = SelectorTerm { expressions: vec![label("rack", "r1")], fields: Vec::new() };
    cluster.submit(preferring(job("two", "a", 1).required("rack"), &[(1, all)])).settle();
    assert_eq!(cluster.hosts("two"), hosts(&[("r1-0", 1)]));
}

#[test]
fn unconstrained_pods_fill_small_gaps_first_with_the_mixed_profile() {
    for (mixed, given) in [(true, vec![("r1-0", 1), ("r1-1", 2), ("r1-2", 1)]), (false, vec![("r1-0", 1), ("r1-2", 3)])]
    {
        let mut cluster = Cluster::with(|config| config.gates.tas_profile_mixed = mixed);
        cluster.racks("gpu", &[("r1", &[1, 2, 3])]).queue(queue("a").flavor("gpu", 100));
        cluster.submit(job("gang", "a", 1).pods(4, None).placed(TopologyMode::Unconstrained)).settle();
        assert_eq!(cluster.hosts("gang"), hosts(&given));
    }
}

#[test]
fn a_preferred_level_falls_back_to_the_level_above_and_then_to_several_domains() {
    let mut cluster = Cluster::new();
    blocks(&mut cluster, &[&[&[2], &[1]], &[&[2]]]);
    for (pods, given) in [
        (2, vec![("b1-r1-1", 2)]),
        (3, vec![("b1-r1-1", 2), ("b1-r2-1", 1)]),
        // Two blocks are needed. Of all their racks, as few as possible are used.
        (4, vec![("b1-r1-1", 2), ("b2-r1-1", 2)]),
    ] {
        cluster.submit(job("gang", "a", 1).pods(pods, None).preferred("rack")).settle();
        assert_eq!(cluster.hosts("gang"), hosts(&given));
        cluster.finish("gang");
        cluster.settle();
    }
    cluster.submit(job("gang", "a", 1).pods(6, None).preferred("rack"));
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("topology \"blocks\" allows to fit only 5 out of 6 pod(s)"), "{lines:?}");
}

#[test]
fn a_shortage_is_counted_in_slices_and_layer_by_layer() {
    let mut cluster = Cluster::new();
    blocks(&mut cluster, &[&[&[2, 1]], &[&[2]]]);
    cluster.submit(job("sliced", "a", 1).pods(8, None).required("block").slices("rack", 4));
    let lines = cluster.cycle();
    assert!(lines[0].ends_with("topology \"blocks\" doesn't allow to fit any of 2 slice(s)"), "{lines:?}");
    cluster.update("sliced", |workload| workload.active = false);
    let layered = job("layered", "a", 1).pods(8, None).required("block").slices("rack", 4).slices(HOSTNAME, 2);
    cluster.submit(layered);
    let lines = cluster.cycle();
    assert!(
        lines[0].ends_with(
            "doesn't allow to fit; 0/2 slice(s) fit on level rack; 1/4 slice(s) fit on level kubernetes.io/hostname"
        ),
        "{lines:?}"
    );
}

#[test]
fn layers_are_distributed_in_multiples_of_the_inner_layer() {
    let mut cluster = Cluster::new();
    // The first rack can hold four pods, but not in pairs.
    blocks(&mut cluster, &[&[&[3, 1], &[2, 2]]]);
    cluster.submit(job("pairs", "a", 1).pods(4, None).required("block").slices("rack", 4).slices(HOSTNAME, 2)).settle();
    assert_eq!(cluster.hosts("pairs"), hosts(&[("b1-r2-1", 2), ("b1-r2-2", 2)]));
}

#[test]
fn balanced_placement_gives_every_domain_the_same_number_at_a_preferred_level() {
    let placed = |balanced: bool, ask: fn(Job) -> Job| {
        let mut cluster = Cluster::with(|config| config.gates.tas_balanced_placement = balanced);
        cluster.racks("gpu", &[("r1", &[4, 4]), ("r2", &[4, 4])]).queue(queue("a").flavor("gpu", 100));
        cluster.submit(ask(job("gang", "a", 1).pods(6, None))).settle();
        cluster.hosts("gang")
    };
    let preferred = |job: Job| job.preferred("rack");
    let even = hosts(&[("r1-0", 3), ("r1-1", 3)]);
    let tight = hosts(&[("r1-0", 4), ("r1-1", 2)]);
    assert_eq!(placed(true, preferred), even);
    assert_eq!(placed(false, preferred), tight);
    assert_eq!(placed(true, |job| job.required("rack")), tight);
}

#[test]
fn balanced_placement_omits_domains_that_would_get_less_and_keeps_slices_whole() {
    let mut cluster = Cluster::with(|config| config.gates.tas_balanced_placement = true);
    cluster.racks("gpu", &[("r1", &[5]), ("r2", &[1]), ("r3", &[5])]).queue(queue("a").flavor("gpu", 100));
    cluster.submit(job("gang", "a", 1).pods(8, None).preferred("rack")).settle();
    assert_eq!(cluster.hosts("gang"), hosts(&[("r1-0", 4), ("r3-0", 4)]));
    cluster.finish("gang");
    cluster.submit(job("pairs", "a", 1).pods(6, None).preferred("rack").slices("rack", 2)).settle();
    assert_eq!(cluster.hosts("pairs"), hosts(&[("r1-0", 4), ("r3-0", 2)]));
}
