//! Connections between pods, and to the machine and other networks.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_network::{Level, Network, Options, Report};
use berth_pod_runtime::{PodUid, RuntimeError, SandboxNetwork};

use crate::space::{Space, ip, isolated};

const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn options(folder: &Path) -> Options {
    Options {
        folder: folder.to_owned(),
        level: Level::Full,
        helper: Some(env!("CARGO_BIN_EXE_berth-network-helper").into()),
        pod_range: None,
        cluster_domain: "cluster.local".to_owned(),
        service_range: "10.96.0.0/16".parse().unwrap(),
        api_server: "127.0.0.1:6443".parse().unwrap(),
        node_addresses: Vec::new(),
        expose_node_ports: false,
    }
}

async fn open(folder: &Path) -> (Arc<Network>, Report) {
    let (network, report) = Network::open(options(folder)).await.unwrap();
    assert_eq!((report.level, &report.reason), (Level::Full, &None), "{report}");
    (network, report)
}

pub(crate) fn uid(name: &str) -> PodUid {
    PodUid(name.to_owned())
}

async fn start(network: &Network, name: &str) -> (Space, IpAddr) {
    let space = Space::new();
    let address = network.allocate(&uid(name)).await.unwrap();
    network.connect(&uid(name), space.pid()).await.unwrap();
    (space, address)
}

/// Accepts one connection and sends the client's address to it.
fn serve(listener: TcpListener) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(peer.ip().to_string().as_bytes()).unwrap();
    })
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Starts a server in a namespace.
async fn server_in(space: &Space, address: IpAddr) -> SocketAddr {
    let bind = move || {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        serve(listener);
        address
    };
    space.run(bind).await
}

#[test]
fn pods_and_the_machine_reach_each_other() {
    isolated("pods::pods_and_the_machine_reach_each_other", async {
        let folder = tempfile::tempdir().unwrap();
        let (network, report) = open(folder.path()).await;
        assert_eq!(report.limits, Vec::<String>::new());
        let ((a, address_a), (b, address_b)) = (start(&network, "a").await, start(&network, "b").await);
        let server = server_in(&b, address_b).await;
        assert_eq!(a.run(move || ask(server)).await.unwrap(), address_a.to_string());
        let server = server_in(&b, address_b).await;
        let from_machine = tokio::task::spawn_blocking(move || ask(server)).await.unwrap().unwrap();
        assert!(from_machine.ends_with(".0.1"), "{from_machine}");
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let machine = SocketAddr::new(from_machine.parse().unwrap(), listener.local_addr().unwrap().port());
        serve(listener);
        assert_eq!(b.run(move || ask(machine)).await.unwrap(), address_b.to_string());
        let own = a.run(move || TcpListener::bind("127.0.0.1:0").and_then(|it| TcpStream::connect(it.local_addr()?)));
        own.await.expect("the loopback interface of a pod is not up");
        network.remove().await.unwrap();
        assert!(!ip("-o link").contains("berth-"), "{}", ip("-o link"));
    });
}

#[test]
fn pods_that_end_together_are_disconnected_and_the_others_stay_connected() {
    isolated("pods::pods_that_end_together_are_disconnected_and_the_others_stay_connected", async {
        let folder = tempfile::tempdir().unwrap();
        let (network, _) = open(folder.path()).await;
        let ((a, address_a), (b, address_b)) = (start(&network, "a").await, start(&network, "b").await);
        let ended: Vec<PodUid> = (0..8).map(|number| uid(&format!("ended-{number}"))).collect();
        let mut spaces = Vec::new();
        for pod in &ended {
            spaces.push(start(&network, &pod.0).await);
        }
        let links = || ip("-o -d link show type veth");
        assert_eq!(links().lines().count(), 10, "{}", links());
        let one_queue = "numtxqueues 1 numrxqueues 1 ";
        assert!(links().lines().all(|link| link.contains(one_queue)), "{}", links());
        assert!(a.run(|| ip("-o -d link show eth0")).await.contains(one_queue));

        let releases = ended.iter().enumerate().map(|(number, pod)| {
            let network = &network;
            async move {
                tokio::time::sleep(Duration::from_millis(20) * u32::try_from(number).unwrap()).await;
                network.release(pod).await.unwrap();
                ip("-o link show type veth").lines().count()
            }
        });
        let left = futures::future::join_all(releases).await;
        assert_eq!(left, vec![2; ended.len()], "the interfaces are deleted one after the other");
        network.release(&ended[0]).await.expect("a repeated release fails");
        let server = server_in(&b, address_b).await;
        assert_eq!(a.run(move || ask(server)).await.unwrap(), address_a.to_string());

        // A release that ends early leaves the interface in another group.
        let links_of_group = || ip("-o link show group 7");
        let name = links().split([':', '@']).nth(1).unwrap().trim().to_owned();
        ip(&format!("link set {name} group 7"));
        assert_eq!(links_of_group().lines().count(), 1);
        for (pod, space) in [("a", &a), ("b", &b)] {
            network.connect(&uid(pod), space.pid()).await.unwrap();
        }
        assert_eq!(links_of_group(), "");
        network.remove().await.unwrap();
        assert_eq!(links(), "");
    });
}

#[test]
fn pods_reach_other_networks_and_are_not_reached_from_there() {
    isolated("pods::pods_reach_other_networks_and_are_not_reached_from_there", async {
        let other = Space::new();
        ip(&format!("link add up0 type veth peer name eth0 netns {}", other.pid()));
        ip("address add 192.0.2.1/24 dev up0");
        ip("link set up0 up mtu 1400");
        ip("route add default via 192.0.2.2");
        let settle = |words: &'static str| other.run(move || drop(ip(words)));
        settle("address add 192.0.2.2/24 dev eth0").await;
        settle("link set eth0 up").await;
        let folder = tempfile::tempdir().unwrap();
        let (network, report) = open(folder.path()).await;
        let (pod, address) = start(&network, "a").await;
        let outside: IpAddr = "192.0.2.2".parse().unwrap();
        let server = server_in(&other, outside).await;
        assert_eq!(pod.run(move || ask(server)).await.unwrap(), "192.0.2.1", "the machine's address is not used");
        assert!(pod.run(|| ip("-o link show eth0")).await.contains("mtu 1400"));

        let route = format!("route add {} via 192.0.2.1", report.pods);
        other.run(move || drop(ip(&route))).await;
        let server = server_in(&pod, address).await;
        let refused = other.run(move || TcpStream::connect_timeout(&server, Duration::from_millis(300))).await;
        assert!(refused.is_err(), "another machine reached a pod");
        other.run(|| drop(ip("route add 10.96.0.0/16 via 192.0.2.1"))).await;
        for address in ["10.96.0.1".parse().unwrap(), report.pods.hosts().next().unwrap()] {
            // Without the rule, the machine would refuse the connection at once.
            let to = SocketAddr::new(IpAddr::V4(address), 443);
            let outcome = other.run(move || TcpStream::connect_timeout(&to, Duration::from_millis(300))).await;
            assert_eq!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut, "{to}");
        }
    });
}

#[test]
fn pods_stay_connected_over_a_restart_and_the_others_are_removed() {
    isolated("pods::pods_stay_connected_over_a_restart_and_the_others_are_removed", async {
        let folder = tempfile::tempdir().unwrap();
        let (network, first) = open(folder.path()).await;
        let (a, address) = start(&network, "a").await;
        let (_b, _) = start(&network, "b").await;
        drop(network);
        let (network, second) = open(folder.path()).await;
        assert_eq!(first, second);
        network.retain(&BTreeSet::from([uid("a")])).await.unwrap();
        let ports = ip("-o link show type veth");
        assert_eq!(ports.lines().count(), 1, "{ports}");
        network.connect(&uid("a"), a.pid()).await.unwrap();
        assert_eq!(network.allocate(&uid("a")).await.unwrap(), address);
        let server = server_in(&a, address).await;
        tokio::task::spawn_blocking(move || ask(server)).await.unwrap().unwrap();

        // A pod that starts again in another namespace replaces the interfaces of the former one.
        let again = Space::new();
        network.connect(&uid("a"), again.pid()).await.unwrap();
        let server = server_in(&again, address).await;
        tokio::task::spawn_blocking(move || ask(server)).await.unwrap().unwrap();
        network.release(&uid("a")).await.unwrap();
        network.release(&uid("a")).await.unwrap();
        assert_eq!(ip("-o link show type veth"), "");
    });
}

#[test]
fn two_clusters_have_networks_of_their_own() {
    isolated("pods::two_clusters_have_networks_of_their_own", async {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, report_one) = open(one.path()).await;
        let (second, report_two) = open(two.path()).await;
        assert_ne!(report_one.pods, report_two.pods);
        let [limit] = report_two.limits.as_slice() else { panic!("{report_two}") };
        let expected = "only pods can reach cluster IPs: another cluster of this machine uses 10.96.0.0/16; \
                        this machine reaches Services in 127.";
        assert!(limit.starts_with(expected), "{limit}");
        first.remove().await.unwrap();
        let (pod, address) = start(&second, "a").await;
        let server = server_in(&pod, address).await;
        tokio::task::spawn_blocking(move || ask(server)).await.unwrap().unwrap();
    });
}

#[test]
fn bridges_of_clusters_that_have_ended_are_removed() {
    isolated("pods::bridges_of_clusters_that_have_ended_are_removed", async {
        let bridges = || ip("-o link show type bridge").lines().count();
        let [live, idle, gone, own] = [(); 4].map(|()| tempfile::tempdir().unwrap());
        let (running, _) = open(live.path()).await;
        // The pod of a cluster whose process does not run remains connected.
        let (stopped, _) = open(idle.path()).await;
        let _pod = start(&stopped, "a").await;
        drop(stopped);
        let (deleted, _) = open(gone.path()).await;
        let _other = start(&deleted, "b").await;
        drop(deleted);
        assert_eq!(bridges(), 3);
        let (mine, _) = open(own.path()).await;
        assert_eq!(bridges(), 4, "a bridge whose folder exists and to which a pod is connected was removed");
        drop(mine);
        drop(gone);
        let (mine, _) = open(own.path()).await;
        assert_eq!(bridges(), 3, "the bridge of the cluster without a folder was not removed");
        assert_eq!(ip("-o link show type veth").lines().count(), 1);
        drop((running, mine));
        let (last, _) = open(live.path()).await;
        assert_eq!(bridges(), 2, "a bridge without a process and without a pod was not removed");
        last.remove().await.unwrap();
    });
}

#[test]
fn a_table_without_its_bridge_is_removed_and_does_not_drop_packets_of_the_next_cluster() {
    isolated("pods::a_table_without_its_bridge_is_removed_and_does_not_drop_packets_of_the_next_cluster", async {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (ended, before) = open(first.path()).await;
        drop(ended);
        let link = ip("-o link show type bridge");
        let bridge = link.split(": ").nth(1).expect("the bridge of the first cluster");
        ip(&format!("link del {bridge}"));
        let (network, report) = open(second.path()).await;
        assert_eq!(report.pods, before.pods, "the range is free again");
        // The pod's packets go to the gateway, whose address is in the range.
        let (pod, address) = start(&network, "a").await;
        let server = server_in(&pod, address).await;
        tokio::task::spawn_blocking(move || ask(server))
            .await
            .unwrap()
            .expect("the pod does not respond to the machine");
        network.remove().await.unwrap();
    });
}

#[test]
fn a_process_that_has_ended_is_not_connected() {
    isolated("pods::a_process_that_has_ended_is_not_connected", async {
        let folder = tempfile::tempdir().unwrap();
        let (network, _) = open(folder.path()).await;
        let pid = Space::new().pid();
        network.allocate(&uid("a")).await.unwrap();
        let error = network.connect(&uid("a"), pid).await.unwrap_err();
        assert!(matches!(error, RuntimeError::NotFound(_)), "{error}");
        let error = network.connect(&uid("b"), std::process::id()).await.unwrap_err();
        assert!(matches!(error, RuntimeError::NotFound(_)), "{error}");
    });
}

#[test]
fn a_configured_range_that_the_machine_uses_is_rejected() {
    isolated("pods::a_configured_range_that_the_machine_uses_is_rejected", async {
        ip("link add other type bridge");
        ip("address add 10.50.1.1/24 dev other");
        ip("link set other up");
        let folder = tempfile::tempdir().unwrap();
        let range = Some("10.50.0.0/16".parse().unwrap());
        let (_, report) = Network::open(Options { pod_range: range, ..options(folder.path()) }).await.unwrap();
        assert_eq!(report.level, Level::Plain);
        let reason = report.reason.unwrap();
        assert!(reason.contains("10.50.0.0/16 overlaps 10.50.1"), "{reason}");
    });
}

#[tokio::test]
async fn at_the_plain_level_pods_have_loopback_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let plain = Options { level: Level::Plain, ..options(folder.path()) };
    let Ok((network, report)) = Network::open(plain).await else {
        berth_testing::skip("this machine has no loopback addresses besides 127.0.0.1");
        return;
    };
    assert_eq!((report.level, report.reason), (Level::Plain, None));
    let address = network.allocate(&uid("a")).await.unwrap();
    assert!(address.is_loopback() && address != network.allocate(&uid("b")).await.unwrap());
    network.connect(&uid("a"), std::process::id()).await.unwrap();
    let listener = TcpListener::bind((address, 0)).unwrap();
    let server = listener.local_addr().unwrap();
    serve(listener);
    tokio::task::spawn_blocking(move || ask(server)).await.unwrap().unwrap();
    network.retain(&BTreeSet::new()).await.unwrap();
}
